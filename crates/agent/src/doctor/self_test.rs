//! Sends real packets through real rules: those denied by a policy must not arrive, and those allowed must.
//!
//! A built-in cluster has an isolated pod, a peer that its policy allows, and a stranger that its policy denies. The
//! rules of the cluster are translated as usual and committed in a scratch network namespace that forwards between the
//! three pods. Before the commit, packets of both senders must arrive, so that a packet missing afterwards was dropped
//! by the rules. The test runs on a separate thread in new network namespaces, which end with the thread.

mod packets;
mod scratch;

use std::collections::BTreeSet;
use std::fmt;
use std::time::{Duration, Instant};

use nfnetlink::Kernel;
use nft::{InvalidPart, Name, Ruleset, ValidatedRuleset};
use policy::{Change, ClusterState, DEFAULT_MARK_MASK, Kind, Layout, lower, translate};
use serde_json::{Value, json};

use super::finding::{Check, Finding};
use crate::transaction::Transaction;
use packets::PacketArrivals;
use scratch::Scratch;

/// Node name of the built-in cluster.
const NODE: &str = "scratch";

const TABLE: &str = "ringfence";

/// Address family of the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TestedFamily {
    Ipv4,
    Ipv6,
}

impl fmt::Display for TestedFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TestedFamily::Ipv4 => "IPv4",
            TestedFamily::Ipv6 => "IPv6",
        })
    }
}

/// Result of a successful self-test: the rules enforced the policy in these address families.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelfTestResult {
    pub families: BTreeSet<TestedFamily>,
    pub took: Duration,
}

/// Why the self-test did not pass.
#[derive(Debug, thiserror::Error)]
pub enum SelfTestError {
    /// The process is not permitted to create network namespaces.
    #[error("creating network namespaces needs CAP_SYS_ADMIN and CAP_NET_ADMIN")]
    NotPermitted,
    /// The test failed before it could check the rules.
    #[error("{0}")]
    CouldNotRun(String),
    /// The kernel refused the rules.
    #[error("the kernel refused the rules: {0}")]
    Refused(String),
    /// A packet that the policy denies arrived.
    #[error("an {0} packet that the policy denies arrived")]
    Leaked(TestedFamily),
    /// A packet that the policy allows did not arrive, although packets of its sender arrived before the commit.
    #[error("an {0} packet that the policy allows did not arrive")]
    Withheld(TestedFamily),
}

/// The node's rules for the built-in cluster.
pub fn ruleset() -> Ruleset {
    let table = Name::new(TABLE).expect("a name of the language");
    let layout = Layout::new(table, DEFAULT_MARK_MASK).expect("the mask that is used by default");
    translate(&cluster(), NODE, &layout).ruleset.in_first_generation()
}

/// Commits the rules in a scratch namespace and sends packets through them. Only the rules of [`ruleset`] can pass.
///
/// # Errors
/// See [`SelfTestError`].
pub fn run(rules: &Ruleset) -> Result<SelfTestResult, SelfTestError> {
    let started = Instant::now();
    let tested = std::thread::scope(|scope| {
        let worker = std::thread::Builder::new().name("self-test".into()).spawn_scoped(scope, || test(rules));
        match worker.map(|worker| worker.join()) {
            Ok(Ok(tested)) => tested,
            Ok(Err(_)) => Err(SelfTestError::CouldNotRun("the self-test panicked; please report this".into())),
            Err(error) => Err(SelfTestError::CouldNotRun(format!("cannot start a thread: {error}"))),
        }
    });
    Ok(SelfTestResult { families: tested?, took: started.elapsed() })
}

/// Changes the network namespace of the calling thread, which must therefore be a separate one.
fn test(rules: &Ruleset) -> Result<BTreeSet<TestedFamily>, SelfTestError> {
    let scratch = Scratch::build()?;
    let mut probes = Vec::new();
    for family in scratch.families() {
        let sockets = scratch.open_sockets(*family)?;
        sockets.control().map_err(|error| {
            SelfTestError::CouldNotRun(format!(
                "packets do not pass the scratch namespaces ({family}) even without rules: {error}"
            ))
        })?;
        probes.push(sockets);
    }
    scratch.enter_node()?;
    commit(rules)?;
    for sockets in &probes {
        let family = sockets.family();
        match sockets.verdict().map_err(|e| SelfTestError::CouldNotRun(e.to_string()))? {
            PacketArrivals { denied: true, .. } => return Err(SelfTestError::Leaked(family)),
            PacketArrivals { allowed: false, .. } => return Err(SelfTestError::Withheld(family)),
            PacketArrivals { denied: false, allowed: true } => {}
        }
    }
    Ok(probes.iter().map(packets::ProbeSockets::family).collect())
}

