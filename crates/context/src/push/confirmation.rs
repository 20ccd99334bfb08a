//! Checks whether a relay still has its baseline while the table does not change.
//!
//! A relay may answer `GET <base>/<feed>/version` with the version of its last baseline. Only a relay that has once
//! returned the pushed version is trusted: others may use this path differently.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Deserialize;

/// Interval of baselines for a relay that does not report its version: long enough for the traffic not to matter, short
/// enough that a relay which has lost its content is not empty for a day.
const UNCONFIRMED: Duration = Duration::from_secs(3600);

/// Response of a relay to the request for its baseline's version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HeldBaseline {
    Version(String),
    /// No version in the response.
    Unclear,
    /// The relay has no baseline, or does not support the request.
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

/// Schedules the requests, and interprets the responses.
pub(super) struct Confirmation {
    interval: Duration,
    asked: Instant,
    pushed: Instant,
    /// The relay has reported the pushed version before.
    is_believed: bool,
    has_failed: bool,
}

impl Confirmation {
    pub(super) fn new(interval: Duration) -> Confirmation {
        Confirmation { interval, asked: Instant::now(), pushed: Instant::now(), is_believed: false, has_failed: false }
    }

    /// The relay has accepted a baseline.
    pub(super) fn pushed(&mut self) {
        self.pushed = Instant::now();
        self.asked = self.pushed;
    }

    pub(super) fn is_due(&self) -> bool {
        self.asked.elapsed() >= self.interval
    }

    /// The request failed.
    pub(super) fn failed(&mut self) {
        self.asked = Instant::now();
        self.has_failed = true;
    }

    /// True if the previous request failed, and this one succeeded.
    pub(super) fn recovers(&mut self) -> bool {
        std::mem::take(&mut self.has_failed)
    }

    /// Whether the relay can be assumed to have the baseline of this version.
    pub(super) fn answered(&mut self, held: &HeldBaseline, version: &str) -> bool {
        self.asked = Instant::now();
        match held {
            HeldBaseline::Version(held) if held == version => {
                self.is_believed = true;
                true
            }
            HeldBaseline::Version(_) | HeldBaseline::Unclear | HeldBaseline::Unanswered { .. } => {
                // Not trusted again until it confirms another baseline, so that an inconsistent relay is not flooded.
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
