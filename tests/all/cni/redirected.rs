//! Packets that tc redirects from a pod's interface to another one return after the chain at the pod's interface. So do
//! the packets of pods with limited egress bandwidth.

use std::net::{IpAddr, SocketAddrV6};
use std::process::Command;

use kit::agent_process::{ask_socket, until};
use kit::frame::send_with_free_source;
use kit::kernel_table::nft;
use serde_json::{Value, json};

use super::Place;
use super::edge::{BRIDGE, GATEWAY6, Network, PTP, count_incoming, incoming, neighbour};
use super::forged::Node;
use crate::stage::policy;

/// The bandwidth plugin redirects ingress of the pod's interface to an `ifb` with a queue.
pub(super) fn bandwidth() -> Value {
    json!({"type": "bandwidth", "egressRate": 1_000_000_000, "egressBurst": 100_000_000})
}

fn start<'place>(place: &'place Place, plugins: &[Value], arguments: &[&str]) -> Node<'place> {
    let nowhere = policy("nowhere", "app=web", json!({"policyTypes": ["Egress"]}));
    let node = Node::start_with(place, plugins, &[nowhere], true, arguments);
    neighbour(&node.web, GATEWAY6.into());
    node
}

/// Whether a datagram of the pod `web` with an unused source bypasses its policy. The attack needs no capability.
fn escapes(node: &Node) -> bool {
    let IpAddr::V6(to) = node.addresses["db"] else { panic!("an IPv6 address") };
    let unused = "fd00:1::99".parse().unwrap();
    node.db.sandbox.run(|| count_incoming("udp dport 9"));
    node.web.sandbox.run(|| send_with_free_source(unused, SocketAddrV6::new(to, 9, 0, 0), 5));
    node.db.sandbox.run(incoming) > 0
}

/// Whether the node reflects an answer to another pod.
fn is_reflected(node: &Node) -> bool {
    let IpAddr::V6(other) = node.addresses["other"] else { panic!("an IPv6 address") };
    node.other.sandbox.run(|| count_incoming("icmpv6 type destination-unreachable"));
    node.web.sandbox.run(|| send_with_free_source(other, SocketAddrV6::new(GATEWAY6, 9, 0, 0), 5));
    node.other.sandbox.run(incoming) > 0
}

fn limited_pod_sends_with_own_addresses(network: Network) {
    for (arguments, passes) in [(&[][..], false), (&["--source-check", "off"][..], true)] {
        let place = Place::new();
        let node = start(&place, &[network(&place), bandwidth(), place.ours(json!({}))], arguments);
        if passes {
            until("a forged source gets through", || (escapes(&node) && is_reflected(&node)).then_some(()));
        } else {
            assert!(!escapes(&node) && !is_reflected(&node));
        }
        node.end();
    }
}

#[test]
fn limited_routed_pod_sends_with_own_addresses() {
    limited_pod_sends_with_own_addresses(PTP);
}

#[test]
fn limited_bridged_pod_sends_with_own_addresses() {
    limited_pod_sends_with_own_addresses(BRIDGE);
}

/// Classic BPF that matches half of all packets at random: ld rand; jset #1; ret #-1; ret #0.
const HALF_OF_ALL: &str = "4,32 0 0 4294963256,69 0 1 1,6 0 0 4294967295,6 0 0 0";

/// Redirects the pod's packets to an `ifb` in the pod. Packets that pass it repeatedly on egress get a mark that makes
/// the kernel skip the hooks at the interface (`ifb_ri_tasklet`, `skb_skip_tc_classify`).
fn add_own_ifb() {
    let egress = ["filter", "add", "dev", "eth0", "egress", "bpf", "bytecode", HALF_OF_ALL];
    let redirect = ["action", "mirred", "egress", "redirect", "dev", "ifb0"];
    let commands: [(&str, &[&str]); 4] = [
        ("ip", &["link", "add", "ifb0", "type", "ifb"]),
        ("ip", &["link", "set", "ifb0", "up"]),
        ("tc", &["qdisc", "add", "dev", "eth0", "clsact"]),
        ("tc", &[&egress[..], &redirect].concat()),
    ];
    for (program, arguments) in commands {
        let status = Command::new(program).args(arguments).status().expect("iproute2");
        assert!(status.success(), "{program} {arguments:?}");
    }
}

#[test]
fn own_ifb_leads_past_no_check() {
    for network in [PTP, BRIDGE] {
        for (arguments, passes) in [(&[][..], false), (&["--source-check", "off"][..], true)] {
            let place = Place::new();
            let node = start(&place, &[network(&place), place.ours(json!({}))], arguments);
            node.web.sandbox.run(add_own_ifb);
            if passes {
                until("a forged source gets through", || (escapes(&node) && is_reflected(&node)).then_some(()));
            } else {
                assert!((0..10).all(|_| !escapes(&node) && !is_reflected(&node)));
            }
            node.end();
        }
    }
}

/// The next plugin in the chain creates the queue after ADD of ringfence-cni was answered.
#[test]
fn check_at_prerouting_follows_ingress_qdisc() {
    for network in [PTP, BRIDGE] {
        let place = Place::new();
        let mut node = start(&place, &[network(&place), place.ours(json!({})), bandwidth()], &[]);
        let attached = place.attachments().into_iter().find(|attachment| attachment.pod == "web").unwrap();
        let interface = attached.host_interface.unwrap();
        let is_checked = || {
            let table = node.runtime.on_node(|| nft("list table inet ringfence"));
            table.contains(&format!("chain pod/{interface} "))
        };
        until("the interface is checked at prerouting", || is_checked().then_some(()));
        assert!(!escapes(&node) && !is_reflected(&node));
        node.agent.until("the status names the interface", |_| {
            let status = ask_socket(&place.path("run"), "/v1/status").body;
            (status.contains("tc may redirect packets of pods at") && status.contains(&interface)).then_some(())
        });
        node.runtime.on_node(|| {
            for attachment in place.attachments() {
                let interface = attachment.host_interface.unwrap();
                let deleted = ["clsact", "ingress"].map(|kind| {
                    let words = ["qdisc", "del", "dev", &interface, kind];
                    Command::new("tc").args(words).status().expect("iproute2").success()
                });
                assert!(deleted.contains(&true), "{interface}");
            }
        });
        until("the chains go with the qdiscs", || (!is_checked()).then_some(()));
        let table = node.runtime.on_node(|| nft("list table inet ringfence"));
        assert!(table.contains("pod-ports") && !table.contains("deny/router"), "{table}");
        assert!(!escapes(&node));
        node.end();
    }
}
