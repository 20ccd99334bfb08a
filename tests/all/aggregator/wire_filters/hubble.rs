//! `flow.FlowFilter` by its published definition, and docs/flows-interfaces.md for what a record is.

use std::net::{IpAddr, SocketAddr};

use flow::{EndSample, Endpoint, EndpointKind, FlowVerdict, PolicyAction, TraceVerdict};
use tests::grpc_bytes::{FieldValue, Fields, Writer};
use tests::hubble_client::{FLOW_FILTER, FlowAnswer, FlowsRequest, HubbleClient, ProtocolTime};

use super::criteria::{Coverage, Criteria, DrawnFilter};
use super::traffic::{Random, ReportingSides, Traffic};
use super::{NOT_SERVED, SETS};

/// A flow as Hubble shows it.
struct HubbleView<'a> {
    traffic: &'a Traffic,
    uuid: String,
}

impl HubbleView<'_> {
    fn end(&self, is_source: bool) -> (&Endpoint, &EndSample) {
        let (key, record) = (self.traffic.key(), &self.traffic.first);
        match is_source {
            true => (&key.source, &record.sources),
            false => (&key.destination, &record.destinations),
        }
    }

    /// Namespace and name of each pod that the end may be: those that the record lists, and the name that is shown.
    fn pods(&self, is_source: bool) -> Vec<(String, String)> {
        let (end, sample) = self.end(is_source);
        let split = |pod: &str| pod.split_once('/').map(|(namespace, name)| (namespace.to_owned(), name.to_owned()));
        let mut pods: Vec<(String, String)> = sample.pods.iter().filter_map(|pod| split(pod)).collect();
        let shown = self.pod_name(is_source);
        if let (Some(namespace), false) = (&end.namespace, shown.is_empty()) {
            pods.push((namespace.to_string(), shown));
        }
        pods
    }

    /// The pod if there is one, and the workload if there are several or none is known.
    fn pod_name(&self, is_source: bool) -> String {
        let (end, sample) = self.end(is_source);
        match end.kind {
            EndpointKind::Pod | EndpointKind::RemoteCluster => {}
            EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::UnknownPod | EndpointKind::World => {
                return String::new();
            }
        }
        match sample.pods.len() {
            1 => sample.pods.first().unwrap().split_once('/').unwrap().1.to_owned(),
            _ => end.name.as_deref().unwrap().to_owned(),
        }
    }

    fn labels(&self, is_source: bool) -> Vec<(&'static str, String, String)> {
        let (end, sample) = self.end(is_source);
        let mut labels = Vec::new();
        if let Some(namespace) = &end.namespace {
            labels.push(("k8s", "io.kubernetes.pod.namespace".to_owned(), namespace.to_string()));
        }
        for label in &sample.labels {
            let (key, value) = label.split_once('=').unwrap();
            labels.push(("k8s", key.to_owned(), value.to_owned()));
        }
        if let Some((_, name)) = reserved(end.kind) {
            labels.push(("reserved", name.to_owned(), String::new()));
        }
        labels
    }

    fn has_label(&self, is_source: bool, source: &str, key: &str, values: &[&str]) -> bool {
        let is = |label: &(&str, String, String)| {
            (source == "any" || label.0 == source)
                && label.1 == key
                && (values.is_empty() || values.contains(&&*label.2))
        };
        self.labels(is_source).iter().any(is)
    }

    fn identities(&self, is_source: bool) -> Vec<u32> {
        let (end, sample) = self.end(is_source);
        match sample.identities.is_empty() {
            true => vec![reserved(end.kind).map_or(0, |(number, _)| number)],
            false => sample.identities.iter().map(|identity| identity.num).collect(),
        }
    }

    fn workload(&self, is_source: bool) -> Option<&str> {
        let (end, _) = self.end(is_source);
        match end.kind {
            EndpointKind::Pod | EndpointKind::RemoteCluster => end.name.as_deref(),
            EndpointKind::Node | EndpointKind::KubeApiserver | EndpointKind::UnknownPod | EndpointKind::World => None,
        }
    }

    fn verdict(&self) -> i64 {
        match self.traffic.verdict() {
            FlowVerdict::Allowed => 1,
            FlowVerdict::Denied => 2,
            FlowVerdict::WouldDeny => 4,
        }
    }

    /// `flow.DropReason` of a dropped flow.
    fn drop_reason(&self) -> Option<i64> {
        if self.verdict() != 2 {
            return None;
        }
        Some(match self.traffic.key().drop_cause.as_deref() {
            Some("forged-source" | "unknown-address") => 132,
            Some("tunnel") => 170,
            Some("other-protocol") => 166,
            Some(_) => 134,
            None => {
                let sides = [&self.traffic.key().egress, &self.traffic.last_record().key.ingress];
                let mut hits = sides.into_iter().flat_map(|side| &side.enforced);
                if hits.any(|hit| hit.action == PolicyAction::Deny && hit.rule.is_some()) { 181 } else { 133 }
            }
        })
    }

    /// Drop with its reason as subtype, or policy verdict.
    fn event(&self) -> (i64, i64) {
        self.drop_reason().map_or((5, 0), |reason| (1, reason))
    }

    /// The side that denied, or would; otherwise the destination's if its node reports.
    fn direction(&self) -> i64 {
        let (unknown, ingress, egress) = (0, 1, 2);
        let strict = |verdict: TraceVerdict| matches!(verdict, TraceVerdict::Denied | TraceVerdict::WouldDeny);
        match self.traffic.reported {
            ReportingSides::Neither => unknown,
            ReportingSides::Source => egress,
            ReportingSides::Destination => ingress,
            ReportingSides::Apart => {
                let (source, destination) =
                    (self.traffic.source_verdict().unwrap(), self.traffic.destination_verdict().unwrap());
                if source > destination { egress } else { ingress }
            }
            ReportingSides::Together => {
                let key = self.traffic.key();
                if strict(key.egress.verdict) && !strict(key.ingress.verdict) { egress } else { ingress }
            }
        }
    }

    fn is_protocol(&self, name: &str) -> bool {
        let numbers: &[u8] = match name {
            "tcp" => &[6],
            "UDP" => &[17],
            "sctp" => &[132],
            "icmp" => &[1, 58],
            "ICMPv4" => &[1],
            "icmpv6" => &[58],
            "igmp" => &[],
            other => panic!("{other}"),
        };
        numbers.contains(&self.traffic.key().protocol)
    }

    /// Port 0 stands for the ports of a record that sums up many.
    fn port(&self) -> Option<u16> {
        let key = self.traffic.key();
        matches!(key.protocol, 6 | 17 | 132).then_some(key.port.unwrap_or(0))
    }

    fn time(&self) -> ProtocolTime {
        let nanos = self.traffic.first.last.as_nanosecond();
        let second = 1_000_000_000;
        ProtocolTime { seconds: (nanos / second) as i64, nanos: (nanos % second) as i64 }
    }
}

