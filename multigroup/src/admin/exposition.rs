//! The text format of Prometheus (0.0.4): families with their help and type, then their samples.
//! Names and label names are the program's own; label values may be anything.

use std::fmt::{self, Write as _};

/// What a family's numbers do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// They grow until the process ends.
    Counter,
    /// They go up and down.
    Gauge,
}

/// A sample's number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    /// A whole one.
    Whole(u64),
    /// Any other.
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Self {
        Self::Real(number)
    }
}

impl From<bool> for Number {
    fn from(holds: bool) -> Self {
        Self::Whole(holds.into())
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(number) => number.fmt(f),
            Self::Real(number) if number.is_infinite() && *number > 0.0 => f.write_str("+Inf"),
            Self::Real(number) if number.is_infinite() => f.write_str("-Inf"),
            Self::Real(number) => number.fmt(f),
        }
    }
}

/// The text that is being written.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
}

impl Exposition {
    /// Begins a family. Its name says what it counts and in which unit, a counter's ends with
    /// `_total`; one family is begun once.
    pub fn family(&mut self, name: &'static str, kind: Kind, help: &'static str) -> Family<'_> {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
        };
        // Writing to a string can't fail, here and below.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        let text = &mut self.text;
        Family { text, name }
    }

    /// All of it.
    #[must_use]
    pub fn into_text(self) -> String {
        self.text
    }
}

/// A family that is being written.
#[derive(Debug)]
pub struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    /// Adds a sample.
    pub fn sample(&mut self, labels: &[(&'static str, &str)], number: impl Into<Number>) {
        self.text.push_str(self.name);
        for (at, (label, value)) in labels.iter().enumerate() {
            self.text.push(if at == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.text.push_str("\\\\"),
                    '"' => self.text.push_str("\\\""),
                    '\n' => self.text.push_str("\\n"),
                    c => self.text.push(c),
                }
            }
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {}", number.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_and_samples_have_their_form() {
        let mut out = Exposition::default();
        let mut family = out.family("multigroup_x_total", Kind::Counter, "What x is.");
        family.sample(&[], 3);
        family.sample(&[("a", "1"), ("b", "say \"\\\n\"")], 0.25);
        out.family("multigroup_y_seconds", Kind::Gauge, "What y is.")
            .sample(&[], f64::INFINITY);
        assert_eq!(
            out.into_text(),
            "# HELP multigroup_x_total What x is.\n# TYPE multigroup_x_total counter\n\
             multigroup_x_total 3\nmultigroup_x_total{a=\"1\",b=\"say \\\"\\\\\\n\\\"\"} 0.25\n\
             # HELP multigroup_y_seconds What y is.\n# TYPE multigroup_y_seconds gauge\n\
             multigroup_y_seconds +Inf\n"
        );
    }
}
