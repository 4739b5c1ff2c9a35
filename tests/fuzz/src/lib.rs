//! The targets' bodies, which live with the other tests' support: there the committed seeds are
//! replayed as a plain test, without a fuzzer.

#[path = "../../support/fuzz.rs"]
pub mod bodies;
