//! Rulesets of cluster policies on random clusters, against a reading of the rules one after the other.

use std::net::IpAddr;
use std::sync::Arc;

use nft::{Hook, Packet, Protocol, Ruleset, Stop, evaluate, evaluate_at, rules_met};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::translate::layout::narrows;
use crate::translate::leave_out::leave_out;
use crate::{
    Attachment, AttachmentId, Change, ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, ClusterState, Direction,
    DomainPattern, Kind, Layout, Object, ObjectName, Operator, PodScope, PortMatch, PortRange, Ports, Requirement,
    RuleAction, Selector, StateDelta, Tier, Traffic, Translator, explain, lower, translate,
};

const NODE: &str = "node-a";
const NODE_ADDRESS: &str = "192.0.2.1";
const OTHER_NODE_ADDRESS: &str = "192.0.2.2";
const OUTSIDE: &str = "198.51.100.7";

fn layout() -> Layout {
    Layout::for_table("ringfence").unwrap()
}

fn selector(label: Option<(&str, &str)>) -> Selector {
    Selector::of(label.map(|(key, value)| Requirement {
        key: key.into(),
        operator: Operator::In([Arc::from(value)].into_iter().collect()),
    }))
}

fn address(number: usize) -> String {
    format!("10.1.0.{}", number + 1)
}

fn pod(number: usize, app: &str, readable: bool) -> Change {
    let namespace = format!("n{}", number % 2);
    let mut object = json!({
        "metadata": {"namespace": namespace, "name": format!("p{number}"), "labels": {"app": app}},
        "spec": {
            "nodeName": if number < 2 { NODE } else { "node-b" },
            "containers": [{"name": "c", "ports": [{"name": "web", "containerPort": 8000 + number % 3}]}],
        },
        "status": {"phase": "Running", "podIP": address(number)},
    });
    if !readable {
        object["metadata"]["labels"] = json!([]);
    }
    Change::Set(lower(Kind::Pod, &object).unwrap())
}

fn namespace(name: &str, team: &str) -> Change {
    Change::Set(lower(Kind::Namespace, &json!({"metadata": {"name": name, "labels": {"team": team}}})).unwrap())
}

fn node(name: &str, address: &str, role: &str) -> Change {
    let addresses = [json!({"type": "InternalIP", "address": address})];
    let object = json!({"metadata": {"name": name, "labels": {"role": role}}, "status": {"addresses": addresses}});
    Change::Set(lower(Kind::Node, &object).unwrap())
}

fn network_policy(rule: Option<u16>) -> Change {
    let rules: Vec<_> = rule.into_iter().map(|port| json!({"ports": [{"port": port}]})).collect();
    let object = json!({
        "apiVersion": "networking.k8s.io/v1",
        "metadata": {"namespace": "n0", "name": "some"},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"], "ingress": rules, "egress": rules},
    });
    Change::Set(lower(Kind::NetworkPolicy, &object).unwrap())
}

fn cluster_policy(name: &str, tier: Tier, ingress: Vec<ClusterRule>, egress: Vec<ClusterRule>) -> ClusterPolicy {
    ClusterPolicy {
        name: ObjectName::new("", name),
        tier,
        priority: 0,
        subject: PodScope::everything(),
        ingress,
        egress,
        enforcement: None,
        problems: vec![],
    }
}

fn set(policy: ClusterPolicy) -> Change {
    Change::Set(Object::ClusterPolicy(Arc::new(policy)))
}

fn rule(index: usize, action: RuleAction, peer: ClusterPeer, ports: Ports) -> ClusterRule {
    ClusterRule { index, name: None, action, peers: ClusterPeers::Of(vec![peer]), ports }
}

fn pods_of(app: &str) -> ClusterPeer {
    ClusterPeer::Pods(PodScope { namespaces: Selector::everything(), pods: selector(Some(("app", app))) })
}

fn nodes_of(role: &str) -> ClusterPeer {
    ClusterPeer::Nodes(selector(Some(("role", role))))
}

fn tcp(range: PortRange) -> Ports {
    Ports::Of(vec![PortMatch { protocol: Protocol::Tcp, range }])
}

fn cluster() -> ClusterState {
    let mut state = ClusterState::new();
    for change in [namespace("n0", "a"), namespace("n1", "b"), node(NODE, NODE_ADDRESS, "worker")] {
        state.apply(change);
    }
    state.apply(node("node-b", OTHER_NODE_ADDRESS, "control"));
    for number in 0..6 {
        state.apply(pod(number, ["web", "db", "client"][number % 3], true));
    }
    state
}

fn passes(ruleset: &Ruleset, source: &str, destination: &str, protocol: u8, port: Option<u16>) -> bool {
    let packet = Packet::first(source.parse().unwrap(), destination.parse().unwrap(), protocol, port);
    evaluate(ruleset, &packet).stop == Stop::Accepted
}

fn ruleset(state: &ClusterState) -> Ruleset {
    let ruleset = translate(state, NODE, &layout()).ruleset.in_first_generation();
    assert_eq!(ruleset.validate(), vec![]);
    ruleset
}

