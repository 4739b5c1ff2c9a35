//! Good and bad certificates over in-memory TLS connections, each side's sentence held against
//! what an operator must learn from it; and a table of bad files.

mod files;
mod handshakes;
mod maker;
