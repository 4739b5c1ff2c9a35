//! On which core an end runs. Left to itself the scheduler puts two threads that wake each other on
//! one core while the others are busy, and on two while they are idle, so a figure would say more
//! about what else runs than about what is measured. Two nodes have a core each; the other case, a
//! machine that is full, is measured as such.
//!
//! Nobody waits for a core: what else runs there is only kept apart by the scheduler, as ever.

use std::io;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Where the two ends of an exchange run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Each on a core of its own.
    Apart,
    /// Both on one.
    Shared,
}

/// The first two cores that this process may use.
#[derive(Clone, Copy, Debug)]
pub struct Cores([usize; 2]);

impl Cores {
    /// Looks which there are. A machine with one has the same twice.
    ///
    /// # Errors
    /// The system doesn't tell.
    pub fn of_this_process() -> io::Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let mut cores = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
        let first = cores.next().unwrap_or(0);
        Ok(Self([first, cores.next().unwrap_or(first)]))
    }

    /// How many of two there are.
    #[must_use]
    pub const fn count(self) -> usize {
        if self.0[0] == self.0[1] { 1 } else { 2 }
    }

    /// The core of this end, 0 or 1.
    #[must_use]
    pub const fn of(self, end: usize, placement: Placement) -> usize {
        match placement {
            Placement::Apart => self.0[end % 2],
            Placement::Shared => self.0[0],
        }
    }
}

/// Keeps the calling thread, and those that it starts, on this core from now on.
///
/// # Errors
/// The system refused.
pub fn bind(core: usize) -> io::Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// Lets the calling thread run on whichever core there is.
///
/// # Errors
/// The system refused.
pub fn unbind() -> io::Result<()> {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| set.set(core));
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_thread_stays_on_its_core_until_it_is_let_go() {
        let cores = Cores::of_this_process().unwrap();
        let thread = std::thread::spawn(move || {
            let before = sched_getaffinity(None).unwrap();
            let core = cores.of(1, Placement::Apart);
            bind(core).unwrap();
            let bound = sched_getaffinity(None).unwrap();
            assert_eq!((bound.count(), bound.is_set(core)), (1, true));
            unbind().unwrap();
            assert_eq!(sched_getaffinity(None).unwrap().count(), before.count());
        });
        thread.join().unwrap();
    }

    #[test]
    fn ends_that_share_have_the_same_core() {
        let cores = Cores([3, 5]);
        assert_eq!(cores.count(), 2);
        let shared = [0, 1].map(|end| cores.of(end, Placement::Shared));
        assert_eq!(shared, [3, 3]);
        assert_eq!([0, 1].map(|end| cores.of(end, Placement::Apart)), [3, 5]);
        assert_eq!(Cores([3, 3]).count(), 1);
    }
}
