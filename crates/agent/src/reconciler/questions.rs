//! Answers to queries on the socket, from the state at the time when a query is processed.

use std::time::Instant;

use policy::{Direction, ObjectName, PartyError, SuggestedPods, Workloads, explain_ambient, explain_named, suggest};
use tokio::sync::oneshot;

use super::{Action, Reconciler};
use crate::api::audit::{AuditQuery, AuditReport, SuggestionQuery, SuggestionReport};
use crate::api::drops::Coverage;
use crate::api::identity::{IdentityQuery, IdentityReport};
use crate::api::{ExplainQuery, ExplainResponse, TableVerdict};
use crate::enforcer::snapshot::RulesSnapshot;
use crate::identities::{IdentityError, explained, identify};
use crate::reports::{Ends, SuggestionInput, coverage, written};

pub(crate) enum Question {
    Verify(Reply<TableVerdict>),
    Explain(ExplainQuery, Reply<Vec<ExplainResponse>>),
    Identity(IdentityQuery, Reply<IdentityReport>),
    Audit(AuditQuery, Reply<AuditReport>),
    Suggest(SuggestionQuery, Reply<SuggestionReport>),
    Rules(Reply<CommittedRules>),
}

/// The rules of a node's last commit.
#[derive(Debug)]
pub(crate) struct CommittedRules {
    pub(crate) node: String,
    /// Why the node may not enforce the policies.
    pub(crate) notes: Vec<String>,
    pub(crate) snapshot: RulesSnapshot,
}

pub(crate) type Reply<T> = oneshot::Sender<Result<T, NoAnswer>>;

/// Why the loop has no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAnswer {
    /// The kernel may still have rules of an earlier agent, which this process cannot explain.
    #[error("initial sync not complete; waiting for the list of: {}", .0.join(", "))]
    NotListed(Vec<String>),
    #[error(transparent)]
    Unexplained(#[from] PartyError),
    #[error(transparent)]
    Unidentified(#[from] IdentityError),
    #[error("{0} not found")]
    NotKnown(SuggestedPods),
    #[error(
        "this agent has not committed any rules yet ({0}); those of an earlier agent stay in the kernel until it does"
    )]
    NotCommitted(String),
}

impl Reconciler {
    /// Answers a query from the state; a query about the kernel's rules becomes an action.
    pub(crate) fn reply(&mut self, question: Question, now: Instant) {
        match question {
            Question::Verify(reply) => match self.listed() {
                Ok(()) => self.requested.push_back(Action::Compare(reply)),
                Err(not_listed) => send_reply(reply, Ok(TableVerdict::Unknown { reason: not_listed.to_string() })),
            },
            Question::Explain(query, reply) => send_reply(reply, self.listed().and_then(|()| self.explain(&query))),
            Question::Identity(query, reply) => {
                let report = self.listed().and_then(|()| Ok(identify(&self.ends(), &query.subject)?));
                send_reply(reply, report);
            }
            Question::Audit(query, reply) => send_reply(reply, self.listed().map(|()| self.audit(&query, now))),
            Question::Suggest(query, reply) => {
                send_reply(reply, self.listed().and_then(|()| self.suggestion(&query, now)))
            }
            Question::Rules(reply) => self.requested.push_back(Action::CopyRules(reply)),
        }
    }

    fn listed(&self) -> Result<(), NoAnswer> {
        match self.sync.is_complete() {
            true => Ok(()),
            false => Err(NoAnswer::NotListed(self.missing())),
        }
    }

    /// Replies with the rules of the last commit; `None` if there was none.
    pub(crate) fn reply_with_rules(&self, reply: Reply<CommittedRules>, snapshot: Option<RulesSnapshot>) {
        send_reply(reply, self.committed_rules(snapshot));
    }

