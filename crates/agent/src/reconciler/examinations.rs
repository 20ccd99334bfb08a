//! Examinations of the node for conditions that bypass the rules, in threads of their own: they read files of the
//! host and ask the kernel, which may take long on a busy node.

use std::path::{Path, PathBuf};

use crate::background::Background;

/// The texts of the findings that are errors.
pub(super) type Findings = Vec<String>;

pub(super) struct Examinations {
    run_dir: PathBuf,
    /// Numbers of the examinations that were started and completed.
    started: u64,
    completed: u64,
    /// The number of the examination that CNI ADDs and the adoption of isolated pods wait for.
    required: u64,
    running: Background<Findings>,
    /// Requested again while one was running, which may have read the node before the request.
    again: bool,
    isolates_pods: bool,
}

impl Examinations {
    pub(super) fn new(run_dir: &Path) -> Examinations {
        Examinations {
            run_dir: run_dir.to_owned(),
            started: 0,
            completed: 0,
            required: 0,
            running: Background::default(),
            again: false,
            isolates_pods: false,
        }
    }

    /// Examines the node in this thread.
    pub(super) fn examine_now(&self, isolates_pods: bool) -> Findings {
        examine(&self.run_dir, isolates_pods)
    }

    /// Requests an examination. Some findings are errors only while a pod is isolated.
    pub(super) fn request(&mut self, isolates_pods: bool) {
        self.isolates_pods = isolates_pods;
        match self.running.is_running() {
            true => self.again = true,
            false => self.start(),
        }
    }

    /// Requests an examination that is [pending](Examinations::is_pending) until it completes.
    pub(super) fn require(&mut self, isolates_pods: bool) {
        self.request(isolates_pods);
        self.required = self.started + u64::from(self.again);
    }

    /// Whether a required examination has not completed.
    pub(super) fn is_pending(&self) -> bool {
        self.completed < self.required
    }

    fn start(&mut self) {
        self.started += 1;
        let (run_dir, isolates_pods) = (self.run_dir.clone(), self.isolates_pods);
        if let Err(error) = self.running.start("examination", move || examine(&run_dir, isolates_pods)) {
            tracing::warn!("cannot start the thread that examines the node: {error}");
            self.running.fail();
        }
    }

    /// The findings of the running examination; `None` if it failed. Pending while none runs. Cancel safe.
    pub(super) async fn outcome(&mut self) -> Option<Findings> {
        let outcome = self.running.outcome().await.ok();
        self.completed = self.started;
        if std::mem::take(&mut self.again) {
            self.start();
        }
        outcome
    }
}

fn examine(run_dir: &Path, isolates_pods: bool) -> Findings {
    let findings = crate::doctor::cheap(Path::new("/"), run_dir, isolates_pods);
    findings.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(flavor = "current_thread")]
    async fn required_examination_begins_after_its_request() {
        let folder = tempfile::tempdir().unwrap();
        let mut examinations = Examinations::new(folder.path());
        assert!(!examinations.is_pending());
        examinations.request(false);
        assert!(!examinations.is_pending(), "nothing waits for it");
        examinations.require(true);
        assert!(examinations.outcome().await.is_some());
        assert!(examinations.is_pending(), "the first may have read the node before the request");
        assert!(examinations.outcome().await.is_some());
        assert!(!examinations.is_pending());
        assert!(!examinations.running.is_running());
    }
}
