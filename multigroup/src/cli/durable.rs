//! Files that are there whole or not at all, also after a power cut: written under another name in
//! the same folder, synced, renamed, and the folder synced. A write that fails leaves nothing.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Who may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readers {
    /// Whoever the umask lets.
    All,
    /// Its owner alone, from its first byte on.
    Owner,
}

/// A file that is written and synced, but not yet in its place; dropped there, it is removed.
#[derive(Debug)]
pub(crate) struct Staged {
    from: PathBuf,
    to: PathBuf,
    placed: bool,
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.placed {
            // A leftover does no harm, and the failure that led here is the one to report.
            let _left_over = fs::remove_file(&self.from);
        }
    }
}

impl Staged {
    /// Writes and syncs a file beside its place.
    pub(crate) fn write(to: &Path, contents: &[u8], readers: Readers) -> io::Result<Self> {
        let name = to.file_name().ok_or(io::ErrorKind::IsADirectory)?;
        let name = format!(".{}.{}.tmp", name.to_string_lossy(), std::process::id());
        let from = to.with_file_name(name);
        let staged = Self {
            from,
            to: to.to_owned(),
            placed: false,
        };
        // One of an earlier process with our number, whose mode may be another.
        match fs::remove_file(&staged.from) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        if readers == Readers::Owner {
            use std::os::unix::fs::OpenOptionsExt;
            options.mode(0o600);
        }
        let mut file = options.open(&staged.from)?;
        file.write_all(contents)?;
        file.sync_all()?;
        Ok(staged)
    }

    /// Puts it in its place. The folder is not synced yet.
    pub(crate) fn place(mut self) -> io::Result<()> {
        fs::rename(&self.from, &self.to)?;
        self.placed = true;
        Ok(())
    }
}

/// Writes one file durably.
pub(crate) fn write(to: &Path, contents: &[u8], readers: Readers) -> io::Result<()> {
    Staged::write(to, contents, readers)?.place()?;
    sync_folder(folder_of(to))
}

/// The folder that a path is in, also where it is given as a bare name.
pub(crate) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    }
}

/// Makes renames in a folder survive a power cut.
pub(crate) fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}
