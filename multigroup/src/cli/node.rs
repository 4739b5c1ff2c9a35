//! `multigroup node`: one node in the foreground, from its configuration until a signal. SIGTERM and
//! Ctrl-C stop it cleanly; a second one of either ends the process at once.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::Exit;
use super::failure::Failure;
use crate::causes::with_causes;
use crate::config::Config;
use crate::node::{self, NodeError};

/// How long the runtime may take for what nobody waits for any more.
const LEFTOVERS: std::time::Duration = std::time::Duration::from_secs(1);

/// Run one node in the foreground
///
/// A file at DIR/node-N/config.toml belongs to the cluster in DIR, and its relative paths are taken
/// from there; those of a file elsewhere are taken from the folder that it is in. That folder also
/// gets pids/node-N while the node runs, and logs/node-N.final.json when it stops.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup node --config demo/node-1/config.toml\n\n\
                  SIGTERM or Ctrl-C stops it cleanly, a second one at once."
)]
pub(super) struct Node {
    /// The node's configuration
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

/// Which signal asked for the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Terminate,
    Interrupt,
}

impl Node {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let path = self.config.display();
        let config = Config::load(&self.config).map_err(|error| {
            Failure::usage(format!("{path} can't be used: {}", with_causes(&error)))
        })?;
        let cluster = node::cluster_folder(&self.config, config.node()).map_err(|error| {
            Failure::usage(format!(
                "the folder of {path} isn't known: {error}; name it in full"
            ))
        })?;
        let config = config.with_base(&cluster);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::unreachable(format!("can't start the runtime: {error}")))?;
        let ended = runtime.block_on(async {
            let (tell, stop) = watch::channel(false);
            let signals = Signals::listen()?;
            let asked = tokio::spawn(signals.forward(tell));
            let mut told = Ok(());
            let listening = |listening: &node::Listening| {
                told = writeln!(out, "{listening}").and_then(|()| out.flush());
            };
            let ended = node::run(config, &cluster, stop, listening).await;
            if let Err(error) = told {
                tracing::warn!(%error, "standard output is closed");
            }
            ended.map_err(|error| of_node(&error))?;
            Ok(asked.await.ok())
        });
        // Reading a long log can't be broken off.
        runtime.shutdown_timeout(LEFTOVERS);
        match ended? {
            Some(Asked::Interrupt) => Err(Failure::interrupted("stopped by Ctrl-C")),
            Some(Asked::Terminate) | None => Ok(()),
        }
    }
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let catch = |kind| {
            signal(kind)
                .map_err(|error| Failure::unreachable(format!("signals can't be caught: {error}")))
        };
        Ok(Self {
            terminate: catch(SignalKind::terminate())?,
            interrupt: catch(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> Asked {
        tokio::select! {
            biased;
            _ = self.terminate.recv() => Asked::Terminate,
            _ = self.interrupt.recv() => Asked::Interrupt,
        }
    }

    /// Passes the first on, and says which it was; lets the second end the process.
    async fn forward(mut self, tell: watch::Sender<bool>) -> Asked {
        let asked = self.next().await;
        tell.send_replace(true);
        tokio::spawn(async move {
            self.next().await;
            std::process::exit(Exit::Interrupted.code().into());
        });
        asked
    }
}

/// Which exit code a fault has: 2 where the configuration is at fault by itself, 3 where it is what
/// the node found, 1 where it had run.
fn of_node(error: &NodeError) -> Failure {
    let text = with_causes(error);
    match error {
        NodeError::Setting(_) => Failure::usage(text),
        NodeError::Failed { .. } | NodeError::DataGone { .. } | NodeError::FinalStatus { .. } => {
            Failure::work(text)
        }
        NodeError::Resolve { .. }
        | NodeError::Listen { .. }
        | NodeError::Folder { .. }
        | NodeError::Foreign { .. }
        | NodeError::OtherNode { .. }
        | NodeError::IdentityDamaged { .. }
        | NodeError::AlreadyRuns { .. }
        | NodeError::TooFewFiles { .. }
        | NodeError::Credentials(_)
        | NodeError::Store(_)
        | NodeError::Storage(_)
        | NodeError::Thread(_)
        | NodeError::Archive(_)
        | NodeError::Start { .. } => Failure::unreachable(text),
    }
}