/// Number and label of a reserved identity.
fn reserved(kind: EndpointKind) -> Option<(u32, &'static str)> {
    match kind {
        EndpointKind::Pod | EndpointKind::RemoteCluster => None,
        EndpointKind::World => Some((2, "world")),
        EndpointKind::UnknownPod => Some((3, "unmanaged")),
        EndpointKind::Node => Some((6, "remote-node")),
        EndpointKind::KubeApiserver => Some((7, "kube-apiserver")),
    }
}

/// Whether the first `length` bits of an address are those of the base.
fn is_within(address: &IpAddr, base: &str, length: u32) -> bool {
    let bits = |address: &IpAddr| match address {
        IpAddr::V4(address) => (32, u128::from(u32::from(*address))),
        IpAddr::V6(address) => (128, u128::from(*address)),
    };
    let ((width, address), (base_width, base)) = (bits(address), bits(&base.parse().unwrap()));
    width == base_width && (length == 0 || (address ^ base) >> (width - length) == 0)
}

fn criteria<'a>(views: &'a [HubbleView<'a>], random: &mut Random) -> Criteria<'a, HubbleView<'a>> {
    let mut all = Criteria::new(views);
    // Fields of the source and of the destination.
    for (is_source, [ip, pod, label, service, identity, workload, cluster]) in
        [(true, [1, 2, 10, 16, 19, 26, 37]), (false, [3, 4, 11, 17, 20, 27, 38])]
    {
        for (text, base, length) in [
            ("10.0.1.7", "10.0.1.7", 32),
            ("192.0.2.1", "192.0.2.1", 32),
            ("2001:db8::1", "2001:db8::1", 128),
            ("10.0.0.0/8", "10.0.0.0", 8),
            ("10.0.2.77/24", "10.0.2.0", 24),
            ("0.0.0.0/0", "0.0.0.0", 0),
            ("2001:db8::/32", "2001:db8::", 32),
            ("fc00::/7", "fc00::", 7),
        ] {
            all.text(ip, text, |view| {
                view.end(is_source).1.addresses.iter().any(|address| is_within(address, base, length))
            });
        }
        for (text, namespace, prefix) in [
            ("shop/", "shop", ""),
            ("shop/web", "shop", "web"),
            ("pay/db-1", "pay", "db-1"),
            ("default/webhook-0", "default", "webhook-0"),
            ("web", "default", "web"),
            ("/db", "", "db"),
            ("nowhere/", "nowhere", ""),
        ] {
            let is = move |of: &str, name: &str| (namespace.is_empty() || of == namespace) && name.starts_with(prefix);
            all.text(pod, text, |view| view.pods(is_source).iter().any(|(of, name)| is(of, name)));
            all.text(service, text, |view| {
                let client = view.traffic.key().service.as_ref();
                !is_source && client.is_some_and(|service| is(&service.namespace, &service.name))
            });
        }
        all.text(label, "k8s:app=web", |view| view.has_label(is_source, "k8s", "app", &["web"]));
        all.text(label, "app == db", |view| view.has_label(is_source, "any", "app", &["db"]));
        all.text(label, "app in (db, web),!tier", |view| {
            view.has_label(is_source, "any", "app", &["db", "web"]) && !view.has_label(is_source, "any", "tier", &[])
        });
        all.text(label, "app!=web", |view| !view.has_label(is_source, "any", "app", &["web"]));
        all.text(label, "tier", |view| view.has_label(is_source, "any", "tier", &[]));
        all.text(label, "any:tier notin (front)", |view| !view.has_label(is_source, "any", "tier", &["front"]));
        all.text(label, "reserved:world", |view| view.has_label(is_source, "reserved", "world", &[]));
        all.text(label, "reserved:app", |_| false);
        all.text(label, "k8s:io.kubernetes.pod.namespace=shop", |view| {
            view.has_label(is_source, "k8s", "io.kubernetes.pod.namespace", &["shop"])
        });
        for number in [0, 1, 2, 3, 5, 7, 213_703] {
            all.number(identity, number, |view| view.identities(is_source).contains(&(number as u32)));
        }
        for name in ["web", "db", "web-0", ""] {
            let value = FieldValue::Message(Writer::default().text(1, name));
            all.add(workload, value, |view| {
                view.workload(is_source).is_some_and(|workload| name.is_empty() || workload == name)
            });
        }
        for name in ["default", "east", "west"] {
            all.text(cluster, name, |view| view.end(is_source).0.cluster.as_deref().unwrap_or("default") == name);
        }
    }
    for verdict in [0, 1, 2, 3, 4] {
        all.number(5, verdict, |view| view.verdict() == verdict);
    }
    for (kind, sub_type) in
        [(1, None), (5, None), (4, None), (0, None), (1, Some(133)), (1, Some(132)), (0, Some(0)), (0, Some(134))]
    {
        let event = Writer::default().number(1, kind);
        let event = sub_type.map_or(event.clone(), |sub_type| event.number(2, 1).number(3, sub_type));
        all.add(6, FieldValue::Message(event), |view| {
            let of_flow = view.event();
            (kind == 0 || kind == of_flow.0) && sub_type.is_none_or(|sub_type| sub_type == of_flow.1)
        });
    }
    for name in ["tcp", "UDP", "sctp", "icmp", "ICMPv4", "icmpv6", "igmp"] {
        all.text(12, name, |view| view.is_protocol(name));
    }
    for port in [0, 53, 80, 443, 5432, 65_535] {
        all.text(14, &port.to_string(), |view| view.port() == Some(port));
    }
    // A record has both directions.
    all.number(15, 0, |_| true);
    all.number(15, 1, |_| false);
    type IsNode = fn(&str) -> bool;
    let nodes: [(&str, IsNode); 7] = [
        ("n1", |node| node == "n1"),
        ("N2", |node| node == "n2"),
        ("default/n*", |node| node.starts_with('n')),
        ("*.zone", |node| node.ends_with(".zone")),
        ("node-3.zone.", |node| node == "node-3.zone"),
        ("/n", |node| node == "n"),
        ("east/", |_| false),
    ];
    for (text, is_node) in nodes {
        all.text(24, text, |view| view.traffic.records().any(|record| is_node(&record.node)));
    }
    for version in [0, 1, 2] {
        all.number(25, version, |view| {
            let (source, destination) = (view.end(true).1, view.end(false).1);
            let mut addresses = source.addresses.iter().chain(&destination.addresses).peekable();
            match addresses.peek() {
                None => version == 0,
                Some(_) => addresses.any(|address| version == if address.is_ipv4() { 1 } else { 2 }),
            }
        });
    }
    for _ in 0..40 {
        let uuid = views[random.below(views.len())].uuid.clone();
        all.text(29, &uuid, |view| view.uuid == uuid);
    }
    for direction in [0, 1, 2] {
        all.number(30, direction, |view| view.direction() == direction);
    }
    for reason in [0, 132, 133, 134, 166, 170, 181] {
        all.number(33, reason, |view| view.drop_reason() == Some(reason));
    }
    all
}

