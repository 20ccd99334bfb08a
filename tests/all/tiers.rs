//! Cluster policies in the kernel: real packets between pods, nodes and the outside, and open connections when the
//! policies change.

use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kit::kernel_table::load_text;
use kit::lab::{Lab, LabSpec, NodeSpec, PodSpec, probe_all};
use kit::netns::in_new_namespace;
use kit::oracle::Probe;
use kit::prober::{Flow, Way, arrivals, count_arrivals};
use nfnetlink::Kernel;
use nft::{Ruleset, create, difference};
use policy::{Change, ClusterState, Generation, Layout, lower, translate};
use serde_json::{Value, json};
use tests::objects::kind_of;

use crate::reporting::GROUP;

const NODE: &str = "node-a";
const OTHER_NODE: &str = "node-b";
const NODE_ADDRESS: &str = "192.168.0.1";
const OTHER_NODE_ADDRESS: &str = "192.168.0.2";
const CLIENT: &str = "10.1.0.1";
const SERVER: &str = "10.1.0.2";
/// A pod of another namespace.
const OPS: &str = "10.1.0.3";
/// A pod of the other node.
const FAR: &str = "10.2.0.1";
/// A pod of the other node whose object may be unknown.
const FRESH: &str = "10.2.0.9";
const OUTSIDE: &str = "192.0.2.1";

fn lab() -> Lab {
    let node = |name: &str, address: &str, pods: &[(&str, &str)]| NodeSpec {
        name: name.into(),
        addresses: vec![address.parse().expect("an address")],
        pods: pods
            .iter()
            .map(|(name, ip)| PodSpec { name: (*name).into(), addresses: vec![ip.parse().expect("an address")] })
            .collect(),
    };
    Lab::new(&LabSpec {
        nodes: vec![
            node(NODE, NODE_ADDRESS, &[("client", CLIENT), ("server", SERVER), ("ops", OPS)]),
            node(OTHER_NODE, OTHER_NODE_ADDRESS, &[("far", FAR), ("fresh", FRESH)]),
        ],
        outside: vec![OUTSIDE.parse().expect("an address")],
    })
}

fn namespace(name: &str) -> Value {
    json!({"kind": "Namespace", "metadata": {"name": name, "labels": {"team": name}}})
}

fn pod(namespace: &str, app: &str, node: &str, address: &str, port: u16) -> Value {
    json!({
        "kind": "Pod",
        "metadata": {"namespace": namespace, "name": app, "labels": {"app": app}},
        "spec": {"nodeName": node, "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": port}]}]},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]},
    })
}

fn node(name: &str, address: &str) -> Value {
    json!({
        "kind": "Node",
        "metadata": {"name": name, "labels": {"name": name}},
        "status": {"addresses": [{"type": "InternalIP", "address": address}]},
    })
}

fn cluster() -> Vec<Value> {
    vec![
        namespace("shop"),
        namespace("ops"),
        node(NODE, NODE_ADDRESS),
        node(OTHER_NODE, OTHER_NODE_ADDRESS),
        pod("shop", "client", NODE, CLIENT, 8080),
        pod("shop", "server", NODE, SERVER, 8080),
        pod("ops", "ops", NODE, OPS, 8080),
        pod("shop", "far", OTHER_NODE, FAR, 9090),
    ]
}

fn cluster_policy(name: &str, tier: &str, ingress: &Value, egress: &Value) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "tier": tier,
            "priority": 10,
            "subject": {"namespaces": {"matchLabels": {"team": "shop"}}},
            "ingress": ingress,
            "egress": egress,
        },
    })
}

fn pods(app: &str) -> Value {
    json!({"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": app}}}})
}

fn state_of(objects: &[Value]) -> ClusterState {
    let mut state = ClusterState::new();
    for object in objects {
        state.apply(Change::Set(lower(kind_of(object), object).expect("an object with a name")));
    }
    state
}

