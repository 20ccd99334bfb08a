//! Latency from an event to its enforcement: events that the kernel's rules do not cover yet.

use std::time::Instant;

use crate::metrics::Metrics;
use crate::metrics::labels::WatchedKind;

/// Maximum number of pending events. Initially each kind is one event, and a storm is committed every few milliseconds;
/// so many are pending only while commits fail, and more of them would add no information.
const MOST_PENDING: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct PendingEvents {
    arrived: Vec<(WatchedKind, Instant)>,
}

impl PendingEvents {
    /// Records the arrival of an event. Events that exceed the limit are counted but not measured.
    pub(crate) fn add(&mut self, kind: WatchedKind, at: Instant, metrics: &Metrics) {
        match self.arrived.len() < MOST_PENDING {
            true => self.arrived.push((kind, at)),
            false => {
                metrics.unmeasured_events.inc();
            }
        }
    }

    /// Observes the latency of all pending events, which the kernel's rules cover now.
    pub(crate) fn record_commit(&mut self, now: Instant, metrics: &Metrics) {
        for (kind, at) in self.arrived.drain(..) {
            metrics.enforced(kind, now.saturating_duration_since(at));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::status::AgentStatus;

    fn text(metrics: &Metrics) -> String {
        metrics.text(&AgentStatus::default(), Instant::now()).unwrap()
    }

    #[test]
    fn latency_is_observed_once_per_event_and_kind() {
        let (metrics, mut pending, at) = (Metrics::new(), PendingEvents::default(), Instant::now());
        pending.add(WatchedKind::Pod, at, &metrics);
        assert!(text(&metrics).contains("ringfence_enforcement_latency_seconds_count{kind=\"pod\"} 0\n"));
        pending.record_commit(at + Duration::from_secs(2), &metrics);
        pending.record_commit(at + Duration::from_secs(3), &metrics);
        let text = text(&metrics);
        assert!(text.contains("ringfence_enforcement_latency_seconds_count{kind=\"pod\"} 1\n"), "{text}");
        assert!(text.contains("ringfence_enforcement_latency_seconds_sum{kind=\"pod\"} 2.0\n"), "{text}");
    }

    #[test]
    fn pending_events_are_bounded_and_excess_counted() {
        let (metrics, mut pending) = (Metrics::new(), PendingEvents::default());
        for _ in 0..MOST_PENDING + 3 {
            pending.add(WatchedKind::Namespace, Instant::now(), &metrics);
        }
        assert_eq!((pending.arrived.len(), metrics.unmeasured_events.get()), (MOST_PENDING, 3));
    }
}
