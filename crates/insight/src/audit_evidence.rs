//! Evidence about audited policies: what each would have denied since it has been audited with its present rules.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use flow::{ClusterRecord, Endpoint, PolicyAction, PolicySide, ServicePort, SideTrace};
use jiff::Timestamp;
use policy::{ClusterState, Enforcement};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Audited policies with evidence. Further ones have none, and are reported as not observed.
pub const MOST_AUDITED: usize = 10_000;

/// Pods that the last denied flow lists for each end.
const LISTED_PODS: usize = 3;

/// A policy of either kind. Ordered by namespace, then by name; ClusterNetworkPolicies first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PolicyReference {
    /// Empty for a ClusterNetworkPolicy.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    /// `NetworkPolicy` or `ClusterNetworkPolicy`
    pub kind: Arc<str>,
}

/// `shop/api`, or `ClusterNetworkPolicy tenants`.
impl fmt::Display for PolicyReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyReference { namespace, name, kind } = self;
        match namespace.is_empty() {
            true => write!(f, "{kind} {name}"),
            false => write!(f, "{namespace}/{name}"),
        }
    }
}

/// Flows that an audited policy would have denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyEvidence {
    /// Digest of the rules. Evidence of other rules is none for these.
    pub rules: String,
    /// Since when the policy is known to be audited with these rules.
    pub since: Timestamp,
    /// Joined records that it would have denied; one per edge and window.
    pub records: u64,
    pub connections: u64,
    pub packets: u64,
    pub last: Option<WouldDeny>,
}

/// The last flow that a policy would have denied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WouldDeny {
    pub at: Timestamp,
    pub direction: PolicySide,
    pub source: Endpoint,
    pub destination: Endpoint,
    pub protocol: u8,
    pub port: Option<u16>,
    pub service: Option<ServicePort>,
    /// Node that reported it.
    pub node: Arc<str>,
    pub source_pods: Vec<Arc<str>>,
    pub destination_pods: Vec<Arc<str>>,
}

/// Evidence about all audited policies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditEvidence {
    policies: BTreeMap<PolicyReference, PolicyEvidence>,
}

/// Form of the evidence in a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedEvidence(Vec<(PolicyReference, PolicyEvidence)>);

impl AuditEvidence {
    pub fn restore(saved: SavedEvidence) -> AuditEvidence {
        AuditEvidence { policies: saved.0.into_iter().collect() }
    }

    pub fn save(&self) -> SavedEvidence {
        SavedEvidence(self.policies.iter().map(|(policy, evidence)| (policy.clone(), evidence.clone())).collect())
    }

    /// Follows the policies of the cluster: the evidence about a policy starts when it is first seen audited, or when
    /// its rules have changed, and ends when it is enforced or deleted.
    pub fn update(&mut self, state: &ClusterState, now: Timestamp) {
        let mut before = std::mem::take(&mut self.policies);
        for (policy, rules) in audited(state).take(MOST_AUDITED) {
            let evidence = before.remove(&policy).filter(|evidence| evidence.rules == rules);
            let evidence = evidence.unwrap_or(PolicyEvidence {
                rules,
                since: now,
                records: 0,
                connections: 0,
                packets: 0,
                last: None,
            });
            self.policies.insert(policy, evidence);
        }
    }

    /// Adds a joined record. Must be called once for each. A record of before the policy had its rules is no evidence.
    pub fn add(&mut self, ClusterRecord { record, .. }: &ClusterRecord) {
        let key = &record.key;
        let mut counted: Vec<PolicyReference> = Vec::new();
        for (direction, side) in [(PolicySide::Egress, &key.egress), (PolicySide::Ingress, &key.ingress)] {
            let SideTrace { verdict: _, enforced_here, enforced: _, pending, passed_by: _ } = side;
            if !enforced_here {
                continue;
            }
            for hit in pending.iter().filter(|hit| hit.action == PolicyAction::Deny) {
                let [namespace, name, kind] = [&hit.namespace, &hit.name, &hit.kind].map(Arc::clone);
                let policy = PolicyReference { namespace, name, kind };
                let Some(evidence) = self.policies.get_mut(&policy).filter(|evidence| evidence.since <= record.last)
                else {
                    continue;
                };
                if evidence.last.as_ref().is_none_or(|last| last.at <= record.last) {
                    let pods =
                        |pods: &std::collections::BTreeSet<Arc<str>>| pods.iter().take(LISTED_PODS).cloned().collect();
                    evidence.last = Some(WouldDeny {
                        at: record.last,
                        direction,
                        source: key.source.clone(),
                        destination: key.destination.clone(),
                        protocol: key.protocol,
                        port: key.port,
                        service: key.service.clone(),
                        node: record.node.clone(),
                        source_pods: pods(&record.sources.pods),
                        destination_pods: pods(&record.destinations.pods),
                    });
                }
                // A policy may judge both sides of a flow, which is one flow.
                if !counted.contains(&policy) {
                    evidence.records += 1;
                    evidence.connections = evidence.connections.saturating_add(record.connections.started);
                    evidence.packets = evidence.packets.saturating_add(record.denied_packets);
                    counted.push(policy);
                }
            }
        }
    }

    /// All audited policies, ordered by namespace and name.
    pub fn policies(&self) -> impl ExactSizeIterator<Item = (&PolicyReference, &PolicyEvidence)> {
        self.policies.iter()
    }
}

/// The audited policies of the cluster, with the digest of their rules.
fn audited(state: &ClusterState) -> impl Iterator<Item = (PolicyReference, String)> {
    let policies = state.policies().filter(|policy| state.enforcement(policy) == Enforcement::Audit).map(|policy| {
        let reference = PolicyReference {
            namespace: policy.name.namespace.clone(),
            name: policy.name.name.clone(),
            kind: "NetworkPolicy".into(),
        };
        (reference, digest(&(&policy.selector, &policy.ingress, &policy.egress)))
    });
    let cluster_policies = state.cluster_policies();
    let cluster_policies =
        cluster_policies.filter(|policy| state.cluster_enforcement(policy) == Enforcement::Audit).map(|policy| {
            let reference = PolicyReference {
                namespace: "".into(),
                name: policy.name.name.clone(),
                kind: "ClusterNetworkPolicy".into(),
            };
            let rules = (policy.tier, policy.priority, &policy.subject, &policy.ingress, &policy.egress);
            (reference, digest(&rules))
        });
    policies.chain(cluster_policies)
}

/// Digest of the model of the rules. A release that reads rules differently has another one, and starts the evidence
/// anew.
fn digest(rules: &impl fmt::Debug) -> String {
    let hash = Sha256::digest(format!("{rules:?}"));
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