fn layout() -> Layout {
    Layout::for_table("ringfence").expect("a name")
}

/// The table of a node's namespace in the kernel.
struct Enforced {
    node: &'static str,
    layout: Layout,
    generation: Generation,
    live: Ruleset,
}

impl Enforced {
    fn new(lab: &Lab, node: &'static str, state: &ClusterState) -> Enforced {
        let (layout, live) = (layout(), translate(state, node, &layout()).ruleset.in_first_generation());
        assert_eq!(live.validate(), vec![]);
        lab.node_exec(node, || commit(&create(&live)));
        let generation = layout.first_generation();
        Enforced { node, layout, generation, live }
    }

    /// Commits the difference, in another generation if it narrows what is allowed.
    fn update(&mut self, lab: &Lab, state: &ClusterState) {
        let draft = translate(state, self.node, &self.layout).ruleset;
        if draft.narrows(&self.live) {
            self.generation = self.generation.next();
        }
        let wanted = draft.stamp(self.generation);
        assert_eq!(wanted.validate(), vec![]);
        let operations = difference(&self.live, &wanted);
        lab.node_exec(self.node, || commit(&operations));
        self.live = wanted;
    }
}

fn commit(operations: &[nft::Operation]) {
    let mut kernel = Kernel::open().expect("nf_tables, as root");
    let generation = kernel.generation().expect("the generation");
    kernel.commit(operations, generation).expect("the commit");
}

/// Numbers of datagrams.
struct Flooded {
    sent: u64,
    arrived: u64,
}

/// Sends datagrams on 16 flows until the changes are done.
fn flood(lab: &Lab, source: IpAddr, destination: IpAddr, change: impl FnOnce()) -> Flooded {
    lab.in_namespace_of(destination, || count_arrivals(&[destination]));
    let bind = |_| UdpSocket::bind((source, 0)).expect("a socket");
    let sockets: Vec<UdpSocket> = lab.in_namespace_of(source, || (0..16).map(bind).collect());
    let over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let flood = scope.spawn(|| {
            let mut sent = 0_u64;
            while !over.load(Ordering::Relaxed) {
                for socket in &sockets {
                    sent += u64::from(socket.send_to(b"x", (destination, 9)).is_ok());
                }
            }
            sent
        });
        change();
        over.store(true, Ordering::Relaxed);
        flood.join().expect("the flood")
    });
    let arrived = lab.in_namespace_of(destination, arrivals).get(&source).map_or(0, |a| a.datagrams);
    Flooded { sent, arrived }
}

/// The kernel publishes new intervals after the rules that look them up, and a flow that is approved meanwhile stays
/// approved.
#[test]
fn denied_networks_stay_denied_while_they_change() {
    const CHANGES: usize = 300;
    let lab = lab();
    let [client, outside]: [IpAddr; 2] = [CLIENT, OUTSIDE].map(|text| text.parse().expect("an address"));
    let states = ["192.0.2.0/24", "192.0.2.0/25"].map(|network| {
        let rules = json!([{"action": "Deny", "to": [{"networks": [network]}]}]);
        state_of(&[cluster(), vec![cluster_policy("networks", "Admin", &json!([]), &rules)]].concat())
    });
    let mut enforced = Enforced::new(&lab, NODE, &states[0]);
    let Flooded { sent, arrived } = flood(&lab, client, outside, || {
        (1..=CHANGES).for_each(|number| enforced.update(&lab, &states[number % 2]));
    });
    assert!(sent > 10_000, "{sent} datagrams");
    assert_eq!(arrived, 0, "of {sent}");
}

fn with_pod_range(name: &str, address: &str, range: &str) -> Value {
    let mut object = node(name, address);
    object["spec"] = json!({"podCIDRs": [range]});
    object
}