    fn committed_rules(&self, snapshot: Option<RulesSnapshot>) -> Result<CommittedRules, NoAnswer> {
        match snapshot {
            Some(snapshot) => {
                let node = self.status.node.clone();
                Ok(CommittedRules { node, notes: self.differences(), snapshot })
            }
            None => Err(NoAnswer::NotCommitted(match (self.listed(), &self.status.trouble) {
                (Err(not_listed), _) => not_listed.to_string(),
                (Ok(()), Some(trouble)) => trouble.clone(),
                (Ok(()), None) => "the first commit is pending".into(),
            })),
        }
    }

    fn explain(&self, query: &ExplainQuery) -> Result<Vec<ExplainResponse>, NoAnswer> {
        let ExplainQuery { source, destination, traffic } = query;
        let (found, notes) = (explain_named(self.model.state(), source, destination, traffic)?, self.differences());
        let ends = self.ends();
        let explained = |explanation| {
            let ambient = explain_ambient(self.model.state(), &explanation);
            explained(&ends, explanation, notes.iter().cloned().chain(ambient).collect())
        };
        Ok(found.into_iter().map(explained).collect())
    }

    fn ends(&self) -> Ends<'_> {
        Ends {
            state: self.model.state(),
            place: &self.drop_reporting.place,
            scheme: self.drop_reporting.identities.scheme(),
        }
    }

    /// Why the kernel may judge packets differently from the policies.
    fn differences(&self) -> Vec<String> {
        let status = &self.status;
        let why = status.trouble.as_deref().unwrap_or("no commit yet");
        let pending = (!status.in_force).then(|| format!("the current rules are not in force yet: {why}"));
        let left_out = status.left_out.iter().map(|left| format!("refused, so denied: {left}"));
        pending.into_iter().chain(left_out).chain(status.unenforced.iter().cloned()).collect()
    }

    fn audit(&self, query: &AuditQuery, now: Instant) -> AuditReport {
        AuditReport {
            node: self.drop_reporting.place.node.clone(),
            since: written(self.drop_reporting.since),
            policies: self.drop_reporting.ledger.report(self.model.state(), query.namespace.as_deref()),
            coverage: self.coverage(now),
        }
    }

    fn coverage(&self, now: Instant) -> Coverage {
        coverage(&self.status, self.metrics.totals(now).drops, &self.drop_reporting.stream)
    }

    fn suggestion(&self, query: &SuggestionQuery, now: Instant) -> Result<SuggestionReport, NoAnswer> {
        let SuggestionQuery { namespace, pod, workload } = query;
        let scope = match (pod, workload) {
            (Some(pod), _) => SuggestedPods::Pod(ObjectName::new(namespace, pod)),
            (None, Some(name)) => SuggestedPods::Workload { namespace: (**namespace).into(), name: name.clone() },
            (None, None) => SuggestedPods::Namespace((**namespace).into()),
        };
        let workloads = Workloads::of(self.model.state());
        if !scope.is_known(&workloads) {
            return Err(NoAnswer::NotKnown(scope));
        }
        let ledger = &self.drop_reporting.ledger;
        let SuggestionInput { flows, many_ports } = ledger.remaining(self.model.state());
        let suggestion = suggest(&workloads, &scope, &flows);
        let scanned = many_ports.iter().filter(|flow| scope.concerns(&workloads, flow)).map(|flow| {
            let (local, peer) = flow.ends_now(&workloads);
            let (from, to) = match flow.direction {
                Direction::Egress => (local, peer),
                Direction::Ingress => (peer, local),
            };
            format!("not allowed: {from} to {to}: too many ports to list in a policy")
        });
        let incomplete = ledger.incomplete(namespace).map(|(policy, until)| {
            format!(
                "{policy} would have denied more flows than are recorded: some last seen before {until:.3} were evicted"
            )
        });
        let notes = suggestion.notes.iter().map(ToString::to_string).chain(scanned).chain(incomplete).collect();
        Ok(SuggestionReport { policies: suggestion.policies, notes, coverage: self.coverage(now) })
    }
}

pub(crate) fn send_reply<T>(reply: Reply<T>, answer: Result<T, NoAnswer>) {
    if reply.send(answer).is_err() {
        tracing::debug!("the API client closed its connection before the response");
    }
}
