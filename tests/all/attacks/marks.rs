//! Connection marks that other programs write.

use std::net::SocketAddr;

use kit::frame::udp_datagram;
use kit::kernel_table::load_text;

use super::{enforced_lab, places, received};
use crate::stage::NODE;

/// NetBird writes 0x1bd10, whose upper half is 1.
#[test]
fn foreign_connection_mark_is_not_an_approval() {
    let lab = enforced_lab();
    let marking = "table inet netbird {\nchain prerouting {\ntype filter hook prerouting priority mangle\n\
                   ct mark set 0x1bd10\n}\n}\n";
    lab.node_exec(NODE, || load_text(marking));
    for at in places() {
        for (destination, arrives) in [(at.closed, 0), (at.server, 1)] {
            let to = SocketAddr::new(destination, 53);
            let packet = udp_datagram(SocketAddr::new(at.client, 40_000), to, b"requests");
            assert_eq!(received(&lab, destination, "udp dport 53", at.client, &[packet]), arrives, "to {to}");
        }
    }
}
