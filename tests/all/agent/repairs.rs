use kit::kernel_table::try_nft;

use crate::stage::{NODE, Stage, ingress, pod};

/// Foreign changes to the table, as nft commands.
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

/// The longest interval, so that no resync repairs anything.
const NO_TICK: [&str; 2] = ["--resync-secs", "86400"];

#[test]
fn foreign_change_is_repaired_and_names_its_program() {
    let stage = Stage::new();
    stage.write_objects("all.json", &[pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]);
    let mut command = stage.agent_on_manifests();
    command.args(NO_TICK).args(["--table-owner", "off"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    let state = stage.state_of_manifests();
    for (repairs, (what, command)) in TAMPERING.into_iter().enumerate() {
        let generation = stage.kernel_generation();
        stage.nft(command);
        agent.until(what, |_| stage.enforces(&state).then_some(()));
        agent.until(&format!("a repair is counted when {what}"), |agent| {
            (agent.metric("ringfence_repairs_total") == repairs as u64 + 1).then_some(())
        });
        assert_eq!(stage.kernel_generation(), generation + 2, "{what} is one transaction, and so is its repair");
    }
    assert_eq!(agent.metric("ringfence_commits_total"), TAMPERING.len() as u64 + 1);
    assert!(agent.metric("ringfence_drift_events_total") >= TAMPERING.len() as u64);
    let figures = agent.get("/metrics").body;
    for (cause, times) in [("changed", TAMPERING.len() - 2), ("removed", 2), ("at-start", 0)] {
        let line = format!("ringfence_repairs_total{{cause=\"{cause}\"}} {times}\n");
        assert!(figures.contains(&line), "{line}:\n{figures}");
    }
    let log = agent.log();
    let repairs: Vec<&str> =
        log.lines().filter(|line| line.contains("repaired the tables, which another program had changed")).collect();
    assert_eq!(repairs.len(), TAMPERING.len(), "{log}");
    assert!(repairs.iter().all(|line| line.contains("program=\"nft (process ")), "{log}");
}

#[test]
fn protected_table_rejects_changes_of_others() {
    let stage = Stage::new();
    stage.write_objects("all.json", &[pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]);
    let agent = stage.start_on_manifests();
    let state = stage.state_of_manifests();
    for (what, command) in TAMPERING {
        let words: Vec<&str> = command.split_whitespace().collect();
        let outcome = stage.lab.node_exec(NODE, || try_nft(&words, ""));
        match command {
            "flush ruleset" => assert!(outcome.is_ok(), "{what}: {outcome:?}"),
            _ => assert!(outcome.is_err_and(|e| e.contains("Operation not permitted")), "{what}"),
        }
        assert!(stage.enforces(&state), "{what}");
    }
    assert_eq!(agent.metric("ringfence_repairs_total"), 0);
    let (_, log) = agent.stop();
    assert!(log.contains("table owner protection: on"), "{log}");
    // The table has no owner now; the next agent repairs it, and owns it again.
    stage.nft("flush chain inet ringfence forward");
    let agent = stage.start_on_manifests();
    assert!(stage.enforces(&state));
    assert!(agent.log().contains("protected again"), "{}", agent.log());
    stage.nft("flush ruleset");
    assert!(stage.enforces(&state));
}

#[test]
fn table_is_adopted_across_changed_owner_flags() {
    let stage = Stage::new();
    stage.write_objects("all.json", &[pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]);
    let state = stage.state_of_manifests();
    for owner in ["off", "auto", "off", "off", "auto", "auto"] {
        let mut command = stage.agent_on_manifests();
        command.args(["--table-owner", owner]);
        let mut agent = stage.start(command);
        agent.until_ready();
        assert!(stage.enforces(&state), "{owner}");
        let refused =
            stage.lab.node_exec(NODE, || try_nft(&["add", "chain", "inet", "ringfence", "mine"], "")).is_err();
        assert_eq!(refused, owner == "auto");
        agent.stop();
    }
}

#[test]
fn commits_to_foreign_tables_cause_no_comparison() {
    let stage = Stage::new();
    stage.write_objects("all.json", &[pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]);
    let mut command = stage.agent_on_manifests();
    command.args(["--resync-secs", "1"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    stage.nft("add table inet somebody-else");
    let foreign = stage.kernel_generation();
    // The agent has read the foreign commit once the next resync has passed; a later change is an ordinary one.
    let status = || kit::agent_process::ask_socket(&stage.run_dir(), "/v1/status").body;
    agent.until("the resync", |_| status().contains(&format!("\"kernelGeneration\":{foreign},")).then_some(()));
    assert_eq!(agent.metric("ringfence_commits_total"), 1);
    assert_eq!(agent.metric("ringfence_resyncs_total"), 1, "the one at the start");
    assert_eq!(stage.kernel_generation(), foreign);
    assert!(stage.tables().contains("somebody-else"));
}
