//! The Redis-protocol (RESP2) front: bytes to requests, replies to bytes, sessions on sockets.
//!
//! `parser` and `reply` know the protocol and no command; `dialog` is one session's state and
//! answers what needs no store; `server` and `connection` own the sockets. What a command does is
//! behind [`CommandHandler`], which the node implements.

mod catalogue;
mod connection;
mod dialog;
mod parser;
mod reply;
mod server;

pub use self::connection::CommandHandler;
pub use self::dialog::{Dialog, Request, SessionId, Step};
pub use self::parser::{Parser, ProtocolError};
pub use self::reply::Reply;
pub use self::server::{Served, serve};
