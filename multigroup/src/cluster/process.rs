//! A node's process: found by its pid file and its own command line, started in a process group of
//! its own so that a terminal's Ctrl-C doesn't reach it, signalled and waited for by descriptor.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::process::{Child, Command};

use super::ClusterFolder;
use super::error::ClusterError;
use crate::limits::LOG_TAIL_BYTES;

/// How long one look at a process takes at most, so that a wait that is given up soon ends.
const GONE_SLICE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// What a node's pid file leads to.
#[derive(Debug)]
pub enum Found {
    /// There is no pid file.
    Nothing,
    /// There is one, left by a process that is gone; the number may be another program's by now.
    Stale {
        /// What the file holds.
        pid: String,
        /// Why it isn't the node's.
        why: &'static str,
    },
    /// The node runs.
    Running(NodeProcess),
}

/// A node's running process.
#[derive(Debug)]
pub struct NodeProcess {
    node: u64,
    pid: Pid,
    descriptor: OwnedFd,
}

/// Signals that can be sent to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSignal(Signal);

const SIGNALS: [(&str, Signal); 7] = [
    ("KILL", Signal::KILL),
    ("TERM", Signal::TERM),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("STOP", Signal::STOP),
    ("CONT", Signal::CONT),
];

impl NodeSignal {
    /// The end at once.
    pub const KILL: Self = Self(Signal::KILL);
    /// The request to end cleanly.
    pub const TERM: Self = Self(Signal::TERM);

    /// Whether a process is meant to end of it.
    #[must_use]
    pub fn ends(self) -> bool {
        self.0 != Signal::STOP && self.0 != Signal::CONT
    }
}

impl FromStr for NodeSignal {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let known = |(known, signal): &(&str, Signal)| {
            (*known == name || signal.as_raw().to_string() == name).then_some(Self(*signal))
        };
        SIGNALS.iter().find_map(known).ok_or_else(|| {
            let names: Vec<_> = SIGNALS.iter().map(|(name, _)| *name).collect();
            format!("it is one of {}", names.join(", "))
        })
    }
}

/// Looks for the process of a node.
///
/// # Errors
/// A pid file that can't be read, or a process that can't be looked at.
pub fn find(folder: &ClusterFolder, node: u64) -> Result<Found, ClusterError> {
    let path = folder.pid(node);
    let text = match fs::read_to_string(&path) {
        Ok(text) => text.trim().to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(source) => {
            let doing = "read";
            return Err(ClusterError::File {
                doing,
                path,
                source,
            });
        }
    };
    let number = text.parse::<i32>().ok().filter(|number| *number > 0);
    let Some(pid) = number.and_then(Pid::from_raw) else {
        let why = "it holds no process number";
        return Ok(Found::Stale { pid: text, why });
    };
    // The descriptor comes first: what is then read of the number is of that process, or of none.
    let descriptor = match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(descriptor) => descriptor,
        Err(rustix::io::Errno::SRCH) => {
            let why = "there is no such process any more";
            return Ok(Found::Stale { pid: text, why });
        }
        Err(error) => return Err(failed("look at", node, pid)(error.into())),
    };
    if !runs(pid, &folder.config(node)) {
        let why = "that process is another program, or has ended";
        return Ok(Found::Stale { pid: text, why });
    }
    Ok(Found::Running(NodeProcess {
        node,
        pid,
        descriptor,
    }))
}

fn failed(doing: &'static str, node: u64, pid: Pid) -> impl FnOnce(io::Error) -> ClusterError {
    let pid = pid.as_raw_nonzero().get();
    move |source| ClusterError::Process {
        doing,
        node,
        pid,
        source,
    }
}

/// All processes that run a node of the folder, also those without a pid file.
///
/// # Errors
/// If the system's processes can't be listed, or one of them can't be looked at.
pub fn scan(folder: &ClusterFolder) -> Result<Vec<NodeProcess>, ClusterError> {
    let path = PathBuf::from("/proc");
    let listed = fs::read_dir(&path).map_err(|source| ClusterError::File {
        doing: "read",
        path,
        source,
    })?;
    let mut found = Vec::new();
    for entry in listed.map_while(Result::ok) {
        let number = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let number = number.filter(|number: &i32| *number > 0);
        let Some(pid) = number.and_then(Pid::from_raw) else {
            continue;
        };
        let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else {
            continue;
        };
        let Some(config) = config_named_by(pid) else {
            continue;
        };
        let number = |name: &OsStr| name.to_str()?.strip_prefix("node-")?.parse().ok();
        let node = config.parent().and_then(Path::file_name).and_then(number);
        if let Some(node) = node
            && is_same(&config, &folder.config(node))
        {
            found.push(NodeProcess {
                node,
                pid,
                descriptor,
            });
        }
    }
    found.sort_by_key(|process| process.node);
    Ok(found)
}

