use std::collections::BTreeMap;

use serde_json::Value;

use crate::stage::{NODE, Stage, ingress, pod};

fn objects() -> [Value; 4] {
    [
        pod("db", NODE, "app=db", &["10.1.0.2"]),
        pod("web", NODE, "app=web", &["10.1.0.1"]),
        ingress("db", "app=db", "app=web"),
        ingress("web", "app=web", "app=front"),
    ]
}

#[test]
fn restart_after_sigterm_adopts_rules_without_commit() {
    let stage = Stage::new();
    stage.write_objects("all.json", &objects());
    let start = || {
        let mut command = stage.agent_on_manifests();
        command.args(["--table-owner", "off"]);
        let mut agent = stage.start(command);
        agent.until_ready();
        agent
    };
    let agent = start();
    let generation = stage.kernel_generation();
    let (status, log) = agent.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(log.contains("SIGTERM: stopping; the rules stay in place"), "{log}");
    assert!(stage.enforces(&stage.state_of_manifests()));

    let agent = start();
    assert_eq!(agent.metric("ringfence_commits_total"), 0);
    assert_eq!(stage.kernel_generation(), generation);
    assert!(stage.enforces(&stage.state_of_manifests()));
}

#[test]
fn restart_claims_owned_table_without_changing_rules() {
    let stage = Stage::new();
    stage.write_objects("all.json", &objects());
    stage.start_on_manifests().stop();
    let before = stage.observed().expect("a table");
    let agent = stage.start_on_manifests();
    assert_eq!(agent.metric("ringfence_commits_total"), 0);
    let after = stage.observed().expect("a table");
    assert_eq!((&after.chains, &after.sets), (&before.chains, &before.sets));
    assert_eq!(after.generation, before.generation + 1, "the claim");
}

#[test]
fn restart_with_changed_manifest_commits_only_the_difference() {
    let stage = Stage::new();
    stage.write_objects("all.json", &objects());
    stage.start_on_manifests().stop();
    // A rule that was not replaced keeps its kernel handle.
    let handles = || -> BTreeMap<String, Vec<u64>> {
        let chains = stage.observed().expect("a table").chains;
        chains.into_iter().map(|(name, c)| (name, c.rules.iter().map(|r| r.handle).collect())).collect()
    };
    let (before, generation) = (handles(), stage.policy_generation());

    let [db, web, to_db, _] = objects();
    stage.write_objects("all.json", &[db, web, to_db, ingress("web", "app=web", "app=other")]);
    let agent = stage.start_on_manifests();
    assert!(stage.enforces(&stage.state_of_manifests()));
    assert_eq!(agent.metric("ringfence_commits_total"), 1);
    let figures = agent.get("/metrics").body;
    for (cause, times) in [("changed", 0), ("removed", 0), ("at-start", 1)] {
        assert!(figures.contains(&format!("ringfence_repairs_total{{cause=\"{cause}\"}} {times}\n")), "{figures}");
    }
    let after = handles();
    let moved: Vec<&str> =
        before.iter().filter(|(name, rules)| after.get(*name) != Some(rules)).map(|(name, _)| name.as_str()).collect();
    assert_eq!(moved, ["approve", "approve-egress", "forward", "ingress/shop/web"]);
    assert_eq!(stage.generations_since(generation), 1, "open flows are judged anew");
}

#[test]
fn restart_repairs_rules_changed_while_agent_was_down() {
    let stage = Stage::new();
    stage.write_objects("all.json", &objects());
    stage.start_on_manifests().stop();
    stage.nft("insert rule inet ringfence forward accept");
    drop(stage.start_on_manifests());
    assert!(stage.enforces(&stage.state_of_manifests()));
}
