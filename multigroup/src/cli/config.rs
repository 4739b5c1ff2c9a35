//! `multigroup config set`: changes what a running node lets be changed, by its admin port.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Deserialize;

use super::cluster::block_on;
use super::failure::Failure;
use crate::admin::{AdminUrl, FetchError, post};
use crate::causes::with_causes;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Change a running node's settings
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup config set --admin http://127.0.0.1:7301 \
                        commit_wait.max_outstanding=256"
)]
pub(super) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Set(Set),
}

/// Change one setting until the node stops: commit_wait.enabled, commit_wait.max_outstanding, or
/// transport.control_window_frames, which sessions to come go by. Its config.toml stays as it is
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  multigroup config set --admin http://127.0.0.1:7301 \
                        commit_wait.enabled=false"
)]
struct Set {
    /// The node's admin port
    #[arg(long, value_name = "URL")]
    admin: AdminUrl,
    /// The setting and its new value
    #[arg(value_name = "KEY=VALUE")]
    setting: String,
}

#[derive(Deserialize)]
struct Done {
    done: String,
}

impl Config {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let Command::Set(Set { admin, setting }) = self.command;
        let Some((key, value)) = setting.split_once('=') else {
            return Err(Failure::usage(format!(
                "`{setting}` is not of the form KEY=VALUE, such as commit_wait.enabled=false"
            )));
        };
        let body = serde_json::json!({"key": key.trim(), "value": value.trim()});
        let answer = block_on(async {
            let asked = post(&admin, "/config", &body, PATIENCE).await;
            asked.map_err(|error| told(&error))
        })?;
        let done = serde_json::from_slice::<Done>(&answer);
        let done = done.map_err(|error| {
            Failure::work(format!(
                "{admin} gave an answer that can't be read: {error}"
            ))
        })?;
        writeln!(out, "{}", done.done).map_err(Failure::of_stdout)
    }
}

fn told(error: &FetchError) -> Failure {
    if let FetchError::Refused { error, code, .. } = error
        && [400, 409].contains(code)
    {
        Failure::usage(error.clone())
    } else if error.is_unreachable() {
        Failure::unreachable(with_causes(error))
    } else {
        Failure::work(with_causes(error))
    }
}
