//! The gate of pod starts: pending CNI ADDs that wait until the rules of their pod are committed.

use std::net::IpAddr;
use std::time::Instant;

use policy::{Attachment, AttachmentId, ClusterState, Holder, ObjectName};
use tokio::sync::oneshot;

/// Maximum number of pending ADDs. A kubelet starts a few pods at a time, so that more pending ADDs than a node has
/// room for pods indicate a fault. The runtime retries the ADDs that are refused.
pub(crate) const MOST_WAITING: usize = 512;

/// Response to a CNI ADD or CHECK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The rules of the pod's policies are committed.
    Enforced,
    /// The pod is unknown, and rules that deny all its traffic are committed.
    Isolated(String),
    /// The request failed: the agent does not guarantee that any rules of the pod are committed.
    Failed(String),
}

/// A pending CNI ADD.
#[derive(Debug)]
pub(crate) struct PendingAdd {
    pub(crate) attachment: Attachment,
    /// When the agent received the ADD.
    pub(crate) since: Instant,
    /// When the ADD is answered even if its rules are not committed.
    pub(crate) deadline: Instant,
    pub(crate) reply: oneshot::Sender<Outcome>,
    /// Why a lookup at the API server did not find the pod; `None` before it.
    pub(crate) unknown: Option<String>,
}

/// The pending ADDs, at most [`MOST_WAITING`].
#[derive(Debug, Default)]
pub(crate) struct Gate {
    waiting: Vec<PendingAdd>,
    /// An ADD failed since the last [`Gate::take_failed`], so that the CNI plugin may have isolated the pod itself.
    failed: bool,
}

impl Gate {
    /// Adds a pending ADD, which replaces an earlier one of the same attachment. If there are [`MOST_WAITING`] others,
    /// it is refused. Returns whether it was added.
    pub(crate) fn admit(&mut self, waiting: PendingAdd) -> bool {
        // A runtime that retries has abandoned its first request.
        self.waiting.retain(|w| w.attachment.id != waiting.attachment.id);
        if self.waiting.len() >= MOST_WAITING {
            let reason = format!("too many pods wait for their rules ({MOST_WAITING}); retry the ADD");
            self.refuse(waiting, reason);
            return false;
        }
        self.waiting.push(waiting);
        true
    }

    /// Whether an ADD waits for the pod.
    pub(crate) fn waits_for(&self, pod: &ObjectName) -> bool {
        self.waiting.iter().any(|w| w.attachment.pod == *pod)
    }

    /// Answers an ADD with [`Outcome::Failed`].
    pub(crate) fn refuse(&mut self, waiting: PendingAdd, reason: String) {
        self.failed = true;
        tracing::warn!(pod = %waiting.attachment.pod, "CNI ADD refused: {reason}");
        answer(waiting, Outcome::Failed(reason));
    }

    /// Removes the pending ADD of a deleted attachment without a response.
    pub(crate) fn withdraw(&mut self, id: &AttachmentId) {
        self.waiting.retain(|w| w.attachment.id != *id);
    }

    /// Whether an ADD has failed since the last call.
    pub(crate) fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }

    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.waiting.iter().map(|w| w.deadline).min()
    }

    /// Records why a lookup at the API server did not find the pod of pending ADDs.
    pub(crate) fn record_unknown(&mut self, pod: &ObjectName, reason: &str) {
        for waiting in self.waiting.iter_mut().filter(|w| w.attachment.pod == *pod) {
            waiting.unknown = Some(reason.into());
        }
    }

    /// Answers ADDs whose rules are committed or whose deadline has passed. `not_in_force` is the reason why the kernel
    /// does not have the desired rules; `None` if it has them. Returns the arrival time of each enforced ADD.
    pub(crate) fn answer_waiting(
        &mut self,
        state: &ClusterState,
        not_in_force: Option<&str>,
        now: Instant,
    ) -> Vec<Instant> {
        let mut enforced = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            let outcome = match (not_in_force, attachment_state(state, &waiting.attachment)) {
                (None, AttachmentState::Known) => Outcome::Enforced,
                _ if now < waiting.deadline => {
                    self.waiting.push(waiting);
                    continue;
                }
                (None, AttachmentState::Unknown) => Outcome::Isolated(match &waiting.unknown {
                    Some(reason) => format!("pod {} not found: {reason}", waiting.attachment.pod),
                    None => format!("pod {} not found", waiting.attachment.pod),
                }),
                // No attachment owns the address, so no rule denies it.
                (None, AttachmentState::Lost) => Outcome::Failed(format!(
                    "attachment {} was removed, or a later attachment has its address",
                    waiting.attachment.id
                )),
                (Some(reason), _) => Outcome::Failed(reason.into()),
            };
            match &outcome {
                Outcome::Enforced => enforced.push(waiting.since),
                Outcome::Isolated(reason) => {
                    tracing::warn!(pod = %waiting.attachment.pod, "pod not found before the deadline of its CNI ADD; \
                        all its traffic is denied until its object is known: {reason}")
                }
                Outcome::Failed(reason) => {
                    self.refuse(waiting, reason.clone());
                    continue;
                }
            }
            answer(waiting, outcome);
        }
        enforced
    }
}

