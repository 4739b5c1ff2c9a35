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

use bytes::{Buf, BytesMut};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::error::{SessionEnd, TimedOut};
use crate::id::{ClusterName, Lane, PeerId, Sequence};
use crate::io::clock;
use crate::io::credentials::{Accept, Dial, Judge, PeerCertificate, Stage, export_key};
use crate::limits::{FLUSH_BYTES, READ_BYTES_MAX};
use crate::proto::hello::{KeyContext, SessionKeys};
use crate::proto::outbound::Transmitted;

/// Plaintext bytes of a full TLS record.
const RECORD_BYTES: usize = 16 << 10;

/// Bytes of a full record with all that TLS 1.3 adds.
const RECORD_WIRE_BYTES: usize = RECORD_BYTES + 5 + 1 + 16;

/// Bytes that the socket took and that are kept before what it didn't take is moved to the front.
const TAKEN_BYTES_MAX: usize = 64 << 10;

/// Encrypted records that TLS shows to a writer in one call.
const RECORDS_SHOWN_MAX: usize = 64;

/// What one look at the socket gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// Some bytes, or the end; there may be more.
    Some,
    /// Nothing for now.
    Nothing,
}

pub(crate) struct TlsPipe {
    stream: TcpStream,
    tls: rustls::Connection,
    judge: Judge,
    peer: PeerCertificate,
    stage: Stage,
    /// The handshake may have read further than its own end.
    fresh: bool,
    /// The other side has ended the connection.
    at_end: bool,
    /// Ciphertext from the socket: what of it TLS hasn't got yet.
    chunk: Box<[u8]>,
    chunk_from: usize,
    chunk_to: usize,
    /// Messages for the next records, how many bytes were encrypted before them, and where among
    /// all plaintext the frames in them end.
    plain: BytesMut,
    sealed: u64,
    plain_ends: VecDeque<(u64, Sequence)>,
    /// Ciphertext that TLS holds.
    held: usize,
    /// Ciphertext that the socket didn't take when it could have.
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

/// A writer that takes nothing, and sees how much there is.
#[derive(Default)]
struct Shown {
    records: usize,
    bytes: usize,
}

impl Write for Shown {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        self.records = records.len();
        self.bytes = records.iter().map(|record| record.len()).sum();
        Ok(0)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The socket, which takes what it can without waiting.
struct Straight<'a>(&'a TcpStream);

impl Write for Straight<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, records: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(records)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
            at_end: false,
            chunk: vec![0; READ_BYTES_MAX].into_boxed_slice(),
            chunk_from: 0,
            chunk_to: 0,
            plain: BytesMut::new(),
            sealed: 0,
            plain_ends: VecDeque::new(),
            held: 0,
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

    /// Takes a message for the next records: `message` appends it, if there is one. Its frame is
    /// reported by [`TlsPipe::pop_written`] once the socket has all of it. Messages share records,
    /// which are encrypted as soon as one is full and at the latest by [`TlsPipe::flush`]: a record
    /// costs more than the bytes of a small message in it. Gives the message's bytes.
    pub(crate) fn push(
        &mut self,
        message: impl FnOnce(&mut BytesMut) -> Result<Option<Transmitted>, SessionEnd>,
    ) -> Result<Option<usize>, SessionEnd> {
        let before = self.plain.len();
        let Some(Transmitted { frame }) = message(&mut self.plain)? else {
            return Ok(None);
        };
        let end = self.sealed + self.plain.len() as u64;
        self.plain_ends.extend(frame.map(|frame| (end, frame)));
        Ok(Some(self.plain.len() - before))
    }

