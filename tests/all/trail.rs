//! Exports of the aggregator: a receiver that fails, a disk that is full, and restarts.

mod access;
mod byte_sums;
mod goldmane;

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use flow::FlowRecord;
use jiff::Timestamp;
use kit::agent_process::ended;
use kit::fake_agent::{Agent, plain, record};
use kit::fake_loki::{FakeLoki, Fault, RetryAfter, StoredLine};
use kit::provider_process::{Provider, aggregator, free_port};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::{NamedTempFile, TempDir};
use tests::chromium::Tab;

/// Agents of these tests are connected before the first pass, or wait for lines of it.
const START_DELAY: [&str; 2] = ["--export-start-delay", "1s"];

/// Windows become final every 15 s, and a restarted aggregator waits for its agents.
const EXPORTED: Duration = Duration::from_secs(100);

thread_local! {
    /// Windows are counted back from this fixed time, so records of two nodes always get the same window.
    static TEST_START: Timestamp = Timestamp::now();
}

/// A record of a final window.
fn settled(node: &str, destination: &str, windows_ago: i64, started: u64) -> FlowRecord {
    let record = record(node, destination, started);
    let start = TEST_START.with(|start| start.as_second());
    let window = Timestamp::from_second(start - start % 15 - 15 * (windows_ago + 4)).unwrap();
    FlowRecord { window, first: window, last: window, ..record }
}

/// Records of one window and their sum.
fn window(node: &str, windows_ago: i64, count: u64) -> (Vec<FlowRecord>, u64) {
    let records =
        (1..=count).map(|number| settled(node, &format!("db-{number}-{}", number * 7_919), windows_ago, number));
    (records.collect(), (1..=count).sum())
}

fn spooled(address: SocketAddr, loki: &FakeLoki, spool: &Path, more: &[&str]) -> Provider {
    let spool = spool.display().to_string();
    let arguments = ["--loki-url", &loki.url(), "--spool-dir", &spool, "--cluster", "east"];
    let mut aggregator = Provider::start_aggregator(address, [&START_DELAY, &arguments[..], more].concat());
    aggregator.until_ready();
    aggregator
}

fn coverage(aggregator: &Provider) -> Value {
    aggregator.try_json("/v1/flows/coverage").unwrap()
}

fn problems(aggregator: &Provider) -> String {
    coverage(aggregator)["problems"].to_string()
}

fn until_sum(aggregator: &mut Provider, loki: &FakeLoki, total: u64) {
    aggregator.until_within(EXPORTED, &format!("{total} connections are in Loki"), |_| {
        let sum = loki.sum("/connections/started");
        assert!(sum <= total, "{sum} of {total} connections");
        (sum == total).then_some(())
    });
}

#[test]
fn outage_and_restarts_lose_and_repeat_nothing() {
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let agents = ["n1", "n2"].map(|node| Agent::start(node, 1, plain(address)));
    let mut aggregator = spooled(address, &loki, folder.path(), &[]);
    let mut total = 0;
    let mut close = |windows_ago: i64| {
        for (agent, node) in agents.iter().zip(["n1", "n2"]) {
            let (records, sum) = window(node, windows_ago, 40);
            total += if node == "n1" { sum } else { 0 };
            agent.push(records);
            agent.until_acknowledged();
        }
        total
    };
    let sum = close(20);
    until_sum(&mut aggregator, &loki, sum);
    let lines = loki.lines();
    let line = &lines[0];
    let label = |name: &str| line.labels[name].as_str();
    assert_eq!(
        (label("service_name"), label("cluster"), label("namespace"), label("direction"), label("verdict")),
        ("ringfence-flows", "east", "shop", "egress", "allowed")
    );
    assert_eq!((line.labels.len(), line.metadata["destination_namespace"].as_str()), (5, "shop"));
    assert_eq!(line.json().pointer("/seenBy/destination/0").and_then(Value::as_str), Some("n2"));

    // Each fault lasts longer than an aggregator process.
    for (windows_ago, fault) in [
        (19, Fault::Refuse { status: 503, retry_after: None }),
        (18, Fault::ResetHalfWay),
        (17, Fault::Refuse { status: 429, retry_after: Some(RetryAfter::Seconds(1)) }),
        (16, Fault::StoreAndReset),
    ] {
        loki.fail(fault);
        close(windows_ago);
        let requests = loki.requests();
        aggregator.until_within(EXPORTED, "the window was tried", |aggregator| {
            let retries = aggregator.metric("ringfence_flows_export_retries_total", &[("exporter", "loki")]);
            (loki.requests() > requests + 1 && retries > 1.0).then_some(())
        });
        assert!(problems(&aggregator).contains("export to loki fails"), "{}", problems(&aggregator));
        aggregator.kill();
        aggregator = spooled(address, &loki, folder.path(), &[]);
    }
    loki.heal();
    let sum = close(15);
    until_sum(&mut aggregator, &loki, sum);
    aggregator.until("nothing waits", |aggregator| {
        (aggregator.metric("ringfence_flows_export_spool_bytes", &[]) == 0.0).then_some(())
    });
    assert!(loki.repeated() > 0, "what was stored before the reset came again");
    assert_eq!(loki.complaints(), [] as [&str; 0]);
    assert_eq!(aggregator.metric("ringfence_flows_export_dropped_records_total", &[]), 0.0);
    assert!(!problems(&aggregator).contains("loki"), "{}", problems(&aggregator));
}

