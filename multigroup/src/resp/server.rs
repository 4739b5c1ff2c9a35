//! Accepts clients and keeps count of their sessions. Started by the node; ends when it is told to
//! stop, after every session has had its time to get the answers it is owed.

#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use super::connection::{self, CommandHandler};
use super::dialog::{Dialog, SessionId};
use crate::keyspace::KeySpace;
use crate::limits::{ACCEPT_PAUSE, SESSION_DRAIN, SESSIONS_MAX};

/// What a front did in its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Sessions begun.
    pub sessions: u64,
    /// Clients turned away because there were too many.
    pub turned_away: u64,
    /// Sessions cut off at the end because they didn't finish in time.
    pub cut_off: u64,
}

/// Serves clients until `stop` holds `true` or its sender is gone. Then no request is taken any
/// more, those in progress are answered for at most `SESSION_DRAIN`, and what is left is cut off.
///
/// # Cancel safety
/// Dropping the future ends all sessions at once.
pub async fn serve<H: CommandHandler>(
    listener: TcpListener,
    handler: Arc<H>,
    space: KeySpace,
    stop: watch::Receiver<bool>,
) -> Served {
    let mut front = Front {
        handler,
        space,
        sessions: JoinSet::new(),
        served: Served::default(),
        stop,
    };
    front.accept(listener).await;
    front.drain().await;
    info!(
        sessions = front.served.sessions,
        cut_off = front.served.cut_off,
        "client front closed"
    );
    front.served
}

struct Front<H> {
    handler: Arc<H>,
    space: KeySpace,
    sessions: JoinSet<io::Result<()>>,
    served: Served,
    stop: watch::Receiver<bool>,
}

impl<H: CommandHandler> Front<H> {
    async fn accept(&mut self, listener: TcpListener) {
        loop {
            let accepted = tokio::select! {
                biased;
                _ = self.stop.wait_for(|stop| *stop) => return,
                Some(ended) = self.sessions.join_next() => {
                    note_end(ended);
                    continue;
                }
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((socket, _)) => self.admit(socket),
                Err(error) => {
                    warn!(%error, "can't accept a client");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(&mut self, socket: TcpStream) {
        if self.sessions.len() >= SESSIONS_MAX {
            self.served.turned_away += 1;
            // A new socket has room for a line; if not, closing says it too.
            let _ = socket.try_write(b"-ERR max number of clients reached\r\n");
            return;
        }
        if let Err(error) = socket.set_nodelay(true) {
            debug!(%error, "client gone before its session began");
            return;
        }
        self.served.sessions += 1;
        let dialog = Dialog::new(self.space, SessionId::new(self.served.sessions));
        let session = connection::run(socket, Arc::clone(&self.handler), dialog, self.stop.clone());
        self.sessions.spawn(session);
    }

    async fn drain(&mut self) {
        let all_ended = async {
            while let Some(ended) = self.sessions.join_next().await {
                note_end(ended);
            }
        };
        if timeout(SESSION_DRAIN, all_ended).await.is_err() {
            self.served.cut_off = self.sessions.len() as u64;
            warn!(
                sessions = self.served.cut_off,
                "client sessions cut off at shutdown"
            );
            self.sessions.shutdown().await;
        }
    }
}

fn note_end(ended: Result<io::Result<()>, tokio::task::JoinError>) {
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => debug!(%error, "client session broke"),
        Err(error) => error!(%error, "client session panicked; only its client is affected"),
    }
}
