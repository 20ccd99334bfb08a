//! The loop's part in what is told of denied packets: it has the names.

use std::sync::Arc;

use jiff::Timestamp;
use policy::{ClusterState, Judgement, ObjectName, Scope, suggest};
use tokio::sync::mpsc;

use super::StateLoop;
use crate::api::audit::{AuditQuery, AuditReport, SuggestionQuery, SuggestionReport};
use crate::api::denial::{Denial, End};
use crate::reports::{Ends, Ledger, Observation, Place, Stream, name};

/// Named in one turn of the loop, so that no pod waits long for its rules.
const TOLD_AT_ONCE: usize = 64;

/// What telling takes beside the state.
pub(crate) struct Denied {
    place: Place,
    ledger: Ledger,
    stream: Arc<Stream>,
}

impl Denied {
    pub(crate) fn new(place: Place, stream: Arc<Stream>) -> Denied {
        Denied { place, ledger: Ledger::new(Timestamp::now()), stream }
    }

    /// The state has changed.
    pub(super) fn keep_up(&mut self, state: &ClusterState) {
        self.ledger.keep_audited(state);
    }
}

impl StateLoop {
    /// The first, and what waits behind it.
    pub(super) fn tell_all(&mut self, first: Observation, more: &mut mpsc::Receiver<Observation>) {
        self.tell(&first);
        for _ in 1..TOLD_AT_ONCE {
            match more.try_recv() {
                Ok(observation) => self.tell(&observation),
                Err(_) => return,
            }
        }
    }

    fn tell(&mut self, observation: &Observation) {
        let now = Timestamp::now();
        let Denied { place, ledger, stream } = &mut self.denied;
        let denial = name(&Ends { state: &self.state, place }, observation, now);
        ledger.note(observation, &denial, now);
        log(&denial);
        stream.tell(denial);
    }

    pub(super) fn audit(&self, query: &AuditQuery) -> AuditReport {
        self.denied.ledger.report(&self.state, &self.denied.place.node, query.namespace.as_deref())
    }

    pub(super) fn suggestion(&self, query: &SuggestionQuery) -> SuggestionReport {
        let SuggestionQuery { namespace, pod, workload } = query;
        let scope = match (pod, workload) {
            (Some(pod), _) => Scope::Pod(ObjectName::new(namespace, pod)),
            (None, Some(name)) => Scope::Workload { namespace: (**namespace).into(), name: name.clone() },
            (None, None) => Scope::Namespace((**namespace).into()),
        };
        let ledger = &self.denied.ledger;
        let suggestion = suggest(&self.state, &scope, ledger.flows());
        let incomplete = ledger.incomplete(namespace);
        let incomplete = incomplete.map(|policy| format!("{policy} would have denied more flows than are known"));
        let notes = suggestion.notes.iter().map(ToString::to_string).chain(incomplete).collect();
        SuggestionReport { policies: suggestion.policies, notes }
    }
}

fn log(denial: &Denial) {
    let address = |end: &End| end.address.map(|address| address.to_string());
    let closest = denial.closest.as_ref().map(|near| format!("{}; it lacks {}", near.rule, near.lacks.join(" and ")));
    let would_allow: Vec<String> = denial.would_allow.iter().map(ToString::to_string).collect();
    tracing::info!(
        verdict = denial.verdict.word(),
        cause = denial.cause.word(),
        direction = denial.direction.map(policy::Direction::word),
        source = denial.source.named(),
        source_address = address(&denial.source),
        destination = denial.destination.named(),
        destination_address = address(&denial.destination),
        traffic = denial.traffic,
        policies = denial.policies.join(","),
        closest,
        would_allow = would_allow.join(", "),
        note = denial.note,
        count = denial.count,
        node = denial.node,
        "{}",
        match denial.verdict {
            Judgement::Denied => "packets were denied",
            Judgement::WouldDeny => "packets passed that audited policies would deny",
        }
    );
}
