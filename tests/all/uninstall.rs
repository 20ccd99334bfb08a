//! `ringfence uninstall` on a node of a lab, with real tables and temporary folders.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

use kit::agent_process::{ProgramExit, ended, program, ringfence, without_variables};
use serde_json::Value;

use crate::accounting::accounting;
use crate::install::{Node, list};
use crate::stage::{NODE, Stage};

const OURS: &str = "comment \"Kubernetes NetworkPolicy, kept by ringfence\";";
const ISOLATED: &str = "comment \"pods that started without the agent, kept by ringfence-cni\";";

struct Scene {
    stage: Stage,
    node: Node,
}

impl Scene {
    /// A node without Ringfence, but with a network configuration.
    fn new() -> Scene {
        let scene = Scene { stage: Stage::new(), node: Node::new() };
        scene.node.write("10-net.conflist", &list("net"));
        scene
    }

    /// A node with everything that Ringfence leaves, and no process.
    fn installed() -> Scene {
        let scene = Scene::new();
        assert_eq!(ended(&mut scene.install()).code, Some(0));
        let mut agent = scene.stage.agent_on_manifests();
        agent.args(["--flows", "on"]);
        let mut agent = scene.stage.start(agent);
        agent.until_ready();
        drop(agent);
        let attachments = scene.stage.run_dir().join("cni");
        std::fs::create_dir(&attachments).unwrap();
        std::fs::write(attachments.join("abc@eth0.json"), "{}").unwrap();
        std::fs::write(attachments.join(".def@eth0.json.new"), "{").unwrap();
        std::fs::create_dir(scene.node.path("state")).unwrap();
        std::fs::write(scene.node.path("state/remote-sets.json"), "{}").unwrap();
        scene.table("bridge ringfence", OURS);
        scene.table("netdev ringfence", OURS);
        scene.table("inet ringfence-isolated", ISOLATED);
        scene.table("netdev ringfence-isolated", ISOLATED);
        scene.table("bridge ringfence-isolated", ISOLATED);
        scene
    }

    fn install(&self) -> Command {
        let mut command = self.node.command();
        command.arg("--state-dir").arg(self.stage.run_dir().join("cni"));
        command
    }

    fn table(&self, name: &str, comment: &str) {
        let file = self.node.path("table.nft");
        std::fs::write(&file, format!("table {name} {{\n{comment}\nchain forward {{\n}}\n}}\n")).unwrap();
        self.stage.nft(&format!("-f {}", file.display()));
    }

    fn uninstall(&self, arguments: &[&str]) -> ProgramExit {
        let mut command = ringfence();
        command.arg("uninstall").arg("--cni-conf-dir").arg(self.node.path("net.d"));
        command.arg("--cni-bin-dir").arg(self.node.path("bin")).arg("--run-dir").arg(self.stage.run_dir());
        command.arg("--state-dir").arg(self.node.path("state"));
        command.args(arguments);
        self.stage.lab.node_exec(NODE, || ended(&mut command))
    }

    /// The report, without the scene's paths.
    fn report(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let ProgramExit { code, stdout, stderr } = self.uninstall(arguments);
        assert_eq!(stderr, "");
        let run_dir = self.stage.run_dir();
        let text = stdout.replace(run_dir.to_str().unwrap(), "RUN").replace(self.node.path("").to_str().unwrap(), "");
        (code, text)
    }
}

const REMOVED: &str = "\
removed      the entry in net.d/10-net.conflist
removed      the plugin bin/ringfence-cni
removed      table inet ringfence
removed      table bridge ringfence
removed      table netdev ringfence
removed      table inet ringfence-isolated
removed      table netdev ringfence-isolated
removed      table bridge ringfence-isolated
removed      the folder state with the state of other clusters
removed      the agent's change of net.netfilter.nf_conntrack_acct and nf_conntrack_timestamp
removed      the folder RUN with its sockets, locks and attachment files
";

const NOT_THERE: &str = "\
not there    an entry in the network configurations of net.d
not there    the plugin bin/ringfence-cni
not there    table inet ringfence
not there    table bridge ringfence
not there    table netdev ringfence
not there    table inet ringfence-isolated
not there    table netdev ringfence-isolated
not there    table bridge ringfence-isolated
not there    the folder state with the state of other clusters
not there    the agent's change of net.netfilter.nf_conntrack_acct and nf_conntrack_timestamp
not there    the folder RUN
";

