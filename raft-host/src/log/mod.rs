//! The durable shared log of a node: all its groups in one sequence of segments, one write and one
//! `fdatasync` for everything that waits. The only folder that knows how the log is laid out.

pub mod api;
