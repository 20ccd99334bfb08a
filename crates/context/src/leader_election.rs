//! Leader election: this process always leads, or the one replica that holds the Lease does.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cluster::ApiClient;
use cluster::lease::{LeaseState, LeaseTerms, hold_lease};
use policy::ObjectName;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::cli::ServeArguments;

/// Retry interval of the request for the cluster's name.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// Timeout of the release of the Lease on shutdown. After a timeout, other replicas wait until the Lease expires.
const RELEASE_WITHIN: Duration = Duration::from_secs(3);

/// Poll interval while leadership is not assured.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Participation in the leader election.
pub(crate) struct Candidacy {
    held: Option<(JoinHandle<()>, JoinHandle<()>)>,
}

/// Assures that this process is the leader at the moment of an action: a process that was suspended may have lost the
/// Lease without notice.
#[derive(Debug, Clone)]
pub(crate) struct Assurance {
    /// `None` without leader election. A weak reference, which does not keep the election running.
    lease_state: Option<Weak<watch::Receiver<LeaseState>>>,
}

impl Assurance {
    /// Assurance without leader election.
    pub(crate) fn always() -> Assurance {
        Assurance { lease_state: None }
    }

    /// Waits until this process is assured to be the leader. If it has lost the Lease, the watch reports this
    /// meanwhile, and the caller cancels the action.
    pub(crate) async fn wait(&self) {
        while !self.holds(Instant::now()) {
            sleep(CHECK_INTERVAL).await;
        }
    }

    fn holds(&self, now: Instant) -> bool {
        let leads = |lease_state: &Weak<watch::Receiver<LeaseState>>| {
            lease_state.upgrade().is_some_and(|lease_state| lease_state.borrow().leads(now))
        };
        self.lease_state.as_ref().is_none_or(leads)
    }
}

impl Candidacy {
    /// Releases the Lease, so that another replica leads at once.
    pub(crate) async fn release(&mut self) {
        let Some((election, follower)) = self.held.take() else { return };
        // The election ends when its Lease state has no receiver.
        follower.abort();
        if timeout(RELEASE_WITHIN, election).await.is_err() {
            tracing::warn!("the Lease was not released in time; another replica becomes leader when it expires");
        }
    }
}

/// A single provider, which always leads.
pub(crate) fn always() -> (Candidacy, watch::Receiver<bool>, Assurance) {
    let (sender, receiver) = watch::channel(true);
    // The sender stays alive, since receivers would treat its end as a change.
    tokio::spawn(async move { sender.closed().await });
    (Candidacy { held: None }, receiver, Assurance::always())
}

/// Joins the leader election of several replicas.
pub(crate) fn elect(
    connection: ApiClient,
    arguments: &ServeArguments,
) -> (Candidacy, watch::Receiver<bool>, Assurance) {
    let (leads, receiver) = watch::channel(false);
    let (lease_state, mut lease_states) = watch::channel(LeaseState::default());
    let known = Arc::new(lease_states.clone());
    let assurance = Assurance { lease_state: Some(Arc::downgrade(&known)) };
    let name = ObjectName::new(&arguments.lease_namespace, &arguments.lease_name);
    let identity = arguments.lease_identity.clone().unwrap_or_else(own_name);
    tracing::info!(lease = %name, identity, "leader election enabled: the holder of the Lease pushes and stores");
    let election = tokio::spawn(hold_lease(connection, name, identity, LeaseTerms::default(), lease_state));
    let follower = tokio::spawn(async move {
        let _known = known;
        let mut problem = None;
        while lease_states.changed().await.is_ok() {
            let now = lease_states.borrow_and_update().clone();
            if now.problem != problem {
                if let Some(problem) = &now.problem {
                    tracing::warn!("leader election failed: {problem}");
                }
                problem.clone_from(&now.problem);
            }
            let is_leader = now.leads(Instant::now());
            let news = leads.send_if_modified(|leads| std::mem::replace(leads, is_leader) != is_leader);
            match (news, is_leader) {
                (true, true) => tracing::info!("became leader"),
                (true, false) => tracing::info!(holder = now.holder, "lost leadership"),
                (false, _) => {}
            }
        }
    });
    (Candidacy { held: Some((election, follower)) }, receiver, assurance)
}

/// The host name and a random number, since host names may be equal.
fn own_name() -> String {
    let host = rustix::system::uname();
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{random:08x}", host.nodename().to_string_lossy())
}

/// The UID of kube-system, which identifies the cluster. Retries until the API server responds.
pub(crate) async fn cluster_uid(connection: &ApiClient) -> String {
    let mut reported = None;
    loop {
        match cluster::cluster_uid(connection).await {
            Ok(uid) => return uid,
            Err(problem) => {
                if reported.as_ref() != Some(&problem) {
                    tracing::warn!(
                        "cannot read the cluster's name (the UID of the namespace kube-system): {problem}; set a name \
                         with --cluster-id"
                    );
                    reported = Some(problem);
                }
                sleep(ASK_AGAIN).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn assurance_lasts_until_lease_expires_or_election_ends() {
        let now = Instant::now();
        let (lease_state, receiver) = watch::channel(LeaseState::default());
        let known = Arc::new(receiver);
        let assurance = Assurance { lease_state: Some(Arc::downgrade(&known)) };
        assert!(!assurance.holds(now), "it does not lead");
        lease_state.send_replace(LeaseState::leading(now + Duration::from_secs(10)));
        assert!(assurance.holds(now + Duration::from_secs(9)));
        assert!(!assurance.holds(now + Duration::from_secs(10)), "the Lease expired without notice");
        drop(known);
        assert!(!assurance.holds(now), "the election has ended");
        assert!(Assurance::always().holds(now));
    }
}
