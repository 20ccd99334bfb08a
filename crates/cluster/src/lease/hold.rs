//! The I/O of leader election: reads and writes the Lease, waits, and publishes the state of the election.

use std::time::Instant;

use jiff::Timestamp;
use policy::ObjectName;
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout_at};

use super::client::{Client, WriteOutcome};
use super::{Election, LeaseAction, LeaseTerms};
use crate::ApiClient;

/// The state of the election for one candidate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LeaseState {
    /// The end of this candidate's leadership unless it renews; `None` if it does not lead.
    leads_until: Option<Instant>,
    /// The current or last holder according to the Lease.
    pub holder: Option<String>,
    /// Why the Lease cannot be read or written.
    pub problem: Option<String>,
}

impl LeaseState {
    /// The state of a leader until this time.
    pub fn leading(until: Instant) -> LeaseState {
        LeaseState { leads_until: Some(until), ..LeaseState::default() }
    }

    /// Whether the candidate leads at `now`. Check this before each action of the leader: after a suspension of the
    /// process, leadership may have expired before subscribers are notified.
    pub fn leads(&self, now: Instant) -> bool {
        self.leads_until.is_some_and(|until| now < until)
    }

    /// Whether subscribers are notified of the other state. They are not notified of renewals.
    fn differs(&self, other: &LeaseState) -> bool {
        let LeaseState { leads_until, holder, problem } = self;
        leads_until.is_some() != other.leads_until.is_some() || *holder != other.holder || *problem != other.problem
    }
}

/// Takes part in the election as `identity`, which must be unique, until every receiver of `state` is dropped. Then the
/// Lease is released, and this process must no longer act as the leader.
pub async fn hold_lease(
    connection: ApiClient,
    name: ObjectName,
    identity: String,
    terms: LeaseTerms,
    state: watch::Sender<LeaseState>,
) {
    let mut election = Election::new(name.clone(), identity, terms);
    let client = match Client::new(connection, name) {
        Ok(client) => client,
        Err(problem) => {
            state.send_replace(LeaseState { problem: Some(problem), ..LeaseState::default() });
            return state.closed().await;
        }
    };
    loop {
        let began = Instant::now();
        let leads_until = election.leads_until(began);
        if leads_until.is_none() && state.borrow().leads_until.is_some() {
            // This process was suspended for so long that another candidate may have led. So the end of this leadership
            // is published even if the next read renews it.
            report_change(&state, &election, began, None);
        }
        // Leadership that was not renewed ends in time, however slow the server is.
        let deadline = leads_until.unwrap_or(began + terms.renew_deadline);
        let outcome = tokio::select! {
            outcome = timeout_at(deadline.into(), round(&client, &mut election, terms)) => outcome,
            () = state.closed() => break,
        };
        let problem = match outcome {
            Ok(outcome) => outcome.err(),
            Err(_) => Some(format!("the API server has not answered for {:?}", began.elapsed())),
        };
        let now = Instant::now();
        report_change(&state, &election, now, problem.clone());
        let next = began + terms.retry;
        if let Some(until) = election.leads_until(now).filter(|until| *until < next) {
            tokio::select! {
                () = sleep_until(until.into()) => {}
                () = state.closed() => break,
            }
            report_change(&state, &election, Instant::now(), problem);
        }
        tokio::select! {
            () = sleep_until(next.into()) => {}
            () = state.closed() => break,
        }
    }
    release(&client, &election, terms).await;
}

/// Reads the Lease once and performs the step.
async fn round(client: &Client, election: &mut Election, terms: LeaseTerms) -> Result<(), String> {
    let found = client.get(terms.renew_deadline).await?;
    let step = election.observe(found, Instant::now(), Timestamp::now());
    // Read before the request: other candidates count the lease duration from a later time, when they observe the write.
    let sent = Instant::now();
    let written = match step {
        LeaseAction::Wait => return Ok(()),
        LeaseAction::Create(lease) => client.create(&lease, terms.renew_deadline).await?,
        LeaseAction::Replace(lease) => client.replace(&lease, terms.renew_deadline).await?,
    };
    match written {
        WriteOutcome::Stored(lease) => election.record_write(lease, sent),
        // The next read returns the new holder.
        WriteOutcome::Conflict => {}
    }
    Ok(())
}

fn report_change(state: &watch::Sender<LeaseState>, election: &Election, now: Instant, problem: Option<String>) {
    let new =
        LeaseState { leads_until: election.leads_until(now), holder: election.holder().map(str::to_owned), problem };
    state.send_if_modified(|known| {
        let differs = known.differs(&new);
        if known.leads_until.is_some() != new.leads_until.is_some() {
            tracing::info!(leads = new.leads_until.is_some(), holder = new.holder, "leader changed");
        }
        *known = new;
        differs
    });
}

/// Lets the next leader acquire the Lease at once. After a failure it waits until the Lease expires.
async fn release(client: &Client, election: &Election, terms: LeaseTerms) {
    let Some(lease) = election.release(Timestamp::now()) else { return };
    if let Err(problem) = client.replace(&lease, terms.retry).await {
        tracing::warn!(problem, "cannot release the Lease; it will expire");
    }
}
