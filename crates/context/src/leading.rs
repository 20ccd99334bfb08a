//! Who pushes: this process always, or the one of several that holds the Lease.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cluster::Connection;
use cluster::lease::{Standing, Terms, hold_lease};
use policy::ObjectName;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::cli::ServeArguments;

/// Between two questions for the cluster's name, while the server does not answer.
const ASK_AGAIN: Duration = Duration::from_secs(2);

/// For giving the Lease back at the end; others wait for its end otherwise.
const RELEASE_WITHIN: Duration = Duration::from_secs(3);

/// Between two looks at the Lease by who is not assured.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// The part that this process takes in the election.
pub(crate) struct Candidacy {
    held: Option<(JoinHandle<()>, JoinHandle<()>)>,
}

/// That this process leads at the very moment at which it acts: one that stood still for a while has lost the Lease before
/// anybody could tell it.
#[derive(Debug, Clone)]
pub(crate) struct Assurance {
    /// None if nobody else could lead. Nobody is kept in the election by it.
    standing: Option<Weak<watch::Receiver<Standing>>>,
}

impl Assurance {
    /// Of who is alone.
    pub(crate) fn always() -> Assurance {
        Assurance { standing: None }
    }

    /// Waits while it cannot be given. Whoever does not lead any more is told so meanwhile, and gives up what it waits for.
    pub(crate) async fn given(&self) {
        while !self.is_given(Instant::now()) {
            sleep(LOOK_AGAIN).await;
        }
    }

    fn is_given(&self, now: Instant) -> bool {
        let leads = |standing: &Weak<watch::Receiver<Standing>>| {
            standing.upgrade().is_some_and(|standing| standing.borrow().leads(now))
        };
        self.standing.as_ref().is_none_or(leads)
    }
}

impl Candidacy {
    /// Gives the Lease back, so that another leads at once.
    pub(crate) async fn release(&mut self) {
        let Some((election, follower)) = self.held.take() else { return };
        // The election ends when nobody looks at how it stands.
        follower.abort();
        if timeout(RELEASE_WITHIN, election).await.is_err() {
            tracing::warn!("the Lease was not released in time; another replica becomes leader when it expires");
        }
    }
}

/// One provider, which pushes.
pub(crate) fn always() -> (Candidacy, watch::Receiver<bool>, Assurance) {
    let (sender, receiver) = watch::channel(true);
    // It never changes, and nobody is to take its end for news.
    tokio::spawn(async move { sender.closed().await });
    (Candidacy { held: None }, receiver, Assurance::always())
}

/// One of several, of which one pushes.
pub(crate) fn elect(
    connection: Connection,
    arguments: &ServeArguments,
) -> (Candidacy, watch::Receiver<bool>, Assurance) {
    let (leads, receiver) = watch::channel(false);
    let (standing, mut standings) = watch::channel(Standing::default());
    let known = Arc::new(standings.clone());
    let assurance = Assurance { standing: Some(Arc::downgrade(&known)) };
    let name = ObjectName::new(&arguments.lease_namespace, &arguments.lease_name);
    let identity = arguments.lease_identity.clone().unwrap_or_else(own_name);
    tracing::info!(lease = %name, identity, "leader election enabled: the holder of the Lease pushes and stores");
    let election = tokio::spawn(hold_lease(connection, name, identity, Terms::default(), standing));
    let follower = tokio::spawn(async move {
        let _known = known;
        let mut problem = None;
        while standings.changed().await.is_ok() {
            let now = standings.borrow_and_update().clone();
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

/// The host's name, and a number that no other process of the name has.
fn own_name() -> String {
    let host = rustix::system::uname();
    let random = RandomState::new().build_hasher().finish();
    format!("{}-{random:08x}", host.nodename().to_string_lossy())
}

/// The UID of kube-system, which names the cluster. Asked for until there is an answer.
pub(crate) async fn cluster_uid(connection: &Connection) -> String {
    let mut told = None;
    loop {
        match cluster::cluster_uid(connection).await {
            Ok(uid) => return uid,
            Err(problem) => {
                if told.as_ref() != Some(&problem) {
                    tracing::warn!(
                        "cannot read the cluster's name (the UID of the namespace kube-system): {problem}; set a name \
                         with --cluster-id"
                    );
                    told = Some(problem);
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
        let (standing, receiver) = watch::channel(Standing::default());
        let known = Arc::new(receiver);
        let assurance = Assurance { standing: Some(Arc::downgrade(&known)) };
        assert!(!assurance.is_given(now), "it does not lead");
        standing.send_replace(Standing::leading(now + Duration::from_secs(10)));
        assert!(assurance.is_given(now + Duration::from_secs(9)));
        assert!(!assurance.is_given(now + Duration::from_secs(10)), "it stood still, and nobody has told it yet");
        drop(known);
        assert!(!assurance.is_given(now), "it has given the Lease back");
        assert!(Assurance::always().is_given(now));
    }
}
