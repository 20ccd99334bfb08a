//! Whether a relay still has the baseline that it has taken, although nothing changes that would be pushed.
//!
//! A relay may answer `GET <base>/<feed>/version` with the version of the last baseline uploaded to it. Only a relay that
//! has once answered with the version pushed is believed: others may mean something else by this path.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// A relay that does not say what it has gets a baseline again after this time without one: long enough for the traffic not
/// to matter, short enough that a relay which has lost its content is not empty for a day.
const UNCONFIRMED: Duration = Duration::from_secs(3600);

/// Response of a relay to the request for its baseline's version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeldBaseline {
    Version(String),
    /// No version in the answer.
    Unclear,
    /// It has none, or does not know the question.
    Unanswered {
        status: u16,
    },
}

#[derive(Deserialize)]
struct VersionAnswer {
    version: String,
}

impl HeldBaseline {
    pub(super) fn of_answer(text: &str) -> HeldBaseline {
        match serde_json::from_str(text) {
            Ok(VersionAnswer { version }) => HeldBaseline::Version(version),
            Err(_) => HeldBaseline::Unclear,
        }
    }
}

impl fmt::Display for HeldBaseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeldBaseline::Version(version) => write!(f, "the relay has the baseline {version:?}"),
            HeldBaseline::Unclear => f.write_str("the relay does not report its baseline"),
            HeldBaseline::Unanswered { status } => write!(f, "the relay confirms no baseline ({status})"),
        }
    }
}

/// When to ask a relay, and what its answers mean.
pub(super) struct Confirmation {
    interval: Duration,
    asked: Instant,
    pushed: Instant,
    /// It has answered with the version pushed.
    is_believed: bool,
    has_failed: bool,
}

impl Confirmation {
    pub(super) fn new(interval: Duration) -> Confirmation {
        Confirmation { interval, asked: Instant::now(), pushed: Instant::now(), is_believed: false, has_failed: false }
    }

    /// The relay has taken a baseline.
    pub(super) fn pushed(&mut self) {
        self.pushed = Instant::now();
        self.asked = self.pushed;
    }

    pub(super) fn is_due(&self) -> bool {
        self.asked.elapsed() >= self.interval
    }

    /// The relay could not be asked.
    pub(super) fn failed(&mut self) {
        self.asked = Instant::now();
        self.has_failed = true;
    }

    /// True if it could not be asked before, and answers now.
    pub(super) fn recovers(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Whether the relay may be taken to have the baseline of this version.
    pub(super) fn answered(&mut self, held: &HeldBaseline, version: &str) -> bool {
        self.asked = Instant::now();
        match held {
            HeldBaseline::Version(held) if held == version => {
                self.is_believed = true;
                true
            }
            HeldBaseline::Version(_) | HeldBaseline::Unclear | HeldBaseline::Unanswered { .. } => {
                // Until it confirms another baseline, so that a relay that changes its mind is not flooded.
                let was_believed = std::mem::take(&mut self.is_believed);
                !was_believed && self.pushed.elapsed() < UNCONFIRMED
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relay_is_seeded_again_after_losing_confirmed_version() {
        let lost = HeldBaseline::Unanswered { status: 404 };
        let mut confirmation = Confirmation::new(Duration::ZERO);
        assert!(confirmation.answered(&lost, "id-1"), "it never said what it has");
        assert!(confirmation.answered(&HeldBaseline::of_answer(r#"{"version":"id-1"}"#), "id-1"));
        assert!(!confirmation.answered(&lost, "id-1"));
        assert!(confirmation.answered(&lost, "id-1"), "it has not confirmed the baseline pushed again");
        assert!(confirmation.answered(&HeldBaseline::of_answer("id-1"), "id-1"));
        assert_eq!(HeldBaseline::of_answer("id-1"), HeldBaseline::Unclear);
    }

    #[test]
    fn silent_relay_is_seeded_again_after_an_hour() {
        let mut confirmation = Confirmation::new(Duration::ZERO);
        let unknown = HeldBaseline::Unanswered { status: 405 };
        assert!(confirmation.answered(&unknown, "id-1"));
        let Some(pushed) = Instant::now().checked_sub(UNCONFIRMED) else { return };
        confirmation.pushed = pushed;
        assert!(!confirmation.answered(&unknown, "id-1"));
    }
}
