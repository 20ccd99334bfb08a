//! When the node is examined for conditions that bypass the rules.
//!
//! Sans-I/O: the event loop runs one examination at a time in a thread, since it reads files of the host and queries the
//! kernel, which may take long on a busy node.

/// The texts of the findings that are errors.
pub(crate) type Findings = Vec<String>;

#[derive(Debug, Default)]
pub(super) struct Examinations {
    /// Numbers of the examinations that were started and completed.
    started: u64,
    completed: u64,
    /// The number of the examination that CNI ADDs and the adoption of isolated pods wait for.
    required: u64,
    /// Requested since the last start: a running examination may have read the node before the request.
    requested: bool,
    isolates_pods: bool,
}

impl Examinations {
    /// Requests an examination. Some findings are errors only while a pod is isolated.
    pub(super) fn request(&mut self, isolates_pods: bool) {
        (self.requested, self.isolates_pods) = (true, isolates_pods);
    }

    /// Requests an examination that is [pending](Examinations::is_pending) until it completes.
    pub(super) fn require(&mut self, isolates_pods: bool) {
        self.request(isolates_pods);
        self.required = self.started + 1;
    }

    /// Whether a required examination has not completed.
    pub(super) fn is_pending(&self) -> bool {
        self.completed < self.required
    }

    /// Starts a requested examination unless one is running. Returns whether pods are isolated.
    pub(super) fn start(&mut self) -> Option<bool> {
        let is_running = self.completed < self.started;
        if is_running || !std::mem::take(&mut self.requested) {
            return None;
        }
        self.started += 1;
        Some(self.isolates_pods)
    }

    /// Records that the running examination ended.
    pub(super) fn complete(&mut self) {
        self.completed = self.started;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn required_examination_begins_after_its_request() {
        let mut examinations = Examinations::default();
        assert!(!examinations.is_pending());
        examinations.request(false);
        assert!(!examinations.is_pending(), "nothing waits for it");
        assert_eq!(examinations.start(), Some(false));
        examinations.require(true);
        assert_eq!(examinations.start(), None, "one examination runs at a time");
        examinations.complete();
        assert!(examinations.is_pending(), "the first may have read the node before the request");
        assert_eq!(examinations.start(), Some(true));
        examinations.complete();
        assert!(!examinations.is_pending());
        assert_eq!(examinations.start(), None);
    }
}
