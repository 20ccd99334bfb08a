//! Pods of another cluster in policies: two API servers, the provider and an agent as processes, and real packets.

// Remote sets during outages.
mod outages;
// The same over TLS, with tokens.
mod secured;
// Reports about remote pods.
mod reported;

use std::time::Duration;

use kit::agent_process::AgentProcess;
use kit::fake_api::FakeApi;
use kit::provider_process::Provider;
use kit::two_clusters::{EastPod, PLACES, TwoClusters, admits};
use policy::Kind;
use serde_json::json;

/// The backoff after a long outage is up to half a minute.
const WITHIN: Duration = Duration::from_secs(60);

/// No place is admitted.
const NOBODY: [[bool; 2]; PLACES.len()] = [[false; 2]; PLACES.len()];

/// All processes and API servers of a test, ready.
struct Cast<'a> {
    clusters: &'a TwoClusters,
    east: Option<FakeApi>,
    provider: Option<Provider>,
    agent: Option<AgentProcess<'a>>,
}

impl<'a> Cast<'a> {
    fn begin(clusters: &'a TwoClusters, pods: &[EastPod]) -> Cast<'a> {
        let mut cast = Cast { clusters, east: None, provider: None, agent: None };
        cast.start_east(pods);
        cast.start_provider();
        cast.start_agent();
        cast
    }

    fn east(&self) -> &FakeApi {
        self.east.as_ref().unwrap()
    }

    fn set(&self, pod: &EastPod) {
        self.east().set(Kind::Pod, pod.object());
    }

    fn start_east(&mut self, pods: &[EastPod]) {
        self.east = Some(self.clusters.east(pods));
    }

    fn start_provider(&mut self) {
        let mut provider = self.clusters.provider(&[]);
        provider.until_ready();
        self.provider = Some(provider);
    }

    fn start_agent(&mut self) {
        let mut agent = self.clusters.agent(&[]);
        agent.until_ready();
        self.agent = Some(agent);
    }

    /// Waits until the kernel's sets have exactly the addresses of these places.
    #[track_caller]
    fn until_in_kernel(&mut self, places: &[usize]) {
        let wanted: Vec<&str> = places.iter().flat_map(|place| PLACES[*place]).collect();
        let clusters = self.clusters;
        let agent = self.agent.as_mut().unwrap();
        agent.until_within(WITHIN, &format!("places {places:?} are in the kernel"), |_| {
            (clusters.in_kernel() == wanted).then_some(())
        });
    }

    /// The agent's status of the other cluster.
    fn standing(&self) -> serde_json::Value {
        self.clusters.agent_status()["remote"]["clusters"][0].clone()
    }

    #[track_caller]
    fn until_standing(&mut self, what: &str, fits: impl Fn(&serde_json::Value) -> bool) {
        let clusters = self.clusters;
        self.agent
            .as_mut()
            .unwrap()
            .until_within(WITHIN, what, |_| fits(&clusters.agent_status()["remote"]["clusters"][0]).then_some(()));
    }
}

/// Admits these places in both families.
fn admitted(places: &[usize]) -> [[bool; 2]; PLACES.len()] {
    std::array::from_fn(|place| [places.contains(&place); 2])
}

#[test]
fn remote_pod_is_allowed_while_labelled_and_running() {
    let clusters = TwoClusters::new();
    let other = EastPod { offered_as: None, ..EastPod::web("other", 1) };
    let mut cast = Cast::begin(&clusters, &[EastPod::web("web-0", 0), other.clone()]);
    cast.until_in_kernel(&[0]);
    assert_eq!(clusters.admitted(), admitted(&[0]), "of both families, and none without the label");

    cast.set(&EastPod::web("web-2", 2));
    cast.until_in_kernel(&[0, 2]);
    assert_eq!(clusters.admitted(), admitted(&[0, 2]));

    // The label is added, gets another value, and is removed.
    cast.set(&EastPod::web("other", 1));
    cast.until_in_kernel(&[0, 1, 2]);
    cast.set(&EastPod { offered_as: Some("api"), ..EastPod::web("other", 1) });
    cast.until_in_kernel(&[0, 2]);
    assert_eq!(clusters.admitted(), admitted(&[0, 2]));
    cast.set(&EastPod::web("other", 1));
    cast.until_in_kernel(&[0, 1, 2]);
    cast.set(&other);
    cast.until_in_kernel(&[0, 2]);

    // A pod gets another address, finishes, and is deleted.
    cast.set(&EastPod::web("web-2", 3));
    cast.until_in_kernel(&[0, 3]);
    cast.set(&EastPod { phase: "Succeeded", ..EastPod::web("web-2", 3) });
    cast.until_in_kernel(&[0]);
    assert_eq!(clusters.admitted(), admitted(&[0]));
    cast.east().remove(Kind::Pod, "shop", "web-0");
    cast.until_in_kernel(&[]);
    assert_eq!(clusters.admitted(), NOBODY);
}

#[test]
fn shared_remote_address_stays_when_one_pod_leaves() {
    let clusters = TwoClusters::new();
    let mut cast = Cast::begin(&clusters, &[EastPod::web("old", 0)]);
    cast.until_in_kernel(&[0]);
    cast.set(&EastPod::web("new", 0));
    cast.set(&EastPod::web("witness", 1));
    cast.until_in_kernel(&[0, 1]);
    cast.east().remove(Kind::Pod, "shop", "old");
    cast.east().remove(Kind::Pod, "shop", "witness");
    cast.until_in_kernel(&[0]);
    assert_eq!(clusters.admitted(), admitted(&[0]));
}

#[test]
fn selectors_without_cluster_label_allow_no_remote_pod() {
    let clusters = TwoClusters::new();
    let mut cast = Cast::begin(&clusters, &[EastPod::web("web-0", 0)]);
    cast.until_in_kernel(&[0]);
    let cluster = "semaphore.uw.systems/cluster";
    let expression = |operator: &str| json!({"matchExpressions": [{"key": cluster, "operator": operator}]});
    let not_in = json!({"matchExpressions": [{"key": cluster, "operator": "NotIn", "values": ["west"]}]});
    for selector in [json!({}), not_in, expression("DoesNotExist")] {
        let mut policy = admits("semaphore.uw.systems", "web");
        policy["spec"]["ingress"][0]["from"] = json!([{"namespaceSelector": selector}, {"podSelector": {}}]);
        clusters.home.set(Kind::NetworkPolicy, policy);
        cast.until_in_kernel(&[]);
        assert_eq!(clusters.admitted(), NOBODY, "{selector}");
        // The admitting policy is restored, to observe that the next selector removes the pod again.
        let mut policy = admits("semaphore.uw.systems", "web");
        policy["spec"]["ingress"][0]["from"] = json!([{"namespaceSelector": expression("Exists")}]);
        clusters.home.set(Kind::NetworkPolicy, policy);
        cast.until_in_kernel(&[0]);
    }
    clusters.home.set(Kind::NetworkPolicy, admits("policy.semaphore.uw.io", "web"));
    cast.until_in_kernel(&[0]);
    clusters.home.set(Kind::NetworkPolicy, admits("example.com", "web"));
    cast.until_in_kernel(&[]);
}

#[test]
fn local_pod_address_overrides_remote_set() {
    let clusters = TwoClusters::new();
    let mut cast = Cast::begin(&clusters, &[EastPod::web("web-0", 0), EastPod::web("web-1", 1)]);
    cast.until_in_kernel(&[0, 1]);
    let mut own = EastPod::web("own", 1).object();
    own["metadata"]["labels"] = json!({"app": "own"});
    clusters.home.set(Kind::Pod, own);
    cast.until_in_kernel(&[0]);
    clusters.home.remove(Kind::Pod, "shop", "own");
    cast.until_in_kernel(&[0, 1]);
}
