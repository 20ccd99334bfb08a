//! Checks whether the CNI plugin is in the chain, so that no pod starts before its rules are in force.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::AttachmentRecord;
use cni::protocol::{Request, Response, read_response, write_request};
use serde::Deserialize;

use super::finding::{Check, Finding, list};
use crate::attachments::unchecked;

/// Name of the plugin in a chain, and of its file.
const PLUGIN: &str = "ringfence-cni";

/// Bound on a CNI configuration, a hundred times the usual size.
const LARGEST_CONFIGURATION: u64 = 1 << 20;

/// Timeout of a status request to the agent.
const AGENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Plugins whose pods have their own interface on the link, so that their packets bypass the node's forward hook.
const PAST_THE_NODE: &[&str] = &["macvlan", "ipvlan", "sriov", "host-device", "vlan"];

/// Plugins (Multus, thin and thick) that attach pods to further networks by interfaces unknown to the agent.
const SECONDARY_NETWORKS: &[&str] = &["multus", "multus-shim"];

#[derive(Debug, Clone)]
pub(crate) struct CniFacts {
    pub(crate) folder: PathBuf,
    /// The first configuration of the folder, which runtimes use.
    pub(crate) chain: Result<Option<CniChain>, String>,
    /// Files of Multus in the folders of configurations and plugins.
    pub(crate) multus: Vec<String>,
    pub(crate) plugin: PathBuf,
    pub(crate) plugin_state: PluginState,
    pub(crate) socket: PathBuf,
    /// The agent's response on the socket.
    pub(crate) answer: Result<Response, String>,
    pub(crate) attachments: Result<AttachmentFiles, String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CniChain {
    pub(crate) file: String,
    /// Types of the plugins, in order.
    pub(crate) plugins: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PluginState {
    Runs,
    NotExecutable,
    Missing,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AttachmentFiles {
    pub(crate) count: usize,
    pub(crate) unreadable: Vec<String>,
    /// Pods whose source addresses cannot be checked, and why not.
    pub(crate) unchecked: Vec<String>,
}

/// Folders of the CNI installation.
#[derive(Debug, Clone)]
pub(crate) struct CniPlaces<'a> {
    pub(crate) configurations: &'a Path,
    pub(crate) binaries: &'a Path,
    pub(crate) run_dir: &'a Path,
}

/// Attachments reported by the CNI plugin, and those that cannot be read.
pub(super) fn attachments(run_dir: &Path) -> (Vec<AttachmentRecord>, Result<AttachmentFiles, String>) {
    match cni::store::read_all(&run_dir.join("cni")) {
        Ok(stored) => {
            let unreadable = stored.unreadable.iter().map(|(path, why)| format!("{}: {why}", path.display())).collect();
            let count = stored.attachments.len();
            let unchecked = stored.attachments.iter().filter_map(unchecked).collect();
            (stored.attachments, Ok(AttachmentFiles { count, unreadable, unchecked }))
        }
        Err(error) => (vec![], Err(error.to_string())),
    }
}

pub(super) fn gather(places: &CniPlaces, attachments: Result<AttachmentFiles, String>) -> CniFacts {
    let plugin = places.binaries.join(PLUGIN);
    let plugin_state = match fs::metadata(&plugin) {
        Ok(file) if file.is_file() && file.permissions().mode() & 0o111 != 0 => PluginState::Runs,
        Ok(_) => PluginState::NotExecutable,
        Err(_) => PluginState::Missing,
    };
    let socket = places.run_dir.join("cni.sock");
    CniFacts {
        folder: places.configurations.to_owned(),
        chain: first_chain(places.configurations).map_err(|e| e.to_string()),
        multus: files_of_multus(places),
        plugin,
        plugin_state,
        answer: request_status(&socket),
        socket,
        attachments,
    }
}

fn request_status(socket: &Path) -> Result<Response, String> {
    let connect = || -> io::Result<UnixStream> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(AGENT_TIMEOUT))?;
        stream.set_write_timeout(Some(AGENT_TIMEOUT))?;
        Ok(stream)
    };
    let mut stream = connect().map_err(|e| e.to_string())?;
    write_request(&mut stream, &Request::Status).map_err(|e| e.to_string())?;
    read_response(&mut stream).map_err(|e| e.to_string())
}

/// A list of plugins, or the configuration of a single plugin (`.conf`), which has a `type`.
#[derive(Deserialize)]
struct Configuration {
    #[serde(default)]
    plugins: Vec<PluginConfiguration>,
    r#type: Option<String>,
}