/// Compares a flow of the server with the connection that was sent.
fn assert_shown(flow: &Fields, view: &HubbleView<'_>) {
    let key = view.traffic.key();
    assert_eq!((flow.number(2), flow.number(22)), (view.verdict(), view.direction()), "{:?}", view.traffic);
    let event = flow.message(19);
    assert_eq!((event.number(1), event.number(2)), view.event());
    assert_eq!((flow.number(3), flow.number(25)), (view.drop_reason().unwrap_or(0), view.drop_reason().unwrap_or(0)));
    let (number, ports) = match key.protocol {
        6 => (1, true),
        17 => (2, true),
        132 => (5, true),
        1 => (3, false),
        58 => (4, false),
        _ => (0, false),
    };
    assert_eq!(flow.message(6).numbers().collect::<Vec<_>>(), if number > 0 { vec![number] } else { vec![] });
    let l4 = flow.message(6).message(number);
    let expected =
        if ports { (2, i64::from(key.port.unwrap_or(0))) } else { (1, i64::from(key.icmp_type.unwrap_or(0))) };
    assert!(number == 0 || l4.number(expected.0) == expected.1);
    for (field, is_source) in [(8, true), (9, false)] {
        let (end, sample) = view.end(is_source);
        let shown = flow.message(field);
        assert_eq!(shown.text(3), end.namespace.as_deref().unwrap_or_default());
        assert_eq!(shown.text(5), view.pod_name(is_source));
        assert_eq!(shown.text(7), end.cluster.as_deref().unwrap_or_default());
        assert_eq!(shown.number(2), i64::from(view.identities(is_source)[0]));
        let workloads: Vec<String> = shown.messages(6).iter().map(|workload| workload.text(1)).collect();
        assert_eq!(workloads, view.workload(is_source).into_iter().collect::<Vec<_>>());
        let label = |(source, key, value): &(&str, String, String)| match value.is_empty() {
            true => format!("{source}:{key}"),
            false => format!("{source}:{key}={value}"),
        };
        assert_eq!(shown.texts(4), view.labels(is_source).iter().map(label).collect::<Vec<_>>());
        let address = flow.message(5).text(if is_source { 1 } else { 2 });
        assert!(
            sample.addresses.is_empty() && address.is_empty() || sample.addresses.contains(&address.parse().unwrap())
        );
    }
    let service = key.service.as_ref().map(|service| (service.name.to_string(), service.namespace.to_string()));
    assert_eq!(flow.has(21).then(|| (flow.message(21).text(1), flow.message(21).text(2))), service);
    assert!(flow.has(26) && flow.message(26).number(1) == 0, "no reply");
    assert_eq!((flow.text(11), flow.number(10)), (view.traffic.first.node.to_string(), 1));
}

