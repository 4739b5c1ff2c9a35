//! Integration tests over real sockets and processes.
