//! Policies between pods of a bridge hold only if the bridge calls the IP hooks.

use std::process::Command;

use agent::doctor::Check;
use kit::cni_runtime::Sandbox;

use super::{assert_unready_until, doctor, found, obstacles, severities, sh};
use crate::stage::Stage;

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

/// Such a packet has a route before any hook of IP has seen it, which is how rules recognise judged packets.
#[test]
fn metadata_tunnel_on_bridge_without_hooks_is_error() {
    let stage = bridged();
    let about =
        || found(&stage, "bridge-nf-call").into_iter().filter(|(_, text)| text.contains("collect-metadata")).count();
    sh(&stage, "ip link add vxlan0 type vxlan dstport 4789 id 7; ip link set vxlan0 master cni0");
    assert_eq!(about(), 0);
    sh(&stage, "ip link delete vxlan0; ip link add vxlan0 type vxlan dstport 4789 external");
    sh(&stage, "ip link set vxlan0 master cni0");
    assert_eq!(about(), 1);
    call_hooks(&stage, 1, 1);
    assert_eq!(severities(&stage, "bridge-nf-call"), ["ok"]);
}

/// The bridge forwards frames of such interfaces by its output hook.
#[test]
fn macvlan_on_bridge_is_error_until_removed() {
    let stage = bridged();
    call_hooks(&stage, 1, 1);
    for kind in ["macvlan", "macvtap"] {
        assert_eq!(severities(&stage, "bridge-macvlan"), ["ok"]);
        assert_eq!(obstacles(&stage), []);
        sh(&stage, &format!("ip link add upper0 link cni0 type {kind} mode bridge"));
        assert!(found(&stage, "bridge-macvlan")[0].1.contains(&format!("on bridge cni0 (upper0 ({kind}))")));
        assert_eq!(obstacles(&stage), [Check::BridgeMacvlan]);
        let away = Sandbox::new();
        sh(&stage, &format!("ip link set upper0 netns {}", away.path()));
        let set = |words: &str| {
            away.run(|| assert!(Command::new("ip").args(words.split(' ')).status().unwrap().success(), "{words}"));
        };
        set("link set upper0 up");
        assert!(found(&stage, "bridge-macvlan")[0].1.contains("in another network namespace"));
        assert_eq!(obstacles(&stage), [Check::BridgeMacvlan]);
        set("link delete upper0");
    }
}

#[test]
fn agent_is_not_ready_with_macvlan_on_bridge() {
    let stage = bridged();
    call_hooks(&stage, 1, 1);
    sh(&stage, "ip link add upper0 link cni0 type macvlan mode bridge");
    assert_unready_until(&stage, "bridge-macvlan: macvlan", "ip link delete upper0");
}