#[derive(Deserialize)]
struct PluginConfiguration {
    r#type: String,
}

/// Runtimes use the first file by name with a known extension.
fn first_chain(folder: &Path) -> io::Result<Option<CniChain>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut files = entries.map(|entry| entry.map(|e| e.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    let is_configuration = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ["conf", "conflist", "json"].iter().any(|e| ending == *e))
    };
    files.retain(is_configuration);
    files.sort();
    let Some(path) = files.first() else { return Ok(None) };
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let about = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
    if fs::metadata(path).map_err(about)?.len() > LARGEST_CONFIGURATION {
        return Err(about(io::Error::other(format!("more than {LARGEST_CONFIGURATION} bytes"))));
    }
    let read: Configuration = serde_json::from_slice(&fs::read(path).map_err(about)?).map_err(|e| about(e.into()))?;
    let plugins = read.r#type.into_iter().chain(read.plugins.into_iter().map(|plugin| plugin.r#type)).collect();
    Ok(Some(CniChain { file: name, plugins }))
}

/// Multus may be missing from the current chain: its agent writes `00-multus.conf` when it starts, and another chain
/// may have become the first meanwhile. An unreadable folder is skipped here; `first_chain` reports it.
fn files_of_multus(places: &CniPlaces) -> Vec<String> {
    let mut found: Vec<String> = [places.configurations, places.binaries]
        .iter()
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .filter(|entry| entry.file_name().to_string_lossy().contains("multus"))
        .map(|entry| entry.path().display().to_string())
        .collect();
    found.sort();
    found
}

pub(super) fn findings(facts: &CniFacts) -> Vec<Finding> {
    let mut findings = vec![configuration(facts)];
    if let Ok(Some(chain)) = &facts.chain
        && let Some(plugin) = chain.plugins.iter().find(|plugin| PAST_THE_NODE.contains(&plugin.as_str()))
    {
        findings.push(Finding::error(
            Check::PodNetwork,
            format!(
                "the network plugin {plugin} ({}) connects pods in a way that bypasses the node's forward hook: no \
                 policy is enforced for them",
                chain.file
            ),
            "use a network plugin that routes or bridges the traffic of pods on the node, such as ptp or bridge",
        ));
    }
    let in_chain = match &facts.chain {
        Ok(Some(chain)) if chain.plugins.iter().any(|plugin| SECONDARY_NETWORKS.contains(&plugin.as_str())) => {
            Some(chain.file.clone())
        }
        Ok(_) | Err(_) => None,
    };
    let signs: Vec<String> = in_chain.into_iter().chain(facts.multus.iter().cloned()).collect();
    if !signs.is_empty() {
        findings.push(Finding::note(
            Check::PodNetwork,
            format!(
                "Multus attaches pods to additional networks ({}): policies are enforced on the first network only",
                list(&signs)
            ),
            "see the pods' annotation k8s.v1.cni.cncf.io/network-status; use another policy engine for these \
             networks, or do not attach isolated pods to them",
        ));
    }
    findings.push(plugin(facts));
    findings.push(socket(facts));
    findings.push(stored(facts));
    if let Ok(AttachmentFiles { unchecked, .. }) = &facts.attachments
        && let [first, ..] = &unchecked[..]
    {
        findings.push(Finding::warning(
            Check::Attachments,
            format!("the source addresses of {} attachments are not fully checked: {first}", unchecked.len()),
            "use a network plugin that gives the host-side interfaces of pods an ordinary name; restart pods whose \
             addresses could not be read",
        ));
    }
    findings
}

const INSTALL: &str = "run ringfence install-cni";

fn is_in_chain(facts: &CniFacts) -> bool {
    matches!(&facts.chain, Ok(Some(chain)) if chain.plugins.iter().any(|plugin| plugin == PLUGIN))
}

fn configuration(facts: &CniFacts) -> Finding {
    let folder = facts.folder.display();
    match &facts.chain {
        Ok(Some(chain)) if is_in_chain(facts) => {
            Finding::ok(Check::CniConfig, format!("{PLUGIN} is in the plugin chain of {}", chain.file))
        }
        Ok(Some(chain)) => Finding::warning(
            Check::CniConfig,
            format!(
                "{PLUGIN} is not in the plugin chain of {} in {folder}: pods send and receive before their rules are \
                 in force",
                chain.file
            ),
            INSTALL,
        ),
        Ok(None) => Finding::warning(
            Check::CniConfig,
            format!("{folder} has no CNI configuration, so pods do not wait for their rules"),
            "install a network plugin and run ringfence install-cni; if the folder is another one, set --cni-conf-dir",
        ),
        Err(error) => Finding::warning(
            Check::CniConfig,
            format!("cannot read the CNI configuration in {folder}: {error}"),
            "correct the file; container runtimes cannot start pods with it",
        ),
    }
}

