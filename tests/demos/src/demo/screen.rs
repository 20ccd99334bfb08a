//! Output of the demo: lines on standard output, with colours where supported.

use std::fmt::Display;
use std::io::Write;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use nix::sys::signal::Signal;

use super::stop::{Interruption, Stop};

pub(crate) const GOOD: Style = AnsiColor::Green.on_default().bold();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();
pub(crate) const STRONG: Style = Style::new().bold();
pub(crate) const FAINT: Style = Style::new().dimmed();

pub(crate) struct Screen {
    stop: Stop,
}

impl Screen {
    pub(crate) fn new(stop: Stop) -> Screen {
        Screen { stop }
    }

    /// Prints a line. If the output is closed, the demo ends as after a signal.
    pub(crate) fn line(&self, text: impl Display) {
        if writeln!(anstream::stdout().lock(), "{text}").is_err() {
            self.stop.request(Signal::SIGPIPE);
        }
    }

    pub(crate) fn heading(&self, number: u8, title: &str) {
        self.line(format_args!("{}{STRONG}{number}  {title}{STRONG:#}", if number == 1 { "" } else { "\n" }));
    }

    pub(crate) fn check(&self) -> Result<(), Interruption> {
        self.stop.check()
    }
}

pub(crate) fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

pub(crate) fn millis(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
