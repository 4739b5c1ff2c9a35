//! A TCP relay on loopback between a dialler and a listener. It sees ciphertext only. Each direction
//! can be stopped, which fills the sender's socket, or let so many bytes through and no more; it can
//! be a line of a bounded rate and a delay; and everything can be cut.
//!
//! All connections of a relay share the line's rate, as all that crosses one cable does: each takes
//! its turn with one chunk, first come, first served. What the line has no turn for stays with its
//! sender.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::{Mutex, mpsc, watch};
use tokio::task::JoinSet;
use transport::io::clock;

/// Bytes that the relay's own sockets take in before their sender is stopped, as asked of the
/// kernel, which doubles it; and of a chunk.
const SOCKET_BYTES: u32 = 16 << 10;

/// How late a timer may be without the line losing rate.
const TIMER_LATE_MAX: Duration = Duration::from_millis(20);

/// Chunks under way in one direction of a connection. At the bound its sender is stopped.
const CHUNKS_MAX: usize = 256;

/// What the relay lets through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// From the dialler to the listener.
    pub forth: bool,
    /// From the listener to the dialler.
    pub back: bool,
}

impl Flow {
    /// Both directions.
    pub const OPEN: Self = Self {
        forth: true,
        back: true,
    };
    /// Neither.
    pub const STOPPED: Self = Self {
        forth: false,
        back: false,
    };
}

/// What a direction is like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// From one end to the other.
    pub delay: Duration,
    /// What crosses it in a second; no bound if there is none.
    pub bytes_per_s: Option<u32>,
}

/// A running relay; dropping it cuts every connection.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    flow: watch::Sender<Flow>,
    frozen: watch::Sender<Option<usize>>,
    /// Connections below this number are frozen.
    frozen_below: watch::Sender<usize>,
    taken: Arc<AtomicUsize>,
    allowance: watch::Sender<Option<usize>>,
    /// Where connections from now on go; nowhere if there is none.
    target: watch::Sender<Option<SocketAddr>>,
    /// Counts how often everything was cut.
    cuts: watch::Sender<u64>,
    _connections: JoinSet<()>,
}

impl Relay {
    /// Listens on a free port of loopback for connections to `target`.
    ///
    /// # Panics
    /// When there is no port to be had.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
        Self::with_line(target, Line::default())
    }

    /// The same, with a line like this in each direction.
    ///
    /// # Panics
    /// When there is no port to be had.
    #[must_use]
    pub fn with_line(target: SocketAddr, line: Line) -> Self {
        let listener = (|| -> io::Result<_> {
            let socket = TcpSocket::new_v4()?;
            // Accepted sockets take it over.
            socket.set_recv_buffer_size(SOCKET_BYTES)?;
            socket.bind(([127, 0, 0, 1], 0).into())?;
            socket.listen(64)
        })()
        .expect("a relay's listener");
        let address = listener.local_addr().expect("its address");
        let flow = watch::Sender::new(Flow::OPEN);
        let (frozen, allowance) = (watch::Sender::new(None), watch::Sender::new(None));
        let mut connections = JoinSet::new();
        let (flows, freezes, allowances) = (flow.clone(), frozen.clone(), allowance.clone());
        let (frozen_below, taken) = (watch::Sender::new(0), Arc::new(AtomicUsize::new(0)));
        let (belows, count) = (frozen_below.clone(), Arc::clone(&taken));
        let (target, cuts) = (watch::Sender::new(Some(target)), watch::Sender::new(0));
        let (targets, all_cuts) = (target.subscribe(), cuts.clone());
        let lines = [(); 2].map(|()| Arc::new(Cable::new(line)));
        connections.spawn(async move {
            let mut relayed = JoinSet::new();
            let mut number = 0;
            while let Ok((dialler, _)) = listener.accept().await {
                let gate = Gate {
                    number,
                    flow: flows.subscribe(),
                    frozen: freezes.subscribe(),
                    frozen_below: belows.subscribe(),
                    allowance: allowances.clone(),
                    allowed: allowances.subscribe(),
                };
                number += 1;
                count.store(number, Ordering::Relaxed);
                let mut cut = all_cuts.subscribe();
                let Some(target) = *targets.borrow() else {
                    continue;
                };
                let lines = lines.clone();
                relayed.spawn(async move {
                    tokio::select! {
                        () = relay(dialler, target, gate, lines) => {}
                        _ = cut.changed() => {}
                    }
                });
            }
        });
        Self {
            address,
            flow,
            frozen,
            frozen_below,
            taken,
            allowance,
            target,
            cuts,
            _connections: connections,
        }
    }

    /// Where to dial it.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Freezes the one connection that came in as this one, counted from 0; `None` thaws it.
    pub fn freeze(&self, connection: Option<usize>) {
        self.frozen.send_replace(connection);
    }

    /// Freezes every connection that is there, for good.
    pub fn freeze_all_there(&self) {
        self.frozen_below
            .send_replace(self.taken.load(Ordering::Relaxed));
    }

    /// Cuts every connection that is there; new ones are taken as before.
    pub fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    /// Where new connections go from now on; with `None` they are closed at once. Those that are there
    /// stay as they are.
    pub fn retarget(&self, target: Option<SocketAddr>) {
        self.target.send_replace(target);
    }

    /// Stops or opens its directions, also of connections that are there.
    pub fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }

    /// Lets so many more bytes go forth, of all connections together, and then none; `None` lets
    /// all go.
    pub fn allow_forth(&self, bytes: Option<usize>) {
        self.allowance.send_replace(bytes);
    }
}

