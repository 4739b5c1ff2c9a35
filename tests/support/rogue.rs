//! A peer that breaks the rules: it holds a valid certificate, speaks the wire as `plans/wire.md`
//! tells it, and says whatever a test wants said, as dialler and as acceptor. It is written from
//! that page alone and shares no code with `transport`, so it is also a second implementation that
//! the page is held against.

pub mod session;
pub mod wire;

pub use session::{Listener, Persona, Session, Side};
