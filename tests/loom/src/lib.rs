//! Models of the structures that threads share.