/// Ownership of an attachment's addresses in the current state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttachmentState {
    /// All addresses belong to known pods.
    Known,
    /// At least one address belongs to a pod that is isolated until its object is known.
    Unknown,
    /// At least one address does not belong to the attachment: the attachment was removed, or a later one has the
    /// address.
    Lost,
}

pub(crate) fn attachment_state(state: &ClusterState, attachment: &Attachment) -> AttachmentState {
    let of = |address: &IpAddr| match state.holder(*address) {
        _ if !state.is_attached_as(attachment, *address) => AttachmentState::Lost,
        Some(Holder::Pod(_)) => AttachmentState::Known,
        Some(Holder::Unknown(_)) => AttachmentState::Unknown,
        None => AttachmentState::Lost,
    };
    let all: Vec<AttachmentState> = attachment.addresses.iter().map(of).collect();
    let has = |attachment_state| all.contains(&attachment_state);
    match (has(AttachmentState::Lost), has(AttachmentState::Unknown)) {
        (true, _) => AttachmentState::Lost,
        (false, true) => AttachmentState::Unknown,
        (false, false) => AttachmentState::Known,
    }
}

fn answer(waiting: PendingAdd, outcome: Outcome) {
    if waiting.reply.send(outcome).is_err() {
        tracing::debug!(pod = %waiting.attachment.pod, "the CNI plugin closed its connection before the response");
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use policy::{Change, Kind, lower};
    use serde_json::json;

    use super::*;

    const ADDRESS: &str = "10.1.0.5";

    fn attached() -> ClusterState {
        let mut state = ClusterState::new();
        state.attach(attachment());
        state
    }

    fn attachment() -> Attachment {
        Attachment {
            id: AttachmentId { container: "c".into(), interface: "eth0".into() },
            pod: ObjectName::new("shop", "web"),
            uid: None,
            addresses: vec![ADDRESS.parse().unwrap()],
            host_interface: None,
            bridged: false,
            input_interface: None,
            hardware_address: None,
            link_local: vec![],
            since: 1,
        }
    }

    fn known() -> ClusterState {
        let mut state = attached();
        let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": {}});
        state.apply(Change::Set(lower(Kind::Pod, &object).unwrap()));
        state
    }

    fn waiting(deadline: Instant) -> (PendingAdd, oneshot::Receiver<Outcome>) {
        let (reply, answer) = oneshot::channel();
        let waiting = PendingAdd { attachment: attachment(), since: deadline, deadline, reply, unknown: None };
        (waiting, answer)
    }

    #[test]
    fn add_waits_for_pod_and_commit() {
        let (now, later) = (Instant::now(), Instant::now() + Duration::from_secs(1));
        let mut gate = Gate::default();
        let (add, mut answer) = waiting(later);
        gate.admit(add);
        gate.answer_waiting(&attached(), None, now);
        gate.answer_waiting(&known(), Some("the kernel refused"), now);
        assert!(answer.try_recv().is_err());
        gate.answer_waiting(&known(), None, now);
        assert_eq!(answer.try_recv(), Ok(Outcome::Enforced));
        assert_eq!(gate.next_deadline(), None);
    }

    #[test]
    fn add_at_deadline_is_isolated_or_failed() {
        let now = Instant::now();
        let mut gate = Gate::default();
        let (add, mut answer) = waiting(now);
        gate.admit(add);
        gate.record_unknown(&ObjectName::new("shop", "web"), "the API server does not have the pod (404)");
        gate.answer_waiting(&attached(), None, now);
        let reason = "pod shop/web not found: the API server does not have the pod (404)";
        assert_eq!(answer.try_recv(), Ok(Outcome::Isolated(reason.into())));
        assert!(!gate.failed);

        let (add, mut answer) = waiting(now);
        gate.admit(add);
        gate.answer_waiting(&known(), Some("not synced"), now);
        assert_eq!(answer.try_recv(), Ok(Outcome::Failed("not synced".into())));
        assert!(gate.failed);
    }

    #[test]
    fn add_fails_at_deadline_without_its_attachment() {
        let now = Instant::now();
        let mut gate = Gate::default();
        let (add, mut answer) = waiting(now);
        gate.admit(add);
        gate.answer_waiting(&ClusterState::new(), None, now);
        assert_eq!(
            answer.try_recv(),
            Ok(Outcome::Failed("attachment c@eth0 was removed, or a later attachment has its address".into()))
        );
    }

    #[test]
    fn repeated_add_is_answered_on_latest_connection() {
        let later = Instant::now() + Duration::from_secs(1);
        let mut gate = Gate::default();
        let ((first, mut old), (second, mut new)) = (waiting(later), waiting(later));
        gate.admit(first);
        gate.admit(second);
        gate.answer_waiting(&known(), None, Instant::now());
        assert!(old.try_recv().is_err());
        assert_eq!(new.try_recv(), Ok(Outcome::Enforced));
    }
}