/// Whether a process is `node --config` with this configuration. One that has ended has no command
/// line any more, also while nobody has taken note of its end.
fn runs(pid: Pid, config: &Path) -> bool {
    config_named_by(pid).is_some_and(|named| is_same(&named, config))
}

fn is_same(one: &Path, other: &Path) -> bool {
    matches!((one.canonicalize(), other.canonicalize()), (Ok(one), Ok(other)) if one == other)
}

/// The configuration of the node that a process is, if it is one.
fn config_named_by(pid: Pid) -> Option<PathBuf> {
    let proc = PathBuf::from(format!("/proc/{}", pid.as_raw_nonzero()));
    let line = fs::read(proc.join("cmdline")).ok()?;
    let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
    let named = config_of(&words)?;
    let folder = fs::read_link(proc.join("cwd")).ok()?;
    Some(folder.join(named))
}

/// The configuration that a command line `… node … --config FILE` names.
fn config_of<'a>(words: &[&'a [u8]]) -> Option<&'a Path> {
    let command = words.iter().skip(1).position(|word| *word == b"node")?;
    let rest = &words[command + 2..];
    rest.iter().enumerate().find_map(|(at, word)| {
        let file = match word.strip_prefix(b"--config=") {
            Some(file) => file,
            None if *word == b"--config" => rest.get(at + 1)?,
            None => return None,
        };
        Some(Path::new(OsStr::from_bytes(file)))
    })
}

impl NodeProcess {
    /// The node.
    #[must_use]
    pub fn node(&self) -> u64 {
        self.node
    }

    /// Its process.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// The most memory that it has had resident so far; none once it has ended.
    #[must_use]
    pub fn peak_resident_bytes(&self) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let mut lines = status.lines();
        let peak = lines.find_map(|line| line.strip_prefix("VmHWM:"))?;
        let kib = peak.trim().strip_suffix("kB")?.trim();
        kib.parse::<u64>().ok().map(|kib| kib * 1024)
    }

    /// Sends it a signal. One that has ended meanwhile is no error.
    ///
    /// # Errors
    /// If the signal isn't allowed.
    pub fn signal(&self, signal: NodeSignal) -> Result<(), ClusterError> {
        match pidfd_send_signal(&self.descriptor, signal.0) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(failed("signal", self.node, self.pid)(error.into())),
        }
    }

    /// Returns once the process has ended and all its files are closed.
    ///
    /// # Errors
    /// If the process can't be waited for.
    pub async fn gone(&self) -> Result<(), ClusterError> {
        let fail = |error| failed("wait for", self.node, self.pid)(error);
        loop {
            let descriptor = self.descriptor.try_clone().map_err(fail)?;
            let looking = tokio::task::spawn_blocking(move || has_ended(&descriptor));
            let ended = looking.await.map_err(io::Error::other).map_err(fail)?;
            if ended.map_err(fail)? {
                return Ok(());
            }
        }
    }
}

impl NodeProcess {
    /// As [`Self::gone`], for callers that have no runtime.
    ///
    /// # Errors
    /// If the process can't be waited for.
    pub fn wait_gone(&self) -> Result<(), ClusterError> {
        loop {
            let ended = has_ended(&self.descriptor);
            if ended.map_err(failed("wait for", self.node, self.pid))? {
                return Ok(());
            }
        }
    }
}

/// Waits a moment for the end of a process; its descriptor is readable from then on.
fn has_ended(descriptor: &OwnedFd) -> io::Result<bool> {
    let mut watched = [PollFd::new(descriptor, PollFlags::IN)];
    let ready = match poll(&mut watched, Some(&GONE_SLICE)) {
        Ok(ready) => ready,
        Err(rustix::io::Errno::INTR) => 0,
        Err(error) => return Err(error.into()),
    };
    Ok(ready > 0)
}

/// A node that this process started.
#[derive(Debug)]
pub struct Launched {
    /// The node.
    pub node: u64,
    /// Its process. Dropping this doesn't end it.
    pub child: Child,
    log: PathBuf,
    log_from: u64,
}

/// Starts a node of this very program, in a process group of its own, its output behind what its
/// log holds already.
///
/// # Errors
/// [`ClusterError`]; then nothing runs.
pub fn launch(folder: &ClusterFolder, node: u64) -> Result<Launched, ClusterError> {
    let program = std::env::current_exe().map_err(|source| ClusterError::Program { source })?;
    let log = folder.log(node);
    let file = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| ClusterError::File {
            doing,
            path,
            source,
        }
    };
    if let Some(logs) = log.parent() {
        fs::create_dir_all(logs).map_err(file("create", logs))?;
    }
    let mut options = OpenOptions::new();
    let mut output = options
        .append(true)
        .create(true)
        .open(&log)
        .map_err(file("open", &log))?;
    let log_from = output.seek(SeekFrom::End(0)).map_err(file("read", &log))?;
    let errors = output.try_clone().map_err(file("open", &log))?;
    let child = Command::new(&program)
        .arg("node")
        .arg("--config")
        .arg(folder.config(node))
        .current_dir(folder.root())
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        .process_group(0)
        .spawn();
    let child = child.map_err(|source| ClusterError::Start {
        node,
        program,
        source,
    })?;
    Ok(Launched {
        node,
        child,
        log,
        log_from,
    })
}