#[test]
fn admin_deny_drops_peer_pods_only() {
    let mut state = cluster();
    let deny = rule(0, RuleAction::Deny, pods_of("client"), Ports::Any);
    state.apply(set(cluster_policy("no-clients", Tier::Admin, vec![deny], vec![])));
    let ruleset = ruleset(&state);
    assert!(!passes(&ruleset, &address(2), &address(0), 6, Some(80)));
    assert!(passes(&ruleset, &address(3), &address(0), 6, Some(80)));
    assert!(passes(&ruleset, OUTSIDE, &address(0), 6, Some(80)));
    assert!(passes(&ruleset, &address(0), &address(2), 6, Some(80)));
}

#[test]
fn accept_skips_policies_and_baseline_yields_to_them() {
    let mut state = cluster();
    state.apply(network_policy(Some(80)));
    let accept = rule(0, RuleAction::Accept, pods_of("client"), tcp(PortRange::Numbers(443, 443)));
    let deny = rule(0, RuleAction::Deny, pods_of("client"), Ports::Any);
    state.apply(set(cluster_policy("accept", Tier::Admin, vec![accept], vec![])));
    state.apply(set(cluster_policy("deny", Tier::Baseline, vec![deny], vec![])));
    let ruleset = ruleset(&state);
    // Pod 0 is isolated by the NetworkPolicy, pod 1 is not.
    for (pod, port, expected) in [(0, 443, true), (0, 80, true), (0, 81, false), (1, 443, true), (1, 80, false)] {
        assert_eq!(passes(&ruleset, &address(2), &address(pod), 6, Some(port)), expected, "pod {pod} at {port}");
    }
}

#[test]
fn nodes_and_networks_are_judged_at_input_hook() {
    let mut state = cluster();
    let before = ruleset(&state);
    let deny = rule(0, RuleAction::Deny, nodes_of("worker"), tcp(PortRange::Numbers(10250, 10250)));
    state.apply(set(cluster_policy("no-kubelet", Tier::Admin, vec![], vec![deny])));
    let ruleset = ruleset(&state);
    let stop = |source: &str, destination: &str, port, reply| {
        let first = Packet::first(source.parse().unwrap(), destination.parse().unwrap(), 6, Some(port));
        let packet = if reply { first.reply(0) } else { first };
        evaluate_at(&ruleset, &packet, Hook::Input)
    };
    let pod = address(0);
    // The gateway of the pods, and what all hosts of the link receive, are in no Node object.
    for own in [NODE_ADDRESS, "10.0.0.254", "10.0.0.255", "224.0.0.1"] {
        assert_eq!(stop(&pod, own, 10250, false).stop, Stop::Dropped, "{own}");
        let allowed = stop(&pod, own, 443, false);
        assert_eq!((allowed.stop, allowed.mark), (Stop::Accepted, 0), "{own}");
    }
    // The answer to a probe of the kubelet.
    assert_eq!(stop(NODE_ADDRESS, &pod, 10250, true).stop, Stop::Accepted);
    assert!(!before.chains.keys().any(|chain| chain.as_str() == "to-own-node"));
    assert!(passes(&ruleset, &pod, OTHER_NODE_ADDRESS, 6, Some(10250)));
}

#[test]
fn unknown_pods_and_labels_deny_at_input_hook() {
    let mut state = cluster();
    let mut translator = Translator::new(NODE, layout());
    translator.begin(&state);
    let stop = |translator: &Translator, source: &str| {
        let first = Packet::first(source.parse().unwrap(), NODE_ADDRESS.parse().unwrap(), 6, Some(10250));
        evaluate_at(&translator.translation().ruleset.in_first_generation(), &first, Hook::Input).stop
    };
    let unknown = "10.1.0.200";
    let changed = state.attach(Attachment {
        id: AttachmentId { container: "c".into(), interface: "eth0".into() },
        pod: ObjectName::new("n0", "unknown"),
        uid: None,
        addresses: vec![unknown.parse().unwrap()],
        host_interface: None,
        bridged: false,
        input_interface: None,
        hardware_address: None,
        link_local: vec![],
        since: 1,
    });
    translator.update(&state, &changed);
    assert_eq!(stop(&translator, unknown), Stop::Accepted);
    let deny = rule(0, RuleAction::Deny, nodes_of("control"), Ports::Any);
    let changed = state.apply(set(cluster_policy("no-control", Tier::Admin, vec![], vec![deny])));
    translator.update(&state, &changed);
    assert_eq!((stop(&translator, unknown), stop(&translator, &address(0))), (Stop::Dropped, Stop::Accepted));
    for (change, expected) in [
        (Change::Remove(Kind::Node, ObjectName::new("", NODE)), Stop::Dropped),
        (node(NODE, NODE_ADDRESS, "worker"), Stop::Accepted),
        (node(NODE, NODE_ADDRESS, "control"), Stop::Dropped),
    ] {
        let changed = state.apply(change);
        translator.update(&state, &changed);
        assert_eq!(stop(&translator, &address(0)), expected);
        assert_eq!(
            translator.translation().ruleset.in_first_generation(),
            translate(&state, NODE, &layout()).ruleset.in_first_generation()
        );
    }
    let changed = state.apply(Change::Remove(Kind::ClusterNetworkPolicy, ObjectName::new("", "no-control")));
    translator.update(&state, &changed);
    assert_eq!(stop(&translator, unknown), Stop::Accepted);
}

