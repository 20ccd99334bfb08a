//! Attachments, and the requests of the CNI plugin.

use std::collections::BTreeSet;
use std::time::Instant;

use policy::{Attachment, AttachmentId};

use super::{Call, Reconciler};
use crate::attachments;
use crate::bridge_ports::bridge_ports;
use crate::gate::{AttachmentState, Outcome, PendingAdd, attachment_state};
use crate::metrics::labels::Watched;
use crate::pod_lookup::PodRequest;
use crate::redirecting::redirecting_interfaces;

impl Reconciler {
    /// Reads the attachments, the interfaces at which tc may redirect packets, and the bridge ports. Returns whether
    /// the rules may have to change.
    pub(super) fn read_attachments(&mut self) -> bool {
        let changed = match attachments::read(&attachments::folder(&self.run_dir)) {
            Ok(read) => {
                self.attachments_read = true;
                self.status.record_attachment_problems(read.problems);
                self.status.record_unchecked(read.unchecked);
                let attachments = self.with_unreadable(read.attachments);
                self.model.replace_attachments(attachments)
            }
            Err(problem) => {
                self.status.record_attachment_problems(vec![problem]);
                false
            }
        };
        [self.read_redirecting(), self.read_bridge_ports(), changed].contains(&true)
    }

    /// Adds the known attachments whose files exist but are no longer readable. Without them the interfaces of running
    /// pods would not be checked any more.
    fn with_unreadable(&self, mut attachments: Vec<Attachment>) -> Vec<Attachment> {
        let folder = attachments::folder(&self.run_dir);
        let read: BTreeSet<AttachmentId> = attachments.iter().map(|attachment| attachment.id.clone()).collect();
        let missing = self.model.state().attachments().filter(|attachment| !read.contains(&attachment.id));
        let unreadable = missing.filter(|attachment| attachments::read_one(&folder, &attachment.id).is_err());
        attachments.extend(unreadable.map(|attachment| Attachment::clone(attachment)));
        attachments
    }

    /// Reads at which interfaces tc may redirect packets. Returns whether the rules may have to change. ADDs are
    /// refused while this is unknown.
    fn read_redirecting(&mut self) -> bool {
        let interfaces = match redirecting_interfaces() {
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

    /// Reads which interfaces are ports of bridges. Returns whether the rules may have to change. Until the first
    /// success, only attachments report which interfaces are ports.
    fn read_bridge_ports(&mut self) -> bool {
        match bridge_ports() {
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

    /// Handles a request of the CNI plugin. Returns whether the rules may have to change.
    pub(super) fn answer(&mut self, call: Call) -> bool {
        match call {
            Call::Add(waiting) => self.add(*waiting),
            // The folder is authoritative: a delayed DEL may refer to an earlier ADD of the same name.
            Call::Delete(id, at) => match attachments::read_one(&attachments::folder(&self.run_dir), &id) {
                Ok(None) => {
                    self.gate.withdraw(&id);
                    self.latency.add(Watched::Attachment, at, &self.metrics);
                    self.model.detach(&id)
                }
                Ok(Some(_)) => {
                    tracing::info!("CNI DEL ignored: the plugin still has a file of attachment {id}");
                    false
                }
                Err(problem) => {
                    tracing::warn!("CNI DEL ignored for attachment {id}: {problem}");
                    false
                }
            },
            Call::Check(id, reply) => {
                let outcome = match (self.model.state().attachment(&id), self.add_obstacle()) {
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
                false
            }
            Call::Status(reply) => {
                if reply.send(self.add_obstacle()).is_err() {
                    tracing::debug!("the CNI plugin closed its connection before the response to STATUS");
                }
                false
            }
        }
    }

    /// Handles a CNI ADD. Returns whether the rules may have to change.
    pub(super) fn add(&mut self, waiting: PendingAdd) -> bool {
        let attachment = &waiting.attachment;
        let folder = attachments::folder(&self.run_dir);
        // An attachment without a file would be removed by the next resync, while the pod runs.
        match attachments::read_one(&folder, &attachment.id) {
            Ok(Some(kept)) if kept == *attachment => {}
            Ok(_) => {
                let reason = format!(
                    "attachment file not found in {}: the pod was deleted meanwhile, or the plugin's stateDir is not \
                     this folder of the agent's --run-dir",
                    folder.display()
                );
                self.gate.refuse(waiting, reason);
                return false;
            }
            Err(problem) => {
                self.gate.refuse(waiting, problem);
                return false;
            }
        }
        self.latency.add(Watched::Attachment, waiting.since, &self.metrics);
        let attached = self.model.attach(attachment.clone());
        let changed = [self.read_redirecting(), self.read_bridge_ports(), attached].contains(&true);
        self.adoption.retry();
        if changed && attachment.bridged {
            self.examinations.require(self.status.isolated_pods > 0);
        }
        let (pod, uid) = (attachment.pod.clone(), attachment.uid.clone());
        let wanted = PodRequest { pod, uid, deadline: waiting.deadline };
        let unknown = attachment_state(self.model.state(), attachment) == AttachmentState::Unknown;
        if self.gate.admit(waiting)
            && unknown
            && let Some(lookups) = &self.lookups
            && let Err(error) = lookups.try_send(wanted)
        {
            tracing::error!("no pod lookup, so the pod is found by the watch only: {error}");
        }
        changed
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
    pub(super) fn answer_waiting(&mut self) {
        let unexamined = || self.examinations.is_pending().then(|| "the node is still being examined".to_owned());
        let reason = self.add_obstacle().or_else(unexamined);
        let now = Instant::now();
        for since in self.gate.answer_waiting(self.model.state(), reason.as_deref(), now) {
            self.metrics.cni_add_seconds.observe(now.duration_since(since).as_secs_f64());
        }
    }
}