#[test]
fn no_push_arrives_before_retry_after() {
    // The first two backoffs without `Retry-After` are at most 0.5 s and 1 s.
    const WAIT: Duration = Duration::from_secs(3);
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let agent = Agent::start("n1", 1, plain(address));
    let mut aggregator = spooled(address, &loki, folder.path(), &[]);
    for (windows_ago, retry_after, total) in [(20, RetryAfter::Seconds(3), 5), (19, RetryAfter::Date(4), 10)] {
        loki.fail(Fault::Refuse { status: 429, retry_after: Some(retry_after) });
        let before = loki.requests();
        agent.push(vec![settled("n1", "db", windows_ago, 5)]);
        let arrivals = aggregator.until_within(EXPORTED, "the push is tried three times", |_| {
            let arrivals = loki.arrivals().split_off(before);
            (arrivals.len() >= 3).then_some(arrivals)
        });
        loki.heal();
        for pair in arrivals.windows(2) {
            assert!(pair[1] - pair[0] >= WAIT, "{retry_after:?}: {:?} between two pushes", pair[1] - pair[0]);
        }
        // A delivered batch resets the backoff.
        until_sum(&mut aggregator, &loki, total);
    }
}

#[test]
fn slow_and_silent_loki_loses_nothing() {
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let agent = Agent::start("n1", 1, plain(address));
    let mut aggregator = spooled(address, &loki, folder.path(), &[]);
    loki.fail(Fault::Slow(Duration::from_secs(2)));
    agent.push(vec![settled("n1", "db", 20, 5)]);
    until_sum(&mut aggregator, &loki, 5);
    let retries =
        |aggregator: &Provider| aggregator.metric("ringfence_flows_export_retries_total", &[("exporter", "loki")]);
    assert_eq!(retries(&aggregator), 0.0, "an answer after two seconds is one in time");

    loki.fail(Fault::Silent);
    agent.push(vec![settled("n1", "db", 19, 7)]);
    aggregator
        .until_within(EXPORTED, "a request has timed out", |aggregator| (retries(aggregator) > 0.0).then_some(()));
    assert!(problems(&aggregator).contains("export to loki fails"), "{}", problems(&aggregator));
    loki.heal();
    until_sum(&mut aggregator, &loki, 12);
    assert_eq!(loki.complaints(), [] as [&str; 0]);
}

/// Windows are evicted from memory during the outage, and wait in the spool only.
#[test]
fn outage_outlasts_memory_without_loss() {
    const RECORDS: u64 = 900;
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let agent = Agent::start("n1", 1, plain(address));
    let mut aggregator = spooled(address, &loki, folder.path(), &["--memory-mib", "1"]);
    loki.fail(Fault::Refuse { status: 503, retry_after: None });
    for windows_ago in [20, 19, 18] {
        let name = |number: u64| format!("db-{windows_ago}-{}", number * 7_919);
        agent.push((1..=RECORDS).map(|number| settled("n1", &name(number), windows_ago, 1)));
        let lines = RECORDS * (21 - windows_ago.unsigned_abs());
        aggregator.until_within(EXPORTED, "the window is in the spool", |aggregator| {
            (aggregator.metric("ringfence_flows_export_lines_total", &[]) == lines as f64).then_some(())
        });
    }
    assert!(aggregator.metric("ringfence_flows_evicted_records_total", &[]) > 0.0, "all windows are in memory");
    assert_eq!(
        (loki.lines().len(), aggregator.metric("ringfence_flows_export_unexported_records_total", &[])),
        (0, 0.0)
    );
    // The process that sends the windows does not have them in memory.
    aggregator.kill();
    loki.heal();
    let mut aggregator = spooled(address, &loki, folder.path(), &["--memory-mib", "1"]);
    until_sum(&mut aggregator, &loki, 3 * RECORDS);
    assert_eq!(loki.complaints(), [] as [&str; 0]);
}

