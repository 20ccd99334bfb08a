use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use kit::agent_process::{ProgramExit, ended, program, ringfence, without_variables};

use crate::stage::{NODE, Stage};

/// Runs the command to its end in the node's namespace.
fn end_of(stage: &Stage, mut command: Command) -> ProgramExit {
    stage.lab.node_exec(NODE, || ended(&mut command))
}

/// The process failed with a one-line error message that contains these words.
#[track_caller]
fn assert_one_sentence(ended: &ProgramExit, words: &[&str]) {
    let ProgramExit { code, stdout, stderr } = ended;
    assert_eq!((*code, stdout.as_str()), (Some(2), ""), "{stderr}");
    assert!(stderr.starts_with("error: ") && stderr.ends_with('\n') && stderr.lines().count() == 1, "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "'{word}' is not in: {stderr}");
    }
}

#[test]
fn second_agent_on_same_run_directory_is_refused() {
    let stage = Stage::new();
    let agent = stage.start_on_manifests();
    let mut second = stage.agent_on_manifests();
    second.args(["--listen", "127.0.0.1:9471", "--table", "other"]);
    assert_one_sentence(&end_of(&stage, second), &["another agent holds", "agent.lock", "--run-dir"]);
    assert_eq!(agent.get("/readyz").status, 200);
}

/// Any user can bind abstract socket names.
#[test]
fn unprivileged_holder_of_abstract_socket_stops_no_agent() {
    const HOLD: &str = r#"socket(S, AF_UNIX, SOCK_STREAM, 0) or die; $| = 1;
        bind(S, pack_sockaddr_un("\0ringfence/table/ringfence")) or die; listen(S, 1); print "held\n"; sleep 60"#;
    let stage = Stage::new();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--clear-groups", "perl", "-MSocket", "-e", HOLD]).stdout(Stdio::piped());
    let mut holder = stage.lab.node_exec(NODE, || command.spawn()).unwrap();
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    let agent = stage.start_on_manifests();
    assert!(agent.log().contains("another program holds"), "{}", agent.log());
    holder.kill().and_then(|()| holder.wait()).unwrap();
}

#[test]
fn foreign_table_of_same_name_stays_untouched() {
    let stage = Stage::new();
    stage.nft("add table inet ringfence");
    stage.nft("add chain inet ringfence mine");
    let (before, generation) = (stage.nft("list ruleset"), stage.kernel_generation());
    let refused = end_of(&stage, stage.agent_on_manifests());
    let words = ["table inet ringfence belongs to another program", "--table", "nft delete table inet ringfence"];
    assert_one_sentence(&refused, &words);
    assert_eq!((stage.nft("list ruleset"), stage.kernel_generation()), (before, generation));
}

#[test]
fn without_privileges_it_says_what_it_needs() {
    let stage = Stage::new();
    let mut command = Command::new("setpriv");
    without_variables(&mut command);
    command.args(["--bounding-set", "-all", "--inh-caps", "-all"]).arg(program());
    command.args(stage.agent_on_manifests().get_args());
    assert_one_sentence(&end_of(&stage, command), &["needs CAP_NET_ADMIN", "run as root"]);
}

#[test]
fn invalid_run_directory_is_named_in_error() {
    let stage = Stage::new();
    std::fs::write(stage.run_dir(), "a file").unwrap();
    let refused = end_of(&stage, stage.agent_on_manifests());
    assert_one_sentence(&refused, &[stage.run_dir().to_str().unwrap(), "--run-dir"]);
}

#[test]
fn a_missing_folder_is_named() {
    let stage = Stage::new();
    std::fs::remove_dir(stage.manifests()).unwrap();
    let refused = end_of(&stage, stage.agent_on_manifests());
    assert_one_sentence(&refused, &[stage.manifests().to_str().unwrap(), "No such file or directory"]);
    assert_eq!(stage.tables(), "");
}

#[test]
fn a_kubeconfig_that_leads_nowhere_is_named() {
    let stage = Stage::new();
    let path = stage.manifests().join("kubeconfig");
    let refused = |text: Option<&str>| {
        if let Some(text) = text {
            std::fs::write(&path, text).unwrap();
        }
        let mut command = stage.agent();
        command.arg("--kubeconfig").arg(&path);
        end_of(&stage, command)
    };
    let name = path.to_str().unwrap();
    assert_one_sentence(&refused(None), &[name, "No such file or directory"]);
    assert_one_sentence(&refused(Some("{a: ]")), &[name]);
    assert_one_sentence(&refused(Some("apiVersion: v1\nkind: Config\ncurrent-context: gone\n")), &[name, "gone"]);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

#[test]
fn missing_source_outside_cluster_error_names_kubeconfig_flag() {
    let stage = Stage::new();
    assert_one_sentence(&end_of(&stage, stage.agent()), &["no in-cluster configuration", "--kubeconfig"]);
}

#[test]
fn agent_enforces_while_its_port_is_taken() {
    let stage = Stage::new();
    let other = stage.lab.node_exec(NODE, || TcpListener::bind("127.0.0.1:9470")).unwrap();
    let mut agent = stage.start(stage.agent_on_manifests());
    let line = agent.until_logged(&["cannot listen on 127.0.0.1:9470", "Address already in use"]);
    assert!(line.contains("--listen"), "{line}");
    // The kubelet probes over the socket, whose address only the agent can bind.
    let probe = |question| run_in(&stage, &["probe", question]);
    agent.until("it enforces", |_| (probe("ready").code == Some(0)).then_some(()));
    assert_eq!(probe("live").code, Some(0));
    assert!(stage.tables().contains("table inet ringfence"));
    assert!(run_in(&stage, &["status"]).stdout.contains("cannot listen on 127.0.0.1:9470"));
    assert!(run_in(&stage, &["doctor", "--no-self-test"]).stdout.contains("the agent does not serve metrics"));
    drop(other);
    agent.until_logged(&["serving health checks and metrics"]);
    agent.until_ready();
    agent.until("the problem is over", |_| {
        (!run_in(&stage, &["status"]).stdout.contains("cannot listen")).then_some(())
    });
}

/// A verb that queries the agent.
fn run_in(stage: &Stage, verb: &[&str]) -> ProgramExit {
    let mut command = ringfence();
    command.args(verb).arg("--run-dir").arg(stage.run_dir());
    end_of(stage, command)
}

#[test]
fn probes_fail_without_an_agent() {
    let stage = Stage::new();
    for question in ["live", "ready"] {
        let ProgramExit { code, stderr, .. } = run_in(&stage, &["probe", question]);
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains("cannot connect to the agent"), "{stderr}");
    }
}

