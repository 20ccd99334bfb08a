//! Gives names to what was observed: who the ends are, which policies decided, and which rule came closest.
//!
//! Names are those of now. The policies may have changed since the packet was judged: where they do not explain it any
//! more, that is said instead.

use jiff::Timestamp;
use nft::Protocol;
use policy::{Cause, Judgement, SideVerdict, Traffic, explain};

use super::ends::Ends;
use super::seen::{Carried, Flow, Observation, Seen};
use crate::api::denial::{Denial, End, EndKind};

pub(crate) fn name(ends: &Ends, observation: &Observation, time: Timestamp) -> Denial {
    let Observation { seen, icmp, count, first: _ } = observation;
    let (source, destination, spoof) = both_ends(ends, seen);
    let unnamed = Denial {
        time: format!("{time:.3}"),
        verdict: seen.judgement,
        cause: seen.cause,
        direction: seen.cause.direction(),
        source,
        destination,
        traffic: traffic(seen, *icmp),
        policies: vec![],
        closest: None,
        would_allow: vec![],
        note: spoof,
        count: *count,
        node: ends.place.node.clone(),
    };
    match (seen.cause.direction(), &seen.carried) {
        (Some(direction), Carried::Flow(flow)) => {
            let explained = explain(ends.state, flow.source, flow.destination, carried_traffic(flow));
            let side = match direction {
                policy::Direction::Egress => explained.egress,
                policy::Direction::Ingress => explained.ingress,
            };
            with_policies(unnamed, side)
        }
        (Some(_), Carried::Frame { .. }) | (None, _) => unnamed,
    }
}

/// What the policies say now, if it is what happened.
fn with_policies(denial: Denial, side: SideVerdict) -> Denial {
    match (denial.verdict, side) {
        (Judgement::Denied, SideVerdict::Denied { isolated_by, closest, would_allow }) => {
            Denial { policies: isolated_by, closest, would_allow, ..denial }
        }
        (Judgement::WouldDeny, SideVerdict::WouldDeny { audited_by, closest }) => {
            Denial { policies: audited_by, closest, ..denial }
        }
        (Judgement::Denied, SideVerdict::Unreadable { reason }) => Denial { note: Some(reason), ..denial },
        (Judgement::Denied | Judgement::WouldDeny, now) => {
            let now = now.to_string();
            let first = now.lines().next().unwrap_or(&now);
            let note = format!("by the policies of now it is {first}: they have changed since");
            Denial { note: Some(note), ..denial }
        }
    }
}

/// The ends, and what has to be said of a source that is not the sender.
fn both_ends(ends: &Ends, seen: &Seen) -> (End, End, Option<String>) {
    let unknown = End { address: None, kind: EndKind::Unknown, pod: None, node: None, cluster: None };
    let (from, to) = match &seen.carried {
        Carried::Flow(flow) => (Some(flow.source), Some(flow.destination)),
        Carried::Frame { .. } => (None, None),
    };
    let by_address = |address: Option<_>| address.map_or(unknown.clone(), |address| ends.of_address(address));
    let sender = || seen.input.as_deref().and_then(|interface| ends.of_interface(interface, from));
    let receiver = || seen.output.as_deref().and_then(|interface| ends.of_interface(interface, to));
    match seen.cause {
        Cause::Egress | Cause::Ingress | Cause::Stray | Cause::UnknownAddress => {
            (by_address(from), by_address(to), None)
        }
        Cause::ForgedSource => {
            let claimed = by_address(from);
            let source = sender().unwrap_or_else(|| End { kind: EndKind::Unknown, pod: None, ..claimed.clone() });
            let note = match from {
                Some(_) if claimed.kind == EndKind::Pod => format!("the source address is that of {claimed}"),
                Some(address) => format!("the source address {address} is not the pod's"),
                None => "the source address is not the pod's".into(),
            };
            (source, by_address(to), Some(note))
        }
        Cause::Tunnel | Cause::OtherProtocol | Cause::RouterAdvertisement => {
            (sender().unwrap_or_else(|| by_address(from)), by_address(to), None)
        }
        Cause::OtherDestination => {
            let source = sender().unwrap_or_else(|| by_address(from));
            (source, receiver().unwrap_or_else(|| by_address(to)), None)
        }
    }
}

pub(super) fn carried_traffic(flow: &Flow) -> Traffic {
    match (Protocol::from_number(flow.protocol), flow.port) {
        (Some(protocol), Some(port)) => Traffic::Port(protocol, port),
        (Some(_) | None, _) => Traffic::Portless,
    }
}

/// IANA numbers.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

fn traffic(seen: &Seen, icmp: Option<u8>) -> String {
    let text = match &seen.carried {
        Carried::Frame { ether_type } => format!("frame {ether_type:#06x}"),
        Carried::Flow(flow) => match (Protocol::from_number(flow.protocol), flow.port, flow.protocol, icmp) {
            (Some(protocol), Some(port), ..) => format!("{port}/{protocol}"),
            (Some(protocol), None, ..) => protocol.to_string(),
            (None, _, ICMP | ICMPV6, Some(kind)) => format!("icmp type {kind}"),
            (None, _, ICMP | ICMPV6, None) => "icmp".into(),
            (None, _, number, _) => format!("protocol {number}"),
        },
    };
    if seen.reply { text + " reply" } else { text }
}