#[test]
fn late_node_adds_a_line_without_connections() {
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let mut aggregator = spooled(address, &loki, folder.path(), &[]);
    let agents = ["n1", "n2"].map(|node| Agent::start(node, 1, plain(address)));
    agents[0].push(vec![settled("n1", "db", 20, 5)]);
    until_sum(&mut aggregator, &loki, 5);
    agents[1].push(vec![settled("n2", "db", 20, 5)]);
    aggregator.until_within(EXPORTED, "the late line is there", |_| (loki.lines().len() == 2).then_some(()));
    // The first line is late as well if an export preceded it.
    let is_joined = |line: &StoredLine| line.json()["destinationVerdict"] == "allowed";
    let late = loki.lines().into_iter().find(is_joined).expect("a line with both verdicts");
    assert_eq!(late.json()["late"], true);
    assert_eq!(late.json().pointer("/connections/started").and_then(Value::as_u64), Some(0));
    assert_eq!(late.metadata["late"], "true");
    assert_eq!(loki.sum("/connections/started"), 5);
}

#[test]
fn node_that_connects_within_start_delay_is_joined() {
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let arguments = ["--loki-url", &loki.url(), "--spool-dir", &folder.path().display().to_string()];
    let mut aggregator =
        Provider::start_aggregator(address, [&arguments[..], &["--export-start-delay", "20s"]].concat());
    aggregator.until_ready();
    for node in ["n1", "n2"] {
        let agent = Agent::start(node, 1, plain(address));
        agent.push(vec![settled(node, "db", 20, 5)]);
        agent.until_acknowledged();
    }
    until_sum(&mut aggregator, &loki, 5);
    let lines = loki.lines();
    let [line] = &lines[..] else { panic!("{} lines", lines.len()) };
    let line = line.json();
    assert_eq!((&line["destinationVerdict"], &line["late"]), (&"allowed".into(), &false.into()));
}

#[test]
fn full_disk_leaves_records_in_memory() {
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    loki.fail(Fault::Refuse { status: 503, retry_after: None });
    // A small disk that only this aggregator sees.
    let mut aggregator = std::thread::scope(|scope| {
        let start = || {
            let nothing = None::<&str>;
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
            mount(Some("spool"), folder.path(), Some("tmpfs"), MsFlags::empty(), Some("size=64k")).unwrap();
            spooled(address, &loki, folder.path(), &[])
        };
        scope.spawn(start).join().unwrap()
    });
    let agent = Agent::start("n1", 1, plain(address));
    let mut total = 0;
    for windows_ago in 10..16 {
        let (records, sum) = window("n1", windows_ago, 1_000);
        agent.push(records);
        total += sum;
    }
    agent.until_acknowledged();
    aggregator.until_within(EXPORTED, "the disk is full", |aggregator| {
        let failures = aggregator.metric("ringfence_flows_export_spool_failures_total", &[]);
        let memory = aggregator.metric("ringfence_flows_export_spool_bytes", &[("place", "memory")]);
        (failures > 0.0 && memory > 0.0).then_some(())
    });
    aggregator.until("the disk and the position are problems", |aggregator| {
        let problems = problems(aggregator);
        (problems.contains("No space left on device") && problems.contains("position of exports")).then_some(())
    });
    loki.heal();
    until_sum(&mut aggregator, &loki, total);
    assert_eq!(aggregator.metric("ringfence_flows_export_dropped_records_total", &[]), 0.0);
    assert_eq!(loki.complaints(), [] as [&str; 0]);
}