/// The pod runs before the watch has delivered it, becomes known as one that the rule selects, and is deleted, while the
/// pod ranges change.
#[test]
fn unknown_pod_of_another_node_is_denied() {
    const CHANGES: usize = 200;
    let lab = lab();
    let [client, fresh]: [IpAddr; 2] = [CLIENT, FRESH].map(|text| text.parse().expect("an address"));
    let rules = json!([{"action": "Deny", "from": [pods("fresh")]}]);
    let objects = [cluster(), vec![cluster_policy("guard", "Admin", &rules, &json!([]))]].concat();
    let unknown = [objects.clone(), vec![with_pod_range(OTHER_NODE, OTHER_NODE_ADDRESS, "10.2.0.0/24")]].concat();
    let known = [unknown.clone(), vec![pod("shop", "fresh", OTHER_NODE, FRESH, 80)]].concat();
    let more = [unknown.clone(), vec![with_pod_range("node-c", "192.168.0.3", "10.3.0.0/24")]].concat();
    let states = [unknown, known, more].map(|objects| state_of(&objects));
    let mut enforced = Enforced::new(&lab, NODE, &states[0]);
    let probe = |source: &str| Probe {
        source: source.parse().expect("an address"),
        destination: client,
        protocol: Probe::TCP,
        port: Some(80),
    };
    assert_eq!(probe_all(&lab, &[probe(FRESH), probe(FAR), probe(OUTSIDE)]), [false, true, true]);
    let Flooded { sent, arrived } = flood(&lab, fresh, client, || {
        (1..=CHANGES).for_each(|number| enforced.update(&lab, &states[number % states.len()]));
    });
    assert!(sent > 10_000, "{sent} datagrams");
    assert_eq!(arrived, 0, "of {sent}");
}

