//! The network part of a container runtime, by the CNI specification: runs a chain of real plugins in a node's
//! namespace for sandboxes that are created here. It depends on nothing of ringfence but the path of its plugin.

mod fake_agent;
mod node;
mod plugin;
mod prober;
mod sandbox;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

pub use fake_agent::{FakeAgent, Reply};
pub use node::NodeNamespaces;
pub use plugin::{PluginFailure, PluginOutput};
pub use prober::{ProbeSender, Prober};
pub use sandbox::Sandbox;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use crate::agent_process::built;

/// Where Debian's containernetworking-plugins are.
pub const DEBIAN_PLUGINS: &str = "/usr/lib/cni";

/// A runtime for one node and one network.
pub struct Runtime {
    node: NodeNamespaces,
    network: Network,
    /// CNI_PATH.
    path: Vec<PathBuf>,
    cache: PathBuf,
}

/// A network configuration list.
struct Network {
    name: String,
    cni_version: String,
    disable_check: bool,
    plugins: Vec<PluginConfig>,
}

/// Keys with their values in their original form.
type PluginConfig = BTreeMap<String, Box<RawValue>>;

/// A container to be added to a network.
#[derive(Debug, Clone)]
pub struct Container {
    pub id: String,
    pub interface: String,
    /// The path of its network namespace.
    pub sandbox: String,
    /// CNI_ARGS.
    pub arguments: String,
    /// Runtime configuration by capability: `portMappings` and the like.
    pub capabilities: BTreeMap<String, Value>,
}

impl Container {
    /// The sandbox of a pod, with the arguments of the kubelet's runtimes.
    pub fn of_pod(id: &str, namespace: &str, pod: &str, sandbox: &Sandbox) -> Container {
        Container {
            id: id.into(),
            interface: "eth0".into(),
            sandbox: sandbox.path(),
            arguments: format!(
                "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={id};\
                 K8S_POD_UID=uid-of-{pod}"
            ),
            capabilities: BTreeMap::new(),
        }
    }
}

/// The result of a chain's ADD.
#[derive(Debug)]
pub struct AddResult {
    pub result: Value,
    pub steps: Vec<PluginOutput>,
}

impl AddResult {
    /// The pod's addresses, without prefix lengths.
    ///
    /// # Panics
    /// If the result has an invalid address.
    pub fn addresses(&self) -> Vec<std::net::IpAddr> {
        let ips = self.result["ips"].as_array().expect("a list of addresses");
        let text =
            |ip: &Value| ip["address"].as_str().expect("an address").split('/').next().expect("a part").to_owned();
        ips.iter().map(|ip| text(ip).parse().expect("an address")).collect()
    }
}

impl Runtime {
    /// A runtime for the node whose network namespace has this path. Cached results are stored in `cache`.
    ///
    /// # Panics
    /// If the namespace cannot be entered, or the configuration list is invalid.
    pub fn new(node_namespace: &str, network: &Value, cache: &Path) -> Runtime {
        fs::create_dir_all(cache).expect("a folder for results");
        let ours = built("ringfence-cni").parent().expect("it is in a folder").to_owned();
        Runtime {
            node: NodeNamespaces::of(Path::new(node_namespace)),
            network: Network::parse(network),
            path: vec![DEBIAN_PLUGINS.into(), ours],
            cache: cache.into(),
        }
    }

    /// Adds a folder of plugins, which has precedence.
    pub fn with_plugins(mut self, folder: &Path) -> Runtime {
        self.path.insert(0, folder.into());
        self
    }

    /// Another configuration list, on the same node and with the same cache.
    pub fn with_network(self, network: &Value) -> Runtime {
        Runtime { network: Network::parse(network), ..self }
    }

    /// Runs the chain, each plugin with the result of the previous one. After a failure the caller must delete the
    /// container, as runtimes do.
    ///
    /// # Errors
    /// The error of the first plugin that fails.
    pub fn add(&self, container: &Container) -> Result<AddResult, Box<PluginFailure>> {
        let mut steps = Vec::new();
        let mut result: Option<Box<RawValue>> = None;
        for plugin in &self.network.plugins {
            let step = self.run("ADD", plugin, Some(container), result.as_deref(), &[])?;
            let text = step.stdout.clone();
            result = Some(RawValue::from_string(text).expect("a plugin prints its result"));
            steps.push(step);
        }
        let result = result.expect("a network has plugins");
        fs::write(self.cached(container), result.get()).expect("the cache");
        Ok(AddResult { result: serde_json::from_str(result.get()).expect("JSON"), steps })
    }

    /// Runs the chain in reverse order with the cached result, if there is one, and removes that.
    ///
    /// # Errors
    /// The error of the first plugin that fails.
    pub fn delete(&self, container: &Container) -> Result<Vec<PluginOutput>, Box<PluginFailure>> {
        let result = self.cached_result(container);
        let plugins = self.network.plugins.iter().rev();
        let steps = plugins.map(|plugin| self.run("DEL", plugin, Some(container), result.as_deref(), &[])).collect();
        if result.is_some() {
            fs::remove_file(self.cached(container)).expect("the cache");
        }
        steps
    }