#[test]
fn uninstall_removes_everything_and_is_idempotent() {
    let scene = Scene::installed();
    scene.table("inet theirs", "");
    assert_eq!(scene.report(&[]), (Some(0), REMOVED.to_owned()));
    assert_eq!(scene.node.read("10-net.conflist"), list("net"));
    assert_eq!(scene.stage.tables(), "table inet theirs\n");
    assert_eq!(accounting(&scene.stage), ["0", "0"]);
    assert!(!scene.stage.run_dir().exists() && !scene.node.path("bin/ringfence-cni").exists());
    assert_eq!(scene.report(&[]), (Some(0), NOT_THERE.to_owned()));
}

/// In the container of deploy/uninstall.yaml the root is read-only: the kernel refuses to remove a mount point with
/// EROFS there, and with EBUSY elsewhere.
#[test]
fn folders_that_are_mount_points_are_emptied() {
    for remount in ["mount -o remount,ro $ROOT", "true"] {
        let scene = Scene::installed();
        let (root, run_dir) = (scene.node.path("root"), scene.stage.run_dir());
        std::fs::create_dir(&root).unwrap();
        let script = format!(
            "mount -t tmpfs none $ROOT; mkdir $ROOT/run $ROOT/state; mount --bind $RUN $ROOT/run; \
             mount --bind $STATE $ROOT/state; {remount}; exec \"$@\" --run-dir $ROOT/run --state-dir $ROOT/state"
        );
        // A restarted container finds nothing to remove.
        for _ in 0..2 {
            let mut command = Command::new("unshare");
            without_variables(&mut command);
            command.args(["--mount", "sh", "-euc", &script, "sh"]).arg(program()).arg("uninstall");
            command.arg("--cni-conf-dir").arg(scene.node.path("net.d"));
            command.arg("--cni-bin-dir").arg(scene.node.path("bin"));
            command.env("ROOT", &root).env("RUN", &run_dir).env("STATE", scene.node.path("state"));
            let ProgramExit { code, stdout, stderr } = scene.stage.lab.node_exec(NODE, || ended(&mut command));
            assert_eq!((code, &*stderr), (Some(0), ""), "{remount}: {stdout}");
            assert!(!stdout.contains("failed"), "{stdout}");
        }
        for folder in [run_dir, scene.node.path("state")] {
            assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "{}", folder.display());
        }
        assert_eq!((scene.stage.tables(), scene.node.read("10-net.conflist")), (String::new(), list("net")));
    }
}

#[test]
fn a_rehearsal_tells_the_same_and_changes_nothing() {
    let scene = Scene::installed();
    let before = (scene.stage.nft("list ruleset"), scene.node.read("10-net.conflist"));
    assert_eq!(scene.report(&["--dry-run"]), (Some(0), REMOVED.replace("removed     ", "would remove")));
    assert_eq!((scene.stage.nft("list ruleset"), scene.node.read("10-net.conflist")), before);
    assert!(scene.stage.run_dir().join("agent.lock").exists() && scene.node.path("bin/ringfence-cni").exists());
}

#[test]
fn the_report_is_there_as_json() {
    let scene = Scene::installed();
    let ProgramExit { code, stdout, .. } = scene.uninstall(&["--output", "json", "--keep-plugin"]);
    let lines: Value = serde_json::from_str(&stdout).unwrap();
    let outcomes: Vec<&str> = lines.as_array().unwrap().iter().map(|l| l["outcome"].as_str().unwrap()).collect();
    let expected = [["removed", "kept"].as_slice(), &["removed"; 9]].concat();
    assert_eq!((code, outcomes), (Some(0), expected), "{stdout}");
    assert!(scene.node.path("bin/ringfence-cni").exists());
}

#[test]
fn a_living_agent_is_not_worked_against() {
    let scene = Scene::new();
    assert_eq!(ended(&mut scene.install()).code, Some(0));
    let agent = scene.stage.start_on_manifests();
    let ProgramExit { code, stdout, stderr } = scene.uninstall(&[]);
    assert_eq!((code, stdout.as_str()), (Some(2), ""));
    for words in ["an agent is running", "agent.lock", "delete daemonset", "--force"] {
        assert!(stderr.contains(words), "{stderr}");
    }
    assert!(scene.stage.tables().contains("ringfence") && scene.node.read("10-net.conflist").contains("ringfence-cni"));

    let ProgramExit { code, stdout, stderr } = scene.uninstall(&["--dry-run"]);
    assert!(code == Some(0) && stderr.starts_with("warning: an agent is running"), "{stderr}");
    assert!(stdout.lines().all(|line| line.starts_with("would remove") || line.starts_with("not there")), "{stdout}");
    assert!(stdout.contains("would remove the folder"), "{stdout}");

    let ProgramExit { code, stdout, stderr } = scene.uninstall(&["--force"]);
    assert!(stderr.starts_with("warning: an agent is running"), "{stderr}");
    assert!(stdout.contains("a running process uses it"), "{stdout}");
    assert_eq!((code, scene.node.read("10-net.conflist")), (Some(1), list("net")));
    assert_eq!(agent.get("/healthz").status, 200);
    agent.stop();
    assert_eq!(scene.uninstall(&[]).code, Some(0));
    assert_eq!(scene.stage.tables(), "");
}

