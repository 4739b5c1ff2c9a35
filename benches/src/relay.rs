//! A delay line between a dialler and a listener on loopback: what comes in goes out in the same
//! order and a fixed time later, in each direction. It sees ciphertext only and bounds no rate.
//!
//! Each direction is two threads: one reads and stamps each chunk with the time it is due, the
//! other waits for that time and writes. With no delay it does the same and never waits, so what
//! the relay itself costs can be measured and told apart from the delay.
//!
//! Its threads are none of the ends' and aren't charged to them. They end with their connection:
//! dropping the relay only ends the listener.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use transport::io::clock;

use crate::cores;

/// Bytes read in one call.
const CHUNK_BYTES: usize = 64 << 10;

/// Chunks under way in one direction. Far above what a window lets out; at the bound the sender's
/// socket fills up.
const CHUNKS_MAX: usize = 4096;

/// A running relay.
#[derive(Debug)]
pub struct Relay {
    address: SocketAddr,
}

struct Chunk {
    due: Instant,
    bytes: Vec<u8>,
}

impl Relay {
    /// Listens for connections to `target`, and delays each direction by `delay`.
    ///
    /// # Errors
    /// There is no port, or no thread, to be had.
    pub fn start(target: SocketAddr, delay: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let address = listener.local_addr()?;
        std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || {
                // Not on the core of the end that started it; its own threads take this over.
                drop(cores::unbind());
                while let Ok((dialler, _)) = listener.accept() {
                    // A connection that can't be relayed is closed, which its dialler sees.
                    drop(connect(dialler, target, delay));
                }
            })?;
        Ok(Self { address })
    }

    /// Where to dial it.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

fn connect(dialler: TcpStream, target: SocketAddr, delay: Duration) -> io::Result<()> {
    let listener = TcpStream::connect(target)?;
    dialler.set_nodelay(true)?;
    listener.set_nodelay(true)?;
    direction(dialler.try_clone()?, listener.try_clone()?, delay)?;
    direction(listener, dialler, delay)
}

fn direction(from: TcpStream, to: TcpStream, delay: Duration) -> io::Result<()> {
    let (sender, receiver) = sync_channel(CHUNKS_MAX);
    let named = |name: &str| std::thread::Builder::new().name(name.to_owned());
    named("relay-out").spawn(move || write(&receiver, to))?;
    named("relay-in").spawn(move || read(from, &sender, delay))?;
    Ok(())
}

fn read(mut from: TcpStream, sender: &SyncSender<Chunk>, delay: Duration) {
    let mut buffer = vec![0; CHUNK_BYTES];
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let chunk = Chunk {
            due: clock::now() + delay,
            bytes: buffer[..got].to_vec(),
        };
        if sender.send(chunk).is_err() {
            break;
        }
    }
}

fn write(receiver: &Receiver<Chunk>, mut to: TcpStream) {
    wake_in_time();
    for Chunk { due, bytes } in receiver {
        let wait = due.saturating_duration_since(clock::now());
        if !wait.is_zero() {
            std::thread::sleep(wait);
        }
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    // Both directions: the other one's reader must not wait for ever.
    drop(to.shutdown(Shutdown::Both));
}

/// Asks the kernel not to put off this thread's timers, by default up to 50 µs. Where it can't be
/// asked the delays are that much longer, which the bench's own figures for one frame show.
fn wake_in_time() {
    let thread = std::fs::read_link("/proc/thread-self").ok();
    if let Some(id) = thread.as_deref().and_then(|path| path.file_name()) {
        let file = std::path::Path::new("/proc").join(id).join("timerslack_ns");
        drop(std::fs::write(file, "1"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Echoes whatever one connection brings.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 1000];
            while let Ok(got @ 1..) = stream.read(&mut buffer) {
                stream.write_all(&buffer[..got]).unwrap();
            }
        });
        address
    }

    #[test]
    fn bytes_come_late_by_both_ways_and_in_order() {
        let delay = Duration::from_millis(20);
        let relay = Relay::start(echo(), delay).unwrap();
        let mut stream = TcpStream::connect(relay.address()).unwrap();
        let began = clock::now();
        let sent: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let mut writer = stream.try_clone().unwrap();
        let copy = sent.clone();
        std::thread::spawn(move || writer.write_all(&copy).unwrap());
        let mut got = vec![0; 1];
        stream.read_exact(&mut got).unwrap();
        assert!(clock::now() - began >= 2 * delay);
        let mut rest = vec![0; sent.len() - 1];
        stream.read_exact(&mut rest).unwrap();
        got.append(&mut rest);
        assert!(got == sent, "the order is kept");
    }

    #[test]
    fn an_end_on_one_side_reaches_the_other() {
        let relay = Relay::start(echo(), Duration::ZERO).unwrap();
        let mut stream = TcpStream::connect(relay.address()).unwrap();
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
}
