//! `multigroup certs`: the CA, the leaves and the revocation list of one cluster, as files in its
//! folder: `ca/{ca.pem,ca-key.pem,crl.pem}` and `node-N/{cert.pem,key.pem}`.

mod init;
mod node;
mod revoke;
mod show;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};

use transport::id::{ClusterName, PeerId};

use super::failure::Failure;
use crate::certificates::cluster_named_in;

/// Make, revoke and show the certificates of a cluster
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup certs init --dir demo --cluster dev\n  \
                        multigroup certs node --dir demo --node 1\n  \
                        multigroup certs revoke --dir demo --node 1\n  \
                        multigroup certs show demo/node-1/cert.pem"
)]
pub(super) struct Certs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Init(init::Init),
    Node(node::Node),
    Revoke(revoke::Revoke),
    Show(show::Show),
}

impl Certs {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        match self.command {
            Command::Init(command) => command.run(out),
            Command::Node(command) => command.run(out),
            Command::Revoke(command) => command.run(out),
            Command::Show(command) => command.run(out),
        }
    }
}

/// Makes the CA of a cluster in its folder, as `certs init` does.
pub(super) fn make_ca(dir: &Path, cluster: ClusterName) -> Result<(), Failure> {
    init::Init::new(dir, cluster).run(&mut std::io::sink())
}

/// Makes the certificate of a node, as `certs node` does.
pub(super) fn make_leaf(dir: &Path, node: PeerId) -> Result<(), Failure> {
    node::Node::new(dir, node).run(&mut std::io::sink())
}

/// The cluster whose CA is in a folder; `None` if there is no CA.
pub(super) fn cluster_of_ca(dir: &Path) -> Result<Option<ClusterName>, Failure> {
    let path = CaFiles::of(dir).certificate();
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Failure::of_file("read", &path, &error)),
    };
    let cluster = cluster_named_in(&text).ok_or_else(|| {
        Failure::usage(format!(
            "{} is no CA's certificate of a cluster; restore it or choose another --dir",
            path.display()
        ))
    })?;
    Ok(Some(cluster))
}

/// How long a CA is good. Long, since replacing it means new leaves everywhere.
const CA_VALIDITY: Duration = days(3650);

/// How long a revocation list is good: somewhat longer than the usual leaf, so that it needn't be
/// extended for each one.
const LIST_VALIDITY: Duration = days(400);

/// How far the beginning of a validity lies back, for nodes whose clocks are behind.
const CLOCK_ALLOWANCE: Duration = Duration::from_secs(60 * 60);

/// The longest time that can be asked for; dates far beyond four-digit years are not certificates.
const VALIDITY_MAX: Duration = days(36_500);

const fn days(days: u64) -> Duration {
    Duration::from_secs(days * 24 * 60 * 60)
}

/// The files of the CA in a cluster's folder.
#[derive(Debug)]
struct CaFiles {
    folder: PathBuf,
}

impl CaFiles {
    fn of(dir: &Path) -> Self {
        Self {
            folder: dir.join("ca"),
        }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.join("ca-key.pem")
    }

    fn list(&self) -> PathBuf {
        self.folder.join("crl.pem")
    }
}

/// Reads a time like `365d`, `12h`, `30m` or `60s`.
pub(super) fn parse_validity(text: &str) -> Result<Duration, String> {
    let fault = || "it is a number and one of d, h, m, s, for example 365d".to_owned();
    let unit = text.chars().last().ok_or_else(fault)?;
    let seconds = match unit {
        'd' => 24 * 60 * 60,
        'h' => 60 * 60,
        'm' => 60,
        's' => 1,
        _ => return Err(fault()),
    };
    let number = &text[..text.len() - unit.len_utf8()];
    let number: u64 = number.parse().map_err(|_| fault())?;
    let validity = Duration::from_secs(number.saturating_mul(seconds));
    if validity.is_zero() || validity > VALIDITY_MAX {
        return Err("it must be from 1s to 36500d".to_owned());
    }
    Ok(validity)
}
