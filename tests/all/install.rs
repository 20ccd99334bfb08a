//! `ringfence install-cni` as a process, with temporary folders and a fake plugin.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use kit::agent_process::{ProgramExit, ended, program, ringfence, run, until, without_variables};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Answers VERSION, as every plugin does.
const PLUGIN: &str = "#!/bin/sh\n# ringfence-cni\necho '{\"cniVersion\":\"1.0.0\",\"supportedVersions\":[\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}'\n";

/// A node's folders.
pub(crate) struct Node(TempDir);

impl Node {
    pub(crate) fn new() -> Node {
        let node = Node(TempDir::new().unwrap());
        std::fs::create_dir(node.path("net.d")).unwrap();
        node.write_plugin(PLUGIN);
        node
    }

    /// A separate process writes it: if this process had a program open for writing, a concurrently forked child of
    /// another test would inherit the descriptor, and executing the program would fail.
    fn write_plugin(&self, text: &str) {
        let mut install = Command::new("install");
        let mut child =
            install.args(["-m", "755", "/dev/stdin"]).arg(self.path("plugin")).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success());
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path("net.d").join(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path("net.d").join(name)).unwrap()
    }

    pub(crate) fn folders(&self, command: &mut Command) {
        command.arg("--cni-conf-dir").arg(self.path("net.d")).arg("--cni-bin-dir").arg(self.path("bin"));
        command.arg("--run-dir").arg(self.path("run"));
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = ringfence();
        command.arg("install-cni").arg("--plugin").arg(self.path("plugin"));
        self.folders(&mut command);
        command
    }

    pub(crate) fn start(&self, arguments: &[&str]) -> Installer {
        let log = self.path("log");
        let output = std::fs::File::create(&log).unwrap();
        let process = self.command().args(arguments).stdout(Stdio::null()).stderr(output).spawn().unwrap();
        Installer { process, log }
    }

    fn plugins(&self, name: &str) -> Vec<String> {
        let Ok(list) = serde_json::from_str::<Value>(&self.read(name)) else { return vec![] };
        let plugins = list["plugins"].as_array().cloned().unwrap_or_default();
        plugins.iter().filter_map(|plugin| plugin["type"].as_str()).map(String::from).collect()
    }

    fn has_entry(&self, name: &str) -> bool {
        self.plugins(name).iter().any(|kind| kind == "ringfence-cni")
    }
}

/// The installer process, which is killed on drop.
pub(crate) struct Installer {
    process: Child,
    log: PathBuf,
}

impl Installer {
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    #[track_caller]
    pub(crate) fn until_logged(&self, words: &str) {
        until(words, || self.log().contains(words).then_some(()));
    }

    fn end(mut self) -> (Option<i32>, String) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), Signal::SIGTERM).unwrap();
        let code = self.process.wait().unwrap().code();
        (code, self.log())
    }
}

impl Drop for Installer {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("the installer does not end: {error}");
        }
        if std::thread::panicking() {
            eprintln!("its log:\n{}", self.log());
        }
    }
}

/// A conflist as a network agent writes it.
pub(crate) fn list(name: &str) -> String {
    let list = json!({"cniVersion": "1.0.0", "name": name, "plugins": [{"type": "ptp"}, {"type": "portmap"}]});
    serde_json::to_string_pretty(&list).unwrap()
}

/// Replaces a file atomically, by renaming.
fn replace(path: &Path, text: &str) {
    let aside = path.with_extension("aside");
    std::fs::write(&aside, text).unwrap();
    std::fs::rename(&aside, path).unwrap();
}

