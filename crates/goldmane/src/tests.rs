//! Golden bytes, semantics of lists and statistics, and filters compared with an oracle.

use std::collections::BTreeSet;
use std::sync::Arc;

use flow::{
    ClusterRecord, Connections, EndSample, Endpoint, EndpointKind, FlowKey as RecordKey, FlowRecord, FlowVerdict,
    Network, PolicyAction, SeenBy, SideTrace, TraceVerdict, Volume,
};
use prost::Message;
use wire::Strict;

use super::*;
use crate::message::{
    Action, Filter, FlowKey, FlowResult, PolicyKind, PolicyMatch, PolicyTrace, PortMatch, SortOption,
    StatisticsRequest, StringMatch,
};

fn admits(filters: &Filters, key: &FlowKey) -> bool {
    filters.admits_ends(key) && key.policies.as_ref().is_some_and(|trace| filters.admits_policies(trace))
}

fn end(namespace: &str, name: &str) -> Endpoint {
    Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some(namespace.into()),
        name: Some(name.into()),
        service: None,
        cluster: None,
        network: None,
    }
}

fn hit(name: &str, rule: Option<&str>, action: PolicyAction) -> flow::PolicyHit {
    flow::PolicyHit { rule: rule.map(Into::into), action, ..flow::PolicyHit::isolation("shop", name) }
}

fn side(verdict: TraceVerdict, enforced: Vec<flow::PolicyHit>) -> SideTrace {
    SideTrace { verdict, enforced_here: true, enforced, pending: Vec::new(), passed_by: Vec::new() }
}

/// From `shop/web`, which no policy isolates, to `shop/db`, in the window with this number.
fn joined(window: i64) -> ClusterRecord {
    let window = jiff::Timestamp::from_second(1_777_896_000 + 15 * window).unwrap();
    let key = RecordKey {
        source: end("shop", "web"),
        destination: end("shop", "db"),
        protocol: 6,
        port: Some(5432),
        icmp_type: None,
        service: None,
        verdict: FlowVerdict::Allowed,
        drop_cause: None,
        egress: side(TraceVerdict::NotIsolated, vec![]),
        ingress: side(TraceVerdict::Allowed, vec![hit("db", Some("spec.ingress[2]"), PolicyAction::Allow)]),
    };
    let sample = Arc::new(EndSample { labels: ["app=x".into()].into(), ..EndSample::default() });
    let record = FlowRecord {
        window,
        node: "n1".into(),
        key: Arc::new(key),
        sources: sample.clone(),
        destinations: sample,
        connections: Connections { started: 2, ended: 1, live: 1, lost: 0 },
        sent: Some(Volume { packets: 3, bytes: 300 }),
        received: Some(Volume { packets: 4, bytes: 4_000 }),
        unknown_volume: 0,
        denied_packets: 0,
        generation: Some(7),
        first: window,
        last: window,
    };
    ClusterRecord {
        record,
        source_verdict: Some(FlowVerdict::Allowed),
        destination_verdict: Some(FlowVerdict::Allowed),
        seen_by: Arc::new(SeenBy {
            source: ["n1".into()].into(),
            destination: ["n2".into()].into(),
            other: BTreeSet::new(),
        }),
    }
}

