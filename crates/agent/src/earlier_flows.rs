//! Deletes conntrack entries of earlier pods that had the addresses of a new one.
//!
//! Rules judge a flow by the end that opened it. For a flow that an earlier pod opened, that is the new pod, so that packets
//! of the other end pass as replies although the new pod is isolated for ingress.

use std::collections::BTreeSet;
use std::net::IpAddr;

use nfnetlink::{ChangeFlowsError, ListedFlow, delete_flows};

/// `IPS_ASSURED`
const ASSURED: u32 = 1 << 2;

/// IANA protocol number.
const TCP: u8 = 6;

/// Deletes the entries of which one of the addresses is an end, other than those of established TCP connections: conntrack would
/// take the next packet of either end for the begin of a flow, and the end that did not open the connection for the one that
/// did. A SYN to the new pod does not belong to such an entry. Returns the number of deleted entries.
pub(crate) fn delete_earlier_flows(addresses: &BTreeSet<IpAddr>) -> Result<usize, ChangeFlowsError> {
    delete_flows(|flow| is_of(flow, addresses))
}

fn is_of(flow: &ListedFlow, addresses: &BTreeSet<IpAddr>) -> bool {
    let [original, reply] = &flow.tuples;
    let is_established = original.protocol == TCP && flow.status & ASSURED != 0;
    let ends = [original.source, original.destination, reply.source, reply.destination];
    !is_established && ends.iter().any(|address| addresses.contains(address))
}

#[cfg(test)]
mod tests {
    use nfnetlink::{FlowIdentity, TrackedTuple};

    use super::*;

    fn flow(protocol: u8, status: u32) -> ListedFlow {
        let tuple = |source: &str, destination: &str| TrackedTuple {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol,
            source_port: Some(1024),
            destination_port: Some(80),
            icmp_type: None,
        };
        // A Service, and a masqueraded client.
        let tuples = [tuple("10.0.0.1", "10.96.0.1"), tuple("10.0.0.2", "192.0.2.1")];
        ListedFlow { identity: FlowIdentity { family: 2, original: vec![], zone: None }, tuples, status }
    }

    #[test]
    fn each_end_counts_unless_connection_is_established() {
        let is_deleted = |flow, address: &str| is_of(&flow, &[address.parse().unwrap()].into());
        for address in ["10.0.0.1", "10.96.0.1", "10.0.0.2", "192.0.2.1"] {
            assert!(is_deleted(flow(17, ASSURED), address), "{address}");
            assert!(is_deleted(flow(TCP, 0), address), "{address}");
            assert!(!is_deleted(flow(TCP, ASSURED), address), "{address}");
        }
        assert!(!is_deleted(flow(17, 0), "10.0.0.3"));
    }
}
