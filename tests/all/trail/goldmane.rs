//! Flows pushed to the collector of a Goldmane, over mutual TLS.

use std::collections::BTreeMap;

use tests::cutting_proxy::{self, Cut};
use tests::fake_goldmane::{self, FakeGoldmane};

use super::*;

/// `goldmane.Reporter`
const SOURCE: i64 = 1;
const DESTINATION: i64 = 2;

/// An aggregator with a spool that pushes to a URL.
fn pushing(address: SocketAddr, goldmane: &FakeGoldmane, url: &str, folder: &Path) -> Provider {
    let mut arguments = goldmane.client_flags(folder);
    let spool = folder.join("spool").display().to_string();
    arguments.extend(["--goldmane-push", url, "--spool-dir", &spool].map(String::from));
    arguments.extend(START_DELAY.map(String::from));
    let mut aggregator = Provider::start_aggregator(address, arguments);
    aggregator.until_ready();
    aggregator
}

fn until_started(aggregator: &mut Provider, goldmane: &FakeGoldmane, reporter: i64, total: u64) {
    aggregator.until_within(EXPORTED, &format!("{total} connections of reporter {reporter}"), |_| {
        let started = goldmane.started(reporter);
        assert!(started <= total, "{started} of {total} connections");
        (started == total).then_some(())
    });
}

#[test]
fn goldmane_gets_flow_of_each_reporter_once() {
    let (folder, address) = (TempDir::new().unwrap(), free_port());
    let goldmane = FakeGoldmane::start(folder.path());
    let mut aggregator = pushing(address, &goldmane, &goldmane.url(), folder.path());
    let agents = ["n1", "n2"].map(|node| Agent::start(node, 1, plain(address)));
    let mut total = 0;
    for (windows_ago, fault) in [
        (20, None),
        (19, Some(fake_goldmane::Fault::Unavailable)),
        // Receipts are kept across retries of a batch: the stream that follows begins with the next flow.
        (18, Some(fake_goldmane::Fault::EndAfter(3))),
    ] {
        let streams = goldmane.streams();
        if let Some(fault) = fault {
            goldmane.fail(fault);
        }
        for (agent, node) in agents.iter().zip(["n1", "n2"]) {
            let (records, sum) = window(node, windows_ago, 40);
            total += if node == "n1" { sum } else { 0 };
            agent.push(records);
            agent.until_acknowledged();
        }
        if fault.is_some() {
            aggregator.until_within(EXPORTED, "the batch is tried again", |aggregator| {
                let retries = aggregator.metric("ringfence_flows_export_retries_total", &[("exporter", "goldmane")]);
                (goldmane.streams() > streams + 2 && retries > 1.0).then_some(())
            });
            assert!(problems(&aggregator).contains("export to goldmane fails"), "{}", problems(&aggregator));
        }
        goldmane.heal();
        until_started(&mut aggregator, &goldmane, SOURCE, total);
        until_started(&mut aggregator, &goldmane, DESTINATION, total);
    }
    assert_eq!(goldmane.repeated(), 0, "what is acknowledged is not sent again");
    let flow = &goldmane.flows()[0];
    let key = flow.message(1);
    assert_eq!(
        (key.text(1), key.text(2), key.text(5), key.number(7)),
        ("web".into(), "shop".into(), "shop".into(), 5432)
    );
    aggregator.until("all flows are counted", |aggregator| {
        let sent = aggregator.metric("ringfence_flows_export_sent_records_total", &[("exporter", "goldmane")]);
        (sent == 240.0).then_some(())
    });
    assert_eq!(coverage(&aggregator)["exports"][0]["target"], goldmane.url());
    assert_eq!(goldmane.complaints(), [] as [&str; 0]);
}

#[test]
fn flows_wait_on_disk_while_goldmane_is_away() {
    let (folder, address) = (TempDir::new().unwrap(), free_port());
    let goldmane = FakeGoldmane::start(folder.path());
    let agent = Agent::start("n1", 1, plain(address));
    goldmane.fail(fake_goldmane::Fault::Unavailable);
    let mut aggregator = pushing(address, &goldmane, &goldmane.url(), folder.path());
    let (records, total) = window("n1", 20, 40);
    agent.push(records);
    aggregator.until_within(EXPORTED, "the batch is tried", |_| (goldmane.streams() > 1).then_some(()));
    aggregator.kill();
    goldmane.heal();
    let mut aggregator = pushing(address, &goldmane, &goldmane.url(), folder.path());
    until_started(&mut aggregator, &goldmane, SOURCE, total);
    assert_eq!((goldmane.repeated(), goldmane.complaints()), (0, vec![]));
}

