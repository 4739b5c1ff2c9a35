//! One connection to a server that speaks RESP2. Requests may be pipelined: what is sent together is
//! answered together, in order. A connection that failed once is of no use any more, since a late
//! reply would be taken for another request's; whoever holds it lets it go.
//!
//! Repeating, choosing another node, and what an error reply means are the caller's.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::time::Instant;

use bytes::{Buf as _, BufMut as _, BytesMut};
use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout_at;

use super::answer::{Answer, AnswerError};
use crate::config::HostPort;

/// Bytes taken from the socket at once.
const READ_BYTES: usize = 16 * 1024;

/// Where a node listens for clients: `HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint(String);

/// A text that is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{got:?} is no HOST:PORT")]
pub struct EndpointError {
    /// The text.
    pub got: String,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let fault = || EndpointError {
            got: text.to_owned(),
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(fault)?;
        let v6 = |inner: &str| inner.parse::<std::net::Ipv6Addr>().is_ok();
        let bracketed = host
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        let host_ok = match bracketed {
            Some(inner) => v6(inner),
            None => !host.is_empty() && host.chars().all(plain),
        };
        match port.parse::<u16>() {
            Ok(1..) if host_ok => Ok(Self(text.to_owned())),
            Ok(_) | Err(_) => Err(fault()),
        }
    }
}

impl From<&HostPort> for Endpoint {
    fn from(address: &HostPort) -> Self {
        Self(address.to_string())
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a call has no answer.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CallError {
    /// No connection was made; nothing was sent.
    #[error("can't connect to {endpoint}")]
    Connect {
        /// Where to.
        endpoint: Endpoint,
        /// Why not.
        source: io::Error,
    },
    /// Time was up before a connection was made; nothing was sent.
    #[error("{endpoint} took no connection in time")]
    ConnectTimedOut {
        /// Where to.
        endpoint: Endpoint,
    },
    /// Time was up after something was sent.
    #[error("{endpoint} didn't answer in time")]
    TimedOut {
        /// Who.
        endpoint: Endpoint,
    },
    /// The connection broke after something was sent.
    #[error("the connection to {endpoint} broke")]
    Lost {
        /// Whose.
        endpoint: Endpoint,
        /// Why.
        source: io::Error,
    },
    /// The other side closed the connection after something was sent.
    #[error("{endpoint} closed the connection")]
    Closed {
        /// Who.
        endpoint: Endpoint,
    },
    /// What came is no reply.
    #[error("{endpoint} doesn't speak the Redis protocol")]
    Protocol {
        /// Who.
        endpoint: Endpoint,
        /// What is wrong with it.
        source: AnswerError,
    },
}

impl CallError {
    /// Whether no byte of a request left, so that nothing can come of it.
    #[must_use]
    pub const fn is_before_sending(&self) -> bool {
        matches!(self, Self::Connect { .. } | Self::ConnectTimedOut { .. })
    }
}

/// A connection.
#[derive(Debug)]
pub struct Client {
    endpoint: Endpoint,
    socket: TcpStream,
    inbox: BytesMut,
    outbox: BytesMut,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// [`CallError::Connect`] or [`CallError::ConnectTimedOut`].
    pub async fn connect(endpoint: &Endpoint, deadline: Instant) -> Result<Self, CallError> {
        let refused = |source| CallError::Connect {
            endpoint: endpoint.clone(),
            source,
        };
        let connecting = TcpStream::connect(&endpoint.0);
        let Ok(connected) = timeout_at(deadline.into(), connecting).await else {
            let endpoint = endpoint.clone();
            return Err(CallError::ConnectTimedOut { endpoint });
        };
        let socket = connected.map_err(refused)?;
        socket.set_nodelay(true).map_err(refused)?;
        Ok(Self {
            endpoint: endpoint.clone(),
            socket,
            inbox: BytesMut::with_capacity(READ_BYTES),
            outbox: BytesMut::new(),
        })
    }

    /// Sends one request and waits for its answer.
    ///
    /// # Errors
    /// [`CallError`]; the connection is of no use afterwards.
    ///
    /// # Cancel safety
    /// None: let go of the connection if the future is dropped.
    pub async fn call(&mut self, words: &[&[u8]], deadline: Instant) -> Result<Answer, CallError> {
        self.queue(words);
        self.send(deadline).await?;
        let answer = self.next(deadline).await?;
        self.expect_nothing_more()?;
        Ok(answer)
    }

    /// Puts a request behind those that [`Self::send`] will send.
    pub fn queue(&mut self, words: &[&[u8]]) {
        put_length(&mut self.outbox, b'*', words.len());
        for word in words {
            put_length(&mut self.outbox, b'$', word.len());
            self.outbox.put_slice(word);
            self.outbox.put_slice(b"\r\n");
        }
    }

    /// Sends all that is queued.
    ///
    /// # Errors
    /// [`CallError::TimedOut`] or [`CallError::Lost`].
    pub async fn send(&mut self, deadline: Instant) -> Result<(), CallError> {
        let endpoint = self.endpoint.clone();
        let sent = timeout_at(deadline.into(), self.socket.write_all_buf(&mut self.outbox)).await;
        match sent {
            Err(_) => Err(CallError::TimedOut { endpoint }),
            Ok(Err(source)) => Err(CallError::Lost { endpoint, source }),
            Ok(Ok(())) => Ok(()),
        }
    }

    /// Waits for the answer to the oldest request that has none yet.
    ///
    /// # Errors
    /// [`CallError`]; the connection is of no use afterwards.
    pub async fn next(&mut self, deadline: Instant) -> Result<Answer, CallError> {
        loop {
            if let Some((answer, used)) = Answer::read(&self.inbox).map_err(|e| self.broken(e))? {
                self.inbox.advance(used);
                return Ok(answer);
            }
            self.inbox.reserve(READ_BYTES);
            let reading = self.socket.read_buf(&mut self.inbox);
            let read = timeout_at(deadline.into(), reading).await;
            let endpoint = self.endpoint.clone();
            match read {
                Err(_) => return Err(CallError::TimedOut { endpoint }),
                Ok(Err(source)) => return Err(CallError::Lost { endpoint, source }),
                Ok(Ok(0)) => return Err(CallError::Closed { endpoint }),
                Ok(Ok(_)) => {}
            }
        }
    }

    /// Fails if bytes came beyond the last answer that was asked for.
    fn expect_nothing_more(&self) -> Result<(), CallError> {
        if self.inbox.is_empty() {
            Ok(())
        } else {
            Err(self.broken(AnswerError::Unasked))
        }
    }

    fn broken(&self, source: AnswerError) -> CallError {
        let endpoint = self.endpoint.clone();
        CallError::Protocol { endpoint, source }
    }
}

fn put_length(out: &mut BytesMut, kind: u8, length: usize) {
    out.put_u8(kind);
    out.put_slice(length.to_string().as_bytes());
    out.put_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_a_host_and_a_port() {
        for good in ["127.0.0.1:7201", "node-1.example.org:1", "[::1]:65535"] {
            assert_eq!(good.parse::<Endpoint>().unwrap().to_string(), good);
        }
        for bad in [
            "",
            ":1",
            "host",
            "host:0",
            "host:65536",
            "::1:7",
            "[x]:1",
            "a b:1",
            "a/b:1",
        ] {
            assert!(bad.parse::<Endpoint>().is_err(), "{bad}");
        }
    }
}
