//! What the control lane is held against: frames of the same size over one TLS connection by
//! `tokio-rustls` alone, with the same certificates, the same TLS configuration and no delay set,
//! and a reply of 16 bytes to each frame. There is no header, no tag, no account and no deadline
//! here, and what may go goes in one write: as fast as it gets with this library.
//!
//! A second one has the same tags made and checked beside it as the control lane has, one over each
//! frame and one over each reply at either end, since order and origin are what the lane adds to TLS
//! (ADR 0002): what is left between the two is what the lane costs. These tags are the cost alone:
//! they aren't sent, and what is checked was made before the run.
//!
//! The acceptor takes any number of connections, one after another or at once; the first four
//! bytes of each are the size of its frames, the fifth says whether there are tags.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};
use transport::Credentials;
use transport::io::clock;
use transport::limits::{HEADER_BYTES, ITEM_PREFIX_BYTES, TAG_BYTES};
use transport::proto::fifo::KEY_BYTES;

use crate::Fault;
use crate::end::OtherEnd;
use crate::fleet::Fleet;
use crate::meter::{Latencies, Run, ThreadMeter, Usage};

/// Bytes of a reply.
pub const REPLY_BYTES: usize = 16;

/// Bytes read in one call, at both ends.
const CHUNK_BYTES: usize = 64 << 10;

/// Bytes that the unwindowed stream writes in one call, or one frame if that is larger.
const BURST_BYTES: usize = 64 << 10;

/// Whether the exchange pays for tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tags {
    /// It doesn't.
    None,
    /// One is made and one checked for each frame and for each reply, as on the lane.
    AsOnTheLane,
}

/// Makes and checks tags over the bytes of one frame and one reply.
struct Tagger {
    key: LessSafeKey,
    frame: Vec<u8>,
    frame_tag: [u8; TAG_BYTES],
    reply: Vec<u8>,
    reply_tag: [u8; TAG_BYTES],
}

fn nonce() -> Nonce {
    // One nonce and key again and again: nothing is protected by these tags.
    Nonce::assume_unique_for_key([9; NONCE_LEN])
}

impl Tagger {
    /// For frames with a payload of this size; `None` where there are no tags.
    fn new(tags: Tags, frame_bytes: usize) -> Result<Option<Self>, Fault> {
        if tags == Tags::None {
            return Ok(None);
        }
        let key = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &[7; KEY_BYTES])?);
        let bytes = |payload| vec![0x5a; HEADER_BYTES + payload];
        let mut tagger = Self {
            key,
            frame: bytes(ITEM_PREFIX_BYTES + frame_bytes),
            frame_tag: [0; TAG_BYTES],
            reply: bytes(0),
            reply_tag: [0; TAG_BYTES],
        };
        tagger.frame_tag = tagger.tag(&tagger.frame)?;
        tagger.reply_tag = tagger.tag(&tagger.reply)?;
        Ok(Some(tagger))
    }

    fn tag(&self, message: &[u8]) -> Result<[u8; TAG_BYTES], Fault> {
        let message = Aad::from(std::hint::black_box(message));
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce(), message, &mut [])?;
        Ok(tag.as_ref().try_into()?)
    }

    fn check(&self, message: &[u8], tag: &[u8; TAG_BYTES]) -> Result<(), Fault> {
        let (message, mut tag) = (Aad::from(std::hint::black_box(message)), *tag);
        self.key.open_in_place(nonce(), message, &mut tag)?;
        Ok(())
    }

    /// What the sender does for so many frames.
    fn on_send(&self, frames: usize) -> Result<(), Fault> {
        (0..frames).try_for_each(|_| self.tag(&self.frame).map(drop))
    }

    /// What the acceptor does for so many.
    fn on_answer(&self, frames: usize) -> Result<(), Fault> {
        (0..frames).try_for_each(|_| {
            self.check(&self.frame, &self.frame_tag)?;
            self.tag(&self.reply).map(drop)
        })
    }

    /// What the sender does for so many replies.
    fn on_reply(&self, replies: usize) -> Result<(), Fault> {
        (0..replies).try_for_each(|_| self.check(&self.reply, &self.reply_tag))
    }
}

