use std::time::{Duration, Instant};

use super::{DB, OTHER, WEB, drop_events, send_datagrams, send_syns, stage, status, until_reported};
use kit::agent_process::run;
use kit::netdev_backlog::lost_packets;

/// More flows than the kernel's set of them holds.
const FLOWS: u16 = 6000;

/// A response takes a millisecond, or a little longer on a busy machine; this long means that the flood delays it.
const AT_ONCE: Duration = Duration::from_secs(20);

#[test]
fn flood_keeps_totals_exact_and_reports_missing_events() {
    let stage = stage();
    let mut agent = stage.start_on_manifests();
    let lost_before = lost_packets();
    for port in 1..=FLOWS {
        send_datagrams(&stage, OTHER[0], DB[0], port, 1);
        if port % 1000 == 0 {
            let asked = Instant::now();
            assert_eq!(agent.get("/readyz").status, 200);
            assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
        }
    }
    let sent = u64::from(FLOWS);
    let drops = agent.until("all are counted, but for those that the machine's backlog has lost", |_| {
        let drops = status(&stage)["drops"].clone();
        let denied = drops["denied"].as_u64()?;
        assert!(denied <= sent, "{drops}");
        (denied + (lost_packets() - lost_before) >= sent).then_some(drops)
    });
    let total = drops["denied"].as_u64().unwrap();
    let unnamed = drops["unnamed"].as_u64().unwrap();
    assert!(unnamed > 0 && unnamed < total, "{drops}");
    assert!(agent.metric("ringfence_drops_unnamed_packets") > 0);
    let events = drop_events(&stage, "");
    assert!(events.len() <= 1024 && events.iter().all(|event| event["source"]["pod"] == "shop/other"));
    let shown = run(["status", "--run-dir", stage.run_dir().to_str().unwrap()]);
    assert!(shown.stdout.contains("packets are not in any event"), "{}", shown.stdout);
    let elsewhere = run(["drops", "--pod", "shop/web", "--run-dir", stage.run_dir().to_str().unwrap()]);
    assert!(elsewhere.stderr.contains("no matching event since 20"), "{}", elsewhere.stderr);
    assert!(elsewhere.stderr.contains("packets are not in any event"), "{}", elsewhere.stderr);
}

#[test]
fn port_scan_hides_no_denials_of_other_pods() {
    let stage = stage();
    let mut agent = stage.start_on_manifests();
    for port in 1..=FLOWS {
        send_datagrams(&stage, OTHER[0], DB[0], port, 1);
    }
    send_syns(&stage, WEB[0], DB[0], 443, 1);
    let events = until_reported(&stage, &mut agent, "shop/db", "443/tcp", 1);
    assert_eq!(events[0]["source"]["pod"], "shop/web", "{events:?}");
    assert_eq!(events[0]["policies"], serde_json::json!(["shop/db"]));
}
