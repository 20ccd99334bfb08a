//! The kernel's cost of policies grows with the sum of pods and rules, not with their product.

use std::net::IpAddr;
use std::time::Instant;

use kit::netns::in_new_namespace;
use nfnetlink::Kernel;
use nft::{Packet, Protocol, Ruleset, Stop, create, evaluate};
use policy::{Change, ClusterState, Kind, Layout, ObjectName, Traffic, Translator, explain, lower, translate};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::{Value, json};

/// Bound on elements per pod, label of a pod, and rule. A peer is in at most 14 layers of a level, and few ranges need
/// more than three levels; most layers have far fewer elements.
const ELEMENTS_EACH: usize = 24;

/// Bound on elements of the policy with nested ranges.
const MOST_OF_NESTED: usize = 20_000;

fn layout() -> Layout {
    Layout::for_table("ringfence").unwrap()
}

fn pod(number: usize, labels: &Value) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": format!("p{number}"), "labels": labels},
        "spec": {"nodeName": if number == 0 { "node-a" } else { "node-b" }},
        "status": {"podIP": format!("10.1.{}.{}", number / 250, number % 250)},
    })
}

fn state(pods: &[Value], policy: &Value) -> ClusterState {
    let mut state = ClusterState::new();
    let lowered = |kind, objects: &[Value]| objects.iter().map(|object| lower(kind, object).unwrap()).collect();
    let shop = [json!({"metadata": {"name": "shop"}})];
    state.apply(Change::Replace(Kind::Namespace, lowered(Kind::Namespace, &shop)));
    state.apply(Change::Replace(Kind::Pod, lowered(Kind::Pod, pods)));
    state.apply(Change::Replace(Kind::NetworkPolicy, lowered(Kind::NetworkPolicy, std::slice::from_ref(policy))));
    state
}

fn policy(rules: &[Value]) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "metadata": {"namespace": "shop", "name": "ranges"},
        "spec": {"podSelector": {}, "ingress": rules},
    })
}

fn rule(first: u16, last: u16, requirement: &Value) -> Value {
    json!({
        "from": [{"podSelector": {"matchExpressions": [requirement]}}],
        "ports": [{"port": first, "endPort": last}],
    })
}

fn elements(ruleset: &Ruleset) -> usize {
    ruleset.sets.values().map(|set| set.elements.len()).sum()
}

#[test]
fn nested_port_ranges_cost_few_elements() {
    let pods: Vec<Value> = (0..1000).map(|n| pod(n, &json!({"app": format!("a{}", n % 50)}))).collect();
    let nested = |n: u16| rule(1000 + n, 60000 - n, &json!({"key": format!("k{n}"), "operator": "DoesNotExist"}));
    let rules: Vec<Value> = (0..400).map(nested).collect();
    let policy = policy(&rules);
    let state = state(&pods, &policy);
    let started = Instant::now();
    let ruleset = translate(&state, "node-a", &layout()).ruleset.in_first_generation();
    let translated = started.elapsed();
    assert_eq!(ruleset.validate(), vec![]);
    assert!(elements(&ruleset) <= MOST_OF_NESTED, "{}", elements(&ruleset));
    in_new_namespace(|| {
        let mut kernel = Kernel::open().expect("nf_tables, as root");
        let operations = create(&ruleset);
        let generation = kernel.generation().expect("the generation");
        let started = Instant::now();
        kernel.commit(&operations, generation).expect("the commit");
        eprintln!(
            "a policy of {} kB: {} elements, {} sets, {} chains, {} rules; translated in {translated:.0?}, committed in {:.0?}",
            policy.to_string().len() / 1000,
            elements(&ruleset),
            ruleset.sets.len(),
            ruleset.chains.len(),
            ruleset.chains.values().map(|chain| chain.rules.len()).sum::<usize>(),
            started.elapsed()
        );
    });
}

/// One peer selects every pod at every port, and many select none at a port each.
#[test]
fn peer_of_every_port_is_copied_few_times() {
    const RULES: u16 = 400;
    let pods: Vec<Value> = (0..1000).map(|n| pod(n, &json!({"app": "any"}))).collect();
    let narrow =
        |n: u16| rule(2 * n + 1, 2 * n + 1, &json!({"key": "app", "operator": "In", "values": [format!("v{n}")]}));
    let wide = rule(1, u16::MAX, &json!({"key": "app", "operator": "Exists"}));
    let rules: Vec<Value> = (0..RULES).map(narrow).chain([wide]).collect();
    let ruleset = translate(&state(&pods, &policy(&rules)), "node-a", &layout()).ruleset.in_first_generation();
    assert_eq!(ruleset.validate(), vec![]);
    let bound = ELEMENTS_EACH * (pods.len() + usize::from(RULES));
    assert!(elements(&ruleset) <= bound, "{} elements, the bound is {bound}", elements(&ruleset));
}

