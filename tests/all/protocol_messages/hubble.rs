//! Messages of `observer.Observer`: api/v1/flow/flow.proto and api/v1/observer/observer.proto of Cilium; of
//! `grpc.health.v1.Health`; and of `google.protobuf`.

use hubble::message::{
    Any, BoolValue, Emitter, EmptyRequest, Endpoint, EventType, EventTypeFilter, Flow, FlowFilter, FlowType,
    GetFlowsRequest, GetFlowsResponse, GetNamespacesResponse, GetNodesResponse, HealthCheckRequest,
    HealthCheckResponse, Icmp, Ip, IpVersion, Layer4, ListValue, LostEvent, LostEventSource, Namespace, Node,
    NodeState, Policy, Ports, Protocol, ResponseType, ServerStatusResponse, Service, ServingStatus, Struct,
    TrafficDirection, UInt32Value, Value, ValueKind, Verdict, Workload,
};
use prost::Message;
use tests::grpc_bytes::Writer;
use wire::Timestamp;

use super::{Declarations, Golden, assert_numbers, golden, numbers, strict};

fn new() -> Writer {
    Writer::default()
}

fn workload() -> (Workload, Writer) {
    (Workload { name: "web".into(), kind: "Deployment".into() }, new().text(1, "web").text(2, "Deployment"))
}

fn endpoint() -> (Endpoint, Writer) {
    let (workload, workload_bytes) = workload();
    let value = Endpoint {
        identity: 213_703,
        namespace: "shop".into(),
        labels: vec!["k8s:app=web".into(), "reserved:world".into()],
        pod_name: "web-0".into(),
        workloads: vec![workload],
        cluster_name: "east".into(),
    };
    let bytes = new()
        .number(2, 213_703)
        .text(3, "shop")
        .text(4, "k8s:app=web")
        .text(4, "reserved:world")
        .text(5, "web-0")
        .message(6, workload_bytes)
        .text(7, "east");
    (value, bytes)
}

fn policy(name: &str) -> (Policy, Writer) {
    let value = Policy {
        name: name.into(),
        namespace: "shop".into(),
        labels: vec!["ringfence:rule=spec.egress[0]".into()],
        revision: 1 << 40,
        kind: "NetworkPolicy".into(),
    };
    let label = "ringfence:rule=spec.egress[0]";
    let bytes = new().text(1, name).text(2, "shop").text(3, label).number(4, 1 << 40).text(5, "NetworkPolicy");
    (value, bytes)
}

fn any() -> (Any, Writer) {
    let url = "type.googleapis.com/google.protobuf.Struct";
    (Any { type_url: url.into(), value: vec![0, 255] }, new().text(1, url).bytes(2, &[0, 255]))
}

