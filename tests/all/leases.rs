//! Leader election against an API server.

use std::time::{Duration, Instant};

use cluster::lease::{LeaseState, LeaseTerms, hold_lease};
use cluster::{ApiClient, connect};
use kit::fake_api::{DEADLINE, FakeApi, Verb};
use policy::ObjectName;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// For tests in which a Lease expires. Longer than a busy machine delays a renewal.
const SHORT_TERMS: LeaseTerms = LeaseTerms {
    duration: Duration::from_secs(3),
    renew_deadline: Duration::from_secs(2),
    retry: Duration::from_millis(50),
};

/// For tests in which no Lease may expire. A release may take as long as the retry interval.
const LONG_TERMS: LeaseTerms = LeaseTerms {
    duration: Duration::from_secs(600),
    renew_deadline: Duration::from_secs(300),
    retry: Duration::from_secs(1),
};

struct Candidate {
    standing: watch::Receiver<LeaseState>,
    task: JoinHandle<()>,
}

impl Candidate {
    async fn start(api: &FakeApi, identity: &str, terms: LeaseTerms) -> Candidate {
        let connection: ApiClient = connect(Some(&api.kubeconfig())).await.unwrap();
        let (sender, standing) = watch::channel(LeaseState::default());
        let name = ObjectName::new("ringfence", "context");
        let task = tokio::spawn(hold_lease(connection, name, identity.into(), terms, sender));
        Candidate { standing, task }
    }

    async fn until(&mut self, what: &str, condition: impl Fn(&LeaseState) -> bool) {
        let waited = timeout(DEADLINE, self.standing.wait_for(|standing| condition(standing))).await;
        waited.unwrap_or_else(|_| panic!("{what}: not within {DEADLINE:?}")).expect("the candidate goes on");
    }

    async fn until_leads(&mut self) {
        self.until("leadership", |standing| standing.leads(Instant::now())).await;
    }

    fn leads(&self) -> bool {
        self.standing.borrow().leads(Instant::now())
    }

    /// Shuts down gracefully.
    async fn end(self) {
        drop(self.standing);
        timeout(DEADLINE, self.task).await.expect("it ends").expect("it does not panic");
    }
}

fn holder(lease: Option<&Value>) -> Option<&str> {
    lease?["spec"]["holderIdentity"].as_str()
}

#[tokio::test]
async fn released_lease_is_acquired_by_the_other_candidate() {
    let api = FakeApi::start();
    let mut a = Candidate::start(&api, "a", LONG_TERMS).await;
    a.until_leads().await;
    let mut b = Candidate::start(&api, "b", LONG_TERMS).await;
    b.until("a look at the Lease", |standing| standing.holder.as_deref() == Some("a")).await;
    assert!(a.leads() && !b.leads());
    a.end().await;
    // The Lease was released, not expired, so the takeover takes one retry interval at most.
    assert_ne!(holder(api.lease("ringfence", "context").as_ref()), Some("a"));
    b.until_leads().await;
    assert_eq!(api.lease("ringfence", "context").unwrap()["spec"]["leaseTransitions"], 1);
    assert!(api.writes().keys().eq(["leases"]), "{:?}", api.writes());
}

#[tokio::test]
async fn expired_lease_of_dead_leader_is_acquired() {
    let api = FakeApi::start();
    let mut a = Candidate::start(&api, "a", SHORT_TERMS).await;
    a.until_leads().await;
    let mut b = Candidate::start(&api, "b", SHORT_TERMS).await;
    b.until("a look at the Lease", |standing| standing.holder.as_deref() == Some("a")).await;
    a.task.abort();
    b.until_leads().await;
}

#[tokio::test]
async fn leader_without_write_permission_steps_down_with_reason() {
    let api = FakeApi::start();
    let mut a = Candidate::start(&api, "a", SHORT_TERMS).await;
    a.until_leads().await;
    api.faults(|f| f.lease_refusals.extend([(Verb::Update, 403)]));
    a.until("the end of its leadership", |standing| !standing.leads(Instant::now())).await;
    a.until("a problem", |standing| {
        let forbidden = "the RBAC verb 'update' on leases in the API group coordination.k8s.io is missing";
        standing.problem.as_ref().is_some_and(|problem| problem.contains(forbidden))
    })
    .await;
    api.faults(|f| f.lease_refusals.clear());
    a.until_leads().await;
    a.until("no problem", |standing| standing.problem.is_none()).await;
}

#[tokio::test]
async fn leader_without_server_response_steps_down() {
    let api = FakeApi::start();
    let mut a = Candidate::start(&api, "a", SHORT_TERMS).await;
    a.until_leads().await;
    api.faults(|f| f.silent = true);
    a.until("the end of its leadership", |standing| !standing.leads(Instant::now()) && standing.problem.is_some())
        .await;
    api.faults(|f| f.silent = false);
    a.until_leads().await;
}

#[tokio::test]
async fn candidate_with_a_conflict_waits() {
    let api = FakeApi::start();
    let mut a = Candidate::start(&api, "a", LONG_TERMS).await;
    a.until_leads().await;
    let spec = json!({"holderIdentity": "z", "leaseDurationSeconds": 3600, "renewTime": "2001-01-01T00:00:00.000000Z"});
    api.set_lease(json!({"metadata": {"namespace": "ringfence", "name": "context"}, "spec": spec}));
    a.until("the other to be seen", |standing| {
        !standing.leads(Instant::now()) && standing.holder.as_deref() == Some("z")
    })
    .await;
    assert_eq!(holder(api.lease("ringfence", "context").as_ref()), Some("z"));
    // A candidate must not release a Lease that another one holds.
    a.end().await;
    assert_eq!(holder(api.lease("ringfence", "context").as_ref()), Some("z"));
}

#[tokio::test]
async fn concurrent_candidates_have_at_most_one_leader() {
    let api = FakeApi::start();
    let mut candidates = Vec::new();
    for number in 0..5 {
        candidates.push(Candidate::start(&api, &format!("candidate-{number}"), LONG_TERMS).await);
    }
    while !candidates.is_empty() {
        let leaders = || candidates.iter().enumerate().filter(|(_, candidate)| candidate.leads()).map(|(at, _)| at);
        api.until_lease("a holder", "ringfence", "context", |lease| {
            holder(lease).is_some_and(|holder| !holder.is_empty())
        })
        .await;
        let leading: Vec<usize> = leaders().collect();
        assert!(leading.len() <= 1, "{leading:?}");
        match leading[..] {
            [at] => candidates.remove(at).end().await,
            _ => tokio::task::yield_now().await,
        }
    }
}