#[test]
fn refused_batch_is_dropped_alone() {
    let (loki, address) = (FakeLoki::start(), free_port());
    // Without a spool on disk, windows from before the start are not exported: this one is in the future, as far as
    // allowed.
    let mut aggregator = Provider::start_aggregator(address, [&["--loki-url", &loki.url()], &START_DELAY[..]].concat());
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    loki.fail(Fault::Refuse { status: 400, retry_after: None });
    agent.push(vec![settled("n1", "old", 10, 100), settled("n1", "db", -5, 3)]);
    aggregator.until_within(EXPORTED, "the batch is refused", |aggregator| {
        aggregator
            .log()
            .contains("refused flow records, they are dropped: status 400: the receiver is broken")
            .then_some(())
    });
    assert_eq!(aggregator.metric("ringfence_flows_export_dropped_records_total", &[("reason", "refused")]), 1.0);
    assert!(problems(&aggregator).contains("loki refused 1 records"), "{}", problems(&aggregator));
    loki.heal();
    agent.push(vec![settled("n1", "db", -5, 7)]);
    until_sum(&mut aggregator, &loki, 7);
}

#[test]
fn stopped_aggregator_exports_what_it_has() {
    let (loki, address) = (FakeLoki::start(), free_port());
    // Without a spool, the next process would not export windows from before its start. This window is not final yet.
    let mut aggregator = Provider::start_aggregator(address, [&["--loki-url", &loki.url()], &START_DELAY[..]].concat());
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    agent.push(vec![settled("n1", "db", -5, 3)]);
    agent.until_acknowledged();
    let (status, log) = aggregator.stop();
    assert!(status.success(), "{log}");
    assert_eq!(loki.sum("/connections/started"), 3, "{log}");
    assert!(!log.contains("are lost"), "{log}");
}

#[test]
fn stopped_aggregator_names_lost_records() {
    let (loki, address) = (FakeLoki::start(), free_port());
    loki.fail(Fault::Refuse { status: 503, retry_after: None });
    let mut aggregator = Provider::start_aggregator(address, [&["--loki-url", &loki.url()], &START_DELAY[..]].concat());
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    agent.push(vec![settled("n1", "db", -5, 3)]);
    agent.until_acknowledged();
    aggregator.terminate();
    aggregator.until_logged(&["503"]);
    // The second SIGTERM ends the wait for the receiver.
    let (status, log) = aggregator.stop();
    assert!(status.success(), "{log}");
    assert!(log.contains("flow records are lost") && log.contains("records=1"), "{log}");
}

/// The error of a start with these arguments. The port is occupied, so that a start that is not refused ends as well.
fn refused(arguments: &[&str]) -> String {
    let occupied = TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = occupied.local_addr().unwrap().to_string();
    let refused = ended(aggregator().args(["serve", "--listen", &listen]).args(arguments));
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    refused.stderr
}