#[test]
fn reconnect_resends_flows_without_receipts_only() {
    const FLOWS: u64 = 1_000;
    let (folder, address) = (TempDir::new().unwrap(), free_port());
    let goldmane = FakeGoldmane::start(folder.path());
    // The first connection is cut within the receipts, which have 5 bytes each after a handshake of some 1,000, and the
    // second one within the flows.
    let proxy = cutting_proxy::start(goldmane.address(), [Cut::AfterAnswerBytes(2_500), Cut::AfterRequestBytes(9_000)]);
    let mut aggregator = pushing(address, &goldmane, &format!("https://{proxy}"), folder.path());
    let agent = Agent::start("n1", 1, plain(address));
    let (records, _) = window("n1", 20, FLOWS);
    agent.push(records);
    let flows = |goldmane: &FakeGoldmane| -> BTreeMap<String, usize> {
        let mut names = BTreeMap::new();
        for flow in goldmane.flows() {
            *names.entry(flow.message(1).text(4)).or_default() += 1;
        }
        names
    };
    aggregator.until_within(EXPORTED, "all flows arrive", |_| (flows(&goldmane).len() == FLOWS as usize).then_some(()));
    aggregator.until("all flows are counted", |aggregator| {
        let sent = aggregator.metric("ringfence_flows_export_sent_records_total", &[("exporter", "goldmane")]);
        (sent == FLOWS as f64).then_some(())
    });
    // A flow that arrived and whose receipt was lost is there twice, byte by byte, so that a Goldmane recognises it.
    let repeated = flows(&goldmane).values().filter(|count| **count > 1).count();
    assert!(goldmane.repeated() >= repeated, "{repeated} flows arrived twice");
    assert!(goldmane.streams() > 1, "a connection was cut");
    assert_eq!(goldmane.complaints(), [] as [&str; 0]);
}

#[test]
fn lost_receipt_repeats_one_flow() {
    let (folder, address) = (TempDir::new().unwrap(), free_port());
    let goldmane = FakeGoldmane::start(folder.path());
    let mut aggregator = pushing(address, &goldmane, &goldmane.url(), folder.path());
    let agent = Agent::start("n1", 1, plain(address));
    goldmane.fail(fake_goldmane::Fault::LoseReceiptAfter(30));
    agent.push(window("n1", 20, 40).0);
    // 30 receipts, and 31 flows; the next stream ends before its 31st receipt.
    aggregator.until_within(EXPORTED, "all flows are counted", |aggregator| {
        let sent = aggregator.metric("ringfence_flows_export_sent_records_total", &[("exporter", "goldmane")]);
        (sent == 40.0).then_some(())
    });
    assert_eq!((goldmane.flows().len(), goldmane.repeated(), goldmane.streams()), (41, 1, 2));
    assert_eq!(goldmane.complaints(), [] as [&str; 0]);
}

#[test]
fn flow_that_is_refused_drops_rest_of_batch() {
    let (folder, address) = (TempDir::new().unwrap(), free_port());
    let goldmane = FakeGoldmane::start(folder.path());
    let mut aggregator = pushing(address, &goldmane, &goldmane.url(), folder.path());
    let agent = Agent::start("n1", 1, plain(address));
    goldmane.fail(fake_goldmane::Fault::InvalidAfter(15));
    agent.push(window("n1", 20, 40).0);
    aggregator.until_within(EXPORTED, "the rest is dropped", |aggregator| {
        let rejected = [("exporter", "goldmane"), ("reason", "rejected")];
        (aggregator.metric("ringfence_flows_export_dropped_records_total", &rejected) == 25.0).then_some(())
    });
    assert!(problems(&aggregator).contains("goldmane refused 25 records"), "{}", problems(&aggregator));
    assert_eq!(goldmane.flows().len(), 15);
}

#[test]
fn late_node_adds_flows_of_its_own() {
    let (folder, address) = (TempDir::new().unwrap(), free_port());
    let goldmane = FakeGoldmane::start(folder.path());
    let mut aggregator = pushing(address, &goldmane, &goldmane.url(), folder.path());
    let agents = ["n1", "n2"].map(|node| Agent::start(node, 1, plain(address)));
    agents[0].push(vec![settled("n1", "db", 20, 5)]);
    until_started(&mut aggregator, &goldmane, SOURCE, 5);
    agents[1].push(vec![settled("n2", "db", 20, 5)]);
    until_started(&mut aggregator, &goldmane, DESTINATION, 5);
    // Nothing was added to the flow of the source.
    assert_eq!((goldmane.flows().len(), goldmane.started(SOURCE)), (2, 5));
    assert_eq!(goldmane.complaints(), [] as [&str; 0]);
}

#[test]
fn unusable_client_certificates_are_refused_at_start() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let [missing, text] = ["missing", "text"].map(path);
    fs::write(&text, "neither a certificate nor a key").unwrap();
    let url = ["--goldmane-push", "https://127.0.0.1:1"];
    for more in [
        vec!["--goldmane-push-ca-file", &missing],
        vec!["--goldmane-push-ca-file", &text],
        vec!["--goldmane-push-cert", &missing, "--goldmane-push-key", &missing],
        vec!["--goldmane-push-cert", &text, "--goldmane-push-key", &text],
    ] {
        let error = refused(&[&url[..], &more].concat());
        assert!(error.contains("choose PEM files with --goldmane-push-ca-file"), "{error}");
    }
    let pair = ["--goldmane-push-cert", &text, "--goldmane-push-key", &text];
    let plain = refused(&[&["--goldmane-push", "http://goldmane:7443"][..], &pair].concat());
    assert!(plain.contains("without TLS"), "{plain}");
    let alone = refused(&[&url[..], &["--goldmane-push-cert", &text]].concat());
    assert!(alone.contains("--goldmane-push-key"), "{alone}");
}
