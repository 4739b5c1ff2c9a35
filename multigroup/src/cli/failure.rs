//! How a command ends: its exit code, and the one sentence that an operator reads.

use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The exit codes of every command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exit {
    /// The work is done.
    Done,
    /// The work failed.
    Failed,
    /// The command line, a configuration or an input file is at fault.
    Usage,
    /// A node could not be reached or started.
    Unreachable,
    /// Ctrl-C: stopped cleanly.
    Interrupted,
}

impl Exit {
    /// The number that the process ends with.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 2,
            Self::Unreachable => 3,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

/// A command's failure: one sentence, without a full stop, that names the thing and the remedy.
#[derive(Debug)]
pub struct Failure {
    exit: Exit,
    sentence: String,
    closed_reader: bool,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.sentence)
    }
}

impl Failure {
    fn new(exit: Exit, sentence: impl Into<String>) -> Self {
        Self {
            exit,
            // Names come from files and arguments; what is printed stays one line.
            sentence: sentence.into().replace(|c: char| c.is_control(), "?"),
            closed_reader: false,
        }
    }

    /// The work failed.
    pub(super) fn work(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Failed, sentence)
    }

    /// What the command was given is at fault.
    pub(super) fn usage(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Usage, sentence)
    }

    /// A node couldn't be reached or started.
    pub(super) fn unreachable(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Unreachable, sentence)
    }

    /// The user stopped it.
    pub(super) fn interrupted(sentence: impl Into<String>) -> Self {
        Self::new(Exit::Interrupted, sentence)
    }

    /// What a signal ended, said of the signal that it was.
    pub(super) fn by(mut self, signal: &str) -> Self {
        if self.exit == Exit::Interrupted {
            self.sentence = self.sentence.replace("Ctrl-C", signal);
        }
        self
    }

    /// The same where it is the work that it made fail.
    pub(super) fn into_work(mut self) -> Self {
        if self.exit == Exit::Unreachable {
            self.exit = Exit::Failed;
        }
        self
    }

    /// Standard output couldn't be written.
    #[expect(clippy::needless_pass_by_value, reason = "its use is in map_err")]
    pub(super) fn of_stdout(error: io::Error) -> Self {
        Self {
            closed_reader: error.kind() == io::ErrorKind::BrokenPipe,
            ..Self::work(format!("can't write to standard output: {error}"))
        }
    }

    /// Something in the file system couldn't be done: `doing` reads "write", "create".
    pub(super) fn of_file(doing: &str, path: &Path, error: &io::Error) -> Self {
        let path = path.display();
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the enum is foreign and open"
        )]
        let remedy = match error.kind() {
            io::ErrorKind::NotFound => "does not exist; correct the path or create it",
            io::ErrorKind::PermissionDenied => {
                "is closed to this user; change its owner or mode, or run as another user"
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                "has no room left on its disk; free some space and try again"
            }
            io::ErrorKind::ReadOnlyFilesystem => {
                "is on a file system mounted read-only; choose another place"
            }
            io::ErrorKind::AlreadyExists => {
                "is there already and is no folder; remove it or choose another path"
            }
            io::ErrorKind::NotADirectory => "has a file where a folder must be; correct the path",
            io::ErrorKind::IsADirectory => "is a folder, not a file; correct the path",
            _ => {
                return Self::work(format!(
                    "can't {doing} {path}: {error}; check the path and the disk"
                ));
            }
        };
        Self::work(format!("can't {doing} {path}: it {remedy}"))
    }

    /// The same where the path came from the command line, and is wrong rather than the disk.
    pub(super) fn of_input(doing: &str, path: &Path, error: &io::Error) -> Self {
        let failure = Self::of_file(doing, path, error);
        let wrong_path = [
            io::ErrorKind::NotFound,
            io::ErrorKind::IsADirectory,
            io::ErrorKind::NotADirectory,
        ];
        if wrong_path.contains(&error.kind()) {
            Self::usage(failure.sentence)
        } else {
            failure
        }
    }

    /// The exit code.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        if self.closed_reader {
            Exit::Done
        } else {
            self.exit
        }
    }

    pub(super) const fn is_closed_reader(&self) -> bool {
        self.closed_reader
    }
}