#[test]
fn only_stricter_rules_start_a_generation() {
    let mut state = cluster();
    let deny = |app: &str| rule(0, RuleAction::Deny, pods_of(app), Ports::Any);
    let rulesets: Vec<Ruleset> = [vec![], vec![deny("db")], vec![deny("client")]]
        .into_iter()
        .map(|rules| {
            state.apply(set(cluster_policy("deny", Tier::Admin, rules, vec![])));
            ruleset(&state)
        })
        .collect();
    assert!(narrows(&rulesets[0], &rulesets[1]));
    assert!(narrows(&rulesets[1], &rulesets[2]));
    state.apply(pod(8, "client", true));
    let with_pod = ruleset(&state);
    assert!(narrows(&rulesets[2], &with_pod));
    // A pod that is not known yet may have the address next.
    assert!(narrows(&with_pod, &rulesets[2]));
}

#[test]
fn omitted_policy_program_denies_passed_flows() {
    let mut state = cluster();
    state.apply(network_policy(None));
    let network = |text: &str| ClusterPeer::Networks(vec![text.parse().unwrap()]);
    let pass = rule(0, RuleAction::Pass, pods_of("client"), Ports::Any);
    let accept = rule(1, RuleAction::Accept, network("10.0.0.0/8"), Ports::Any);
    state.apply(set(cluster_policy("some", Tier::Admin, vec![], vec![pass, accept])));
    let mut ruleset = ruleset(&state);
    let to_client = |ruleset: &Ruleset| passes(ruleset, &address(0), &address(5), 6, Some(80));
    let to_db = |ruleset: &Ruleset| passes(ruleset, &address(0), &address(4), 6, Some(80));
    assert_eq!((to_client(&ruleset), to_db(&ruleset)), (false, true));
    let chain = nft::Name::new("egress/n0/some").unwrap();
    assert!(ruleset.chains.contains_key(&chain));
    let refused = nft::Operation::AddChain { table: ruleset.table.clone(), chain, hook: None };
    assert!(leave_out(&mut ruleset, &refused));
    assert_eq!(ruleset.validate(), vec![]);
    assert_eq!((to_client(&ruleset), to_db(&ruleset)), (false, true));
}

