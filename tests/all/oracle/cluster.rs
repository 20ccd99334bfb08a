//! Statements of docs/cluster-policy.md.

// Tiers, priorities, actions and directions (1 to 7).
mod order;
// Subjects and peers (8 to 15).
mod peers;
// Protocols and ports (16 and 17).
mod protocols;
// Invalid parts (20 to 27).
mod malformed;
// Audited policies (29 and 30).
mod audit;

use kit::oracle::{Decider, PolicyTier, decide};

use super::*;

/// A policy whose subject is every pod of the namespace `shop`.
fn cluster_policy(name: &str, tier: &str, priority: u16, directions: Value) -> Value {
    let mut policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2",
        "kind": "ClusterNetworkPolicy",
        "metadata": {"name": name},
        "spec": {
            "tier": tier,
            "priority": priority,
            "subject": {"namespaces": {"matchLabels": {"team": "a"}}},
        },
    });
    policy["spec"].as_object_mut().unwrap().extend(directions.as_object().unwrap().clone());
    policy
}

fn cluster(policies: impl IntoIterator<Item = Value>, cluster_policies: impl IntoIterator<Item = Value>) -> World {
    World { cluster_policies: cluster_policies.into_iter().collect(), ..world(policies) }
}

/// A rule about every pod.
fn everyone(action: &str, peers: &str) -> Value {
    json!({"action": action, peers: [{"namespaces": {}}]})
}

/// A rule about the pods with a value of the label `app`, in every namespace.
fn about(action: &str, peers: &str, app: &str) -> Value {
    json!({"action": action, peers: [{"pods": {"podSelector": {"matchLabels": {"app": app}}}}]})
}

/// A policy of the Admin tier with egress rules.
fn admin_egress(rules: Value) -> Value {
    cluster_policy("policy", "Admin", 10, json!({"egress": rules}))
}

/// A policy of the Admin tier with ingress rules.
fn admin_ingress(rules: Value) -> Value {
    cluster_policy("policy", "Admin", 10, json!({"ingress": rules}))
}

/// The decider of `web`'s egress to a destination on TCP port 80, and the verdict.
fn decided(world: &World, destination: &str) -> (Side, Decider) {
    let [source, destination] = [WEB, destination].map(|text| text.parse().expect("an address"));
    let [egress, _] = decide(world, "here", &Probe { source, destination, protocol: TCP, port: Some(80) });
    (egress.side, egress.by)
}

fn rule(tier: PolicyTier, policy: usize, rule: usize) -> Decider {
    Decider::ClusterRule { tier, policy, rule }
}
