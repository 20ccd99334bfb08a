//! Reports of the agent about pods of other clusters.

use kit::agent_process::{ProgramExit, ended, ringfence};

use super::*;

#[test]
fn explain_names_the_set_and_the_policy() {
    let clusters = TwoClusters::new();
    let mut cast = Cast::begin(&clusters, &[EastPod::web("web-0", 0)]);
    cast.until_in_kernel(&[0]);
    for (source, code, says) in [
        ("10.2.0.10", 0, "remote east/shop/web"),
        ("east/shop/web", 0, "remote east/shop/web"),
        ("10.2.0.11", 1, "denied"),
    ] {
        let mut explain = ringfence();
        explain.args(["explain", source, "shop/db", "80", "--run-dir"]).arg(clusters.run_dir());
        let ProgramExit { code: ended_with, stdout, stderr } = ended(&mut explain);
        assert_eq!((ended_with, stderr.as_str()), (Some(code), ""), "{source}: {stdout}");
        assert!(stdout.contains(says), "{source}: {stdout}");
    }
}

#[test]
fn status_and_metrics_report_staleness_of_sets() {
    let clusters = TwoClusters::new();
    let mut cast = Cast::begin(&clusters, &[EastPod::web("web-0", 0), EastPod::web("web-1", 1)]);
    cast.until_in_kernel(&[0, 1]);
    cast.until_standing("it is fresh", |cluster| cluster["fresh"] == true);
    let standing = cast.standing();
    assert_eq!((&standing["cluster"], &standing["secondsStale"]), (&json!("east"), &json!(0)));
    assert_eq!((&standing["sets"], &standing["addresses"]), (&json!(1), &json!(4)));
    let agent = cast.agent.as_ref().unwrap();
    let text = agent.get("/metrics").body;
    for line in [
        "ringfence_remote_provider_connected 1",
        "ringfence_remote_state_kept 1",
        "ringfence_remote_sets{cluster=\"east\"} 1",
        "ringfence_remote_addresses{cluster=\"east\"} 4",
        "ringfence_remote_stale_seconds{cluster=\"east\"} 0.0",
        "ringfence_remote_dropped{cluster=\"east\"} 0",
        "ringfence_objects{kind=\"remoteset\"} 1",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}:\n{text}");
    }
    cast.provider.take().unwrap().kill();
    cast.until_standing("it is stale", |cluster| cluster["fresh"] == false);
    let status = clusters.agent_status();
    assert!(status["remote"]["problem"].as_str().unwrap().contains("9471"), "{status}");
    assert_eq!(status["ready"], true, "the node's own policies are enforced");
    let agent = cast.agent.as_ref().unwrap();
    assert_eq!(agent.metric("ringfence_remote_provider_connected"), 0);
    let mut shown = ringfence();
    shown.args(["status", "--run-dir"]).arg(clusters.run_dir());
    let ProgramExit { code, stdout, .. } = ended(&mut shown);
    assert_eq!(code, Some(0), "{stdout}");
    for says in ["remote pods  1 cluster, 1 stale", "no context provider for", "east: 1 set, 4 addresses, stale for"] {
        assert!(stdout.contains(says), "{says}:\n{stdout}");
    }
}

#[test]
fn agent_without_provider_has_no_remote_state() {
    let clusters = TwoClusters::new();
    let mut agent = clusters.agent_without_provider(&[]);
    agent.until_ready();
    assert_eq!(clusters.admitted(), NOBODY);
    assert_eq!(clusters.agent_status()["remote"], json!(null));
    assert!(!clusters.path("agent").exists(), "nothing is kept");
    let text = agent.get("/metrics").body;
    assert!(!text.contains("cluster=\""), "{text}");
}
