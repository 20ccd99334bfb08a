//! The edge of the election: it looks, writes, waits, and tells who leads.

use std::time::Instant;

use jiff::Timestamp;
use policy::ObjectName;
use tokio::sync::watch;
use tokio::time::{sleep_until, timeout_at};

use super::client::{Client, Written};
use super::{Election, Step, Terms};
use crate::Connection;

/// How the election stands for one candidate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standing {
    /// Until when this candidate leads if nothing more is heard; none if it does not lead.
    leads_until: Option<Instant>,
    /// Who leads or led as far as the Lease says.
    pub holder: Option<String>,
    /// What keeps the candidate from asking or writing.
    pub problem: Option<String>,
}

impl Standing {
    /// Of one that leads until then.
    pub fn leading(until: Instant) -> Standing {
        Standing { leads_until: Some(until), ..Standing::default() }
    }

    /// Whether the candidate leads at that moment. Whoever acts on it asks anew before each act: a process that stood
    /// still for a while finds that it leads no more, before anybody could have told it.
    pub fn leads(&self, now: Instant) -> bool {
        self.leads_until.is_some_and(|until| now < until)
    }

    /// Whether those who listen are to hear of the other one: not of every renewal.
    fn differs(&self, other: &Standing) -> bool {
        let Standing { leads_until, holder, problem } = self;
        leads_until.is_some() != other.leads_until.is_some() || *holder != other.holder || *problem != other.problem
    }
}

/// Takes part in the election as `identity`, which no other candidate has, until nobody receives the standing any more,
/// and gives the leadership back then; by then it must not act as the leader any more.
pub async fn hold_lease(
    connection: Connection,
    name: ObjectName,
    identity: String,
    terms: Terms,
    standing: watch::Sender<Standing>,
) {
    let mut election = Election::new(name.clone(), identity, terms);
    let client = match Client::new(connection, name) {
        Ok(client) => client,
        Err(problem) => {
            standing.send_replace(Standing { problem: Some(problem), ..Standing::default() });
            return standing.closed().await;
        }
    };
    loop {
        let began = Instant::now();
        let leads_until = election.leads_until(began);
        if leads_until.is_none() && standing.borrow().leads_until.is_some() {
            // This process stood still for so long that others may have led: the term is over even if another one begins
            // with the next look.
            tell(&standing, &election, began, None);
        }
        // Whatever the server is doing, a leadership that was not renewed ends in time.
        let deadline = leads_until.unwrap_or(began + terms.renew_deadline);
        let outcome = tokio::select! {
            outcome = timeout_at(deadline.into(), round(&client, &mut election, terms)) => outcome,
            () = standing.closed() => break,
        };
        let problem = match outcome {
            Ok(outcome) => outcome.err(),
            Err(_) => Some(format!("the API server has not answered for {:?}", began.elapsed())),
        };
        let now = Instant::now();
        tell(&standing, &election, now, problem.clone());
        let next = began + terms.retry;
        if let Some(until) = election.leads_until(now).filter(|until| *until < next) {
            tokio::select! {
                () = sleep_until(until.into()) => {}
                () = standing.closed() => break,
            }
            tell(&standing, &election, Instant::now(), problem);
        }
        tokio::select! {
            () = sleep_until(next.into()) => {}
            () = standing.closed() => break,
        }
    }
    release(&client, &election, terms).await;
}

/// Looks once, and does what is to be done. The error says what kept it from that.
async fn round(client: &Client, election: &mut Election, terms: Terms) -> Result<(), String> {
    let found = client.get(terms.renew_deadline).await?;
    let step = election.look(found, Instant::now(), Timestamp::now());
    // Others count from when they see the effect, which is after this.
    let sent = Instant::now();
    let written = match step {
        Step::Wait => return Ok(()),
        Step::Create(lease) => client.create(&lease, terms.renew_deadline).await?,
        Step::Replace(lease) => client.replace(&lease, terms.renew_deadline).await?,
    };
    match written {
        Written::As(lease) => election.written(lease, sent),
        // The next look says who it was.
        Written::Overtaken => {}
    }
    Ok(())
}

fn tell(standing: &watch::Sender<Standing>, election: &Election, now: Instant, problem: Option<String>) {
    let new =
        Standing { leads_until: election.leads_until(now), holder: election.holder().map(str::to_owned), problem };
    standing.send_if_modified(|known| {
        let differs = known.differs(&new);
        if known.leads_until.is_some() != new.leads_until.is_some() {
            tracing::info!(leads = new.leads_until.is_some(), holder = new.holder, "leader changed");
        }
        *known = new;
        differs
    });
}

/// So that the next leader need not wait. One that fails costs no more than that wait.
async fn release(client: &Client, election: &Election, terms: Terms) {
    let Some(lease) = election.release(Timestamp::now()) else { return };
    if let Err(problem) = client.replace(&lease, terms.retry).await {
        tracing::warn!(problem, "cannot release the Lease; it will expire");
    }
}
