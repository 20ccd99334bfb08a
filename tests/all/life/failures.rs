use std::fmt::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use kit::agent_process::{AgentProcess, ProgramExit, ended, program, ringfence, without_variables};
use kit::fake_api::FakeApi;
use kit::kernel_table::load_text;
use nix::sys::signal::Signal;

use super::{objects, stage, start};
use crate::stage::{NODE, Stage, ingress, pod, set_all, state_of};

/// As many objects as the API server may report at once.
const STORM: usize = 10_000;

/// Minimum interval between two commits of the agent, however fast the kernel is.
const COMMITS_APART: Duration = Duration::from_millis(1);

/// Number of elements in a foreign commit whose notifications are many times the agent's receive buffer.
const FOREIGN_ELEMENTS: u32 = 200_000;

fn on_api(stage: &Stage) -> FakeApi {
    let api = stage.api();
    set_all(&api, &objects());
    api
}

/// Without table ownership, so that foreign commits can change the table.
fn start_unprotected<'a>(stage: &'a Stage, api: &FakeApi) -> AgentProcess<'a> {
    let mut command = stage.agent_on_api(api);
    command.args(["--table-owner", "off"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    agent
}

/// The table is kept, and the probe port reports readiness.
fn assert_keeps(stage: &Stage, agent: &mut AgentProcess) {
    stage.nft("flush chain inet ringfence forward");
    stage.until_enforced(agent, &state_of(&objects()));
    agent.until("it is ready again", |agent| (agent.get("/readyz").status == 200).then_some(()));
}

#[test]
fn unreachable_api_server_keeps_readiness_and_rules() {
    let stage = stage();
    let api = on_api(&stage);
    let mut agent = start_unprotected(&stage, &api);
    drop(api);
    let said = agent.until("it says that the server is away for a second or longer", |agent| {
        let answer = agent.get("/readyz");
        assert_eq!(answer.status, 200, "{answer:?}");
        let words = [" s, with the last known state enforced meanwhile: ", "cannot connect to the API server"];
        let is_said = words.iter().all(|word| answer.body.contains(word)) && !answer.body.contains("for 0 s, ");
        is_said.then_some(answer.body)
    });
    assert!(said.starts_with("ok\n"), "{said}");
    assert_keeps(&stage, &mut agent);
}

#[test]
fn silent_api_server_keeps_readiness_and_rules() {
    let stage = stage();
    let api = on_api(&stage);
    let mut agent = start_unprotected(&stage, &api);
    let asked = api.requests().len();
    api.faults(|faults| faults.silent = true);
    api.cut_connections();
    agent.until("it asks again", |_| (api.requests().len() >= asked + 3).then_some(()));
    assert_keeps(&stage, &mut agent);
    // The API server answers again, and the changes of the meantime come into force.
    let more = [pod("more", NODE, "app=more", &["10.1.0.9"]), ingress("more", "app=more", "app=client")];
    set_all(&api, &more);
    api.faults(|faults| faults.silent = false);
    api.cut_connections();
    stage.until_enforced(&mut agent, &state_of(&[&objects()[..], &more].concat()));
}

#[test]
fn event_storm_is_coalesced_and_ends_consistent() {
    let stage = stage();
    let api = on_api(&stage);
    let mut agent = start_unprotected(&stage, &api);
    let before = agent.metric("ringfence_commits_total");
    let begin = Instant::now();
    let storm: Vec<_> = (0..STORM)
        .map(|number| {
            let labels = ["app=client", "app=stranger"][number % 7 % 2];
            let name = number % 500;
            pod(&format!("peer-{name}"), "node-b", labels, &[&format!("10.2.{}.{}", name / 250, name % 250)])
        })
        .collect();
    set_all(&api, &storm);
    let last = storm.into_iter().skip(STORM - 500);
    let state = state_of(&objects().into_iter().chain(last).collect::<Vec<_>>());
    stage.until_enforced(&mut agent, &state);
    let taken = begin.elapsed();
    let commits = agent.metric("ringfence_commits_total") - before;
    println!("{STORM} events in {taken:?} were {commits} commits");
    let most = u64::try_from(taken.as_millis() / COMMITS_APART.as_millis()).expect("a few seconds") + 2;
    assert!(commits <= most && commits < STORM as u64 / 10, "{commits} commits in {taken:?}");
    agent.until("it is ready", |agent| (agent.get("/readyz").status == 200).then_some(()));
}

#[test]
fn lost_netlink_notifications_are_repaired_by_resync() {
    let stage = stage();
    let api = on_api(&stage);
    let mut agent = start_unprotected(&stage, &api);
    let mut text = String::from("table inet other {\nset many {\ntype ipv4_addr\nelements = {");
    for number in 0..FOREIGN_ELEMENTS {
        write!(text, "10.{}.{}.{},", number >> 16, number >> 8 & 0xff, number & 0xff).expect("a string");
    }
    // The table is damaged in the middle of the lost notifications.
    text.push_str("}\n}\n}\nflush chain inet ringfence forward\n");
    // The agent is stopped, so it does not read them.
    agent.signal(Signal::SIGSTOP);
    stage.lab.node_exec(NODE, || load_text(&text));
    agent.signal(Signal::SIGCONT);
    agent.until_logged(&["netlink notifications lost (ENOBUFS); resyncing from the kernel"]);
    stage.until_enforced(&mut agent, &state_of(&objects()));
    agent.until("the repair is counted", |a| (a.metric("ringfence_repairs_total") == 1).then_some(()));
    // Later notifications are received again.
    stage.nft("flush chain inet ringfence forward");
    stage.until_enforced(&mut agent, &state_of(&objects()));
    agent.until("the repair is counted", |a| (a.metric("ringfence_repairs_total") == 2).then_some(()));
    agent.until_logged(&["repaired the tables, which another program had changed", "program=\"nft (process "]);
}

/// The process exits with a one-line error message that contains these words.
#[track_caller]
fn assert_refused(refused: &ProgramExit, words: &[&str]) {
    let said = &refused.stderr;
    assert_eq!(refused.code, Some(2), "{said}");
    let sentence = said.lines().find(|line| line.starts_with("error: ")).unwrap_or_else(|| panic!("no error: {said}"));
    assert!(words.iter().all(|word| sentence.contains(word)), "{words:?} are not in: {sentence}");
}

#[test]
fn second_agent_of_same_table_is_refused() {
    for owner in ["auto", "off"] {
        let stage = stage();
        let api = on_api(&stage);
        let mut command = stage.agent_on_api(&api);
        command.args(["--table-owner", owner]);
        let mut first = stage.start(command);
        first.until_ready();
        let generation = stage.kernel_generation();
        for second_owner in ["auto", "off"] {
            let mut second = ringfence();
            second.args(["agent", "--node-name", NODE, "--listen", "127.0.0.1:9471", "--table-owner", second_owner]);
            second.arg("--run-dir").arg(stage.manifests().join("run")).arg("--kubeconfig").arg(api.kubeconfig());
            let refused = stage.lab.node_exec(NODE, || ended(&mut second));
            let words = ["another agent uses table inet ringfence on this node", "--table", "--run-dir"];
            assert_refused(&refused, &words);
        }
        assert_eq!(stage.kernel_generation(), generation);
        let more = ingress("more", "app=server", "app=stranger");
        set_all(&api, std::slice::from_ref(&more));
        stage.until_enforced(&mut first, &state_of(&[&objects()[..], &[more]].concat()));
    }
}

/// Runs the command in a mount namespace with a full file system at the folder. `options` are the file system's; its
/// free space is filled.
fn where_the_disk_is_full(folder: &Path, options: &str, command: &Command) -> Command {
    let script = format!(
        "mount -t tmpfs -o mode=755,{options} tmpfs \"$1\" && {{ cat /dev/zero > \"$1/full\" 2> /dev/null || true; }} \
         && \
         {{ while true > \"$1/full-$((n = n + 1))\" && [ $n -lt 64 ]; do :; done; }} 2> /dev/null; shift; exec \"$@\""
    );
    let mut full = Command::new("unshare");
    full.args(["--mount", "sh", "-c", &script, "sh"]).arg(folder).arg(command.get_program()).args(command.get_args());
    without_variables(&mut full);
    full
}

#[test]
fn agent_enforces_with_a_full_run_directory() {
    let stage = stage();
    stage.write_objects(super::FILE, &objects());
    std::fs::create_dir(stage.run_dir()).expect("a folder of ours");
    let mut agent = stage.start(where_the_disk_is_full(&stage.run_dir(), "size=8k", &stage.agent_on_manifests()));
    agent.until_ready();
    assert!(stage.enforces(&state_of(&objects())));
}

#[test]
fn agent_without_space_for_lock_file_is_refused() {
    let stage = stage();
    stage.write_objects(super::FILE, &objects());
    start(&stage, "off").until_ready();
    let generation = stage.kernel_generation();
    std::fs::create_dir_all(stage.run_dir()).expect("a folder of ours");
    let mut command = where_the_disk_is_full(&stage.run_dir(), "size=8k,nr_inodes=8", &stage.agent_on_manifests());
    let refused = stage.lab.node_exec(NODE, || ended(&mut command));
    assert_refused(&refused, &["agent.lock", "No space left on device", "--run-dir"]);
    assert_eq!(stage.kernel_generation(), generation);
    assert!(stage.enforces(&state_of(&objects())));
}

#[test]
fn cni_add_on_full_disk_fails_without_leftovers() {
    for options in ["size=8k", "size=8k,nr_inodes=8"] {
        let stage = stage();
        std::fs::create_dir(stage.run_dir()).expect("a folder of ours");
        let plugin = program().with_file_name("ringfence-cni");
        let config = format!(
            r#"{{"cniVersion":"1.0.0","name":"pods","type":"ringfence-cni","timeoutSeconds":1,"agentSocket":"{}","stateDir":"{}",
            "prevResult":{{"cniVersion":"1.0.0","ips":[{{"address":"10.1.0.7/32"}}]}}}}"#,
            stage.run_dir().join("cni.sock").display(),
            stage.run_dir().join("cni").display()
        );
        let mut shell = Command::new("sh");
        shell.args([
            "-c",
            "printf %s \"$1\" | \"$2\"; find \"$3\" -name 'full*' -o -type f -printf 'left: %p\\n' >&2",
            "sh",
        ]);
        shell.arg(config).arg(plugin).arg(stage.run_dir());
        let mut command = where_the_disk_is_full(&stage.run_dir(), options, &shell);
        command.envs([
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/proc/self/ns/net"),
            ("CNI_IFNAME", "eth0"),
            ("CNI_PATH", "/nowhere"),
            ("CNI_ARGS", "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=api-0"),
        ]);
        let ProgramExit { stdout, stderr, .. } = stage.lab.node_exec(NODE, || ended(&mut command));
        assert!(!stderr.contains("left: "), "{options}: {stderr}");
        let error: serde_json::Value = serde_json::from_str(&stdout).unwrap_or_else(|e| panic!("{e}: {stdout}"));
        let said = format!("{} {}", error["msg"], error["details"]);
        assert!(error["code"].as_u64().is_some() && said.contains("No space left on device"), "{options}: {stdout}");
    }
}

#[test]
fn port_taken_during_restart_stops_no_agent() {
    let stage = stage();
    stage.write_objects(super::FILE, &objects());
    start(&stage, "auto").until_ready();
    let _other = stage.lab.node_exec(NODE, || TcpListener::bind("127.0.0.1:9470")).expect("a free port");
    let mut agent = stage.start(stage.agent_on_manifests());
    agent.until_logged(&["cannot listen on 127.0.0.1:9470", "--listen"]);
    let changed = [&objects()[..], &[ingress("more", "app=client", "app=stranger")]].concat();
    stage.write_objects(super::FILE, &changed);
    stage.until_enforced(&mut agent, &state_of(&changed));
}