fn plugin(facts: &CniFacts) -> Finding {
    let path = facts.plugin.display();
    let lack = match facts.plugin_state {
        PluginState::Runs => return Finding::ok(Check::CniPlugin, format!("the plugin {path} is installed")),
        PluginState::NotExecutable => format!("the plugin {path} is not executable"),
        PluginState::Missing => format!("the plugin {path} is missing"),
    };
    match is_in_chain(facts) {
        true => Finding::error(
            Check::CniPlugin,
            format!("{lack}, but the plugin chain refers to it: no pod can start"),
            INSTALL,
        ),
        false => Finding::warning(Check::CniPlugin, lack, INSTALL),
    }
}

fn socket(facts: &CniFacts) -> Finding {
    let path = facts.socket.display();
    let advice = "start the agent; if its run directory is another one, set --run-dir";
    let unanswered = |error: &str| {
        let finding = format!("the agent does not answer the CNI plugin on {path}: {error}");
        match is_in_chain(facts) {
            true => Finding::error(Check::CniSocket, format!("{finding}; pods start isolated or not at all"), advice),
            false => Finding::warning(Check::CniSocket, finding, advice),
        }
    };
    match &facts.answer {
        Ok(Response::Ok) => Finding::ok(Check::CniSocket, "the agent answers the CNI plugin"),
        Ok(Response::Failed { reason }) => unanswered(reason),
        Ok(Response::Enforced | Response::Isolated { .. }) => unanswered("unexpected response"),
        Err(error) => unanswered(error),
    }
}

