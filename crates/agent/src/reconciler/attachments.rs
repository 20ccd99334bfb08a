//! Attachments, and the requests of the CNI plugin.

use std::collections::BTreeSet;
use std::io;
use std::time::Instant;

use policy::{Attachment, AttachmentId};
use tokio::sync::oneshot;

use super::{Action, Reconciler};
use crate::attachments::AttachmentFolder;
use crate::gate::{AttachmentState, Outcome, PendingAdd, attachment_state};
use crate::metrics::labels::WatchedKind;
use crate::pod_lookup::PodRequest;

/// The attachment folder and the node's interfaces, as read.
#[derive(Debug)]
pub(crate) struct AttachmentReading {
    pub(crate) folder: Result<AttachmentFolder, String>,
    pub(crate) interfaces: InterfaceReading,
}

/// Properties of the node's interfaces on which the rules of pods depend, as read.
#[derive(Debug)]
pub(crate) struct InterfaceReading {
    /// The interfaces at which tc may redirect packets.
    pub(crate) redirecting: io::Result<BTreeSet<String>>,
    /// The interfaces that are ports of bridges.
    pub(crate) bridge_ports: io::Result<BTreeSet<String>>,
}

impl Reconciler {
    /// Replaces the attachments by those in the folder, and the properties of the interfaces.
    pub(crate) fn record_attachments(&mut self, reading: AttachmentReading, now: Instant) {
        let AttachmentReading { folder, interfaces } = reading;
        let replaced = match folder {
            Ok(AttachmentFolder { attachments, unreadable, problems, unchecked }) => {
                self.attachments_read = true;
                self.status.record_attachment_problems(problems);
                self.status.record_unchecked(unchecked);
                let attachments = self.with_unreadable(attachments, &unreadable);
                self.model.replace_attachments(attachments)
            }
            Err(problem) => {
                self.status.record_attachment_problems(vec![problem]);
                false
            }
        };
        let changed = [self.apply_interfaces(interfaces), replaced].contains(&true);
        self.record_change(changed, now);
    }

    /// Adds the known attachments whose files exist but are no longer readable. Without them the interfaces of running
    /// pods would not be checked any more.
    fn with_unreadable(
        &self,
        mut attachments: Vec<Attachment>,
        unreadable: &BTreeSet<AttachmentId>,
    ) -> Vec<Attachment> {
        let known = unreadable.iter().filter_map(|id| self.model.state().attachment(id));
        attachments.extend(known.map(|attachment| Attachment::clone(attachment)));
        attachments
    }

    /// Returns whether the rules may have to change.
    fn apply_interfaces(&mut self, interfaces: InterfaceReading) -> bool {
        let InterfaceReading { redirecting, bridge_ports } = interfaces;
        [self.apply_redirecting(redirecting), self.apply_bridge_ports(bridge_ports)].contains(&true)
    }

    /// ADDs are refused while it is unknown at which interfaces tc may redirect packets. Returns whether the rules may
    /// have to change.
    fn apply_redirecting(&mut self, interfaces: io::Result<BTreeSet<String>>) -> bool {
        let interfaces = match interfaces {
            Ok(interfaces) => interfaces,
            Err(error) => {
                let problem = format!("cannot list the qdiscs of this node's interfaces (rtnetlink): {error}");
                self.status.record_qdiscs(Some(problem));
                return false;
            }
        };
        self.status.record_qdiscs(None);
        // Rules cannot express other names, and no pod has such an interface.
        let named = interfaces.iter().filter_map(|name| name.parse().ok()).collect();
        self.model.set_redirecting(named)
    }

    /// Until the first success, only attachments report which interfaces are ports. Returns whether the rules may have to
    /// change.
    fn apply_bridge_ports(&mut self, ports: io::Result<BTreeSet<String>>) -> bool {
        match ports {
            // Only host interfaces of attachments matter: other interfaces become ports without an effect on the rules.
            Ok(ports) => {
                let of_pods = self.model.state().attachments().filter_map(|attachment| attachment.host_interface);
                let ports = of_pods.filter(|name| ports.contains(name.as_str())).collect();
                self.model.set_bridge_ports(ports)
            }
            Err(error) => {
                tracing::error!("cannot list this node's interfaces (rtnetlink); retrying at the next resync: {error}");
                false
            }
        }
    }

