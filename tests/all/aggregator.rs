//! The aggregator as a process, with fake agents built from the real sender and ring.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use delivery::DeliveryTarget;
use feed::Access;
use feed::sse::{ParsedEvent, Parser};
use flow::{FlowKey, FlowRecord, Ring};
use jiff::SignedDuration;
use kit::agent_process::{ProgramExit, ended, ringfence, until};
use kit::fake_agent::{Agent, plain, record};
use kit::fake_api::{FakeApi, IssuedToken, Kind, Verb};
use kit::fake_loki::FakeLoki;
use kit::openmetrics;
use kit::provider_process::{Provider, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::certificates::{HttpsClient, TestCa, Validity, mount, mounted};
use tests::cutting_proxy::{self, Cut};
use tests::fake_clock::FakeClock;

use crate::deploy::monitoring::assert_documented;

mod interfaces;
mod ledger;
mod page;
mod wire_filters;

const AUDIENCE: &str = "ringfence-flows";

fn flows(aggregator: &Provider, parameters: &str) -> Vec<Value> {
    let answer = aggregator.get(&format!("/v1/flows{parameters}"));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The sums of started connections and of sent bytes.
fn sums(aggregator: &Provider) -> (u64, u64) {
    let number = |record: &Value, path: &str| record.pointer(path).and_then(Value::as_u64).unwrap_or(0);
    flows(aggregator, "").iter().fold((0, 0), |(started, bytes), record| {
        (started + number(record, "/connections/started"), bytes + number(record, "/sent/bytes"))
    })
}

#[test]
fn sums_hold_across_restarts_of_both_sides() {
    let address = free_port();
    let source = Agent::start("n1", 1, plain(address));
    let destination = Agent::start("n2", 1, plain(address));
    // The records exceed one batch, and their windows close before the aggregator starts.
    let many: Vec<u64> = (1..=3_000).collect();
    source.close(&many);
    source.until_failed(&["cannot connect"]);
    let total: u64 = many.iter().sum();
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    destination.close(&many);
    source.until_acknowledged();
    destination.until_acknowledged();
    assert_eq!(sums(&aggregator), (total, total * 100), "both nodes report the same connections");
    let one = &flows(&aggregator, "?workload=db-7")[0];
    assert_eq!(one.pointer("/seenBy/source/0").and_then(Value::as_str), Some("n1"), "{one:#}");
    assert_eq!(one.pointer("/seenBy/destination/0").and_then(Value::as_str), Some("n2"), "{one:#}");

    // Every agent resends its retained records to a restarted aggregator, even if it has no new records.
    aggregator.kill();
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    source.close(&[]);
    destination.close(&[]);
    aggregator.until("all records are resent", |aggregator| (sums(aggregator).0 == total).then_some(()));
    source.close(&[7]);
    destination.close(&[7]);
    source.until_acknowledged();
    destination.until_acknowledged();
    assert_eq!(sums(&aggregator).0, total + 7);
    assert_eq!(aggregator.metric("ringfence_flows_missed_records_total", &[]), 0.0);

    // The sequence numbers of a restarted agent begin at 1 again.
    drop(source);
    let source = Agent::start("n1", 2, plain(address));
    source.close(&[30]);
    destination.close(&[30]);
    source.until_acknowledged();
    destination.until_acknowledged();
    assert_eq!(sums(&aggregator).0, total + 37);
    assert_eq!(aggregator.metric("ringfence_flows_received_records_total", &[]), 6_004.0);
    assert_eq!(aggregator.metric("ringfence_flows_nodes", &[]), 2.0);
    assert!(aggregator.stop().0.success());
}

#[test]
fn cut_connections_lose_and_repeat_nothing() {
    let address = free_port();
    // A request with 100 records has about 50 kB; a response, and the start of a connection, have less than 200 bytes.
    // The backoff doubles with each cut, so the test makes only six.
    let cuts = [90, 20_000, 130_000].map(Cut::AfterRequestBytes);
    let lost_answers = [0, 90, 150].map(Cut::AfterAnswerBytes);
    let cuts: Vec<Cut> = cuts.into_iter().zip(lost_answers).flat_map(|(cut, lost)| [cut, lost]).collect();
    let agent = Agent::start("n1", 1, plain(cutting_proxy::start(address, cuts)));
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    let windows: Vec<u64> = (1..=100).collect();
    for _ in 0..4 {
        agent.close(&windows);
    }
    aggregator.until("some records arrive", |aggregator| (sums(aggregator).0 > 0).then_some(()));
    aggregator.kill();
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    for _ in 0..4 {
        agent.close(&windows);
    }
    let total = 8 * windows.iter().sum::<u64>();
    aggregator.until_within(Duration::from_secs(300), "all records are received", |aggregator| {
        let (sum, _) = sums(aggregator);
        assert!(sum <= total, "{sum} of {total} connections");
        (sum == total).then_some(())
    });
    agent.until_acknowledged();
    assert_eq!(aggregator.metric("ringfence_flows_received_records_total", &[]), 800.0);
    assert_eq!((aggregator.metric("ringfence_flows_missed_records_total", &[]), agent.dropped()), (0.0, 0));
}

#[test]
fn ring_overflow_is_counted_on_both_sides() {
    let address = free_port();
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    let agent = Agent::start_with_ring("n1", 1, plain(address), Ring::new(64 << 10));
    agent.close(&[1]);
    agent.until_acknowledged();
    aggregator.hang();
    // The records exceed the ring, so some are evicted before they are sent.
    let window: Vec<u64> = (1..=50).collect();
    for _ in 0..20 {
        agent.close(&window);
    }
    aggregator.resume();
    agent.until_acknowledged();
    let figure = |name: &str| aggregator.metric(&format!("ringfence_flows_{name}_records_total"), &[]);
    let (received, missed) = (figure("received"), figure("missed"));
    assert_eq!(received + missed, 1_001.0);
    assert!(missed > 0.0);
    assert_eq!(agent.dropped() as f64, missed, "the agent counts the same records");
}

#[test]
fn filters_are_alternatives_within_a_field() {
    let address = free_port();
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    agent.close(&[1, 2, 3]);
    agent.until_acknowledged();
    assert_eq!(flows(&aggregator, "?workload=db-0&workload=shop/db-2&port=5432&since=1m").len(), 2);
    assert_eq!(flows(&aggregator, "?workload=db-0&port=80").len(), 0);
    let refused = aggregator.get("/v1/flows?verdict=nope");
    assert_eq!(refused.status, 400);
    assert!(refused.body.contains("expected allowed, would-deny or denied"), "{}", refused.body);
    assert_eq!(aggregator.get("/v1/flows?colour=red").status, 400);

    let url = aggregator.url();
    let shown = verb(&["--server", &url, "--workload", "db-0", "--workload", "db-1"]);
    assert_eq!((shown.code, shown.stdout.lines().count()), (Some(0), 2), "{}", shown.stderr);
    assert!(
        shown.stdout.contains("shop/web -> shop/db-0") && shown.stdout.contains("seen by n1 -> -"),
        "{}",
        shown.stdout
    );
    let summed = verb(&["--server", &url, "--by", "src"]);
    assert!(summed.stdout.contains("src=shop/web") && summed.stdout.contains("6 connections"), "{}", summed.stdout);
    let nothing = verb(&["--server", &url, "--namespace", "nobody"]);
    assert!(nothing.stdout.is_empty() && nothing.stderr.contains("no matching flow"), "{}", nothing.stderr);
    let invalid = verb(&["--server", &url, "--port", "80x"]);
    assert_eq!(invalid.code, Some(2), "{}", invalid.stdout);
    assert!(invalid.stderr.contains("invalid port '80x'"), "{}", invalid.stderr);
    aggregator.kill();
    let away = verb(&["--server", &url]);
    assert_eq!(away.code, Some(2));
    // The message names the server and the path, not the query.
    assert!(away.stderr.contains(&format!("cannot query the aggregator at {url}/v1/flows")), "{}", away.stderr);
    let suggest = ["suggest", "--namespace", "shop", "--server", &url];
    let away = ended(ringfence().args(suggest));
    let message = format!("cannot query the aggregator at {url}/v1/suggestions: ");
    assert!(away.code == Some(2) && away.stderr.contains(&message), "{}", away.stderr);
    assert!(!away.stderr.contains('?') && away.stderr.matches(&url).count() == 1, "{}", away.stderr);
}

fn verb(arguments: &[&str]) -> ProgramExit {
    let mut command: Command = ringfence();
    ended(command.arg("flows").args(arguments))
}

/// An aggregator with TLS, whose clients are authenticated.
struct Secured {
    api: FakeApi,
    ca: TestCa,
    folder: TempDir,
    address: SocketAddr,
}

impl Secured {
    fn new() -> Secured {
        let secured = Secured {
            api: FakeApi::start(),
            ca: TestCa::new("ca"),
            folder: TempDir::new().unwrap(),
            address: free_port(),
        };
        mount(secured.folder.path(), "first", &secured.ca.server(Validity::Valid));
        secured
    }

    fn start(&self, more: &[String]) -> Provider {
        let mut arguments = mounted(self.folder.path());
        arguments.extend_from_slice(more);
        let mut aggregator = Provider::start_aggregator(self.address, arguments);
        let client = HttpsClient::new(&self.ca);
        aggregator
            .until("it is ready", |_| client.get(self.address, "/readyz").ok().filter(|(status, _)| *status == 200));
        aggregator
    }

    fn target(&self, client: &HttpsClient, name: &str, certificate: Option<(PathBuf, PathBuf)>) -> DeliveryTarget {
        let folder = self.folder.path().join(name);
        std::fs::create_dir(&folder).unwrap();
        let (ca, token) = client.files(&folder);
        let token_file = client.token.as_ref().map(|_| token);
        let access = Access { token_file, ca_file: Some(ca) };
        DeliveryTarget::new(&format!("https://{}", self.address), access, certificate).unwrap()
    }
}

#[test]
fn unauthorized_clients_cannot_send_or_read() {
    let stage = Secured::new();
    let kubeconfig = stage.api.kubeconfig().display().to_string();
    let _aggregator = stage.start(&["--auth-token-review".into(), "--kubeconfig".into(), kubeconfig]);
    let client = HttpsClient::new(&stage.ca);
    let account = |token: &str, namespace: &str, audience: &str, node: &str| {
        stage.api.issue_token(token, IssuedToken::of_service_account(namespace, "x", audience).bound_to(node));
        client.with_token(token)
    };
    let own = account("own", "ringfence", AUDIENCE, "n1");
    let stranger = account("stranger", "shop", AUDIENCE, "n1");
    let elsewhere = account("elsewhere", "ringfence", "vault", "n1");
    for path in ["/v1/flows", "/v1/flows/coverage", "/status", "/metrics"] {
        let statuses = [&client, &elsewhere, &stranger, &own].map(|client| client.status(stage.address, path));
        assert_eq!(statuses, [401, 401, 403, 200], "{path}");
    }

    for (client, name, words) in [
        (&client, "nobody", ["refused", "bearer token"]),
        (&stranger, "stranger", ["refused", "forbidden"]),
        (&account("other", "ringfence", AUDIENCE, "n2"), "other", ["bound to node 'n2'", "of node 'n1'"]),
    ] {
        let agent = Agent::start("n1", 1, stage.target(client, name, None));
        agent.close(&[1]);
        agent.until_failed(&words);
    }
    let agent = Agent::start("n1", 1, stage.target(&own, "own", None));
    agent.close(&[5]);
    agent.until_acknowledged();
    let (status, body) = own.get(stage.address, "/v1/flows").unwrap();
    assert_eq!((status, body.lines().count()), (200, 1), "{body}");
    // The only writes are TokenReviews, which the API server does not store.
    assert_eq!(stage.api.writes().into_keys().collect::<Vec<_>>(), ["tokenreviews"]);
    assert!(stage.api.requests().is_empty(), "{:?}", stage.api.requests());

    let (ca, token) = own.files(stage.folder.path());
    let url = format!("https://{}", stage.address);
    let files = [ca.display().to_string(), token.display().to_string()];
    let shown = verb(&["--server", &url, "--server-ca-file", &files[0], "--server-token-file", &files[1]]);
    assert!(shown.stdout.contains("shop/web -> shop/db-0"), "{}{}", shown.stdout, shown.stderr);
}

#[test]
fn certificates_authenticate_agents_without_an_api_server() {
    let stage = Secured::new();
    let authority = stage.folder.path().join("clients.pem");
    std::fs::write(&authority, &HttpsClient::new(&stage.ca).ca).unwrap();
    let arguments = ["--client-ca", &authority.display().to_string(), "--allow", "push=user:agent"].map(str::to_owned);
    let mut aggregator = stage.start(&arguments);
    for (user, is_admitted) in [("stranger", false), ("agent", true)] {
        let pair = stage.ca.client(user, &[], Validity::Valid);
        let files = ["crt", "key"].map(|end| stage.folder.path().join(format!("{user}.{end}")));
        std::fs::write(&files[0], &pair.certificate).unwrap();
        std::fs::write(&files[1], &pair.key).unwrap();
        let [certificate, key] = files;
        let target = stage.target(&HttpsClient::new(&stage.ca), user, Some((certificate, key)));
        let agent = Agent::start("n1", 1, target);
        agent.close(&[1]);
        match is_admitted {
            true => agent.until_acknowledged(),
            false => agent.until_failed(&["user 'stranger' may not"]),
        }
    }
    assert!(aggregator.until_logged(&["ringfence-flows started"]).contains("https"));
}

#[test]
fn each_metric_is_documented() {
    let mut aggregator = Provider::start_aggregator(
        free_port(),
        ["--export-file", "/dev/null", "--edge-metrics", "on", "--edges", "on"],
    );
    aggregator.until_ready();
    let figures = openmetrics::parse(&aggregator.get("/metrics").body).unwrap();
    assert_documented(&figures, "docs/flows-cluster.md", "ringfence_flows_");
}

#[test]
fn edge_metrics_are_bounded_and_off_by_default() {
    let clock = FakeClock::new();
    let start = |arguments: &[&str]| {
        let mut aggregator = Provider::start_aggregator_with(free_port(), arguments, |command| clock.apply(command));
        aggregator.until_ready();
        aggregator
    };
    let mut default = start(&[]);
    let mut bounded = start(&["--edge-metrics", "on", "--edge-metrics-top", "1"]);
    let agents = [&default, &bounded].map(|aggregator| Agent::start("n1", 1, plain(aggregator.address())));
    let to_data = |mut record: FlowRecord| {
        let mut key = FlowKey::clone(&record.key);
        key.destination.namespace = Some("data".into());
        record.key = Arc::new(key);
        record
    };
    for agent in &agents {
        // A pair gets a series after its first window, which counts under `(other)`.
        for back in [15, 0] {
            let pairs = [record("n1", "db-0", 5), to_data(record("n1", "db-1", 3))];
            agent.push(pairs.map(|record| {
                let window = record.window - SignedDuration::from_secs(back);
                FlowRecord { window, first: window, last: window, ..record }
            }));
        }
        agent.until_acknowledged();
    }
    clock.set(60);
    let series = |source: &str, destination: &str, connections: u64| {
        let labels = format!("source=\"{source}\",destination=\"{destination}\"");
        format!("ringfence_flows_edge_connections_total{{{labels}}} {connections}\n")
    };
    bounded.until("both windows are in the metrics", |aggregator| {
        let metrics = aggregator.get("/metrics").body;
        let is_other = metrics.contains(&series("(other)", "(other)", 11));
        (is_other && metrics.contains(&series("shop", "shop", 5))).then_some(())
    });
    let metrics = default.get("/metrics").body;
    assert!(!metrics.contains("ringfence_flows_edge_") && !metrics.contains("data"), "{metrics}");

    // An agent that sends nothing for 90 s is silent.
    assert_eq!(default.metric("ringfence_flows_silent_nodes", &[]), 0.0);
    clock.set(200);
    default.until("the node is silent", |aggregator| {
        (aggregator.metric("ringfence_flows_silent_nodes", &[]) == 1.0).then_some(())
    });
    let coverage = default.try_json("/v1/flows/coverage").unwrap();
    assert_eq!((&coverage["nodes"][0]["node"], &coverage["nodes"][0]["silent"]), (&"n1".into(), &true.into()));
    assert!(coverage["problems"].to_string().contains("1 of 1 nodes send no records, such as n1"), "{coverage:#}");
    agents[0].close(&[1]);
    default.until("the node sends again", |aggregator| {
        (aggregator.metric("ringfence_flows_silent_nodes", &[]) == 0.0).then_some(())
    });
}

#[test]
fn all_features_write_only_token_reviews() {
    let stage = Secured::new();
    let (loki, folder) = (FakeLoki::start(), TempDir::new().unwrap());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (spool, state, file) = (path("spool"), path("state"), path("flows.jsonl"));
    let kubeconfig = stage.api.kubeconfig().display().to_string();
    stage.api.set(Kind::Namespace, json!({"metadata": {"name": "shop"}}));
    let arguments = ["--auth-token-review", "--kubeconfig", &kubeconfig, "--edges", "on", "--state-dir", &state];
    let watch = ["--watch-policies", "on", "--edge-metrics", "on", "--edge-learning", "1s"];
    let exports = ["--loki-url", &loki.url(), "--otlp-endpoint", &loki.url(), "--export-file", &file];
    let spool = ["--spool-dir", &spool, "--export-start-delay", "1s"];
    let arguments: Vec<String> =
        [&arguments[..], &watch, &exports, &spool].concat().into_iter().map(str::to_owned).collect();
    let _aggregator = stage.start(&arguments);
    let client = HttpsClient::new(&stage.ca);
    stage.api.issue_token("own", IssuedToken::of_service_account("ringfence", "x", AUDIENCE).bound_to("n1"));
    let own = client.with_token("own");
    let agent = Agent::start("n1", 1, stage.target(&own, "own", None));
    agent.push([settled_record("n1", 0, "db-0", 3)]);
    agent.until_acknowledged();
    until("the record is exported", || (loki.sum("/connections/started") == 3).then_some(()));
    for path in ["/v1/flows", "/v1/edges", "/v1/readiness", "/v1/graph", "/v1/statistics", "/metrics"] {
        assert_eq!(own.status(stage.address, path), 200, "{path}");
    }
    assert!(stage.api.count(Verb::Watch, Kind::NetworkPolicy) > 0, "the view watches policies");
    // The only writes are TokenReviews, which the API server does not store.
    assert_eq!(stage.api.writes().into_keys().collect::<Vec<_>>(), ["tokenreviews"]);
}

#[test]
fn streams_beyond_the_limit_are_refused() {
    let mut aggregator = Provider::start_aggregator(free_port(), [] as [&str; 0]);
    aggregator.until_ready();
    let open = || {
        let mut stream = TcpStream::connect(aggregator.address()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        write!(stream, "GET /v1/flows/stream HTTP/1.0\r\nhost: x\r\n\r\n").unwrap();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
        }
        (reader, head)
    };
    let mut streams: Vec<_> = (0..32).map(|_| open()).collect();
    assert!(streams.iter().all(|(_, head)| head.contains(" 200 ")));
    let (_, refused) = open();
    assert!(refused.contains(" 503 ") && refused.to_lowercase().contains("retry-after:"), "{refused}");
    assert_eq!(aggregator.metric("ringfence_flows_refused_streams_total", &[]), 1.0);
    streams.pop();
    until("a stream is free", || open().1.contains(" 200 ").then_some(()));
}

#[test]
fn non_loopback_address_requires_authentication() {
    let reachable = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)).to_string();
    let refused = ended(kit::provider_process::aggregator().args(["serve", "--listen", &reachable]));
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("--auth-token-review or --client-ca"), "{}", refused.stderr);
}