/// A bridge delivers a packet to a group address to pods that the packet does not name.
#[test]
fn rules_about_pods_count_for_group_addresses() {
    let mut state = cluster();
    let node = json!({
        "metadata": {"name": NODE}, "spec": {"podCIDR": "10.1.0.0/24"},
        "status": {"addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}]},
    });
    state.apply(Change::Set(lower(Kind::Node, &node).unwrap()));
    let http = || tcp(PortRange::Numbers(80, 80));
    let named = || tcp(PortRange::Named("web".into()));
    let everywhere = || ClusterPeer::Networks(vec!["0.0.0.0/0".parse().unwrap()]);
    let cases = [
        (RuleAction::Deny, Ports::Any, [false, false, false]),
        (RuleAction::Deny, http(), [false, true, true]),
        (RuleAction::Deny, named(), [false, false, true]),
        (RuleAction::Pass, Ports::Any, [false, false, false]),
        (RuleAction::Accept, Ports::Any, [true, true, true]),
    ];
    for (action, ports, expected) in cases {
        let rules = vec![rule(0, action, pods_of("db"), ports), rule(1, RuleAction::Accept, everywhere(), Ports::Any)];
        state.apply(set(cluster_policy("groups", Tier::Admin, vec![], rules)));
        let ruleset = ruleset(&state);
        for group in ["224.0.0.1", "239.1.2.3", "255.255.255.255", "10.1.0.255"] {
            let flows = [(6, Some(80)), (6, Some(81)), (17, Some(80))];
            let passed = flows.map(|(protocol, port)| passes(&ruleset, &address(0), group, protocol, port));
            assert_eq!(passed, expected, "{action:?} at {group}");
            let traffic = [(Protocol::Tcp, 80), (Protocol::Tcp, 81), (Protocol::Udp, 80)];
            let explained = traffic.map(|(protocol, port)| {
                let ends = [&address(0), group].map(|text| text.parse().unwrap());
                explain(&state, ends[0], ends[1], Traffic::Port(protocol, port)).allowed
            });
            assert_eq!(explained, expected, "explanation of {action:?} at {group}");
        }
        assert!(passes(&ruleset, &address(0), "10.1.1.255", 6, Some(80)), "an address of one host");
    }
    // The first rule with a certain match decides.
    let mut accepting_first = vec![rule(0, RuleAction::Accept, everywhere(), Ports::Any)];
    accepting_first.push(rule(1, RuleAction::Deny, pods_of("db"), Ports::Any));
    state.apply(set(cluster_policy("groups", Tier::Admin, vec![], accepting_first)));
    assert!(passes(&ruleset(&state), &address(0), "224.0.0.1", 6, Some(80)));
}

/// The kernel publishes new intervals after the rules that look them up.
#[test]
fn unpublished_networks_allow_no_denied_flow() {
    let mut state = cluster();
    let network = |text: &str| ClusterPeer::Networks(vec![text.parse().unwrap()]);
    let rules = vec![
        rule(0, RuleAction::Deny, network("198.51.100.0/24"), tcp(PortRange::Numbers(25, 25))),
        rule(1, RuleAction::Accept, network("192.0.2.0/24"), Ports::Any),
        rule(2, RuleAction::Deny, network("203.0.113.0/24"), Ports::Any),
        rule(3, RuleAction::Accept, pods_of("db"), Ports::Any),
    ];
    state.apply(set(cluster_policy("networks", Tier::Admin, vec![], rules)));
    let published = ruleset(&state);
    let denied = |ruleset: &Ruleset| {
        let flows = [("198.51.100.7", 25), ("203.0.113.7", 25), ("203.0.113.7", 80)];
        flows.map(|(to, port)| !passes(ruleset, &address(0), to, 6, Some(port)))
    };
    assert!(passes(&published, &address(0), "198.51.100.7", 6, Some(80)));
    assert!(passes(&published, &address(0), "100.64.0.1", 6, Some(25)));
    assert_eq!(denied(&published), [true; 3]);
    let intervals = published.sets.iter().filter(|(_, set)| set.interval && !set.verdicts);
    let intervals: Vec<nft::Name> = intervals.map(|(name, _)| name.clone()).collect();
    assert!(intervals.len() > 3, "{published}");
    let without = |unpublished: &[nft::Name]| {
        let mut ruleset = published.clone();
        for name in unpublished {
            Arc::make_mut(&mut ruleset.sets[name]).elements = nft::Elements::default();
        }
        denied(&ruleset)
    };
    assert_eq!(without(&intervals), [true; 3]);
    for name in &intervals {
        assert_eq!(without(std::slice::from_ref(name)), [true; 3], "{name}");
    }
}

fn names(names: &[(bool, &str)]) -> ClusterPeer {
    let pattern = |(wildcard, name): &(bool, &str)| DomainPattern { wildcard: *wildcard, name: (*name).into() };
    ClusterPeer::DomainNames(names.iter().map(pattern).collect())
}

#[test]
fn learned_address_opens_where_no_earlier_rule_denies() {
    const LEARNED: &str = "198.51.100.8";
    let mut state = cluster();
    let network = |text: &str| ClusterPeer::Networks(vec![text.parse().unwrap()]);
    let rules = vec![
        rule(0, RuleAction::Deny, network("198.51.100.0/24"), tcp(PortRange::Numbers(25, 25))),
        rule(1, RuleAction::Accept, names(&[(true, "example.org")]), Ports::Any),
        rule(2, RuleAction::Deny, network("0.0.0.0/0"), Ports::Any),
    ];
    state.apply(set(cluster_policy("names", Tier::Admin, vec![], rules)));
    let open = |ruleset: &Ruleset, to: &str| [25, 443].map(|port| passes(ruleset, &address(0), to, 6, Some(port)));
    let before = ruleset(&state);
    assert_eq!(open(&before, LEARNED), [false, false]);
    state.learn("example.org".into(), LEARNED.parse().unwrap());
    assert_eq!(open(&ruleset(&state), LEARNED), [false, false], "the wildcard stands for one label at least");
    state.learn("www.example.org".into(), LEARNED.parse().unwrap());
    let after = ruleset(&state);
    assert_eq!((open(&after, LEARNED), open(&after, OUTSIDE)), ([false, true], [false, false]));
    assert!(!narrows(&before, &after) && !narrows(&after, &before), "open connections outlive the address");
    let node = json!({"metadata": {"name": "node-c"}, "spec": {"podCIDR": "198.51.100.0/24"}});
    state.apply(Change::Set(lower(Kind::Node, &node).unwrap()));
    assert_eq!(open(&ruleset(&state), LEARNED), [false, false], "it may be a pod's");
    state.apply(Change::Remove(Kind::ClusterNetworkPolicy, ObjectName::new("", "names")));
    let without = ruleset(&state);
    assert!(!without.sets.keys().any(|set| set.as_str().contains("names")), "{without}");
}

#[test]
fn answers_are_copied_for_pods_with_domain_names() {
    let mut state = cluster();
    let accept = rule(0, RuleAction::Accept, names(&[(false, "example.org")]), Ports::Any);
    let subject = PodScope { namespaces: selector(Some(("team", "a"))), pods: Selector::everything() };
    let policy = cluster_policy("names", Tier::Admin, vec![], vec![accept]);
    let copying = layout().copying_dns_answers_to(Some(7));
    let text = |state: &ClusterState, layout: &Layout| {
        translate(state, NODE, layout).ruleset.in_first_generation().to_string()
    };
    assert!(!text(&state, &copying).contains("dns"));
    state.apply(set(ClusterPolicy { subject, ..policy }));
    let copied = text(&state, &copying);
    let rule = "meta l4proto udp ct reply proto-src 53 ct direction reply ct original ip saddr @dns-clients4 update \
                @dns-answers4 { ct original ip saddr counter limit rate 100/second burst 200 packets";
    assert!(copied.contains(rule), "{copied}");
    let segments = "ip daddr . ip saddr != @dns-paused4 log prefix \"ringfence dns\" group 7 snaplen 16640";
    assert!(copied.contains(segments), "{copied}");
    let clients = translate(&state, NODE, &copying).ruleset.in_first_generation().sets
        [&nft::Name::new("dns-clients4").unwrap()]
        .clone();
    assert_eq!(clients.elements.len(), 1, "one pod of the node is of the team");
    assert!(!text(&state, &layout()).contains("dns-answers"));
}

/// Policies of five rules, each about a pod and ports of its own.
fn many_policies(count: u16) -> ClusterState {
    let mut state = cluster();
    for number in 0..count {
        let app = format!("app-{}", number % 50);
        let object = json!({
            "metadata": {"namespace": "n0", "name": format!("peer-{number}"), "labels": {"app": app}},
            "spec": {"nodeName": "node-b"},
            "status": {"phase": "Running", "podIP": format!("10.2.{}.{}", number / 250, number % 250 + 1)},
        });
        state.apply(Change::Set(lower(Kind::Pod, &object).unwrap()));
        let port = |number: u16| tcp(PortRange::Numbers(number, number));
        let rules = [
            (RuleAction::Accept, port(10_000 + number)),
            (RuleAction::Deny, port(20_000 + number)),
            (RuleAction::Pass, port(30_000 + number)),
            (RuleAction::Deny, tcp(PortRange::Numbers(40_000 + 2 * number, 40_001 + 2 * number))),
            (RuleAction::Pass, Ports::Any),
        ];
        let rules = rules.into_iter().enumerate();
        let rules: Vec<ClusterRule> =
            rules.map(|(index, (action, ports))| rule(index, action, pods_of(&app), ports)).collect();
        let policy = cluster_policy(&format!("c{number}"), Tier::Admin, rules.clone(), rules);
        state.apply(set(ClusterPolicy { priority: number, ..policy }));
    }
    state
}

#[test]
fn rules_met_stay_few_with_many_policies() {
    /// Rules that a first packet meets between two pods of the node, with any number of policies.
    const MOST_RULES: usize = 40;
    for count in [1, 20, 120] {
        let ruleset = ruleset(&many_policies(count));
        for port in [80, 10_000, 20_000 + count - 1, 30_000 + count / 2, 40_000, 65_535] {
            for source in [address(1), "10.2.0.1".to_owned(), OUTSIDE.to_owned()] {
                let first = Packet::first(source.parse().unwrap(), address(0).parse().unwrap(), 6, Some(port));
                let met = rules_met(&ruleset, &first, Hook::Forward).len();
                assert!(met <= MOST_RULES, "{met} rules with {count} policies at port {port} from {source}");
            }
        }
        let (pods, rules) = (6 + usize::from(count), 10 * usize::from(count));
        let elements: usize = ruleset.sets.values().map(|set| set.elements.len()).sum();
        assert!(elements <= 100 + 6 * (pods + rules), "{elements} elements with {count} policies");
    }
}

/// A cluster policy as it was drawn.
#[derive(Debug, Clone)]
struct Drawn {
    tier: Tier,
    priority: u16,
    /// Selects the pods of one team only.
    team: Option<&'static str>,
    ingress: Vec<ClusterRule>,
    egress: Vec<ClusterRule>,
}

#[derive(Debug, Clone)]
enum Step {
    Pod(usize, &'static str, bool),
    RemovePod(usize),
    Team(&'static str, &'static str),
    RemoveNamespace(&'static str),
    Node(usize, &'static str),
    Policy(usize, Drawn),
    RemovePolicy(usize),
    NetworkPolicy(Option<u16>),
    RemoveNetworkPolicy,
    Learn(&'static str, IpAddr),
    RemoveLearned(&'static str, IpAddr),
}

fn app() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["web", "db", "client"])
}

fn team() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b"])
}

fn peer(direction: Direction) -> BoxedStrategy<ClusterPeer> {
    let pods = (prop::option::of(team()), prop::option::of(app())).prop_map(|(team, app)| {
        let namespaces = selector(team.map(|team| ("team", team)));
        ClusterPeer::Pods(PodScope { namespaces, pods: selector(app.map(|app| ("app", app))) })
    });
    match direction {
        Direction::Ingress => pods.boxed(),
        Direction::Egress => {
            let nodes = prop::sample::select(vec!["worker", "control"]).prop_map(nodes_of);
            let network = prop::sample::select(vec![
                "0.0.0.0/0",
                "10.1.0.0/30",
                "10.1.0.0/24",
                "198.51.100.0/24",
                "192.0.2.1/32",
            ]);
            let networks = prop::collection::vec(network, 1..3);
            let networks = networks.prop_map(|n| ClusterPeer::Networks(n.iter().map(|n| n.parse().unwrap()).collect()));
            let name =
                prop::sample::select(vec![(false, "example.org"), (true, "example.org"), (true, "cluster.local")]);
            let name = name.prop_map(|(wildcard, name)| DomainPattern { wildcard, name: name.into() });
            let names = prop::collection::vec(name, 1..3).prop_map(ClusterPeer::DomainNames);
            prop_oneof![3 => pods, 1 => nodes, 2 => networks, 2 => names].boxed()
        }
    }
}

fn ports() -> impl Strategy<Value = Ports> {
    let range = prop_oneof![
        Just(PortRange::All),
        (78..84_u16, 0..4_u16).prop_map(|(first, more)| PortRange::Numbers(first, first + more)),
        (7999..8003_u16).prop_map(|port| PortRange::Numbers(port, port)),
        Just(PortRange::Named("web".into())),
    ];
    let protocol = prop::sample::select(vec![Protocol::Tcp, Protocol::Tcp, Protocol::Udp]);
    let port = (protocol, range).prop_map(|(protocol, range)| PortMatch { protocol, range });
    prop_oneof![Just(Ports::Any), prop::collection::vec(port, 0..4).prop_map(Ports::Of)]
}

fn rules(direction: Direction) -> impl Strategy<Value = Vec<ClusterRule>> {
    let action = prop::sample::select(vec![RuleAction::Accept, RuleAction::Deny, RuleAction::Pass]);
    let peers = prop_oneof![
        30 => prop::collection::vec(peer(direction), 0..3).prop_map(ClusterPeers::Of),
        1 => Just(ClusterPeers::Any),
    ];
    let rule = (action, peers, ports());
    prop::collection::vec(rule, 0..5).prop_map(|rules| {
        let number = |(index, (action, peers, ports))| {
            let rule = ClusterRule { index, name: None, action, peers, ports };
            let has_names = rule.domain_names().next().is_some();
            ClusterRule { action: if has_names { RuleAction::Accept } else { action }, ..rule }
        };
        rules.into_iter().enumerate().map(number).collect()
    })
}

fn drawn() -> impl Strategy<Value = Drawn> {
    let tier = prop::sample::select(vec![Tier::Admin, Tier::Admin, Tier::Baseline]);
    let team = prop::option::weighted(0.3, team());
    (tier, 0..3_u16, team, rules(Direction::Ingress), rules(Direction::Egress))
        .prop_map(|(tier, priority, team, ingress, egress)| Drawn { tier, priority, team, ingress, egress })
}

fn step() -> impl Strategy<Value = Step> {
    let port = prop::option::of(78..84_u16);
    prop_oneof![
        4 => (0..8_usize, app(), prop::bool::weighted(0.8)).prop_map(|(n, app, readable)| Step::Pod(n, app, readable)),
        1 => (0..8_usize).prop_map(Step::RemovePod),
        1 => (prop::sample::select(vec!["n0", "n1"]), team()).prop_map(|(name, team)| Step::Team(name, team)),
        1 => prop::sample::select(vec!["n0", "n1"]).prop_map(Step::RemoveNamespace),
        1 => (0..2_usize, prop::sample::select(vec!["worker", "control"])).prop_map(|(n, role)| Step::Node(n, role)),
        4 => (0..4_usize, drawn()).prop_map(|(n, drawn)| Step::Policy(n, drawn)),
        1 => (0..4_usize).prop_map(Step::RemovePolicy),
        1 => port.prop_map(Step::NetworkPolicy),
        1 => Just(Step::RemoveNetworkPolicy),
        4 => learned().prop_map(|(name, address)| Step::Learn(name, address)),
        1 => learned().prop_map(|(name, address)| Step::RemoveLearned(name, address)),
    ]
}

fn apply(state: &mut ClusterState, step: &Step) -> StateDelta {
    match step {
        Step::Learn(name, address) => state.learn((*name).into(), *address),
        Step::RemoveLearned(name, address) => state.remove_learned(name, *address),
        other => state.apply(change(other)),
    }
}

fn learned() -> impl Strategy<Value = (&'static str, IpAddr)> {
    let name = prop::sample::select(vec!["example.org", "www.example.org", "db.svc.cluster.local", "example.com"]);
    let addresses = [OUTSIDE, "198.51.100.8", NODE_ADDRESS, OTHER_NODE_ADDRESS, "10.1.0.1", "10.1.0.3", "10.1.0.4"];
    (name, prop::sample::select(addresses.map(|text| text.parse().unwrap()).to_vec()))
}

fn change(step: &Step) -> Change {
    match step {
        Step::Learn(..) | Step::RemoveLearned(..) => unreachable!("no change of an object"),
        Step::Pod(number, app, readable) => pod(*number, app, *readable),
        Step::RemovePod(n) => Change::Remove(Kind::Pod, ObjectName::new(&format!("n{}", n % 2), &format!("p{n}"))),
        Step::Team(name, team) => namespace(name, team),
        Step::RemoveNamespace(name) => Change::Remove(Kind::Namespace, ObjectName::new("", name)),
        Step::Node(number, role) => {
            node(["node-a", "node-b"][*number], [NODE_ADDRESS, OTHER_NODE_ADDRESS][*number], role)
        }
        Step::Policy(number, Drawn { tier, priority, team, ingress, egress }) => {
            let policy = cluster_policy(&format!("c{number}"), *tier, ingress.clone(), egress.clone());
            let namespaces = selector(team.map(|team| ("team", team)));
            let subject = PodScope { namespaces, pods: Selector::everything() };
            set(ClusterPolicy { priority: *priority, subject, ..policy })
        }
        Step::RemovePolicy(n) => Change::Remove(Kind::ClusterNetworkPolicy, ObjectName::new("", &format!("c{n}"))),
        Step::NetworkPolicy(port) => network_policy(*port),
        Step::RemoveNetworkPolicy => Change::Remove(Kind::NetworkPolicy, ObjectName::new("n0", "some")),
    }
}

/// Yes, no, or unknown.
type Answer = Option<bool>;

fn all(answers: impl IntoIterator<Item = Answer>) -> Answer {
    let answers: Vec<Answer> = answers.into_iter().collect();
    if answers.contains(&Some(false)) {
        Some(false)
    } else if answers.contains(&None) {
        None
    } else {
        Some(true)
    }
}

fn any(answers: impl IntoIterator<Item = Answer>) -> Answer {
    all(answers.into_iter().map(|answer| answer.map(|yes| !yes))).map(|no| !no)
}

fn selects_pod(state: &ClusterState, scope: &PodScope, at: IpAddr) -> Answer {
    let Some(pod) = state.owner(at) else { return Some(false) };
    let namespace = state.namespace_labels(&pod.name.namespace).map(|labels| scope.namespaces.matches(labels));
    let labels = (!pod.unreadable).then(|| scope.pods.matches(&pod.labels));
    all([namespace, labels])
}

fn peer_matches(state: &ClusterState, peer: &ClusterPeer, at: IpAddr) -> Answer {
    match peer {
        ClusterPeer::Pods(scope) => selects_pod(state, scope, at),
        ClusterPeer::Nodes(selector) => {
            let nodes = state.nodes().filter(|node| node.status_addresses.iter().any(|address| address == at));
            any(nodes.map(|node| Some(selector.matches(&node.labels))))
        }
        ClusterPeer::Networks(networks) => Some(networks.iter().any(|network| network.contains(&at))),
        ClusterPeer::DomainNames(patterns) => {
            let labels = |name: &str| name.split('.').rev().map(str::to_owned).collect::<Vec<String>>();
            let mut names = state.learned_names(at).map(|name| labels(name));
            Some(names.any(|name| {
                patterns.iter().any(|pattern| {
                    let wanted = labels(&pattern.name);
                    name.starts_with(&wanted) && (name.len() > wanted.len()) == pattern.wildcard
                })
            }))
        }
    }
}

fn port_matches(state: &ClusterState, port: &PortMatch, server: IpAddr, flow: (u8, Option<u16>)) -> Answer {
    let (protocol, number) = flow;
    if protocol != port.protocol.number() {
        return Some(false);
    }
    match &port.range {
        PortRange::All => Some(true),
        PortRange::Numbers(first, last) => Some(number.is_some_and(|n| (*first..=*last).contains(&n))),
        PortRange::Named(name) => match state.owner(server) {
            Some(pod) if pod.unreadable => None,
            pod => Some(number.is_some() && pod.and_then(|pod| pod.resolve(name, port.protocol)) == number),
        },
    }
}

/// The deciding action of a tier for the pod, in a direction.
fn of_tier(
    state: &ClusterState,
    tier: Tier,
    direction: Direction,
    ends: (IpAddr, IpAddr),
    flow: (u8, Option<u16>),
) -> Option<RuleAction> {
    let (own, other) = match direction {
        Direction::Egress => ends,
        Direction::Ingress => (ends.1, ends.0),
    };
    for policy in state.cluster_policies_of(tier) {
        let selected = selects_pod(state, &policy.subject, own);
        for rule in policy.rules(direction) {
            let peers = match &rule.peers {
                ClusterPeers::Any => Some(true),
                ClusterPeers::Of(peers) => any(peers.iter().map(|peer| peer_matches(state, peer, other))),
            };
            let ports = match &rule.ports {
                Ports::Any => Some(true),
                Ports::Of(ports) => any(ports.iter().map(|port| port_matches(state, port, ends.1, flow))),
            };
            match (all([selected, peers, ports]), rule.action) {
                (Some(false), _) | (None, RuleAction::Accept) => {}
                (None, RuleAction::Deny | RuleAction::Pass) => return Some(RuleAction::Deny),
                (Some(true), action) => return Some(action),
            }
        }
    }
    None
}

/// Whether the side of a pod of the node allows the flow, at the forward hook.
fn side_allows(state: &ClusterState, direction: Direction, ends: (IpAddr, IpAddr), flow: (u8, Option<u16>)) -> bool {
    let own = if direction == Direction::Egress { ends.0 } else { ends.1 };
    let Some(pod) = state.owner(own).filter(|pod| pod.node.as_deref() == Some(NODE)) else { return true };
    if pod.unreadable {
        return false;
    }
    match of_tier(state, Tier::Admin, direction, ends, flow) {
        Some(RuleAction::Accept) => return true,
        Some(RuleAction::Deny) => return false,
        Some(RuleAction::Pass) | None => {}
    }
    match state.policies_in(&pod.name.namespace).next().and_then(|policy| policy.rules(direction)) {
        Some(rules) => rules.iter().any(|rule| match &rule.ports {
            Ports::Any => true,
            Ports::Of(ports) => ports.iter().any(|port| port_matches(state, port, ends.1, flow) == Some(true)),
        }),
        None => of_tier(state, Tier::Baseline, direction, ends, flow) != Some(RuleAction::Deny),
    }
}

fn own_node_allows(state: &ClusterState, ends: (IpAddr, IpAddr), flow: (u8, Option<u16>)) -> bool {
    let Some(pod) = state.owner(ends.0).filter(|pod| pod.node.as_deref() == Some(NODE)) else { return true };
    let of = |tier| of_tier(state, tier, Direction::Egress, ends, flow);
    match of(Tier::Admin) {
        Some(RuleAction::Accept) => true,
        Some(RuleAction::Deny) => false,
        // An unreadable pod is isolated.
        Some(RuleAction::Pass) | None => {
            let isolated = pod.unreadable || state.policies_in(&pod.name.namespace).next().is_some();
            isolated || of(Tier::Baseline) != Some(RuleAction::Deny)
        }
    }
}

#[test]
fn incremental_rulesets_agree_with_rules_in_order() {
    let steps = prop::collection::vec(step(), 1..14);
    let mut runner = TestRunner::new(Config { cases: 80, failure_persistence: None, ..Config::default() });
    let seen = std::cell::Cell::new([0_usize; 2]);
    let checked = runner.run(&steps, |steps| {
        let mut state = cluster();
        let mut translator = Translator::new(NODE, layout());
        translator.begin(&state);
        for step in &steps {
            let changed = apply(&mut state, step);
            translator.update(&state, &changed);
            let followed = translator.translation().ruleset.in_first_generation();
            let fresh = translate(&state, NODE, &layout()).ruleset.in_first_generation();
            prop_assert_eq!(followed.to_string(), fresh.to_string());
            prop_assert_eq!(&followed, &fresh);
            prop_assert_eq!(followed.validate(), vec![]);
        }
        let ruleset = translator.translation().ruleset.in_first_generation();
        let others = [NODE_ADDRESS, OTHER_NODE_ADDRESS, OUTSIDE, "198.51.100.8"].map(str::to_owned);
        let addresses: Vec<IpAddr> = (0..8).map(address).chain(others).map(|text| text.parse().unwrap()).collect();
        let flows = [78, 79, 80, 81, 82, 83, 84, 7999, 8000, 8001, 8002, 8003].map(|port| (6, Some(port)));
        let flows = flows.into_iter().chain([(17, Some(80)), (132, Some(80)), (1, None)]);
        for flow in flows {
            for source in &addresses {
                for destination in addresses.iter().filter(|destination| *destination != source) {
                    let ends = (*source, *destination);
                    let first = Packet::first(ends.0, ends.1, flow.0, flow.1);
                    let expected = Direction::BOTH.iter().all(|d| side_allows(&state, *d, ends, flow));
                    for packet in [first.clone(), first.reply(0)] {
                        let evaluation = evaluate(&ruleset, &packet);
                        let accepted = evaluation.stop == Stop::Accepted;
                        prop_assert_eq!(accepted, expected, "{:?} {:?} went {:?}", ends, flow, evaluation.path);
                    }
                    let mut counts = seen.get();
                    counts[usize::from(expected)] += 1;
                    seen.set(counts);
                    let at_node = evaluate_at(&ruleset, &first, Hook::Input);
                    if *destination == NODE_ADDRESS.parse::<IpAddr>().unwrap() {
                        let accepted = at_node.stop == Stop::Accepted;
                        prop_assert_eq!(accepted, own_node_allows(&state, ends, flow), "{:?} {:?}", ends, flow);
                    }
                }
            }
        }
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
    let [denied, allowed] = seen.get();
    assert!(denied > 2_000 && allowed > 2_000, "{denied} flows denied, {allowed} allowed");
}
