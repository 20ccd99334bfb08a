//! What the audience sees: lines on standard output, coloured where that is wanted.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use nix::sys::signal::Signal;

use super::stop::{Interrupted, Stop};

pub(super) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(super) const STRONG: Style = Style::new().bold();
pub(super) const FAINT: Style = Style::new().dimmed();

pub(super) struct Screen {
    stop: Stop,
}

impl Screen {
    pub(super) fn new(stop: Stop) -> Screen {
        Screen { stop }
    }

    /// Prints a line. When nobody can read it any more, the demo ends as after a signal.
    pub(super) fn line(&self, text: impl Display) {
        if writeln!(anstream::stdout().lock(), "{text}").is_err() {
            self.stop.request(Signal::SIGPIPE);
        }
    }

    pub(super) fn heading(&self, number: u8, title: &str) {
        self.line(format_args!("{}{STRONG}{number}  {title}{STRONG:#}", if number == 1 { "" } else { "\n" }));
    }

    pub(super) fn check(&self) -> Result<(), Interrupted> {
        self.stop.check()
    }
}

pub(super) fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

pub(super) fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