/// Reads the first `count` events of a stream.
fn events(aggregator: &Provider, path: &str, last_event_id: Option<&str>, count: usize) -> Vec<ParsedEvent> {
    let mut stream = TcpStream::connect(aggregator.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let id = last_event_id.map_or(String::new(), |id| format!("last-event-id: {id}\r\n"));
    // An HTTP/1.0 response is not chunked.
    write!(stream, "GET {path} HTTP/1.0\r\nhost: x\r\n{id}\r\n").unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(reader.read_line(&mut head).unwrap() > 0, "{head}");
    }
    assert!(head.contains(" 200 ") && head.contains("text/event-stream"), "{head}");
    let (mut parser, mut events) = (Parser::new(), Vec::new());
    while events.len() < count {
        let part = reader.fill_buf().unwrap().to_vec();
        assert!(!part.is_empty(), "the stream has ended");
        parser.push(&part, &mut events).unwrap();
        reader.consume(part.len());
    }
    events
}

/// A record of a window that ended at least 45 s ago and is therefore final.
fn settled_record(node: &str, back: i32, destination: &str, started: u64) -> FlowRecord {
    let record = record(node, destination, started);
    let window = record.window - SignedDuration::from_secs(15) * (4 + back);
    FlowRecord { window, first: window, last: window, ..record }
}

