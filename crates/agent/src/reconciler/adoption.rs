//! Adoption of the pods that the CNI plugin isolated while no agent answered.

use super::{Action, Reconciler, Work};

/// Requests to adopt isolated pods.
#[derive(Debug)]
pub(super) struct Adoption {
    /// The plugin may have isolated pods that the rules cover now.
    wanted: bool,
    /// The plugin isolated pods that are still unknown here.
    unknown_remain: bool,
    /// The examination of the node that precedes an adoption was requested.
    examined: bool,
}

impl Default for Adoption {
    /// An agent that starts does not know what the plugin did before.
    fn default() -> Adoption {
        Adoption { wanted: true, unknown_remain: false, examined: false }
    }
}

impl Adoption {
    /// Requests an adoption: the plugin may have isolated a pod.
    pub(super) fn request(&mut self) {
        (self.wanted, self.examined) = (true, false);
    }

    /// Requests an adoption if unknown pods remain isolated.
    pub(super) fn retry(&mut self) {
        if self.unknown_remain {
            self.request();
        }
    }
}

impl Reconciler {
    /// The plugin may have isolated a pod, whose attachment it could not report. The attachments must be read before
    /// anything is adopted: otherwise an older one that claims the address would count as the pod's.
    pub(super) fn expect_isolated(&mut self) {
        self.adoption.request();
        self.due.insert(Work::ReadAttachments);
    }

    /// Adopts pods that the plugin isolated without the agent. While ADDs are refused, their packets may bypass the
    /// rules: the plugin's tables stay. The node may have changed since the last resync, so it is examined before.
    pub(super) fn next_adoption(&mut self) -> Option<Action> {
        if self.gate.take_failed() {
            self.adoption.request();
        }
        if !self.adoption.wanted || !self.due.contains(&Work::Adopt) || self.add_obstacle().is_some() {
            return None;
        }
        if !self.adoption.examined {
            self.adoption.examined = true;
            self.examinations.require(self.status.isolated_pods > 0);
        }
        if self.examinations.is_pending() {
            return self.examinations.start().map(|isolates_pods| Action::Examine { isolates_pods });
        }
        self.due.remove(&Work::Adopt);
        Some(Action::ReleaseIsolated)
    }

    /// Records whether isolated pods remain that are unknown here.
    pub(crate) fn record_release(&mut self, unknown_remain: anyhow::Result<bool>) {
        match unknown_remain {
            Ok(unknown_remain) => self.adoption = Adoption { wanted: false, unknown_remain, examined: false },
            Err(error) => {
                self.adoption.examined = false;
                tracing::warn!(
                    "cannot adopt the pods that the CNI plugin isolated without the agent; they stay isolated: {error}"
                );
            }
        }
    }
}
