//! ICMP errors about flows: conntrack marks an error as `related` whoever sends it.

use std::net::{IpAddr, SocketAddr};

use kit::frame::{udp_datagram, unreachable_packet};
use kit::kernel_table::load_text;
use kit::lab::Lab;

use super::{Places, dropped, enforced_lab, places, received};
use crate::stage::NODE;

/// Opens a flow over UDP with one datagram, and returns the datagram as its destination receives it.
fn open_flow(lab: &Lab, from: SocketAddr, to: SocketAddr, over: SocketAddr) -> Vec<u8> {
    let condition = format!("udp dport {}", to.port());
    assert_eq!(received(lab, to.ip(), &condition, from.ip(), &[udp_datagram(from, over, b"requests")]), 1);
    udp_datagram(from, to, b"requests")
}

/// The number of errors from `sender` to `to` that arrive.
fn errors(lab: &Lab, sender: IpAddr, to: IpAddr, quoted: &[u8]) -> u64 {
    let condition =
        if to.is_ipv4() { "icmp type destination-unreachable" } else { "icmpv6 type destination-unreachable" };
    received(lab, to, condition, sender, &[unreachable_packet(sender, to, quoted)])
}

/// A flow of a host of the LAN, at the port, and the datagram that its destination receives.
fn flow_from_client(lab: &Lab, at: &Places, destination: IpAddr, port: u16) -> Vec<u8> {
    let to = SocketAddr::new(destination, port);
    open_flow(lab, SocketAddr::new(at.client, 40_000), to, to)
}

#[test]
fn a_pod_reports_no_error_of_foreign_flows() {
    let lab = enforced_lab();
    for at in places() {
        let to_open = flow_from_client(&lab, &at, at.open, 53);
        let to_server = flow_from_client(&lab, &at, at.server, 53);
        assert_eq!(errors(&lab, at.closed, at.client, &to_open), 0, "out of an isolated pod");
        assert_eq!(errors(&lab, at.open, at.client, &to_server), 0, "about an approved flow");
        // Into an isolated pod: the error is about a datagram that this pod has sent.
        let reply = udp_datagram(SocketAddr::new(at.server, 53), SocketAddr::new(at.client, 40_000), b"replying");
        assert_eq!(errors(&lab, at.open, at.server, &reply), 0, "into an isolated pod");
    }
    assert_eq!(dropped(&lab, "deny/error"), 6);
}

#[test]
fn errors_of_flow_ends_and_routers_pass() {
    let lab = enforced_lab();
    for at in places() {
        for destination in [at.open, at.server] {
            let request = flow_from_client(&lab, &at, destination, 53);
            assert_eq!(errors(&lab, destination, at.client, &request), 1, "of the destination");
            let reply = udp_datagram(SocketAddr::new(destination, 53), SocketAddr::new(at.client, 40_000), b"replying");
            assert_eq!(errors(&lab, at.client, destination, &reply), 1, "of the source");
            assert_eq!(errors(&lab, at.router, destination, &reply), 1, "of a router");
        }
    }
    assert_eq!(dropped(&lab, "deny/error"), 0);
}

/// The error quotes the pod's address, which conntrack translates back into the Service's address.
#[test]
fn errors_of_service_flows_come_from_its_pod() {
    let lab = enforced_lab();
    let at = places()[0];
    let service: SocketAddr = "10.0.0.1:5353".parse().expect("an address");
    let translation = format!(
        "table ip nat {{\nchain prerouting {{\ntype nat hook prerouting priority dstnat;\n\
         ip daddr {} udp dport {} dnat to {}:53\n}}\n}}\n",
        service.ip(),
        service.port(),
        at.server
    );
    lab.node_exec(NODE, || load_text(&translation));
    let to = SocketAddr::new(at.server, 53);
    let request = open_flow(&lab, SocketAddr::new(at.client, 40_000), to, service);
    assert_eq!(errors(&lab, at.open, at.client, &request), 0, "of another pod");
    assert_eq!(errors(&lab, at.server, at.client, &request), 1, "of the Service's pod");
}