#[test]
fn tiers_decide_flows_of_pods_nodes_and_networks() {
    let everywhere = json!([{"namespaces": {}}]);
    let admin_ingress = json!([
        {"action": "Accept", "from": [pods("ops")], "protocols": [{"tcp": {"destinationPort": {"number": 22}}}]},
        {"action": "Deny", "from": [{"namespaces": {"matchLabels": {"team": "ops"}}}]},
        {"action": "Pass", "from": everywhere},
    ]);
    let range = json!([{"tcp": {"destinationPort": {"range": {"start": 10250, "end": 10255}}}}]);
    let admin_egress = json!([
        {"action": "Deny", "to": [{"nodes": {}}], "protocols": range},
        {"action": "Accept", "to": [pods("far")], "protocols": [{"destinationNamedPort": "web"}]},
        {"action": "Deny", "to": [pods("far")]},
        {
            "action": "Deny",
            "to": [{"networks": ["192.0.2.0/24"]}],
            "protocols": [{"tcp": {"destinationPort": {"number": 25}}}],
        },
    ]);
    let dns = json!([{"udp": {"destinationPort": {"number": 53}}}]);
    let baseline_egress = json!([{"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}], "protocols": dns}]);
    let baseline_ingress = json!([{"action": "Deny", "from": everywhere}]);
    let network_policy = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "server"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "server"}},
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": 80}]}],
        },
    });
    let mut objects = cluster();
    objects.push(cluster_policy("guard", "Admin", &admin_ingress, &admin_egress));
    objects.push(cluster_policy("defaults", "Baseline", &baseline_ingress, &baseline_egress));
    objects.push(network_policy);
    let state = state_of(&objects);
    let lab = lab();
    for node in [NODE, OTHER_NODE] {
        Enforced::new(&lab, node, &state);
    }
    let (tcp, udp, icmp) = (Probe::TCP, Probe::UDP, Probe::ICMP);
    let expected = [
        // The Admin tier accepts, whatever the NetworkPolicy says, and denies the rest.
        (OPS, SERVER, tcp, Some(22), true),
        (OPS, SERVER, tcp, Some(80), false),
        (OPS, CLIENT, tcp, Some(80), false),
        (OPS, SERVER, icmp, None, false),
        // It passes these to the NetworkPolicy, which is final.
        (CLIENT, SERVER, tcp, Some(80), true),
        (CLIENT, SERVER, tcp, Some(81), false),
        (OUTSIDE, SERVER, tcp, Some(80), false),
        // No NetworkPolicy selects the client. Addresses outside of the cluster are no peers of ingress rules.
        (SERVER, CLIENT, tcp, Some(80), false),
        (OUTSIDE, CLIENT, tcp, Some(80), true),
        (CLIENT, OPS, tcp, Some(80), true),
        // A named port is that of the destination, whose own side accepts nothing.
        (CLIENT, FAR, tcp, Some(80), false),
        (OPS, FAR, tcp, Some(22), true),
        // Networks and nodes.
        (CLIENT, OUTSIDE, tcp, Some(25), false),
        (CLIENT, OUTSIDE, tcp, Some(80), true),
        (CLIENT, OUTSIDE, udp, Some(53), false),
        (SERVER, OUTSIDE, udp, Some(53), false),
        (CLIENT, OUTSIDE, udp, Some(54), true),
        (CLIENT, OUTSIDE, icmp, None, true),
        (CLIENT, OTHER_NODE_ADDRESS, tcp, Some(10252), false),
        (CLIENT, OTHER_NODE_ADDRESS, tcp, Some(443), true),
        // The own node, and its probes.
        (CLIENT, NODE_ADDRESS, tcp, Some(10250), false),
        (CLIENT, NODE_ADDRESS, tcp, Some(443), true),
        (CLIENT, NODE_ADDRESS, udp, Some(53), false),
        (CLIENT, NODE_ADDRESS, icmp, None, true),
        (OPS, NODE_ADDRESS, tcp, Some(10250), true),
        (NODE_ADDRESS, CLIENT, tcp, Some(10250), true),
        (NODE_ADDRESS, CLIENT, udp, Some(53), true),
    ];
    let probes: Vec<Probe> = expected
        .iter()
        .map(|(source, destination, protocol, port, _)| Probe {
            source: source.parse().expect("an address"),
            destination: destination.parse().expect("an address"),
            protocol: *protocol,
            port: *port,
        })
        .collect();
    let arrived = probe_all(&lab, &probes);
    let wrong: Vec<String> = probes
        .iter()
        .zip(&expected)
        .zip(arrived)
        .filter(|((_, (.., expected)), arrived)| expected != arrived)
        .map(|((probe, _), arrived)| format!("{probe}: {arrived}"))
        .collect();
    assert_eq!(wrong, Vec::<String>::new());
}

#[test]
fn named_port_is_resolved_on_destination_pod() {
    let egress = json!([
        {"action": "Accept", "to": [pods("far"), pods("ops")], "protocols": [{"destinationNamedPort": "web"}]},
        {"action": "Deny", "to": [{"namespaces": {}}]},
    ]);
    let mut objects = cluster();
    objects.push(cluster_policy("web-only", "Admin", &json!([]), &egress));
    let lab = lab();
    let state = state_of(&objects);
    Enforced::new(&lab, NODE, &state);
    let expected =
        [(FAR, 9090, true), (FAR, 8080, false), (OPS, 8080, true), (OPS, 9090, false), (SERVER, 8080, false)];
    let probe = |(destination, port, _): &(&str, u16, bool)| Probe {
        source: CLIENT.parse().expect("an address"),
        destination: destination.parse().expect("an address"),
        protocol: Probe::TCP,
        port: Some(*port),
    };
    let probes: Vec<Probe> = expected.iter().map(probe).collect();
    assert_eq!(probe_all(&lab, &probes), expected.map(|(.., expected)| expected));
}

/// Whether a datagram that the socket sends to a Service arrives at the pod's own port.
fn comes_back(sender: &UdpSocket, receiver: &UdpSocket, number: usize) -> bool {
    sender.send_to(&[u8::try_from(number).expect("few datagrams")], ("10.96.0.10", 80)).expect("a datagram leaves");
    let mut received = [0];
    loop {
        match receiver.recv(&mut received) {
            Ok(_) if usize::from(received[0]) == number => return true,
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return false,
            Err(error) => panic!("receiving: {error}"),
        }
    }
}