#[test]
fn whoever_would_put_the_entry_back_is_named() {
    let scene = Scene::new();
    let installer = scene.node.start(&["--watch"]);
    installer.until_logged("entry is in");
    let mut command = ringfence();
    command.arg("uninstall");
    scene.node.folders(&mut command);
    let ProgramExit { code, stderr, .. } = scene.stage.lab.node_exec(NODE, || ended(&mut command));
    assert_eq!(code, Some(2));
    assert!(stderr.contains("'ringfence install-cni --watch' is running"), "{stderr}");
    drop(installer);
    let ProgramExit { code, .. } = scene.stage.lab.node_exec(NODE, || ended(&mut command));
    assert_eq!((code, scene.node.read("10-net.conflist")), (Some(0), list("net")));
}

#[test]
fn foreign_tables_with_our_names_stay() {
    let scene = Scene::new();
    scene.table("inet ringfence", "comment \"mine\";");
    scene.table("bridge ringfence", "");
    scene.table("inet ringfence-isolated", OURS);
    scene.table("inet other", OURS);
    let before = scene.stage.nft("list ruleset");
    let (code, report) = scene.report(&[]);
    assert_eq!(code, Some(0));
    assert_eq!(report.matches("it belongs to another program: it lacks the comment").count(), 3, "{report}");
    assert_eq!(scene.stage.nft("list ruleset"), before);
    assert_eq!(scene.uninstall(&["--table", "other"]).code, Some(0));
    assert!(!scene.stage.tables().contains("other"));
}

#[test]
fn what_others_have_put_into_our_folder_stays() {
    let scene = Scene::installed();
    std::fs::write(scene.stage.run_dir().join("cni/notes"), "theirs").unwrap();
    let (code, report) = scene.report(&[]);
    assert_eq!(code, Some(0));
    assert!(
        report.ends_with(
            "removed      sockets, locks and attachment files in RUN\nkept         the folder RUN: RUN/cni/notes \
             does not belong to Ringfence
"
        ),
        "{report}"
    );
    let left = |folder: &str| std::fs::read_dir(scene.stage.run_dir().join(folder)).unwrap().count();
    assert_eq!((left(""), left("cni")), (1, 1));
}

#[test]
fn another_program_of_the_plugins_name_stays() {
    let scene = Scene::new();
    std::fs::create_dir(scene.node.path("bin")).unwrap();
    std::fs::write(scene.node.path("bin/ringfence-cni"), "something else").unwrap();
    let (code, report) = scene.report(&[]);
    assert_eq!(code, Some(0));
    assert!(
        report.contains("kept         the plugin bin/ringfence-cni: it is another program with that name"),
        "{report}"
    );
    assert!(scene.node.path("bin/ringfence-cni").exists());
}

#[test]
fn table_owned_by_live_process_is_reported() {
    let scene = Scene::new();
    let owner = Owner::of(&scene.stage, &format!("add table inet ringfence {{ flags owner; {OURS} }}"));
    assert!(scene.stage.tables().contains("ringfence"));
    let (code, report) = scene.report(&[]);
    assert_eq!(code, Some(1));
    let words = format!("failed       table inet ringfence: process {} (nft) owns the table", owner.0.id());
    assert!(report.contains(&words), "{report}");
    drop(owner);
    assert_eq!(scene.uninstall(&[]).code, Some(0));
}

#[test]
fn unparsable_conflist_with_our_plugin_is_reported() {
    let scene = Scene::new();
    scene.node.write("10-net.conflist", "{\"plugins\": [{\"type\": \"ringfence-cni\"}");
    let (code, report) = scene.report(&[]);
    assert_eq!(code, Some(1));
    assert!(report.starts_with("failed       the entry in net.d/10-net.conflist: invalid JSON"), "{report}");
}

/// An interactive `nft`, whose socket owns the tables that it adds.
struct Owner(Child);

impl Owner {
    fn of(stage: &Stage, command: &str) -> Owner {
        let mut nft = Command::new("nft");
        nft.arg("-i").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = stage.lab.node_exec(NODE, || nft.spawn()).unwrap();
        let input = child.stdin.as_mut().unwrap();
        writeln!(input, "{command}\nlist tables").unwrap();
        let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(answers.any(|line| line.unwrap().contains("table inet ringfence")), "nft took the command");
        Owner(child)
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait()) {
            eprintln!("nft does not end: {error}");
        }
    }
}
