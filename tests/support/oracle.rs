//! What must hold in every run, whatever happens: the safety of consensus, and that what clients saw
//! is what one register a key could have answered.

pub mod linear;
pub mod safety;