    /// Encrypts one record, full or of all that is there. The frames that end in it end where it
    /// ends.
    fn seal_record(&mut self) -> Result<(), SessionEnd> {
        let bytes = self.plain.len().min(RECORD_BYTES);
        let taken = self.tls.writer().write(&self.plain[..bytes]);
        // TLS takes all, since its buffer has no bound; anything else would tear a message.
        match taken {
            Ok(taken) if taken == bytes => {}
            Ok(_) => return Err(self.end_of_io(io::ErrorKind::WriteZero)),
            Err(error) => return Err(self.end_of(&error)),
        }
        self.plain.advance(bytes);
        self.sealed += bytes as u64;
        self.measure().map_err(|error| self.end_of(&error))?;
        while let Some(&(end, frame)) = self.plain_ends.front()
            && end <= self.sealed
        {
            self.plain_ends.pop_front();
            self.marks.push_back((self.produced, frame));
        }
        Ok(())
    }

    /// Sees how much ciphertext TLS holds. Where it can't show all, all moves into our buffer.
    fn measure(&mut self) -> io::Result<()> {
        let mut shown = Shown::default();
        self.tls.write_tls(&mut shown)?;
        if shown.records == RECORDS_SHOWN_MAX {
            return self.take_over();
        }
        self.produced += (shown.bytes - self.held) as u64;
        self.held = shown.bytes;
        Ok(())
    }

