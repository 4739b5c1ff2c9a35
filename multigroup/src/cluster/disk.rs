//! What a cluster's folder lies on, as the kernel's table of mounts tells it: a figure that was made
//! on a file system in memory says nothing of syncing.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

/// Where the mounts that this process sees are listed.
const MOUNTS: &str = "/proc/self/mountinfo";

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    name: String,
    keeps: bool,
}

impl FileSystem {
    /// The one that a folder lies on.
    ///
    /// # Errors
    /// If the folder isn't there or the mounts can't be read.
    pub fn of(folder: &Path) -> io::Result<Self> {
        let folder = fs::canonicalize(folder)?;
        let found = holding(&fs::read_to_string(MOUNTS)?, &folder);
        let none = || io::Error::new(io::ErrorKind::NotFound, "no mount holds the folder");
        found.ok_or_else(none)
    }

    /// Its kind, as the kernel calls it: `ext4`, `tmpfs`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether what was synced there outlives a power cut, as far as its kind tells.
    #[must_use]
    pub fn keeps_what_is_synced(&self) -> bool {
        self.keeps
    }
}

/// The file system of the mount that holds a path: of those whose place is a part of it the deepest,
/// and of those at one place the last.
fn holding(mounts: &str, path: &Path) -> Option<FileSystem> {
    let all = mounts.lines().filter_map(mount);
    let held = all.filter(|(at, _)| path.starts_with(at));
    let deepest = held.max_by_key(|(at, _)| at.components().count());
    deepest.map(|(_, found)| found)
}

/// One line: its place is the fifth word; after a lone dash come the kind, the source, the options.
fn mount(line: &str) -> Option<(PathBuf, FileSystem)> {
    let (head, tail) = line.split_once(" - ")?;
    let at = PathBuf::from(OsString::from_vec(unescaped(head.split(' ').nth(4)?)));
    let mut tail = tail.split(' ');
    let name = tail.next()?.to_owned();
    let options = tail.nth(1).unwrap_or_default();
    let in_memory = matches!(name.as_str(), "tmpfs" | "ramfs");
    // An overlay that was told so passes no sync on.
    let volatile = options.split(',').any(|option| option == "volatile");
    let keeps = !in_memory && !volatile;
    Some((at, FileSystem { name, keeps }))
}

/// Blanks and the like stand there as a backslash and three octal digits.
fn unescaped(word: &str) -> Vec<u8> {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .and_then(|digits| str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match byte.filter(|_| *first == b'\\') {
            Some(byte) => {
                plain.push(byte);
                rest = &after[3..];
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
        22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro\n\
        30 22 0:26 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1g\n\
        31 30 254:2 / /tmp/a\\040b rw - xfs /dev/vdb rw\n\
        32 22 0:30 / /over rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w\n\
        33 32 0:31 / /over rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w,volatile\n";

    #[test]
    fn the_deepest_and_last_mount_holds_a_path() {
        let of = |path: &str| {
            let found = holding(TABLE, Path::new(path)).unwrap();
            (found.name, found.keeps)
        };
        assert_eq!(of("/srv/x"), ("ext4".to_owned(), true));
        assert_eq!(of("/tmp"), ("tmpfs".to_owned(), false));
        assert_eq!(of("/tmpfile"), ("ext4".to_owned(), true));
        assert_eq!(of("/tmp/a b/c"), ("xfs".to_owned(), true));
        assert_eq!(of("/over/x"), ("overlay".to_owned(), false));
        assert_eq!(holding("", Path::new("/")), None);
        assert_eq!(holding("a line - of words\n", Path::new("/")), None);
    }

    #[test]
    fn this_machine_s_folders_have_a_file_system() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!FileSystem::of(folder.path()).unwrap().name().is_empty());
        assert!(FileSystem::of(Path::new("/nonexistent/x")).is_err());
    }
}
