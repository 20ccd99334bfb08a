//! Converts a joined record to Goldmane flows: one for each side that reports.

use std::hash::{Hash, Hasher};

use flow::{
    ClusterRecord, Connections, EndSample, Endpoint, EndpointKind, FlowVerdict, Network, PolicyAction, PolicyTier,
    SideTrace, TraceVerdict, Volume,
};
use wire::StableHasher;

use crate::filter::Filters;
use crate::message::{Action, EndpointType, Flow, FlowKey, PolicyHit, PolicyKind, PolicyTrace, Reporter};

/// Calico's placeholder for fields without a value.
const NONE: &str = "-";

/// Tier of NetworkPolicies.
const TIER: &str = "default";

/// Tiers of ClusterNetworkPolicies, as Calico names them.
const ADMIN_TIER: &str = "kube-admin";
const BASELINE_TIER: &str = "kube-baseline";

/// The kind of hits whose policies are of the whole cluster.
const CLUSTER_POLICY: &str = "ClusterNetworkPolicy";

/// Flows of a record: that of the source, and that of the destination.
pub fn convert(joined: &ClusterRecord) -> impl Iterator<Item = Flow> + use<> {
    convert_admitted(joined, &Filters::default())
}

/// Flows of a record that the filters admit. Policies and labels of other flows are not converted.
pub(crate) fn convert_admitted(joined: &ClusterRecord, filters: &Filters) -> impl Iterator<Item = Flow> + use<> {
    let source = joined.source_verdict.map(|verdict| (Reporter::Source, verdict));
    let destination = joined.destination_verdict.map(|verdict| (Reporter::Destination, verdict));
    // Packets that no policy denied: the node does not say whose side it is on.
    let other = match (source, destination) {
        (None, None) => Some((Reporter::Unspecified, joined.record.key.verdict)),
        (Some(_), _) | (None, Some(_)) => None,
    };
    let flow = |of_side: Option<(Reporter, FlowVerdict)>| {
        of_side.and_then(|(reporter, verdict)| flow(joined, reporter, verdict, filters))
    };
    [source, destination, other].map(flow).into_iter().flatten()
}

/// Number of a key; equal in every process.
pub fn flow_id(key: &FlowKey) -> i64 {
    let mut hasher = StableHasher::default();
    key.hash(&mut hasher);
    (hasher.finish() >> 1).cast_signed()
}

/// `None` if the filters do not admit the flow.
fn flow(joined: &ClusterRecord, reporter: Reporter, verdict: FlowVerdict, filters: &Filters) -> Option<Flow> {
    let record = &joined.record;
    let action = match verdict {
        FlowVerdict::Denied => Action::Deny,
        FlowVerdict::Allowed | FlowVerdict::WouldDeny => Action::Allow,
    };
    let mut flow_key = key_without_policies(&record.key, reporter, action);
    if !filters.admits_ends(&flow_key) {
        return None;
    }
    let policies = match reporter {
        Reporter::Source => trace(&record.key.egress, record.key.source.namespace.as_deref()),
        Reporter::Destination => trace(&record.key.ingress, record.key.destination.namespace.as_deref()),
        Reporter::Unspecified => PolicyTrace::default(),
    };
    if !filters.admits_policies(&policies) {
        return None;
    }
    flow_key.policies = Some(policies);
    let (sent, received) = (record.sent.unwrap_or_default(), record.received.unwrap_or_default());
    let denied = Volume { packets: record.denied_packets, bytes: 0 };
    // In and out are relative to the reporter's end.
    let (into, out) = match (reporter, action) {
        (Reporter::Source, Action::Deny) => (Volume::default(), denied),
        (Reporter::Destination | Reporter::Unspecified, Action::Deny) => (denied, Volume::default()),
        (Reporter::Source, Action::Unspecified | Action::Allow | Action::Pass) => (received, sent),
        (Reporter::Destination | Reporter::Unspecified, Action::Unspecified | Action::Allow | Action::Pass) => {
            (sent, received)
        }
    };
    let Connections { started, ended, live, lost } = record.connections;
    Some(Flow {
        key: Some(flow_key),
        start_time: record.window.as_second(),
        end_time: record.window_end().as_second(),
        source_labels: labels(&record.sources),
        dest_labels: labels(&record.destinations),
        packets_in: signed(into.packets),
        packets_out: signed(out.packets),
        bytes_in: signed(into.bytes),
        bytes_out: signed(out.bytes),
        num_connections_started: signed(started),
        num_connections_completed: signed(ended.saturating_add(lost)),
        num_connections_live: signed(live),
    })
}