/// Commits in the namespace of the calling thread, which no other process uses.
fn commit(rules: &Ruleset) -> Result<(), SelfTestError> {
    let refused = |error: &dyn fmt::Display| SelfTestError::Refused(error.to_string());
    let mut kernel = Kernel::open().map_err(|e| refused(&e))?;
    let generation = kernel.generation().map_err(|e| refused(&e))?;
    let invalid = |parts: Vec<InvalidPart>| {
        SelfTestError::Refused(parts.iter().map(InvalidPart::to_string).collect::<Vec<String>>().join("; "))
    };
    let rules = ValidatedRuleset::new(rules.clone()).map_err(invalid)?;
    Transaction::creating(&rules).commit(&mut kernel, generation).map_err(|e| refused(&e))?;
    Ok(())
}

/// An isolated pod on the scratch node, and two pods on other nodes, one of them allowed.
fn cluster() -> ClusterState {
    let pod = |name: &str, node: &str, place: &scratch::PodAddresses| {
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": "self-test", "labels": {"app": name}},
            "spec": {"nodeName": node, "containers": [{"name": "main"}]},
            "status": {"phase": "Running", "podIPs": [{"ip": place.ipv4}, {"ip": place.ipv6}]},
        })
    };
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "allow-friend", "namespace": "self-test"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "server"}},
            "policyTypes": ["Ingress"],
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": {"app": "friend"}}}],
                "ports": [{"protocol": "UDP", "port": packets::PORT}],
            }],
        },
    });
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "self-test"}});
    let pods = vec![
        pod("server", NODE, &scratch::SERVER),
        pod("friend", "elsewhere", &scratch::FRIEND),
        pod("stranger", "elsewhere", &scratch::STRANGER),
    ];
    let mut state = ClusterState::new();
    let objects: [(Kind, Vec<Value>); 3] =
        [(Kind::Namespace, vec![namespace]), (Kind::Pod, pods), (Kind::NetworkPolicy, vec![policy])];
    for (kind, values) in objects {
        let lowered = values.iter().map(|value| lower(kind, value).expect("a built-in object has a name")).collect();
        state.apply(Change::Replace(kind, lowered));
    }
    state
}

pub(crate) fn finding(result: &Result<SelfTestResult, SelfTestError>) -> Finding {
    match result {
        Ok(SelfTestResult { families, took }) => {
            let families = families.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
            Finding::ok(
                Check::SelfTest,
                format!(
                    "a denied packet was dropped and an allowed one passed, {families}, in {} ms",
                    took.as_millis()
                ),
            )
        }
        Err(error @ SelfTestError::NotPermitted) => Finding::note(
            Check::SelfTest,
            format!("the self-test did not run: {error}"),
            "run ringfence doctor as root on the node to test the rules with real packets",
        ),
        Err(SelfTestError::CouldNotRun(reason)) => Finding::warning(
            Check::SelfTest,
            format!("the self-test could not run: {reason}"),
            "run ringfence doctor as root on the node, outside of a container",
        ),
        Err(error @ (SelfTestError::Refused(_) | SelfTestError::Leaked(_) | SelfTestError::Withheld(_))) => {
            Finding::error(
                Check::SelfTest,
                format!("the self-test failed: {error}"),
                "do not rely on policies on this kernel; report this with its release",
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity;
    use super::*;

    #[test]
    fn self_test_cluster_translates_to_valid_ruleset() {
        assert_eq!(cluster().problems(), []);
        assert_eq!(ruleset().validate(), []);
    }

    #[test]
    fn self_test_error_requires_wrong_rules() {
        let passed = SelfTestResult {
            families: [TestedFamily::Ipv6, TestedFamily::Ipv4].into(),
            took: Duration::from_millis(42),
        };
        assert!(finding(&Ok(passed.clone())).finding.ends_with("IPv4 and IPv6, in 42 ms"));
        let results = [
            (Ok(passed), FindingSeverity::Ok),
            (Err(SelfTestError::NotPermitted), FindingSeverity::Note),
            (Err(SelfTestError::CouldNotRun("x".into())), FindingSeverity::Warning),
            (Err(SelfTestError::Refused("x".into())), FindingSeverity::Error),
            (Err(SelfTestError::Leaked(TestedFamily::Ipv4)), FindingSeverity::Error),
            (Err(SelfTestError::Withheld(TestedFamily::Ipv6)), FindingSeverity::Error),
        ];
        for (result, severity) in results {
            assert_eq!((finding(&result).id, finding(&result).severity), (Check::SelfTest, severity), "{result:?}");
        }
    }
}