#[test]
fn cluster_policies_judge_hairpin_flows() {
    let lab = lab();
    let client: IpAddr = CLIENT.parse().expect("an address");
    let translation = format!(
        "table ip services {{\nchain prerouting {{\ntype nat hook prerouting priority dstnat\n\
         ip daddr 10.96.0.10 udp dport 80 dnat to {CLIENT}:9\n}}\n\
         chain postrouting {{\ntype nat hook postrouting priority srcnat\n\
         ip saddr {CLIENT} ip daddr {CLIENT} masquerade\n}}\n}}\n"
    );
    lab.node_exec(NODE, || load_text(&translation));
    let bind = |port| lab.in_namespace_of(client, || UdpSocket::bind((client, port)).expect("a socket"));
    let receiver = bind(9);
    receiver.set_read_timeout(Some(Duration::from_millis(200))).expect("a timeout");
    let isolated = json!({
        "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": "closed"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]},
    });
    let rules = |action: &str, side: &str| json!([{"action": action, side: [pods("client")]}]);
    let egress = |tier| cluster_policy("egress", tier, &json!([]), &rules("Deny", "to"));
    let ingress = |tier| cluster_policy("ingress", tier, &rules("Deny", "from"), &json!([]));
    let mut audited = egress("Admin");
    audited["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "audit"});
    let passing = cluster_policy("pass", "Admin", &rules("Pass", "from"), &rules("Pass", "to"));
    let mut unknown_rule = rules("Deny", "to");
    unknown_rule[0]["to"] = json!([{"unknown": {}}]);
    let cases = [
        (vec![isolated.clone()], true),
        (vec![egress("Admin")], false),
        (vec![isolated.clone(), audited], true),
        (vec![isolated.clone(), ingress("Admin")], false),
        (vec![isolated.clone(), egress("Baseline"), ingress("Baseline")], true),
        (vec![isolated.clone(), cluster_policy("unknown", "Admin", &json!([]), &unknown_rule)], false),
        (vec![isolated, passing.clone()], true),
        (vec![passing, ingress("Baseline")], false),
    ];
    let mut enforced = Enforced::new(&lab, NODE, &state_of(&cluster()));
    let open = bind(40_000);
    assert!(comes_back(&open, &receiver, 100));
    for (number, (policies, passes)) in cases.into_iter().enumerate() {
        enforced.update(&lab, &state_of(&[cluster(), policies].concat()));
        assert_eq!(comes_back(&open, &receiver, 10 * number), passes, "the open flow in case {number}");
        assert_eq!(comes_back(&bind(0), &receiver, 10 * number + 1), passes, "a new flow in case {number}");
    }
}