fn stored(facts: &CniFacts) -> Finding {
    let advice =
        "remove the file if its pod no longer exists, or restart the pod; the agent rereads the folder by itself";
    match &facts.attachments {
        Ok(AttachmentFiles { count, unreadable, .. }) if unreadable.is_empty() => {
            Finding::ok(Check::Attachments, format!("the CNI plugin has reported {count} pods of this node"))
        }
        Ok(AttachmentFiles { unreadable, .. }) => Finding::warning(
            Check::Attachments,
            format!(
                "{} attachment files of the CNI plugin are invalid, for example {}",
                unreadable.len(),
                unreadable[0]
            ),
            advice,
        ),
        Err(error) => Finding::warning(
            Check::Attachments,
            format!("cannot read the attachments of the CNI plugin: {error}"),
            "run this as root, on the node",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity::{self, Error, Ok as Fine, Warning};
    use super::*;

    fn chain(plugins: &[&str]) -> Result<Option<CniChain>, String> {
        let plugins = plugins.iter().map(|p| (*p).to_owned()).collect();
        Ok(Some(CniChain { file: "10-pods.conflist".into(), plugins }))
    }

    fn installed() -> CniFacts {
        CniFacts {
            folder: "/etc/cni/net.d".into(),
            chain: chain(&["bridge", "portmap", PLUGIN]),
            multus: vec![],
            plugin: "/opt/cni/bin/ringfence-cni".into(),
            plugin_state: PluginState::Runs,
            socket: "/run/ringfence/cni.sock".into(),
            answer: Ok(Response::Ok),
            attachments: Ok(AttachmentFiles { count: 3, ..AttachmentFiles::default() }),
        }
    }

    fn wrong(facts: &CniFacts) -> Vec<(Check, FindingSeverity)> {
        findings(facts).iter().map(|f| (f.id, f.severity)).filter(|(_, s)| *s != Fine).collect()
    }

    #[test]
    fn a_plugin_in_the_chain_has_nothing_wrong() {
        assert_eq!(wrong(&installed()), []);
        assert_eq!(findings(&installed()).len(), 4);
    }

    #[test]
    fn a_chain_without_the_plugin_is_a_warning() {
        for chain in [chain(&["bridge"]), Ok(None), Err("not JSON".into())] {
            assert_eq!(wrong(&CniFacts { chain, ..installed() }), [(Check::CniConfig, Warning)]);
        }
    }

    #[test]
    fn pods_past_the_node_are_an_error() {
        for plugin in PAST_THE_NODE {
            let facts = CniFacts { chain: chain(&[plugin, PLUGIN]), ..installed() };
            assert_eq!(wrong(&facts), [(Check::PodNetwork, Error)]);
        }
    }

    #[test]
    fn networks_of_multus_are_noted() {
        for plugin in SECONDARY_NETWORKS {
            let facts = CniFacts { chain: chain(&[plugin, PLUGIN]), ..installed() };
            assert_eq!(wrong(&facts), [(Check::PodNetwork, FindingSeverity::Note)]);
        }
    }

    #[test]
    fn files_of_multus_are_noted_beside_another_chain() {
        let folder = tempfile::tempdir().unwrap();
        let [configurations, binaries] = ["net.d", "bin"].map(|name| folder.path().join(name));
        let places = CniPlaces { configurations: &configurations, binaries: &binaries, run_dir: folder.path() };
        assert_eq!(files_of_multus(&places), Vec::<String>::new(), "no folder");
        for path in [configurations.join("multus.d"), binaries.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        fs::write(configurations.join("05-pods.conflist"), "{}").unwrap();
        fs::write(binaries.join("multus-shim"), "").unwrap();
        let found = files_of_multus(&places);
        let names = ["bin/multus-shim", "net.d/multus.d"].map(|name| folder.path().join(name).display().to_string());
        assert_eq!(found, names);
        let facts = CniFacts { multus: found, ..installed() };
        assert_eq!(wrong(&facts), [(Check::PodNetwork, FindingSeverity::Note)]);
        assert!(findings(&facts).iter().any(|finding| finding.finding.contains("multus-shim")));
    }

    #[test]
    fn missing_plugin_is_error_if_chain_names_it() {
        for plugin_state in [PluginState::Missing, PluginState::NotExecutable] {
            let named = CniFacts { plugin_state, ..installed() };
            assert_eq!(wrong(&named), [(Check::CniPlugin, Error)]);
            let unnamed = CniFacts { chain: chain(&["ptp"]), ..named };
            assert_eq!(wrong(&unnamed), [(Check::CniConfig, Warning), (Check::CniPlugin, Warning)]);
        }
    }

    #[test]
    fn cni_socket_failure_is_error_if_plugin_chained() {
        for answer in [Err("no such file".into()), Ok(Response::Failed { reason: "x".into() }), Ok(Response::Enforced)]
        {
            let named = CniFacts { answer, ..installed() };
            assert_eq!(wrong(&named), [(Check::CniSocket, Error)]);
            let unnamed = CniFacts { chain: chain(&["ptp"]), ..named };
            assert_eq!(wrong(&unnamed), [(Check::CniConfig, Warning), (Check::CniSocket, Warning)]);
        }
    }

    #[test]
    fn attachments_that_cannot_be_read_are_a_warning() {
        let some = Ok(AttachmentFiles { count: 2, unreadable: vec!["x.json: no".into()], unchecked: vec![] });
        // These attachments are readable, but their interfaces cannot be used in a rule.
        let unchecked = Ok(AttachmentFiles { count: 2, unreadable: vec![], unchecked: vec!["pod shop/web".into()] });
        for attachments in [some, unchecked, Err("no".into())] {
            assert_eq!(wrong(&CniFacts { attachments, ..installed() }), [(Check::Attachments, Warning)]);
        }
    }

    #[test]
    fn the_first_configuration_by_name_is_the_chain() {
        let folder = std::env::temp_dir().join(format!("ringfence-chain-{}", std::process::id()));
        assert_eq!(first_chain(&folder).unwrap(), None);
        fs::create_dir_all(&folder).unwrap();
        assert_eq!(first_chain(&folder).unwrap(), None);
        fs::write(folder.join("05-notes.txt"), "no").unwrap();
        fs::write(folder.join("20-other.conf"), r#"{"type":"ptp"}"#).unwrap();
        assert_eq!(first_chain(&folder).unwrap().unwrap().plugins, ["ptp"]);
        fs::write(folder.join("10-pods.conflist"), r#"{"plugins":[{"type":"bridge"},{"type":"ringfence-cni"}]}"#)
            .unwrap();
        let chain = first_chain(&folder).unwrap().unwrap();
        assert_eq!((chain.file.as_str(), chain.plugins), ("10-pods.conflist", vec!["bridge".into(), PLUGIN.into()]));
        fs::write(folder.join("00-broken.conf"), "{").unwrap();
        let error = first_chain(&folder).unwrap_err().to_string();
        assert!(error.starts_with("00-broken.conf: "), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }
}
