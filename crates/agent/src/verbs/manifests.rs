//! Builds the cluster state from a folder of manifests, for the verbs that need no cluster.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::bail;
use console::BAD;
use policy::{ClusterState, Enforcement};

use crate::attachments::{self, AttachmentFolder};

pub(super) struct Manifests {
    pub(super) state: ClusterState,
    pub(super) problems: Vec<cluster::Problem>,
    /// Number of objects of unsupported kinds.
    pub(super) ignored: usize,
}

/// `enforcement` applies to policies that do not set it.
pub(super) fn read(folder: &Path, enforcement: Enforcement) -> anyhow::Result<Manifests> {
    let folder = cluster::read_folder(folder)?;
    let mut state = ClusterState::new();
    state.set_default_enforcement(enforcement);
    for change in folder.changes() {
        state.apply(change);
    }
    Ok(Manifests { state, problems: folder.problems, ignored: folder.ignored })
}

impl Manifests {
    /// Adds the attachments that the CNI plugin has reported on this node.
    ///
    /// # Errors
    /// If the run directory has no attachments. An unreadable one is a problem.
    pub(super) fn attach(&mut self, run_dir: &Path) -> anyhow::Result<()> {
        let folder = attachments::folder(run_dir);
        if !folder.is_dir() {
            bail!("folder of the CNI plugin's attachments not found: {}", folder.display());
        }
        let AttachmentFolder { attachments, unreadable: _, problems, unchecked } =
            attachments::read(&folder).map_err(anyhow::Error::msg)?;
        for attachment in attachments {
            self.state.attach(attachment);
        }
        let problem = |message| cluster::Problem { origin: "attachments".into(), message };
        self.problems.extend(problems.into_iter().chain(unchecked).map(problem));
        Ok(())
    }

    pub(super) fn report_problems(&self) {
        for problem in &self.problems {
            anstream::eprintln!("{BAD}error:{BAD:#} {problem}");
        }
    }

    /// Flows would look denied or without policy only because their pods are missing.
    pub(super) fn require_pods(&self, folder: &Path) -> anyhow::Result<()> {
        if self.state.pods().next().is_none() {
            bail!(
                "no pods in {}: flows are compared with policies of pods; save them with: \
                 kubectl get namespaces,pods,nodes,networkpolicies,clusternetworkpolicies --all-namespaces --output yaml \
                 (without clusternetworkpolicies if the cluster has no such kind)",
                folder.display()
            );
        }
        Ok(())
    }

    /// A node without pods has an empty ruleset; its name is more likely misspelt.
    pub(super) fn require_node(&self, node: &str) -> anyhow::Result<()> {
        let nodes: BTreeSet<&str> = self.state.pods().filter_map(|p| p.node.as_deref()).collect();
        if nodes.contains(node) {
            return Ok(());
        }
        if nodes.is_empty() {
            bail!("nothing to render: no pod in these manifests is bound to a node (spec.nodeName)");
        }
        let known: Vec<&str> = nodes.into_iter().collect();
        bail!("no pod is bound to node '{node}'; the nodes here are: {}", known.join(", "));
    }
}
