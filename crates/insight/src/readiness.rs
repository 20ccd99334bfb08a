//! Readiness of audited policies: whether the evidence is enough to enforce them, and the commands that do it and undo it.

use jiff::{SignedDuration, Timestamp};
use policy::{ClusterState, ENFORCEMENT_ANNOTATION, ObjectName};
use serde::{Deserialize, Serialize};

use crate::audit_evidence::{AuditEvidence, PolicyEvidence, PolicyReference, WouldDeny};
use crate::node_presence::{NodeGap, NodePresence};

/// Share of the time (one hundredth) for which a node may have been silent: agents restart for updates, and nodes for
/// their kernel.
pub const MOST_UNREPORTED_SHARE: u64 = 100;

/// Whether an audited policy can be enforced.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyReadiness {
    pub policy: PolicyReference,
    /// When the policy was first known to be audited with its present rules.
    pub since: Timestamp,
    pub observed_seconds: u64,
    /// Time without a flow that it would have denied, until now; at most the observed time.
    pub clean_seconds: u64,
    /// Joined records, connections and packets that it would have denied.
    pub records: u64,
    pub connections: u64,
    pub packets: u64,
    pub last: Option<WouldDeny>,
    /// Nodes that did not report for some of the required time, so that evidence is missing.
    pub unreported: Vec<NodeGap>,
    pub ready: bool,
    /// Why it is not ready, as sentences for people; empty if it is.
    pub reasons: Vec<String>,
    /// `None` if the name is not one that the API server accepts.
    pub steps: Option<EnforcementSteps>,
}

/// Commands for a shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EnforcementSteps {
    /// Enforces the policy.
    pub enforce: String,
    /// Audits the policy again.
    pub undo: String,
}

/// The readiness of the audited policies after a time without a flow that they would deny, ordered by namespace and
/// name.
pub fn readiness(
    evidence: &AuditEvidence,
    presence: &NodePresence,
    state: &ClusterState,
    required: SignedDuration,
    now: Timestamp,
) -> Vec<PolicyReadiness> {
    let from = now.checked_sub(required).unwrap_or(Timestamp::MIN);
    let assess = |(policy, evidence): (&PolicyReference, &PolicyEvidence)| {
        let PolicyEvidence { rules: _, since, records, connections, packets, last } = evidence;
        let seconds = |since: Timestamp| now.duration_since(since).as_secs().max(0).unsigned_abs();
        let clean_since = last.as_ref().map_or(*since, |last| last.at.max(*since));
        let unreported = presence.gaps(from.max(*since), now);
        let mut readiness = PolicyReadiness {
            policy: policy.clone(),
            since: *since,
            observed_seconds: seconds(*since),
            clean_seconds: seconds(clean_since),
            records: *records,
            connections: *connections,
            packets: *packets,
            last: last.clone(),
            unreported,
            ready: false,
            reasons: Vec::new(),
            steps: enforcement_steps(state, policy),
        };
        readiness.reasons = reasons(&readiness, presence, required);
        readiness.ready = readiness.reasons.is_empty();
        readiness
    };
    evidence.policies().map(assess).collect()
}

fn reasons(readiness: &PolicyReadiness, presence: &NodePresence, required: SignedDuration) -> Vec<String> {
    let PolicyReadiness { observed_seconds, clean_seconds, unreported, .. } = readiness;
    let required = required.as_secs().max(0).unsigned_abs();
    let mut reasons = Vec::new();
    if *observed_seconds < required {
        reasons.push(format!("it was observed for {}, expected {}", span(*observed_seconds), span(required)));
    }
    // Without a denial, the two durations are equal.
    if *clean_seconds < required.min(*observed_seconds) {
        reasons.push(format!(
            "it would have denied a flow {} ago, expected none for {}",
            span(*clean_seconds),
            span(required)
        ));
    }
    if presence.is_empty() {
        reasons.push("no node has reported".to_owned());
    }
    let silent: Vec<&NodeGap> = unreported.iter().filter(|gap| gap.is_silent).collect();
    if let [first, ..] = *silent {
        reasons.push(format!("{} of {} nodes do not report now, such as {}", silent.len(), presence.len(), first.node));
    }
    let most = required.min(*observed_seconds) / MOST_UNREPORTED_SHARE;
    let long: Vec<&NodeGap> = unreported.iter().filter(|gap| !gap.is_silent && gap.seconds > most).collect();
    if let [first, ..] = *long {
        let nodes = if long.len() == 1 { "node" } else { "nodes" };
        reasons.push(format!(
            "{} {nodes} did not report for more than {}, such as {} for {}",
            long.len(),
            span(most),
            first.node,
            span(first.seconds)
        ));
    }
    reasons
}

