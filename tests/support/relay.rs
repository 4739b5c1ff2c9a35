//! A TCP relay on loopback between a dialler and a listener. It sees ciphertext only. Each direction
//! can be stopped, which fills the sender's socket, and everything can be cut.

use std::io;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Bytes that the relay's own sockets take in before their sender is stopped, as asked of the
/// kernel, which doubles it.
const SOCKET_BYTES: u32 = 16 << 10;

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

/// A running relay; dropping it cuts every connection.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
    flow: watch::Sender<Flow>,
    frozen: watch::Sender<Option<usize>>,
    _connections: JoinSet<()>,
}

impl Relay {
    /// Listens on a free port of loopback for connections to `target`.
    ///
    /// # Panics
    /// When there is no port to be had.
    #[must_use]
    pub fn start(target: SocketAddr) -> Self {
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
        let frozen = watch::Sender::new(None);
        let mut connections = JoinSet::new();
        let (flows, freezes) = (flow.clone(), frozen.clone());
        connections.spawn(async move {
            let mut relayed = JoinSet::new();
            let mut number = 0;
            while let Ok((dialler, _)) = listener.accept().await {
                let gate = Gate {
                    number,
                    flow: flows.subscribe(),
                    frozen: freezes.subscribe(),
                };
                relayed.spawn(relay(dialler, target, gate));
                number += 1;
            }
        });
        Self {
            address,
            flow,
            frozen,
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

    /// Stops or opens its directions, also of connections that are there.
    pub fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }
}

/// What one connection is let through by.
#[derive(Clone)]
struct Gate {
    number: usize,
    flow: watch::Receiver<Flow>,
    frozen: watch::Receiver<Option<usize>>,
}

impl Gate {
    fn is_open(&self, open: fn(&Flow) -> bool) -> bool {
        open(&self.flow.borrow()) && *self.frozen.borrow() != Some(self.number)
    }

    /// Waits for a change of either; `false` once the relay is gone.
    async fn changed(&mut self) -> bool {
        tokio::select! {
            changed = self.flow.changed() => changed.is_ok(),
            changed = self.frozen.changed() => changed.is_ok(),
        }
    }
}

async fn relay(dialler: TcpStream, target: SocketAddr, gate: Gate) {
    let Ok(listener) = TcpStream::connect(target).await else {
        return;
    };
    drop((dialler.set_nodelay(true), listener.set_nodelay(true)));
    let (from_dialler, to_dialler) = dialler.into_split();
    let (from_listener, to_listener) = listener.into_split();
    let forth = copy(from_dialler, to_listener, gate.clone(), |flow| flow.forth);
    let back = copy(from_listener, to_dialler, gate, |flow| flow.back);
    tokio::join!(forth, back);
}

async fn copy(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut gate: Gate,
    open: fn(&Flow) -> bool,
) {
    let mut chunk = vec![0; SOCKET_BYTES as usize];
    loop {
        while !gate.is_open(open) {
            if !gate.changed().await {
                return;
            }
        }
        let got = tokio::select! {
            there = gate.changed() => if there { continue } else { return },
            got = from.read(&mut chunk) => got,
        };
        match got {
            Ok(0) | Err(_) => break,
            Ok(bytes) => {
                if to.write_all(&chunk[..bytes]).await.is_err() {
                    break;
                }
            }
        }
    }
    drop(to.shutdown().await);
}
