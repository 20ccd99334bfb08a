//! A pod reaches itself through a Service; an outside host that forges the pod's address as its source does not.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use kit::frame::{send_packets, udp_datagram};
use kit::kernel_table::{counted, load_text};
use kit::lab::{Lab, LabSpec, NodeSpec};
use serde_json::{Value, json};

use super::forged::Node;
use super::{Families, NODE, NODE_ADDRESS, OUTSIDE, Place, Pod};

const NODE_ADDRESS6: &str = "2001:db8::10";
const OUTSIDE6: &str = "2001:db8::1";
const SERVICE_PORT: u16 = 80;

fn dual_stack_place() -> Place {
    let both = |texts: [&str; 2]| texts.map(|text| text.parse::<IpAddr>().unwrap()).to_vec();
    let node = NodeSpec { name: NODE.into(), addresses: both([NODE_ADDRESS, NODE_ADDRESS6]), pods: Vec::new() };
    let lab = Lab::new(&LabSpec { nodes: vec![node], outside: both([OUTSIDE, OUTSIDE6]) });
    Place { lab, folder: tempfile::TempDir::new().unwrap() }
}

/// DNAT from the node's Service port to the pod's port.
fn serve(node: &Node, front: IpAddr, pod: IpAddr) {
    let (family, back) = match pod {
        IpAddr::V4(address) => ("ip", format!("{address}:9")),
        IpAddr::V6(address) => ("ip6", format!("[{address}]:9")),
    };
    let table = format!(
        "table {family} service {{ }}\ndelete table {family} service\n\
         table {family} service {{\nchain prerouting {{\ntype nat hook prerouting priority dstnat\n\
         {family} daddr {front} udp dport {SERVICE_PORT} dnat to {back}\n}}\n}}\n"
    );
    node.runtime.on_node(|| load_text(&table));
}

/// The number of datagrams to the pod's port that reach its namespace during `send`.
fn received(pod: &Pod, send: impl FnOnce()) -> u64 {
    let count = "table inet seen { }\ndelete table inet seen\n\
                 table inet seen {\nchain prerouting {\ntype filter hook prerouting priority -400\n\
                 udp dport 9 counter\n}\n}\n";
    pod.sandbox.run(|| load_text(count));
    send();
    pod.sandbox.run(|| counted("table inet seen"))
}

/// `web` is isolated for egress, `other` for ingress.
fn only_the_pod_reaches_itself(network: fn(&Place) -> Value) {
    for v6 in [false, true] {
        let place = dual_stack_place();
        let node = Node::start(&place, network(&place), v6, &[]);
        let texts = if v6 { [NODE_ADDRESS6, OUTSIDE6] } else { [NODE_ADDRESS, OUTSIDE] };
        let [front, outside] = texts.map(|text| text.parse::<IpAddr>().unwrap());
        for (name, pod) in [("web", &node.web), ("other", &node.other)] {
            let own = node.addresses[name];
            serve(&node, front, own);
            let forged = udp_datagram(SocketAddr::new(own, 40_000), SocketAddr::new(front, SERVICE_PORT), b"forged");
            let forge = || place.lab.in_namespace_of(outside, || send_packets(std::slice::from_ref(&forged)));
            assert_eq!(received(pod, forge), 0, "a forged source reaches {name} at {own}");
            let from_itself = received(pod, || {
                pod.sandbox.run(|| {
                    let socket = UdpSocket::bind((own, 40_000)).unwrap();
                    socket.send_to(b"to itself", (front, SERVICE_PORT)).unwrap();
                });
            });
            assert_eq!(from_itself, 1, "{name} reaches itself at {own}");
            assert_eq!(received(pod, forge), 0, "a forged source reaches {name} at {own} in the pod's own flow");
        }
        node.end();
    }
}

#[test]
fn only_routed_pod_reaches_itself_through_service() {
    only_the_pod_reaches_itself(|place| place.ptp(Families::Dual));
}

#[test]
fn only_bridged_pod_reaches_itself_through_service() {
    only_the_pod_reaches_itself(|place| {
        let mut bridge = place.bridge(Families::Dual);
        bridge["hairpinMode"] = json!(true);
        bridge
    });
}