fn flow() -> (Flow, Writer) {
    let (source, source_bytes) = endpoint();
    let (extensions, extensions_bytes) = any();
    let [egress_allowed, ingress_allowed, egress_denied, ingress_denied] = ["a", "b", "c", "d"].map(policy);
    let value = Flow {
        time: Some(Timestamp { seconds: 1_777_896_001, nanos: 500_000_000 }),
        verdict: Verdict::Audit.into(),
        drop_reason: 133,
        ip: Some(Ip { source: "10.0.1.7".into(), destination: "10.0.2.9".into(), ip_version: IpVersion::V4.into() }),
        l4: Some(Layer4 { protocol: Some(Protocol::Tcp(Ports { destination_port: 5432 })) }),
        source: Some(source.clone()),
        destination: Some(source),
        r#type: FlowType::L3L4.into(),
        node_name: "n1".into(),
        event_type: Some(EventType { r#type: 1, sub_type: 133 }),
        destination_service: Some(Service { name: "db".into(), namespace: "pay".into() }),
        traffic_direction: TrafficDirection::Egress.into(),
        policy_match_type: 4,
        drop_reason_desc: 181,
        is_reply: Some(BoolValue { value: false }),
        uuid: "u".into(),
        emitter: Some(Emitter { name: "Ringfence".into(), version: "1".into() }),
        egress_allowed_by: vec![egress_allowed.0.clone(), egress_allowed.0],
        ingress_allowed_by: vec![ingress_allowed.0],
        egress_denied_by: vec![egress_denied.0],
        ingress_denied_by: vec![ingress_denied.0],
        extensions: Some(extensions),
    };
    let bytes = new()
        .message(1, new().number(1, 1_777_896_001).number(2, 500_000_000))
        .number(2, 4)
        .number(3, 133)
        .message(5, new().text(1, "10.0.1.7").text(2, "10.0.2.9").number(3, 1))
        .message(6, new().message(1, new().number(2, 5432)))
        .message(8, source_bytes.clone())
        .message(9, source_bytes)
        .number(10, 1)
        .text(11, "n1")
        .message(19, new().number(1, 1).number(2, 133))
        .message(21, new().text(1, "db").text(2, "pay"))
        .number(22, 2)
        .number(23, 4)
        .number(25, 181)
        .message(26, new())
        .text(34, "u")
        .message(41, new().text(1, "Ringfence").text(2, "1"))
        .message(21_001, egress_allowed.1.clone())
        .message(21_001, egress_allowed.1)
        .message(21_002, ingress_allowed.1)
        .message(21_004, egress_denied.1)
        .message(21_005, ingress_denied.1)
        .message(150_000, extensions_bytes);
    (value, bytes)
}

fn of_flow() -> Vec<Golden> {
    let (workload, workload_bytes) = workload();
    let (endpoint, endpoint_bytes) = endpoint();
    let (policy, policy_bytes) = policy("db");
    let (flow, flow_bytes) = flow();
    let ip = Ip { source: "2001:db8::1".into(), destination: "::1".into(), ip_version: IpVersion::V6.into() };
    let (ports, icmp) = (Ports { destination_port: 65_535 }, Icmp { r#type: 128 });
    let (ports_bytes, icmp_bytes) = (new().number(2, 65_535), new().number(1, 128));
    let mut goldens = vec![
        strict(&workload, workload_bytes),
        golden(&endpoint, endpoint_bytes),
        golden(&policy, policy_bytes),
        golden(&flow, flow_bytes),
        golden(&ip, new().text(1, "2001:db8::1").text(2, "::1").number(3, 2)),
        golden(&ports, ports_bytes.clone()),
        golden(&icmp, icmp_bytes.clone()),
        golden(&EventType { r#type: 5, sub_type: -1 }, new().number(1, 5).number(2, -1)),
        golden(&Service { name: "db".into(), namespace: "pay".into() }, new().text(1, "db").text(2, "pay")),
        golden(&Emitter { name: "e".into(), version: "v".into() }, new().text(1, "e").text(2, "v")),
    ];
    for (protocol, number, bytes) in [
        (Protocol::Tcp(ports), 1, &ports_bytes),
        (Protocol::Udp(ports), 2, &ports_bytes),
        (Protocol::IcmpV4(icmp), 3, &icmp_bytes),
        (Protocol::IcmpV6(icmp), 4, &icmp_bytes),
        (Protocol::Sctp(ports), 5, &ports_bytes),
    ] {
        goldens.push(golden(&Layer4 { protocol: Some(protocol) }, new().message(number, bytes.clone())));
    }
    goldens
}

/// Messages of `google.protobuf`.
fn of_google() -> Vec<Golden> {
    let (any, any_bytes) = any();
    let value = |kind| Value { kind: Some(kind) };
    let (number, number_bytes) = (value(ValueKind::Number(-1.5)), new().double(2, -1.5));
    let (text, text_bytes) = (value(ValueKind::Text("web-0".into())), new().text(3, "web-0"));
    let list = ListValue { values: vec![number.clone(), text.clone()] };
    let list_bytes = new().message(1, number_bytes.clone()).message(1, text_bytes.clone());
    let nested = value(ValueKind::List(list.clone()));
    let nested_bytes = new().message(6, list_bytes.clone());
    let object = Struct { fields: [("pods".to_owned(), nested.clone()), ("sent".to_owned(), number.clone())].into() };
    let object_bytes = new()
        .message(1, new().text(1, "pods").message(2, nested_bytes.clone()))
        .message(1, new().text(1, "sent").message(2, number_bytes.clone()));
    vec![
        golden(&BoolValue { value: true }, new().number(1, 1)),
        golden(&UInt32Value { value: u32::MAX }, new().number(1, u32::MAX.into())),
        golden(&any, any_bytes),
        golden(&number, number_bytes),
        golden(&text, text_bytes),
        golden(&nested, nested_bytes),
        golden(&list, list_bytes),
        golden(&object, object_bytes),
    ]
}

fn filter() -> (FlowFilter, Writer) {
    let (workload, workload_bytes) = workload();
    let event = EventTypeFilter { r#type: 1, match_sub_type: true, sub_type: 133 };
    let texts = |text: &str| vec![text.to_owned()];
    let value = FlowFilter {
        source_ip: texts("10.0.0.0/8"),
        source_pod: vec!["shop/web".into(), "pay/".into()],
        destination_ip: texts("::1"),
        destination_pod: texts("shop/db"),
        verdict: vec![1, 2],
        event_type: vec![event.into(), event.into()],
        source_label: texts("app=web"),
        destination_label: texts("app in (db)"),
        protocol: texts("tcp"),
        destination_port: texts("5432"),
        reply: vec![true, false],
        source_service: texts("shop/a"),
        destination_service: texts("shop/b"),
        source_identity: vec![2, 213_703],
        destination_identity: vec![7],
        node_name: texts("n*"),
        ip_version: vec![2],
        source_workload: vec![workload.clone().into()],
        destination_workload: vec![workload.into()],
        uuid: texts("u"),
        traffic_direction: vec![1, 2],
        drop_reason_desc: vec![181],
        source_cluster_name: texts("east"),
        destination_cluster_name: texts("west"),
    };
    let event_bytes = new().number(1, 1).number(2, 1).number(3, 133);
    let bytes = new()
        .text(1, "10.0.0.0/8")
        .text(2, "shop/web")
        .text(2, "pay/")
        .text(3, "::1")
        .text(4, "shop/db")
        .packed(5, &[1, 2])
        .message(6, event_bytes.clone())
        .message(6, event_bytes)
        .text(10, "app=web")
        .text(11, "app in (db)")
        .text(12, "tcp")
        .text(14, "5432")
        .packed(15, &[1, 0])
        .text(16, "shop/a")
        .text(17, "shop/b")
        .packed(19, &[2, 213_703])
        .packed(20, &[7])
        .text(24, "n*")
        .packed(25, &[2])
        .message(26, workload_bytes.clone())
        .message(27, workload_bytes)
        .text(29, "u")
        .packed(30, &[1, 2])
        .packed(33, &[181])
        .text(37, "east")
        .text(38, "west");
    (value, bytes)
}

fn of_get_flows() -> Vec<Golden> {
    let (filter, filter_bytes) = filter();
    let (flow, flow_bytes) = flow();
    let event = EventTypeFilter { r#type: 1, match_sub_type: true, sub_type: -1 };
    let request = GetFlowsRequest {
        number: 20,
        follow: true,
        blacklist: vec![filter.clone().into()],
        whitelist: vec![filter.clone().into(), FlowFilter::default().into()],
        since: Some(Timestamp { seconds: -1, nanos: 999_999_999 }),
        until: Some(Timestamp { seconds: 2, nanos: 3 }),
        first: true,
        field_mask: Some(b"\x0a\x04time".to_vec()),
    };
    let request_bytes = new()
        .number(1, 20)
        .number(3, 1)
        .message(5, filter_bytes.clone())
        .message(6, filter_bytes.clone())
        .message(6, new())
        .message(7, new().number(1, -1).number(2, 999_999_999))
        .message(8, new().number(1, 2).number(2, 3))
        .number(9, 1)
        .message(10, new().text(1, "time"));
    let lost = LostEvent { source: LostEventSource::HubbleRingBuffer.into(), num_events_lost: u64::MAX };
    let lost_bytes = new().number(1, 3).number(2, -1);
    let response = |response_type| GetFlowsResponse {
        response_type: Some(response_type),
        node_name: "n1".into(),
        time: Some(Timestamp { seconds: 1, nanos: 2 }),
    };
    let time_bytes = new().number(1, 1).number(2, 2);
    let flow_answer = new().message(1, flow_bytes).text(1000, "n1").message(1001, time_bytes.clone());
    let lost_answer = new().message(3, lost_bytes.clone()).text(1000, "n1").message(1001, time_bytes);
    vec![
        strict(&filter, filter_bytes),
        strict(&event, new().number(1, 1).number(2, 1).number(3, -1)),
        strict(&request, request_bytes),
        golden(&lost, lost_bytes),
        golden(&response(ResponseType::Flow(Box::new(flow))), flow_answer),
        golden(&response(ResponseType::LostEvents(lost)), lost_answer),
    ]
}

/// Messages of the other calls.
fn of_calls() -> Vec<Golden> {
    let status = ServerStatusResponse {
        num_flows: 1,
        max_flows: 2,
        seen_flows: 3,
        uptime_ns: 4,
        num_connected_nodes: Some(UInt32Value { value: 5 }),
        num_unavailable_nodes: Some(UInt32Value { value: 0 }),
        unavailable_nodes: vec!["n8".into(), "n9".into()],
        version: "v".into(),
        flows_rate: 0.25,
    };
    let status_bytes = new()
        .number(1, 1)
        .number(2, 2)
        .number(3, 3)
        .number(4, 4)
        .message(5, new().number(1, 5))
        .message(6, new())
        .text(7, "n8")
        .text(7, "n9")
        .text(8, "v")
        .double(9, 0.25);
    let node = Node { name: "n1".into(), state: NodeState::Unavailable.into(), seen_flows: 9 };
    let node_bytes = new().text(1, "n1").number(4, 2).number(9, 9);
    let nodes = GetNodesResponse { nodes: vec![node.clone(), node.clone()] };
    let namespace = Namespace { cluster: "east".into(), namespace: "shop".into() };
    let namespace_bytes = new().text(1, "east").text(2, "shop");
    let namespaces = GetNamespacesResponse { namespaces: vec![namespace.clone(), namespace.clone()] };
    vec![
        golden(&EmptyRequest {}, new()),
        golden(&status, status_bytes),
        golden(&node, node_bytes.clone()),
        golden(&nodes, new().message(1, node_bytes.clone()).message(1, node_bytes)),
        golden(&namespace, namespace_bytes.clone()),
        golden(&namespaces, new().message(1, namespace_bytes.clone()).message(1, namespace_bytes)),
        golden(&HealthCheckRequest { service: "observer.Observer".into() }, new().text(1, "observer.Observer")),
        golden(&HealthCheckResponse { status: ServingStatus::Serving.into() }, new().number(1, 1)),
    ]
}

#[test]
fn hubble_messages_have_golden_bytes() {
    let goldens: Vec<Golden> = [of_flow(), of_google(), of_get_flows(), of_calls()].into_iter().flatten().collect();
    Declarations::of_crate("hubble").assert_covered(&goldens);
}

#[test]
fn timestamp_has_golden_bytes() {
    golden(&Timestamp { seconds: i64::MIN, nanos: 1 }, new().number(1, i64::MIN).number(2, 1));
}

/// Go and other encoders may send repeated numbers one by one.
#[test]
fn hubble_decodes_unpacked_numbers() {
    let bytes = new().number(5, 1).number(5, 2).number(15, 0).number(19, 7).number(30, 2).finish();
    let filter = FlowFilter::decode(&*bytes).unwrap();
    assert_eq!((filter.verdict, filter.reply), (vec![1, 2], vec![false]));
    assert_eq!((filter.source_identity, filter.traffic_direction), (vec![7], vec![2]));
}

#[test]
fn hubble_enumerations_have_published_numbers() {
    let declared = [
        numbers::<Verdict>(),
        numbers::<TrafficDirection>(),
        numbers::<IpVersion>(),
        numbers::<FlowType>(),
        numbers::<LostEventSource>(),
        numbers::<NodeState>(),
        numbers::<ServingStatus>(),
    ];
    let expected: [(&str, &[(&str, i32)]); 7] = [
        ("Verdict", &[("Unknown", 0), ("Forwarded", 1), ("Dropped", 2), ("Audit", 4)]),
        ("TrafficDirection", &[("Unknown", 0), ("Ingress", 1), ("Egress", 2)]),
        ("IpVersion", &[("NotUsed", 0), ("V4", 1), ("V6", 2)]),
        ("FlowType", &[("Unknown", 0), ("L3L4", 1)]),
        (
            "LostEventSource",
            &[("Unknown", 0), ("PerfEventRingBuffer", 1), ("ObserverEventsQueue", 2), ("HubbleRingBuffer", 3)],
        ),
        ("NodeState", &[("Unknown", 0), ("Connected", 1), ("Unavailable", 2)]),
        ("ServingStatus", &[("Unknown", 0), ("Serving", 1)]),
    ];
    assert_numbers(&declared, &expected, &Declarations::of_crate("hubble"));
}
