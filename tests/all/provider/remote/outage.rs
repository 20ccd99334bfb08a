//! Fail-static: the known state of a cluster stays while it is unreachable.

use context::remote::state::{StateDir, StoredMemory};

use super::*;

const THREE: [(&str, &str); 3] = [("web-1", "10.4.1.1"), ("web-2", "10.4.1.2"), ("web-3", "10.4.1.3")];

fn stage_of_three() -> Stage {
    let stage = Stage::new();
    for (name, address) in THREE {
        stage.set(offering(name, "web", &[address]));
    }
    stage
}

fn three() -> FollowedTable {
    sets(&[("web", &["10.4.1.1", "10.4.1.2", "10.4.1.3"])])
}

/// Waits until the known state is on disk.
fn until_saved(stage: &Stage, address: &str) {
    let path = stage.path("state/remote-sets/east.json");
    kit::agent_process::until(&format!("{address} is on disk"), || {
        std::fs::read_to_string(&path).ok().filter(|text| text.contains(&format!("\"{address}\"")))
    });
}

#[test]
fn sets_survive_cluster_outage_and_provider_restart() {
    let stage = stage_of_three();
    let mut provider = stage.start();
    until_served(&mut provider, &three());
    let follower = stage.follower();
    follower.until_has(&three());
    until_saved(&stage, "10.4.1.3");

    stage.cut_off();
    let status = provider.until_status("it is away, and why", |status| problems(status).contains("503"));
    assert!(east(&status)["reachable"] == false && east(&status)["syncedAt"].is_string(), "{status}");
    assert_eq!(served(&provider), Some(three()));
    assert_eq!(rows(&provider)["east"]["reachable"], false);
    assert_eq!(follower.seen().table, three());
    provider.kill();

    // A pod is deleted while no provider runs.
    stage.remove("web-2");
    let mut provider = stage.start();
    until_served(&mut provider, &three());
    let row = &rows(&provider)["east"];
    assert!(row["reachable"] == false && row["syncedAt"].is_string(), "its age shows: {row}");
    provider.until_ready();
    follower.until_has(&three());

    stage.restore();
    let after = sets(&[("web", &["10.4.1.1", "10.4.1.3"])]);
    until_served(&mut provider, &after);
    follower.until_has(&after);
    provider.until("it is reachable", |provider| (rows(provider)["east"]["reachable"] == true).then_some(()));
    provider.until("the watch was restarted", |provider| {
        let restarts = provider.metric("ringfence_context_remote_watch_restarts_total", &[("cluster", "east")]);
        (restarts > 0.0).then_some(())
    });
}

#[test]
fn deletion_during_outage_is_applied_after_it() {
    let stage = stage_of_three();
    let mut provider = stage.start();
    until_served(&mut provider, &three());
    stage.cut_off();
    provider.until_status("it is away", |status| east(status)["reachable"] == false);
    stage.remove("web-1");
    // The events of the meantime were compacted.
    stage.east.compact();
    assert_eq!(served(&provider), Some(three()));
    stage.restore();
    until_served(&mut provider, &sets(&[("web", &["10.4.1.2", "10.4.1.3"])]));
}

#[test]
fn list_removing_over_half_is_requested_twice() {
    let stage = stage_of_three();
    let mut provider = stage.start();
    until_served(&mut provider, &three());
    stage.cut_off();
    provider.until_status("it is away", |status| east(status)["reachable"] == false);
    for name in ["web-1", "web-2"] {
        stage.remove(name);
    }
    stage.east.compact();
    let streams = |stage: &Stage| {
        let of_family = |request: &&kit::fake_api::Request| {
            request.has("labelSelector", LABEL) && request.has("sendInitialEvents", "true")
        };
        stage.east.requests().iter().filter(of_family).count()
    };
    let before = streams(&stage);
    stage.restore();
    provider.until_logged(&["a list would remove 2 of 3 addresses"]);
    until_served(&mut provider, &sets(&[("web", &["10.4.1.3"])]));
    assert!(streams(&stage) >= before + 2);
    let status = provider.until_status("nothing is wrong", |status| problems(status).is_empty());
    assert_eq!(east(&status)["reachable"], true);
}

