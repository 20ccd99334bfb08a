use std::path::{Path, PathBuf};

/// Ways to read or set the wall clock.
const WALL_CLOCK: [&str; 9] = [
    "SystemTime",
    ".modified()",
    "UNIX_EPOCH",
    "CLOCK_REALTIME",
    "ClockId::Realtime",
    "Timestamp::now",
    "Zoned::now",
    "Utc::now",
    "Local::now",
];

/// Files that may read the wall clock, with the reason.
const ALLOWED: [(&str, &str); 49] = [
    ("access/src/figures.rs", "when the certificate expires, for who reads it"),
    ("access/src/guard.rs", "certificates of clients expire at a date"),
    ("agent/src/api/flows.rs", "durations of filters count back from now, for who reads flow records"),
    ("agent/src/api/observed.rs", "until when records of the trail are read, for who compares them with policies"),
    ("agent/src/cli/flows.rs", "durations of filters count back from now, for who reads flow records"),
    ("agent/src/cni_install/files.rs", "how old a file is that a killed installation left: it goes earlier or later"),
    ("agent/src/cni_install/tests.rs", "makes such a file look old"),
    ("agent/src/event_loop.rs", "when commits were, for who reads the status or flow records"),
    ("agent/src/flows/capture.rs", "windows of flow records are aligned to it; records decide nothing"),
    ("agent/src/flows/delivery.rs", "names the life of the agent; any number that it did not have before does"),
    ("agent/src/listen/flows.rs", "which window of flow records is open, for who reads them"),
    (
        "agent/src/remote/subscription.rs",
        "as of when sets of other clusters were right, which outlives this process and the node's boot",
    ),
    ("agent/src/reports/packet_group.rs", "when denied packets were reported, for readers of drop events"),
    ("agent/src/reports/stream.rs", "since when events are kept, for who reads them"),
    ("agent/src/reports/watch.rs", "when packets denied, for who reads of them"),
    ("agent/src/verbs/agent.rs", "since when the summary of audit counts, for who reads it"),
    ("agent/src/verbs/suggest.rs", "since when flows are read, for who reads suggestions"),
    ("agent/src/verbs/what_if.rs", "since when flows are read, for who compares them with a policy"),
    ("aggregator/src/export/figures.rs", "how old the oldest unsent record is, for who reads it"),
    (
        "aggregator/src/export/pass.rs",
        "which agents have sent records lately; how long is waited is of the monotonic clock",
    ),
    ("aggregator/src/export/sink.rs", "Retry-After may be a date"),
    ("aggregator/src/goldmane.rs", "times of a request may count back from now"),
    ("aggregator/src/hubble.rs", "which nodes are silent, for who reads it"),
    ("aggregator/src/listen.rs", "windows of records are those of the wall clock"),
    ("aggregator/src/listen/comparison.rs", "durations of queries count back from now"),
    ("aggregator/src/listen/query.rs", "durations of filters count back from now"),
    ("aggregator/src/listen/readiness.rs", "how many days had no would-deny, for who reads it"),
    ("aggregator/src/listen/stream.rs", "windows of records are those of the wall clock"),
    ("aggregator/src/metrics.rs", "which nodes are silent, for who reads it"),
    (
        "aggregator/src/observation.rs",
        "when edges were seen is of the windows of records; it decides which events are raised",
    ),
    ("aggregator/src/serve.rs", "windows of flow records are those of the wall clock, and expire by it"),
    ("cluster/src/folder/follow.rs", "the start of a scan in a message"),
    ("cluster/src/lease/hold.rs", "when a Lease was renewed, for who reads it; nobody compares it"),
    ("context/src/epoch.rs", "names an epoch; one that is not greater than the last gives way to the next"),
    ("context/src/history/clock.rs", "dates of a history that the monotonic clock orders, for its readers"),
    ("context/src/metrics.rs", "how old the sets of other clusters are, for who reads it"),
    ("context/src/pki.rs", "certificates are valid between two dates"),
    ("context/src/pki/tests.rs", "makes such certificates"),
    ("context/src/remote/cluster.rs", "as of when sets of another cluster were right, which outlives this process"),
    ("context/src/remote/publisher.rs", "how old they are, where they may be too old (--remote-max-stale)"),
    ("context/src/verbs/init_tls.rs", "certificates are renewed before a date"),
    ("flow/src/cluster/hints.rs", "a constant, since no value of a hint is a duration"),
    ("insight/src/edge_ledger/testing.rs", "a constant"),
    ("insight/src/readiness.rs", "a constant of its tests"),
    ("insight/src/testing.rs", "a constant"),
    ("listener/src/certificate.rs", "when a certificate expires"),
    ("listener/src/tls/files.rs", "an expired certificate does not replace the one in use"),
    ("listener/src/tls/tests.rs", "compares such a date"),
    ("trail/src/position_file.rs", "a time for a test"),
];

#[test]
fn no_decision_depends_on_a_clock_that_jumps() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
    let mut asking: Vec<String> = Vec::new();
    for path in sources(&crates) {
        let text = std::fs::read_to_string(&path).expect("a source file");
        if WALL_CLOCK.iter().any(|way| text.contains(way)) {
            asking.push(path.strip_prefix(&crates).expect("it is in there").display().to_string());
        }
    }
    asking.sort();
    assert_eq!(asking, ALLOWED.map(|(file, _)| file));
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of the tree") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}
