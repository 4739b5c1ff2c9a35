//! Whose turn it is in a cluster's folder: of two commands that would fill it and start its nodes at
//! once, the second is turned away before it has written anything.

use std::fs::{self, File, TryLockError};
use std::path::PathBuf;

use crate::cli::failure::Failure;
use crate::cluster::ClusterFolder;

/// Held from before a folder is filled until its nodes are up, so that of two commands at once one
/// is turned away.
#[derive(Debug)]
pub(in crate::cli) struct Turn {
    /// The folder, if it was made for this.
    made: Option<PathBuf>,
    /// The folder, locked.
    _opened: File,
}

impl Turn {
    /// Takes it, and makes the folder if there is none.
    pub(in crate::cli) fn take(folder: &ClusterFolder) -> Result<Self, Failure> {
        let root = folder.root();
        let made = (!root.exists()).then(|| root.to_owned());
        fs::create_dir_all(root).map_err(|error| Failure::of_input("create", root, &error))?;
        let opened = File::open(root).map_err(|error| Failure::of_input("open", root, &error))?;
        match opened.try_lock() {
            Ok(()) => Ok(Self {
                made,
                _opened: opened,
            }),
            Err(TryLockError::WouldBlock) => Err(Failure::usage(format!(
                "another command is starting the nodes of {}; wait for it, or choose another --dir",
                root.display()
            ))),
            Err(TryLockError::Error(error)) => Err(Failure::of_file("lock", root, &error)),
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Of a cluster that could not be made nothing is left. This fails for a folder that holds
        // something.
        let _kept = self.made.take().map(fs::remove_dir);
    }
}
