//! Open files: a node needs some for each open database and each session. What the system lets a
//! process have by default is often less than what it would let it have if asked.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::info;

use super::error::NodeError;
use crate::limits::{DATABASE_FILES, FILES_RESERVED, OPEN_HANDLES_MAX};

/// Files that a node with so many groups may have open.
pub(super) fn files_needed(groups: u32) -> u64 {
    let databases = u64::from(groups).min(OPEN_HANDLES_MAX as u64);
    databases * DATABASE_FILES + FILES_RESERVED
}

/// Asks for as many files as a node with so many groups needs, unless it may have them already.
pub(super) fn ensure(groups: u32) -> Result<(), NodeError> {
    let need = files_needed(groups);
    let now = getrlimit(Resource::Nofile);
    // `None` is no limit.
    if now.current.is_none_or(|current| current >= need) {
        return Ok(());
    }
    let refused = || NodeError::TooFewFiles {
        need,
        groups,
        have: now.maximum.or(now.current).unwrap_or(need),
    };
    if now.maximum.is_some_and(|maximum| maximum < need) {
        return Err(refused());
    }
    // All that may be had, since sessions need some each.
    let wanted = Rlimit {
        current: now.maximum.or(Some(need)),
        maximum: now.maximum,
    };
    setrlimit(Resource::Nofile, wanted).map_err(|_| refused())?;
    info!(
        from = now.current,
        to = wanted.current,
        "raised the limit of open files"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_groups_need_few_files_and_many_no_more_than_the_handles() {
        assert_eq!(files_needed(10), 50 + FILES_RESERVED);
        assert_eq!(files_needed(65_536), files_needed(2048));
        ensure(1).unwrap();
    }
}
