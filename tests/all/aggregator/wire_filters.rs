//! Filters of Hubble and Goldmane over the wire, compared with brute force over the records that agents have sent.
//!
//! Requests and answers are those of the test kit's clients, and the brute force reads the records by the protocols'
//! definitions: no code of `crates/hubble` and `crates/goldmane` is used on this side.

mod criteria;
mod goldmane;
mod hubble;
mod traffic;

use std::net::SocketAddr;
use std::time::Duration;

use kit::provider_process::{Provider, free_port};
use tests::grpc_bytes::{GrpcClient, Writer};
use tests::hubble_client::FLOW_FILTER;
use tonic::Code;

use self::traffic::{NODES, Random, Traffic, draw};
use super::{Agent, plain};

/// Connections that the agents report.
const CONNECTIONS: usize = 10_000;

/// Random sets of filters per protocol.
const SETS: usize = 500;

struct Stage {
    traffic: Vec<Traffic>,
    hubble: SocketAddr,
    goldmane: SocketAddr,
    _aggregator: Provider,
}

impl Stage {
    fn start(connections: usize) -> Stage {
        let (address, hubble, goldmane) = (free_port(), free_port(), free_port());
        let arguments = ["--hubble-listen", &hubble.to_string(), "--goldmane-listen", &goldmane.to_string()];
        let mut aggregator = Provider::start_aggregator(address, arguments);
        aggregator.until_ready();
        let traffic = draw(&mut Random(0x5eed_1234_5678_9abc), connections);
        for node in NODES {
            let agent = Agent::start(node, 1, plain(address));
            agent.push(traffic.iter().flat_map(Traffic::records).filter(|record| *record.node == *node).cloned());
            agent.until_acknowledged();
        }
        Stage { traffic, hubble, goldmane, _aggregator: aggregator }
    }
}

#[test]
fn filter_sets_over_the_wire_match_brute_force() {
    let stage = Stage::start(CONNECTIONS);
    std::thread::scope(|scope| {
        scope.spawn(|| hubble::compare(&stage.traffic, stage.hubble));
        scope.spawn(|| goldmane::compare(&stage.traffic, stage.goldmane));
    });
}

/// Fields that flow records cannot answer: docs/flows-interfaces.md.
const NOT_SERVED: [&str; 17] = [
    "source_fqdn",
    "destination_fqdn",
    "http_status_code",
    "source_port",
    "dns_query",
    "http_method",
    "http_path",
    "tcp_flags",
    "trace_id",
    "http_url",
    "http_header",
    "source_ip_xlated",
    "interface",
    "node_labels",
    "ip_trace_id",
    "encrypted",
    "experimental",
];

#[test]
fn unserved_filters_are_refused_over_the_wire() {
    let stage = Stage::start(0);
    let (hubble, goldmane) = (GrpcClient::connect(stage.hubble), GrpcClient::connect(stage.goldmane));
    let new = Writer::default;
    let get_flows = |request: Writer| hubble.all("/observer.Observer/GetFlows", request.finish()).map(|_| ());
    let mut refused = Vec::new();
    for (number, name) in FLOW_FILTER {
        // Numbers, texts and messages alike: a server that does not know a field does not know its type.
        let values = [new().number(number, 1), new().text(number, "1"), new().message(number, new().text(1, "x"))];
        for (list, value) in [5, 6].into_iter().flat_map(|list| values.iter().map(move |value| (list, value))) {
            let answer = get_flows(new().message(list, value.clone()));
            if NOT_SERVED.contains(&name) {
                let error = answer.unwrap_err();
                assert_eq!(error.code(), Code::InvalidArgument, "{name}: {error}");
                assert!(error.message().contains(&format!("'{name}' is not served")), "{name}: {error}");
                refused.push(name);
            }
        }
    }
    refused.dedup();
    assert_eq!(refused.len(), NOT_SERVED.len());
    let filter = |filter: Writer| new().message(6, filter);
    for (what, request) in [
        ("a field of a newer filter", filter(new().text(41, "x"))),
        ("a field of a newer event type", filter(new().message(6, new().number(4, 1)))),
        ("a field of a newer workload", filter(new().message(26, new().text(3, "x")))),
        ("a workload's kind", filter(new().message(27, new().text(1, "web").text(2, "Deployment")))),
        ("a protocol of layer 7", filter(new().text(12, "http"))),
        ("a text that is no address", filter(new().text(1, "10.0.0"))),
        ("a text that is no selector", filter(new().text(10, "app>1"))),
        ("a port above 65535", filter(new().text(14, "65536"))),
        ("an empty name", filter(new().text(2, ""))),
        ("an empty cluster", filter(new().text(37, ""))),
        ("a node name with a space", filter(new().text(24, "n 1"))),
        ("257 values", filter((0..257).fold(new(), |filter, _| filter.text(29, "x")))),
        ("experimental fields of a request", new().message(999, new().text(1, "x"))),
        ("extensions of a request", new().message(150_000, new().text(1, "x"))),
        ("first and follow", new().number(3, 1).number(9, 1)),
    ] {
        assert_eq!(get_flows(request).unwrap_err().code(), Code::InvalidArgument, "{what}");
    }

    let calls = [("/goldmane.Flows/List", 6), ("/goldmane.Flows/Stream", 2), ("/goldmane.Flows/FilterHints", 2)];
    for (call, field) in calls {
        for (what, filter) in [
            ("a newer field", new().number(11, 1)),
            ("a field of a newer text", new().message(1, new().text(1, "x").number(3, 1))),
            ("a field of a newer port", new().message(6, new().number(1, 80).number(2, 1))),
            ("a field of a newer policy", new().message(8, new().number(6, 1))),
            ("a field of a newer text of a policy", new().message(8, new().message(4, new().number(3, 1)))),
            ("a newer way to match", new().message(3, new().text(1, "x").number(2, 2))),
            ("a newer action", new().packed(7, &[4])),
            ("a newer action of a policy", new().message(8, new().number(5, 4))),
            ("a newer reporter", new().number(9, 3)),
            ("a newer pending action", new().number(10, 4)),
            ("257 values", new().packed(7, &[1; 257])),
        ] {
            let kind = if call.ends_with("Hints") { new().number(1, 1) } else { new() };
            let request = kind.message(field, filter).finish();
            let error = match call.ends_with("Stream") {
                true => goldmane.stream(call, request).and_then(|mut flows| flows.next(Duration::from_secs(20))).err(),
                false => goldmane.unary(call, request).err(),
            };
            assert_eq!(error.map(|error| error.code()), Some(Code::InvalidArgument), "{call}: {what}");
        }
    }
}
