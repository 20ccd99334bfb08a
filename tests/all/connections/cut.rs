use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kit::agent_process::{AgentProcess, WITHIN, until};
use kit::kernel_table::load_text;
use policy::Kind;
use serde_json::{Value, json};

use super::{CLIENT, OTHER, SERVER, api, commit, server_from, set, stage};
use crate::stage::{NODE, Stage, ingress, namespace, pod, policy, set_all};
use kit::frame::{authenticated_segment, send_packets};
use kit::prober::{Flow, Way, dropped, listener};

#[test]
fn tightened_ingress_policy_cuts_connection_both_ways() {
    let stage = stage();
    let api = api(&stage, &[server_from("client")]);
    let mut agent = stage.start_on_api(&api);
    let mut flows = Vec::new();
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        for way in Way::BOTH {
            let mut flow = Flow::tcp(&stage.lab, client, server);
            Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
            flows.push((flow, way));
        }
    }
    set(&mut agent, &api, server_from("other"));
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
    assert!(Flow::try_tcp(&stage.lab, CLIENT[0], SERVER[0], Duration::from_millis(200)).is_none());
    Flow::tcp(&stage.lab, OTHER[0], SERVER[0]).assert_alive(Way::ToServer);
}

/// A policy that allows egress of the client to these pods.
fn client_to(app: &str) -> Value {
    let peers = json!([{"podSelector": {"matchLabels": {"app": app}}}]);
    policy("client", "app=client", json!({"policyTypes": ["Egress"], "egress": [{"to": peers}]}))
}

#[test]
fn tightened_egress_policy_cuts_connection_both_ways() {
    let stage = stage();
    let api = api(&stage, &[client_to("server")]);
    let mut agent = stage.start_on_api(&api);
    let mut flows = Way::BOTH.map(|way| (Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]), way));
    set(&mut agent, &api, client_to("other"));
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
}

/// Conntrack forgets a connection some seconds after a RST, also if the rules drop the RST. Then it takes the end that
/// sends next for the one that opened the connection.
fn assert_stays_cut_when_forgotten(before: Value, tightened: Value) {
    let stage = stage();
    let api = api(&stage, std::slice::from_ref(&before));
    let mut agent = stage.start_on_api(&api);
    let mut flows = Vec::new();
    for (client, server) in CLIENT.into_iter().zip(SERVER) {
        for order in [[Way::ToClient, Way::ToServer], [Way::ToServer, Way::ToClient]] {
            flows.push((Flow::tcp(&stage.lab, client, server), order));
        }
    }
    set(&mut agent, &api, tightened);
    let forgotten = stage.lab.node_exec(NODE, || nfnetlink::delete_flows(|_| true)).expect("conntrack");
    assert!(forgotten >= flows.len(), "{forgotten} entries");
    for (flow, order) in &mut flows {
        order.iter().for_each(|way| flow.assert_dead(&stage.lab, NODE, *way));
    }
    set(&mut agent, &api, before);
    for (flow, _) in &mut flows {
        // The end that opened the connection sends first.
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    }
}

#[test]
fn forgotten_connection_to_isolated_pod_stays_cut() {
    assert_stays_cut_when_forgotten(server_from("client"), server_from("other"));
}

#[test]
fn forgotten_connection_of_isolated_pod_stays_cut() {
    assert_stays_cut_when_forgotten(client_to("server"), client_to("other"));
}

/// To nftables the transport protocol is that of the authentication header; conntrack reads the segment behind it.
#[test]
fn segment_behind_authentication_header_revives_no_connection() {
    const ACK: u8 = 0x10;
    let stage = stage();
    let api = api(&stage, &[client_to("server")]);
    let mut agent = stage.start_on_api(&api);
    let mut flow = Flow::tcp(&stage.lab, CLIENT[1], SERVER[1]);
    set(&mut agent, &api, client_to("other"));
    stage.lab.node_exec(NODE, || nfnetlink::delete_flows(|_| true)).expect("conntrack");
    let [SocketAddr::V6(client), SocketAddr::V6(server)] = flow.socket_addresses() else {
        panic!("an IPv6 connection")
    };
    let before = dropped(&stage.lab, NODE);
    stage.lab.in_namespace_of(server.ip().to_owned().into(), || {
        send_packets(&[authenticated_segment(server, client, ACK)]);
    });
    until("the segment is dropped", || (dropped(&stage.lab, NODE) > before).then_some(()));
    for way in [Way::ToServer, Way::ToClient] {
        flow.assert_dead(&stage.lab, NODE, way);
    }
}

#[test]
fn enforcing_audited_policy_cuts_open_connections() {
    let stage = stage();
    let mut audited = server_from("other");
    audited["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "audit"});
    let api = api(&stage, &[audited]);
    let mut agent = stage.start_on_api(&api);
    let mut flows = Way::BOTH.map(|way| (Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]), way));
    for (flow, _) in &mut flows {
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    }
    set(&mut agent, &api, server_from("other"));
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
}