/// `7 days`, `3.5 hours`, `12 minutes`, `1 second`.
pub fn span(seconds: u64) -> String {
    let (unit, name) = match seconds {
        0..120 => (1, "seconds"),
        120..7_200 => (60, "minutes"),
        7_200..172_800 => (3_600, "hours"),
        _ => (86_400, "days"),
    };
    let tenths = seconds * 10 / unit;
    match tenths % 10 {
        0 if tenths == 10 => format!("1 {}", name.trim_end_matches('s')),
        0 => format!("{} {name}", tenths / 10),
        rest => format!("{}.{rest} {name}", tenths / 10),
    }
}

/// The commands that enforce an audited policy, and audit it again by what audits it now: its own annotation, or that
/// of its namespace or the default of the agents. `None` if the name is not one that the API server accepts: it comes from a
/// manifest, and may be markup for a shell.
pub fn enforcement_steps(state: &ClusterState, policy: &PolicyReference) -> Option<EnforcementSteps> {
    let PolicyReference { namespace, name, kind: _ } = policy;
    let is_cluster = namespace.is_empty();
    if !is_api_name(name) || (!is_cluster && !is_api_name(namespace)) {
        return None;
    }
    let (subject, own) = match is_cluster {
        true => (
            format!("clusternetworkpolicies.policy.networking.k8s.io {name}"),
            state.cluster_policy(name).and_then(|policy| policy.enforcement),
        ),
        false => {
            let known = ObjectName { namespace: namespace.clone(), name: name.clone() };
            (
                format!("networkpolicies.networking.k8s.io {name} --namespace {namespace}"),
                state.policy(&known).and_then(|policy| policy.enforcement),
            )
        }
    };
    let annotate = |change: &str| format!("kubectl annotate {subject} {ENFORCEMENT_ANNOTATION}{change}");
    let undo = match own {
        Some(_) => annotate("=audit --overwrite"),
        None => annotate("-"),
    };
    Some(EnforcementSteps { enforce: annotate("=enforce --overwrite"), undo })
}