/// The request with a number of flows, a range of time within a window, or both.
fn bounded(random: &mut Random, views: &[HubbleView<'_>], request: &FlowsRequest) -> FlowsRequest {
    let window = views[random.below(views.len())].traffic.first.window.as_second();
    let number = if random.chance(15) { 1 + random.below(300) as u64 } else { 0 };
    let has_range = number == 0 || random.chance(50);
    let bound = |second: i64| has_range.then_some(ProtocolTime { seconds: second, nanos: 0 });
    let (since, until) = (bound(window + random.below(3) as i64), bound(window + 15 - random.below(3) as i64));
    FlowsRequest { number, first: number > 0 && random.chance(50), since, until, ..request.clone() }
}

fn is_in_range(request: &FlowsRequest, time: ProtocolTime) -> bool {
    request.since.is_none_or(|since| time >= since) && request.until.is_none_or(|until| time <= until)
}

/// Times of the flows that a request asks for, in the order of their times.
fn expected(
    request: &FlowsRequest,
    views: &[HubbleView<'_>],
    white: &[DrawnFilter],
    black: &[DrawnFilter],
) -> Vec<ProtocolTime> {
    let is_wanted = |index: usize| {
        (white.is_empty() || white.iter().any(|filter| filter.matches[index]))
            && !black.iter().any(|filter| filter.matches[index])
    };
    let wanted = views.iter().enumerate().filter(|(index, _)| is_wanted(*index));
    let mut times: Vec<ProtocolTime> =
        wanted.map(|(_, view)| view.time()).filter(|time| is_in_range(request, *time)).collect();
    times.sort_unstable();
    let number = usize::try_from(request.number).unwrap();
    if number > 0 {
        let rest = times.len().saturating_sub(number);
        if request.first {
            times.truncate(number);
        } else {
            times.drain(..rest);
        }
    }
    times
}

pub(super) fn compare(traffic: &[Traffic], address: SocketAddr) {
    let client = HubbleClient::connect(address);
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut views: Vec<HubbleView<'_>> =
        traffic.iter().map(|traffic| HubbleView { traffic, uuid: String::new() }).collect();
    views.sort_by_key(HubbleView::time);
    let all = client.flows(&Writer::default()).unwrap();
    assert_eq!(all.len(), views.len());
    for (answer, view) in all.iter().zip(&mut views) {
        assert_eq!(answer.time, view.time());
        let flow = answer.flow();
        assert_shown(&flow, view);
        view.uuid = flow.text(34);
    }
    let criteria = criteria(&views, &mut random);
    let served: Vec<u32> =
        FLOW_FILTER.iter().filter(|(_, name)| !NOT_SERVED.contains(name)).map(|(number, _)| *number).collect();
    assert_eq!(criteria.fields(), served, "each served field has criteria");
    let mut coverage = Coverage::new();
    for set in 0..SETS {
        let (most_white, most_black) = (random.below(4), random.below(3));
        let white: Vec<DrawnFilter> = (0..most_white).map(|_| criteria.draw(&mut random, 4, &[])).collect();
        let black: Vec<DrawnFilter> = (0..most_black).map(|_| criteria.draw(&mut random, 3, &[])).collect();
        let encoded = |filters: &[DrawnFilter]| filters.iter().map(|filter| filter.filter.clone()).collect();
        let request =
            FlowsRequest { whitelist: encoded(&white), blacklist: encoded(&black), ..FlowsRequest::default() };
        for request in [request.clone(), bounded(&mut random, &views, &request)] {
            let answers = client.flows(&request.encode()).unwrap();
            let times: Vec<ProtocolTime> = answers.iter().map(|answer: &FlowAnswer| answer.time).collect();
            let expected = expected(&request, &views, &white, &black);
            assert!(times == expected, "set {set}: {} flows instead of {}: {request:?}", times.len(), expected.len());
            if request.number == 0 && request.since.is_none() {
                coverage.record(white.iter().chain(&black), times.len(), views.len());
            }
        }
    }
    // No flow is a reply, and no source has a Service.
    let varied: Vec<u32> = served.into_iter().filter(|field| ![15, 16].contains(field)).collect();
    coverage.assert_all(&varied, SETS);
}