/// The answering side, on the other end.
#[derive(Debug)]
pub struct RawAcceptor {
    address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl RawAcceptor {
    /// Starts to listen on the other end, as the holder of `credentials`.
    ///
    /// # Errors
    /// There is no port to be had.
    pub async fn start(end: &OtherEnd, credentials: Credentials) -> Result<Self, Fault> {
        let listener = end.run(TcpListener::bind(("127.0.0.1", 0))).await??;
        let address = listener.local_addr()?;
        let task = end.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let config = credentials.accept().config();
                // A failure is seen by the dialler, whose run fails.
                tokio::spawn(async move { drop(answer(stream, config.into()).await) });
            }
        });
        Ok(Self { address, task })
    }

    /// Where to dial it.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for RawAcceptor {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(stream: TcpStream, acceptor: TlsAcceptor) -> Result<(), Fault> {
    stream.set_nodelay(true)?;
    let mut stream: server::TlsStream<TcpStream> = acceptor.accept(stream).await?;
    let frame_bytes = usize::try_from(stream.read_u32().await?)?;
    if frame_bytes == 0 {
        return Err("a frame of no bytes".into());
    }
    let tags = match stream.read_u8().await? {
        0 => Tags::None,
        _ => Tags::AsOnTheLane,
    };
    let tagger = Tagger::new(tags, frame_bytes)?;
    let mut chunk = vec![0; CHUNK_BYTES];
    let replies = vec![0; CHUNK_BYTES / frame_bytes * REPLY_BYTES + REPLY_BYTES];
    let mut begun = 0;
    loop {
        let got = stream.read(&mut chunk).await?;
        if got == 0 {
            return Ok(());
        }
        begun += got;
        let frames = begun / frame_bytes;
        begun %= frame_bytes;
        if frames > 0 {
            if let Some(tagger) = &tagger {
                tagger.on_answer(frames)?;
            }
            stream.write_all(&replies[..frames * REPLY_BYTES]).await?;
            stream.flush().await?;
        }
    }
}

/// The sending side of one connection.
pub struct RawExchange {
    stream: client::TlsStream<TcpStream>,
    frame_bytes: usize,
    tagger: Option<Tagger>,
}

impl std::fmt::Debug for RawExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawExchange")
            .field("frame_bytes", &self.frame_bytes)
            .finish_non_exhaustive()
    }
}

impl RawExchange {
    /// Dials the acceptor of node `to`, perhaps through a relay, for frames of this size.
    ///
    /// # Errors
    /// No connection came about.
    pub async fn dial(
        address: SocketAddr,
        credentials: &Credentials,
        to: u32,
        frame_bytes: usize,
        tags: Tags,
    ) -> Result<Self, Fault> {
        let dial = credentials.dial(&Fleet::identity(to)?);
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let connector = TlsConnector::from(dial.config());
        let mut stream = connector.connect(dial.server_name(), stream).await?;
        stream.write_u32(u32::try_from(frame_bytes)?).await?;
        stream.write_u8(u8::from(tags == Tags::AsOnTheLane)).await?;
        stream.flush().await?;
        Ok(Self {
            stream,
            frame_bytes,
            tagger: Tagger::new(tags, frame_bytes)?,
        })
    }

