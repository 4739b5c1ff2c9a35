//! One TLS connection over one socket, driven so that it is known which of our bytes the socket has
//! accepted. `tokio-rustls` does the handshake; then socket and TLS state are taken apart. What is
//! encrypted is drained at once into a buffer of our own, and a frame is *written* when the socket
//! has accepted its last byte of ciphertext (T7): the position of that byte is noted when the
//! frame is encrypted, and compared with what the socket took.
//!
//! Left to others: configurations and words for what went wrong (`credentials`), what the bytes
//! mean (`proto`), when to read and write (`pump`).
//!
//! Invariants: P1: `written + unsent = produced`. P2: frames are reported written in order, each
//! once, and only with all of its bytes accepted.

use std::collections::VecDeque;
use std::io::{self, BufRead, IoSlice, Read, Write};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::{SessionEnd, TimedOut};
use crate::id::{ClusterName, Lane, PeerId, Sequence};
use crate::io::credentials::{Accept, Dial, Judge, PeerCertificate, Stage, export_key};
use crate::limits::READ_BYTES_MAX;
use crate::proto::hello::{KeyContext, SessionKeys};

/// Bytes taken from the socket in one call.
const CHUNK_BYTES: usize = 64 << 10;

/// Plaintext bytes of a full TLS record.
const RECORD_BYTES: usize = 16 << 10;

/// What one turn of reading gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadTurn {
    /// Some bytes; there may be more.
    Some,
    /// Nothing more for now.
    Idle,
    /// The other side has ended the connection.
    Eof,
}

pub(crate) struct TlsPipe {
    stream: TcpStream,
    tls: rustls::Connection,
    judge: Judge,
    peer: PeerCertificate,
    stage: Stage,
    fresh: bool,
    chunk: Box<[u8]>,
    /// Messages for the next records, and the frames among them.
    plain: Vec<Bytes>,
    plain_bytes: usize,
    unsealed: Vec<Sequence>,
    unsent: Vec<u8>,
    unsent_from: usize,
    produced: u64,
    written: u64,
    marks: VecDeque<(u64, Sequence)>,
}

/// Whose keys a session has, without its lane.
pub(crate) struct Parties {
    pub(crate) cluster: ClusterName,
    pub(crate) dialler: PeerId,
    pub(crate) acceptor: PeerId,
}

impl Parties {
    fn context(&self, lane: Lane) -> KeyContext {
        let Self {
            cluster,
            dialler,
            acceptor,
        } = self;
        KeyContext {
            cluster: cluster.clone(),
            lane,
            dialler: *dialler,
            acceptor: *acceptor,
        }
    }
}

impl TlsPipe {
    /// Does the dialler's side of the handshake.
    pub(crate) async fn connect(
        stream: TcpStream,
        dial: &Dial,
        limit: Duration,
    ) -> Result<Self, SessionEnd> {
        let judge = dial.judge();
        let handshake = TlsConnector::from(dial.config()).connect(dial.server_name(), stream);
        let connected = match tokio::time::timeout(limit, handshake).await {
            Err(_) => return Err(TimedOut::Handshake { limit }.into()),
            Ok(Err(error)) => return Err(judge.end_of(&error, Stage::Handshake)),
            Ok(Ok(connected)) => connected,
        };
        let (stream, tls) = connected.into_inner();
        let peer = judge.peer(&tls)?;
        Ok(Self::new(stream, tls.into(), judge.clone(), peer))
    }

    /// Does the acceptor's side of the handshake.
    pub(crate) async fn accept(
        stream: TcpStream,
        accept: &Accept,
        limit: Duration,
    ) -> Result<Self, SessionEnd> {
        let judge = accept.judge();
        let handshake = TlsAcceptor::from(accept.config()).accept(stream);
        let accepted = match tokio::time::timeout(limit, handshake).await {
            Err(_) => return Err(TimedOut::Handshake { limit }.into()),
            Ok(Err(error)) => return Err(judge.end_of(&error, Stage::Handshake)),
            Ok(Ok(accepted)) => accepted,
        };
        let (stream, tls) = accepted.into_inner();
        let peer = judge.peer(&tls)?;
        Ok(Self::new(stream, tls.into(), judge.clone(), peer))
    }

