//! Figures of denied packets. The reader of the kernel's counters sets the totals here, and this module derives the
//! drops of the last minute.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use policy::{Cause, ClusterRuleName, Direction, Judgement};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::labels;
use super::rules::RuleFigures;
use super::services::EventFigures;
use crate::api::status::Drops;

type DeniedLabels = [(&'static str, &'static str); 2];

/// Period over which recent drops are summed.
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum number of readings in the window: one each half second. If readings are more frequent, the oldest are
/// evicted and the window gets shorter.
const MOST_READINGS: usize = 120;

/// Totals since the agent started, by cause. They are monotonic: when a kernel counter restarts, as with a new table,
/// its reader adds the earlier total.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct DropTotals {
    pub(crate) denied: u64,
    pub(crate) would_deny: u64,
}

#[derive(Debug)]
pub(crate) struct DropFigures {
    denied: Family<DeniedLabels, Counter>,
    would_deny: Family<super::Labels, Counter>,
    lost: Counter,
    unnamed: Gauge,
    events: EventFigures,
    rules: RuleFigures,
    /// The first reading is zero, at the start of the agent.
    readings: Mutex<VecDeque<(Instant, DropTotals)>>,
}

impl DropFigures {
    pub(super) fn register(registry: &mut Registry) -> DropFigures {
        let figures = DropFigures {
            denied: Family::default(),
            would_deny: Family::default(),
            lost: Counter::default(),
            unnamed: Gauge::default(),
            events: EventFigures::register(registry),
            rules: RuleFigures::register(registry),
            readings: Mutex::new([(Instant::now(), DropTotals::default())].into()),
        };
        let packets = || Unit::Other("packets".into());
        registry.register_with_unit("denied", "Denied packets", packets(), figures.denied.clone());
        let help = "Packets that passed and that policies in audit would deny";
        registry.register_with_unit("would_deny", help, packets(), figures.would_deny.clone());
        let help = "NFLOG messages of denied packets that were lost (ENOBUFS); the packets are counted";
        registry.register("drop_log_lost", help, figures.lost.clone());
        let help = "Denied packets that no drop event reports; with too many flows, some are never reported";
        registry.register_with_unit("drops_unnamed", help, packets(), figures.unnamed.clone());
        for cause in Cause::ALL {
            figures.set(Judgement::Denied, cause, 0);
        }
        for direction in Direction::BOTH {
            figures.set(Judgement::WouldDeny, Cause::from(direction), 0);
        }
        figures
    }

    /// Sets the total of packets with this judgement and cause. Only policies can have audited packets.
    pub(crate) fn set(&self, judgement: Judgement, cause: Cause, total: u64) {
        match (judgement, cause.direction()) {
            (Judgement::Denied, _) => raise(&self.denied.get_or_create(&labels::denied(cause)), total),
            (Judgement::WouldDeny, Some(direction)) => {
                raise(&self.would_deny.get_or_create(&[("direction", direction.as_str())]), total);
            }
            (Judgement::WouldDeny, None) => {}
        }
    }

    /// Counts packets of an event by the service identity of this node's pod.
    pub(crate) fn record_event(&self, service: &str, judgement: Judgement, packets: u64) {
        self.events.record(service, judgement, packets);
    }

    /// Counts packets of an event by the rule of a ClusterNetworkPolicy.
    pub(crate) fn record_rule(&self, rule: &ClusterRuleName, judgement: Judgement, packets: u64) {
        self.rules.record(rule, judgement, packets);
    }

    /// Counts a connection that would be denied and that no event reports.
    pub(crate) fn lost(&self, reports: u64) {
        self.lost.inc_by(reports);
    }

    /// Sets the number of counted packets that have no event, or none yet.
    pub(crate) fn set_unnamed(&self, packets: u64) {
        self.unnamed.set(i64::try_from(packets).unwrap_or(i64::MAX));
    }

    /// Records a reading after all counters were set.
    pub(crate) fn read_at(&self, at: Instant) {
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        // The window begins at the newest reading that is older than the window.
        while readings.get(1).is_some_and(|(second, _)| at.saturating_duration_since(*second) >= WINDOW) {
            readings.pop_front();
        }
        if readings.len() >= MOST_READINGS {
            readings.pop_front();
        }
        readings.push_back((at, self.sums()));
    }

    /// `None` before the first reading.
    pub(crate) fn summary(&self, now: Instant) -> Option<Drops> {
        let readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let ((first, before), (_, latest)) = (readings.front()?, readings.back().filter(|_| readings.len() > 1)?);
        let minutes = now.saturating_duration_since(*first).as_secs_f64() / 60.0;
        let per_minute = |packets: u64| if minutes > 0.0 { packets as f64 / minutes } else { 0.0 };
        Some(Drops {
            denied: latest.denied,
            would_deny: latest.would_deny,
            denied_per_minute: per_minute(latest.denied - before.denied),
            would_deny_per_minute: per_minute(latest.would_deny - before.would_deny),
            lost: self.lost.get(),
            unnamed: u64::try_from(self.unnamed.get()).unwrap_or(0),
        })
    }

    fn sums(&self) -> DropTotals {
        let denied = Cause::ALL.map(|cause| self.denied.get_or_create(&labels::denied(cause)).get());
        let would_deny = Direction::BOTH.map(|d| self.would_deny.get_or_create(&[("direction", d.as_str())]).get());
        DropTotals { denied: denied.iter().sum(), would_deny: would_deny.iter().sum() }
    }
}

fn raise(counter: &Counter, total: u64) {
    counter.inner().fetch_max(total, std::sync::atomic::Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures() -> DropFigures {
        DropFigures::register(&mut Registry::default())
    }

    #[test]
    fn drop_summary_is_none_before_first_reading() {
        assert_eq!(figures().summary(Instant::now()), None);
    }

    #[test]
    fn drops_before_first_reading_count_towards_rate() {
        let figures = figures();
        figures.set(Judgement::Denied, Cause::Egress, 30);
        let now = Instant::now() + Duration::from_secs(30);
        figures.read_at(now);
        assert!(figures.summary(now).unwrap().denied_per_minute > 59.0);
    }

    #[test]
    fn drop_rate_covers_last_minute() {
        let (figures, start) = (figures(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, total) in [(0, 1000), (30, 1000), (90, 1060)] {
            figures.set(Judgement::Denied, Cause::Ingress, total);
            figures.set(Judgement::Denied, Cause::Stray, 7);
            figures.read_at(at(seconds));
        }
        let drops = figures.summary(at(90)).unwrap();
        assert_eq!((drops.denied, drops.denied_per_minute), (1067, 60.0));
        assert_eq!((drops.would_deny, drops.would_deny_per_minute), (0, 0.0));
    }

    #[test]
    fn readings_are_bounded_and_totals_never_fall() {
        let (figures, start) = (figures(), Instant::now());
        for n in 0..2 * MOST_READINGS as u64 {
            figures.set(Judgement::WouldDeny, Cause::Egress, 1000 - n);
            figures.read_at(start + Duration::from_millis(n));
        }
        assert_eq!(figures.readings.lock().unwrap().len(), MOST_READINGS);
        assert_eq!(figures.summary(start).unwrap().would_deny, 1000);
    }
}
