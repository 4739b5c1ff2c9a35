//! A temporary folder for copies, which goes with its owner.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes one in the system's folder for temporary files.
    pub(super) fn new() -> io::Result<Self> {
        let process = std::process::id();
        for number in 0..u16::MAX {
            let name = format!("multigroup-verify-{process}-{number}");
            let path = std::env::temp_dir().join(name);
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Self { path }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover does no harm.
        let _left_over = fs::remove_dir_all(&self.path);
    }
}
