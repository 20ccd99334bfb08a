use flow::{ConnectionId, CountedFlow, TraceVerdict, Tuple};
use identity::{ClusterName, ClusterScheme, LabelFilter};
use jiff::Timestamp;
use policy::{Attachment, AttachmentId, Change, ClusterState, Kind, Layout, ObjectName, lower};
use serde_json::{Value, json};

use super::*;
use crate::api::drops::{DropEnd, EndKind};
use crate::flows::feed::{DenyingPolicies, EnforcedState, Mutation, Progress};
use crate::reports::{AddressContext, FirstPacket, PacketFlow};

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(milliseconds).unwrap()
}

fn set(kind: Kind, object: Value) -> Change {
    Change::Set(lower(kind, &object).unwrap())
}

/// Allows connections to `db`, at this port.
fn allowing(name: &str, port: u16) -> Change {
    let object = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"ports": [{"port": port}]}]},
    });
    set(Kind::NetworkPolicy, object)
}

fn update(changes: Vec<Change>, generation: u32, before: i64, after: i64) -> EnforcedState {
    let progress = Progress::Mutations(changes.into_iter().map(Mutation::Object).collect());
    EnforcedState { progress, generation, before: at(before), after: at(after) }
}

fn replacing(old: &str, new: Change) -> Vec<Change> {
    vec![Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", old)), new]
}

fn layout() -> Layout {
    Layout::for_table("ringfence").unwrap()
}

fn begin() -> (Attribution, Replica) {
    let place = AddressContext { node: "node-a".into(), ..AddressContext::default() };
    let identities = ClusterScheme::new(ClusterName::Configured("c".into()), LabelFilter::default());
    let naming = NameInputs::new(place, identities, Default::default(), vec!["app".into()]);
    let mut replica = Replica::default();
    let pod = |name: &str, address: &str| {
        let metadata = json!({"namespace": "shop", "name": name, "labels": {"app": name}});
        let status = json!({"phase": "Running", "podIP": address});
        set(Kind::Pod, json!({"metadata": metadata, "spec": {"nodeName": "node-a"}, "status": status}))
    };
    let objects = vec![pod("web", "10.1.0.1"), pod("db", "10.1.0.2"), allowing("first", 80)];
    let mut state = ClusterState::new();
    objects.into_iter().for_each(|change| drop(state.apply(change)));
    replica.enqueue(EnforcedState {
        progress: Progress::State(Box::new(state)),
        generation: 7,
        before: at(0),
        after: at(0),
    });
    replica.advance_to(at(0));
    (Attribution::new(naming, layout()), replica)
}

fn connection(port: u16, generation: Option<u32>) -> CountedFlow {
    let (source, destination) = ("10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap());
    let tuple = |source, destination, source_port, destination_port| Tuple {
        source,
        destination,
        protocol: 6,
        source_port: Some(source_port),
        destination_port: Some(destination_port),
        icmp_type: None,
    };
    CountedFlow {
        id: ConnectionId { id: 1, zone: 0, original: tuple(source, destination, 1024, port) },
        reply: tuple(destination, source, port, 1024),
        mark: generation.map_or(0, |number| layout().first_generation().drawn_from(number - 1).mark()),
        has_reply: false,
        volume: None,
        started: None,
    }
}

/// The policy that explains the ingress of the destination.
fn policy_of(subject: &Subject) -> String {
    subject.key.ingress.enforced.iter().map(|hit| hit.name.to_string()).collect()
}

#[test]
fn connection_has_the_policy_of_its_time() {
    let (mut attribution, mut replica) = begin();
    replica.enqueue(update(replacing("first", allowing("second", 80)), 7, 100, 110));
    let mut policy =
        |began| policy_of(&attribution.of_connection(&mut replica, &connection(80, Some(7)), at(began)).unwrap());
    assert_eq!((policy(50), policy(99), policy(110)), ("first".into(), "first".into(), "second".into()));
}

#[test]
fn connection_during_commit_gets_earlier_rules() {
    let (mut attribution, mut replica) = begin();
    replica.enqueue(update(replacing("first", allowing("second", 80)), 8, 100, 110));
    // The second connection was judged again after the commit, or began after it took effect.
    for marked in [7, 8] {
        let subject = attribution.of_connection(&mut replica, &connection(80, Some(marked)), at(105)).unwrap();
        assert_eq!((policy_of(&subject), subject.generation), ("first".into(), Some(7)));
    }
    let subject = attribution.of_connection(&mut replica, &connection(80, Some(8)), at(110)).unwrap();
    assert_eq!((policy_of(&subject), subject.generation), ("second".into(), Some(8)));
}

#[test]
fn passed_connection_gets_rules_that_allow_it() {
    let (mut attribution, mut replica) = begin();
    replica.enqueue(update(vec![allowing("second", 443)], 7, 100, 110));
    let subject = attribution.of_connection(&mut replica, &connection(443, Some(7)), at(105)).unwrap();
    assert_eq!(policy_of(&subject), "second");
}

#[test]
fn connection_judged_again_keeps_its_first_policy() {
    let (mut attribution, mut replica) = begin();
    replica.enqueue(update(replacing("first", allowing("second", 80)), 8, 100, 110));
    let subject = attribution.of_connection(&mut replica, &connection(80, Some(8)), at(50)).unwrap();
    assert_eq!((policy_of(&subject), subject.generation, replica.waiting()), ("first".into(), Some(7), 1));
}

#[test]
fn reevaluated_connection_gets_rules_that_allow_it() {
    let (mut attribution, mut replica) = begin();
    replica.enqueue(update(vec![allowing("second", 443)], 8, 100, 110));
    replica.enqueue(update(vec![allowing("third", 8443)], 9, 200, 210));
    let subject = attribution.of_connection(&mut replica, &connection(443, Some(9)), at(105)).unwrap();
    assert_eq!((policy_of(&subject), subject.generation, replica.waiting()), ("second".into(), Some(8), 1));
}

#[test]
fn connection_of_unknown_generation_has_no_policy() {
    let (mut attribution, mut replica) = begin();
    let subject = attribution.of_connection(&mut replica, &connection(80, Some(3)), at(50)).unwrap();
    assert_eq!(subject.key.ingress.verdict, TraceVerdict::Unknown);
    assert_eq!(policy_of(&subject), "");
}

#[test]
fn connection_before_the_agent_has_unknown_rules() {
    let (mut attribution, mut replica) = begin();
    let mut traces = |generation, began| {
        let subject = attribution.of_connection(&mut replica, &connection(80, generation), began).unwrap();
        let FlowKey { egress, ingress, .. } = &*subject.key;
        (egress.verdict, ingress.verdict, policy_of(&subject))
    };
    // A policy selects the destination now, but did not approve the connection.
    let unknown = (TraceVerdict::NotIsolated, TraceVerdict::Unknown, String::new());
    assert_eq!(traces(None, at(-1)), unknown);
    assert_eq!(traces(Some(6), at(-1)), unknown);
    let known = (TraceVerdict::NotIsolated, TraceVerdict::Allowed, "first".to_owned());
    assert_eq!(traces(None, at(1)), known);
    // The generation that approved it is still in force.
    assert_eq!(traces(Some(7), at(-1)), known);
}

/// A bridge that floods a denied frame leaves an entry without an approval.
#[test]
fn denied_connection_without_approval_has_no_subject() {
    let (mut attribution, mut replica) = begin();
    assert_eq!(attribution.of_connection(&mut replica, &connection(443, None), at(50)), None);
    // Rules that are not known any more have approved it.
    assert!(attribution.of_connection(&mut replica, &connection(443, Some(3)), at(50)).is_some());
    // If it passed before the agent's start, an earlier agent has recorded it.
    let replied = CountedFlow { has_reply: true, started: Some(at(1)), ..connection(443, None) };
    assert_eq!(attribution.of_connection(&mut replica, &replied, at(-1)), None);
    assert_eq!(attribution.of_connection(&mut replica, &connection(443, None), at(-1)), None);
    replica.enqueue(update(vec![Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", "first"))], 7, 100, 110));
    replica.enqueue(update(vec![allowing("second", 80)], 7, 200, 210));
    assert!(attribution.of_connection(&mut replica, &connection(443, None), at(105)).is_some());
    assert_eq!(attribution.of_connection(&mut replica, &connection(443, None), at(220)), None);
    // A listing finds it after the policy came; a reply shows that it may have passed.
    let replied = CountedFlow { has_reply: true, started: Some(at(150)), ..connection(443, None) };
    assert!(attribution.of_connection(&mut replica, &replied, at(150)).is_some());
    assert_eq!(attribution.of_connection(&mut replica, &connection(443, None), at(150)), None);
}

/// The other end may send a packet of the reply direction, which is denied, too.
#[test]
fn denied_entry_with_reply_stays_denied() {
    let (mut attribution, mut replica) = begin();
    let denied = CountedFlow { started: Some(at(50)), ..connection(443, None) };
    assert_eq!(attribution.of_connection(&mut replica, &denied, at(50)), None);
    replica.enqueue(update(replacing("first", allowing("second", 80)), 7, 100, 110));
    replica.advance_to(at(120));
    let replied = CountedFlow { has_reply: true, ..denied };
    assert_eq!(attribution.of_connection(&mut replica, &replied, at(50)), None);
    // Rules allow it meanwhile.
    let approved = CountedFlow { mark: connection(443, Some(7)).mark, ..replied.clone() };
    assert!(attribution.of_connection(&mut replica, &approved, at(50)).is_some());
    // The kernel uses the identifier again.
    attribution.forget(&replied);
    assert!(attribution.of_connection(&mut replica, &replied, at(50)).is_some());
}

#[test]
fn pod_without_object_has_no_allowed_connection() {
    let (mut attribution, mut replica) = begin();
    let connection = connection(80, None);
    assert!(attribution.of_connection(&mut replica, &connection, at(50)).is_some());
    let attachment = Attachment {
        id: AttachmentId { container: "c".into(), interface: "eth0".into() },
        pod: ObjectName::new("shop", "web"),
        uid: None,
        addresses: vec!["10.1.0.1".parse().unwrap()],
        host_interface: None,
        bridged: false,
        input_interface: None,
        hardware_address: None,
        link_local: vec![],
        since: 1,
    };
    let removed = Mutation::Object(Change::Remove(Kind::Pod, ObjectName::new("shop", "web")));
    let progress = Progress::Mutations(vec![Mutation::Attach(attachment), removed]);
    replica.enqueue(EnforcedState { progress, generation: 7, before: at(100), after: at(110) });
    assert_eq!(attribution.of_connection(&mut replica, &connection, at(120)), None);
}

#[test]
fn denied_packets_have_passed_the_source() {
    let (mut attribution, replica) = begin();
    let mut denied = |direction| {
        let end = DropEnd { kind: EndKind::Unknown, address: None, pod: None, node: None, cluster: None, set: None };
        let flow = PacketFlow {
            source: "10.1.0.1".parse().unwrap(),
            destination: "10.1.0.2".parse().unwrap(),
            protocol: 6,
            port: Some(81),
        };
        let packets = DeniedPackets {
            source: end.clone(),
            destination: end,
            flow,
            first: FirstPacket::default(),
            cause: Cause::from(direction),
            direction: Some(direction),
            by: DenyingPolicies { isolating: vec!["shop/first".into()], ..DenyingPolicies::default() },
            count: 1,
            at: at(1),
        };
        let key = attribution.of_denied(&replica, &packets).unwrap().key;
        (key.egress.enforced_here, key.ingress.enforced_here)
    };
    assert_eq!(denied(Direction::Ingress), (true, true));
    assert_eq!(denied(Direction::Egress), (true, false));
}

/// A policy of the whole cluster for the ingress of all pods.
fn cluster_policy(name: &str, tier: &str, rules: Value) -> Change {
    let object = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": name},
        "spec": {"tier": tier, "priority": 1, "subject": {"namespaces": {}}, "ingress": rules},
    });
    set(Kind::ClusterNetworkPolicy, object)
}

fn from_all(name: &str, action: &str) -> Value {
    json!({"name": name, "action": action, "from": [{"namespaces": {}}]})
}

#[test]
fn hits_have_tier_action_and_rule_name() {
    let (mut attribution, mut replica) = begin();
    let changes = vec![
        set(Kind::Namespace, json!({"metadata": {"name": "shop"}})),
        Change::Remove(Kind::NetworkPolicy, ObjectName::new("shop", "first")),
        cluster_policy("a", "Admin", json!([from_all("on", "Pass")])),
        cluster_policy("b", "Baseline", json!([from_all("in", "Accept")])),
    ];
    replica.enqueue(update(changes, 8, 10, 20));
    let of = |hits: &[flow::PolicyHit]| serde_json::to_value(hits).unwrap();
    let hit = |tier: &str, policy: &str, name: &str, action: &str| {
        json!([{
            "kind": "ClusterNetworkPolicy", "namespace": "", "name": policy, "tier": tier, "rule": "spec.ingress[0]",
            "ruleName": name, "action": action,
        }])
    };
    let passed = attribution.of_connection(&mut replica, &connection(80, None), at(50)).unwrap();
    let passed = &passed.key;
    assert_eq!(passed.ingress.verdict, TraceVerdict::Allowed);
    assert_eq!(of(&passed.ingress.enforced), hit("baseline", "b", "in", "allow"));
    assert_eq!(of(&passed.ingress.passed_by), hit("admin", "a", "on", "pass"));

    let end = DropEnd { kind: EndKind::Unknown, address: None, pod: None, node: None, cluster: None, set: None };
    let rule = |tier, policy: &str, name: &str, action| policy::ClusterRuleName {
        tier,
        policy: policy.into(),
        field: "spec.ingress[0]".into(),
        name: Some(name.into()),
        action,
        unclear: false,
    };
    let denied = DeniedPackets {
        source: end.clone(),
        destination: end,
        flow: PacketFlow {
            source: "10.1.0.1".parse().unwrap(),
            destination: "10.1.0.2".parse().unwrap(),
            protocol: 6,
            port: Some(81),
        },
        first: FirstPacket::default(),
        cause: Cause::Ingress,
        direction: Some(Direction::Ingress),
        by: DenyingPolicies {
            isolating: vec!["b".into()],
            rule: Some(rule(policy::Tier::Baseline, "b", "out", policy::RuleAction::Deny)),
            passed_by: vec![rule(policy::Tier::Admin, "a", "on", policy::RuleAction::Pass)],
        },
        count: 1,
        at: at(60),
    };
    let key = attribution.of_denied(&replica, &denied).unwrap().key;
    assert_eq!(of(&key.ingress.enforced), hit("baseline", "b", "out", "deny"));
    assert_eq!(of(&key.ingress.passed_by), hit("admin", "a", "on", "pass"));
}

#[test]
fn connections_of_other_nodes_have_no_subject() {
    let (mut attribution, mut replica) = begin();
    let mut elsewhere = connection(80, None);
    (elsewhere.id.original.source, elsewhere.reply.source) =
        ("192.0.2.1".parse().unwrap(), "192.0.2.2".parse().unwrap());
    assert_eq!(attribution.of_connection(&mut replica, &elsewhere, at(50)), None);
}
