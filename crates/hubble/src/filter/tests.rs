//! Filters as clients send them, compared with an oracle that reads the protocol on records.

use flow::{ClusterRecord, EndSample, Endpoint, EndpointKind};
use prost::Message;

use super::*;
use crate::convert;
use crate::testing::{Random, denied, random_record};

fn decoded(bytes: &[u8]) -> Strict<GetFlowsRequest> {
    Strict::decode(bytes).unwrap()
}

fn request(whitelist: Vec<FlowFilter>, blacklist: Vec<FlowFilter>) -> GetFlowsRequest {
    let strict = |filters: Vec<FlowFilter>| filters.into_iter().map(Strict::from).collect();
    GetFlowsRequest { whitelist: strict(whitelist), blacklist: strict(blacklist), ..GetFlowsRequest::default() }
}

fn names(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

#[test]
fn fields_that_are_not_served_are_refused() {
    for (number, name) in NOT_SERVED {
        let mut filter = Vec::new();
        prost::encoding::encode_varint(u64::from(*number) << 3 | 2, &mut filter);
        filter.extend(b"\x01x");
        let bytes = [&[0x32, filter.len() as u8], &filter[..]].concat();
        assert_eq!(Filters::parse(&decoded(&bytes)), Err(FilterError::NotServed(name)), "{number}");
        assert!(!<FlowFilter as wire::KnownFields>::FIELDS.contains(number));
    }
    let newer = [0x2a, 4, 0xc2, 0x3e, 1, b'x'];
    assert_eq!(Filters::parse(&decoded(&newer)), Err(FilterError::Unknown(1000)));
    assert_eq!(Filters::parse(&decoded(&[0x58, 1])), Err(FilterError::UnknownInRequest(11)));
    for (value, field, number) in
        [(&b"\x32\x04\x32\x02\x20\x01"[..], "event_type", 4), (b"\x32\x05\xd2\x01\x02\x18\x01", "source_workload", 3)]
    {
        assert_eq!(Filters::parse(&decoded(value)), Err(FilterError::UnknownInValue { field, number }));
    }
}

#[test]
fn values_without_meaning_are_refused() {
    let refused = |filter: FlowFilter| Filters::parse(&request(vec![], vec![filter]).into()).unwrap_err().to_string();
    let filter = FlowFilter { source_ip: names(&["10.0.0"]), ..Default::default() };
    assert_eq!(refused(filter), "invalid source_ip '10.0.0': expected an address or a CIDR");
    let filter = FlowFilter { protocol: names(&["http"]), ..Default::default() };
    assert_eq!(refused(filter), "invalid protocol 'http': expected tcp, udp, sctp, icmp, icmpv4 or icmpv6");
    let workload = Workload { name: "web".into(), kind: "Deployment".into() };
    let filter = FlowFilter { source_workload: vec![workload.into()], ..Default::default() };
    assert!(refused(filter).starts_with("invalid source_workload kind 'Deployment'"));
    for name in ["n2..", ".", "a/b/c", "n 2"] {
        let filter = FlowFilter { node_name: names(&[name]), ..Default::default() };
        assert!(refused(filter).ends_with("expected [CLUSTER/]NODE, with * for any text"), "{name}");
    }
    let filter = FlowFilter { uuid: vec![String::new(); MOST_VALUES], ..Default::default() };
    assert_eq!(refused(filter), FilterError::TooMany.to_string());
    let both = GetFlowsRequest { first: true, follow: true, ..Default::default() };
    assert_eq!(Filters::parse(&both.into()), Err(FilterError::FirstAndFollow));
}

#[test]
fn patterns_match_whole_names() {
    for (pattern, text, expected) in [
        ("*", "", true),
        ("node-*", "node-1", true),
        ("*.zone", "node-3.zone", true),
        ("n*e*3*", "node-3.zone", true),
        ("node", "node-1", false),
        ("*-1", "node-11", false),
        ("a*a", "a", false),
        ("a*b*b", "ab", false),
    ] {
        assert_eq!(matches_pattern(pattern, text), expected, "{pattern} {text}");
    }
}

#[test]
fn fixed_record_is_found_by_each_field() {
    let (record, flow) = (denied(), convert(&denied()));
    let workload = |name: &str| vec![Workload { name: name.into(), kind: String::new() }.into()];
    let event = |r#type, sub_type| vec![EventTypeFilter { r#type, match_sub_type: true, sub_type }.into()];
    let pairs = [
        (
            FlowFilter { source_pod: names(&["shop/web"]), ..Default::default() },
            FlowFilter { source_pod: names(&["web"]), ..Default::default() },
        ),
        (
            FlowFilter { destination_pod: names(&["shop/db-1"]), ..Default::default() },
            FlowFilter { destination_pod: names(&["pay/"]), ..Default::default() },
        ),
        (
            FlowFilter { destination_ip: names(&["10.0.2.0/24"]), ..Default::default() },
            FlowFilter { destination_ip: names(&["10.0.1.7"]), ..Default::default() },
        ),
        (
            FlowFilter { source_label: names(&["k8s:app=web"]), ..Default::default() },
            FlowFilter { source_label: names(&["app!=web"]), ..Default::default() },
        ),
        (
            FlowFilter { destination_service: names(&["shop/d"]), ..Default::default() },
            FlowFilter { source_service: names(&["shop/db"]), ..Default::default() },
        ),
        (
            FlowFilter { destination_workload: workload("db"), ..Default::default() },
            FlowFilter { source_workload: workload("db"), ..Default::default() },
        ),
        (
            FlowFilter { verdict: vec![2], drop_reason_desc: vec![133], ..Default::default() },
            FlowFilter { verdict: vec![1, 4], ..Default::default() },
        ),
        (
            FlowFilter { event_type: event(1, 133), ..Default::default() },
            FlowFilter { event_type: event(1, 0), ..Default::default() },
        ),
        (
            FlowFilter { protocol: names(&["TCP"]), destination_port: names(&["80", "5432"]), ..Default::default() },
            FlowFilter { protocol: names(&["icmp", "udp"]), ..Default::default() },
        ),
        (
            FlowFilter { reply: vec![false], ..Default::default() },
            FlowFilter { reply: vec![true], ..Default::default() },
        ),
        (
            FlowFilter { node_name: names(&["Default./n2."]), ..Default::default() },
            FlowFilter { node_name: names(&["east/*"]), ..Default::default() },
        ),
        (
            FlowFilter { traffic_direction: vec![1], ip_version: vec![1], ..Default::default() },
            FlowFilter { ip_version: vec![2], ..Default::default() },
        ),
        (
            FlowFilter { source_identity: vec![213_703], ..Default::default() },
            FlowFilter { destination_identity: vec![2], ..Default::default() },
        ),
        (
            FlowFilter { uuid: vec![flow.uuid.clone()], ..Default::default() },
            FlowFilter { uuid: names(&["x"]), ..Default::default() },
        ),
        (
            FlowFilter { source_cluster_name: names(&["default"]), ..Default::default() },
            FlowFilter { destination_cluster_name: names(&["east"]), ..Default::default() },
        ),
    ];
    for (admitting, rejecting) in pairs {
        for (filter, expected) in [(admitting, true), (rejecting, false)] {
            let admits = |white: &FlowFilter, black: Vec<FlowFilter>| {
                Filters::parse(&request(vec![white.clone()], black).into()).unwrap().admits(&record)
            };
            assert_eq!(admits(&filter, vec![]), expected, "{filter:?}");
            assert_eq!(admits(&FlowFilter::default(), vec![filter.clone()]), !expected, "not {filter:?}");
        }
    }
}

/// One side of a record.
fn side_of(record: &ClusterRecord, is_source: bool) -> (&Endpoint, &EndSample) {
    match is_source {
        true => (&record.record.key.source, &record.record.sources),
        false => (&record.record.key.destination, &record.record.destinations),
    }
}

/// Oracle: evaluates the protocol's definition literally, for the generated texts.
fn admits_slowly(filter: &FlowFilter, record: &ClusterRecord) -> bool {
    let key = &record.record.key;
    let within = |addresses: &[String], is_source| {
        let (_, sample) = side_of(record, is_source);
        addresses.is_empty()
            || sample.addresses.iter().any(|address| {
                addresses.iter().any(|wanted| match wanted.as_str() {
                    "10.0.0.0/8" => address.to_string().starts_with("10."),
                    "2001:db8::/32" => address.to_string().starts_with("2001:db8:"),
                    one => address.to_string() == one,
                })
            })
    };
    let pod = |wanted: &[String], is_source| {
        let (end, sample) = side_of(record, is_source);
        let mut there: Vec<String> = sample.pods.iter().map(|pod| pod.to_string()).collect();
        if sample.pods.len() != 1 && end.namespace.is_some() {
            there.push(format!("{}/{}", end.namespace.as_deref().unwrap(), end.name.as_deref().unwrap()));
        }
        wanted.is_empty()
            || wanted.iter().any(|wanted| {
                let full = if wanted.contains('/') { wanted.clone() } else { format!("default/{wanted}") };
                there.iter().any(|pod| pod.starts_with(&full))
            })
    };
    let label = |wanted: &[String], is_source| {
        let (end, sample) = side_of(record, is_source);
        wanted.is_empty()
            || wanted.iter().any(|wanted| match wanted.as_str() {
                "k8s:app=web" => sample.labels.contains("app=web"),
                "app in (db, web),!tier" => sample.labels.contains("app=web") || sample.labels.contains("app=db"),
                "reserved:world" => end.kind == EndpointKind::World,
                "k8s:io.kubernetes.pod.namespace!=shop" => end.namespace.as_deref() != Some("shop"),
                other => panic!("{other}"),
            })
    };
    let workload = |wanted: &[Strict<Workload>], is_source| {
        let (end, _) = side_of(record, is_source);
        let is_workload = matches!(end.kind, EndpointKind::Pod | EndpointKind::RemoteCluster);
        wanted.is_empty()
            || (is_workload && wanted.iter().any(|wanted| end.name.as_deref() == Some(wanted.message.name.as_str())))
    };
    let identity = |wanted: &[u32], is_source| {
        let (end, sample) = side_of(record, is_source);
        let shown = match (sample.identities.first(), end.kind) {
            (Some(first), _) => first.num,
            (None, EndpointKind::World) => 2,
            (None, EndpointKind::Node) => 6,
            (None, EndpointKind::KubeApiserver) => 7,
            (None, EndpointKind::Pod | EndpointKind::RemoteCluster | EndpointKind::UnknownPod) => 0,
        };
        wanted.is_empty() || wanted.contains(&shown)
    };
    let cluster = |wanted: &[String], is_source| {
        let (end, _) = side_of(record, is_source);
        wanted.is_empty() || wanted.iter().any(|wanted| wanted == end.cluster.as_deref().unwrap_or("default"))
    };
    let verdict = match key.verdict {
        flow::FlowVerdict::Allowed => 1,
        flow::FlowVerdict::Denied => 2,
        flow::FlowVerdict::WouldDeny => 4,
    };
    let reason = match (key.verdict, key.drop_cause.as_deref()) {
        (flow::FlowVerdict::Denied, Some("forged-source")) => 132,
        (flow::FlowVerdict::Denied, Some("tunnel")) => 170,
        (flow::FlowVerdict::Denied, Some(_)) => 134,
        (flow::FlowVerdict::Denied, None) => {
            let mut hits = key.egress.enforced.iter().chain(&key.ingress.enforced);
            if hits.any(|hit| hit.action == flow::PolicyAction::Deny && hit.rule.is_some()) { 181 } else { 133 }
        }
        (flow::FlowVerdict::Allowed | flow::FlowVerdict::WouldDeny, _) => 0,
    };
    let protocol = |wanted: &str| match wanted {
        "tcp" => key.protocol == 6,
        "udp" => key.protocol == 17,
        "sctp" => key.protocol == 132,
        "icmp" => key.protocol == 1 || key.protocol == 58,
        "icmpv6" => key.protocol == 58,
        other => panic!("{other}"),
    };
    let has_ports = matches!(key.protocol, 6 | 17 | 132);
    let service = |wanted: &[String]| {
        wanted.is_empty()
            || key.service.as_ref().is_some_and(|service| {
                let name = format!("{}/{}", service.namespace, service.name);
                wanted.iter().any(|wanted| name.starts_with(wanted))
            })
    };
    let node = |wanted: &str| {
        record.seen_by.source.iter().chain(&record.seen_by.destination).any(|node| match wanted {
            "n1" => &**node == "n1",
            "default/n*" => node.starts_with('n'),
            "*.zone" => node.ends_with(".zone"),
            "east/" => false,
            other => panic!("{other}"),
        })
    };
    let addresses = record.record.sources.addresses.iter().chain(&record.record.destinations.addresses);
    let versions: Vec<i32> = addresses.map(|address| if address.is_ipv4() { 1 } else { 2 }).collect();
    let versions = if versions.is_empty() { vec![0] } else { versions };
    within(&filter.source_ip, true)
        && within(&filter.destination_ip, false)
        && pod(&filter.source_pod, true)
        && pod(&filter.destination_pod, false)
        && label(&filter.source_label, true)
        && label(&filter.destination_label, false)
        && workload(&filter.source_workload, true)
        && workload(&filter.destination_workload, false)
        && identity(&filter.source_identity, true)
        && identity(&filter.destination_identity, false)
        && cluster(&filter.source_cluster_name, true)
        && cluster(&filter.destination_cluster_name, false)
        && filter.source_service.is_empty()
        && service(&filter.destination_service)
        && (filter.verdict.is_empty() || filter.verdict.contains(&verdict))
        && (filter.drop_reason_desc.is_empty() || (verdict == 2 && filter.drop_reason_desc.contains(&reason)))
        && (filter.event_type.is_empty()
            || filter.event_type.iter().any(|Strict { message: event, unknown: _ }| {
                event.r#type == (if verdict == 2 { 1 } else { 5 })
                    && (!event.match_sub_type || event.sub_type == reason)
            }))
        && (filter.protocol.is_empty() || filter.protocol.iter().any(|wanted| protocol(wanted)))
        && (filter.destination_port.is_empty()
            || (has_ports && filter.destination_port.contains(&key.port.unwrap_or(0).to_string())))
        && (filter.reply.is_empty() || filter.reply.contains(&false))
        && (filter.node_name.is_empty() || filter.node_name.iter().any(|wanted| node(wanted)))
        && (filter.ip_version.is_empty() || versions.iter().any(|version| filter.ip_version.contains(version)))
}

fn random_filter(random: &mut Random) -> FlowFilter {
    let mut filter = FlowFilter::default();
    for _ in 0..=random.below(3) {
        let mut texts = |of: &[&str]| (0..=random.below(2)).map(|_| random.pick(of).to_owned()).collect::<Vec<_>>();
        let addresses = ["10.0.1.7", "192.0.2.1", "10.0.0.0/8", "2001:db8::/32"];
        let pods = ["shop/", "shop/web", "pay/db-1", "web", "default/webhook-0"];
        let labels =
            ["k8s:app=web", "app in (db, web),!tier", "reserved:world", "k8s:io.kubernetes.pod.namespace!=shop"];
        let (address, pod, label) = (texts(&addresses), texts(&pods), texts(&labels));
        let (service, protocol) =
            (texts(&["shop/", "pay/d", "shop/web"]), texts(&["tcp", "udp", "sctp", "icmp", "icmpv6"]));
        let (port, node) = (texts(&["80", "443", "0"]), texts(&["n1", "default/n*", "*.zone", "east/"]));
        let cluster = texts(&["default", "east"]);
        let workload = vec![Workload { name: random.pick(&["web", "db"]).to_owned(), kind: String::new() }.into()];
        match random.below(22) {
            0 => filter.source_ip = address,
            1 => filter.destination_ip = address,
            2 => filter.source_pod = pod,
            3 => filter.destination_pod = pod,
            4 => filter.source_label = label,
            5 => filter.destination_label = label,
            6 => filter.source_workload = workload,
            7 => filter.destination_workload = workload,
            8 => filter.source_identity = vec![random.pick(&[1, 2, 7, 0])],
            9 => filter.destination_identity = vec![random.pick(&[1, 2, 6])],
            10 => filter.source_cluster_name = cluster,
            11 => filter.destination_cluster_name = cluster,
            12 => filter.source_service = service,
            13 => filter.destination_service = service,
            14 => filter.verdict = vec![random.pick(&[1, 2, 4, 3])],
            15 => filter.drop_reason_desc = vec![random.pick(&[132, 133, 134, 170, 181])],
            16 => {
                let event = EventTypeFilter {
                    r#type: random.pick(&[1, 5, 4]),
                    match_sub_type: random.chance(50),
                    sub_type: random.pick(&[0, 133]),
                };
                filter.event_type = vec![event.into()];
            }
            17 => filter.protocol = protocol,
            18 => filter.destination_port = port,
            19 => filter.reply = vec![random.chance(50)],
            20 => filter.node_name = node,
            21 => filter.ip_version = vec![random.pick(&[1, 2, 0])],
            _ => unreachable!("22 fields"),
        }
    }
    filter
}

#[test]
fn random_filters_agree_with_brute_force() {
    let mut random = Random(0x5eed_1234_5678_9abc);
    let records: Vec<ClusterRecord> = (0..10_000).map(|_| random_record(&mut random)).collect();
    let (mut some, mut admitted) = (0, 0u64);
    for number in 0..500 {
        let mut filters = |most| (0..random.below(most)).map(|_| random_filter(&mut random)).collect::<Vec<_>>();
        let (white, black) = (filters(4), filters(3));
        let sent = request(white.clone(), black.clone()).encode_to_vec();
        let parsed = Filters::parse(&decoded(&sent)).unwrap();
        let before = admitted;
        for record in &records {
            let expected = (white.is_empty() || white.iter().any(|filter| admits_slowly(filter, record)))
                && !black.iter().any(|filter| admits_slowly(filter, record));
            assert_eq!(parsed.admits(record), expected, "{number}: {white:?} without {black:?}: {record:?}");
            admitted += u64::from(expected);
        }
        some += u32::from(admitted > before && admitted < before + 10_000);
    }
    assert!(some > 200, "only {some} filters are met by some flows and not by others");
}