    /// Lists in the status the pods' interfaces at which tc may redirect packets.
    pub(super) fn publish_redirecting(&mut self) {
        let ports = self.model.state().redirecting_ports().map(|name| name.to_string()).collect();
        self.status.record_redirecting(ports);
    }

    /// Handles a CNI ADD, with the interfaces as read after its file was, or why the file does not confirm the ADD.
    pub(crate) fn add(&mut self, waiting: PendingAdd, confirmed: Result<InterfaceReading, String>, now: Instant) {
        let interfaces = match confirmed {
            Ok(interfaces) => interfaces,
            Err(reason) => return self.gate.refuse(waiting, reason),
        };
        let attachment = &waiting.attachment;
        self.latency.add(WatchedKind::Attachment, waiting.since, &self.metrics);
        let attached = self.model.attach(attachment.clone());
        let changed = [self.apply_interfaces(interfaces), attached].contains(&true);
        self.adoption.retry();
        if changed && attachment.bridged {
            self.examinations.require(self.status.isolated_pods > 0);
        }
        let (pod, uid) = (attachment.pod.clone(), attachment.uid.clone());
        let request = PodRequest { pod, uid, deadline: waiting.deadline };
        let unknown = attachment_state(self.model.state(), attachment) == AttachmentState::Unknown;
        if self.gate.admit(waiting) && unknown {
            self.requested.push_back(Action::LookUpPod(request));
        }
        self.record_change(changed, now);
    }

    /// Handles a CNI DEL that arrived at `at`, with the attachment's file as read. The folder is authoritative: a delayed
    /// DEL may refer to an earlier ADD of the same name.
    pub(crate) fn delete(
        &mut self,
        id: &AttachmentId,
        at: Instant,
        file: Result<Option<Attachment>, String>,
        now: Instant,
    ) {
        match file {
            Ok(None) => {
                self.gate.withdraw(id);
                self.latency.add(WatchedKind::Attachment, at, &self.metrics);
                let changed = self.model.detach(id);
                self.record_change(changed, now);
            }
            Ok(Some(_)) => tracing::info!("CNI DEL ignored: the plugin still has a file of attachment {id}"),
            Err(problem) => tracing::warn!("CNI DEL ignored for attachment {id}: {problem}"),
        }
    }

    /// Answers a CNI CHECK.
    pub(crate) fn check(&self, id: &AttachmentId, reply: oneshot::Sender<Outcome>) {
        let outcome = match (self.model.state().attachment(id), self.add_obstacle()) {
            (None, _) => Outcome::Failed("attachment not found".into()),
            (Some(_), Some(obstacle)) => Outcome::Failed(obstacle),
            (Some(attachment), None) => match attachment_state(self.model.state(), attachment) {
                AttachmentState::Known => Outcome::Enforced,
                AttachmentState::Unknown => Outcome::Isolated(format!("pod {} not found", attachment.pod)),
                AttachmentState::Lost => Outcome::Failed("a later attachment has one of its addresses".into()),
            },
        };
        if reply.send(outcome).is_err() {
            tracing::debug!("the CNI plugin closed its connection before the response to CHECK");
        }
    }

    /// Answers a CNI STATUS: why an ADD would fail now; `None` if it would succeed.
    pub(crate) fn report_add_obstacle(&self, reply: oneshot::Sender<Option<String>>) {
        if reply.send(self.add_obstacle()).is_err() {
            tracing::debug!("the CNI plugin closed its connection before the response to STATUS");
        }
    }

    /// Why an ADD must be refused now; `None` if it can be answered. STATUS uses the same check, so that it is never
    /// stricter than ADD: other causes of unreadiness (such as an unreadable attachment file) do not stop an ADD.
    pub(super) fn add_obstacle(&self) -> Option<String> {
        match self.status.unenforced.first().or(self.status.qdisc_problem.as_ref()) {
            Some(finding) => Some(finding.clone()),
            None if self.status.in_force => None,
            None => Some(self.status.unready().unwrap_or_else(|| "the rules are not committed".into())),
        }
    }

    /// Answers pending ADDs whose rules are committed, once the required examinations of the node have completed.
    pub(super) fn answer_waiting(&mut self, now: Instant) {
        let unexamined = || self.examinations.is_pending().then(|| "the node is still being examined".to_owned());
        let reason = self.add_obstacle().or_else(unexamined);
        for since in self.gate.answer_waiting(self.model.state(), reason.as_deref(), now) {
            self.metrics.cni_add_seconds.observe(now.duration_since(since).as_secs_f64());
        }
    }
}