    fn new(
        stream: TcpStream,
        mut tls: rustls::Connection,
        judge: Judge,
        peer: PeerCertificate,
    ) -> Self {
        // What may wait unsent is bounded by whoever calls `push`.
        tls.set_buffer_limit(None);
        Self {
            stream,
            tls,
            judge,
            peer,
            stage: Stage::Handshake,
            fresh: true,
            chunk: vec![0; CHUNK_BYTES].into_boxed_slice(),
            plain: Vec::new(),
            plain_bytes: 0,
            unsealed: Vec::new(),
            unsent: Vec::new(),
            unsent_from: 0,
            produced: 0,
            written: 0,
            marks: VecDeque::new(),
        }
    }

    /// Who is at the other end.
    pub(crate) fn peer(&self) -> &PeerCertificate {
        &self.peer
    }

    /// Draws the session's keys.
    pub(crate) fn keys(&self, parties: &Parties, lane: Lane) -> Result<SessionKeys, SessionEnd> {
        let keys = SessionKeys::derive(&parties.context(lane), |label, context| match &self.tls {
            rustls::Connection::Client(tls) => export_key(tls, label, context),
            rustls::Connection::Server(tls) => export_key(tls, label, context),
        });
        Ok(keys?)
    }

    /// Takes a message for the next records; `frame` is reported by [`TlsPipe::pop_written`] once
    /// the socket has all of it. Messages share records, which are encrypted as soon as one is full
    /// and at the latest by [`TlsPipe::flush`]: a record costs more than the bytes of a small
    /// message in it.
    pub(crate) fn push(
        &mut self,
        message: Bytes,
        frame: Option<Sequence>,
    ) -> Result<(), SessionEnd> {
        self.plain_bytes += message.len();
        self.plain.push(message);
        self.unsealed.extend(frame);
        if self.plain_bytes >= RECORD_BYTES {
            self.seal()
        } else {
            Ok(())
        }
    }

    /// Encrypts what was taken. The frames in it end where their last record ends, or before.
    fn seal(&mut self) -> Result<(), SessionEnd> {
        if self.plain.is_empty() {
            return Ok(());
        }
        let parts: Vec<IoSlice<'_>> = self.plain.iter().map(|part| IoSlice::new(part)).collect();
        let taken = self.tls.writer().write_vectored(&parts);
        let whole = taken.and_then(|taken| {
            // TLS takes all, since its buffer has no bound; anything else would tear a message.
            if taken == self.plain_bytes {
                Ok(())
            } else {
                Err(io::ErrorKind::WriteZero.into())
            }
        });
        self.plain.clear();
        self.plain_bytes = 0;
        whole
            .and_then(|()| self.drain())
            .map_err(|error| self.end_of(&error))?;
        let end = self.produced;
        self.marks
            .extend(self.unsealed.drain(..).map(|frame| (end, frame)));
        Ok(())
    }

    /// Moves what TLS wants to send into our buffer.
    fn drain(&mut self) -> io::Result<()> {
        if self.unsent_from == self.unsent.len() {
            self.unsent.clear();
            self.unsent_from = 0;
        } else if self.unsent_from > CHUNK_BYTES {
            self.unsent.drain(..self.unsent_from);
            self.unsent_from = 0;
        }
        while self.tls.wants_write() {
            self.produced += self.tls.write_tls(&mut self.unsent)? as u64;
        }
        Ok(())
    }

