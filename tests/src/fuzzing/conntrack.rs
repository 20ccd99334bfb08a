//! Fuzzes the decoder of conntrack messages.

use nfnetlink::{
    FlowEvent, TrackedFlow, TrackedTuple, decode_flow_count, decode_flow_events, decode_listed_flows,
    decode_marked_flows, decode_tracked_flows,
};

/// Protocols whose tuples have a type instead of ports, and the one whose keys are not ports.
const ICMP: [u8; 2] = [1, 58];
const GRE: u8 = 47;

/// Bytes as a datagram about conntrack entries. An entry has addresses of one family in each direction, and ports or a
/// type but not both; an event has the same fields in a dump.
///
/// # Panics
/// If that does not hold.
pub fn conntrack(bytes: &[u8]) {
    let Some((&kind, bytes)) = bytes.split_first() else { return };
    match kind % 4 {
        0 => {
            let events = decode_flow_events(bytes).unwrap_or_default();
            events.iter().for_each(|event| check(flow(event)));
            if let Ok(listed) = decode_tracked_flows(bytes) {
                let is_listed = |event: &&FlowEvent| matches!(event, FlowEvent::New(_));
                let is_contained = |event: &FlowEvent| listed.contains(flow(event));
                assert!(events.iter().filter(is_listed).all(is_contained), "{events:?} {listed:?}");
            }
        }
        1 => decode_tracked_flows(bytes).unwrap_or_default().iter().for_each(check),
        2 => drop((decode_marked_flows(bytes), decode_listed_flows(bytes))),
        _ => drop(decode_flow_count(bytes)),
    }
}

fn flow(event: &FlowEvent) -> &TrackedFlow {
    match event {
        FlowEvent::New(flow) | FlowEvent::Destroyed(flow) => flow,
    }
}

fn check(flow: &TrackedFlow) {
    for tuple in [&flow.original, &flow.reply] {
        let TrackedTuple { source, destination, protocol, source_port, destination_port, icmp_type } = tuple;
        assert_eq!(source.is_ipv4(), destination.is_ipv4(), "{tuple:?}");
        assert_eq!(icmp_type.is_some(), ICMP.contains(protocol), "{tuple:?}");
        let has_port = source_port.is_some() || destination_port.is_some();
        assert!(!has_port || (icmp_type.is_none() && *protocol != GRE), "{tuple:?}");
    }
}
