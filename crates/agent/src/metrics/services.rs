//! Packets of drop events by the service identity of this node's pods. The number of its values is bounded.

use std::sync::{Mutex, PoisonError};

use policy::Judgement;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::recent_keys::RecentKeys;

/// Maximum number of service identities with series; more than the pods of a node (the kubelet's default is 110). The
/// one whose last event is the oldest is evicted for a new one, which bounds the cost of pods whose labels keep
/// changing.
const MOST_SERVICES: usize = 128;

type EventLabels = [(&'static str, String); 2];

#[derive(Debug)]
pub(super) struct EventFigures {
    packets: Family<EventLabels, Counter>,
    services: Mutex<RecentKeys<String>>,
}

impl EventFigures {
    pub(super) fn register(registry: &mut Registry) -> EventFigures {
        let packets = Family::default();
        let help = "Packets in drop events, by service identity of the pod of this node and verdict";
        registry.register_with_unit("drop_event", help, Unit::Other("packets".into()), packets.clone());
        EventFigures { packets, services: Mutex::new(RecentKeys::at_most(MOST_SERVICES)) }
    }

    pub(super) fn record(&self, service: &str, judgement: Judgement, packets: u64) {
        let evicted = self.services.lock().unwrap_or_else(PoisonError::into_inner).record(&service.to_owned());
        if let Some(evicted) = evicted {
            for judgement in [Judgement::Denied, Judgement::WouldDeny] {
                self.packets.remove(&labels(&evicted, judgement));
            }
        }
        self.packets.get_or_create(&labels(service, judgement)).inc_by(packets);
    }
}

fn labels(service: &str, judgement: Judgement) -> EventLabels {
    [("service", service.to_owned()), ("verdict", judgement.as_str().to_owned())]
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn text(registry: &Registry) -> String {
        let mut text = String::new();
        encode(&mut text, registry).unwrap();
        text
    }

    #[test]
    fn packets_are_counted_by_service_and_verdict() {
        let mut registry = Registry::default();
        let figures = EventFigures::register(&mut registry);
        figures.record("shop", Judgement::Denied, 3);
        figures.record("shop", Judgement::Denied, 2);
        figures.record("shop/front", Judgement::WouldDeny, 1);
        let text = text(&registry);
        for line in [
            r#"drop_event_packets_total{service="shop",verdict="denied"} 5"#,
            r#"drop_event_packets_total{service="shop/front",verdict="would-deny"} 1"#,
        ] {
            assert!(text.lines().any(|l| l == line), "{line} is not in {text}");
        }
    }

    #[test]
    fn services_with_series_are_bounded() {
        let mut registry = Registry::default();
        let figures = EventFigures::register(&mut registry);
        figures.record("first", Judgement::Denied, 1);
        for number in 0..3 * MOST_SERVICES {
            figures.record(&format!("churn-{number}"), Judgement::Denied, 1);
            figures.record("often", Judgement::WouldDeny, 1);
        }
        let text = text(&registry);
        assert_eq!(text.lines().filter(|line| line.starts_with("drop_event_packets_total")).count(), MOST_SERVICES);
        assert!(text.contains(r#"service="often""#) && !text.contains(r#"service="first""#));
    }
}