    /// Bytes that the socket hasn't accepted.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.plain_bytes + self.unsent.len() - self.unsent_from
    }

    /// Gives the socket what it takes without waiting.
    pub(crate) fn flush(&mut self) -> Result<(), SessionEnd> {
        self.seal()?;
        while self.unsent_from < self.unsent.len() {
            match self.stream.try_write(&self.unsent[self.unsent_from..]) {
                Ok(0) => return Err(self.end_of_io(io::ErrorKind::WriteZero)),
                Ok(taken) => {
                    self.unsent_from += taken;
                    self.written += taken as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(self.end_of(&error)),
            }
        }
        debug_assert_eq!(
            self.written + self.unsent_bytes() as u64,
            self.produced,
            "P1"
        );
        Ok(())
    }

    /// The next frame that the socket has accepted whole.
    pub(crate) fn pop_written(&mut self) -> Option<Sequence> {
        let &(end, frame) = self.marks.front()?;
        if end > self.written {
            return None;
        }
        self.marks.pop_front();
        Some(frame)
    }

    /// Reads what has come, up to a turn's bound, and gives the decrypted bytes to `sink`.
    pub(crate) fn read(&mut self, mut sink: impl FnMut(&[u8])) -> Result<ReadTurn, SessionEnd> {
        // The handshake may have read further than its own end.
        if std::mem::take(&mut self.fresh) {
            let closed = self.process(&mut sink)?;
            return Ok(if closed {
                ReadTurn::Eof
            } else {
                ReadTurn::Some
            });
        }
        let mut total = 0;
        while total < READ_BYTES_MAX {
            let got = match self.receive() {
                Ok(0) => return Ok(ReadTurn::Eof),
                Ok(got) => got,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Ok(if total == 0 {
                        ReadTurn::Idle
                    } else {
                        ReadTurn::Some
                    });
                }
                Err(error) => return Err(self.end_of(&error)),
            };
            total += got;
            if self.decrypt(got, &mut sink)? {
                return Ok(ReadTurn::Eof);
            }
            if got < self.chunk.len() {
                return Ok(ReadTurn::Some);
            }
        }
        Ok(ReadTurn::Some)
    }

    /// Fills the chunk with what the socket has. A chunk that isn't filled shows that the socket is
    /// empty, which saves the call that would only say so: the runtime is told at once.
    fn receive(&mut self) -> io::Result<usize> {
        let mut short = 0;
        let (stream, chunk) = (&self.stream, &mut self.chunk);
        let received = stream.try_io(Interest::READABLE, || {
            let got = (&*socket2::SockRef::from(stream)).read(chunk)?;
            if got == 0 || got == chunk.len() {
                return Ok(got);
            }
            short = got;
            Err(io::ErrorKind::WouldBlock.into())
        });
        match received {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && short > 0 => Ok(short),
            received => received,
        }
    }

    /// Decrypts the first `got` bytes of the chunk; says whether the other side closed TLS.
    fn decrypt(&mut self, got: usize, sink: &mut impl FnMut(&[u8])) -> Result<bool, SessionEnd> {
        let mut taken = 0;
        while taken < got {
            let mut rest = &self.chunk[taken..got];
            let step = self
                .tls
                .read_tls(&mut rest)
                .map_err(|error| self.end_of(&error))?;
            taken += step;
            if self.process(sink)? {
                return Ok(true);
            }
            if step == 0 {
                break;
            }
        }
        self.drain().map_err(|error| self.end_of(&error))?;
        Ok(false)
    }

    /// Decrypts what TLS holds; says whether the other side closed TLS.
    fn process(&mut self, sink: &mut impl FnMut(&[u8])) -> Result<bool, SessionEnd> {
        let state = match self.tls.process_new_packets() {
            Ok(state) => state,
            Err(fault) => {
                // The alert that says so to the other side, as far as the socket takes it.
                drop(self.drain().map(|()| self.flush()));
                return Err(self.judge.end_of_tls(&fault, self.stage));
            }
        };
        if state.plaintext_bytes_to_read() > 0 {
            self.stage = Stage::Session;
            let mut reader = self.tls.reader();
            while let Ok(plain) = reader.fill_buf() {
                let bytes = plain.len();
                if bytes == 0 {
                    break;
                }
                sink(plain);
                reader.consume(bytes);
            }
        }
        Ok(state.peer_has_closed())
    }

    /// Says goodbye to TLS; what the socket doesn't take at once is for `flush`.
    pub(crate) fn close(&mut self) {
        drop(self.seal());
        self.tls.send_close_notify();
        // A failure to say goodbye changes nothing for a session that has ended.
        drop(self.drain());
    }

    /// Waits until the socket can be read, or written if something is unsent.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        let interest = if self.unsent_bytes() > 0 {
            Interest::READABLE | Interest::WRITABLE
        } else {
            Interest::READABLE
        };
        self.stream.ready(interest).await.map(drop)
    }

    /// Waits until the socket can be written.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        self.stream.writable().await
    }

    pub(crate) fn end_of(&self, error: &io::Error) -> SessionEnd {
        self.judge.end_of(error, self.stage)
    }

    pub(crate) fn end_of_io(&self, kind: io::ErrorKind) -> SessionEnd {
        self.judge.end_of_io(kind, self.stage)
    }
}