    /// Keeps `window` frames in flight for `lasting`, then waits for the last reply.
    ///
    /// # Errors
    /// The connection failed, or there were more replies than frames.
    pub async fn run(
        &mut self,
        window: usize,
        lasting: Duration,
        ends: &[ThreadMeter],
    ) -> Result<Run, Fault> {
        let frames_out = vec![0x5a; window * self.frame_bytes];
        let mut replies_in = vec![0; CHUNK_BYTES];
        let mut latencies = Latencies::default();
        // When so many frames were sent together, oldest first.
        let mut sent = VecDeque::new();
        let (mut outstanding, mut reply_begun) = (0, 0);
        let before = usage(ends)?;
        let began = clock::now();
        let until = began + lasting;
        let mut now = began;
        loop {
            if now < until && outstanding < window {
                let frames = window - outstanding;
                if let Some(tagger) = &self.tagger {
                    tagger.on_send(frames)?;
                }
                let burst = &frames_out[..frames * self.frame_bytes];
                self.stream.write_all(burst).await?;
                self.stream.flush().await?;
                sent.push_back((now, frames));
                outstanding = window;
            } else if outstanding == 0 {
                break;
            }
            let got = self.stream.read(&mut replies_in).await?;
            if got == 0 {
                return Err("the raw exchange ended before its last reply".into());
            }
            reply_begun += got;
            let answered = reply_begun / REPLY_BYTES;
            reply_begun %= REPLY_BYTES;
            if let Some(tagger) = &self.tagger {
                tagger.on_reply(answered)?;
            }
            now = clock::now();
            outstanding = outstanding
                .checked_sub(answered)
                .ok_or("more replies than frames")?;
            record(&mut latencies, &mut sent, now, answered);
        }
        Ok(Run {
            took: now - began,
            frames: latencies.frames(),
            items: latencies.frames(),
            latencies,
            usage: usage(ends)?.since(before),
        })
    }

    /// Sends frames as fast as the connection takes them for `lasting`, with no bound on those in
    /// flight but the sockets', then waits for the last reply. There are no latencies.
    ///
    /// # Errors
    /// The connection failed.
    pub async fn run_unwindowed(
        &mut self,
        lasting: Duration,
        ends: &[ThreadMeter],
    ) -> Result<Run, Fault> {
        let burst_frames = (BURST_BYTES / self.frame_bytes).max(1);
        let burst = vec![0x5a; burst_frames * self.frame_bytes];
        let before = usage(ends)?;
        let began = clock::now();
        let until = began + lasting;
        let (mut reader, mut writer) = tokio::io::split(&mut self.stream);
        let frames_sent = std::cell::Cell::new(None);
        let send = async {
            let mut frames = 0;
            while clock::now() < until {
                writer.write_all(&burst).await?;
                frames += burst_frames;
            }
            writer.flush().await?;
            frames_sent.set(Some(frames));
            Ok::<(), Fault>(())
        };
        let receive = async {
            let mut chunk = vec![0; CHUNK_BYTES];
            let mut reply_bytes = 0;
            // Until the sender has stopped there is always a reply to come.
            while frames_sent
                .get()
                .is_none_or(|f| reply_bytes < f * REPLY_BYTES)
            {
                match reader.read(&mut chunk).await? {
                    0 => return Err("the raw stream ended before its last reply".into()),
                    got => reply_bytes += got,
                }
            }
            Ok::<(), Fault>(())
        };
        tokio::try_join!(send, receive)?;
        let frames = u64::try_from(frames_sent.get().unwrap_or(0))?;
        Ok(Run {
            took: clock::now() - began,
            frames,
            items: frames,
            latencies: Latencies::default(),
            usage: usage(ends)?.since(before),
        })
    }
}

/// Takes the oldest `answered` frames out of `sent` and records how long each took.
fn record(
    latencies: &mut Latencies,
    sent: &mut VecDeque<(std::time::Instant, usize)>,
    now: std::time::Instant,
    mut answered: usize,
) {
    while answered > 0
        && let Some((at, frames)) = sent.front_mut()
    {
        let of_these = answered.min(*frames);
        latencies.record(now - *at, of_these as u64);
        answered -= of_these;
        *frames -= of_these;
        if *frames == 0 {
            sent.pop_front();
        }
    }
}

/// What all ends have used so far.
pub(crate) fn usage(ends: &[ThreadMeter]) -> Result<Usage, Fault> {
    ends.iter()
        .try_fold(Usage::default(), |sum, end| Ok(sum.plus(end.read()?)))
}