fn key_without_policies(key: &flow::FlowKey, reporter: Reporter, action: Action) -> FlowKey {
    let (source_type, source_namespace, source_name) = name(&key.source);
    let (dest_type, dest_namespace, dest_name) = name(&key.destination);
    let service = key.service.as_ref();
    let text = |text: Option<&std::sync::Arc<str>>| text.map_or(NONE, |text| &**text).to_owned();
    FlowKey {
        source_name,
        source_namespace,
        source_type: source_type.into(),
        dest_name,
        dest_namespace,
        dest_type: dest_type.into(),
        dest_port: key.port.map_or(0, i64::from),
        dest_service_name: text(service.map(|service| &service.name)),
        dest_service_namespace: text(service.map(|service| &service.namespace)),
        dest_service_port_name: text(service.and_then(|service| service.port_name.as_ref())),
        dest_service_port: service.map_or(0, |service| i64::from(service.port)),
        proto: protocol(key.protocol),
        reporter: reporter.into(),
        action: action.into(),
        policies: None,
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn labels(sample: &EndSample) -> Vec<String> {
    sample.labels.iter().map(|label| label.to_string()).collect()
}

/// Type, namespace and name of an end.
fn name(end: &Endpoint) -> (EndpointType, String, String) {
    let Endpoint { kind, namespace, name, service: _, cluster, network } = end;
    let or_none = |text: &Option<std::sync::Arc<str>>| text.as_deref().unwrap_or(NONE).to_owned();
    match kind {
        EndpointKind::Pod | EndpointKind::UnknownPod => {
            (EndpointType::WorkloadEndpoint, or_none(namespace), or_none(name))
        }
        EndpointKind::Node => (EndpointType::HostEndpoint, NONE.to_owned(), or_none(name)),
        EndpointKind::KubeApiserver => (EndpointType::NetworkSet, NONE.to_owned(), "kube-apiserver".to_owned()),
        EndpointKind::RemoteCluster => {
            let name = match cluster {
                Some(cluster) => format!("{cluster}/{}", or_none(name)),
                None => or_none(name),
            };
            (EndpointType::NetworkSet, or_none(namespace), name)
        }
        EndpointKind::World => {
            let name = match network {
                Some(Network::Public) => "pub",
                Some(Network::Private) => "pvt",
                None => NONE,
            };
            (EndpointType::Network, NONE.to_owned(), name.to_owned())
        }
    }
}

/// As Calico names it.
fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmp6".to_owned(),
        132 => "sctp".to_owned(),
        136 => "udplite".to_owned(),
        number => number.to_string(),
    }
}

/// Policies of a side: rules that passed the flow on, then what decided. Pending policies are the hits of audited
/// policies; without audited policies, the enforced hits.
fn trace(side: &SideTrace, namespace: Option<&str>) -> PolicyTrace {
    let SideTrace { verdict, enforced_here: _, enforced, pending, passed_by } = side;
    let is_by_profile = match verdict {
        TraceVerdict::NotIsolated | TraceVerdict::Itself | TraceVerdict::OwnNode => true,
        // Only audited policies: no enforced policy isolates the pod.
        TraceVerdict::WouldAllow | TraceVerdict::WouldDeny => enforced.is_empty(),
        TraceVerdict::NotAPod
        | TraceVerdict::Allowed
        | TraceVerdict::Denied
        | TraceVerdict::Unreadable
        | TraceVerdict::Unknown => false,
    };
    let profile = namespace.filter(|_| is_by_profile).map(|namespace| profile(namespace, passed_by.len()));
    let enforced: Vec<PolicyHit> =
        hits(passed_by.iter().chain(enforced), Stage::Enforced).into_iter().chain(profile).collect();
    let pending = match pending.is_empty() {
        true => enforced.clone(),
        false => hits(pending.iter(), Stage::Pending),
    };
    PolicyTrace { enforced_policies: enforced, pending_policies: pending }
}

