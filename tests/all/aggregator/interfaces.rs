//! The Hubble and Goldmane APIs over the wire, queried by a client that knows only the protocols' field numbers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flow::FlowRecord;
use jiff::{SignedDuration, Timestamp};
use kit::provider_process::{Provider, free_port};
use tests::certificates::{HttpsClient, Validity};
use tests::fake_clock::FakeClock;
use tests::grpc_bytes::{Fields, GrpcClient, Writer};
use tonic::Code;

use super::{Agent, Secured, plain, record, settled_record};

const GET_FLOWS: &str = "/observer.Observer/GetFlows";
const LIST: &str = "/goldmane.Flows/List";

/// A request to Goldmane with an end time in its field `end`: without one, the range excludes the current window.
fn until_later(end: u32) -> Writer {
    Writer::default().number(end, Timestamp::now().as_second() + 60)
}

struct Served {
    aggregator: Provider,
    agent: Agent,
    hubble: SocketAddr,
    goldmane: SocketAddr,
}

fn serve() -> Served {
    let (address, hubble, goldmane) = (free_port(), free_port(), free_port());
    let arguments = ["--hubble-listen", &hubble.to_string(), "--goldmane-listen", &goldmane.to_string()];
    let mut aggregator = Provider::start_aggregator(address, arguments);
    aggregator.until_ready();
    Served { aggregator, agent: Agent::start("n1", 1, plain(address)), hubble, goldmane }
}

/// Names of the destination pods, in the order of the flows.
fn destinations(answers: &[Vec<u8>]) -> Vec<String> {
    let flows = answers.iter().map(|answer| Fields::read(answer).message(1));
    flows.map(|flow| flow.message(9).text(5)).collect()
}

#[test]
fn hubble_client_reads_status_and_flows() {
    let served = serve();
    served.agent.close(&[1, 2, 3]);
    served.agent.until_acknowledged();
    let client = GrpcClient::connect(served.hubble);
    for service in ["", "observer.Observer", "hubble.server.Observer"] {
        let health = client.unary("/grpc.health.v1.Health/Check", Writer::default().text(1, service).finish()).unwrap();
        assert_eq!(health, [8, 1], "serving");
    }
    let status = Fields::read(&client.unary("/observer.Observer/ServerStatus", vec![]).unwrap());
    assert_eq!((status.number(1), status.number(3), status.message(5).number(1)), (3, 3, 1));
    let nodes = Fields::read(&client.unary("/observer.Observer/GetNodes", vec![]).unwrap()).messages(1);
    assert_eq!((nodes.len(), nodes[0].text(1), nodes[0].number(4)), (1, "n1".to_owned(), 1));
    let namespaces = Fields::read(&client.unary("/observer.Observer/GetNamespaces", vec![]).unwrap()).messages(1);
    assert_eq!(namespaces.iter().map(|namespace| namespace.text(2)).collect::<Vec<_>>(), ["shop"]);

    let flows = client.all(GET_FLOWS, vec![]).unwrap();
    assert_eq!(destinations(&flows), ["db-0", "db-1", "db-2"]);
    let flow = Fields::read(&flows[0]).message(1);
    assert_eq!((flow.number(2), flow.number(10), flow.message(19).number(1)), (1, 1, 5), "forwarded, L3/L4, verdict");
    assert_eq!((flow.message(6).message(1).number(2), flow.message(41).text(1)), (5432, "Ringfence".to_owned()));
    assert!(flow.has(26) && flow.message(26).number(1) == 0, "no reply");
    let last = client.all(GET_FLOWS, Writer::default().number(1, 2).finish()).unwrap();
    assert_eq!(destinations(&last), ["db-1", "db-2"]);
    let first = client.all(GET_FLOWS, Writer::default().number(1, 2).number(9, 1).finish()).unwrap();
    assert_eq!(destinations(&first), ["db-0", "db-1"]);
    let later = Writer::default().number(1, Timestamp::now().as_second() + 60);
    assert!(client.all(GET_FLOWS, Writer::default().message(7, later).finish()).unwrap().is_empty());

    let refused = |request: Writer| client.all(GET_FLOWS, request.finish()).unwrap_err();
    let error = refused(Writer::default().message(6, Writer::default().text(18, "example.org")));
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains("dns_query"), "{}", error.message());
    assert_eq!(refused(Writer::default().message(5, Writer::default().text(400, "x"))).code(), Code::InvalidArgument);
    assert_eq!(refused(Writer::default().number(77, 1)).code(), Code::InvalidArgument);
    for call in ["/observer.Observer/GetAgentEvents", "/observer.Observer/GetDebugEvents"] {
        assert_eq!(client.all(call, vec![]).unwrap_err().code(), Code::Unimplemented);
    }
    assert!(served.aggregator.stop().0.success());
}