/// The kernel bounds how many chains follow each other (NFT_JUMP_STACK_SIZE).
#[test]
fn kernel_accepts_longest_way_through_programs() {
    let ports = |first: u16| {
        (0..6).map(move |n| json!([{"tcp": {"destinationPort": {"number": first + 2 * n}}}])).collect::<Vec<Value>>()
    };
    let rules = |side: &str| {
        let of_ports = ports(80).into_iter().map(|p| json!({"action": "Deny", side: [pods("ops")], "protocols": p}));
        let all = json!({"action": "Pass", side: [pods("client")]});
        Value::Array(of_ports.chain([json!({"action": "Deny", side: [pods("far")]}), all]).collect())
    };
    let (ingress, egress) = (rules("from"), rules("to"));
    let allowed = |first: u16| (0..6).map(move |n| json!({"port": first + 2 * n})).collect::<Vec<Value>>();
    let network_policy = |audited: bool| {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "namespace": "shop",
                "name": "all",
                "annotations": {"ringfence.io/enforcement": if audited { "audit" } else { "enforce" }},
            },
            "spec": {
                "podSelector": {},
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": allowed(80)}],
                "egress": [{"to": [{"podSelector": {"matchLabels": {"app": "server"}}}], "ports": allowed(80)}],
            },
        })
    };
    let (admin, baseline) = (
        cluster_policy("guard", "Admin", &ingress, &egress),
        cluster_policy("defaults", "Baseline", &ingress, &egress),
    );
    let audited = |name: &str, tier: &str| {
        let mut policy = cluster_policy(name, tier, &ingress, &egress);
        policy["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "audit"});
        policy
    };
    let (audited_admin, audited_baseline) = (audited("strict", "Admin"), audited("strict-defaults", "Baseline"));
    for further in [
        vec![admin.clone(), baseline.clone()],
        vec![admin.clone(), network_policy(false)],
        vec![admin.clone(), network_policy(true)],
        vec![admin.clone(), baseline.clone(), audited_admin.clone(), audited_baseline.clone()],
        vec![admin.clone(), network_policy(false), audited_admin.clone()],
        vec![admin.clone(), baseline.clone(), network_policy(true)],
        vec![admin, baseline, network_policy(true), audited_admin, audited_baseline],
    ] {
        let mut objects = cluster();
        objects.extend(further);
        let ruleset =
            translate(&state_of(&objects), NODE, &layout().logging_to(Some(GROUP))).ruleset.in_first_generation();
        assert_eq!(ruleset.validate(), vec![]);
        in_new_namespace(|| commit(&create(&ruleset)));
    }
}

#[test]
fn open_connections_follow_cluster_policies() {
    let lab = lab();
    let before = state_of(&cluster());
    let mut node = Enforced::new(&lab, NODE, &before);
    let with = |ingress: &Value, egress: &Value| {
        let mut objects = cluster();
        objects.push(cluster_policy("deny", "Admin", ingress, egress));
        state_of(&objects)
    };
    let mut from_ops = Way::BOTH.map(|way| (Flow::tcp(&lab, OPS, SERVER), way));
    let mut to_node = Flow::udp(&lab, CLIENT, NODE_ADDRESS);
    let mut kept = Flow::tcp(&lab, CLIENT, SERVER);
    node.update(&lab, &with(&json!([{"action": "Deny", "from": [pods("ops")]}]), &json!([])));
    for (flow, way) in &mut from_ops {
        flow.assert_dead(&lab, NODE, *way);
    }
    to_node.assert_alive(Way::ToServer);
    Way::BOTH.into_iter().for_each(|way| kept.assert_alive(way));

    let nodes = json!([{"action": "Deny", "to": [{"nodes": {}}]}]);
    node.update(&lab, &with(&json!([]), &nodes));
    to_node.assert_dead(&lab, NODE, Way::ToServer);
    let mut again = Flow::tcp(&lab, OPS, SERVER);
    let mut from_node = Flow::tcp(&lab, NODE_ADDRESS, CLIENT);
    for way in Way::BOTH {
        again.assert_alive(way);
        kept.assert_alive(way);
        from_node.assert_alive(way);
    }

    // The connection was approved before the label of its source led to the rule.
    node.update(&lab, &with(&json!([{"action": "Deny", "from": [pods("late")]}]), &json!([])));
    again.assert_alive(Way::ToServer);
    let mut objects = cluster();
    objects.push(cluster_policy("deny", "Admin", &json!([{"action": "Deny", "from": [pods("late")]}]), &json!([])));
    objects.push(json!({
        "kind": "Pod",
        "metadata": {"namespace": "ops", "name": "ops", "labels": {"app": "late"}},
        "spec": {"nodeName": NODE},
        "status": {"phase": "Running", "podIPs": [{"ip": OPS}]},
    }));
    node.update(&lab, &state_of(&objects));
    again.assert_dead(&lab, NODE, Way::ToClient);
    kept.assert_alive(Way::ToClient);
}