    /// Runs the chain with the cached result.
    ///
    /// # Errors
    /// The error of the first plugin that fails.
    ///
    /// # Panics
    /// If the container was not added: a runtime must not check it.
    pub fn check(&self, container: &Container) -> Result<Vec<PluginOutput>, Box<PluginFailure>> {
        let result = self.cached_result(container);
        assert!(result.is_some(), "{} was not added", container.id);
        let plugins = self.network.plugins.iter().filter(|_| !self.network.disable_check);
        plugins.map(|plugin| self.run("CHECK", plugin, Some(container), result.as_deref(), &[])).collect()
    }

    /// Sends the valid attachments to every plugin (GC).
    ///
    /// # Errors
    /// The error of the first plugin that fails.
    pub fn gc(&self, valid: &[&Container]) -> Result<Vec<PluginOutput>, Box<PluginFailure>> {
        let entry = |container: &&Container| json!({"containerID": container.id, "ifname": container.interface});
        let list: Vec<Value> = valid.iter().map(entry).collect();
        let key = ("cni.dev/valid-attachments", json!(list));
        self.network
            .plugins
            .iter()
            .map(|plugin| self.run("GC", plugin, None, None, std::slice::from_ref(&key)))
            .collect()
    }

    /// Queries the readiness of every plugin (STATUS).
    ///
    /// # Errors
    /// The error of the first plugin that fails.
    pub fn status(&self) -> Result<Vec<PluginOutput>, Box<PluginFailure>> {
        self.network.plugins.iter().map(|plugin| self.run("STATUS", plugin, None, None, &[])).collect()
    }

    /// Runs `work` in the namespaces of the node.
    pub fn on_node<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.node.run(work)
    }

    /// Whether a result of the container is cached.
    pub fn remembers(&self, container: &Container) -> bool {
        self.cached(container).exists()
    }

    fn cached(&self, container: &Container) -> PathBuf {
        self.cache.join(format!("{}-{}-{}", self.network.name, container.id, container.interface))
    }

    fn cached_result(&self, container: &Container) -> Option<Box<RawValue>> {
        let text = fs::read_to_string(self.cached(container)).ok()?;
        Some(RawValue::from_string(text).expect("the cache holds JSON"))
    }

    fn run(
        &self,
        command: &str,
        plugin: &PluginConfig,
        container: Option<&Container>,
        prev_result: Option<&RawValue>,
        more: &[(&str, Value)],
    ) -> Result<PluginOutput, Box<PluginFailure>> {
        let raw = |value: &Value| to_raw_value(value).expect("JSON");
        let mut config = plugin.clone();
        let capabilities = config.remove("capabilities");
        config.insert("name".into(), raw(&json!(self.network.name)));
        config.insert("cniVersion".into(), raw(&json!(self.network.cni_version)));
        if let (Some(capabilities), Some(container)) = (capabilities, container) {
            let supported: BTreeMap<String, bool> = serde_json::from_str(capabilities.get()).expect("capabilities");
            let wanted = container.capabilities.iter().filter(|(name, _)| supported.get(*name) == Some(&true));
            let wanted: BTreeMap<&String, &Value> = wanted.collect();
            if !wanted.is_empty() {
                config.insert("runtimeConfig".into(), raw(&json!(wanted)));
            }
        }
        if let Some(result) = prev_result {
            config.insert("prevResult".into(), result.to_owned());
        }
        config.extend(more.iter().map(|(key, value)| ((*key).to_owned(), raw(value))));
        let name: String = serde_json::from_str(config["type"].get()).expect("the type of a plugin");
        let program = self.path.iter().map(|folder| folder.join(&name)).find(|path| path.exists());
        let program = program.unwrap_or_else(|| panic!("there is no plugin {name} in {:?}", self.path));
        let config = serde_json::to_string(&config).expect("JSON");
        plugin::run(&self.node, &program, &self.variables(command, container), &config)
    }

    fn variables(&self, command: &str, container: Option<&Container>) -> Vec<(&'static str, String)> {
        let folders: Vec<String> = self.path.iter().map(|folder| folder.display().to_string()).collect();
        let mut variables = vec![("CNI_COMMAND", command.to_owned()), ("CNI_PATH", folders.join(":"))];
        if let Some(container) = container {
            variables.extend([
                ("CNI_CONTAINERID", container.id.clone()),
                ("CNI_NETNS", container.sandbox.clone()),
                ("CNI_IFNAME", container.interface.clone()),
                ("CNI_ARGS", container.arguments.clone()),
            ]);
        }
        variables
    }
}

impl Network {
    fn parse(list: &Value) -> Network {
        let text = |key: &str| list[key].as_str().unwrap_or_else(|| panic!("the list has no {key}")).to_owned();
        let plugins = list["plugins"].as_array().expect("the list has plugins");
        Network {
            name: text("name"),
            cni_version: text("cniVersion"),
            disable_check: list["disableCheck"].as_bool().unwrap_or(false),
            plugins: plugins.iter().map(|p| serde_json::from_str(&p.to_string()).expect("a plugin's entry")).collect(),
        }
    }
}
