//! How far a command is, on stderr: a bar on a terminal, else a plain line every few seconds. What
//! is over sooner says nothing.

use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use transport::io::clock;

/// Between two plain lines.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Where a command's progress is shown.
#[derive(Debug)]
pub(super) enum Display {
    Bar(ProgressBar),
    Lines { name: &'static str, last: Instant },
}

impl Display {
    /// Of the command `name`.
    pub(super) fn new(name: &'static str) -> Self {
        if !std::io::stderr().is_terminal() {
            let last = clock::now();
            return Self::Lines { name, last };
        }
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3}%  {msg}  {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self::Bar(bar)
    }

    /// Shows how much is done of the whole, and says it.
    pub(super) fn show(&mut self, done: u64, of: u64, message: &str) {
        match self {
            Self::Bar(bar) => {
                bar.set_length(of.max(1));
                bar.set_position(done.min(of));
                bar.set_message(message.to_owned());
            }
            Self::Lines { name, last } => {
                let now = clock::now();
                if now.duration_since(*last) >= LINE_INTERVAL {
                    *last = now;
                    // With stderr gone there is nobody left to tell.
                    let _unheard = writeln!(std::io::stderr(), "{name}: {message}");
                }
            }
        }
    }

    /// Takes the bar away.
    pub(super) fn clear(&self) {
        match self {
            Self::Bar(bar) => bar.finish_and_clear(),
            Self::Lines { .. } => {}
        }
    }
}

/// So many of a thing.
pub(super) fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// Says something in between, on a line of its own.
pub(super) fn note(text: &str) {
    // Names come from files; what is printed stays one line.
    let text = text.replace(|c: char| c.is_control(), "?");
    // With stderr gone there is nobody left to tell.
    let _unheard = writeln!(std::io::stderr(), "{text}");
}