/// One direction's line, which all connections share.
#[derive(Debug)]
struct Cable {
    line: Line,
    /// When it will have taken in what it was given.
    free_at: Mutex<Instant>,
}

impl Cable {
    fn new(line: Line) -> Self {
        Self {
            line,
            free_at: Mutex::new(clock::now()),
        }
    }

    /// Takes its turn, waits until the line has taken in so many bytes, and says when the last of
    /// them is at the other end.
    async fn carry(&self, bytes: usize) -> Instant {
        let mut free_at = self.free_at.lock().await;
        if let Some(rate) = self.line.bytes_per_s {
            let bytes = u32::try_from(bytes).expect("a small chunk");
            let takes = Duration::from_secs(1) * bytes / rate;
            // A line that stood idle makes up for nothing, but for the timer's being late.
            let idle_since = clock::now().checked_sub(TIMER_LATE_MAX);
            *free_at = idle_since.map_or(*free_at, |since| since.max(*free_at)) + takes;
            tokio::time::sleep_until((*free_at).into()).await;
        } else {
            *free_at = clock::now();
        }
        *free_at + self.line.delay
    }
}

/// The two directions of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Forth,
    Back,
}

/// What one connection is let through by.
#[derive(Clone)]
struct Gate {
    number: usize,
    flow: watch::Receiver<Flow>,
    frozen: watch::Receiver<Option<usize>>,
    frozen_below: watch::Receiver<usize>,
    allowance: watch::Sender<Option<usize>>,
    allowed: watch::Receiver<Option<usize>>,
}

impl Gate {
    /// How many bytes may be taken now.
    fn open_for(&self, way: Way) -> usize {
        let flow = *self.flow.borrow();
        let flows = match way {
            Way::Forth => flow.forth,
            Way::Back => flow.back,
        };
        let frozen =
            *self.frozen.borrow() == Some(self.number) || self.number < *self.frozen_below.borrow();
        if !flows || frozen {
            return 0;
        }
        match (way, *self.allowed.borrow()) {
            (Way::Forth, Some(bytes)) => bytes,
            (Way::Forth, None) | (Way::Back, _) => usize::MAX,
        }
    }

    /// So many bytes were taken.
    fn took(&self, way: Way, bytes: usize) {
        if way == Way::Forth {
            self.allowance.send_if_modified(|left| {
                if let Some(left) = left {
                    *left = left.saturating_sub(bytes);
                }
                left.is_some()
            });
        }
    }

    /// Waits for a change of any of them; `false` once the relay is gone.
    async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = self.flow.changed() => changed.is_ok(),
            changed = self.frozen.changed() => changed.is_ok(),
            changed = self.frozen_below.changed() => changed.is_ok(),
            changed = self.allowed.changed() => changed.is_ok(),
        }
    }
}

async fn relay(dialler: TcpStream, target: SocketAddr, gate: Gate, lines: [Arc<Cable>; 2]) {
    let Ok(listener) = TcpStream::connect(target).await else {
        return;
    };
    drop((dialler.set_nodelay(true), listener.set_nodelay(true)));
    let (from_dialler, to_dialler) = dialler.into_split();
    let (from_listener, to_listener) = listener.into_split();
    let [forth, back] = lines;
    let forth = carry(from_dialler, to_listener, gate.clone(), Way::Forth, forth);
    let back = carry(from_listener, to_dialler, gate, Way::Back, back);
    tokio::join!(forth, back);
}

/// What is under way in one direction, and when it arrives.
type Chunk = (Instant, Vec<u8>);

async fn carry(from: OwnedReadHalf, to: OwnedWriteHalf, gate: Gate, way: Way, cable: Arc<Cable>) {
    let (sender, receiver) = mpsc::channel(CHUNKS_MAX);
    tokio::join!(
        take_in(from, sender, gate, way, cable),
        put_out(receiver, to)
    );
}

async fn take_in(
    mut from: OwnedReadHalf,
    to: mpsc::Sender<Chunk>,
    mut gate: Gate,
    way: Way,
    cable: Arc<Cable>,
) {
    let mut chunk = vec![0; SOCKET_BYTES as usize];
    loop {
        let mut open_for = gate.open_for(way);
        while open_for == 0 {
            if !gate.changed().await {
                return;
            }
            open_for = gate.open_for(way);
        }
        let room = open_for.min(chunk.len());
        let got = tokio::select! {
            there = gate.changed() => if there { continue } else { return },
            got = from.read(&mut chunk[..room]) => got,
        };
        let Ok(bytes @ 1..) = got else { return };
        gate.took(way, bytes);
        let arrives = cable.carry(bytes).await;
        if to.send((arrives, chunk[..bytes].to_vec())).await.is_err() {
            return;
        }
    }
}

async fn put_out(mut from: mpsc::Receiver<Chunk>, mut to: OwnedWriteHalf) {
    while let Some((arrives, bytes)) = from.recv().await {
        // The runtime's timer would round a time that has come up to the next millisecond.
        if arrives > clock::now() {
            tokio::time::sleep_until(arrives.into()).await;
        }
        if to.write_all(&bytes).await.is_err() {
            break;
        }
    }
    drop(to.shutdown().await);
}
