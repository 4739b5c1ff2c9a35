//! Which cluster it is, beyond its name: a number drawn at random once, when the cluster is made.
//! Names are chosen by people, who choose the same one twice; what outlives a cluster, as its archive
//! does, is told apart by this.
//!
//! Leaves to others: where it is kept (`config`, `archive/claim.rs`) and who compares it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use thiserror::Error;

const BYTES: usize = 16;

/// A cluster's number, written as 32 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClusterId([u8; BYTES]);

/// The system gives no randomness.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the system gives no random number")]
pub struct NoRandomness;

/// Not a cluster's number.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{text:?} is no cluster's id, which is 32 digits from 0 to 9 and a to f")]
pub struct NoClusterId {
    /// What was given.
    pub text: String,
}

impl ClusterId {
    /// Draws one.
    ///
    /// # Errors
    /// [`NoRandomness`].
    pub fn draw() -> Result<Self, NoRandomness> {
        let mut bytes = [0; BYTES];
        aws_lc_rs::rand::fill(&mut bytes).map_err(|_| NoRandomness)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for ClusterId {
    type Err = NoClusterId;

    fn from_str(text: &str) -> Result<Self, NoClusterId> {
        let fault = || NoClusterId {
            text: text.to_owned(),
        };
        let is_digit = |c: u8| matches!(c, b'0'..=b'9' | b'a'..=b'f');
        if text.len() != 2 * BYTES || !text.bytes().all(is_digit) {
            return Err(fault());
        }
        let mut bytes = [0; BYTES];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            let digits = text.get(at..at + 2).ok_or_else(fault)?;
            *byte = u8::from_str_radix(digits, 16).map_err(|_| fault())?;
        }
        Ok(Self(bytes))
    }
}

impl Serialize for ClusterId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ClusterId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_reads_as_it_is_written_and_nothing_else_does() {
        let (one, other) = (ClusterId::draw().unwrap(), ClusterId::draw().unwrap());
        assert_ne!(one, other);
        let text = one.to_string();
        assert_eq!(text.parse(), Ok(one));
        let json = serde_json::to_string(&one).unwrap();
        assert_eq!(json, format!("\"{text}\""));
        assert_eq!(serde_json::from_str::<ClusterId>(&json).unwrap(), one);
        let short = &text[1..];
        for wrong in [
            "",
            short,
            &format!("0{text}"),
            &format!("+{short}"),
            &"A".repeat(32),
        ] {
            assert!(wrong.parse::<ClusterId>().is_err(), "{wrong}");
        }
    }
}
