//! An error and its causes as one line: what goes into a log, an answer, or a sentence on a terminal.
//! Each error says only its own part; some foreign ones say their cause themselves, which is then
//! left out.

use std::error::Error;

/// The error and all its causes, each told once.
#[must_use]
pub fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let told = error.to_string();
        if !text.contains(&told) {
            text = format!("{text}: {told}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{0}")]
    struct Said(&'static str, #[source] Option<Box<Said>>);

    fn chain(words: &[&'static str]) -> Option<Box<Said>> {
        let (first, rest) = words.split_first()?;
        Some(Box::new(Said(first, chain(rest))))
    }

    #[test]
    fn causes_follow_their_effects_and_none_is_told_twice() {
        let said = |words: &[&'static str]| with_causes(&*chain(words).unwrap());
        assert_eq!(said(&["alone"]), "alone");
        assert_eq!(
            said(&["the log", "the disk", "full"]),
            "the log: the disk: full"
        );
        assert_eq!(said(&["a: b", "b", "c"]), "a: b: c");
        assert_eq!(said(&["a", "b", "a"]), "a: b");
    }
}
