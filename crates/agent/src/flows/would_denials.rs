//! Connections that audited ClusterNetworkPolicies would deny. No rule of the kernel evaluates these policies: they are
//! evaluated for each connection that is attributed, and reported as the rules report flows that would be denied.

use std::collections::BTreeMap;
use std::sync::Arc;

use flow::{Connection, FlowKey, PolicyAction, SideTrace, TraceVerdict};
use jiff::{SignedDuration, Timestamp};
use policy::{Direction, Judgement};
use tokio::sync::mpsc;

use crate::metrics::Metrics;
use crate::reports::{Carried, FirstPacket, Flow, NAMED_PER_READ, Observation, Observed, PacketGroup};

/// Interval between two reports of one flow, as for flows that rules report.
const REPORTED_EVERY: SignedDuration = SignedDuration::from_secs(5);

/// Bound on flows that wait for their report: as many as one table of the kernel has. Connections of further flows are
/// only counted.
const MOST_WAITING: usize = 4096;

#[derive(Debug)]
pub(crate) struct WouldDenials {
    observations: mpsc::Sender<Observed>,
    metrics: Arc<Metrics>,
    /// First packet and number of connections by flow.
    waiting: BTreeMap<PacketGroup, (FirstPacket, u64)>,
    reported: Option<Timestamp>,
}

impl WouldDenials {
    pub(crate) fn new(observations: mpsc::Sender<Observed>, metrics: Arc<Metrics>) -> WouldDenials {
        WouldDenials { observations, metrics, waiting: BTreeMap::new(), reported: None }
    }

    /// Records a connection that has just become known.
    pub(super) fn record(&mut self, connection: &Connection, key: &FlowKey) {
        for (side, direction) in [(&key.egress, Direction::Egress), (&key.ingress, Direction::Ingress)] {
            if is_denied_by_audited_rule(side) {
                self.add(connection, direction);
            }
        }
    }

    fn add(&mut self, connection: &Connection, direction: Direction) {
        let (asked, reply) = (&connection.id.original, &connection.reply);
        let flow =
            Flow { source: asked.source, destination: reply.source, protocol: asked.protocol, port: reply.source_port };
        let group = PacketGroup {
            judgement: Judgement::WouldDeny,
            cause: direction.into(),
            reply: false,
            carried: Carried::Flow(flow),
            input: None,
            output: None,
        };
        if self.waiting.len() >= MOST_WAITING && !self.waiting.contains_key(&group) {
            return self.metrics.drops.leave_out_connection();
        }
        let first = FirstPacket { icmp: asked.icmp_type, asked: Some((asked.destination, asked.destination_port)) };
        self.waiting.entry(group).or_insert((first, 0)).1 += 1;
    }

    /// Sends what has waited to the event loop, if it is time. What its queue has no room for waits for the next time.
    pub(super) fn report(&mut self, now: Timestamp) {
        let is_due = self.reported.is_none_or(|reported| now.duration_since(reported).abs() >= REPORTED_EVERY);
        if self.waiting.is_empty() || !is_due {
            return;
        }
        self.reported = Some(now);
        for _ in 0..NAMED_PER_READ {
            let Some((seen, (first, count))) = self.waiting.pop_first() else { return };
            let observed = Observed { at: now, observation: Observation { seen: seen.clone(), first, count } };
            if self.observations.try_send(observed).is_err() {
                self.waiting.insert(seen, (first, count));
                return;
            }
        }
    }
}

/// Whether the side's rules are enforced here, pass the flow, and would not with an audited rule. Flows that audited
/// NetworkPolicies would deny are reported by the kernel's rules.
fn is_denied_by_audited_rule(side: &SideTrace) -> bool {
    let denies = |hit: &flow::PolicyHit| hit.tier.is_some() && hit.action == PolicyAction::Deny;
    side.enforced_here && side.verdict == TraceVerdict::WouldDeny && side.pending.iter().any(denies)
}

#[cfg(test)]
mod tests {
    use flow::{ConnectionId, Endpoint, EndpointKind, PolicyHit, PolicyTier, Tuple, Verdict};

    use super::*;

    fn connection(id: u32, port: u16) -> Connection {
        let tuple = |source: &str, destination: &str, source_port, destination_port| Tuple {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: 6,
            source_port: Some(source_port),
            destination_port: Some(destination_port),
            icmp_type: None,
        };
        Connection {
            id: ConnectionId { id, zone: 0, original: tuple("10.1.0.1", "10.96.0.1", 40000, 80) },
            reply: tuple("10.1.0.2", "10.1.0.1", port, 40000),
            mark: 0,
            volume: None,
            started: None,
        }
    }

    fn key(tier: Option<PolicyTier>, enforced_here: bool) -> FlowKey {
        let hit = PolicyHit {
            kind: "ClusterNetworkPolicy".into(),
            namespace: "".into(),
            name: "a".into(),
            tier,
            rule: Some("spec.egress[0]".into()),
            rule_name: None,
            action: PolicyAction::Deny,
        };
        let side =
            |verdict, pending| SideTrace { verdict, enforced_here, enforced: vec![], pending, passed_by: vec![] };
        let end = Endpoint {
            kind: EndpointKind::World,
            namespace: None,
            name: None,
            service: None,
            cluster: None,
            network: None,
        };
        FlowKey {
            source: end.clone(),
            destination: end,
            protocol: 6,
            port: Some(8080),
            icmp_type: None,
            service: None,
            verdict: Verdict::WouldDeny,
            drop_cause: None,
            egress: side(TraceVerdict::WouldDeny, vec![hit]),
            ingress: side(TraceVerdict::NotIsolated, vec![]),
        }
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn audited_rules_report_connections_in_batches() {
        let (observations, mut observed) = mpsc::channel(1);
        let mut denials = WouldDenials::new(observations, Arc::new(Metrics::new()));
        let admin = Some(PolicyTier::Admin);
        denials.record(&connection(1, 8080), &key(admin, true));
        // Neither the rules of another node nor NetworkPolicies, which the kernel reports.
        denials.record(&connection(2, 8081), &key(admin, false));
        denials.record(&connection(3, 8082), &key(None, true));
        denials.report(at(0));
        let Observed { at: _, observation } = observed.try_recv().unwrap();
        let Carried::Flow(flow) = observation.seen.carried else { panic!("{observation:?}") };
        assert_eq!((flow.destination.to_string().as_str(), flow.port), ("10.1.0.2", Some(8080)));
        assert_eq!((observation.seen.judgement, observation.count), (Judgement::WouldDeny, 1));
        assert_eq!(observation.first.asked, Some(("10.96.0.1".parse().unwrap(), Some(80))));
        assert!(observed.try_recv().is_err());

        for id in 4..7 {
            denials.record(&connection(id, 8080), &key(admin, true));
        }
        denials.record(&connection(7, 8081), &key(admin, true));
        denials.report(at(4));
        assert!(observed.try_recv().is_err(), "5 s have not passed");
        denials.report(at(5));
        assert_eq!(observed.try_recv().unwrap().observation.count, 3);
        denials.report(at(10));
        assert_eq!(observed.try_recv().unwrap().observation.count, 1, "the queue had no room before");
    }

    #[test]
    fn waiting_flows_are_bounded() {
        let (observations, _observed) = mpsc::channel(1);
        let mut denials = WouldDenials::new(observations, Arc::new(Metrics::new()));
        for port in 0..=u16::try_from(MOST_WAITING).unwrap() {
            denials.record(&connection(port.into(), port), &key(Some(PolicyTier::Admin), true));
        }
        assert_eq!(denials.waiting.len(), MOST_WAITING);
    }
}