#[test]
fn single_run_copies_plugin_and_adds_entry() {
    let node = Node::new();
    node.write("10-net.conflist", &list("net"));
    let ProgramExit { code, stdout, stderr } = ended(&mut node.command());
    assert_eq!((code, stdout.as_str()), (Some(0), ""), "{stderr}");
    assert!(stderr.contains("entry is in "), "{stderr}");
    assert_eq!(node.plugins("10-net.conflist"), ["ptp", "portmap", "ringfence-cni"]);
    let parsed: Value = serde_json::from_str(&node.read("10-net.conflist")).unwrap();
    let entry = json!({
        "type": "ringfence-cni",
        "agentSocket": node.path("run/cni.sock"), "stateDir": node.path("run/cni"),
        "timeoutSeconds": 10, "onTimeout": "fail",
    });
    assert_eq!(parsed["plugins"][2], entry);
    let copied = node.path("bin/ringfence-cni");
    assert_eq!(std::fs::read_to_string(&copied).unwrap(), PLUGIN);
    assert_eq!(std::fs::metadata(&copied).unwrap().permissions().mode() & 0o7777, 0o755);

    let (text, written) = (node.read("10-net.conflist"), std::fs::metadata(&copied).unwrap().modified().unwrap());
    assert_eq!(ended(&mut node.command()).code, Some(0));
    assert_eq!(
        (node.read("10-net.conflist"), std::fs::metadata(&copied).unwrap().modified().unwrap()),
        (text, written)
    );

    let other = ended(node.command().args(["--on-timeout", "isolate", "--timeout-seconds", "3"]));
    assert_eq!(other.code, Some(0));
    let parsed: Value = serde_json::from_str(&node.read("10-net.conflist")).unwrap();
    assert_eq!(
        (&parsed["plugins"][2]["onTimeout"], &parsed["plugins"][2]["timeoutSeconds"]),
        (&json!("isolate"), &json!(3))
    );
}

#[test]
fn installer_waits_for_a_valid_network_configuration() {
    let node = Node::new();
    std::fs::remove_dir(node.path("net.d")).unwrap();
    let mut installer = node.start(&[]);
    installer.until_logged("waiting for a network configuration");
    std::fs::create_dir(node.path("net.d")).unwrap();
    node.write("10-net.conflist", "{\"plugins\": [");
    installer.until_logged("10-net.conflist is left unchanged: invalid JSON");
    assert_eq!(node.read("10-net.conflist"), "{\"plugins\": [");
    node.write("10-net.conflist", &list("net"));
    assert_eq!(until("it ends", || installer.process.try_wait().unwrap()).code(), Some(0));
    assert!(node.has_entry("10-net.conflist"));
}

#[test]
fn watch_restores_entry_and_follows_new_first_file() {
    let node = Node::new();
    node.write("10-net.conflist", &list("net"));
    let installer = node.start(&["--watch"]);
    until("the entry", || node.has_entry("10-net.conflist").then_some(()));

    replace(&node.path("net.d/10-net.conflist"), &list("renamed"));
    until("the entry is back", || node.has_entry("10-net.conflist").then_some(()));
    assert!(node.read("10-net.conflist").contains("renamed"));

    node.write("10-net.conflist", &list("in place"));
    until("the entry is back", || node.has_entry("10-net.conflist").then_some(()));
    assert!(node.read("10-net.conflist").contains("in place"));

    node.write("05-new.conflist", &list("new"));
    until("the entry in the new file", || node.has_entry("05-new.conflist").then_some(()));

    std::fs::remove_file(node.path("bin/ringfence-cni")).unwrap();
    until("the plugin is back", || node.path("bin/ringfence-cni").exists().then_some(()));

    let (code, log) = installer.end();
    assert_eq!(code, Some(0));
    assert_eq!(
        log.matches("restored the plugin's entry, which another program had removed or changed").count(),
        3,
        "{log}"
    );
    assert!(node.has_entry("05-new.conflist"));
}