#[test]
fn spool_of_another_process_is_refused_at_start() {
    let (loki, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let aggregator = spooled(address, &loki, folder.path(), &[]);
    let spool = folder.path().display().to_string();
    // Another exporter, whose spool would be a subfolder of its own beside the same position.
    let file = folder.path().join("flows.jsonl").display().to_string();
    let error = refused(&["--export-file", &file, "--spool-dir", &spool]);
    assert!(error.contains(&format!("the folder {spool} is in use by another process")), "{error}");
    assert!(error.contains("choose a folder that no other process uses with --spool-dir"), "{error}");
    drop(aggregator);
}

#[test]
fn files_and_otlp_have_the_same_records() {
    let (otlp, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let (file, spool) = (folder.path().join("flows.jsonl"), folder.path().join("spool"));
    let [file_text, spool_text] = [&file, &spool].map(|path| path.display().to_string());
    let arguments = ["--otlp-endpoint", &otlp.url(), "--export-file", &file_text, "--spool-dir", &spool_text];
    let mut aggregator = Provider::start_aggregator(address, [&arguments[..], &START_DELAY].concat());
    aggregator.until_ready();
    let agents = ["n1", "n2"].map(|node| Agent::start(node, 1, plain(address)));
    for (agent, node) in agents.iter().zip(["n1", "n2"]) {
        agent.push(window(node, 10, 20).0);
    }
    let lines = aggregator.until_within(EXPORTED, "all lines are there", |_| {
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (lines.len() == 20 && otlp.logs().len() == 20).then_some(lines)
    });
    let bodies: Vec<String> =
        otlp.logs().iter().map(|log| log["body"]["stringValue"].as_str().unwrap().to_owned()).collect();
    assert_eq!(lines, bodies);
    assert_eq!(otlp.complaints(), [] as [&str; 0]);
    let logs = otlp.logs();
    let attribute = |key: &str| {
        let attributes = logs[0]["attributes"].as_array().unwrap();
        let found = attributes.iter().find(|attribute| attribute["key"] == key);
        found.map(|attribute| attribute["value"].clone()).unwrap_or_default()
    };
    assert_eq!(attribute("k8s.dst.namespace")["stringValue"], "shop");
    assert_eq!(attribute("dst.port")["intValue"], "5432");
    // The receiver has the lines before its answer is counted.
    aggregator.until("both exporters counted all lines", |aggregator| {
        let exports = coverage(aggregator)["exports"].clone();
        let sent = |index: usize| exports[index]["sent"].as_u64();
        (exports[0]["exporter"] == "otlp" && (sent(0), sent(1)) == (Some(20), Some(20))).then_some(())
    });
}

#[test]
fn otlp_outage_and_rejections_are_counted() {
    let (otlp, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (token, spool) = (path("token"), path("spool"));
    fs::write(&token, "secret\n").unwrap();
    otlp.demand_authorization("Bearer secret");
    otlp.fail(Fault::Refuse { status: 503, retry_after: None });
    let arguments = ["--otlp-endpoint", &otlp.url(), "--otlp-token-file", &token, "--spool-dir", &spool];
    let mut aggregator = Provider::start_aggregator(address, [&arguments[..], &START_DELAY].concat());
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    agent.push(window("n1", 10, 20).0);
    aggregator.until_within(EXPORTED, "the receiver is away", |_| otlp.statuses().contains_key(&503).then_some(()));
    // The records are on disk when the aggregator is killed.
    aggregator.kill();
    otlp.reject_logs(3);
    otlp.heal();
    let mut aggregator = Provider::start_aggregator(address, [&arguments[..], &START_DELAY].concat());
    aggregator.until_within(EXPORTED, "the others arrive", |_| (otlp.logs().len() == 17).then_some(()));
    aggregator.until("the rejected records are counted", |aggregator| {
        let dropped = |reason| aggregator.metric("ringfence_flows_export_dropped_records_total", &[("reason", reason)]);
        (dropped("rejected") == 3.0 && dropped("refused") == 0.0).then_some(())
    });
    aggregator.until("they are a problem", |aggregator| {
        problems(aggregator).contains("a log record is too old").then_some(())
    });
    assert_eq!(coverage(&aggregator)["exports"][0]["sent"], 17);
    assert_eq!(otlp.complaints(), [] as [&str; 0]);
}

#[test]
fn standard_output_has_each_line() {
    let (address, output) = (free_port(), NamedTempFile::new().unwrap());
    let mut command = aggregator();
    command.args(["serve", "--listen", &address.to_string(), "--export-file", "-"]).args(START_DELAY);
    let mut process = command.stdout(output.reopen().unwrap()).stderr(Stdio::null()).spawn().unwrap();
    let agent = Agent::start("n1", 1, plain(address));
    // Without a spool, windows from before the start are not exported.
    agent.push(vec![settled("n1", "db-1", -5, 3), settled("n1", "db-2", -5, 4)]);
    agent.until_acknowledged();
    kill(Pid::from_raw(process.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    assert!(process.wait().unwrap().success());
    let text = fs::read_to_string(output.path()).unwrap();
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let started: Vec<u64> = lines.iter().map(|line| line["connections"]["started"].as_u64().unwrap()).collect();
    assert_eq!(started.iter().sum::<u64>(), 7, "{text}");
}

#[test]
fn failed_append_is_repeated_without_parts() {
    let (folder, address) = (TempDir::new().unwrap(), free_port());
    let (disk, spool) = (folder.path().join("disk"), folder.path().join("spool").display().to_string());
    fs::create_dir(&disk).unwrap();
    let (file, filler) = (disk.join("flows.jsonl"), disk.join("filler"));
    // A small disk that only the aggregator and this thread see.
    let nothing = None::<&str>;
    let run = || {
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing).unwrap();
        mount(Some("flows"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=256k")).unwrap();
        fs::write(&filler, vec![0; 192 << 10]).unwrap();
        let file_text = file.display().to_string();
        let arguments = ["--export-file", &file_text, "--spool-dir", &spool];
        let mut aggregator = Provider::start_aggregator(address, [&arguments[..], &START_DELAY].concat());
        aggregator.until_ready();
        let agent = Agent::start("n1", 1, plain(address));
        let (records, sum) = window("n1", 10, 100);
        agent.push(records);
        aggregator.until_within(EXPORTED, "the disk is full", |aggregator| {
            problems(aggregator).contains("No space left on device").then_some(())
        });
        assert_eq!(fs::metadata(&file).unwrap().len(), 0, "a part of a batch is removed");
        fs::remove_file(&filler).unwrap();
        aggregator.until_within(EXPORTED, "all lines are there", |_| {
            let text = fs::read_to_string(&file).unwrap();
            let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let started: u64 = lines.map(|line| line["connections"]["started"].as_u64().unwrap()).sum();
            assert!(started <= sum, "{started} of {sum} connections");
            (started == sum).then_some(())
        });
    };
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap();
}

#[test]
fn first_seen_edge_is_one_event_everywhere() {
    let (loki, folder) = (FakeLoki::start(), TempDir::new().unwrap());
    let (address, page) = (free_port(), free_port());
    let (spool, state) = (folder.path().join("spool"), folder.path().join("state").display().to_string());
    let page_address = page.to_string();
    let edges = ["--edges", "on", "--edge-learning", "1s", "--state-dir", &state, "--ui-listen", &page_address];
    let mut aggregator = spooled(address, &loki, &spool, &edges);
    let agent = Agent::start("n1", 1, plain(address));
    let later = Timestamp::from_second(Timestamp::now().as_second() + 2).unwrap();
    let window = Timestamp::from_second(later.as_second() / 15 * 15).unwrap();
    let new = FlowRecord { window, first: later, last: later, ..record("n1", "db-new", 3) };
    agent.push([settled("n1", "db-old", 1, 2), new]);
    agent.until_acknowledged();
    let events =
        || -> Vec<StoredLine> { loki.lines().into_iter().filter(|line| line.json()["firstSeen"] == true).collect() };
    aggregator.until_within(EXPORTED, "the event is in Loki", |_| (!events().is_empty()).then_some(()));

    let names = |value: &Value| [&value["source"]["name"], &value["destination"]["name"]].map(Value::to_string);
    let expected = ["\"web\"", "\"db-new\""].map(String::from);
    let line = &events()[0];
    assert_eq!((events().len(), names(&line.json())), (1, expected.clone()));
    assert_eq!(line.metadata.get("first_seen").map(String::as_str), Some("true"), "{line:?}");
    let log = aggregator.log();
    let logged: Vec<&str> = log.lines().filter(|line| line.contains("seen for the first time")).collect();
    assert!(logged.len() == 1 && logged[0].contains("shop/web") && logged[0].contains("shop/db-new"), "{log}");
    assert_eq!(aggregator.metric("ringfence_flows_first_seen_edges_total", &[("namespace", "shop")]), 1.0);
    let listed = aggregator.try_json("/v1/edges/first-seen").unwrap()["events"].as_array().unwrap().clone();
    assert_eq!(listed.iter().map(names).collect::<Vec<_>>(), [expected]);
    let mut tab = Tab::open(1440, 900);
    tab.load(&format!("http://{page}/?screen=audit&pause"));
    tab.until(
        "document.body?.innerText.includes('shop/db-new') && document.body.innerText.includes('for the first time')",
    );
    assert_eq!(tab.problems(), [] as [String; 0]);

    // The edge is known after a restart.
    assert!(aggregator.stop().0.success());
    let mut aggregator = spooled(address, &loki, &spool, &edges);
    agent.push([record("n1", "db-new", 1)]);
    agent.until_acknowledged();
    aggregator.until_within(EXPORTED, "the next connection is in Loki", |_| {
        (loki.sum("/connections/started") == 6).then_some(())
    });
    assert_eq!(events().len(), 1);
    assert!(!aggregator.log().contains("seen for the first time"), "{}", aggregator.log());
}