#[test]
fn follower_gets_flows_of_settled_windows() {
    let served = serve();
    let client = GrpcClient::connect(served.hubble);
    let mut flows = client.stream(GET_FLOWS, Writer::default().number(3, 1).finish()).unwrap();
    let goldmane = GrpcClient::connect(served.goldmane);
    let mut results = goldmane.stream("/goldmane.Flows/Stream", vec![]).unwrap();
    // The window becomes final within 15 s.
    let settling = FlowRecord::window_end(&record("n1", "db", 1)) - SignedDuration::from_secs(45);
    let record = FlowRecord { window: settling, first: settling, last: settling, ..record("n1", "db", 4) };
    let mut ring = served.agent.ring.lock().unwrap();
    ring.push([Arc::new(record)]);
    served.agent.closed.send_replace(ring.counts().pushed);
    drop(ring);
    let flow = flows.next(Duration::from_secs(30)).unwrap().expect("a flow");
    assert_eq!(destinations(&[flow]), ["db"]);
    let result = Fields::read(&results.next(Duration::from_secs(30)).unwrap().expect("a flow"));
    assert_eq!((result.message(2).number(2), result.message(2).number(10)), (settling.as_second(), 4));
    drop((flows, results));
    assert!(served.aggregator.stop().0.success());
}

#[test]
fn clock_set_back_repeats_no_flow() {
    let (clock, address, hubble, goldmane) = (FakeClock::new(), free_port(), free_port(), free_port());
    let listens = ["--hubble-listen", &hubble.to_string(), "--goldmane-listen", &goldmane.to_string()];
    let arguments = [&listens[..], &["--edge-metrics", "on"]].concat();
    let mut aggregator = Provider::start_aggregator_with(address, arguments, |command| clock.apply(command));
    aggregator.until_ready();
    let (hubble, goldmane) = (GrpcClient::connect(hubble), GrpcClient::connect(goldmane));
    let mut flows = hubble.stream(GET_FLOWS, Writer::default().number(3, 1).finish()).unwrap();
    let mut results = goldmane.stream("/goldmane.Flows/Stream", vec![]).unwrap();
    let mut next = || {
        let flow = flows.next(Duration::from_secs(30)).unwrap().expect("a flow");
        let result = Fields::read(&results.next(Duration::from_secs(30)).unwrap().expect("a flow"));
        (destinations(&[flow]), result.message(2).number(10))
    };
    let agent = Agent::start("n1", 1, plain(address));
    let now = record("n1", "first", 4);
    let window = now.window - SignedDuration::from_secs(30);
    agent.push([FlowRecord { window, first: window, last: window, ..now }]);
    agent.until_acknowledged();
    clock.set(600);
    assert_eq!(next(), (vec!["first".to_owned()], 4));
    clock.set(0);
    aggregator.until_logged(&["the clock was set back"]);
    // The window settles once more, and the current one within 15 s.
    clock.set(30);
    agent.push([record("n1", "second", 5)]);
    assert_eq!(next(), (vec!["second".to_owned()], 5));
    aggregator.until("both windows are in the metrics", |aggregator| {
        // Connections that were counted before their pair had a series are in the series `(other)`.
        let of = |name: &str| {
            let text = aggregator.get("/metrics").body;
            let series = format!("ringfence_flows_edge_connections_total{{source=\"{name}\"");
            let line = text.lines().find(|line| line.starts_with(&series));
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).unwrap_or(0.0)
        };
        let connections = of("shop") + of("(other)");
        assert!(connections <= 9.0, "{connections} of 9 connections");
        (connections == 9.0).then_some(())
    });
}

#[test]
fn follower_gets_number_of_lost_records() {
    let served = serve();
    let client = GrpcClient::connect(served.hubble);
    let mut answers = client.stream(GET_FLOWS, Writer::default().number(3, 1).finish()).unwrap();
    // The window had settled before the stream began, so that its records are in no answer.
    served.agent.push([settled_record("n1", 1, "db-0", 3), settled_record("n1", 1, "db-1", 3)]);
    served.agent.until_acknowledged();
    let answer = Fields::read(&answers.next(Duration::from_secs(30)).unwrap().expect("an answer"));
    assert_eq!(answer.numbers().collect::<Vec<_>>(), [3], "lost_events");
    let (observer_events_queue, lost) = (2, answer.message(3));
    assert_eq!((lost.number(1), lost.number(2)), (observer_events_queue, 2));
    drop(answers);
    assert!(served.aggregator.stop().0.success());
}

