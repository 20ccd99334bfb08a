//! A cluster of `scripts/cluster`, by its number.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::objects::{list, namespace};
use crate::policies::POD_START;

/// Poll interval of every condition.
const POLL_EVERY: Duration = Duration::from_millis(200);

/// The repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the tests crate lies in the workspace").to_owned()
}

/// Runs a command and returns its standard output.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {command:?}"))?;
    printed(command, &output)
}

fn printed(command: &Command, output: &Output) -> anyhow::Result<String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?} failed ({}): {}{}", output.status, text.trim(), errors.trim());
    }
    Ok(text)
}

/// Polls until the function returns a value.
pub(crate) fn wait_for<T>(
    what: &str,
    within: Duration,
    mut poll: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let deadline = Instant::now() + within;
    loop {
        let error = match poll() {
            Ok(Some(value)) => return Ok(value),
            Ok(None) => None,
            Err(error) => Some(error),
        };
        if Instant::now() > deadline {
            let error = error.map_or_else(String::new, |error| format!(": {error:#}"));
            bail!("timed out after {} s: {what}{error}", within.as_secs());
        }
        thread::sleep(POLL_EVERY);
    }
}

/// A cluster that is running or will be started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cluster {
    pub(crate) number: u8,
}

impl Cluster {
    fn script(self) -> Command {
        let mut command = Command::new(root().join("scripts/cluster"));
        command.env("CLUSTER", self.number.to_string());
        command
    }

    pub(crate) fn up(self) -> anyhow::Result<()> {
        run(self.script().arg("up")).map(drop)
    }

    pub(crate) fn down(self) -> anyhow::Result<()> {
        run(self.script().arg("down")).map(drop)
    }

    pub(crate) fn reboot(self, node: u8) -> anyhow::Result<()> {
        run(self.script().args(["reboot", &node.to_string()])).map(drop)
    }

    /// Imports a folder as an image.
    pub(crate) fn image(self, name: &str, root: &Path, entrypoint: &str) -> anyhow::Result<()> {
        run(self.script().args(["image", name]).arg(root).arg(entrypoint)).map(drop)
    }

    /// Imports the images of a docker archive.
    pub(crate) fn load_archive(self, archive: &str) -> anyhow::Result<()> {
        run(self.script().args(["image", archive])).map(drop)
    }

    /// Runs a command on a node; node 0 is the host of the control plane, which is not a node of the cluster.
    pub(crate) fn on_node(self, node: u8, words: &[&str]) -> anyhow::Result<String> {
        run(self.script().args(["node", &node.to_string()]).args(words))
    }

    pub(crate) fn kubectl(self, words: &[&str]) -> anyhow::Result<String> {
        run(self.script().arg("kubectl").args(words))
    }

    pub(crate) fn json(self, words: &[&str]) -> anyhow::Result<Value> {
        let text = self.kubectl(&[words, &["--output", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl printed invalid JSON")
    }

    /// Applies manifests.
    pub(crate) fn apply(self, manifests: &str) -> anyhow::Result<()> {
        let mut command = self.script();
        command.args(["kubectl", "apply", "--filename", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot run scripts/cluster")?;
        child.stdin.take().expect("stdin is a pipe").write_all(manifests.as_bytes())?;
        printed(&command, &child.wait_with_output()?).map(drop)
    }

    /// Creates namespaces and waits for the service account that pods need in them.
    pub(crate) fn create_namespaces(self, names: &[&str]) -> anyhow::Result<()> {
        self.apply(&list(&names.iter().map(|name| namespace(name)).collect::<Vec<_>>()))?;
        for name in names {
            wait_for("default service account", POD_START, || {
                self.kubectl(&["--namespace", name, "get", "serviceaccount", "default"]).map(Some)
            })?;
        }
        Ok(())
    }

    pub(crate) fn rollout(self, namespace: &str, object: &str, within: Duration) -> anyhow::Result<()> {
        let timeout = format!("--timeout={}s", within.as_secs());
        self.kubectl(&["--namespace", namespace, "rollout", "status", object, &timeout]).map(drop)
    }

    /// Waits until every pod of a namespace that matches the selector is ready.
    pub(crate) fn pods_ready(self, namespace: &str, selector: &str, within: Duration) -> anyhow::Result<()> {
        let timeout = format!("--timeout={}s", within.as_secs());
        self.kubectl(&[
            "--namespace",
            namespace,
            "wait",
            "pods",
            "--selector",
            selector,
            "--for=condition=Ready",
            &timeout,
        ])
        .map(drop)
    }

    /// Runs a program in a pod.
    pub(crate) fn exec(self, pod: &PodName, words: &[&str]) -> anyhow::Result<String> {
        self.kubectl(&[&["--namespace", &pod.namespace, "exec", &pod.name, "--"], words].concat())
    }

    /// Addresses of a pod: IPv4, IPv6.
    pub(crate) fn addresses(self, pod: &PodName) -> anyhow::Result<[String; 2]> {
        let object = self.json(&["--namespace", &pod.namespace, "get", "pod", &pod.name])?;
        families(&object["status"]["podIPs"], "ip")
    }

    /// Cluster addresses of a Service: IPv4, IPv6.
    pub(crate) fn service_addresses(self, namespace: &str, name: &str) -> anyhow::Result<[String; 2]> {
        let object = self.json(&["--namespace", namespace, "get", "service", name])?;
        families(&object["spec"]["clusterIPs"], "")
    }
}

/// The two addresses of a list, IPv4 first.
fn families(list: &Value, key: &str) -> anyhow::Result<[String; 2]> {
    let addresses: Vec<&str> = list
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter()
        .filter_map(|entry| if key.is_empty() { entry.as_str() } else { entry[key].as_str() })
        .collect();
    ensure!(addresses.len() == 2, "expected an IPv4 and an IPv6 address, got {addresses:?}");
    let [first, second] = [addresses[0].to_owned(), addresses[1].to_owned()];
    Ok(if first.contains(':') { [second, first] } else { [first, second] })
}

/// A pod's namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl PodName {
    pub(crate) fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

/// An address with a port.
pub(crate) fn at(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}
