//! The cluster state with its translation, and the delta between the two.
//!
//! Every mutator records its change for the translator and for the flow thread, so no change can be applied that the
//! rules or the flow records miss.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use jiff::Timestamp;
use nft::InterfaceName;
use policy::remote::{LabelPrefix, RemoteChange};
use policy::{Attachment, AttachmentId, Change, ClusterState, Enforcement, Layout, StateDelta, Translator};

use crate::flows::{ClockReading, DeniedPackets, FlowFeed, Mutation};
use crate::translation_check::TranslationCheck;

pub(crate) struct Model {
    /// Shared with the threads that read a [snapshot](Model::snapshot): a change copies it only while one of them does.
    state: Arc<ClusterState>,
    translator: Translator,
    /// Changes of the state since the last update of the translator.
    delta: StateDelta,
    /// Updates for the flow thread; `None` without flow records.
    flows: Option<FlowFeed>,
}

impl Model {
    pub(crate) fn new(
        node: &str,
        layout: Layout,
        enforcement: Enforcement,
        prefixes: Vec<LabelPrefix>,
        flows: Option<FlowFeed>,
    ) -> Model {
        let mut state = ClusterState::new();
        state.set_default_enforcement(enforcement);
        state.set_remote_prefixes(prefixes);
        Model { state: Arc::new(state), translator: Translator::new(node, layout), delta: StateDelta::default(), flows }
    }

    pub(crate) fn state(&self) -> &ClusterState {
        &self.state
    }

    /// The state as it is now, for a thread of its own. Changes while it is held cost a copy of the state.
    pub(crate) fn snapshot(&self) -> Arc<ClusterState> {
        self.state.clone()
    }

    fn state_mut(&mut self) -> &mut ClusterState {
        Arc::make_mut(&mut self.state)
    }

    /// Applies a change that is recorded nowhere.
    #[cfg(test)]
    pub(super) fn apply_unrecorded(&mut self, change: Change) -> bool {
        self.state_mut().apply(change).any()
    }

    /// Applies a change of an object. Returns whether the rules may have to change, like the other mutators.
    #[must_use]
    pub(crate) fn apply(&mut self, change: Change) -> bool {
        self.record_for_flows(|| Mutation::Object(change.clone()));
        let changed = self.state_mut().apply(change);
        self.join(changed)
    }

    #[must_use]
    pub(crate) fn apply_remote(&mut self, change: RemoteChange) -> bool {
        self.record_for_flows(|| Mutation::Remote(change.clone()));
        let changed = self.state_mut().apply_remote(change);
        self.join(changed)
    }

    #[must_use]
    pub(crate) fn attach(&mut self, attachment: Attachment) -> bool {
        self.record_for_flows(|| Mutation::Attach(attachment.clone()));
        let changed = self.state_mut().attach(attachment);
        self.join(changed)
    }

    #[must_use]
    pub(crate) fn detach(&mut self, id: &AttachmentId) -> bool {
        self.record_for_flows(|| Mutation::Detach(id.clone()));
        let changed = self.state_mut().detach(id);
        self.join(changed)
    }

    #[must_use]
    pub(crate) fn replace_attachments(&mut self, attachments: Vec<Attachment>) -> bool {
        self.record_for_flows(|| Mutation::ReplaceAttachments(attachments.clone()));
        let changed = self.state_mut().replace_attachments(attachments);
        self.join(changed)
    }

    #[must_use]
    pub(crate) fn learn(&mut self, name: Arc<str>, address: IpAddr) -> bool {
        self.record_for_flows(|| Mutation::Learn(name.clone(), address));
        let changed = self.state_mut().learn(name, address);
        self.join(changed)
    }

    #[must_use]
    pub(crate) fn remove_learned(&mut self, name: &Arc<str>, address: IpAddr) -> bool {
        self.record_for_flows(|| Mutation::RemoveLearned(name.clone(), address));
        let changed = self.state_mut().remove_learned(name, address);
        self.join(changed)
    }

    /// Sets the domain whose names may have addresses of pods and nodes. It must precede the first learned address.
    #[must_use]
    pub(crate) fn set_cluster_domain(&mut self, domain: Arc<str>) -> bool {
        let changed = self.state_mut().set_cluster_domain(domain);
        self.join(changed)
    }

    /// Sets the interfaces at which tc may redirect packets. Flow records do not depend on them.
    #[must_use]
    pub(crate) fn set_redirecting(&mut self, interfaces: BTreeSet<InterfaceName>) -> bool {
        let changed = self.state_mut().set_redirecting(interfaces);
        self.join(changed)
    }

    /// Sets the interfaces that are ports of bridges. Flow records do not depend on them.
    #[must_use]
    pub(crate) fn set_bridge_ports(&mut self, interfaces: BTreeSet<InterfaceName>) -> bool {
        let changed = self.state_mut().set_bridge_ports(interfaces);
        self.join(changed)
    }

    /// Sets the subnets of the node's interfaces.
    #[must_use]
    pub(crate) fn set_own_subnets(&mut self, subnets: &[IpNet]) -> bool {
        let changed = self.translator.layout().own_subnets() != subnets;
        if changed {
            self.translator.set_own_subnets(subnets.to_vec());
        }
        changed
    }

    fn join(&mut self, changed: StateDelta) -> bool {
        let any = changed.any();
        // A translator that has not begun starts from the whole state.
        if self.translator.has_begun() {
            self.delta.join(changed);
        }
        any
    }

    /// Updates the translation with the pending delta, and returns the delta.
    pub(crate) fn translate(&mut self) -> StateDelta {
        let delta = std::mem::take(&mut self.delta);
        self.translator.update(&self.state, &delta);
        delta
    }

    /// Replaces the incremental translation by one of the whole state.
    pub(crate) fn translate_anew(&mut self) {
        self.delta = StateDelta::default();
        self.translator.begin(&self.state);
    }

    /// The translator as of the last [`Model::translate`]; the enforcer may move its checks to other hooks.
    pub(crate) fn translator(&mut self) -> &mut Translator {
        &mut self.translator
    }

    /// The layout that it translates for.
    pub(crate) fn layout(&self) -> &Layout {
        self.translator.layout()
    }

    /// Whether a translation exists that later changes are applied to.
    pub(crate) fn is_translated(&self) -> bool {
        self.translator.has_begun()
    }

    /// A check of the incremental translation against a fresh one, as of the last [`Model::translate`].
    pub(crate) fn translation_check(&self) -> TranslationCheck {
        TranslationCheck {
            state: self.snapshot(),
            node: self.translator.node().into(),
            layout: self.translator.layout().clone(),
            followed: self.translator.translation(),
        }
    }

    fn record_for_flows(&mut self, mutation: impl FnOnce() -> Mutation) {
        if let Some(flows) = &mut self.flows {
            flows.record(mutation());
        }
    }

    /// Records the times just before and just after a commit for flow attribution.
    pub(crate) fn record_commit(&mut self, began: Timestamp, ended: Timestamp) {
        if let Some(flows) = &mut self.flows {
            flows.record_commit(began, ended);
        }
    }

    /// Publishes the state, which the rules of this generation enforce, to flow attribution.
    pub(crate) fn publish_to_flows(&mut self, generation: u32, now: ClockReading) {
        if let Some(flows) = &mut self.flows {
            flows.publish(&self.state, generation, now);
        }
    }

    /// Publishes denied packets to flow attribution.
    pub(crate) fn publish_denied(&mut self, packets: impl FnOnce() -> DeniedPackets) {
        if let Some(flows) = &mut self.flows {
            flows.denied(packets());
        }
    }
}