#[test]
fn follower_gets_number_of_evicted_records() {
    let (address, hubble) = (free_port(), free_port());
    let mut aggregator =
        Provider::start_aggregator(address, ["--memory-mib", "1", "--hubble-listen", &hubble.to_string()]);
    aggregator.until_ready();
    let client = GrpcClient::connect(hubble);
    let mut answers = client.stream(GET_FLOWS, Writer::default().number(3, 1).finish()).unwrap();
    let agent = Agent::start("n1", 1, plain(address));
    for back in (0..10).rev() {
        agent.push((0..300).map(|number| settled_record("n1", back, &format!("db-{back}-{number}"), 1)));
    }
    agent.until_acknowledged();
    let evicted = aggregator.metric("ringfence_flows_evicted_records_total", &[]);
    assert!(evicted > 0.0, "no record was evicted");
    let (hubble_ring_buffer, mut lost) = (3, 0);
    while lost == 0 {
        let answer = Fields::read(&answers.next(Duration::from_secs(30)).unwrap().expect("an answer"));
        let event = answer.has(3).then(|| answer.message(3));
        lost = event.filter(|event| event.number(1) == hubble_ring_buffer).map_or(0, |event| event.number(2));
    }
    assert_eq!(lost as f64, evicted);
    drop(answers);
    assert!(aggregator.stop().0.success());
}

#[test]
fn goldmane_client_reads_flows_and_statistics() {
    let served = serve();
    served.agent.close(&[1, 2, 3]);
    served.agent.until_acknowledged();
    let client = GrpcClient::connect(served.goldmane);
    let list = Fields::read(&client.unary(LIST, until_later(2).finish()).unwrap());
    assert_eq!((list.message(1).number(1), list.message(1).number(2)), (1, 3));
    let flow = list.messages(2).into_iter().map(|result| result.message(2)).find(|flow| flow.number(10) == 3).unwrap();
    let key = flow.message(1);
    assert_eq!((key.text(1), key.text(2), key.number(3)), ("web".to_owned(), "shop".to_owned(), 1));
    assert_eq!((key.text(4), key.number(7), key.text(12)), ("db-2".to_owned(), 5432, "tcp".to_owned()));
    assert_eq!((key.number(13), key.number(14), key.text(8)), (1, 1, "-".to_owned()), "of the source, allowed");
    // Bytes out and in, from the source's view.
    assert_eq!((flow.number(7), flow.number(9), flow.number(8)), (3, 300, 3_000));
    let hit = key.message(15).messages(1).remove(0);
    assert_eq!((hit.number(1), hit.text(3)), (9, "kns.shop".to_owned()), "a profile");

    let hints = until_later(4).number(1, 1).finish();
    let hints = Fields::read(&client.unary("/goldmane.Flows/FilterHints", hints).unwrap());
    let values: Vec<String> = hints.messages(2).iter().map(|hint| hint.text(1)).collect();
    assert_eq!(values, ["db-0", "db-1", "db-2"]);
    let statistics = client.all("/goldmane.Statistics/List", until_later(2).number(3, 1).finish()).unwrap();
    let sums = Fields::read(&statistics[0]);
    assert_eq!((statistics.len(), sums.message(1).text(3)), (1, "kns.shop".to_owned()));
    assert_eq!((sums.all(5), sums.all(6)), (vec![&[0xf0, 0x2e][..]], vec![&[0xd8, 0x04][..]]), "6,000 in, 600 out");

    let refused = |call, request: Writer| client.all(call, request.finish()).unwrap_err().code();
    assert_eq!(refused(LIST, Writer::default().message(6, Writer::default().number(99, 1))), Code::InvalidArgument);
    assert_eq!(refused(LIST, Writer::default().message(5, Writer::default().number(1, 3))), Code::InvalidArgument);
    assert_eq!(refused("/goldmane.FlowCollector/Connect", Writer::default()), Code::Unimplemented);
    assert!(served.aggregator.stop().0.success());
}

#[test]
fn reachable_interfaces_admit_granted_clients_only() {
    let stage = Secured::new();
    let authority = stage.folder.path().join("clients.pem");
    std::fs::write(&authority, &HttpsClient::new(&stage.ca).ca).unwrap();
    let (hubble, goldmane) = (free_port(), free_port());
    let everywhere = |address: SocketAddr| format!("0.0.0.0:{}", address.port());
    let arguments = [
        "--client-ca",
        &authority.display().to_string(),
        "--hubble-listen",
        &everywhere(hubble),
        "--goldmane-listen",
        &everywhere(goldmane),
        "--allow",
        "goldmane=user:whisker",
        "--allow",
        "hubble=user:ui",
    ];
    let aggregator = stage.start(&arguments.map(str::to_owned));
    let anonymous = HttpsClient::new(&stage.ca);
    let named = |user: &str| anonymous.with_certificate(stage.ca.client(user, &[], Validity::Valid));
    let clients = [anonymous.clone(), named("stranger"), named("whisker"), named("ui")];
    // A client that is admitted gets 405, because calls are POST.
    for (address, path, expected) in [
        (goldmane, LIST, [401, 403, 405, 403]),
        (goldmane, "/goldmane.Statistics/List", [401, 403, 405, 403]),
        (hubble, GET_FLOWS, [401, 403, 403, 405]),
        (hubble, "/grpc.health.v1.Health/Check", [401, 403, 403, 405]),
    ] {
        let statuses: Vec<u16> = clients.iter().map(|client| client.status(address, path)).collect();
        assert_eq!(statuses, expected, "{path}");
    }
    assert!(aggregator.stop().0.success());
}