#[test]
fn udp_flow_is_cut_when_only_server_sends() {
    let stage = stage();
    let api = api(&stage, &[server_from("client")]);
    let mut agent = stage.start_on_api(&api);
    let mut flows = CLIENT.into_iter().zip(SERVER).map(|(c, s)| Flow::udp(&stage.lab, c, s)).collect::<Vec<_>>();
    for flow in &mut flows {
        (0..5).for_each(|_| flow.assert_alive(Way::ToClient));
    }
    set(&mut agent, &api, server_from("other"));
    for flow in &mut flows {
        (0..3).for_each(|_| flow.assert_dead(&stage.lab, NODE, Way::ToClient));
    }
}

/// Lets the client reach UDP ports of the server, one of which is 80 until the ranges are narrowed. More than four ranges
/// are a verdict map of intervals. The kernel announces each changed element between the rules and the intervals.
fn server_at_ports_up_to(last: u16) -> Value {
    let range = |first: u16| json!({"protocol": "UDP", "port": 300 * first + 1, "endPort": 300 * first + last});
    let ports: Vec<Value> = (0..200).map(range).collect();
    let peers = json!([{"podSelector": {"matchLabels": {"app": "client"}}}]);
    policy("server", "app=server", json!({"ingress": [{"from": peers, "ports": ports}]}))
}

/// A kernel that publishes intervals after rules judges some packets in between in every tenth commit.
const NARROWED: usize = 60;

/// Flows to port 80 of the server from one pod, which states allow or deny by turns, and one that stays allowed.
struct Flooded {
    flows: Vec<UdpSocket>,
    denied: UdpSocket,
    kept: UdpSocket,
    of_kept: UdpSocket,
}

impl Flooded {
    fn new(stage: &Stage, client: &str, kept_client: &str, kept_port: u16) -> Flooded {
        let [client, kept_client, server]: [IpAddr; 3] =
            [client, kept_client, SERVER[0]].map(|address| address.parse().expect("an address"));
        let receiver = |port| {
            let socket = stage.lab.in_namespace_of(server, || UdpSocket::bind((server, port))).expect("a free port");
            socket.set_read_timeout(Some(WITHIN)).expect("a timeout");
            socket
        };
        let sender = |client, port| {
            let socket = stage.lab.in_namespace_of(client, || UdpSocket::bind((client, 0))).expect("a free port");
            socket.connect((server, port)).expect("a route");
            socket
        };
        let (denied, kept, of_kept) = (receiver(80), receiver(kept_port), sender(kept_client, kept_port));
        denied.set_nonblocking(true).expect("a socket");
        Flooded { flows: (0..32).map(|_| sender(client, 80)).collect(), denied, kept, of_kept }
    }

    fn send(&self, message: u8) {
        self.flows.iter().for_each(|flow| assert_eq!(flow.send(&[message]).expect("it leaves"), 1));
    }

    /// The number of messages other than 0, once a later one of the allowed flow has come.
    fn received(&self) -> usize {
        assert_eq!(self.of_kept.send(&[0]).expect("it leaves"), 1);
        assert_eq!(self.kept.recv(&mut [0; 1]).expect("a message of the allowed flow"), 1);
        let (mut message, mut arrived) = ([0; 1], 0);
        while self.denied.recv(&mut message).is_ok() {
            arrived += usize::from(message[0]);
        }
        arrived
    }

    /// Denies the flows while they send, and allows them again.
    fn assert_cut(&self, agent: &mut AgentProcess, [deny, allow]: [&(dyn Fn() + Sync); 2]) {
        for round in 1..=NARROWED {
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        self.send(0);
                    }
                });
                commit(agent, deny);
                over.store(true, Ordering::Relaxed);
            });
            // Makes room in the receive buffer.
            self.received();
            self.send(1);
            assert_eq!(self.received(), 0, "denied flows that round {round} left open");
            commit(agent, allow);
        }
    }
}

#[test]
fn narrowed_port_range_cuts_flows_seen_during_commit() {
    let stage = stage();
    let api = api(&stage, &[server_at_ports_up_to(100)]);
    let mut agent = stage.start_on_api(&api);
    let up_to = |last: u16| set_all(&api, &[server_at_ports_up_to(last)]);
    Flooded::new(&stage, CLIENT[0], CLIENT[0], 20).assert_cut(&mut agent, [&|| up_to(50), &|| up_to(100)]);
}

/// The client is no pod that is known. A Deny rule about pods denies it while its address is in the pod range of a node.
#[test]
fn new_pod_range_cuts_flows_seen_during_commit() {
    let stage = stage();
    let others = (0..200).map(|n| format!("172.16.{n}.0/25"));
    let ranges: Vec<String> = others.chain(["10.0.0.0/15".into()]).collect();
    let write_node = |ranges: &[String]| {
        let spec = json!({"podCIDRs": ranges});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-b"}, "spec": spec});
        stage.write_objects("node.json", &[node]);
    };
    let policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": {"name": "guard"},
        "spec": {
            "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"pods": {"podSelector": {"matchLabels": {"app": "locked"}}}}]}],
        },
    });
    let known = [pod("server", NODE, "app=server", &SERVER), pod("other", NODE, "app=other", &OTHER)];
    stage.write_objects("all.json", &[&known[..], &[namespace("shop", ""), policy]].concat());
    write_node(&[]);
    let mut agent = stage.start_on_manifests();
    let flooded = Flooded::new(&stage, CLIENT[0], OTHER[0], 20);
    flooded.assert_cut(&mut agent, [&|| write_node(&ranges), &|| write_node(&[])]);
}

