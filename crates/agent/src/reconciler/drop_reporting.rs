//! Drop events: the ends of denied packets are named from a snapshot of the state, in a thread of its own.

use std::sync::Arc;

use identity::{ClusterScheme, EndIdentity};
use jiff::Timestamp;
use policy::{ClusterState, Judgement};
use tokio::sync::mpsc;
use tokio::sync::oneshot::error::RecvError;

use super::Reconciler;
use crate::api::drops::{End, NamedDrop};
use crate::background::Background;
use crate::flows::DeniedPackets;
use crate::reports::{Carried, DropEvent, Ends, Ledger, Place, Stream, name};

/// Bound on the packets named from one snapshot: a snapshot that is held makes a change of the state copy it. Further
/// packets wait in their queue, and those that exceed it are counted.
const NAMED_AT_ONCE: usize = 64;

/// Packets with their names.
pub(super) type NamedEvents = Vec<(DropEvent, NamedDrop)>;

/// Inputs of drop events other than the state.
pub(crate) struct DropReporting {
    pub(super) place: Arc<Place>,
    pub(super) since: Timestamp,
    pub(super) ledger: Ledger,
    pub(super) stream: Arc<Stream>,
    pub(super) identities: ClusterScheme,
    /// The thread that names packets.
    pub(super) naming: Background<NamedEvents>,
}

impl DropReporting {
    pub(crate) fn new(place: Place, stream: Arc<Stream>, identities: ClusterScheme) -> DropReporting {
        DropReporting {
            place: Arc::new(place),
            since: Timestamp::now(),
            ledger: Ledger::default(),
            stream,
            identities,
            naming: Background::default(),
        }
    }

    /// Updates the ledger after a change of the state.
    pub(super) fn update(&mut self, state: &ClusterState) {
        self.ledger.keep_audited(state);
        self.identities.follow(state);
    }
}

impl Reconciler {
    /// Starts to name the first packet and those that are queued.
    pub(super) fn name_drops(&mut self, first: DropEvent, more: &mut mpsc::Receiver<DropEvent>) {
        let queued = std::iter::from_fn(|| more.try_recv().ok());
        let events: Vec<DropEvent> = std::iter::once(first).chain(queued).take(NAMED_AT_ONCE).collect();
        let (state, place) = (self.model.snapshot(), self.drop_reporting.place.clone());
        let scheme = self.drop_reporting.identities.scheme().cloned();
        let name_all = move || {
            let ends = Ends { state: &state, place: &place, scheme: scheme.as_ref() };
            let named = |event| {
                let denial = name(&ends, &event);
                (event, denial)
            };
            events.into_iter().map(named).collect()
        };
        if let Err(error) = self.drop_reporting.naming.start("naming", name_all) {
            tracing::warn!("denied packets are counted, but not named: cannot start a thread: {error}");
        }
    }

    /// Reports packets once they are named.
    pub(super) fn report_named(&mut self, named: Result<NamedEvents, RecvError>) {
        match named {
            Ok(named) => named.into_iter().for_each(|(event, denial)| self.report(&event, denial)),
            Err(_) => tracing::error!("denied packets are counted, but not named: the thread that names them panicked"),
        }
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
