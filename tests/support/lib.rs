//! What the integration tests stand on.