impl Launched {
    /// The last lines that this process has logged.
    #[must_use]
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let read = || {
            let mut file = File::open(&self.log)?;
            let end = file.seek(SeekFrom::End(0))?;
            let from = self.log_from.max(end.saturating_sub(LOG_TAIL_BYTES));
            file.seek(SeekFrom::Start(from))?;
            let mut bytes = Vec::new();
            file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
            Ok::<_, io::Error>(String::from_utf8_lossy(&bytes).into_owned())
        };
        let text = read().unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        let skip = lines.len().saturating_sub(count);
        lines[skip..]
            .iter()
            .map(|line| (*line).to_owned())
            .collect()
    }

    /// Where it logs.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> (tempfile::TempDir, ClusterFolder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = ClusterFolder::new(dir.path()).unwrap();
        fs::create_dir_all(folder.node(1)).unwrap();
        fs::create_dir_all(dir.path().join("pids")).unwrap();
        fs::write(folder.config(1), "").unwrap();
        (dir, folder)
    }

    fn found(folder: &ClusterFolder, pid: &str) -> Found {
        fs::write(folder.pid(1), pid).unwrap();
        find(folder, 1).unwrap()
    }

    #[test]
    fn a_command_line_names_its_configuration_in_either_form() {
        let of = |line: &'static str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            config_of(&words).map(|path| path.to_str().unwrap().to_owned())
        };
        let named = Some("d/node-1/config.toml".to_owned());
        assert_eq!(of("mg node --config d/node-1/config.toml"), named);
        assert_eq!(
            of("mg --log-format json node --config=d/node-1/config.toml"),
            named
        );
        for other in [
            "mg load --config x",
            "vi node",
            "node --config x",
            "mg node --config",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_number_that_is_no_process_or_another_program_s_is_stale() {
        let (_dir, folder) = folder();
        assert!(matches!(find(&folder, 1).unwrap(), Found::Nothing));
        // This test's own process is none of the cluster's nodes.
        let own = std::process::id().to_string();
        for pid in ["", "x", "0", "-4", "999999999", &own] {
            assert!(
                matches!(found(&folder, pid), Found::Stale { .. }),
                "{pid:?}"
            );
        }
    }

    #[tokio::test]
    async fn a_node_s_process_is_found_signalled_and_waited_for() {
        let (dir, folder) = folder();
        // A shell that has the command line of a node, and another configuration's.
        let script = dir.path().join("sleeper");
        fs::write(&script, "read line\n").unwrap();
        let sleeper = |config: &Path| {
            let mut command = Command::new("sh");
            command.arg(&script).arg("node").arg("--config").arg(config);
            command.stdin(Stdio::piped()).kill_on_drop(true);
            command.spawn().unwrap()
        };
        let mut other = sleeper(&folder.config(2));
        let number = other.id().unwrap().to_string();
        assert!(matches!(found(&folder, &number), Found::Stale { .. }));
        other.kill().await.unwrap();

        let mut child = sleeper(&folder.config(1));
        let number = format!("{}\n", child.id().unwrap());
        // Right after the fork its command line is still this program's.
        let process = loop {
            match found(&folder, &number) {
                Found::Running(process) => break process,
                Found::Nothing | Found::Stale { .. } => tokio::task::yield_now().await,
            }
        };
        let scanned = scan(&folder).unwrap();
        let pids: Vec<_> = scanned.iter().map(|one| (one.node(), one.pid())).collect();
        assert_eq!(pids, [(1, process.pid())]);
        assert!(process.peak_resident_bytes() > Some(0));
        process.signal(NodeSignal::KILL).unwrap();
        process.gone().await.unwrap();
        assert_eq!(process.peak_resident_bytes(), None);
        process.wait_gone().unwrap();
        // Ended, and not yet taken note of: it is none any more, and its number still its own.
        assert!(matches!(found(&folder, &number), Found::Stale { .. }));
        process.signal(NodeSignal::TERM).unwrap();
        child.wait().await.unwrap();
        process.signal(NodeSignal::TERM).unwrap();
    }

    #[test]
    fn signals_have_names_and_numbers() {
        for name in ["KILL", "sigkill", "9"] {
            assert_eq!(name.parse(), Ok(NodeSignal::KILL));
        }
        assert!(!"STOP".parse::<NodeSignal>().unwrap().ends());
        assert!("HUPP".parse::<NodeSignal>().unwrap_err().contains("TERM"));
    }
}
