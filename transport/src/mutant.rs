//! Mutants: decisions of this workspace turned wrong on purpose, so that a test can be shown to
//! notice. `mutant!("name")` stands where a decision is made and says whether it is turned wrong.
//!
//! In every build but that of `.ci/mutants` it is the literal `false`, and nothing of a mutant is in
//! the program. Under `--cfg mutants`, which reaches this workspace's own crates alone, the
//! environment's `MUTANT` names the one that is on, so that one build serves all.

/// Whether the decision of this name is turned wrong: never, in this build.
#[cfg(not(mutants))]
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        false
    };
}

/// Whether the decision of this name is turned wrong.
#[cfg(mutants)]
#[doc(hidden)]
#[macro_export]
macro_rules! mutant {
    ($name:literal) => {
        $crate::mutant::is($name)
    };
}

/// Whether this is the mutant that is on; read once.
#[cfg(mutants)]
#[must_use]
pub fn is(name: &str) -> bool {
    static ON: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    let on = ON.get_or_init(|| std::env::var("MUTANT").ok());
    on.as_deref() == Some(name)
}
