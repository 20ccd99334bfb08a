use std::io::ErrorKind;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicUsize, Ordering};

use kit::agent_process::WITHIN;
use serde_json::json;

use super::{CLIENT, OTHER, SERVER, api, server_from, set, stage};
use crate::stage::{NODE, ingress, pod, policy};
use kit::prober::{Flow, Way, dropped};

#[test]
fn allowed_flows_lose_no_packets_during_policy_changes() {
    let stage = stage();
    let api = api(&stage, &[server_from("client"), ingress("other", "app=other", "app=client")]);
    let mut agent = stage.start_on_api(&api);
    let mut flows: Vec<Flow> = Vec::new();
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        flows.extend([Flow::udp(&stage.lab, client, server), Flow::tcp(&stage.lab, client, server)]);
    }
    let before = stage.policy_generation();
    let messages = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let changes = scope.spawn(|| {
            // At least fifteen rounds, and more until the flows have carried enough messages.
            for round in (0..250).take_while(|round| *round < 15 || messages.load(Ordering::Relaxed) <= 100) {
                let from = if round % 2 == 0 { "app=nobody" } else { "app=client" };
                set(&mut agent, &api, ingress("other", "app=other", from));
                set(&mut agent, &api, pod(&format!("more-{round}"), NODE, "app=client", &[&format!("10.1.1.{round}")]));
            }
        });
        while !changes.is_finished() {
            for flow in &mut flows {
                Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
                messages.fetch_add(2, Ordering::Relaxed);
            }
        }
        changes.join().expect("the changes");
    });
    assert_eq!(dropped(&stage.lab, NODE), 0);
    assert!(stage.generations_since(before) >= 15, "the changes took something away each time");
    let messages = messages.into_inner();
    assert!(messages > 100, "{messages} are too few to mean anything");
}

#[test]
fn added_pods_keep_generation_and_policies_keep_flows() {
    let stage = stage();
    let api = api(&stage, &[server_from("client")]);
    let mut agent = stage.start_on_api(&api);
    let mut flow = Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]);
    let before = stage.policy_generation();
    set(&mut agent, &api, pod("client-2", "node-b", "app=client", &["10.2.0.1"]));
    assert_eq!(stage.policy_generation(), before);
    set(&mut agent, &api, ingress("server-too", "app=server", "app=other"));
    Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
}

#[test]
fn a_loosened_policy_disturbs_no_flow() {
    let stage = stage();
    let api = api(&stage, &[server_from("client")]);
    let mut agent = stage.start_on_api(&api);
    let mut flows: Vec<Flow> = Vec::new();
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        flows.extend([Flow::udp(&stage.lab, client, server), Flow::tcp(&stage.lab, client, server)]);
    }
    let peers = |app: &str| json!({"podSelector": {"matchLabels": {"app": app}}});
    let both = json!({"ingress": [{"from": [peers("client"), peers("other")]}]});
    set(&mut agent, &api, policy("server", "app=server", both));
    Flow::tcp(&stage.lab, OTHER[0], SERVER[0]).assert_alive(Way::ToServer);
    set(&mut agent, &api, policy("server", "app=server", json!({"ingress": [{}]})));
    for flow in &mut flows {
        Way::BOTH.into_iter().rev().for_each(|way| flow.assert_alive(way));
    }
    assert_eq!(dropped(&stage.lab, NODE), 0);
}

#[test]
fn icmp_error_of_allowed_flow_passes_isolated_pods() {
    let stage = stage();
    let peer = |app: &str| json!([{"podSelector": {"matchLabels": {"app": app}}}]);
    let udp = json!([{"protocol": "UDP", "port": 9}]);
    let both = json!(["Ingress", "Egress"]);
    let client = json!({"policyTypes": both, "egress": [{"to": peer("server"), "ports": udp}]});
    let server = json!({"policyTypes": both, "ingress": [{"from": peer("client"), "ports": udp}]});
    let api = api(&stage, &[policy("client", "app=client", client), policy("server", "app=server", server)]);
    let _agent = stage.start_on_api(&api);
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        let address = client.parse().expect("an address");
        let socket = stage.lab.in_namespace_of(address, || UdpSocket::bind((address, 0))).expect("a socket");
        socket.set_read_timeout(Some(WITHIN)).expect("a timeout");
        socket.connect((server, 9)).expect("a connected socket");
        socket.send(b"nobody listens").expect("a datagram leaves");
        let error = socket.recv(&mut [0; 16]).expect_err("port unreachable");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{client}");
    }
}