fn with_key(mut record: ClusterRecord, change: impl FnOnce(&mut RecordKey)) -> ClusterRecord {
    change(Arc::make_mut(&mut record.record.key));
    record
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn text(tag: &str, text: &str) -> String {
    format!("{tag}{:02x}{}", text.len(), hex(text.as_bytes()))
}

fn message(tag: &str, content: &str) -> String {
    let length = content.len() / 2;
    let length =
        if length < 128 { format!("{length:02x}") } else { format!("{:02x}{:02x}", length & 127 | 128, length >> 7) };
    format!("{tag}{length}{content}")
}

/// Encoded by hand in the protocol buffers' format: tag = number << 3 | wire type.
#[test]
fn flow_has_these_bytes() {
    let [source, destination] = convert(&joined(0)).collect::<Vec<_>>().try_into().unwrap();
    let policy =
        ["0806".to_owned(), text("12", "shop"), text("1a", "db"), text("22", "default"), "28013802".to_owned()]
            .concat();
    let trace = [message("0a", &policy), message("12", &policy)].concat();
    let key = [
        text("0a", "web"),
        text("12", "shop"),
        "1801".to_owned(),
        text("22", "db"),
        text("2a", "shop"),
        "300138b82a".to_owned(),
        text("42", "-"),
        text("4a", "-"),
        text("52", "-"),
        text("62", "tcp"),
        "68027001".to_owned(),
        message("7a", &trace),
    ]
    .concat();
    let flow = [
        message("0a", &key),
        "10c094e2cf0618cf94e2cf06".to_owned(),
        text("22", "app=x"),
        text("2a", "app=x"),
        "3003380440ac0248a01f500258016001".to_owned(),
    ]
    .concat();
    assert_eq!(hex(&destination.encode_to_vec()), flow);
    let result = FlowResult { id: 5, flow: Some(destination.clone()) };
    assert_eq!(hex(&result.encode_to_vec()), format!("0805{}", message("12", &flow)));
    // Bytes out of one end are bytes into the other.
    assert_eq!((source.bytes_out, source.bytes_in), (destination.bytes_in, destination.bytes_out));
}

/// Texts of policies are strings up to Calico 3.31, and messages since 3.32.
#[test]
fn policy_texts_of_both_versions_match() {
    let [_, destination] = convert(&joined(0)).collect::<Vec<_>>().try_into().unwrap();
    let key = destination.key.unwrap();
    for (name, expected) in [
        (&b"db"[..], true),
        (b"d", false),
        (b"", true),
        (b"\x0a\x02db", true),
        (b"\x0a\x01d", false),
        (b"\x0a\x01d\x10\x01", true),
        (b"\x10\x01", true),
    ] {
        let policy = PolicyMatch { name: name.to_vec(), ..PolicyMatch::default() };
        let filter = Filter { policies: vec![policy.into()], ..Filter::default() };
        assert_eq!(admits(&Filters::parse(Some(&filter.into())).unwrap(), &key), expected, "{name:?}");
    }
}

#[test]
fn policies_are_those_of_the_reporter() {
    let [source, destination] = convert(&joined(0)).collect::<Vec<_>>().try_into().unwrap();
    let trace = |flow: message::Flow| flow.key.unwrap().policies.unwrap();
    let profile = &trace(source).enforced_policies[0];
    assert_eq!(
        (profile.kind(), profile.name.as_str(), profile.action()),
        (PolicyKind::Profile, "kns.shop", Action::Allow)
    );
    let allowing = &trace(destination).enforced_policies[0];
    assert_eq!((allowing.kind(), allowing.rule_index), (PolicyKind::NetworkPolicy, 2));

    let mut denied = with_key(joined(0), |key| {
        key.ingress =
            side(TraceVerdict::Denied, vec![hit("a", None, PolicyAction::Deny), hit("b", None, PolicyAction::Deny)]);
    });
    denied.destination_verdict = Some(FlowVerdict::Denied);
    denied.record.denied_packets = 9;
    let flow = convert(&denied).last().unwrap();
    assert_eq!((flow.packets_in, flow.bytes_in), (9, 0));
    assert_eq!(flow.key.as_ref().unwrap().action(), Action::Deny);
    let hits = trace(flow).enforced_policies;
    assert!(hits.iter().all(|hit| hit.kind() == PolicyKind::EndOfTier && hit.action() == Action::Deny));
    let triggers: Vec<&str> = hits.iter().map(|hit| hit.trigger.as_ref().unwrap().name.as_str()).collect();
    assert_eq!(triggers, ["a", "b"]);

    let audited = with_key(joined(0), |key| {
        key.ingress = side(TraceVerdict::WouldDeny, vec![]);
        key.ingress.pending = vec![hit("db", None, PolicyAction::Deny)];
    });
    let PolicyTrace { enforced_policies, pending_policies } = trace(convert(&audited).last().unwrap());
    assert_eq!(enforced_policies[0].kind(), PolicyKind::Profile);
    let trigger = pending_policies[0].trigger.as_ref().unwrap();
    assert_eq!(trigger.kind(), PolicyKind::StagedKubernetesNetworkPolicy);
}

#[test]
fn records_without_side_have_no_reporter() {
    let mut record = joined(0);
    (record.source_verdict, record.destination_verdict) = (None, None);
    let flows: Vec<_> = convert(&record).collect();
    assert_eq!((flows.len(), flows[0].key.as_ref().unwrap().reporter), (1, 0));
}

#[test]
fn lists_are_sums_in_stable_pages() {
    let mut list = FlowList::new(Filters::default());
    let mut pages = FlowList::new(Filters::default());
    for window in 0..3 {
        list.add(&joined(window)).unwrap();
        for number in 0..5 {
            let named = with_key(joined(window), |key| key.destination = end("shop", &format!("db-{number}")));
            pages.add(&named).unwrap();
        }
    }
    let result = list.into_page(Sorting::Time, Page::default()).unwrap();
    let flow = result.flows[0].flow.as_ref().unwrap();
    assert_eq!(result.meta.unwrap().total_results, 2, "a flow of each side");
    assert_eq!((flow.num_connections_started, flow.num_connections_live), (6, 1));
    assert_eq!(flow.end_time - flow.start_time, 45);
    let page = |number| {
        let mut copy = FlowList::new(Filters::default());
        for window in 0..3 {
            for number in 0..5 {
                copy.add(&with_key(joined(window), |key| key.destination = end("shop", &format!("db-{number}"))))
                    .unwrap();
            }
        }
        let result = copy.into_page(Sorting::DestName, Page { number, size: 4 }).unwrap();
        (result.meta.unwrap(), result.flows.into_iter().map(|flow| flow.flow.unwrap().key.unwrap()).collect::<Vec<_>>())
    };
    let all: Vec<FlowKey> = (0..4).flat_map(|number| page(number).1).collect();
    assert_eq!((page(0).0.total_pages, page(0).0.total_results, all.len()), (3, 10, 10));
    assert!(all.is_sorted_by(|a, b| a.dest_name <= b.dest_name));
    let whole = pages.into_page(Sorting::DestName, Page::default()).unwrap();
    assert!(whole.flows.iter().map(|flow| flow.flow.as_ref().unwrap().key.as_ref().unwrap()).eq(&all));
}

#[test]
fn growth_of_late_side_has_all_its_counts() {
    let list = |records: &[ClusterRecord]| {
        let mut list = FlowList::new(Filters::default());
        records.iter().for_each(|record| list.add(record).unwrap());
        list
    };
    let of_source = ClusterRecord { destination_verdict: None, ..joined(0) };
    let before = || list(std::slice::from_ref(&of_source));
    assert_eq!(list(&[joined(0)]).growth_since(&list(&[])).len(), 2, "a flow of each side");
    let [late] = list(&[joined(0)]).growth_since(&before()).try_into().unwrap();
    assert_eq!(late, convert(&joined(0)).last().unwrap(), "the destination as if it had been in time");
    assert_eq!(before().growth_since(&before()), [], "nothing is new");
    // More connections of the source: the difference is sent, and counts that shrank are 0.
    let mut more = of_source.clone();
    more.record.connections.started = 5;
    more.record.received = None;
    let [grown] = list(&[more]).growth_since(&before()).try_into().unwrap();
    assert_eq!((grown.num_connections_started, grown.bytes_out, grown.bytes_in), (3, 0, 0));
    assert_eq!(grown.start_time, 1_777_896_000);
}

#[test]
fn requests_without_meaning_are_refused() {
    let sort = |sort_by| Strict::from(SortOption { sort_by });
    assert_eq!(Sorting::parse(&[sort(3)]), Err(RequestError::SortOrder("DestType")));
    assert_eq!(Sorting::parse(&[sort(0), sort(1)]), Err(RequestError::SortOrders));
    assert!(matches!(Sorting::parse(&[sort(9)]), Err(RequestError::Value { .. })));
    assert_eq!(Page::parse(-1, 10), Err(RequestError::Page));
    assert_eq!(TimeRange::parse(-60, 0, 1_000), Ok(TimeRange { start: 940, end: 1_000 }));
    assert_eq!(TimeRange::parse(500, 400, 1_000), Err(RequestError::Range { start: 500, end: 400 }));
    let newer = Strict::<Filter>::decode(&b"\x58\x01"[..]).unwrap();
    assert_eq!(Filters::parse(Some(&newer)), Err(RequestError::Unknown { message: "the filter", field: 11 }));
    for (message, field, filter) in [
        ("a text of the filter", 3, &b"\x0a\x02\x18\x01"[..]),
        ("a port of the filter", 2, b"\x32\x02\x10\x01"),
        ("a policy of the filter", 6, b"\x42\x02\x30\x01"),
        ("a text of the filter", 3, b"\x42\x04\x22\x02\x18\x01"),
    ] {
        let filter = Strict::<Filter>::decode(filter).unwrap();
        assert_eq!(Filters::parse(Some(&filter)), Err(RequestError::Unknown { message, field }));
    }
    let newer = [Strict::<SortOption>::decode(&b"\x10\x01"[..]).unwrap()];
    assert_eq!(Sorting::parse(&newer), Err(RequestError::Unknown { message: "a sort option", field: 2 }));
    for name in [&b"\xff"[..], b"\x0a\x09x"] {
        let policy = PolicyMatch { name: name.to_vec(), ..PolicyMatch::default() };
        let filter = Filter { policies: vec![policy.into()], ..Filter::default() };
        assert_eq!(Filters::parse(Some(&filter.into())), Err(RequestError::PolicyText("name")));
    }
    let action = Filter { actions: vec![9], ..Filter::default() };
    assert!(matches!(Filters::parse(Some(&action.into())), Err(RequestError::Value { field: "actions", value: 9 })));
}

#[test]
fn statistics_count_each_policy_once() {
    let sums = |request: StatisticsRequest| {
        let mut query = StatisticsQuery::parse(&request.into()).unwrap();
        for window in 0..2 {
            query.add(&joined(window));
        }
        query.into_results()
    };
    let results = sums(StatisticsRequest { r#type: 1, ..StatisticsRequest::default() });
    let db = results.iter().find(|result| result.policy.as_ref().unwrap().name == "db").unwrap();
    // Pending hits equal the enforced ones, and are counted once.
    assert_eq!((&*db.allowed_in, &*db.allowed_out, db.x.len()), (&[600][..], &[8_000][..], 0));
    let series = sums(StatisticsRequest { r#type: 2, group_by: 1, time_series: true, ..StatisticsRequest::default() });
    let rule = series.iter().find(|result| result.policy.as_ref().unwrap().name == "db").unwrap();
    assert_eq!((&*rule.allowed_in, &*rule.allowed_out), (&[1, 1][..], &[0, 0][..]), "of the destination");
    assert_eq!((rule.x[1] - rule.x[0], rule.policy.as_ref().unwrap().rule_index), (15, 2));
    let only = PolicyMatch { name: "db".into(), ..PolicyMatch::default() };
    assert_eq!(sums(StatisticsRequest { policy_match: Some(only.into()), ..StatisticsRequest::default() }).len(), 1);
}

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }
}

fn random_record(random: &mut Random) -> ClusterRecord {
    let verdicts = [Some(FlowVerdict::Allowed), Some(FlowVerdict::Denied), None];
    let mut record = with_key(joined(0), |key| {
        let mut any_end = || match random.below(4) {
            0 => Endpoint {
                kind: EndpointKind::World,
                namespace: None,
                name: None,
                network: Some(random.pick(&[Network::Public, Network::Private])),
                ..end("", "")
            },
            _ => end(random.pick(&["shop", "pay"]), random.pick(&["web", "webhook", "db"])),
        };
        (key.source, key.destination) = (any_end(), any_end());
        key.protocol = random.pick(&[6, 17, 1]);
        key.port = random.pick(&[Some(80), Some(443), None]);
        for trace in [&mut key.egress, &mut key.ingress] {
            let hits = |random: &mut Random| {
                let action = random.pick(&[PolicyAction::Allow, PolicyAction::Deny]);
                vec![hit(random.pick(&["a", "b"]), random.pick(&[None, Some("spec.egress[0]")]), action)]
            };
            *trace = side(random.pick(&[TraceVerdict::NotIsolated, TraceVerdict::Denied]), hits(random));
            if random.below(3) == 0 {
                trace.pending = hits(random);
            }
        }
    });
    record.source_verdict = random.pick(&verdicts);
    record.destination_verdict = random.pick(&verdicts);
    record
}

fn random_filter(random: &mut Random) -> Filter {
    let mut filter = Filter::default();
    for _ in 0..=random.below(3) {
        let mut texts = |of: &[&str]| -> Vec<Strict<StringMatch>> {
            let count = 1 + random.below(2);
            let mut text = || StringMatch { value: random.pick(of).to_owned(), r#type: random.below(2) as i32 };
            (0..count).map(|_| text().into()).collect()
        };
        let names = texts(&["web", "db", "e", "PUBLIC NETWORK", "pvt", "PRIVATE", ""]);
        let namespaces = texts(&["shop", "pay", "a", "-"]);
        let protocols = texts(&["tcp", "udp", "c"]);
        match random.below(10) {
            0 => filter.source_names = names,
            1 => filter.dest_names = names,
            2 => filter.source_namespaces = namespaces,
            3 => filter.dest_namespaces = namespaces,
            4 => filter.protocols = protocols,
            5 => filter.dest_ports = vec![PortMatch { port: random.pick(&[80, 443, 0]) }.into()],
            6 => filter.actions = vec![random.pick(&[1, 2, 3])],
            7 => filter.reporter = random.pick(&[0, 1, 2]),
            8 => filter.pending_actions = vec![random.pick(&[1, 2, 3])],
            _ => {
                let policy = PolicyMatch {
                    kind: random.pick(&[0, 5, 6, 9, 10, 2]),
                    tier: random.pick(&["", "default", "other"]).into(),
                    namespace: random.pick(&["", "shop"]).into(),
                    name: random.pick(&["", "a", "kns.shop"]).into(),
                    action: random.pick(&[0, 1, 2]),
                };
                filter.policies = vec![policy.into()];
            }
        }
    }
    filter
}

/// Oracle: evaluates the protocol's definition literally on the encoded flow.
fn admits_slowly(filter: &Filter, key: &FlowKey) -> bool {
    let text = |wanted: &[Strict<StringMatch>], text: &str| {
        let mut names = vec![text.to_owned()];
        names.extend((text == "pub").then(|| "PUBLIC NETWORK".to_owned()));
        names.extend((text == "pvt").then(|| "PRIVATE NETWORK".to_owned()));
        wanted.is_empty()
            || wanted.iter().any(|wanted| {
                names.iter().any(|name| match wanted.message.r#type {
                    0 => *name == wanted.message.value,
                    _ => name.contains(&wanted.message.value),
                })
            })
    };
    let trace = key.policies.clone().unwrap();
    let policy = |wanted: &PolicyMatch| {
        let hits = trace.enforced_policies.iter().chain(&trace.pending_policies);
        hits.filter(|hit| wanted.action == 0 || hit.action == wanted.action).any(|hit| {
            let mut candidates = vec![hit.clone()];
            candidates.extend(hit.trigger.iter().map(|trigger| (**trigger).clone()));
            candidates.retain(|hit| wanted.kind == 0 || hit.kind == wanted.kind);
            let is = |wanted: &[u8], text: &str| wanted.is_empty() || text.as_bytes() == wanted;
            candidates.retain(|hit| is(&wanted.tier, &hit.tier));
            candidates.retain(|hit| is(&wanted.namespace, &hit.namespace) && is(&wanted.name, &hit.name));
            !candidates.is_empty()
        })
    };
    text(&filter.source_names, &key.source_name)
        && text(&filter.dest_names, &key.dest_name)
        && text(&filter.source_namespaces, &key.source_namespace)
        && text(&filter.dest_namespaces, &key.dest_namespace)
        && text(&filter.protocols, &key.proto)
        && (filter.dest_ports.is_empty() || filter.dest_ports.iter().any(|p| p.message.port == key.dest_port))
        && (filter.actions.is_empty() || filter.actions.contains(&key.action))
        && (filter.reporter == 0 || filter.reporter == key.reporter)
        && (filter.pending_actions.is_empty()
            || trace.pending_policies.iter().any(|hit| filter.pending_actions.contains(&hit.action)))
        && (filter.policies.is_empty() || filter.policies.iter().any(|wanted| policy(&wanted.message)))
}

#[test]
fn random_filters_agree_with_brute_force() {
    let mut random = Random(0x5eed_1234_5678_9abc);
    let mut keys = Vec::new();
    while keys.len() < 10_000 {
        keys.extend(convert(&random_record(&mut random)).filter_map(|flow| flow.key));
    }
    let mut some = 0;
    for _ in 0..500 {
        let filter = random_filter(&mut random);
        let sent = Strict::<Filter>::decode(&*filter.encode_to_vec()).unwrap();
        let parsed = Filters::parse(Some(&sent)).unwrap();
        let mut admitted = 0;
        for key in &keys {
            let expected = admits_slowly(&filter, key);
            assert_eq!(admits(&parsed, key), expected, "{filter:?}: {key:?}");
            admitted += usize::from(expected);
        }
        some += u32::from(admitted > 0 && admitted < keys.len());
    }
    assert!(some > 200, "only {some} filters are met by some flows and not by others");
}

#[test]
fn cluster_policies_are_hits_in_their_tiers() {
    let of_cluster = |name: &str, tier, action| flow::PolicyHit {
        kind: "ClusterNetworkPolicy".into(),
        namespace: "".into(),
        tier: Some(tier),
        ..hit(name, Some("spec.ingress[2]"), action)
    };
    let pass = || vec![of_cluster("a", flow::PolicyTier::Admin, PolicyAction::Pass)];
    let deny = || of_cluster("b", flow::PolicyTier::Baseline, PolicyAction::Deny);
    let trace = |ingress: SideTrace| {
        let flows: Vec<crate::message::Flow> = convert(&with_key(joined(0), |key| key.ingress = ingress)).collect();
        let policies = flows[1].key.as_ref().unwrap().policies.clone().unwrap();
        let words = |hits: &[crate::message::PolicyHit]| -> Vec<(i32, String, String, i32, i64, i64)> {
            let word = |hit: &crate::message::PolicyHit| {
                (hit.kind, hit.tier.clone(), hit.name.clone(), hit.action, hit.policy_index, hit.rule_index)
            };
            hits.iter().map(word).collect()
        };
        (words(&policies.enforced_policies), words(&policies.pending_policies))
    };
    let word =
        |kind, tier: &str, name: &str, action, index, rule| (kind, tier.into(), name.into(), action, index, rule);
    let passed = || word(11, "kube-admin", "a", 3, 0, 2);
    let denied = SideTrace { passed_by: pass(), ..side(TraceVerdict::Denied, vec![deny()]) };
    let enforced = vec![passed(), word(11, "kube-baseline", "b", 2, 1, 2)];
    assert_eq!(trace(denied), (enforced.clone(), enforced));
    let audited = SideTrace { passed_by: pass(), pending: vec![deny()], ..side(TraceVerdict::WouldDeny, vec![]) };
    let profile = word(9, "", "kns.shop", 1, 1, 0);
    assert_eq!(trace(audited), (vec![passed(), profile], vec![word(4, "kube-baseline", "b", 2, 0, 2)]));
}
