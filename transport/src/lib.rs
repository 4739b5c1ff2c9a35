//! Per-peer mutual-TLS links.
