//! `goldmane.Filter` by its published definition, and docs/flows-interfaces.md for the flows of a record.

mod hints;
mod statistics;
mod streams;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use flow::{Endpoint, EndpointKind, FlowVerdict, Network, PolicyAction, SideTrace, TraceVerdict, WINDOW_SECONDS};
use jiff::Timestamp;
use tests::goldmane_client::{FILTER, GoldmaneClient};
use tests::grpc_bytes::{FieldValue, Fields, Writer};

use super::SETS;
use super::criteria::{Coverage, Criteria};
use super::traffic::{Random, Traffic};

/// Most flows of an answer.
const PAGE: i64 = 4_000;

/// `goldmane.FlowKey` without the numbers of policies and rules.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GoldmaneKey {
    /// Name, namespace and type.
    source: (String, String, i64),
    destination: (String, String, i64),
    port: i64,
    /// Name, namespace, name of the port, and port.
    service: (String, String, String, i64),
    protocol: String,
    reporter: i64,
    action: i64,
    enforced: Vec<GoldmaneHit>,
    pending: Vec<GoldmaneHit>,
}

/// `goldmane.PolicyHit`
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct GoldmaneHit {
    policy: NamedPolicy,
    action: i64,
    trigger: Option<NamedPolicy>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct NamedPolicy {
    kind: i64,
    namespace: String,
    name: String,
    tier: String,
}

impl NamedPolicy {
    fn read(hit: &Fields) -> NamedPolicy {
        NamedPolicy { kind: hit.number(1), namespace: hit.text(2), name: hit.text(3), tier: hit.text(4) }
    }
}

impl GoldmaneKey {
    fn read(key: &Fields) -> GoldmaneKey {
        let hit = |hit: &Fields| GoldmaneHit {
            policy: NamedPolicy::read(hit),
            action: hit.number(5),
            trigger: hit.has(8).then(|| NamedPolicy::read(&hit.message(8))),
        };
        let hits = |field| key.message(15).messages(field).iter().map(hit).collect();
        GoldmaneKey {
            source: (key.text(1), key.text(2), key.number(3)),
            destination: (key.text(4), key.text(5), key.number(6)),
            port: key.number(7),
            service: (key.text(8), key.text(9), key.text(10), key.number(11)),
            protocol: key.text(12),
            reporter: key.number(13),
            action: key.number(14),
            enforced: hits(1),
            pending: hits(2),
        }
    }

    /// The flows of a connection: one of each side that reports.
    fn of(traffic: &Traffic) -> Vec<GoldmaneKey> {
        let key = traffic.key();
        let action = |verdict: FlowVerdict| if verdict == FlowVerdict::Denied { 2 } else { 1 };
        let trace = |side: &SideTrace, end: &Endpoint| {
            let enforced = enforced(side, end.namespace.as_deref());
            let pending: Vec<GoldmaneHit> = side.pending.iter().map(|hit| of_hit(hit, 5)).collect();
            let pending = if pending.is_empty() { enforced.clone() } else { pending };
            (enforced, pending)
        };
        let mut reports = Vec::new();
        if let Some(verdict) = traffic.source_verdict() {
            reports.push((1, action(verdict), trace(&key.egress, &key.source)));
        }
        if let Some(verdict) = traffic.destination_verdict() {
            reports.push((2, action(verdict), trace(&traffic.last_record().key.ingress, &key.destination)));
        }
        if reports.is_empty() {
            reports.push((0, action(traffic.verdict()), (vec![], vec![])));
        }
        let none = || "-".to_owned();
        let service = key.service.as_ref().map_or((none(), none(), none(), 0), |service| {
            let port_name = service.port_name.as_ref().map_or_else(none, ToString::to_string);
            (service.name.to_string(), service.namespace.to_string(), port_name, service.port.into())
        });
        let protocol = match key.protocol {
            1 => "icmp".to_owned(),
            6 => "tcp".to_owned(),
            17 => "udp".to_owned(),
            58 => "icmp6".to_owned(),
            132 => "sctp".to_owned(),
            number => number.to_string(),
        };
        let flow = |(reporter, action, (enforced, pending))| GoldmaneKey {
            source: of_end(&key.source),
            destination: of_end(&key.destination),
            port: key.port.map_or(0, i64::from),
            service: service.clone(),
            protocol: protocol.clone(),
            reporter,
            action,
            enforced,
            pending,
        };
        reports.into_iter().map(flow).collect()
    }
}

/// Name, namespace and `EndpointType`.
fn of_end(end: &Endpoint) -> (String, String, i64) {
    let text = |text: &Option<std::sync::Arc<str>>| text.as_deref().unwrap_or("-").to_owned();
    let (name, namespace) = (text(&end.name), text(&end.namespace));
    let (workload, host, network_set, network) = (1, 2, 3, 4);
    match end.kind {
        EndpointKind::Pod | EndpointKind::UnknownPod => (name, namespace, workload),
        EndpointKind::Node => (name, namespace, host),
        EndpointKind::KubeApiserver => ("kube-apiserver".to_owned(), namespace, network_set),
        EndpointKind::RemoteCluster => (format!("{}/{name}", text(&end.cluster)), namespace, network_set),
        EndpointKind::World => {
            let name = if end.network == Some(Network::Public) { "pub" } else { "pvt" };
            (name.to_owned(), namespace, network)
        }
    }
}

fn enforced(side: &SideTrace, namespace: Option<&str>) -> Vec<GoldmaneHit> {
    let passed = side.passed_by.iter().map(|hit| of_hit(hit, 6));
    passed.chain(deciding(side, namespace)).collect()
}

fn deciding(side: &SideTrace, namespace: Option<&str>) -> Vec<GoldmaneHit> {
    let is_isolated = match side.verdict {
        TraceVerdict::NotIsolated => false,
        // Only audited policies select the pod.
        TraceVerdict::WouldDeny => !side.enforced.is_empty(),
        _ => true,
    };
    match (is_isolated, namespace) {
        (true, _) => side.enforced.iter().map(|hit| of_hit(hit, 6)).collect(),
        (false, None) => vec![],
        (false, Some(namespace)) => {
            let policy = NamedPolicy { kind: 9, name: format!("kns.{namespace}"), ..NamedPolicy::default() };
            vec![GoldmaneHit { policy, action: 1, trigger: None }]
        }
    }
}

/// A rule that decides, or the end of the tier with the policy that isolates the pod.
fn of_hit(hit: &flow::PolicyHit, kind: i64) -> GoldmaneHit {
    let (namespace, name) = (hit.namespace.to_string(), hit.name.to_string());
    let (kind, tier) = match (hit.tier, kind) {
        (None, kind) => (kind, "default"),
        (Some(tier), kind) => {
            let tier = match tier {
                flow::PolicyTier::Admin => "kube-admin",
                flow::PolicyTier::Baseline => "kube-baseline",
            };
            // ClusterNetworkPolicy, StagedGlobalNetworkPolicy
            (if kind == 6 { 11 } else { 4 }, tier)
        }
    };
    let policy = NamedPolicy { kind, namespace, name, tier: tier.to_owned() };
    let action = match hit.action {
        PolicyAction::Allow => 1,
        PolicyAction::Deny => 2,
        PolicyAction::Pass => 3,
    };
    match (hit.action, &hit.rule) {
        (PolicyAction::Deny, None) => {
            let end_of_tier = NamedPolicy { kind: 10, tier: tier.to_owned(), ..NamedPolicy::default() };
            GoldmaneHit { policy: end_of_tier, action, trigger: Some(policy) }
        }
        (PolicyAction::Allow | PolicyAction::Deny | PolicyAction::Pass, _) => {
            GoldmaneHit { policy, action, trigger: None }
        }
    }
}

/// `StringMatch`: 0 is exact, 1 a substring.
fn is_text(wanted: &str, kind: i64, text: &str) -> bool {
    if kind == 1 { text.contains(wanted) } else { text == wanted }
}

fn string_match(wanted: &str, kind: i64) -> Writer {
    Writer::default().text(1, wanted).number(2, kind)
}

fn criteria<'a>(keys: &'a [GoldmaneKey], random: &mut Random) -> Criteria<'a, GoldmaneKey> {
    let mut all = Criteria::new(keys);
    for (names, namespaces, is_source) in [(1, 2, true), (3, 4, false)] {
        for (text, kind) in [
            ("web", 0),
            ("db", 0),
            ("web", 1),
            ("hook", 1),
            ("e", 1),
            ("WEB", 1),
            ("PUBLIC NETWORK", 0),
            ("PRIVATE", 1),
            ("NETWORK", 1),
            ("pvt", 0),
            ("east/db", 0),
            ("kube-apiserver", 0),
            ("-", 0),
            ("", 0),
            ("", 1),
        ] {
            all.add(names, FieldValue::Message(string_match(text, kind)), |key| {
                let name = if is_source { &key.source.0 } else { &key.destination.0 };
                let alias = match &**name {
                    "pub" => "PUBLIC NETWORK",
                    "pvt" => "PRIVATE NETWORK",
                    other => other,
                };
                is_text(text, kind, name) || is_text(text, kind, alias)
            });
        }
        for (text, kind) in [("shop", 0), ("pay", 0), ("a", 1), ("o", 1), ("-", 0), ("default", 0), ("", 0)] {
            all.add(namespaces, FieldValue::Message(string_match(text, kind)), |key| {
                is_text(text, kind, if is_source { &key.source.1 } else { &key.destination.1 })
            });
        }
    }
    for (text, kind) in [("tcp", 0), ("udp", 0), ("icmp", 0), ("icmp", 1), ("c", 1), ("47", 0), ("", 0)] {
        all.add(5, FieldValue::Message(string_match(text, kind)), |key| is_text(text, kind, &key.protocol));
    }
    for port in [0, 53, 80, 443, 5432, 1] {
        all.add(6, FieldValue::Message(Writer::default().number(1, port)), |key| key.port == port);
    }
    for action in [0, 1, 2, 3] {
        all.number(7, action, |key| key.action == action);
        all.number(10, action, |key| key.pending.iter().any(|hit| hit.action == action));
    }
    for reporter in [0, 1, 2] {
        all.number(9, reporter, |key| reporter == 0 || key.reporter == reporter);
    }
    for _ in 0..60 {
        let texts =
            [&["", "", "default", "other"][..], &["", "", "shop", "pay", "a"], &["", "db", "we", "kns.shop", "kns"]];
        let texts = texts.map(|texts| (random.pick(texts), i64::from(random.chance(40))));
        let (kind, action) = (random.pick(&[0, 0, 0, 1, 4, 5, 6, 9, 10, 11]), random.pick(&[0, 0, 1, 2, 3]));
        // A text is a string up to Calico 3.31, and a message since 3.32; a string matches exactly.
        let is_message = random.chance(50);
        let texts = texts.map(|(text, kind)| (text, if is_message { kind } else { 0 }));
        let mut value = Writer::default().number(1, kind);
        for (field, (text, kind)) in [2, 3, 4].into_iter().zip(texts) {
            value = match is_message {
                true => value.message(field, string_match(text, kind)),
                false => value.text(field, text),
            };
        }
        let is_policy = move |policy: &NamedPolicy| {
            let fields = [&policy.tier, &policy.namespace, &policy.name];
            (kind == 0 || policy.kind == kind)
                && texts.iter().zip(fields).all(|((text, kind), field)| text.is_empty() || is_text(text, *kind, field))
        };
        all.add(8, FieldValue::Message(value.number(5, action)), |key| {
            let mut hits = key.enforced.iter().chain(&key.pending);
            hits.any(|hit| {
                (action == 0 || hit.action == action)
                    && (is_policy(&hit.policy) || hit.trigger.as_ref().is_some_and(is_policy))
            })
        });
    }
    all
}

