//! `cluster restart`: stops one node cleanly if it runs, starts it, and waits until it is ready.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tokio::time::sleep;
use transport::io::clock;

use super::launch::{self, LOOK_INTERVAL, check_ports, ended_early, settled, start, stop};
use super::{block_on, credentials, folder_with};
use crate::admin::{AdminUrl, FetchError, fetch};
use crate::causes::with_causes;
use crate::cli::failure::Failure;
use crate::cli::load::{config_at, configs_of};
use crate::cli::progress::{Display, note};
use crate::cluster::{ClusterFolder, Launched};
use crate::config::Config;

/// How long a node may take to become ready. Its log may be large, so this only keeps a command
/// from waiting for ever.
const READY_PATIENCE: Duration = Duration::from_secs(600);

/// How long its admin port may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(2);

/// Stop one node cleanly if it runs, start it, and wait until it is ready
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup cluster restart --dir demo --node 2")]
pub(super) struct Restart {
    /// The cluster's folder
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// The node
    #[arg(long, value_name = "N")]
    node: u64,
    /// Don't wait until it is ready
    #[arg(long)]
    no_wait: bool,
}

impl Restart {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let folder = folder_with(&self.dir, self.node)?;
        let config = config_at(&folder.config(self.node))?;
        let config = config.with_base(folder.root());
        credentials::check(&folder, &config)?;
        note_peers(&folder, self.node)?;
        let launched = block_on(self.restart(&folder, &config))?;
        let state = if self.no_wait {
            "was started"
        } else {
            "is ready"
        };
        writeln!(
            out,
            "node {} {state}, process {}, log {}",
            self.node,
            launched.child.id().unwrap_or_default(),
            launched.log().display()
        )
        .map_err(Failure::of_stdout)
    }

    async fn restart(&self, folder: &ClusterFolder, config: &Config) -> Result<Launched, Failure> {
        stop(launch::running(folder, &[self.node])?).await?;
        check_ports(config)?;
        let mut launched = start(folder, self.node)?;
        settled(folder, &mut launched).await?;
        if !self.no_wait {
            ready(config, &mut launched).await?;
        }
        Ok(launched)
    }
}

/// Names the other nodes' certificates that are no good beside this node's: those nodes work on with
/// what they have read, but this one won't take them.
fn note_peers(folder: &ClusterFolder, node: u64) -> Result<(), Failure> {
    for (_, config) in configs_of(folder.root())? {
        let config = config.with_base(folder.root());
        if let Some(fault) = credentials::fault(&config)
            && config.node() != node
        {
            note(&format!(
                "warning: the certificate of node {}: {fault}",
                config.node()
            ));
        }
    }
    Ok(())
}

/// Waits until a node says that clients may be sent to it.
async fn ready(config: &Config, launched: &mut Launched) -> Result<(), Failure> {
    let url: AdminUrl = config.listen_admin().into();
    let start = clock::now();
    let mut display = Display::new("restart");
    loop {
        let why = match fetch(&url, "/readyz", ANSWER_PATIENCE).await {
            Ok(_) => break,
            Err(FetchError::Refused { error, .. }) => error,
            Err(error) => with_causes(&error),
        };
        if let Some(failure) = ended_early(launched) {
            display.clear();
            return Err(failure);
        }
        let elapsed = clock::now().duration_since(start);
        if elapsed > READY_PATIENCE {
            display.clear();
            return Err(Failure::unreachable(format!(
                "node {} runs, but is not ready after {} s: {why}; see {}",
                launched.node,
                READY_PATIENCE.as_secs(),
                launched.log().display()
            )));
        }
        display.show(
            0,
            1,
            &format!("node {} is not ready yet: {why}", launched.node),
        );
        sleep(LOOK_INTERVAL).await;
    }
    display.clear();
    Ok(())
}
