//! `multigroup status`: how nodes stand, asked from their admin ports.

mod table;
#[cfg(test)]
mod tests;

use std::io::{IsTerminal as _, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgGroup, Args};
use serde_json::{Value, json};

use super::failure::Failure;
use super::json::Target;
use super::load::configs_of;
use crate::admin::{AdminUrl, FetchError, Status, fetch};
use crate::causes::with_causes;

/// How long a node may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Between two rounds of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);

/// Show how nodes stand
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("nodes").required(true),
    after_help = "Example:\n  multigroup status --dir demo --watch\n  \
                  multigroup status --admin http://127.0.0.1:7301 --json -"
)]
pub(super) struct Show {
    /// The cluster's folder: asks every node that has a node-N/config.toml in it
    #[arg(long, value_name = "DIR", group = "nodes")]
    dir: Option<PathBuf>,
    /// One node's admin port
    #[arg(long, value_name = "URL", group = "nodes")]
    admin: Option<AdminUrl>,
    /// Ask again every two seconds, until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    watch: bool,
    /// Where to write the answer as JSON: a file, or - for stdout instead of the table
    #[arg(long, value_name = "FILE")]
    json: Option<Target>,
}

/// A node's answer, or why there is none.
type Asked = (AdminUrl, Result<Answered, FetchError>);

/// An answer as it came, for programs, and as far as this version knows it, for people.
struct Answered {
    raw: Value,
    status: Result<Status, String>,
}

impl Show {
    pub(super) fn run(self, out: &mut dyn Write) -> Result<(), Failure> {
        let urls = self.urls()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| Failure::work(format!("can't start the runtime: {error}")))?;
        let shown = runtime.block_on(async {
            if self.watch {
                watch(&urls, out).await
            } else {
                self.once(&urls, out).await
            }
        });
        // A name look-up can't be cancelled.
        runtime.shutdown_background();
        shown
    }

    fn urls(&self) -> Result<Vec<AdminUrl>, Failure> {
        let Some(dir) = &self.dir else {
            return Ok(self.admin.iter().cloned().collect());
        };
        let configs = configs_of(dir)?;
        if configs.is_empty() {
            return Err(Failure::usage(format!(
                "{} holds no node-N/config.toml; name a node's admin port with --admin",
                dir.display()
            )));
        }
        Ok(configs
            .iter()
            .map(|(_, config)| config.listen_admin().into())
            .collect())
    }

    async fn once(&self, urls: &[AdminUrl], out: &mut dyn Write) -> Result<(), Failure> {
        let asked = ask_all(urls).await;
        if let (Some(target), Some(value)) = (&self.json, self.value(&asked)) {
            target.write(&value, out)?;
        }
        if self.json != Some(Target::Stdout) {
            write_tables(&asked, out).map_err(Failure::of_stdout)?;
        }
        asked.into_iter().try_for_each(judge)
    }

    /// One node's answer as it is; several in a list, with the errors of those that gave none.
    fn value(&self, asked: &[Asked]) -> Option<Value> {
        if self.dir.is_none() {
            let (_, answer) = asked.first()?;
            return answer.as_ref().ok().map(|answered| answered.raw.clone());
        }
        let nodes = asked.iter().map(|(url, answer)| match answer {
            Ok(answered) => json!({"admin": url.to_string(), "status": answered.raw}),
            Err(error) => json!({"admin": url.to_string(), "error": with_causes(error)}),
        });
        let nodes: Vec<_> = nodes.collect();
        Some(json!({"schema": "multigroup.statuses/1", "nodes": nodes}))
    }
}

async fn ask_all(urls: &[AdminUrl]) -> Vec<Asked> {
    let mut asking: Vec<_> = urls
        .iter()
        .map(|url| {
            let url = url.clone();
            tokio::spawn(async move {
                let answer = fetch(&url, "/status", PATIENCE).await;
                (url, answer)
            })
        })
        .collect();
    let mut asked = Vec::with_capacity(asking.len());
    for task in &mut asking {
        // A task of ours neither panics nor is aborted.
        if let Ok((url, answer)) = task.await {
            asked.push((url, answer.map(|body| read(&body))));
        }
    }
    asked
}

fn read(body: &[u8]) -> Answered {
    match serde_json::from_slice::<Value>(body) {
        Ok(raw) => Answered {
            status: serde_json::from_value(raw.clone()).map_err(|error| error.to_string()),
            raw,
        },
        Err(error) => Answered {
            raw: Value::Null,
            status: Err(error.to_string()),
        },
    }
}

/// The failure of a node that has no answer, or one that this version can't read.
fn judge((url, answer): Asked) -> Result<(), Failure> {
    match answer {
        Ok(Answered { status: Ok(_), .. }) => Ok(()),
        Ok(Answered {
            status: Err(error), ..
        }) => Err(Failure::work(format!(
            "{url} answered with a status that this version can't read: {error}; use the node's \
             own version of multigroup"
        ))),
        Err(error) if error.is_unreachable() => Err(Failure::unreachable(format!(
            "{}; is the node running, and is this its admin port?",
            with_causes(&error)
        ))),
        Err(error) => Err(Failure::work(format!(
            "{}; is this a node's admin port?",
            with_causes(&error)
        ))),
    }
}

fn write_tables(asked: &[Asked], out: &mut dyn Write) -> std::io::Result<()> {
    let statuses = asked
        .iter()
        .filter_map(|(_, answer)| answer.as_ref().ok()?.status.as_ref().ok());
    for (at, status) in statuses.enumerate() {
        if at > 0 {
            writeln!(out)?;
        }
        table::write(status, out)?;
    }
    Ok(())
}

/// Asks and shows until Ctrl-C, or until nobody reads any more. A node that is gone may come back.
async fn watch(urls: &[AdminUrl], out: &mut dyn Write) -> Result<(), Failure> {
    let clear = if std::io::stdout().is_terminal() {
        "\x1b[2J\x1b[H"
    } else {
        ""
    };
    let mut interrupted = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let round = async {
            let asked = ask_all(urls).await;
            show_round(clear, &asked, out).map_err(Failure::of_stdout)?;
            tokio::time::sleep(WATCH_INTERVAL).await;
            Ok(())
        };
        tokio::select! {
            biased;
            _ = &mut interrupted => return Err(Failure::interrupted("stopped by Ctrl-C")),
            shown = round => shown?,
        }
    }
}

fn show_round(clear: &str, asked: &[Asked], out: &mut dyn Write) -> std::io::Result<()> {
    write!(out, "{clear}")?;
    write_tables(asked, out)?;
    for (url, answer) in asked {
        match answer {
            Ok(Answered {
                status: Err(error), ..
            }) => writeln!(out, "{url}: {error}")?,
            Ok(_) => {}
            Err(error) => writeln!(out, "{}", with_causes(error))?,
        }
    }
    writeln!(out)?;
    out.flush()
}