#[test]
fn stream_and_follow_option_resume() {
    let address = free_port();
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    agent.push([settled_record("n1", 1, "db-0", 3), settled_record("n1", 0, "db-1", 5)]);
    agent.until_acknowledged();
    let all = events(&aggregator, "/v1/flows/stream?since=10m", None, 3);
    let names: Vec<&str> = all.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(names, ["open", "flows", "flows"]);
    // The windows are older than the aggregator, so a client that resumes gets a gap event.
    let resumed = events(&aggregator, "/v1/flows/stream", Some(&all[1].id), 3);
    let names: Vec<&str> = resumed.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(names, ["open", "gap", "flows"]);
    let last = &resumed[2];
    assert_eq!((&last.event, &last.id, &last.data), (&all[2].event, &all[2].id, &all[2].data));
    assert_eq!(aggregator.get("/v1/flows/stream?until=1m").status, 400);

    // `ringfence flows --follow` reconnects and prints no record twice.
    let output = tempfile::NamedTempFile::new().unwrap();
    let mut following = ringfence()
        .args(["flows", "--server", &aggregator.url(), "--follow", "--since", "10m", "--output", "json"])
        .stdout(output.reopen().unwrap())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let printed = || -> Vec<Value> {
        let text = std::fs::read_to_string(output.path()).unwrap();
        text.lines().filter(|line| line.ends_with('}')).map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    until("both records are printed", || (printed().len() == 2).then_some(()));
    aggregator.kill();
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    agent.close(&[]);
    agent.until_acknowledged();
    until("the command has reconnected", || (aggregator.metric("ringfence_flows_streams", &[]) == 1.0).then_some(()));
    until("the gap is announced", || printed().iter().any(|line| line["gap"].is_object()).then_some(()));
    following.kill().unwrap();
    following.wait().unwrap();
    let records = printed().iter().filter(|line| line["connections"].is_object()).count();
    assert_eq!(records, 2, "{:#?}", printed());
    aggregator.until("the stream is closed", |aggregator| {
        (aggregator.metric("ringfence_flows_streams", &[]) == 0.0).then_some(())
    });
}

#[test]
fn graph_hints_statistics_and_pages_are_served() {
    let address = free_port();
    let mut aggregator = Provider::start_aggregator(address, ["--edge-metrics", "on", "--edge-metrics-top", "5"]);
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    agent.push((0..40).map(|number| settled_record("n1", number % 4, &format!("db-{number}"), 2)));
    agent.until_acknowledged();
    let json = |path: &str| -> Value { serde_json::from_str(&aggregator.get(path).body).unwrap() };
    let graph = json("/v1/graph?namespace=shop&limit=30");
    assert_eq!((graph["edges"].as_array().unwrap().len(), &graph["truncated"]), (30, &true.into()), "{graph:#}");
    assert_eq!(graph["other"]["connections"], 20);
    let hints = json("/v1/flows/hints?field=workload&prefix=db-3");
    assert_eq!(hints["values"].as_array().unwrap().len(), 11, "{hints:#}");
    assert_eq!(json("/v1/statistics")["totals"]["connections"], 80);
    for path in ["/v1/graph?limit=0", "/v1/flows/hints", "/v1/flows/hints?field=x", "/v1/statistics?limit=1"] {
        assert_eq!(aggregator.get(path).status, 400, "{path}");
    }
    let (mut page, mut connections, mut pages) = (String::new(), 0, 0);
    loop {
        let text = aggregator.get(&format!("/v1/flows?limit=7{page}")).body;
        let lines: Vec<Value> =
            text.lines().filter(|line| line.starts_with('{')).map(|line| serde_json::from_str(line).unwrap()).collect();
        let (end, records) = lines.split_last().unwrap();
        connections += records.iter().map(|record| record["connections"]["started"].as_u64().unwrap()).sum::<u64>();
        pages += 1;
        let Some(token) = end["nextPage"].as_str() else { break };
        page = format!("&page={token}");
    }
    assert_eq!((connections, pages), (80, 6));
    assert_eq!(aggregator.get("/v1/flows?page=nonsense").status, 400);
    assert_eq!(verb(&["--server", &aggregator.url(), "--until", "30s"]).stdout.lines().count(), 40);
    // These windows were final before their records arrived.
    assert_eq!(aggregator.metric("ringfence_flows_late_records_total", &[]), 40.0);
    assert_eq!(aggregator.metric("ringfence_flows_edge_connections_total", &[("source", "(other)")]), 0.0);
    // A restarted aggregator may lack records of a page's windows.
    aggregator.kill();
    let mut aggregator = Provider::start_aggregator(address, [] as [&str; 0]);
    aggregator.until_ready();
    let refused = aggregator.get(&format!("/v1/flows?limit=7{page}"));
    assert_eq!(refused.status, 410, "{}", refused.body);
    assert!(refused.body.contains("request the first page"), "{}", refused.body);
}
