//! The command line. Here are the parts that all commands share: parsing, the log, exit codes, and
//! the rule that whatever goes wrong is said on stderr in one sentence which names the thing and
//! the remedy. Each command has a file of its own and returns a [`Failure`] or nothing.
//!
//! Results go to stdout, or as JSON to the file that `--json` names; everything else goes to
//! stderr. A reader that closes stdout early ends the command without a word.

mod archive;
mod certs;
mod cluster;
mod config;
mod demo;
pub(crate) mod durable;
mod failure;
mod groups;
mod json;
mod load;
mod node;
mod progress;
mod status;
mod verify;
mod version;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand, ValueEnum};
use time::OffsetDateTime;
use tracing_subscriber::EnvFilter;

pub use failure::{Exit, Failure};

#[derive(Debug, Parser)]
#[command(
    name = "multigroup",
    bin_name = "multigroup",
    about = "A sharded, replicated store of many small SQLite databases",
    disable_version_flag = true,
    after_help = "Example:\n  multigroup demo"
)]
struct Arguments {
    /// Print the version; with --json also the features and cfgs of the build
    #[arg(long, short = 'V')]
    version: bool,
    /// Where to write the version as JSON: a file, or - for stdout, which is the default
    #[arg(long, value_name = "FILE", requires = "version", num_args = 0..=1, default_missing_value = "-")]
    json: Option<json::Target>,
    /// Form of the log on stderr; RUST_LOG says what is logged
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = "text",
        value_name = "FORM"
    )]
    log_format: LogFormat,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Archive(archive::Archive),
    Certs(certs::Certs),
    Cluster(cluster::Cluster),
    Config(config::Config),
    Demo(demo::Demo),
    Groups(groups::Groups),
    Load(load::Load),
    Node(node::Node),
    Status(status::Show),
    Verify(verify::Verify),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

/// Runs the command named by the process's arguments and gives its exit code.
#[must_use]
pub fn main() -> ExitCode {
    run(
        std::env::args_os(),
        &mut std::io::stdout().lock(),
        &mut std::io::stderr(),
    )
    .into()
}

/// Runs one command line, the program's name first. Everything that it prints goes to the two
/// writers, except the log.
pub fn run(
    arguments: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
    err: &mut dyn Write,
) -> Exit {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let done = match Arguments::try_parse_from(&arguments) {
        Ok(arguments) => dispatch(arguments, out),
        Err(error) if !error.use_stderr() => write!(out, "{error}").map_err(Failure::of_stdout),
        Err(error) => Err(Failure::usage(usage_sentence(&error, &arguments))),
    };
    match done.and_then(|()| out.flush().map_err(Failure::of_stdout)) {
        Ok(()) => Exit::Done,
        Err(failure) => {
            if !failure.is_closed_reader() {
                // With stderr gone there is nobody left to tell.
                let _unheard = writeln!(err, "error: {failure}");
            }
            failure.exit()
        }
    }
}

fn dispatch(arguments: Arguments, out: &mut dyn Write) -> Result<(), Failure> {
    start_log(arguments.log_format)?;
    match arguments.command {
        _ if arguments.version => version::print(arguments.json.as_ref(), out),
        Some(Command::Archive(command)) => command.run(out),
        Some(Command::Certs(command)) => command.run(out),
        Some(Command::Cluster(command)) => command.run(out),
        Some(Command::Config(command)) => command.run(out),
        Some(Command::Demo(command)) => command.run(out),
        Some(Command::Groups(command)) => command.run(out),
        Some(Command::Load(command)) => command.run(out),
        Some(Command::Node(command)) => command.run(out),
        Some(Command::Status(command)) => command.run(out),
        Some(Command::Verify(command)) => command.run(out),
        None => Err(Failure::usage(
            "no command was given; see `multigroup --help`",
        )),
    }
}

/// The log goes to stderr, in colour only where a person reads it.
fn start_log(format: LogFormat) -> Result<(), Failure> {
    let filter = match std::env::var("RUST_LOG") {
        Err(_) => EnvFilter::new("info"),
        Ok(wanted) => EnvFilter::try_new(&wanted).map_err(|_| {
            Failure::usage(format!(
                "RUST_LOG is {wanted:?}, which is no log filter; use for example \
                 RUST_LOG=info,transport=debug"
            ))
        })?,
    };
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    // It fails only where a log is already set, as in a test that runs several commands.
    let _already_set = match format {
        LogFormat::Text => log.try_init(),
        LogFormat::Json => log.json().try_init(),
    };
    Ok(())
}

/// One sentence of what clap prints in a paragraph, and where the help is.
fn usage_sentence(error: &clap::Error, arguments: &[OsString]) -> String {
    let command = command_of(arguments);
    let rendered = error.render().to_string();
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return format!("no command was given; see `{command} --help`");
    }
    let paragraph = rendered.split("\n\n").next().unwrap_or_default();
    let mut lines = paragraph.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let rest: Vec<_> = lines.collect();
    let mut sentence = first.to_owned();
    if !rest.is_empty() {
        sentence = format!("{sentence} {}", rest.join(" "));
    }
    if let (ErrorKind::InvalidSubcommand | ErrorKind::UnknownArgument, Some(likely)) =
        (error.kind(), suggestion(error))
    {
        sentence = format!("{sentence}, did you mean '{likely}'?");
    }
    format!("{sentence}; see `{command} --help`")
}

fn suggestion(error: &clap::Error) -> Option<&str> {
    let kinds = [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg];
    #[expect(
        clippy::wildcard_enum_match_arm,
        reason = "the enum is foreign and open"
    )]
    kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(likely) => Some(likely.as_str()),
        ContextValue::Strings(likely) => likely.first().map(String::as_str),
        _ => None,
    })
}

/// The command that was meant: as far as the words name one.
fn command_of(arguments: &[OsString]) -> String {
    let root = Arguments::command();
    let mut command = &root;
    let mut words = vec![root.get_name().to_owned()];
    for word in arguments.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(found) = command.find_subcommand(word) {
            words.push(word.to_owned());
            command = found;
        }
    }
    words.join(" ")
}

/// The time of day, read once by each command and handed down.
#[expect(
    clippy::disallowed_methods,
    reason = "the commands' only reading of the clock"
)]
fn wall_clock() -> OffsetDateTime {
    std::time::SystemTime::now().into()
}

#[cfg(test)]
mod tests;