/// The lock files of the first release could be opened by any user.
#[test]
fn lock_held_by_unprivileged_user_stops_no_agent() {
    let stage = Stage::new();
    std::fs::create_dir(stage.run_dir()).unwrap();
    let lock = stage.run_dir().join("agent.lock");
    std::fs::write(&lock, "").unwrap();
    for folder in stage.run_dir().ancestors().take(2) {
        std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let hold = |holds: &str| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups", "flock", "--nonblock"]).arg(&lock);
        command.args(["sh", "-c", holds]).stdout(Stdio::piped()).stderr(Stdio::null());
        command.spawn().unwrap()
    };
    let mut holder = hold("echo held; exec sleep 60");
    let mut said = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "held\n");
    let agent = stage.start_on_manifests();
    assert_eq!(std::fs::metadata(&lock).unwrap().permissions().mode() & 0o7777, 0o600);
    assert!(!hold("true").wait().unwrap().success(), "only root can open the file");
    let mut second = stage.agent_on_manifests();
    second.args(["--listen", "127.0.0.1:9471", "--table", "other"]);
    assert_one_sentence(&end_of(&stage, second), &["another agent holds"]);
    drop(agent);
    // Also after a restart, while the old descriptor is still open.
    drop(stage.start_on_manifests());
    holder.kill().and_then(|()| holder.wait()).unwrap();
}

#[test]
fn the_command_line_is_refused_with_status_2() {
    for (arguments, word) in [
        (&["agent", "--manifests", "/tmp"][..], "--node-name"),
        (&["agent", "--node-name", "", "--manifests", "/tmp"], "--node-name"),
        (&["agent", "--node-name", "a", "--manifests", "/tmp", "--kubeconfig", "/tmp/x"], "cannot be used together"),
        (&["agent", "--node-name", "a", "--manifests", "/tmp", "--resync-secs", "0"], "1 to 86400 seconds"),
        (&["agent", "--node-name", "a", "--manifests", "/tmp", "--ct-mark-mask", "0xff"], "--ct-mark-mask"),
        (&["agent", "--node-name", "a", "--manifests", "/tmp", "--table", "no name"], "--table"),
        (&["agent", "--node-name", "a", "--manifests", "/tmp", "--listen", "9470"], "--listen"),
        (&["explain", "shop/web", "shop/db", "99999"], "PORT"),
        (&["explain", "web", "shop/db", "80"], "SRC"),
    ] {
        let ProgramExit { code, stdout, stderr } = ended(ringfence().args(arguments));
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{arguments:?}: {stderr}");
        assert!(stderr.starts_with("error: ") && stderr.contains(word), "{arguments:?}: {stderr}");
    }
}

/// The agent with the capabilities of the manifests, in a mount namespace that shows another kernel release.
fn agent_on_release(stage: &Stage, release: &str) -> Command {
    let file = stage.manifests().join(".osrelease");
    std::fs::write(&file, format!("{release}\n")).unwrap();
    let mut command = Command::new("unshare");
    without_variables(&mut command);
    let script = "mount --bind \"$0\" /proc/sys/kernel/osrelease && exec setpriv --bounding-set -sys_admin \
                  --inh-caps -sys_admin \"$@\"";
    command.args(["--mount", "sh", "-ec", script]).arg(file).arg(program());
    command.args(stage.agent_on_manifests().get_args());
    command
}

#[test]
fn agent_refuses_a_kernel_that_is_too_old() {
    let stage = Stage::new();
    let refused = end_of(&stage, agent_on_release(&stage, "5.4.0-150-generic"));
    assert_one_sentence(&refused, &["Linux 5.4.0-150-generic is too old: Linux 5.10 is needed", "--kernel-check off"]);
    assert_eq!(stage.tables(), "");
    let mut unchecked = agent_on_release(&stage, "5.4.0-150-generic");
    unchecked.args(["--kernel-check", "off"]);
    let mut agent = stage.start(unchecked);
    agent.until_ready();
    agent.until_logged(&["WARN", "unsupported kernel, but --kernel-check is off: Linux 5.4.0-150-generic is too old"]);
    drop(agent);
    let mut agent = stage.start(agent_on_release(&stage, "5.10.0"));
    agent.until_ready();
}
