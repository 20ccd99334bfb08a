//! Flows between a pair of endpoints: the ports, and how often each was seen.

use std::collections::BTreeMap;

use jiff::Timestamp;
use policy::{ClusterState, Direction, EndSeen, FlowSeen, Traffic, WhoSeen};

use crate::api::audit::AuditedFlow;
use crate::api::drops::{DropEnd, EndKind};
use crate::reports::coverage::written;

/// Ports distinguished between two endpoints. A client of more scans ports, or gets them assigned by its protocol; no
/// list of ports describes that.
const PORTS: usize = 32;

const MANY_PORTS: &str = "many ports";

/// The endpoints of flows, in the original direction.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EndPair {
    pub(super) direction: Direction,
    pub(super) source: DropEnd,
    pub(super) destination: DropEnd,
}

#[derive(Debug, Default)]
pub(super) struct Ports {
    /// The most recently seen ports, each with its text.
    pub(super) each: BTreeMap<(Traffic, String), PortCount>,
    /// There were more ports; they are reported as one entry.
    pub(super) many: bool,
    packets: u64,
}

#[derive(Debug)]
pub(super) struct PortCount {
    packets: u64,
    last: Timestamp,
}

impl Ports {
    pub(super) fn add(&mut self, port: (Traffic, String), packets: u64, at: Timestamp) {
        self.packets += packets;
        let counted = self.each.entry(port).or_insert(PortCount { packets: 0, last: at });
        counted.packets += packets;
        counted.last = at;
        if self.each.len() > PORTS {
            self.many = true;
            if let Some((oldest, _)) = self.oldest() {
                self.each.remove(&oldest);
            }
        }
    }

    pub(super) fn oldest(&self) -> Option<((Traffic, String), Timestamp)> {
        let oldest = self.each.iter().min_by_key(|(_, counted)| counted.last)?;
        Some((oldest.0.clone(), oldest.1.last))
    }

    /// Flows that the current policies would still deny. If there are many ports, the latest represent all.
    pub(super) fn remaining(&self, state: &ClusterState, pair: &EndPair) -> Vec<AuditedFlow> {
        let is_denied = |traffic: Traffic| pair.seen(traffic).is_none_or(|flow| flow.is_denied(state));
        let denied = self.each.iter().filter(|((traffic, _), _)| is_denied(*traffic));
        let flow = |traffic: &str, count: u64, last: Timestamp| AuditedFlow {
            direction: pair.direction,
            source: pair.source.clone(),
            destination: pair.destination.clone(),
            traffic: traffic.to_owned(),
            count,
            last: written(last),
        };
        match self.many {
            true => {
                let last = denied.map(|(_, counted)| counted.last).max();
                last.map(|last| flow(MANY_PORTS, self.packets, last)).into_iter().collect()
            }
            false => denied.map(|((_, words), counted)| flow(words, counted.packets, counted.last)).collect(),
        }
    }
}

impl EndPair {
    /// Input for suggestions: the policy's pod and its peer, with the names of that time. `None` without addresses.
    pub(super) fn seen(&self, traffic: Traffic) -> Option<FlowSeen> {
        let (source, destination) = (end_seen(&self.source)?, end_seen(&self.destination)?);
        let (local, peer) = match self.direction {
            Direction::Egress => (source, destination),
            Direction::Ingress => (destination, source),
        };
        Some(FlowSeen { direction: self.direction, local, peer, traffic })
    }
}

fn end_seen(end: &DropEnd) -> Option<EndSeen> {
    let who = match (end.pod.as_deref().and_then(|pod| pod.parse().ok()), end.kind) {
        (Some(pod), _) => WhoSeen::Pod(pod),
        (None, EndKind::UnknownPod) => WhoSeen::UnknownPod,
        (None, EndKind::Pod | EndKind::Node | EndKind::RemoteCluster | EndKind::World | EndKind::Unknown) => {
            WhoSeen::NoPod
        }
    };
    Some(EndSeen { address: end.address?, who })
}
