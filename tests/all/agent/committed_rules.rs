use std::path::Path;

use kit::agent_process::{ProgramExit, run};
use kit::fake_api::Verb;
use policy::Kind;

use crate::stage::{NODE, Stage, ingress, namespace, pod, set_all};

fn printed(run_dir: &Path, arguments: &[&str]) -> ProgramExit {
    run([&["rules", "--run-dir", run_dir.to_str().expect("UTF-8")], arguments].concat())
}

#[test]
fn rules_are_those_of_latest_commit() {
    let stage = Stage::new();
    stage.write_objects("db.json", &[pod("db", NODE, "app=db", &["10.1.0.2"])]);
    let mut agent = stage.start_on_manifests();
    let before = printed(&stage.run_dir(), &[]);
    assert_eq!((before.code, before.stderr.as_str()), (Some(0), ""));
    let head = "# rules of node node-a, as the agent committed them\n# the kernel has the same rules\ntable inet ringfence {\n";
    assert!(before.stdout.starts_with(head) && !before.stdout.contains("ingress/shop/db"), "{}", before.stdout);

    stage.write_objects("policy.json", &[ingress("db", "app=db", "app=web")]);
    stage.until_enforced(&mut agent, &stage.state_of_manifests());
    let after = printed(&stage.run_dir(), &[]);
    assert!(after.stdout.starts_with(head) && after.stdout.contains("\tchain ingress/shop/db {\n"), "{}", after.stdout);
    let bridge = printed(&stage.run_dir(), &["--family", "bridge"]);
    assert_eq!((bridge.code, bridge.stdout.as_str()), (Some(0), &head[..head.find("table").expect("a table")]));
}

#[test]
fn rules_show_difference_when_kernel_has_others() {
    let stage = Stage::new();
    stage.write_objects("db.json", &[pod("db", NODE, "app=db", &["10.1.0.2"]), ingress("db", "app=db", "app=web")]);
    let mut command = stage.agent_on_manifests();
    command.args(["--table-owner", "off"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    // The agent does not touch a table without its comment.
    stage.nft("delete table inet ringfence; add table inet ringfence");
    agent.until("the agent reports the foreign table", |agent| (agent.get("/readyz").status == 503).then_some(()));
    let ProgramExit { code, stdout, stderr } = printed(&stage.run_dir(), &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("warning: the kernel has other rules than these"), "{stderr}");
    let (head, rules) = stdout.split_once("\ntable inet ringfence {\n").expect("a table");
    assert!(head.lines().all(|line| line.starts_with("# ")), "{head}");
    for words in [
        "the kernel has OTHER rules",
        "\n#   delete table inet ringfence\n",
        "\n# note: the current rules are not in force yet",
    ] {
        assert!(head.contains(words), "{words} is not in {head}");
    }
    assert!(rules.contains("\tchain ingress/shop/db {\n"), "{rules}");
}

#[test]
fn rules_are_refused_before_first_commit() {
    let stage = Stage::new();
    let api = stage.api();
    set_all(&api, &[namespace("shop", "")]);
    api.faults(|f| f.refuse(Kind::Pod, &[Verb::List, Verb::Watch], 403));
    let mut agent = stage.start(stage.agent_on_api(&api));
    agent.until("only pods are missing", |agent| {
        let answer = agent.try_get("/readyz").ok()?;
        answer.body.starts_with("initial sync not complete; waiting for the list of: Pod\n").then_some(())
    });
    let ProgramExit { code, stdout, stderr } = printed(&stage.run_dir(), &[]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(
        stderr.contains("has not committed any rules yet (initial sync not complete; waiting for the list of: Pod)"),
        "{stderr}"
    );
}

#[test]
fn rules_name_alternative_when_no_agent_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    let ProgramExit { code, stdout, stderr } = printed(folder.path(), &[]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    assert!(stderr.contains("cannot connect to the agent at") && stderr.contains("'nft list ruleset'"), "{stderr}");
}
