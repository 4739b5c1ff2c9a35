//! The sockets of the admin port. Started by the node; ends when it is told to stop, after each
//! connection had its time to finish the answer it is at. A connection that panics is logged and
//! costs only its client.
//!
//! - A1: at most `ADMIN_CONNECTIONS_MAX` connections are open; the next one waits unaccepted.
//! - A2: none stays open for longer than `ADMIN_HEAD_PATIENCE` without a request, nor for longer than
//!   `ADMIN_CONNECTION_TIME` at all, so that A1 is no way to shut operators out.

use std::sync::Arc;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use super::routes::router;
use super::status::StatusSource;
use crate::limits::{
    ACCEPT_PAUSE, ADMIN_CONNECTION_TIME, ADMIN_CONNECTIONS_MAX, ADMIN_DRAIN, ADMIN_HEAD_BYTES_MAX,
    ADMIN_HEAD_PATIENCE,
};

/// What an admin port did in its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdminServed {
    /// Connections accepted.
    pub connections: u64,
}

/// Serves until `stop` holds `true` or its sender is gone.
///
/// # Cancel safety
/// Dropping the future ends all connections at once.
pub async fn serve<S: StatusSource>(
    listener: TcpListener,
    source: Arc<S>,
    stop: watch::Receiver<bool>,
) -> AdminServed {
    let router = router(source);
    let mut stopped = stop.clone();
    let mut connections = JoinSet::new();
    let mut served = AdminServed::default();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => break,
            Some(ended) = connections.join_next() => {
                note_end(ended);
                continue;
            }
            accepted = listener.accept(), if connections.len() < ADMIN_CONNECTIONS_MAX => accepted,
        };
        match accepted {
            Ok((socket, _)) => {
                served.connections += 1;
                connections.spawn(connection(socket, router.clone(), stop.clone()));
            }
            Err(error) => {
                warn!(%error, "can't accept an admin connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // Each ends by itself within ADMIN_DRAIN.
    while let Some(ended) = connections.join_next().await {
        note_end(ended);
    }
    info!(connections = served.connections, "admin port closed");
    served
}

async fn connection(socket: TcpStream, router: Router, mut stop: watch::Receiver<bool>) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(ADMIN_HEAD_PATIENCE)
        .max_buf_size(ADMIN_HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(socket), TowerToHyperService::new(router));
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        biased;
        ended = connection.as_mut() => Some(ended),
        _ = stop.wait_for(|stop| *stop) => None,
        () = sleep(ADMIN_CONNECTION_TIME) => None,
    };
    let ended = match ended {
        Some(ended) => ended,
        None => {
            connection.as_mut().graceful_shutdown();
            match timeout(ADMIN_DRAIN, connection).await {
                Ok(ended) => ended,
                Err(_) => {
                    debug!("admin connection cut off");
                    return;
                }
            }
        }
    };
    if let Err(error) = ended {
        debug!(%error, "admin connection broke");
    }
}

fn note_end(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(%error, "an admin connection panicked; only its client is affected");
    }
}
