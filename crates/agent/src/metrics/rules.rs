//! Packets of drop events by the rule of a ClusterNetworkPolicy that denies them. The number of rules is bounded.

use std::sync::{Mutex, PoisonError};

use policy::{ClusterRuleName, Judgement};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::{Registry, Unit};

use super::recent_keys::RecentKeys;

/// Maximum number of rules with series: 10 policies of 25 rules, as many as the API allows in one direction. The one
/// whose last event is the oldest is evicted for a new one.
const MOST_RULES: usize = 256;

type RuleLabels = [(&'static str, String); 5];

#[derive(Debug)]
pub(super) struct RuleFigures {
    packets: Family<RuleLabels, Counter>,
    rules: Mutex<RecentKeys<RuleLabels>>,
}

impl RuleFigures {
    pub(super) fn register(registry: &mut Registry) -> RuleFigures {
        let packets = Family::default();
        let help = "Packets in drop events that a rule of a ClusterNetworkPolicy denies, or would deny, by rule";
        registry.register_with_unit("drop_event_rule", help, Unit::Other("packets".into()), packets.clone());
        RuleFigures { packets, rules: Mutex::new(RecentKeys::at_most(MOST_RULES)) }
    }

    pub(super) fn record(&self, rule: &ClusterRuleName, judgement: Judgement, packets: u64) {
        let labels = labels(rule, judgement);
        if let Some(evicted) = self.rules.lock().unwrap_or_else(PoisonError::into_inner).record(&labels) {
            self.packets.remove(&evicted);
        }
        self.packets.get_or_create(&labels).inc_by(packets);
    }
}

fn labels(rule: &ClusterRuleName, judgement: Judgement) -> RuleLabels {
    let name = rule.name.as_deref().map_or_else(String::new, policy::plain);
    [
        ("tier", rule.tier.as_str().to_owned()),
        ("policy", rule.policy.clone()),
        ("rule", rule.field.clone()),
        ("name", name),
        ("verdict", judgement.as_str().to_owned()),
    ]
}

#[cfg(test)]
mod tests {
    use policy::{RuleAction, Tier};
    use prometheus_client::encoding::text::encode;

    use super::*;

    fn rule(policy: &str) -> ClusterRuleName {
        ClusterRuleName {
            tier: Tier::Admin,
            policy: policy.into(),
            field: "spec.egress[1]".into(),
            name: Some("no databases".into()),
            action: RuleAction::Deny,
            unclear: false,
        }
    }

    #[test]
    fn packets_are_counted_by_bounded_rules() {
        let mut registry = Registry::default();
        let figures = RuleFigures::register(&mut registry);
        for number in 0..2 * MOST_RULES {
            figures.record(&rule(&format!("churn-{number}")), Judgement::Denied, 1);
            figures.record(&rule("often"), Judgement::WouldDeny, 2);
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let series: Vec<&str> = text.lines().filter(|line| line.starts_with("drop_event_rule_packets_total")).collect();
        assert_eq!(series.len(), MOST_RULES);
        let often = concat!(
            r#"drop_event_rule_packets_total{tier="admin",policy="often",rule="spec.egress[1]","#,
            r#"name="no databases",verdict="would-deny"} 1024"#
        );
        assert!(series.contains(&often), "{text}");
    }
}
