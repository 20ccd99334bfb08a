//! Messages of `goldmane.Flows`, `goldmane.Statistics` and `goldmane.FlowCollector`: goldmane/proto/api.proto of Calico.

use goldmane::message::{
    Action, EndpointType, Filter, FilterHint, FilterHintsRequest, FilterHintsResult, FilterType, Flow, FlowKey,
    FlowListRequest, FlowListResult, FlowReceipt, FlowResult, FlowStreamRequest, FlowUpdate, ListMetadata, MatchType,
    PolicyHit, PolicyKind, PolicyMatch, PolicyTrace, PortMatch, Reporter, RuleDirection, SortBy, SortOption,
    StatisticType, StatisticsGroupBy, StatisticsRequest, StatisticsResult, StringMatch,
};
use prost::Message;
use tests::grpc_bytes::Writer;

use super::{Declarations, Golden, assert_numbers, golden, numbers, strict};

fn new() -> Writer {
    Writer::default()
}

fn string_match(value: &str) -> (StringMatch, Writer) {
    (StringMatch { value: value.into(), r#type: MatchType::Fuzzy.into() }, new().text(1, value).number(2, 1))
}

/// As since Calico 3.32, with a text as a message.
fn policy_match() -> (PolicyMatch, Writer) {
    let value = PolicyMatch {
        kind: 6,
        tier: b"\x0a\x07default\x10\x01".to_vec(),
        namespace: b"\x0a\x04shop".to_vec(),
        name: b"\x0a\x02db".to_vec(),
        action: Action::Deny.into(),
    };
    let bytes = new()
        .number(1, 6)
        .message(2, new().text(1, "default").number(2, 1))
        .message(3, new().text(1, "shop"))
        .message(4, new().text(1, "db"))
        .number(5, 2);
    (value, bytes)
}

fn filter() -> (Filter, Writer) {
    let (name, name_bytes) = string_match("web");
    let (policy, policy_bytes) = policy_match();
    let value = Filter {
        source_names: vec![name.clone().into()],
        source_namespaces: vec![name.clone().into()],
        dest_names: vec![name.clone().into(), name.clone().into()],
        dest_namespaces: vec![name.clone().into()],
        protocols: vec![name.into()],
        dest_ports: vec![PortMatch { port: 5432 }.into()],
        actions: vec![Action::Allow.into(), Action::Pass.into()],
        policies: vec![policy.into()],
        reporter: Reporter::Destination.into(),
        pending_actions: vec![Action::Deny.into()],
    };
    let bytes = new()
        .message(1, name_bytes.clone())
        .message(2, name_bytes.clone())
        .message(3, name_bytes.clone())
        .message(3, name_bytes.clone())
        .message(4, name_bytes.clone())
        .message(5, name_bytes)
        .message(6, new().number(1, 5432))
        .packed(7, &[1, 3])
        .message(8, policy_bytes)
        .number(9, 2)
        .packed(10, &[2]);
    (value, bytes)
}

/// The end of a tier, whose trigger is the policy.
fn policy_hit() -> (PolicyHit, Writer) {
    let trigger = PolicyHit {
        kind: PolicyKind::StagedKubernetesNetworkPolicy.into(),
        namespace: "shop".into(),
        name: "db".into(),
        tier: "default".into(),
        action: Action::Unspecified.into(),
        policy_index: 0,
        rule_index: -1,
        trigger: None,
    };
    let trigger_bytes = new().number(1, 5).text(2, "shop").text(3, "db").text(4, "default").number(7, -1);
    let value = PolicyHit {
        kind: PolicyKind::EndOfTier.into(),
        namespace: "n".into(),
        name: "p".into(),
        tier: "t".into(),
        action: Action::Deny.into(),
        policy_index: 2,
        rule_index: 300,
        trigger: Some(Box::new(trigger)),
    };
    let bytes = new()
        .number(1, 10)
        .text(2, "n")
        .text(3, "p")
        .text(4, "t")
        .number(5, 2)
        .number(6, 2)
        .number(7, 300)
        .message(8, trigger_bytes);
    (value, bytes)
}

fn policy_trace() -> (PolicyTrace, Writer) {
    let (hit, hit_bytes) = policy_hit();
    let value = PolicyTrace { enforced_policies: vec![hit.clone(), hit.clone()], pending_policies: vec![hit] };
    (value, new().message(1, hit_bytes.clone()).message(1, hit_bytes.clone()).message(2, hit_bytes))
}

fn flow_key() -> (FlowKey, Writer) {
    let (trace, trace_bytes) = policy_trace();
    let value = FlowKey {
        source_name: "web".into(),
        source_namespace: "shop".into(),
        source_type: EndpointType::WorkloadEndpoint.into(),
        dest_name: "pub".into(),
        dest_namespace: "-".into(),
        dest_type: EndpointType::Network.into(),
        dest_port: 5432,
        dest_service_name: "db".into(),
        dest_service_namespace: "pay".into(),
        dest_service_port_name: "postgres".into(),
        dest_service_port: 80,
        proto: "tcp".into(),
        reporter: Reporter::Source.into(),
        action: Action::Allow.into(),
        policies: Some(trace),
    };
    let bytes = new()
        .text(1, "web")
        .text(2, "shop")
        .number(3, 1)
        .text(4, "pub")
        .text(5, "-")
        .number(6, 4)
        .number(7, 5432)
        .text(8, "db")
        .text(9, "pay")
        .text(10, "postgres")
        .number(11, 80)
        .text(12, "tcp")
        .number(13, 1)
        .number(14, 1)
        .message(15, trace_bytes);
    (value, bytes)
}

fn flow() -> (Flow, Writer) {
    let (key, key_bytes) = flow_key();
    let value = Flow {
        key: Some(key),
        start_time: 1_777_896_000,
        end_time: 1_777_896_015,
        source_labels: vec!["app=web".into(), "tier=front".into()],
        dest_labels: vec!["app=db".into()],
        packets_in: 1,
        packets_out: 2,
        bytes_in: 300,
        bytes_out: 4,
        num_connections_started: 5,
        num_connections_completed: 6,
        num_connections_live: i64::MAX,
    };
    let bytes = new()
        .message(1, key_bytes)
        .number(2, 1_777_896_000)
        .number(3, 1_777_896_015)
        .text(4, "app=web")
        .text(4, "tier=front")
        .text(5, "app=db")
        .number(6, 1)
        .number(7, 2)
        .number(8, 300)
        .number(9, 4)
        .number(10, 5)
        .number(11, 6)
        .number(12, i64::MAX);
    (value, bytes)
}

fn of_flows() -> Vec<Golden> {
    let (name, name_bytes) = string_match("PUBLIC NETWORK");
    let (policy, policy_bytes) = policy_match();
    let (hit, hit_bytes) = policy_hit();
    let (trace, trace_bytes) = policy_trace();
    let (key, key_bytes) = flow_key();
    let (flow, flow_bytes) = flow();
    let result = FlowResult { id: 9, flow: Some(flow.clone()) };
    let result_bytes = new().number(1, 9).message(2, flow_bytes.clone());
    let meta = ListMetadata { total_pages: 2, total_results: 300 };
    let meta_bytes = new().number(1, 2).number(2, 300);
    let list = FlowListResult { meta: Some(meta), flows: vec![result.clone(), result.clone()] };
    let list_bytes =
        new().message(1, meta_bytes.clone()).message(2, result_bytes.clone()).message(2, result_bytes.clone());
    let hint = FilterHint { value: "web".into() };
    let hints = FilterHintsResult { meta: Some(meta), hints: vec![hint.clone(), hint.clone()] };
    let hint_bytes = new().text(1, "web");
    let hints_bytes =
        new().message(1, meta_bytes.clone()).message(2, hint_bytes.clone()).message(2, hint_bytes.clone());
    vec![
        strict(&name, name_bytes),
        strict(&policy, policy_bytes),
        strict(&PortMatch { port: 443 }, new().number(1, 443)),
        strict(&SortOption { sort_by: SortBy::SourceType.into() }, new().number(1, 6)),
        golden(&hit, hit_bytes),
        golden(&trace, trace_bytes),
        golden(&key, key_bytes),
        golden(&flow, flow_bytes),
        golden(&result, result_bytes),
        golden(&meta, meta_bytes),
        golden(&list, list_bytes),
        golden(&hint, hint_bytes),
        golden(&hints, hints_bytes),
    ]
}

fn of_requests() -> Vec<Golden> {
    let (filter, filter_bytes) = filter();
    let list = FlowListRequest {
        start_time_gte: -60,
        start_time_lt: 1_777_896_000,
        page: 2,
        page_size: 50,
        sort_by: vec![SortOption { sort_by: SortBy::SourceName.into() }.into()],
        filter: Some(filter.clone().into()),
        aggregation_interval: 15,
    };
    let list_bytes = new()
        .number(1, -60)
        .number(2, 1_777_896_000)
        .number(3, 2)
        .number(4, 50)
        .message(5, new().number(1, 4))
        .message(6, filter_bytes.clone())
        .number(7, 15);
    let stream =
        FlowStreamRequest { start_time_gte: -1, filter: Some(filter.clone().into()), aggregation_interval: 15 };
    let stream_bytes = new().number(1, -1).message(2, filter_bytes.clone()).number(3, 15);
    let hints = FilterHintsRequest {
        r#type: FilterType::PolicyNamespace.into(),
        filter: Some(filter.clone().into()),
        start_time_gte: 1,
        start_time_lt: 2,
        page: 3,
        page_size: 4,
    };
    let hints_bytes =
        new().number(1, 8).message(2, filter_bytes.clone()).number(3, 1).number(4, 2).number(5, 3).number(6, 4);
    vec![
        strict(&filter, filter_bytes),
        strict(&list, list_bytes),
        strict(&stream, stream_bytes),
        strict(&hints, hints_bytes),
    ]
}

fn of_statistics() -> Vec<Golden> {
    let (policy, policy_bytes) = policy_match();
    let request = StatisticsRequest {
        start_time_gte: -900,
        start_time_lt: 7,
        r#type: StatisticType::LiveConnectionCount.into(),
        group_by: StatisticsGroupBy::PolicyRule.into(),
        policy_match: Some(policy.into()),
        time_series: true,
    };
    let request_bytes =
        new().number(1, -900).number(2, 7).number(3, 2).number(4, 1).message(5, policy_bytes).number(6, 1);
    let (hit, hit_bytes) = policy_hit();
    let result = StatisticsResult {
        policy: Some(hit),
        direction: RuleDirection::Egress.into(),
        group_by: StatisticsGroupBy::PolicyRule.into(),
        r#type: StatisticType::ByteCount.into(),
        allowed_in: vec![1, 300],
        allowed_out: vec![2, 0],
        denied_in: vec![3],
        denied_out: vec![4],
        passed_in: vec![5],
        passed_out: vec![6],
        x: vec![1_777_896_000, 1_777_896_015],
    };
    let result_bytes = new()
        .message(1, hit_bytes)
        .number(2, 2)
        .number(3, 1)
        .number(4, 1)
        .packed(5, &[1, 300])
        .packed(6, &[2, 0])
        .packed(7, &[3])
        .packed(8, &[4])
        .packed(9, &[5])
        .packed(10, &[6])
        .packed(11, &[1_777_896_000, 1_777_896_015]);
    vec![strict(&request, request_bytes), golden(&result, result_bytes)]
}

fn of_collector() -> Vec<Golden> {
    let (flow, flow_bytes) = flow();
    let update = FlowUpdate { flow: Some(flow) };
    vec![golden(&update, new().message(1, flow_bytes)), golden(&FlowReceipt {}, new())]
}

#[test]
fn goldmane_messages_have_golden_bytes() {
    let goldens = [of_flows(), of_requests(), of_statistics(), of_collector()];
    let goldens: Vec<Golden> = goldens.into_iter().flatten().collect();
    Declarations::of_crate("goldmane").assert_covered(&goldens);
}

/// Go and other encoders may send repeated numbers one by one.
#[test]
fn goldmane_decodes_unpacked_numbers() {
    let bytes = new().number(7, 1).number(7, 3).number(10, 2).finish();
    let filter = Filter::decode(&*bytes).unwrap();
    assert_eq!((filter.actions, filter.pending_actions), (vec![1, 3], vec![2]));
}

#[test]
fn goldmane_enumerations_have_published_numbers() {
    let declared = [
        numbers::<Action>(),
        numbers::<EndpointType>(),
        numbers::<Reporter>(),
        numbers::<PolicyKind>(),
        numbers::<SortBy>(),
        numbers::<MatchType>(),
        numbers::<FilterType>(),
        numbers::<StatisticType>(),
        numbers::<StatisticsGroupBy>(),
        numbers::<RuleDirection>(),
    ];
    let expected: [(&str, &[(&str, i32)]); 10] = [
        ("Action", &[("Unspecified", 0), ("Allow", 1), ("Deny", 2), ("Pass", 3)]),
        (
            "EndpointType",
            &[("Unspecified", 0), ("WorkloadEndpoint", 1), ("HostEndpoint", 2), ("NetworkSet", 3), ("Network", 4)],
        ),
        ("Reporter", &[("Unspecified", 0), ("Source", 1), ("Destination", 2)]),
        (
            "PolicyKind",
            &[
                ("Unspecified", 0),
                ("StagedGlobalNetworkPolicy", 4),
                ("StagedKubernetesNetworkPolicy", 5),
                ("NetworkPolicy", 6),
                ("Profile", 9),
                ("EndOfTier", 10),
                ("ClusterNetworkPolicy", 11),
            ],
        ),
        (
            "SortBy",
            &[
                ("Time", 0),
                ("DestName", 1),
                ("DestNamespace", 2),
                ("DestType", 3),
                ("SourceName", 4),
                ("SourceNamespace", 5),
                ("SourceType", 6),
            ],
        ),
        ("MatchType", &[("Exact", 0), ("Fuzzy", 1)]),
        (
            "FilterType",
            &[
                ("Unspecified", 0),
                ("DestName", 1),
                ("SourceName", 2),
                ("DestNamespace", 3),
                ("SourceNamespace", 4),
                ("PolicyTier", 5),
                ("PolicyName", 6),
                ("PolicyKind", 7),
                ("PolicyNamespace", 8),
            ],
        ),
        ("StatisticType", &[("PacketCount", 0), ("ByteCount", 1), ("LiveConnectionCount", 2)]),
        ("StatisticsGroupBy", &[("Policy", 0), ("PolicyRule", 1)]),
        ("RuleDirection", &[("Any", 0), ("Ingress", 1), ("Egress", 2)]),
    ];
    assert_numbers(&declared, &expected, &Declarations::of_crate("goldmane"));
}
