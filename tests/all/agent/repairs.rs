use crate::stage::{NODE, Stage, ingress, pod};

/// What somebody else may do, as a command of nft.
const TAMPERING: [(&str, &str); 8] = [
    ("an element is deleted", "delete element inet ringfence ingress4 { 10.1.0.2 }"),
    ("a rule is added", "insert rule inet ringfence forward accept"),
    ("a chain is flushed", "flush chain inet ringfence forward"),
    ("a chain is added", "add chain inet ringfence mine"),
    ("a set is flushed", "flush set inet ringfence self4"),
    ("the table goes to sleep", "add table inet ringfence { flags dormant; }"),
    ("the table is deleted", "delete table inet ringfence"),
    ("everything is flushed", "flush ruleset"),
];

#[test]
fn every_resync_repairs_what_somebody_else_has_changed() {
    let stage = Stage::new();
    stage.write_objects("all.json", &[pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]);
    let mut command = stage.agent_on_manifests();
    command.args(["--resync-secs", "1"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    let state = stage.state_of_manifests();
    for (repairs, (what, command)) in TAMPERING.into_iter().enumerate() {
        stage.nft(command);
        assert!(!stage.enforces(&state), "{what}");
        agent.until(what, |_| stage.enforces(&state).then_some(()));
        agent.until(&format!("a repair is counted when {what}"), |agent| {
            (agent.metric("ringfence_repairs_total") == repairs as u64 + 1).then_some(())
        });
    }
    assert_eq!(agent.metric("ringfence_commits_total"), TAMPERING.len() as u64 + 1);
    assert_eq!(agent.log().matches("the table was not as we left it; repaired").count(), TAMPERING.len());
}

#[test]
fn what_others_do_elsewhere_is_no_reason_for_a_commit() {
    let stage = Stage::new();
    stage.write_objects("all.json", &[pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]);
    let mut command = stage.agent_on_manifests();
    command.args(["--resync-secs", "1"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    stage.nft("add table inet somebody-else");
    let foreign = stage.kernel_generation();
    // It has been looked at once the next resync has passed; a change after it is an ordinary one.
    let status = || tests::agent_process::ask_socket(&stage.run_dir(), "/v1/status").body;
    agent.until("the resync", |_| status().contains(&format!("\"kernelGeneration\":{foreign},")).then_some(()));
    assert_eq!(agent.metric("ringfence_commits_total"), 1);
    assert_eq!(stage.kernel_generation(), foreign);
    assert!(stage.tables().contains("somebody-else"));
}
