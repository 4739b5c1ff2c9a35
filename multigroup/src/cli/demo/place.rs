//! Where a demo's cluster lives: in the folder that was named, which stays, or in a fresh one, which
//! goes at the end unless it is to be kept, or something failed and is to be looked at.

use std::fs;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use crate::cli::failure::Failure;

/// Fresh names that are tried before it is given up: they are random, so more would not help.
const NAMES_TRIED: usize = 32;

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";

/// A demo's folder.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    /// It was made for this run.
    fresh: bool,
    keep: bool,
}

impl Place {
    /// The folder that was named, or a fresh one in the current one.
    pub(super) fn choose(named: Option<&Path>, keep: bool) -> Result<Self, Failure> {
        let path = match named {
            Some(path) => path.to_owned(),
            None => fresh(Path::new("."))?,
        };
        let fresh = named.is_none();
        Ok(Self { path, fresh, keep })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The run is over, and nothing there is of use any more.
    pub(super) fn done(self) -> Result<(), Failure> {
        if self.stays() { Ok(()) } else { self.discard() }
    }

    /// Nothing has run, so there is nothing in a fresh folder to keep.
    pub(super) fn discard(self) -> Result<(), Failure> {
        if !self.fresh {
            return Ok(());
        }
        let removed = fs::remove_dir_all(&self.path);
        removed.map_err(|error| Failure::of_file("remove", &self.path, &error))
    }

    /// Whether the folder will be there afterwards.
    pub(super) fn stays(&self) -> bool {
        self.keep || !self.fresh
    }
}

/// Makes a folder of a name that nothing has.
fn fresh(parent: &Path) -> Result<PathBuf, Failure> {
    let mut last = None;
    for _ in 0..NAMES_TRIED {
        let path = parent.join(format!("multigroup-demo-{}", four_letters()));
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) => {
                let taken = error.kind() == io::ErrorKind::AlreadyExists;
                let failure = Failure::of_file("create", &path, &error);
                if !taken {
                    return Err(failure);
                }
                last = Some(failure);
            }
        }
    }
    let none = || Failure::work("no name for a fresh folder was tried");
    Err(last.unwrap_or_else(none))
}

fn four_letters() -> String {
    // Each state has keys of its own, which the system's randomness is in.
    let mut rest = RandomState::new().build_hasher().finish();
    let mut letters = String::new();
    for _ in 0..4 {
        let at = usize::try_from(rest % 32).unwrap_or_default();
        letters.push(LETTERS[at].into());
        rest /= 32;
    }
    letters
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_folder_stays_and_is_not_made() {
        let parent = tempfile::tempdir().unwrap();
        let named = parent.path().join("d");
        let place = Place::choose(Some(&named), false).unwrap();
        assert!(place.stays() && !named.exists());
        fs::create_dir(&named).unwrap();
        place.done().unwrap();
        assert!(named.exists());
    }

    #[test]
    fn fresh_folders_have_names_of_their_own_and_go_unless_kept() {
        let parent = tempfile::tempdir().unwrap();
        let (one, other) = (fresh(parent.path()).unwrap(), fresh(parent.path()).unwrap());
        assert_ne!(one, other);
        for (path, stays) in [(one, true), (other, false)] {
            fs::write(path.join("file"), "").unwrap();
            let place = Place {
                path: path.clone(),
                fresh: true,
                keep: stays,
            };
            place.done().unwrap();
            assert_eq!(path.exists(), stays);
        }
        let place = Place {
            path: fresh(parent.path()).unwrap(),
            fresh: true,
            keep: true,
        };
        let path = place.path().to_owned();
        place.discard().unwrap();
        assert!(!path.exists());
        let absent = parent.path().join("absent");
        assert!(
            fresh(&absent)
                .unwrap_err()
                .to_string()
                .contains("can't create")
        );
    }
}