/// A requirement on one of a few keys.
fn requirement() -> impl Strategy<Value = Value> {
    let operator = prop::sample::select(vec!["In", "NotIn", "Exists", "DoesNotExist"]);
    (0..200_usize, operator, 0..3_usize).prop_map(|(key, operator, value)| match operator {
        "In" | "NotIn" => json!({"key": format!("k{key}"), "operator": operator, "values": [format!("v{value}")]}),
        _ => json!({"key": format!("k{key}"), "operator": operator}),
    })
}

#[test]
fn elements_grow_with_pods_and_rules_only() {
    let labels = prop::collection::vec((0..200_usize, 0..3_usize), 0..4);
    let pods = prop::collection::vec(labels, 1..120);
    let nested = prop::collection::vec(requirement(), 1..120).prop_map(|requirements| {
        let nested = |(n, requirement): (usize, &Value)| rule(1000 + n as u16, 60000 - n as u16, requirement);
        requirements.iter().enumerate().map(nested).collect::<Vec<Value>>()
    });
    let anywhere = (1000..2000_u16, 0..1000_u16, requirement());
    let anywhere = prop::collection::vec(anywhere, 1..120).prop_map(|drawn| {
        drawn.iter().map(|(first, more, requirement)| rule(*first, first + more, requirement)).collect::<Vec<Value>>()
    });
    let mut runner = TestRunner::new(Config { cases: 150, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&(pods, prop_oneof![nested, anywhere]), |(pods, rules)| {
        let labels: usize = pods.iter().map(Vec::len).sum();
        let object = |(n, labels): (usize, &Vec<(usize, usize)>)| {
            let labels: serde_json::Map<String, Value> =
                labels.iter().map(|(key, value)| (format!("k{key}"), json!(format!("v{value}")))).collect();
            pod(n, &Value::Object(labels))
        };
        let pods: Vec<Value> = pods.iter().enumerate().map(object).collect();
        let ruleset = translate(&state(&pods, &policy(&rules)), "node-a", &layout()).ruleset.in_first_generation();
        let bound = ELEMENTS_EACH * (pods.len() + labels + rules.len());
        prop_assert!(elements(&ruleset) <= bound, "{} elements, the bound is {bound}", elements(&ruleset));
        prop_assert_eq!(ruleset.validate(), vec![]);
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
}

fn address(number: usize) -> IpAddr {
    format!("10.1.{}.{}", number / 250, number % 250).parse().unwrap()
}

/// A change between two comparisons.
#[derive(Debug, Clone)]
enum Step {
    Label(usize, Vec<(usize, usize)>),
    Remove(usize),
    Namespace(bool),
}

const KEYS: usize = 24;
const PODS: usize = 30;

fn few_labels() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((0..KEYS, 0..2_usize), 0..4)
}

fn labelled(number: usize, labels: &[(usize, usize)]) -> Change {
    let labels = labels.iter().map(|(key, value)| (format!("k{key}"), json!(format!("v{value}"))));
    Change::Set(lower(Kind::Pod, &pod(number, &Value::Object(labels.collect()))).unwrap())
}

fn shop(labelled: bool) -> Change {
    let labels = if labelled { json!({"team": "x"}) } else { json!({}) };
    Change::Set(lower(Kind::Namespace, &json!({"metadata": {"name": "shop", "labels": labels}})).unwrap())
}

/// Mostly peers that differ in a negative requirement, with overlapping ranges.
fn overlapping_rules() -> impl Strategy<Value = Vec<Value>> {
    let operator = prop::sample::select(vec!["NotIn", "DoesNotExist", "DoesNotExist", "DoesNotExist", "In", "Exists"]);
    let requirement = (0..KEYS, operator).prop_map(|(key, operator)| match operator {
        "In" | "NotIn" => json!({"key": format!("k{key}"), "operator": operator, "values": ["v1"]}),
        _ => json!({"key": format!("k{key}"), "operator": operator}),
    });
    let namespaces = prop::sample::select(vec![
        Value::Null,
        Value::Null,
        json!({}),
        json!({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}),
    ]);
    let one =
        (1000..1060_u16, 0..60_u16, requirement, namespaces).prop_map(|(first, more, requirement, namespaces)| {
            let mut rule = rule(first, first + more, &requirement);
            if !namespaces.is_null() {
                rule["from"][0]["namespaceSelector"] = namespaces;
            }
            rule
        });
    prop::collection::vec(one, 30..80)
}

#[test]
fn shared_layers_follow_changes_and_agree_with_explanation() {
    let step = prop_oneof![
        6 => (0..PODS, few_labels()).prop_map(|(number, labels)| Step::Label(number, labels)),
        2 => (1..PODS).prop_map(Step::Remove),
        1 => any::<bool>().prop_map(Step::Namespace),
    ];
    let drawn = (overlapping_rules(), prop::collection::vec(step, 30..60));
    let mut runner = TestRunner::new(Config { cases: 60, failure_persistence: None, ..Config::default() });
    let cells = std::cell::Cell::new((0, 0));
    let checked = runner.run(&drawn, |(rules, steps)| {
        let (mut state, mut translator) = (ClusterState::new(), Translator::new("node-a", layout()));
        let policy = lower(Kind::NetworkPolicy, &policy(&rules)).unwrap();
        for change in [shop(false), Change::Set(policy), labelled(0, &[])] {
            let changed = state.apply(change);
            translator.update(&state, &changed);
        }
        for (number, step) in steps.iter().enumerate() {
            let changed = state.apply(match step {
                Step::Label(number, labels) => labelled(*number, labels),
                Step::Remove(number) => Change::Remove(Kind::Pod, ObjectName::new("shop", &format!("p{number}"))),
                Step::Namespace(labelled) => shop(*labelled),
            });
            translator.update(&state, &changed);
            if number % 10 != 0 {
                continue;
            }
            let (followed, fresh) = (
                translator.translation().ruleset.in_first_generation(),
                translate(&state, "node-a", &layout()).ruleset.in_first_generation(),
            );
            prop_assert_eq!(followed.to_string(), fresh.to_string());
            prop_assert_eq!(&followed, &fresh);
            prop_assert_eq!(followed.validate(), vec![]);
            for (source, port) in (1..PODS).flat_map(|source| (995..1125).step_by(13).map(move |port| (source, port))) {
                let packet = Packet::first(address(source), address(0), 6, Some(port));
                let accepted = evaluate(&followed, &packet).stop == Stop::Accepted;
                let explained = explain(&state, address(source), address(0), Traffic::Port(Protocol::Tcp, port));
                prop_assert_eq!(accepted, explained.allowed, "{}", explained);
            }
            let (mut layered, mut excluding) = cells.get();
            layered += followed.chains.keys().filter(|chain| chain.as_str().starts_with("from/_/layers/")).count();
            excluding += followed.sets.keys().filter(|set| set.as_str().starts_with("excluded4/")).count();
            cells.set((layered, excluding));
        }
        Ok(())
    });
    if let Err(failure) = checked {
        panic!("{failure}");
    }
    let (layered, excluding) = cells.get();
    assert!(layered > 100 && excluding > 100, "{layered} layered chains, {excluding} sets of excluded pods");
}

/// A selector that matches every pod and shares its positive requirements with no other.
fn wide_peer(number: usize) -> Value {
    let or = |key: &str| json!({"key": key, "operator": "In", "values": ["1", format!("v{number}")]});
    json!({"podSelector": {"matchExpressions": [or("a"), or("b")]}})
}

#[test]
fn policy_over_budget_is_denied_others_stay_enforced() {
    let labels = json!({"a": "1", "b": "1", "app": "any"});
    let pods: Vec<Value> = (0..100).map(|n| pod(n, &labels)).collect();
    let peers: Vec<Value> = (0..400).map(wide_peer).collect();
    let wide = policy(&[json!({"from": peers})]);
    let mut state = state(&pods, &wide);
    let mut other = policy(&[json!({"from": [{"podSelector": {}}], "ports": [{"port": 80}]})]);
    other["metadata"]["name"] = json!("other");
    let translator = |state: &ClusterState| translate(state, "node-a", &layout());
    let is_accepted = |state: &ClusterState, port| {
        let packet = Packet::first(address(1), address(0), 6, Some(port));
        evaluate(&translator(state).ruleset.in_first_generation(), &packet).stop == Stop::Accepted
    };
    assert!(!is_accepted(&state, 80), "the policy isolates and allows nothing");
    state.apply(Change::Set(lower(Kind::NetworkPolicy, &other).unwrap()));
    assert!(is_accepted(&state, 80) && !is_accepted(&state, 81));
    let named = translator(&state).diagnostics.iter().filter(|d| d.message.contains("budget")).count();
    assert_eq!(named, 1);
    let explained = explain(&state, address(1), address(0), Traffic::Port(Protocol::Tcp, 81));
    assert!(!explained.allowed, "{explained}");
    for number in 30..100 {
        state.apply(Change::Remove(Kind::Pod, ObjectName::new("shop", &format!("p{number}"))));
    }
    assert!(is_accepted(&state, 81), "fewer pods fit the budget");
    assert_eq!(translator(&state).diagnostics.len(), 0);
}

/// Each has one selector, which matches every pod, and a port of its own.
#[test]
fn policies_of_namespace_share_budget_others_stay_enforced() {
    const POLICIES: u16 = 1_400;
    let labels = json!({"a": "1", "b": "1", "app": "any"});
    let pods: Vec<Value> = (0..100).map(|n| pod(n, &labels)).collect();
    let mut state = state(&pods, &policy(&[]));
    for number in 0..POLICIES {
        let mut small = policy(&[json!({"from": [wide_peer(number.into())], "ports": [{"port": 1_000 + number}]})]);
        small["metadata"]["name"] = json!(format!("small-{number:04}"));
        state.apply(Change::Set(lower(Kind::NetworkPolicy, &small).unwrap()));
    }
    let translation = translate(&state, "node-a", &layout());
    let ruleset = translation.ruleset.in_first_generation();
    let is_accepted = |number: u16| {
        let packet = Packet::first(address(1), address(0), 6, Some(1_000 + number));
        evaluate(&ruleset, &packet).stop == Stop::Accepted
    };
    assert!(is_accepted(0) && !is_accepted(POLICIES - 1));
    let denied = translation.diagnostics.iter().filter(|d| d.message.contains("budget of a namespace")).count();
    assert_eq!(denied, usize::from(POLICIES) - 131_072 / pods.len());
    assert!(elements(&ruleset) < 135_000, "{}", elements(&ruleset));
}

/// Each pod gives the named port another number, so that each has a program with a map of all ports.
#[test]
fn many_ports_are_denied_others_stay_enforced() {
    const PODS: usize = 20;
    let pod = |n: usize| {
        let mut pod = pod(n, &json!({}));
        pod["spec"] =
            json!({"nodeName": "node-a", "containers": [{"ports": [{"name": "web", "containerPort": 10_000 + n}]}]});
        pod
    };
    let pods: Vec<Value> = (0..PODS).map(pod).collect();
    let ports = |count: u16| {
        let ports = (0..count).map(|n| json!({"port": 20_000 + 2 * n})).chain([json!({"port": "web"})]);
        policy(&[json!({"ports": ports.collect::<Vec<Value>>()})])
    };
    let at_limit = translate(&state(&pods, &ports(1_023)), "node-a", &layout());
    assert_eq!(at_limit.diagnostics.len(), 0);
    assert!(elements(&at_limit.ruleset.in_first_generation()) > PODS * 1_024, "one map for each pod");

    let mut state = state(&pods, &ports(1_024));
    let mut other = policy(&[json!({"ports": [{"port": 80}]})]);
    other["metadata"]["name"] = json!("other");
    state.apply(Change::Set(lower(Kind::NetworkPolicy, &other).unwrap()));
    let beyond = translate(&state, "node-a", &layout());
    let ruleset = beyond.ruleset.in_first_generation();
    assert!(elements(&ruleset) < 10 * PODS, "{}", elements(&ruleset));
    let is_accepted = |port| {
        let packet = Packet::first("192.0.2.1".parse().unwrap(), address(1), 6, Some(port));
        evaluate(&ruleset, &packet).stop == Stop::Accepted
    };
    assert!(is_accepted(80) && !is_accepted(20_000) && !is_accepted(10_001));
    let named = beyond.diagnostics.iter().filter(|d| d.message.contains("1025 distinct ports")).count();
    assert_eq!(named, 1);
}
