//! Policies between pods of a bridge hold only if the bridge calls the IP hooks.

use std::path::Path;

use agent::doctor::{Check, cheap};

use super::{doctor, found, severities, sh};
use crate::stage::{NODE, Stage};

const SETTINGS: &str = "/proc/sys/net/bridge/bridge-nf-call-ip";

/// A node with two pods on a bridge that calls no hooks.
fn bridged() -> Stage {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1", "fd00:1::1"]), ("shop/b", &["10.1.0.2", "fd00:1::2"])]);
    sh(
        &stage,
        "ip link add cni0 type bridge
         for link in $(ip -o link show type veth | sed 's/^[0-9]*: \\([^@:]*\\).*/\\1/'); do
             ip link set \"$link\" master cni0
         done
         ip address add 10.1.0.254/24 dev cni0
         ip address add fd00:1::ff/64 dev cni0 nodad
         ip link set cni0 up",
    );
    call_hooks(&stage, 0, 0);
    stage
}

fn call_hooks(stage: &Stage, ipv4: u8, ipv6: u8) {
    sh(stage, &format!("echo {ipv4} > {SETTINGS}tables; echo {ipv6} > {SETTINGS}6tables"));
}

/// The checks that would keep an agent in the node's namespace from being ready.
fn obstacles(stage: &Stage) -> Vec<Check> {
    let run_dir = stage.run_dir();
    stage.lab.node_exec(NODE, || cheap(Path::new("/"), &run_dir, true)).into_iter().map(|finding| finding.id).collect()
}

#[test]
fn bridge_without_netfilter_hooks_is_error_per_family() {
    let stage = bridged();
    assert_eq!(severities(&stage, "bridge-nf-call"), ["error", "error"]);
    assert!(found(&stage, "bridge-nf-call")[0].1.contains("bridge cni0 are not enforced for IPv4"));
    assert_eq!(obstacles(&stage), [Check::BridgeNfCall, Check::BridgeNfCall]);
    assert_eq!(doctor(&stage, &["--no-self-test"]).code, Some(1));
    call_hooks(&stage, 1, 0);
    assert_eq!(severities(&stage, "bridge-nf-call"), ["error"]);
    assert_eq!(obstacles(&stage), [Check::BridgeNfCall]);
    call_hooks(&stage, 1, 1);
    assert_eq!(severities(&stage, "bridge-nf-call"), ["ok"]);
    assert_eq!(obstacles(&stage), []);
}

#[test]
fn per_bridge_netfilter_switches_suffice() {
    let stage = bridged();
    sh(&stage, "ip link set cni0 type bridge nf_call_iptables 1 nf_call_ip6tables 1");
    assert_eq!(severities(&stage, "bridge-nf-call"), ["ok"]);
    assert_eq!(obstacles(&stage), []);
}

#[test]
fn bridge_without_pods_needs_no_netfilter_hooks() {
    let stage = Stage::with_pods(&[("shop/a", &["10.1.0.1"])]);
    sh(
        &stage,
        "ip link add empty0 type bridge; ip link add one type veth peer name two; ip link set one master empty0",
    );
    call_hooks(&stage, 0, 0);
    assert_eq!(severities(&stage, "bridge-nf-call"), ["ok"]);
    assert_eq!(obstacles(&stage), []);
}