/// Flows by number, of all pages of a list.
fn list(client: &GoldmaneClient, filter: &Writer, range: (i64, i64)) -> BTreeMap<i64, Vec<u8>> {
    let (mut flows, mut page) = (BTreeMap::new(), 0);
    loop {
        let answer = client.list(filter, range, page, PAGE).unwrap();
        flows.extend(answer.flows.into_iter().map(|sum| (sum.id, sum.flow)));
        page += 1;
        if page >= answer.pages {
            assert_eq!(flows.len() as i64, answer.results);
            return flows;
        }
    }
}

pub(super) fn compare(traffic: &[Traffic], address: SocketAddr) {
    let client = GoldmaneClient::connect(address);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut sums: BTreeMap<GoldmaneKey, u64> = BTreeMap::new();
    let mut windows: BTreeMap<i64, BTreeSet<GoldmaneKey>> = BTreeMap::new();
    for connections in traffic {
        for key in GoldmaneKey::of(connections) {
            *sums.entry(key.clone()).or_default() += connections.first.connections.started;
            windows.entry(connections.first.window.as_second()).or_default().insert(key);
        }
    }
    let always = (0, Timestamp::now().as_second() + 60);
    // Several flows of the server may have one key, because their policies or rules have other numbers.
    let (mut shown, mut ids) = (BTreeMap::new(), BTreeMap::new());
    for (id, flow) in list(&client, &Writer::default(), always) {
        let flow = Fields::read(&flow);
        let key = GoldmaneKey::read(&flow.message(1));
        *shown.entry(key.clone()).or_default() += flow.number(10).cast_unsigned();
        ids.insert(id, key);
    }
    assert!(shown == sums, "{} keys instead of {}", shown.len(), sums.len());
    assert!(sums.len() >= 9_000 || traffic.len() < 10_000, "only {} different keys", sums.len());
    let keys: Vec<GoldmaneKey> = sums.into_keys().collect();
    let numbers: BTreeMap<&GoldmaneKey, usize> = keys.iter().enumerate().map(|(number, key)| (key, number)).collect();
    let ids: BTreeMap<i64, usize> = ids.iter().map(|(id, key)| (*id, numbers[key])).collect();
    let number_of = |keys: &BTreeSet<GoldmaneKey>| keys.iter().map(|key| numbers[key]).collect();
    let windows: Vec<(i64, Vec<usize>)> = windows.iter().map(|(window, keys)| (*window, number_of(keys))).collect();
    let everything: Vec<usize> = (0..keys.len()).collect();

    let criteria = criteria(&keys, &mut random);
    let fields: Vec<u32> = FILTER.iter().map(|(number, _)| *number).collect();
    assert_eq!(criteria.fields(), fields, "each field has criteria");
    let mut coverage = Coverage::new();
    for set in 0..SETS {
        let drawn = criteria.draw(&mut random, 4, &[9]);
        let (window, of_window) = &windows[random.below(windows.len())];
        for (range, all) in [(always, &everything), ((*window, window + WINDOW_SECONDS), of_window)] {
            let seen: BTreeSet<usize> = list(&client, &drawn.filter, range).keys().map(|id| ids[id]).collect();
            let expected: BTreeSet<usize> = all.iter().filter(|number| drawn.matches[**number]).copied().collect();
            assert!(seen == expected, "set {set}: {} instead of {}: {:?}", seen.len(), expected.len(), drawn.filter);
            if range == always {
                coverage.record([&drawn].into_iter(), seen.len(), all.len());
            }
        }
    }
    coverage.assert_all(&fields, SETS);
    hints::compare(&client, &keys, &criteria, &mut random);
    streams::compare(&client, traffic, &keys, &criteria, &mut random);
    statistics::compare(&client, traffic, &mut random);
}
