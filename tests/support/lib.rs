//! What the integration tests stand on: certificates, nodes with a host that the test holds in its
//! hand, a relay that can stop, cut and swallow what crosses it, and clusters of real processes.

pub mod certs;
pub mod cluster;
pub mod fuzz;
pub mod node;
pub mod nodes;
pub mod oracle;
pub mod process;
pub mod relay;
pub mod rogue;
pub mod world;

use std::time::Duration;

/// How long a test waits for what should come at once. Only a failing test ever waits this long;
/// no test passes because of it.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for `future` as long as a test is patient.
///
/// # Panics
/// When it takes longer.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    within(PATIENCE, what, future).await
}

/// Waits so long for `future`.
///
/// # Panics
/// When it takes longer.
pub async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(limit, future).await {
        Ok(output) => output,
        Err(_) => panic!("waited {limit:?} for {what}"),
    }
}

/// Lets the log of a test that fails be seen with it; `RUST_LOG` picks what it holds.
pub fn log_to_test() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_test_writer();
    // Another test of the process was first.
    drop(log.try_init());
}

/// A connection from this address of loopback, where it matters whose failures are counted.
///
/// # Panics
/// When there is none.
pub async fn connect_from(
    source: std::net::Ipv4Addr,
    target: std::net::SocketAddr,
) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket
        .bind((source, 0).into())
        .expect("an address of loopback");
    socket.connect(target).await.expect("a connection")
}
