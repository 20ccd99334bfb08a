//! The OTLP metric of the bytes of edges.

use super::*;

/// Bytes of the records of a window, both ways, for each connection.
const BYTES: u64 = 1_100;

#[test]
fn metric_has_bytes_of_all_records_within_bound() {
    const SERIES: usize = 5;
    let (otlp, folder, address) = (FakeLoki::start(), TempDir::new().unwrap(), free_port());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (token, spool) = (path("token"), path("spool"));
    fs::write(&token, "secret\n").unwrap();
    otlp.demand_authorization("Bearer secret");
    let (url, series) = (otlp.url(), SERIES.to_string());
    let receiver = ["--otlp-metrics-endpoint", &url, "--otlp-metrics-token-file", &token, "--spool-dir", &spool];
    let start = || {
        let bound = ["--otlp-metrics-series", &series, "--cluster", "east"];
        let mut aggregator = Provider::start_aggregator(address, [&receiver[..], &bound, &START_DELAY].concat());
        aggregator.until_ready();
        aggregator
    };
    let agent = Agent::start("n1", 1, plain(address));
    let mut aggregator = start();
    let mut total = 0;
    for (windows_ago, is_away) in [(20, false), (19, true), (18, false)] {
        if is_away {
            otlp.fail(Fault::Refuse { status: 503, retry_after: None });
        }
        let (records, sum) = window("n1", windows_ago, 10);
        agent.push(records);
        agent.until_acknowledged();
        total += sum * BYTES;
        if is_away {
            aggregator
                .until_within(EXPORTED, "the receiver is away", |_| otlp.statuses().contains_key(&503).then_some(()));
            // The batch is on disk; sums of the next process begin at 0.
            aggregator.kill();
            otlp.heal();
            aggregator = start();
        }
        aggregator.until_within(EXPORTED, &format!("{total} bytes arrive"), |_| {
            let bytes: u64 = otlp.sums().values().sum();
            assert!(bytes <= total, "{bytes} of {total} bytes");
            (bytes == total).then_some(())
        });
    }
    let sums = otlp.sums();
    // Each process has series of its own edges; all edges of this test have other names.
    assert!(sums.len() <= 2 * SERIES + 1, "{sums:#?}");
    let overflow = sums.keys().filter(|attributes| attributes.contains("otel.metric.overflow")).count();
    let edges = sums.keys().filter(|attributes| attributes.contains("k8s.dst.owner.name")).count();
    assert_eq!(overflow + edges, sums.len(), "{sums:#?}");
    assert_eq!(overflow, 1);
    assert_eq!(otlp.complaints(), [] as [&str; 0]);
    let exports = coverage(&aggregator)["exports"].clone();
    assert_eq!((&exports[0]["exporter"], &exports[0]["dropped"]), (&"otlp-metrics".into(), &0.into()));
}

#[test]
fn refused_points_are_counted_and_come_again() {
    let (otlp, address) = (FakeLoki::start(), free_port());
    let url = otlp.url();
    let arguments = [&["--otlp-metrics-endpoint", &url][..], &START_DELAY].concat();
    let mut aggregator = Provider::start_aggregator(address, arguments);
    aggregator.until_ready();
    let agent = Agent::start("n1", 1, plain(address));
    otlp.fail(Fault::Refuse { status: 400, retry_after: None });
    agent.push(vec![settled("n1", "old", 10, 100), settled("n1", "db", -5, 3)]);
    aggregator.until_within(EXPORTED, "the points are refused", |aggregator| {
        let refused = [("exporter", "otlp-metrics"), ("reason", "refused")];
        (aggregator.metric("ringfence_flows_export_dropped_records_total", &refused) == 2.0).then_some(())
    });
    otlp.heal();
    // The next points have the bytes of the refused ones.
    agent.push(vec![settled("n1", "db", -5, 7)]);
    aggregator.until_within(EXPORTED, "all bytes arrive", |_| {
        (otlp.sums().values().sum::<u64>() == 10 * BYTES).then_some(())
    });
    assert_eq!(otlp.complaints(), [] as [&str; 0]);
}
