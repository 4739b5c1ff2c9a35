//! Durations and sizes as an operator writes them: `"100ms"`, `"64MiB"`. Whole numbers only, and
//! always with a unit, so that no file says 100 of something.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserializer, Visitor};
use serde::{Deserialize, Serialize, Serializer};

const SPAN_UNITS: [(&str, u64); 5] = [
    ("h", 3_600_000_000),
    ("m", 60_000_000),
    ("s", 1_000_000),
    ("ms", 1000),
    ("us", 1),
];

const SIZE_UNITS: [(&str, u64); 7] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1000),
    ("B", 1),
];

/// A duration in whole microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

fn parse(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let (_, scale) = units.iter().find(|(name, _)| *name == unit)?;
    number.parse::<u64>().ok()?.checked_mul(*scale)
}

/// In the largest unit that leaves a whole number; 0 and all else in the smallest.
fn format(value: u64, units: &[(&str, u64)], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let whole = |(_, scale): &&(&str, u64)| value >= *scale && value.is_multiple_of(*scale);
    let found = units.iter().find(whole).or(units.last());
    let (unit, scale) = found.copied().unwrap_or(("", 1));
    write!(f, "{}{unit}", value / scale)
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Minutes and hours are read, and seconds written: 600s is easier to compare than 10m.
        let micros = u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX);
        format(micros, &SPAN_UNITS[2..], f)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        format(self.0, &SIZE_UNITS, f)
    }
}

struct Quantity(&'static [(&'static str, u64)], &'static str);

impl Visitor<'_> for Quantity {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<u64, E> {
        parse(text, self.0).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let micros =
            deserializer.deserialize_str(Quantity(&SPAN_UNITS, "a duration like \"100ms\""))?;
        Ok(Self(Duration::from_micros(micros)))
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer
            .deserialize_str(Quantity(&SIZE_UNITS, "a size like \"64MiB\""))
            .map(Self)
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_read_with_their_units_and_nothing_else() {
        let span = |text| parse(text, &SPAN_UNITS);
        assert_eq!(span("100ms"), Some(100_000));
        assert_eq!(span("10m"), Some(600_000_000));
        assert_eq!(span("0s"), Some(0));
        for text in [
            "",
            "1",
            "ms",
            "1.5s",
            "-1s",
            "1 s",
            "1S",
            "1d",
            "99999999999999999999s",
            "1ss",
        ] {
            assert_eq!(span(text), None, "{text}");
        }
        assert_eq!(span("18446744073709551615h"), None);
        assert_eq!(parse("64MiB", &SIZE_UNITS), Some(64 << 20));
        assert_eq!(parse("40MB", &SIZE_UNITS), Some(40_000_000));
    }

    #[test]
    fn quantities_are_written_as_they_are_read() {
        for (micros, text) in [
            (100_000, "100ms"),
            (600_000_000, "600s"),
            (0, "0us"),
            (1500, "1500us"),
        ] {
            assert_eq!(Span(Duration::from_micros(micros)).to_string(), text);
        }
        for (bytes, text) in [
            (64 << 20, "64MiB"),
            (40_000_000, "40MB"),
            (1025, "1025B"),
            (0, "0B"),
        ] {
            assert_eq!(ByteSize(bytes).to_string(), text);
        }
    }
}