/// Whether a text is a DNS subdomain, as names of both kinds are, so that a shell reads it as one word.
fn is_api_name(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let is_end = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = text.as_bytes();
    bytes.len() <= 253 && bytes.iter().copied().all(is_inner) && is_end(bytes.first()) && is_end(bytes.last())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use flow::NodeReport;
    use policy::{Change, Enforcement, Kind, lower};
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{self, would_deny};

    fn policy(kind: Kind, name: &str, annotations: Value) -> Value {
        match kind {
            Kind::ClusterNetworkPolicy => {
                json!({"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
                "metadata": {"name": name, "annotations": annotations},
                "spec": {"tier": "Admin", "priority": 5, "subject": {"namespaces": {}}, "ingress": []}})
            }
            _ => json!({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
                "metadata": {"namespace": "shop", "name": name, "annotations": annotations},
                "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}),
        }
    }

    fn state(objects: &[(Kind, Value)]) -> ClusterState {
        let mut state = ClusterState::new();
        state.set_default_enforcement(Enforcement::Audit);
        for (kind, object) in objects {
            state.apply(Change::Set(lower(*kind, object).unwrap()));
        }
        state
    }

    /// Does what `kubectl annotate` does with the object.
    fn annotate(command: &str, object: &mut Value) {
        let words: Vec<&str> = command.split(' ').collect();
        let [program, verb, resource, name, rest @ ..] = &words[..] else { panic!("{command}") };
        assert_eq!((*program, *verb), ("kubectl", "annotate"));
        let metadata = object["metadata"].clone();
        assert_eq!(metadata["name"], *name);
        let rest = match (metadata.get("namespace"), rest) {
            (Some(namespace), ["--namespace", given, rest @ ..]) => {
                assert_eq!((namespace, *resource), (&Value::from(*given), "networkpolicies.networking.k8s.io"));
                rest
            }
            (None, rest) => {
                assert_eq!(*resource, "clusternetworkpolicies.policy.networking.k8s.io");
                rest
            }
            (Some(_), _) => panic!("no namespace in {command}"),
        };
        let annotations = object["metadata"]["annotations"].as_object_mut().unwrap();
        match rest {
            [change, "--overwrite"] => {
                let (key, value) = change.split_once('=').unwrap();
                annotations.insert(key.to_owned(), value.into());
            }
            [removal] => {
                annotations.remove(removal.strip_suffix('-').unwrap()).unwrap();
            }
            _ => panic!("{command}"),
        }
    }

    #[test]
    fn span_has_unit_and_number() {
        for (seconds, text) in [
            (0, "0 seconds"),
            (1, "1 second"),
            (119, "119 seconds"),
            (120, "2 minutes"),
            (12_600, "3.5 hours"),
            (172_800, "2 days"),
            (604_800, "7 days"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }

    #[test]
    fn steps_enforce_policy_and_audit_it_again() {
        for kind in [Kind::NetworkPolicy, Kind::ClusterNetworkPolicy] {
            for annotations in [json!({}), json!({"ringfence.io/enforcement": "audit", "other": "x"})] {
                let before = policy(kind, "api", annotations);
                let mut evidence = AuditEvidence::default();
                let audited = state(&[(kind, before.clone())]);
                evidence.update(&audited, Timestamp::UNIX_EPOCH);
                let (reference, _) = evidence.policies().next().unwrap();
                let steps = enforcement_steps(&audited, reference).unwrap();
                let mut object = before.clone();
                annotate(&steps.enforce, &mut object);
                let mut enforced = evidence.clone();
                enforced.update(&state(&[(kind, object.clone())]), Timestamp::UNIX_EPOCH);
                assert_eq!(enforced.policies().len(), 0, "{}", steps.enforce);
                annotate(&steps.undo, &mut object);
                assert_eq!(object, before, "{}", steps.undo);
            }
        }
    }

    #[test]
    fn names_of_other_alphabets_have_no_command() {
        let reference = |namespace: &str, name: &str| PolicyReference {
            namespace: namespace.into(),
            name: name.into(),
            kind: "NetworkPolicy".into(),
        };
        let state = ClusterState::new();
        for (namespace, name) in [("shop", "a;reboot"), ("shop", "$(x)"), ("shop", "-n"), ("shop", "a b"), ("a'", "b")]
        {
            assert_eq!(enforcement_steps(&state, &reference(namespace, name)), None, "{namespace}/{name}");
        }
    }

    fn at(days: i64) -> Timestamp {
        Timestamp::from_second(1_777_896_000 + days * 86_400).unwrap()
    }

    /// The reasons against a policy that is audited since day 0, at the end of a day.
    fn reasons_at(day: i64, last: Option<i64>, reports: &[(i64, u64)]) -> Vec<String> {
        let kind = Kind::NetworkPolicy;
        let state = state(&[(kind, policy(kind, "api", json!({})))]);
        let mut evidence = AuditEvidence::default();
        evidence.update(&state, at(0));
        let mut presence = NodePresence::default();
        for (day, epoch) in reports {
            let report = NodeReport {
                node: "n1".into(),
                epoch: *epoch,
                acknowledged: 0,
                behind: 0,
                last_reported: at(*day),
                missed: 0,
            };
            presence.record_reports(&[report], at(*day));
        }
        let mut found = readiness(&evidence, &presence, &state, SignedDuration::from_hours(24 * 7), at(day));
        let mut found = found.remove(0);
        if let Some(last) = last {
            found.clean_seconds = (day - last).unsigned_abs() * 86_400;
            found.reasons = reasons(&found, &presence, SignedDuration::from_hours(24 * 7));
        }
        found.reasons
    }

    #[test]
    fn readiness_needs_long_clean_and_complete_evidence() {
        assert_eq!(reasons_at(3, None, &[(3, 1)]), ["it was observed for 3 days, expected 7 days"]);
        assert_eq!(
            reasons_at(3, Some(2), &[(3, 1)]),
            [
                "it was observed for 3 days, expected 7 days",
                "it would have denied a flow 24 hours ago, expected none for 7 days"
            ]
        );
        assert_eq!(reasons_at(8, None, &[(8, 1)]), [] as [&str; 0]);
        assert_eq!(
            reasons_at(8, Some(6), &[(8, 1)]),
            ["it would have denied a flow 2 days ago, expected none for 7 days"]
        );
        assert_eq!(reasons_at(8, None, &[]), ["no node has reported"]);
        assert_eq!(reasons_at(8, None, &[(7, 1)]), ["1 of 1 nodes do not report now, such as n1"]);
        let restarted = reasons_at(8, None, &[(5, 1), (6, 2), (8, 2)]);
        assert!(
            restarted[0].starts_with("1 node did not report for more than 100.8 minutes, such as n1 for 3 days"),
            "{restarted:?}"
        );
    }

    const HOUR: i64 = 3_600;

    /// Every hour of eight days.
    const ALWAYS: [(i64, i64); 1] = [(0, 8 * 24 + 1)];

    /// The readiness of a policy that is audited since day 0, at the end of day 8, by the evidence of three nodes: the
    /// hours in which each reported, and the node and hour of a flow that the policy would have denied.
    fn of_nodes(hours: [&[(i64, i64)]; 3], denied: Option<(&str, i64)>) -> PolicyReadiness {
        let kind = Kind::NetworkPolicy;
        let state = state(&[(kind, policy(kind, "api", json!({})))]);
        let mut evidence = AuditEvidence::default();
        evidence.update(&state, at(0));
        if let Some((node, hour)) = denied {
            evidence.add(&would_deny(node, hour * HOUR));
        }
        let mut presence = NodePresence::default();
        let nodes = ["n1", "n2", "n3"].map(Arc::from);
        presence.update(&nodes, at(0));
        for (node, hours) in nodes.iter().zip(hours) {
            for hour in hours.iter().flat_map(|(from, until)| *from..*until) {
                let last_reported = testing::at(hour * HOUR);
                let report =
                    NodeReport { node: node.clone(), epoch: 1, acknowledged: 0, behind: 0, last_reported, missed: 0 };
                presence.record_reports(&[report], last_reported);
            }
        }
        let mut found = readiness(&evidence, &presence, &state, SignedDuration::from_hours(24 * 7), at(8));
        found.remove(0)
    }

    #[test]
    fn would_deny_on_one_node_prevents_readiness() {
        let clean = of_nodes([&ALWAYS; 3], None);
        assert!(clean.ready && clean.unreported.is_empty() && clean.steps.is_some(), "{clean:?}");
        for node in ["n1", "n2", "n3"] {
            let denied = of_nodes([&ALWAYS; 3], Some((node, 6 * 24)));
            assert!(!denied.ready);
            assert_eq!(denied.reasons, ["it would have denied a flow 2 days ago, expected none for 7 days"]);
            let last = denied.last.unwrap();
            assert_eq!((&*last.node, last.at, &*last.source_pods), (node, at(6), &["shop/web-1".into()][..]));
        }
        // An earlier flow does not prevent it, and is shown.
        let earlier = of_nodes([&ALWAYS; 3], Some(("n2", 12)));
        assert!(earlier.ready && earlier.last.is_some(), "{earlier:?}");
        assert_eq!(earlier.clean_seconds, 7 * 86_400 + 12 * 3_600);
    }

    #[test]
    fn node_that_did_not_report_prevents_readiness() {
        let gap = |readiness: &PolicyReadiness| {
            let [NodeGap { node, seconds, last_reported, is_silent }] = &*readiness.unreported else {
                panic!("{readiness:?}")
            };
            (node.to_string(), *seconds, last_reported.is_some(), *is_silent)
        };
        let never = of_nodes([&ALWAYS, &ALWAYS, &[]], None);
        assert!(!never.ready);
        assert_eq!(never.reasons, ["1 of 3 nodes do not report now, such as n3"]);
        assert_eq!(gap(&never), ("n3".to_owned(), 7 * 86_400, false, true));

        let silent = of_nodes([&ALWAYS, &[(0, 7 * 24)], &ALWAYS], None);
        assert_eq!(silent.reasons, ["1 of 3 nodes do not report now, such as n2"]);
        assert_eq!(gap(&silent), ("n2".to_owned(), 25 * 3_600, true, true));

        let away = of_nodes([&[(0, 100), (120, 8 * 24 + 1)], &ALWAYS, &ALWAYS], None);
        assert_eq!(away.reasons, ["1 node did not report for more than 100.8 minutes, such as n1 for 21 hours"]);
        assert_eq!(gap(&away), ("n1".to_owned(), 21 * 3_600, true, false));
        assert!(!away.ready);
    }
}