    /// Moves what TLS holds into our buffer.
    fn take_over(&mut self) -> io::Result<()> {
        if self.unsent_from == self.unsent.len() {
            self.unsent.clear();
            self.unsent_from = 0;
        } else if self.unsent_from > TAKEN_BYTES_MAX {
            self.unsent.drain(..self.unsent_from);
            self.unsent_from = 0;
        }
        let before = self.unsent.len();
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.unsent)?;
        }
        self.produced += (self.unsent.len() - before - self.held) as u64;
        self.held = 0;
        Ok(())
    }

    /// Bytes that the socket hasn't accepted.
    pub(crate) fn unsent_bytes(&self) -> usize {
        self.plain.len() + self.held + self.unsent.len() - self.unsent_from
    }

    /// Encrypts the records that are full and gives the socket what it takes; says whether there
    /// was one.
    pub(crate) fn flush_records(&mut self) -> Result<bool, SessionEnd> {
        if self.plain.len() < RECORD_BYTES {
            return Ok(false);
        }
        while self.plain.len() >= RECORD_BYTES {
            self.seal_record()?;
            if self.held >= FLUSH_BYTES || self.plain.len() < RECORD_BYTES {
                self.write()?;
            }
        }
        Ok(true)
    }

    /// Gives the socket what it takes without waiting.
    pub(crate) fn flush(&mut self) -> Result<(), SessionEnd> {
        while !self.plain.is_empty() {
            self.seal_record()?;
        }
        self.write()
    }

    fn write(&mut self) -> Result<(), SessionEnd> {
        let written = self.try_write().map_err(|error| self.end_of(&error));
        debug_assert_eq!(
            self.written + (self.held + self.unsent.len() - self.unsent_from) as u64,
            self.produced,
            "P1"
        );
        written
    }

    /// First what was left over, then what TLS holds, straight from there. What the socket doesn't
    /// take of that comes into our buffer, so that TLS never holds much.
    fn try_write(&mut self) -> io::Result<()> {
        while self.unsent_from < self.unsent.len() {
            match self.stream.try_write(&self.unsent[self.unsent_from..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => {
                    self.unsent_from += taken;
                    self.written += taken as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.take_over(),
                Err(error) => return Err(error),
            }
        }
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Straight(&self.stream)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(taken) => {
                    // What came about without `seal_record`, such as an alert, wasn't measured.
                    self.produced += taken.saturating_sub(self.held) as u64;
                    self.held = self.held.saturating_sub(taken);
                    self.written += taken as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return self.take_over(),
                Err(error) => return Err(error),
            }
        }
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

    /// Takes from the socket what it has, up to a turn's bound, once what it gave before is
    /// decrypted.
    pub(crate) fn receive(&mut self) -> Result<Received, SessionEnd> {
        debug_assert_eq!(self.chunk_from, self.chunk_to, "all was decrypted");
        match self.fill_chunk() {
            Ok(got) => {
                (self.chunk_from, self.chunk_to) = (0, got);
                self.at_end |= got == 0;
                Ok(Received::Some)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                (self.chunk_from, self.chunk_to) = (0, 0);
                // What the handshake read too far is with TLS already.
                Ok(if self.fresh {
                    Received::Some
                } else {
                    Received::Nothing
                })
            }
            Err(error) => Err(self.end_of(&error)),
        }
    }

    /// Whether the other side has ended the connection, and all that came before was decrypted.
    pub(crate) const fn is_at_end(&self) -> bool {
        self.at_end
    }

    /// Fills the chunk with what the socket has. A chunk that isn't filled shows that the socket is
    /// empty, which saves the call that would only say so: the runtime is told at once.
    fn fill_chunk(&mut self) -> io::Result<usize> {
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

    /// Decrypts about one full record of what was received and gives its bytes to `sink`; says
    /// whether there was something to decrypt.
    pub(crate) fn decrypt(&mut self, mut sink: impl FnMut(&[u8])) -> Result<bool, SessionEnd> {
        if std::mem::take(&mut self.fresh) {
            self.at_end |= self.process(&mut sink)?;
            return Ok(true);
        }
        let rest = self.chunk_to - self.chunk_from;
        if rest == 0 {
            return Ok(false);
        }
        self.give(rest.min(RECORD_WIRE_BYTES))?;
        self.at_end |= self.process(&mut sink)?;
        // What TLS answers by itself goes out with the next flush.
        self.measure().map_err(|error| self.end_of(&error))?;
        Ok(true)
    }

    /// Gives TLS so many bytes of the chunk, or as many as it has room for. It looks at all that it
    /// has whenever it is asked, so it is given much before it is asked.
    fn give(&mut self, bytes: usize) -> Result<(), SessionEnd> {
        let until = self.chunk_from + bytes;
        let mut given = false;
        while self.chunk_from < until {
            let mut rest = &self.chunk[self.chunk_from..until];
            match self.tls.read_tls(&mut rest) {
                // It has seen the other side's goodbye, and takes nothing after it.
                Ok(0) => self.chunk_from = self.chunk_to,
                Ok(step) => self.chunk_from += step,
                // Its buffer is full, of one record and a part of the next.
                Err(error) if given && error.kind() == io::ErrorKind::InvalidData => break,
                Err(error) => return Err(self.end_of(&error)),
            }
            given = true;
        }
        Ok(())
    }

    /// Decrypts what TLS holds; says whether the other side closed TLS.
    fn process(&mut self, sink: &mut impl FnMut(&[u8])) -> Result<bool, SessionEnd> {
        let state = match self.tls.process_new_packets() {
            Ok(state) => state,
            Err(fault) => {
                // The alert that says so to the other side, as far as the socket takes it.
                drop(self.measure());
                drop(self.write());
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

    /// Listens for so long on a connection on which the other side has nothing to say yet.
    ///
    /// # Errors
    /// It ended the connection, by an alert or without one.
    pub(crate) async fn listen(&mut self, grace: Duration) -> Result<(), SessionEnd> {
        let until = clock::now() + grace;
        loop {
            tokio::select! {
                biased;
                ready = self.ready() => ready.map_err(|error| self.end_of(&error))?,
                () = clock::sleep_until(Some(until)) => return Ok(()),
            }
            self.flush()?;
            self.receive()?;
            let mut said = 0;
            while self.decrypt(|bytes| said += bytes.len())? {}
            if said > 0 || self.is_at_end() {
                return Err(self.end_of_io(io::ErrorKind::UnexpectedEof));
            }
        }
    }

    /// Says goodbye to TLS; what the socket doesn't take at once is for `flush`.
    pub(crate) fn close(&mut self) {
        while !self.plain.is_empty() && self.seal_record().is_ok() {}
        self.tls.send_close_notify();
        // A failure to say goodbye changes nothing for a session that has ended.
        drop(self.measure());
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
