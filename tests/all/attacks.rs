//! Attempts to bypass a policy with real packets: none succeeds.

// Denied ports of cluster policies.
mod cluster_policies;
// ICMP errors about flows of other pods.
mod errors;
// Packets whose source is their destination.
mod forged_self;
// Flows that conntrack helpers announce.
mod conntrack_helpers;
// Connection marks of other programs.
mod marks;
// Destinations that a router replaces after conntrack has seen the packet.
mod source_routes;
// Tunnel ports and nodes from flags and Node objects.
mod tunnel_places;
// Packets to tunnels, whose inner source is arbitrary.
mod tunnels;

use std::net::IpAddr;

use kit::frame::send_packets;
use kit::kernel_table::{counted, load_netlink, load_text, nft};
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec};
use nft::Ruleset;
use policy::{Layout, translate};
use serde_json::Value;

use crate::stage::{NODE, namespace, state_of};

/// The addresses of one family that the attacks are about.
#[derive(Debug, Clone, Copy)]
struct Places {
    node: IpAddr,
    /// Isolated in both directions, without any allowed peer.
    closed: IpAddr,
    /// Only `client` may reach it.
    server: IpAddr,
    /// No policy selects it.
    open: IpAddr,
    /// A host of the LAN.
    client: IpAddr,
    /// Another host of the LAN, or a router.
    router: IpAddr,
}

fn places() -> [Places; 2] {
    let of = |texts: [&str; 6]| {
        let [node, closed, server, open, client, router] = texts.map(|text| text.parse().expect("an address"));
        Places { node, closed, server, open, client, router }
    };
    [
        of(["10.0.0.1", "10.1.0.1", "10.1.0.2", "10.1.0.3", "192.0.2.1", "192.0.2.254"]),
        of(["fd00::a", "fd00:1::1", "fd00:1::2", "fd00:1::3", "2001:db8::1", "2001:db8::fe"]),
    ]
}

/// A node with three pods, and the LAN.
fn lab() -> Lab {
    let both = |of: fn(&Places) -> IpAddr| places().iter().map(of).collect::<Vec<IpAddr>>();
    let pod = |name: &str, of: fn(&Places) -> IpAddr| PodSpec { name: name.into(), addresses: both(of) };
    let pods = vec![pod("closed", |p| p.closed), pod("server", |p| p.server), pod("open", |p| p.open)];
    let node = NodeSpec { name: NODE.into(), addresses: both(|p| p.node), pods };
    let outside = [both(|p| p.client), both(|p| p.router)].concat();
    Lab::new(&LabSpec { nodes: vec![node], outside })
}

fn objects() -> Vec<Value> {
    let pod = |name: &str, of: fn(&Places) -> IpAddr| {
        let addresses = places().map(|p| of(&p).to_string());
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        crate::stage::pod(name, NODE, &format!("app={name}"), &addresses)
    };
    let from = places().map(|p| {
        let length = if p.client.is_ipv4() { 32 } else { 128 };
        serde_json::json!({"ipBlock": {"cidr": format!("{}/{length}", p.client)}})
    });
    let policy = |name, spec| crate::stage::policy(name, &format!("app={name}"), spec);
    vec![
        namespace("shop", ""),
        pod("closed", |p| p.closed),
        pod("server", |p| p.server),
        pod("open", |p| p.open),
        policy("closed", serde_json::json!({"policyTypes": ["Ingress", "Egress"]})),
        policy("server", serde_json::json!({"policyTypes": ["Ingress", "Egress"], "ingress": [{"from": from}]})),
    ]
}

fn ruleset(layout: &Layout) -> Ruleset {
    translate(&state_of(&objects()), NODE, layout).ruleset.in_first_generation()
}

/// The lab with the rules of its policies.
fn enforced_lab() -> Lab {
    let lab = lab();
    let layout = Layout::for_table("ringfence").expect("a name");
    lab.node_exec(NODE, || load_netlink(&ruleset(&layout)));
    lab
}

/// The number of packets matching the condition that reach `receiver`'s namespace while `sender` sends these.
fn received(lab: &Lab, receiver: IpAddr, condition: &str, sender: IpAddr, packets: &[Vec<u8>]) -> u64 {
    let table = format!(
        "table inet seen {{\nchain prerouting {{\ntype filter hook prerouting priority -400\n{condition} counter\n}}\n}}\n"
    );
    lab.in_namespace_of(receiver, || load_text(&table));
    lab.in_namespace_of(sender, || send_packets(packets));
    lab.in_namespace_of(receiver, || {
        let received = counted("table inet seen");
        nft("delete table inet seen");
        received
    })
}

/// The number of packets that the chain of the node's table has dropped.
fn dropped(lab: &Lab, chain: &str) -> u64 {
    lab.node_exec(NODE, || counted(&format!("chain inet ringfence {chain}")))
}