#[test]
fn frequent_rewrites_keep_last_contents_and_entry() {
    let node = Node::new();
    node.write("10-net.conflist", &list("start"));
    let installer = node.start(&["--watch"]);
    until("the entry", || node.has_entry("10-net.conflist").then_some(()));
    let path = node.path("net.d/10-net.conflist");
    for number in 0..200 {
        match number % 2 {
            0 => replace(&path, &list(&format!("write-{number}"))),
            _ => std::fs::write(&path, list(&format!("write-{number}"))).unwrap(),
        }
        // Runtimes see complete files meanwhile, except when the other writer itself writes in place.
        if number % 2 == 0 {
            let seen: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
            assert_eq!(seen["plugins"][0]["type"], "ptp");
        }
    }
    until("both", || {
        (node.has_entry("10-net.conflist") && node.read("10-net.conflist").contains("write-199")).then_some(())
    });
    let (code, log) = installer.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(node.has_entry("10-net.conflist") && node.read("10-net.conflist").contains("write-199"), "{log}");
    let left: Vec<String> = std::fs::read_dir(node.path("net.d"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(left, ["10-net.conflist"]);
}

#[test]
fn repeated_removal_of_entry_is_reported_without_racing() {
    let node = Node::new();
    node.write("10-net.conflist", &list("net"));
    let installer = node.start(&["--watch"]);
    let path = node.path("net.d/10-net.conflist");
    until("the warning", || {
        if node.has_entry("10-net.conflist") {
            replace(&path, &list("net"));
        }
        installer.log().contains("another program keeps removing it").then_some(())
    });
    let log = installer.log();
    assert!(log.matches("restored the plugin's entry").count() >= 20, "{log}");
}

#[test]
fn invalid_plugin_is_refused_before_any_write() {
    let node = Node::new();
    node.write("10-net.conflist", &list("net"));
    for (text, words) in [
        ("#!/bin/sh\necho '{}'\n", "is not ringfence-cni"),
        ("#!/bin/sh\n# ringfence-cni\nexit 1\n", "operation VERSION of the plugin"),
        ("#!/bin/sh\n# ringfence-cni\necho nothing\n", "invalid response to VERSION"),
    ] {
        node.write_plugin(text);
        let ProgramExit { code, stderr, .. } = ended(&mut node.command());
        assert_eq!(code, Some(2), "{stderr}");
        assert!(stderr.contains(words), "{stderr}");
    }
    let relative = ended(node.command().args(["--agent-socket", "cni.sock"]));
    assert_eq!(relative.code, Some(2));
    assert_eq!(node.read("10-net.conflist"), list("net"));
    assert!(!node.path("bin").exists());
    assert_eq!(run(["install-cni", "--plugin", "/nowhere"]).code, Some(2));
}

/// On nodes of Kubespray the folder and the conflist belong to another user than root.
#[test]
fn foreign_owned_conflist_gets_entry_with_dac_override() {
    let node = Node::new();
    node.write("10-net.conflist", &list("net"));
    for path in ["net.d", "net.d/10-net.conflist"] {
        std::os::unix::fs::chown(node.path(path), Some(1000), Some(1000)).unwrap();
    }
    let log = node.path("log");
    let mut command = Command::new("setpriv");
    without_variables(&mut command);
    command.args(["--bounding-set", "-all,+dac_override", "--inh-caps", "-all"]).arg(program());
    command.args(node.command().get_args()).stderr(std::fs::File::create(&log).unwrap());
    let process = command.spawn().unwrap();
    let mut installer = Installer { process, log };
    assert_eq!(until("it ends", || installer.process.try_wait().unwrap()).code(), Some(0));
    assert!(node.has_entry("10-net.conflist"));
    installer.until_logged("keeping the owner needs CAP_CHOWN");
}

#[test]
fn lock_held_by_unprivileged_user_stops_no_installer() {
    let node = Node::new();
    node.write("10-net.conflist", &list("net"));
    std::fs::create_dir(node.path("run")).unwrap();
    let lock = node.path("run/install.lock");
    std::fs::write(&lock, "").unwrap();
    let holder = std::fs::File::open(&lock).unwrap();
    holder.lock().unwrap();
    let installer = node.start(&["--watch"]);
    installer.until_logged("entry is in");
    assert_eq!(std::fs::metadata(&lock).unwrap().permissions().mode() & 0o7777, 0o600);
    let (code, log) = installer.end();
    assert!(code == Some(0) && log.contains("no pod starts on this node without an agent"), "{log}");
}

#[test]
fn named_pipe_among_configurations_is_skipped_with_report() {
    let node = Node::new();
    nix::unistd::mkfifo(&node.path("net.d/00-pipe.conflist"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let installer = node.start(&[]);
    installer.until_logged("00-pipe.conflist: it is not a regular file");
    assert_eq!(installer.end().0, Some(0));
}
