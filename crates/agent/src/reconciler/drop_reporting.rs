//! Drop events: their names come from a snapshot of the state, and they are counted, logged and published.

use std::sync::Arc;

use identity::{ClusterScheme, EndIdentity, Scheme};
use jiff::Timestamp;
use policy::{ClusterState, Judgement};

use super::Reconciler;
use crate::api::drops::{DropEnd, NamedDrop};
use crate::flows::DeniedPackets;
use crate::reports::{AddressContext, AuditLedger, DropEvent, DropStream, Ends, PacketContent, name};

/// Packets with their names.
pub(crate) type NamedEvents = Vec<(DropEvent, NamedDrop)>;

/// Inputs of drop events other than the state.
pub(crate) struct DropReporting {
    pub(super) place: Arc<AddressContext>,
    pub(super) since: Timestamp,
    pub(super) ledger: AuditLedger,
    pub(super) stream: Arc<DropStream>,
    pub(super) identities: ClusterScheme,
}

impl DropReporting {
    /// The summary of audit counts since the given time.
    pub(crate) fn new(
        place: AddressContext,
        stream: Arc<DropStream>,
        identities: ClusterScheme,
        since: Timestamp,
    ) -> DropReporting {
        DropReporting { place: Arc::new(place), since, ledger: AuditLedger::default(), stream, identities }
    }

    /// Updates the ledger after a change of the state.
    pub(super) fn update(&mut self, state: &ClusterState) {
        self.ledger.keep_audited(state);
        self.identities.update(state);
    }
}

/// Everything that the names of denied packets depend on, for a thread of its own.
pub(crate) struct NamingSnapshot {
    state: Arc<ClusterState>,
    place: Arc<AddressContext>,
    scheme: Option<Scheme>,
}

impl NamingSnapshot {
    pub(crate) fn name_all(&self, events: Vec<DropEvent>) -> NamedEvents {
        let ends = Ends { state: &self.state, place: &self.place, scheme: self.scheme.as_ref() };
        let named = |event| {
            let denial = name(&ends, &event);
            (event, denial)
        };
        events.into_iter().map(named).collect()
    }
}

impl Reconciler {
    /// A snapshot for naming denied packets. Changes of the state while it is held cost a copy of the state.
    pub(crate) fn naming_snapshot(&self) -> NamingSnapshot {
        let DropReporting { place, identities, .. } = &self.drop_reporting;
        NamingSnapshot { state: self.model.snapshot(), place: place.clone(), scheme: identities.scheme().cloned() }
    }

    /// Reports packets once they are named.
    pub(crate) fn report_drops(&mut self, named: NamedEvents) {
        named.into_iter().for_each(|(event, denial)| self.report(&event, denial));
    }

    fn report(&mut self, event: &DropEvent, denial: NamedDrop) {
        let DropReporting { place, ledger, stream, .. } = &mut self.drop_reporting;
        ledger.record_drop(event, &denial);
        if let Some(service) = denial.service_of_node(&place.node) {
            self.metrics.drops.record_event(service, denial.verdict, denial.count);
        }
        if let Some(rule) = &denial.rule {
            self.metrics.drops.record_rule(rule, denial.verdict, denial.count);
        }
        if denial.verdict == Judgement::Denied
            && let PacketContent::Flow(flow) = event.group.carried
        {
            self.model.publish_denied(|| DeniedPackets::new(&denial, flow, event.first, event.at));
        }
        let denial = denial.shortened();
        log(&denial);
        stream.report(denial, event.at);
    }
}

fn log(denial: &NamedDrop) {
    let address = |end: &DropEnd| end.address.map(|address| address.to_string());
    let service = |identity: &Option<EndIdentity>| identity.as_ref()?.service.as_deref().map(policy::plain);
    let NamedDrop { source_identity, destination_identity, .. } = denial;
    let closest = denial.closest.as_ref().map(|near| format!("{}; it lacks {}", near.rule, near.lacks.join(" and ")));
    let passed_by: Vec<String> = denial.passed_by.iter().map(ToString::to_string).collect();
    let would_allow: Vec<String> = denial.would_allow.iter().map(ToString::to_string).collect();
    tracing::info!(
        verdict = denial.verdict.as_str(),
        cause = denial.cause.as_str(),
        direction = denial.direction.map(policy::Direction::as_str),
        source = denial.source.named(),
        source_address = address(&denial.source),
        source_service = service(source_identity),
        source_identity = source_identity.as_ref().map(EndIdentity::text),
        destination = denial.destination.named(),
        destination_address = address(&denial.destination),
        destination_service = service(destination_identity),
        destination_identity = destination_identity.as_ref().map(EndIdentity::text),
        traffic = denial.traffic,
        policies = denial.policies.join(","),
        tier = denial.rule.as_ref().map(|rule| rule.tier.as_str()),
        rule = denial.rule.as_ref().map(|rule| rule.field.as_str()),
        rule_name = denial.rule.as_ref().and_then(|rule| rule.name.as_deref()).map(policy::plain),
        passed_by = passed_by.join(", "),
        closest,
        would_allow = would_allow.join(", "),
        note = denial.note,
        count = denial.count,
        node = denial.node,
        "{}",
        match denial.verdict {
            Judgement::Denied => "packets denied",
            Judgement::WouldDeny => "packets passed that policies in audit would deny",
        }
    );
}