#[test]
fn a_flow_over_a_translated_destination_is_cut() {
    let stage = stage();
    let api = api(&stage, &[server_from("client")]);
    let mut agent = stage.start_on_api(&api);
    let (front, back): (SocketAddr, SocketAddr) = ("10.96.0.1:80".parse().unwrap(), "10.1.0.2:8080".parse().unwrap());
    let translation = format!(
        "table ip nat {{ chain prerouting {{ type nat hook prerouting priority dstnat;\n\
         ip daddr {} tcp dport {} dnat to {back}\n}}\n}}\n",
        front.ip(),
        front.port()
    );
    stage.lab.node_exec(NODE, || load_text(&translation));
    let server = listener(&stage.lab, back);
    let mut flows = Way::BOTH.map(|way| (Flow::tcp_over(&stage.lab, CLIENT[0], front, &server), way));
    for (flow, _) in &mut flows {
        Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    }
    set(&mut agent, &api, server_from("other"));
    for (flow, way) in &mut flows {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
}

#[test]
fn new_policy_reevaluates_flows_opened_before_it() {
    let stage = stage();
    let api = api(&stage, &[]);
    let mut agent = stage.start_on_api(&api);
    let mut cut = Way::BOTH.map(|way| (Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]), way));
    let mut kept = [Flow::tcp(&stage.lab, OTHER[0], SERVER[0]), Flow::udp(&stage.lab, OTHER[1], SERVER[1])];
    for (flow, way) in &mut cut {
        flow.assert_alive(*way);
    }
    set(&mut agent, &api, server_from("other"));
    for (flow, way) in &mut cut {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
    for flow in &mut kept {
        // The first packet after the commit may also be a reply.
        Way::BOTH.into_iter().rev().for_each(|way| flow.assert_alive(way));
    }
}

#[test]
fn agent_start_reevaluates_flows_opened_before_it() {
    let stage = stage();
    // Another program already tracks the node's flows, as kube-proxy does. The opener of flows from before is unknown.
    stage.lab.node_exec(NODE, || {
        load_text("table inet tracking {\nchain forward {\ntype filter hook forward priority 0\nct state new\n}\n}\n")
    });
    let api = api(&stage, &[server_from("other")]);
    let mut cut = Way::BOTH.map(|way| (Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]), way));
    let mut kept = Flow::tcp(&stage.lab, OTHER[0], SERVER[0]);
    let _agent = stage.start_on_api(&api);
    for (flow, way) in &mut cut {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
    kept.assert_alive(Way::ToClient);
}

#[test]
fn allowing_again_revives_connection_and_accepts_new_ones() {
    let stage = stage();
    let api = api(&stage, &[server_from("client")]);
    let mut agent = stage.start_on_api(&api);
    let mut flow = Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]);
    flow.assert_alive(Way::ToServer);
    set(&mut agent, &api, server_from("other"));
    flow.assert_dead(&stage.lab, NODE, Way::ToServer);
    set(&mut agent, &api, server_from("client"));
    Way::BOTH.into_iter().for_each(|way| flow.assert_alive(way));
    Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]).assert_alive(Way::ToServer);
}

#[test]
fn pod_reusing_an_address_inherits_no_approval() {
    let stage = stage();
    let api = api(&stage, &[server_from("client"), ingress("vault", "app=vault", "app=other")]);
    let mut agent = stage.start_on_api(&api);
    let mut of_client = Way::BOTH.map(|way| (Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]), way));
    commit(&mut agent, || {
        api.remove(Kind::Pod, "shop", "client");
        set_all(&api, &[pod("stranger", NODE, "app=stranger", &CLIENT)]);
    });
    for (flow, way) in &mut of_client {
        flow.assert_dead(&stage.lab, NODE, *way);
    }

    api.remove(Kind::Pod, "shop", "stranger");
    set(&mut agent, &api, pod("client", NODE, "app=client", &CLIENT));
    let mut of_server = Way::BOTH.map(|way| (Flow::tcp(&stage.lab, CLIENT[0], SERVER[0]), way));
    commit(&mut agent, || {
        api.remove(Kind::Pod, "shop", "server");
        set_all(&api, &[pod("vault", NODE, "app=vault", &SERVER)]);
    });
    // The old pod was isolated too, and its removal may be a separate commit.
    agent.until("the rules of the new pod", |_| stage.nft("list table inet ringfence").contains("vault").then_some(()));
    for (flow, way) in &mut of_server {
        flow.assert_dead(&stage.lab, NODE, *way);
    }
}
