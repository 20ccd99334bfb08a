//! A pod may reach itself, and a forged source that equals the destination does not pass as the pod.

use std::net::SocketAddr;

use kit::frame::udp_datagram;
use kit::kernel_table::load_text;

use super::{dropped, enforced_lab, places, received};
use crate::stage::NODE;

#[test]
fn a_forged_source_equal_to_destination_is_denied() {
    let lab = enforced_lab();
    for at in places() {
        let forged = udp_datagram(SocketAddr::new(at.closed, 40_000), SocketAddr::new(at.closed, 9), b"forged");
        assert_eq!(received(&lab, at.closed, "udp dport 9", at.client, &[forged]), 0, "{at:?}");
    }
    assert_eq!(dropped(&lab, "deny/egress"), 2);
}

#[test]
fn a_pod_reaches_itself_through_a_service() {
    for masquerade in ["", "chain postrouting {\ntype nat hook postrouting priority srcnat;\nmasquerade\n}\n"] {
        let lab = enforced_lab();
        for at in places() {
            let (family, back) = match at.closed {
                std::net::IpAddr::V4(address) => ("ip", format!("{address}:9")),
                std::net::IpAddr::V6(address) => ("ip6", format!("[{address}]:9")),
            };
            let service = SocketAddr::new(at.router, 80);
            let translation = format!(
                "table {family} nat {{\nchain prerouting {{\ntype nat hook prerouting priority dstnat;\n\
                 {family} daddr {} udp dport 80 dnat to {back}\n}}\n{masquerade}}}\n",
                at.router
            );
            lab.node_exec(NODE, || load_text(&translation));
            let request = udp_datagram(SocketAddr::new(at.closed, 40_000), service, b"to itself");
            assert_eq!(received(&lab, at.closed, "udp dport 9", at.closed, &[request]), 1, "{at:?} {masquerade}");
        }
    }
}