#[test]
fn watched_deletions_apply_immediately() {
    let stage = stage_of_three();
    let mut provider = stage.start();
    until_served(&mut provider, &three());
    for (name, _) in THREE {
        stage.remove(name);
    }
    until_served(&mut provider, &sets(&[]));
    assert!(!provider.log().contains("a list would remove"));
}

#[test]
fn damaged_state_file_is_refused_and_renamed() {
    let stage = stage_of_three();
    let mut provider = stage.start();
    until_served(&mut provider, &three());
    until_saved(&stage, "10.4.1.3");
    provider.kill();
    let path = stage.path("state/remote-sets/east.json");
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, whole.replace("10.4.1.3", "10.4.1.4")).unwrap();
    stage.cut_off();
    let mut provider = stage.start();
    provider.until_logged(&["ERROR", "the state file of the cluster is damaged"]);
    let status = provider.until_status("it says so", |status| problems(status).contains("damaged"));
    assert_eq!(east(&status)["sets"], 0);
    assert!(stage.path("state/remote-sets/east.json.damaged").exists());
    stage.restore();
    until_served(&mut provider, &three());
}

#[test]
fn unsynced_cluster_has_no_age_and_blocks_nothing() {
    let stage = stage_of_three();
    stage.cut_off();
    let mut provider = stage.start();
    provider.until_ready();
    let row = provider.until("its row is served", |provider| {
        let baseline = provider.try_json("/remote-sets/download").ok()?;
        baseline["clusters"].get(0).cloned()
    });
    assert_eq!(row, json!({"cluster": "east", "reachable": false}));
    stage.restore();
    until_served(&mut provider, &three());
}

#[test]
fn stale_sets_are_dropped_after_configured_age() {
    let stage = stage_of_three();
    let mut provider = stage.start();
    until_served(&mut provider, &three());
    until_saved(&stage, "10.4.1.3");
    provider.kill();
    // Two hours pass.
    let state = StateDir::create(&stage.path("state")).unwrap();
    let StoredMemory::Memory(mut memory) = state.read("east").unwrap() else { panic!("nothing is on disk") };
    memory.synced_at = memory.synced_at.map(|at| at - jiff::SignedDuration::from_hours(2));
    state.write("east", &memory).unwrap();
    stage.cut_off();

    let mut provider = stage.start();
    until_served(&mut provider, &three());
    provider.until("its age is counted", |provider| {
        let stale = provider.metric("ringfence_context_remote_stale_seconds", &[("cluster", "east")]);
        (stale > 7_000.0).then_some(())
    });
    provider.kill();

    let stage = stage.with(&["--remote-max-stale", "90m"]);
    let mut provider = stage.start();
    until_served(&mut provider, &sets(&[]));
    provider.until_status("it says so", |status| east(status)["dropped"] == true);
    stage.restore();
    until_served(&mut provider, &three());
    provider.until_status("they are back", |status| east(status)["dropped"] == false);
}

#[test]
fn remote_metrics_are_labelled_by_cluster() {
    let stage = stage_of_three();
    let mut provider = stage.start();
    until_served(&mut provider, &three());
    let of_east = [("cluster", "east")];
    for (name, value) in [("sets", 1.0), ("addresses", 3.0), ("reachable", 1.0), ("stale_seconds", 0.0)] {
        let name = format!("ringfence_context_remote_{name}");
        provider.until(&name, |provider| (provider.metric(&name, &of_east) == value).then_some(()));
    }
    assert!(provider.metric("ringfence_context_remote_last_sync_timestamp_seconds", &of_east) > 1e9);
    stage.cut_off();
    provider.until("the age grows", |provider| {
        (provider.metric("ringfence_context_remote_stale_seconds", &of_east) > 0.0).then_some(())
    });
    assert_eq!(provider.metric("ringfence_context_remote_reachable", &of_east), 0.0);
    assert_eq!(provider.get("/readyz").status, 200, "this cluster is there");
}
