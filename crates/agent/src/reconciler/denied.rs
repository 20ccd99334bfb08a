//! Names the ends of denied packets for drop events.

use std::sync::Arc;
use std::time::{Duration, Instant};

use identity::{ClusterScheme, EndIdentity};
use jiff::Timestamp;
use policy::{ClusterState, Judgement};
use tokio::sync::mpsc;

use super::Reconciler;
use crate::api::drops::{End, NamedDrop};
use crate::flows::DeniedPackets;
use crate::reports::{Carried, DropEvent, Ends, Ledger, Place, Stream, name};

/// Time budget for naming in one iteration of the loop, so that no pod waits for its rules. Further packets wait in
/// their queue, and those that exceed it are counted.
const NAMING_BUDGET: Duration = Duration::from_millis(5);

/// Inputs of drop events other than the state.
pub(crate) struct Denied {
    pub(super) place: Place,
    pub(super) since: Timestamp,
    pub(super) ledger: Ledger,
    pub(super) stream: Arc<Stream>,
    pub(super) identities: ClusterScheme,
}

impl Denied {
    pub(crate) fn new(place: Place, stream: Arc<Stream>, identities: ClusterScheme) -> Denied {
        Denied { place, since: Timestamp::now(), ledger: Ledger::default(), stream, identities }
    }

    /// Updates the ledger after a change of the state.
    pub(super) fn update(&mut self, state: &ClusterState) {
        self.ledger.keep_audited(state);
        self.identities.follow(state);
    }
}

impl Reconciler {
    /// Processes the first packet and those that are queued.
    pub(super) fn report_all(&mut self, first: &DropEvent, more: &mut mpsc::Receiver<DropEvent>) {
        let begin = Instant::now();
        self.report(first);
        while begin.elapsed() < NAMING_BUDGET {
            match more.try_recv() {
                Ok(event) => self.report(&event),
                Err(_) => return,
            }
        }
    }

    fn report(&mut self, event: &DropEvent) {
        let Denied { place, since: _, ledger, stream, identities } = &mut self.denied;
        let ends = Ends { state: self.model.state(), place, scheme: identities.scheme() };
        let denial = name(&ends, event);
        ledger.record_drop(event, &denial);
        if let Some(service) = denial.service_of_node(&place.node) {
            self.metrics.drops.record_event(service, denial.verdict, denial.count);
        }
        if let Some(rule) = &denial.rule {
            self.metrics.drops.record_rule(rule, denial.verdict, denial.count);
        }
        if denial.verdict == Judgement::Denied
            && let Carried::Flow(flow) = event.group.carried
        {
            self.model.publish_denied(|| DeniedPackets::new(&denial, flow, event.first, event.at));
        }
        let denial = denial.shortened();
        log(&denial);
        stream.report(denial, event.at);
    }
}

fn log(denial: &NamedDrop) {
    let address = |end: &End| end.address.map(|address| address.to_string());
    let service = |identity: &Option<EndIdentity>| identity.as_ref()?.service.as_deref().map(policy::plain);
    let NamedDrop { source_identity, destination_identity, .. } = denial;
    let closest = denial.closest.as_ref().map(|near| format!("{}; it lacks {}", near.rule, near.lacks.join(" and ")));
    let passed_by: Vec<String> = denial.passed_by.iter().map(ToString::to_string).collect();
    let would_allow: Vec<String> = denial.would_allow.iter().map(ToString::to_string).collect();
    tracing::info!(
        verdict = denial.verdict.word(),
        cause = denial.cause.word(),
        direction = denial.direction.map(policy::Direction::word),
        source = denial.source.named(),
        source_address = address(&denial.source),
        source_service = service(source_identity),
        source_identity = source_identity.as_ref().map(EndIdentity::word),
        destination = denial.destination.named(),
        destination_address = address(&denial.destination),
        destination_service = service(destination_identity),
        destination_identity = destination_identity.as_ref().map(EndIdentity::word),
        traffic = denial.traffic,
        policies = denial.policies.join(","),
        tier = denial.rule.as_ref().map(|rule| rule.tier.word()),
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
