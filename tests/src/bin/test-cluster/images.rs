//! The images that the cluster runs: this revision, an earlier one, and the program of the test's pods.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;

use crate::cluster::{Cluster, root, run};

/// The image of the manifests.
const CURRENT: &str = "ringfence:0.1.0";
/// The image from which an upgrade starts.
const PREVIOUS: &str = "ringfence:previous";
/// The image of the test's pods.
pub(crate) const PODS: &str = "ringfence-test-pod:1";

/// The revision from which an upgrade starts.
pub(crate) struct Previous {
    pub(crate) commit: String,
    /// The revision's install.yaml, with [`PREVIOUS`] as the name of the image.
    pub(crate) manifests: String,
}

/// Folders with the contents of the images.
pub(crate) struct Images {
    current: PathBuf,
    /// A folder for each commit and profile.
    previous: PathBuf,
    pods: PathBuf,
}

impl Images {
    pub(crate) fn in_work_folder() -> Self {
        let work = work_folder();
        Self { current: work.join("current"), previous: work.join("previous"), pods: work.join("pods") }
    }

    /// Builds the images that every step needs.
    pub(crate) fn build(&self) -> anyhow::Result<()> {
        for folder in [&self.current, &self.pods] {
            empty(folder)?;
        }
        build_image(&root(), &self.current, &root().join("target"))?;
        build_pods(&self.pods)
    }

    pub(crate) fn load(&self, cluster: Cluster) -> anyhow::Result<()> {
        cluster.image(CURRENT, &self.current, "/usr/local/bin/ringfence")?;
        self.load_pods(cluster)
    }

    /// Builds the earlier revision, unless an earlier run did, and loads it.
    pub(crate) fn load_previous(&self, cluster: Cluster) -> anyhow::Result<Previous> {
        let revision = std::env::var("PREVIOUS_REVISION").unwrap_or_else(|_| "HEAD~1".to_owned());
        let git = |words: &[&str]| run(Command::new("git").current_dir(root()).args(words));
        let commit = git(&["rev-parse", "--verify", &format!("{revision}^{{commit}}")])?.trim().to_owned();
        let profile = std::env::var("IMAGE_PROFILE").unwrap_or_else(|_| "release".to_owned());
        let image = self.previous.join(format!("{commit}-{profile}"));
        if !image.exists() {
            let unfinished = self.previous.join("unfinished");
            empty(&unfinished)?;
            build_revision(&commit, &work_folder().join("tree"), &unfinished)
                .with_context(|| format!("cannot build the image of revision {revision}"))?;
            fs::rename(&unfinished, &image).context("cannot rename the folder of the earlier revision's image")?;
        }
        cluster.image(PREVIOUS, &image, "/usr/local/bin/ringfence")?;
        let manifests = git(&["show", &format!("{commit}:deploy/install.yaml")])?.replace(CURRENT, PREVIOUS);
        Ok(Previous { commit, manifests })
    }

    pub(crate) fn load_pods(&self, cluster: Cluster) -> anyhow::Result<()> {
        cluster.image(PODS, &self.pods, "/test-cluster")
    }

    /// The program `ringfence-context` of the tested image, for hosts outside of pods.
    pub(crate) fn context_program(&self) -> String {
        self.current.join("usr/local/bin/ringfence-context").display().to_string()
    }

    /// The program of the test's pods, for hosts outside of the cluster.
    pub(crate) fn pod_program(&self) -> String {
        self.pods.join("test-cluster").display().to_string()
    }
}

/// The folder of this test's files.
pub(crate) fn work_folder() -> PathBuf {
    root().join("target/test-cluster")
}

fn empty(folder: &Path) -> anyhow::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn build_image(tree: &Path, folder: &Path, target: &Path) -> anyhow::Result<()> {
    run(Command::new(tree.join("scripts/image")).arg(folder).env("CARGO_TARGET_DIR", target)).map(drop)
}

/// Builds an earlier revision with the build steps of the present one, in a work tree that is removed afterwards.
fn build_revision(revision: &str, tree: &Path, folder: &Path) -> anyhow::Result<()> {
    let git = || {
        let mut command = Command::new("git");
        command.current_dir(root());
        command
    };
    run(git().args(["worktree", "prune"]))?;
    if tree.exists() {
        run(git().args(["worktree", "remove", "--force"]).arg(tree))?;
    }
    run(git().args(["worktree", "add", "--detach"]).arg(tree).arg(revision))?;
    fs::copy(root().join("scripts/image"), tree.join("scripts/image"))?;
    // Cargo would consider the artifacts of another tree of the same packages fresh: each tree has its own target
    // folder.
    let built = build_image(tree, folder, &work_folder().join("previous-target"));
    run(git().args(["worktree", "remove", "--force"]).arg(tree))?;
    built
}

/// Copies this program and its shared libraries to the folder of the pods' image.
fn build_pods(folder: &Path) -> anyhow::Result<()> {
    let program = std::env::current_exe().context("cannot find this program")?;
    run(Command::new("strip").arg("--output-file").arg(folder.join("test-cluster")).arg(&program))?;
    for line in run(Command::new("ldd").arg(&program))?.lines() {
        let Some(library) = line.split_whitespace().find(|word| word.starts_with('/')) else { continue };
        run(Command::new("cp").args(["--parents", "--dereference", library]).arg(folder))?;
    }
    Ok(())
}
