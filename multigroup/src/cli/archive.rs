//! `multigroup archive`: looks into an archive, wherever its cluster is.

mod ls;
mod verify;

use std::io::Write;

use clap::{Args, Subcommand};

use super::failure::Failure;
use crate::archive::{ArchiveError, ArchiveUrl};
use crate::causes::with_causes;

/// Look into an archive
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  multigroup archive verify --from file:///var/lib/demo/archive")]
pub(super) struct Archive {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Ls(ls::Ls),
    Verify(verify::Verify),
    Restore(Restore),
}

/// Make a cluster out of an archive; not in this version
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup archive restore --from file:///var/lib/demo/archive --dir new"
)]
struct Restore {
    /// The archive, file:///PATH or s3://BUCKET/PREFIX
    #[arg(long, value_name = "URL")]
    from: String,
    /// The new cluster's folder
    #[arg(long, value_name = "DIR")]
    dir: Option<std::path::PathBuf>,
    /// The state after this entry of each group
    #[arg(long, value_name = "N", conflicts_with = "at")]
    at_index: Option<u64>,
    /// The state at this time
    #[arg(long, value_name = "TIME")]
    at: Option<String>,
}

impl Archive {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        match self.command {
            Command::Ls(command) => command.run(out),
            Command::Verify(command) => command.run(out),
            Command::Restore(restore) => Err(Failure::usage(format!(
                "this version can't restore {}; it reads archives with `multigroup archive ls` and \
                 `multigroup archive verify`, and a version that restores can use what they read",
                restore.from
            ))),
        }
    }
}

fn parse(from: &str) -> Result<ArchiveUrl, Failure> {
    let url = from.parse();
    url.map_err(|error: ArchiveError| Failure::usage(format!("{error}; correct --from")))
}

/// A store that doesn't answer is told apart from an archive that is wrong.
fn failure(url: &ArchiveUrl, error: &ArchiveError) -> Failure {
    let text = with_causes(error);
    match error {
        ArchiveError::Absent { .. } | ArchiveError::Url { .. } => Failure::usage(format!(
            "{text}; name the folder or bucket that the nodes' archive.url names"
        )),
        ArchiveError::Store { .. } | ArchiveError::Late { .. } => Failure::unreachable(format!(
            "{url} can't be read: {text}; check the store and this user's rights"
        )),
        ArchiveError::Object { .. } => Failure::work(format!(
            "{text}; `multigroup archive verify` tells what else is"
        )),
        ArchiveError::NoCredentials { .. }
        | ArchiveError::HalfCredentials { .. }
        | ArchiveError::Folder { .. } => Failure::unreachable(text),
        ArchiveError::Identity(_)
        | ArchiveError::Foreign { .. }
        | ArchiveError::Host(_)
        | ArchiveError::Gone { .. }
        | ArchiveError::Ownerless { .. }
        | ArchiveError::Unidentified { .. }
        | ArchiveError::Wiped { .. }
        | ArchiveError::OtherId { .. }
        | ArchiveError::Memory { .. }
        | ArchiveError::Randomness(_) => {
            Failure::work(format!("{url} can't be read: {text}; check what is there"))
        }
    }
}

fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::work(format!("can't start the runtime: {error}")))?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    Ok(done)
}
