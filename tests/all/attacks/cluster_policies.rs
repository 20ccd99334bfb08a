//! Rules of cluster policies that deny ports, of which everything else passes.

use std::net::{IpAddr, SocketAddr};

use kit::frame::{ip_packet, udp_datagram};
use kit::kernel_table::load_netlink;
use policy::{Layout, translate};
use serde_json::json;

use super::{lab, objects, places, received};
use crate::stage::{NODE, state_of};

const DENIED_PORT: u16 = 53;
const IPV6_HEADER_BYTES: usize = 40;
const IPV4_HEADER_BYTES: usize = 20;
const UDP: u8 = 17;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTHENTICATION: u8 = 51;
const DESTINATION_OPTIONS: u8 = 60;

/// The transport part of a datagram behind another header.
fn behind(header: u8, transport: &[u8]) -> Vec<u8> {
    let header: &[u8] = match header {
        // A length of 24 bytes, with an index, a number and an empty check value (RFC 4302, section 2).
        AUTHENTICATION => &[UDP, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        FRAGMENT => &[UDP, 0, 0, 0, 0, 0, 0, 1],
        ROUTING => &[UDP, 0, 2, 0, 0, 0, 0, 0],
        // Padding (RFC 8200, section 4.2).
        _ => &[UDP, 0, 1, 4, 0, 0, 0, 0],
    };
    [header, transport].concat()
}

/// The ports of a connection tracking entry are those behind the headers; a rule sees what the packet begins with.
#[test]
fn no_header_approves_flow_to_denied_port() {
    for checks_sources in [true, false] {
        headers_approve_nothing(&Layout::for_table("ringfence").unwrap().checking_sources(checks_sources));
    }
}

fn headers_approve_nothing(layout: &Layout) {
    let denied = json!([{"udp": {"destinationPort": {"number": DENIED_PORT}}}]);
    let policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "no-dns"},
        "spec": {
            "tier": "Admin",
            "priority": 1,
            "subject": {"namespaces": {}},
            "egress": [{"action": "Deny", "to": [{"networks": ["0.0.0.0/0", "::/0"]}], "protocols": denied}],
        },
    });
    let mut objects = objects();
    objects.push(policy);
    let state = state_of(&objects);
    let lab = lab();
    lab.node_exec(NODE, || load_netlink(&translate(&state, NODE, layout).ruleset.in_first_generation()));
    for at in places() {
        let (from, to) = (at.open, at.client);
        let datagram =
            |port: u16, to_port: u16| udp_datagram(SocketAddr::new(from, port), SocketAddr::new(to, to_port), b"query");
        let condition = format!("udp dport {DENIED_PORT}");
        let arrived = |packets: &[Vec<u8>]| received(&lab, to, &condition, from, packets);
        assert_eq!(received(&lab, to, "udp dport 54", from, &[datagram(1024, 54)]), 1, "another port of {to}");
        let headers: &[u8] = match to {
            IpAddr::V4(_) => &[AUTHENTICATION],
            IpAddr::V6(_) => &[AUTHENTICATION, FRAGMENT, ROUTING, DESTINATION_OPTIONS, 0],
        };
        for (number, header) in (40_000..).zip(headers) {
            let plain = datagram(number, DENIED_PORT);
            let transport = &plain[if to.is_ipv4() { IPV4_HEADER_BYTES } else { IPV6_HEADER_BYTES }..];
            let hidden = ip_packet(from, to, *header, &behind(*header, transport));
            assert_eq!(arrived(&[hidden, plain.clone(), plain]), 0, "header {header} to {to}");
        }
    }
}