/// Profile of a namespace, which allows the traffic of pods that no policy isolates.
fn profile(namespace: &str, index: usize) -> PolicyHit {
    PolicyHit {
        kind: PolicyKind::Profile.into(),
        name: format!("kns.{namespace}"),
        action: Action::Allow.into(),
        policy_index: index as i64,
        ..PolicyHit::default()
    }
}

/// Whether hits are those of enforced or of audited policies.
#[derive(Debug, Clone, Copy)]
enum Stage {
    Enforced,
    Pending,
}

/// The kind of a policy, and its tier. Staged ClusterNetworkPolicies have no kind in the protocol, in which other staged
/// policies of the whole cluster are global ones.
fn kind_and_tier(hit: &flow::PolicyHit, stage: Stage) -> (PolicyKind, &'static str) {
    match (&*hit.kind, hit.tier, stage) {
        (CLUSTER_POLICY, tier, stage) => {
            let kind = match stage {
                Stage::Enforced => PolicyKind::ClusterNetworkPolicy,
                Stage::Pending => PolicyKind::StagedGlobalNetworkPolicy,
            };
            let tier = match tier {
                // Agents of an earlier release did not report the tier.
                Some(PolicyTier::Admin) | None => ADMIN_TIER,
                Some(PolicyTier::Baseline) => BASELINE_TIER,
            };
            (kind, tier)
        }
        (_, _, Stage::Enforced) => (PolicyKind::NetworkPolicy, TIER),
        (_, _, Stage::Pending) => (PolicyKind::StagedKubernetesNetworkPolicy, TIER),
    }
}

fn hits<'a>(hits: impl Iterator<Item = &'a flow::PolicyHit>, stage: Stage) -> Vec<PolicyHit> {
    let hits = hits.enumerate().map(|(index, hit)| {
        let flow::PolicyHit { kind: _, namespace, name, tier: _, rule, rule_name: _, action } = hit;
        let (kind, tier) = kind_and_tier(hit, stage);
        let rule_index = rule.as_deref().map_or(-1, rule_index);
        let policy = |action: Action| PolicyHit {
            kind: kind.into(),
            namespace: namespace.to_string(),
            name: name.to_string(),
            tier: tier.to_owned(),
            action: action.into(),
            policy_index: index as i64,
            rule_index,
            trigger: None,
        };
        match (action, rule) {
            (PolicyAction::Allow, _) => policy(Action::Allow),
            (PolicyAction::Pass, _) => policy(Action::Pass),
            (PolicyAction::Deny, Some(_)) => policy(Action::Deny),
            // One hit for each policy that isolates the pod, so that none is missing.
            (PolicyAction::Deny, None) => PolicyHit {
                kind: PolicyKind::EndOfTier.into(),
                tier: tier.to_owned(),
                action: Action::Deny.into(),
                policy_index: index as i64,
                rule_index: -1,
                trigger: Some(Box::new(policy(Action::Unspecified))),
                ..PolicyHit::default()
            },
        }
    });
    hits.collect()
}

/// Rule index: `spec.ingress[2]` is 2.
fn rule_index(rule: &str) -> i64 {
    let index = rule.strip_suffix(']').and_then(|rule| rule.rsplit_once('['));
    index.and_then(|(_, index)| index.parse().ok()).unwrap_or(-1)
}
