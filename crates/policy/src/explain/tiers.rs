//! Judges a flow by the tiers of ClusterNetworkPolicy: rule by rule, in the order of evaluation.

use ipnet::IpNet;
use nft::Protocol;
use serde::{Deserialize, Serialize};

use super::{ExplainedEnd, ExplainedFlow, Traffic};
use crate::state::nodes::group_addresses;
use crate::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, Direction, DomainPattern, Enforcement, Pod, PodScope,
    PortRange, Ports, RuleAction, Selection, Selector, Tier, is_learnable,
};

/// `spec.ingress[index]` or `spec.egress[index]` of a ClusterNetworkPolicy, and what it does with a flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterRuleName {
    /// The tier of the policy.
    pub tier: Tier,
    /// Name of the ClusterNetworkPolicy.
    pub policy: String,
    /// `spec.ingress[index]` or `spec.egress[index]`.
    pub field: String,
    /// The name that its author gave the rule. Omitted from JSON if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The effect on the flow. Invalid rules deny; so do rules that Pass, if [unclear](Self::unclear).
    pub action: RuleAction,
    /// Whether it matches depends on labels or ports that are unknown, so it denies. Omitted from JSON if false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unclear: bool,
}

/// The audited policies that are evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AuditedPolicies {
    Ignored,
    /// As if they were enforced.
    Included,
}

impl ExplainedFlow<'_> {
    /// The first rule of the tier that matches, with its action; `None` if no rule does.
    pub(super) fn decisive(
        &self,
        pod: &Pod,
        tier: Tier,
        direction: Direction,
        other: &ExplainedEnd,
        audited: AuditedPolicies,
    ) -> Option<ClusterRuleName> {
        let mut rules = self.rules_of(pod, tier, direction, audited);
        rules.find_map(|(policy, selection, rule)| {
            let matches = selection.and(self.matches(pod, rule, direction, other));
            let action = match (rule.action, matches) {
                (_, Selection::No) | (RuleAction::Accept, Selection::Unknown) => return None,
                (action, Selection::Yes) => action,
                (RuleAction::Deny | RuleAction::Pass, Selection::Unknown) => RuleAction::Deny,
            };
            Some(rule_name(policy, direction, rule, action, matches == Selection::Unknown))
        })
    }

    /// The enforced rule of the tier that accepts the flow if its destination is learned for one of the rule's domain
    /// names; `None` if an earlier rule decides.
    pub(super) fn accepting_if_learned(&self, pod: &Pod, tier: Tier) -> Option<ClusterRuleName> {
        let (direction, other) = (Direction::Egress, &self.destination);
        let is_inside = self.state.is_inside(other.address);
        let may_have = |name: &DomainPattern| !is_inside || self.state.is_of_cluster_domain(&name.name);
        let mut rules = self.rules_of(pod, tier, direction, AuditedPolicies::Ignored);
        let first = rules.find_map(|(policy, selection, rule)| {
            let accepts = selection.and(self.matches_ports(pod, rule, direction, other)) == Selection::Yes
                && rule.domain_names().any(may_have);
            match (accepts, selection.and(self.matches(pod, rule, direction, other))) {
                (_, Selection::Yes) => Some(None),
                (true, _) => Some(Some(rule_name(policy, direction, rule, rule.action, false))),
                (false, Selection::Unknown) if rule.action != RuleAction::Accept => Some(None),
                (false, Selection::No | Selection::Unknown) => None,
            }
        });
        first.flatten().filter(|_| is_learnable(other.address))
    }

    /// The rules of the tier that may apply to the pod, in the order of evaluation.
    fn rules_of<'a>(
        &'a self,
        pod: &'a Pod,
        tier: Tier,
        direction: Direction,
        audited: AuditedPolicies,
    ) -> impl Iterator<Item = (&'a ClusterPolicy, Selection, &'a ClusterRule)> {
        let counts = move |policy: &ClusterPolicy| match self.state.cluster_enforcement(policy) {
            Enforcement::Enforce => true,
            Enforcement::Audit => audited == AuditedPolicies::Included,
        };
        let policies = self.state.cluster_policies_for(pod, tier, direction);
        policies.filter(move |(policy, _)| counts(policy)).flat_map(move |(policy, selection)| {
            policy.rules(direction).iter().map(move |rule| (&**policy, selection, rule))
        })
    }

    fn matches(&self, pod: &Pod, rule: &ClusterRule, direction: Direction, other: &ExplainedEnd) -> Selection {
        let peers = match &rule.peers {
            ClusterPeers::Any => Selection::Yes,
            ClusterPeers::Of(peers) => any(peers.iter().map(|peer| self.matches_peer(pod, peer, direction, other))),
        };
        peers.and(self.matches_ports(pod, rule, direction, other))
    }

    fn matches_ports(&self, pod: &Pod, rule: &ClusterRule, direction: Direction, other: &ExplainedEnd) -> Selection {
        match (&rule.ports, self.traffic) {
            (Ports::Any, _) => Selection::Yes,
            (Ports::Of(_), Traffic::Portless) => Selection::No,
            (Ports::Of(ports), Traffic::Port(protocol, number)) => {
                let of_protocol = ports.iter().filter(|port| port.protocol == protocol);
                any(of_protocol.map(|port| match &port.range {
                    PortRange::All => Selection::Yes,
                    PortRange::Numbers(first, last) => (*first..=*last).contains(&number).into(),
                    PortRange::Named(name) => match direction {
                        Direction::Ingress => (pod.resolve(name, protocol) == Some(number)).into(),
                        Direction::Egress if self.may_be_any_pod(pod, direction, other) => Selection::Unknown,
                        Direction::Egress => named_port_is(other, name, protocol, number),
                    },
                }))
            }
        }
    }

    /// Whether rules about pods may match the other end, though no known pod has the address: several pods receive at it,
    /// or it is that of a pod which is not known yet.
    fn may_be_any_pod(&self, pod: &Pod, direction: Direction, other: &ExplainedEnd) -> bool {
        other.may_be_unknown_pod(self.state) || direction == Direction::Egress && self.is_of_several(pod, other)
    }

    /// Whether several pods may receive what the pod sends to the address.
    fn is_of_several(&self, pod: &Pod, other: &ExplainedEnd) -> bool {
        let node = pod.node.as_ref().and_then(|name| self.state.node(name));
        let in_range = |range: &IpNet| range.contains(&other.address);
        other.pod.is_none() && group_addresses(node.map(|node| &**node)).iter().any(in_range)
    }

    fn matches_peer(&self, pod: &Pod, peer: &ClusterPeer, direction: Direction, other: &ExplainedEnd) -> Selection {
        match peer {
            ClusterPeer::Networks(networks) => networks.iter().any(|network| network.contains(&other.address)).into(),
            ClusterPeer::Nodes(selector) => self.matches_nodes(selector, other),
            ClusterPeer::DomainNames(names) => {
                let mut learned = self.state.learned_names(other.address);
                learned.any(|name| names.iter().any(|pattern| pattern.matches(name))).into()
            }
            ClusterPeer::Pods(scope) => match (other.pod, other.unknown) {
                (Some(pod), _) => scope.selects(pod, self.state.namespace_labels(&pod.name.namespace)),
                (None, Some(attachment)) => {
                    let PodScope { namespaces, pods: _ } = scope;
                    let labels = self.state.namespace_labels(&attachment.pod.namespace);
                    Selection::of(namespaces, labels).and(Selection::Unknown)
                }
                (None, None) if self.may_be_any_pod(pod, direction, other) => Selection::Unknown,
                (None, None) => Selection::No,
            },
        }
    }

    fn matches_nodes(&self, selector: &Selector, other: &ExplainedEnd) -> Selection {
        let with_address = self.state.nodes().filter(|node| node.status_addresses.iter().any(|a| a == other.address));
        any(with_address.map(|node| Selection::of(selector, (!node.unlabelled).then_some(&node.labels))))
    }
}

fn rule_name(
    policy: &ClusterPolicy,
    direction: Direction,
    rule: &ClusterRule,
    action: RuleAction,
    unclear: bool,
) -> ClusterRuleName {
    ClusterRuleName {
        tier: policy.tier,
        policy: policy.name.to_string(),
        field: format!("spec.{}[{}]", direction.as_str(), rule.index),
        name: rule.name.as_deref().map(str::to_owned),
        action,
        unclear,
    }
}

/// The ports of a pod are unknown if it is unreadable, or its object is unknown.
fn named_port_is(other: &ExplainedEnd, name: &str, protocol: Protocol, number: u16) -> Selection {
    match (other.pod, other.unknown) {
        (Some(pod), _) if pod.unreadable => Selection::Unknown,
        (Some(pod), _) => (pod.resolve(name, protocol) == Some(number)).into(),
        (None, Some(_)) => Selection::Unknown,
        (None, None) => Selection::No,
    }
}

fn any(selections: impl Iterator<Item = Selection>) -> Selection {
    selections.fold(Selection::No, Selection::or)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{Change, ClusterState, Explanation, Kind, Traffic, explain, explain_domain_names, lower};

    const WEB: &str = "10.0.0.1";
    const DB: &str = "10.0.0.2";
    const GHOST: &str = "10.0.0.3";
    const NODE: &str = "192.0.2.1";
    const OUTSIDE: &str = "203.0.113.1";

    /// The pods `web` and `db` of one namespace on a node, a pod of a namespace whose object is unknown, and these
    /// policies.
    fn state(policies: &[Value]) -> ClusterState {
        let pod = |namespace: &str, name: &str, address: &str| {
            json!({
                "metadata": {"namespace": namespace, "name": name, "labels": {"app": name}},
                "spec": {"nodeName": "node-a", "containers": [{"ports": [{"name": "http", "containerPort": 80}]}]},
                "status": {"podIPs": [{"ip": address}]},
            })
        };
        let proxy = json!({
            "metadata": {"namespace": "shop", "name": "proxy"},
            "spec": {"nodeName": "node-a", "hostNetwork": true}, "status": {"podIPs": [{"ip": NODE}]},
        });
        let node = json!({
            "metadata": {"name": "node-a", "labels": {"zone": "a"}},
            "status": {"addresses": [{"type": "InternalIP", "address": NODE}]},
        });
        let objects = [
            (Kind::Namespace, json!({"metadata": {"name": "shop", "labels": {"team": "a"}}})),
            (Kind::Pod, pod("shop", "web", WEB)),
            (Kind::Pod, pod("shop", "db", DB)),
            (Kind::Pod, pod("ghost", "ghost", GHOST)),
            (Kind::Pod, proxy),
            (Kind::Node, node),
        ];
        let kind = |policy: &Value| match policy["kind"].as_str() {
            Some("NetworkPolicy") => Kind::NetworkPolicy,
            _ => Kind::ClusterNetworkPolicy,
        };
        let policies = policies.iter().map(|policy| (kind(policy), policy.clone()));
        let mut state = ClusterState::new();
        for (kind, object) in objects.into_iter().chain(policies) {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        state
    }

    fn policy(name: &str, tier: &str, priority: u16, rules: Value) -> Value {
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": name},
            "spec": {
                "tier": tier, "priority": priority, "subject": {"namespaces": {"matchLabels": {"team": "a"}}},
                "egress": rules,
            },
        })
    }

    fn audited(mut policy: Value) -> Value {
        policy["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "audit"});
        policy
    }

    /// A NetworkPolicy for the egress of `web`.
    fn network_policy(egress: Value) -> Value {
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
            "metadata": {"namespace": "shop", "name": "np"},
            "spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Egress"], "egress": egress},
        })
    }

    fn to_db(action: &str) -> Value {
        json!({"name": "to db", "action": action, "to": [{"pods": {"podSelector": {"matchLabels": {"app": "db"}}}}]})
    }

    fn explained(policies: &[Value], destination: &str) -> Explanation {
        let traffic = Traffic::Port(nft::Protocol::Tcp, 80);
        explain(&state(policies), WEB.parse().unwrap(), destination.parse().unwrap(), traffic)
    }

    /// The egress of `web`.
    fn egress(policies: &[Value], destination: &str) -> String {
        explained(policies, destination).egress.to_string()
    }

    #[test]
    fn tiers_decide_before_and_after_network_policy() {
        let admin = |action: &str| policy("a", "Admin", 1, json!([to_db(action)]));
        let baseline = || policy("b", "Baseline", 0, json!([to_db("Deny")]));
        let rule = "ClusterNetworkPolicy a spec.egress[0] 'to db' (Admin tier";
        let (open, closed) = (network_policy(json!([{}])), network_policy(json!([])));
        assert_eq!(egress(&[admin("Deny"), open.clone()], DB), format!("denied by {rule}, Deny)"));
        assert_eq!(egress(&[admin("Accept"), closed.clone()], DB), format!("allowed by {rule}, Accept)"));
        assert!(egress(&[admin("Pass"), closed, baseline()], DB).starts_with("denied\n    isolated by shop/np"));
        assert!(egress(&[admin("Pass"), open, baseline()], DB).starts_with("allowed by shop/np"));
        assert_eq!(
            egress(&[admin("Pass"), baseline()], DB),
            "denied by ClusterNetworkPolicy b spec.egress[0] 'to db' (Baseline tier, Deny)"
        );
        assert_eq!(egress(&[admin("Deny"), baseline()], OUTSIDE), "allowed: no policy isolates the pod");
    }

    #[test]
    fn cluster_policies_judge_hairpin_flows() {
        let to_all = |action: &str| json!([{"action": action, "to": [{"namespaces": {}}]}]);
        let deny = |tier| policy("a", tier, 1, to_all("Deny"));
        let closed = network_policy(json!([]));
        assert_eq!(
            explained(&[deny("Admin")], WEB).to_string(),
            "DENIED  shop/web (10.0.0.1) -> shop/web (10.0.0.1) 80/tcp\n  \
             egress of the source: denied by ClusterNetworkPolicy a spec.egress[0] (Admin tier, Deny)\n  \
             ingress of the destination: allowed: no policy isolates the pod\n  \
             only through a Service: packets of the pod to its own address do not leave it"
        );
        let to_itself = "allowed: NetworkPolicies do not deny a pod's flows to itself";
        assert_eq!(egress(&[closed.clone(), deny("Baseline")], WEB), to_itself);
        assert_eq!(egress(&[closed.clone(), policy("a", "Admin", 1, to_all("Pass"))], WEB), to_itself);
        assert!(egress(&[deny("Baseline")], WEB).starts_with("denied by ClusterNetworkPolicy a"));
        assert!(explained(&[closed, audited(deny("Admin"))], WEB).would_be_denied());
    }

    #[test]
    fn explanation_names_rules_that_pass() {
        let pass = policy("a", "Admin", 1, json!([to_db("Pass")]));
        let explanation = explained(&[pass, policy("b", "Baseline", 1, json!([to_db("Deny")]))], DB);
        assert_eq!(
            explanation.to_string(),
            "DENIED  shop/web (10.0.0.1) -> shop/db (10.0.0.2) 80/tcp\n  \
             egress of the source: denied by ClusterNetworkPolicy b spec.egress[0] 'to db' (Baseline tier, Deny)\n    \
             passed to the next tier by ClusterNetworkPolicy a spec.egress[0] 'to db' (Admin tier, Pass)\n  \
             ingress of the destination: allowed: no policy isolates the pod"
        );
        let wire = serde_json::to_value(&explanation).unwrap();
        let rule = |tier: &str, policy: &str, action: &str| json!({"tier": tier, "policy": policy, "field": "spec.egress[0]", "name": "to db", "action": action});
        assert_eq!(wire["egress"], json!({"verdict": "denied-by-rule", "rule": rule("baseline", "b", "deny")}));
        assert_eq!(wire["egressPassedBy"], json!([rule("admin", "a", "pass")]));
        assert_eq!(wire.get("ingressPassedBy"), None);
        assert_eq!(serde_json::from_value::<Explanation>(wire).unwrap(), explanation);
    }

    #[test]
    fn priority_then_name_then_index_orders_rules() {
        let deciding = |policies: &[Value]| {
            let text = egress(policies, DB);
            text.split(' ').nth(3).map(str::to_owned).zip(text.split(' ').nth(4).map(str::to_owned))
        };
        let of = |name: &str, priority, action: &str| policy(name, "Admin", priority, json!([to_db(action)]));
        let decided = |name: &str, field: &str| Some((name.to_owned(), field.to_owned()));
        assert_eq!(deciding(&[of("a", 10, "Deny"), of("z", 9, "Deny")]), decided("z", "spec.egress[0]"));
        assert_eq!(deciding(&[of("b", 9, "Deny"), of("a", 9, "Deny")]), decided("a", "spec.egress[0]"));
        let rules = json!([{"action": "Deny", "to": [{"networks": ["192.0.2.0/24"]}]}, to_db("Deny")]);
        assert_eq!(deciding(&[policy("a", "Admin", 1, rules)]), decided("a", "spec.egress[1]"));
    }

    #[test]
    fn unknown_namespace_labels_deny_but_never_accept() {
        let to = |action: &str| json!([{"action": action, "to": [{"namespaces": {"matchLabels": {"team": "c"}}}]}]);
        let verdict = |action: &str| egress(&[policy("a", "Admin", 1, to(action))], GHOST);
        let denied = "denied by ClusterNetworkPolicy a spec.egress[0] (Admin tier, Deny), which may match: labels or \
                      ports are not known";
        assert_eq!(["Accept", "Deny", "Pass"].map(verdict), ["allowed: no policy isolates the pod", denied, denied]);
    }

    #[test]
    fn own_node_is_judged_by_cluster_policies_alone() {
        let to_nodes = |action: &str| json!([{"action": action, "to": [{"nodes": {"matchLabels": {"zone": "a"}}}]}]);
        let verdict = |policies: &[Value]| egress(policies, NODE);
        let exempt = "always allowed: traffic between a node and its own pods";
        let (closed, baseline) = (network_policy(json!([])), policy("b", "Baseline", 1, to_nodes("Deny")));
        assert_eq!(verdict(std::slice::from_ref(&closed)), exempt);
        assert_eq!(verdict(&[closed, baseline.clone()]), exempt);
        assert!(verdict(&[baseline]).starts_with("denied by ClusterNetworkPolicy b"));
        assert!(
            verdict(&[policy("a", "Admin", 1, to_nodes("Accept"))]).starts_with("allowed by ClusterNetworkPolicy a")
        );
        // Peers of ingress are pods.
        let mut probes = policy("a", "Admin", 1, json!([]));
        probes["spec"]["ingress"] = json!([{"action": "Deny", "from": [{"namespaces": {}}]}]);
        let state = state(&[probes]);
        let traffic = Traffic::Port(nft::Protocol::Tcp, 80);
        let from_node = explain(&state, NODE.parse().unwrap(), WEB.parse().unwrap(), traffic);
        assert!(from_node.allowed && from_node.ingress.to_string() == exempt, "{from_node}");
    }

    #[test]
    fn denial_notes_rule_about_domain_names() {
        let names = json!({
            "action": "Accept", "to": [{"domainNames": ["*.example.org"]}],
            "protocols": [{"tcp": {"destinationPort": {"number": 80}}}],
        });
        let deny = json!({"action": "Deny", "to": [{"networks": ["0.0.0.0/0"]}]});
        let noted = |policies: &[Value], destination: &str, port: u16| {
            let (state, traffic) = (state(policies), Traffic::Port(nft::Protocol::Tcp, port));
            let explanation = explain(&state, WEB.parse().unwrap(), destination.parse().unwrap(), traffic);
            explain_domain_names(&state, &explanation)
        };
        let of = |tier: &str, rules: &[&Value]| policy("a", tier, 1, json!(rules));
        let [admin, baseline] = ["Admin", "Baseline"].map(|tier| of(tier, &[&names, &deny]));
        let note = |tier: &str| {
            Some(format!(
                "ClusterNetworkPolicy a spec.egress[0] ({tier} tier, Accept) allows it if {OUTSIDE} was learned for one of \
                 its domain names, which only the agent of the pod's node knows"
            ))
        };
        assert_eq!(noted(std::slice::from_ref(&admin), OUTSIDE, 80), note("Admin"));
        assert_eq!(noted(std::slice::from_ref(&baseline), OUTSIDE, 80), note("Baseline"));
        // Another port, addresses that names outside of the cluster's domain cannot have, and an earlier rule.
        assert_eq!(noted(std::slice::from_ref(&admin), OUTSIDE, 81), None);
        for address in [DB, NODE, "127.0.0.1"] {
            assert_eq!(noted(std::slice::from_ref(&admin), address, 80), None);
        }
        assert_eq!(noted(&[of("Admin", &[&deny, &names])], OUTSIDE, 80), None);
        assert_eq!(noted(&[audited(admin), of("Baseline", &[&deny])], OUTSIDE, 80), None);
        assert_eq!(noted(&[network_policy(json!([])), baseline], OUTSIDE, 80), None);
    }

    #[test]
    fn named_port_is_that_of_the_destination() {
        let rule =
            json!([{"action": "Deny", "to": [{"namespaces": {}}], "protocols": [{"destinationNamedPort": "http"}]}]);
        let state = state(&[policy("a", "Admin", 1, rule)]);
        let denied = |traffic| !explain(&state, WEB.parse().unwrap(), DB.parse().unwrap(), traffic).allowed;
        let [tcp, other, udp] = [(nft::Protocol::Tcp, 80), (nft::Protocol::Tcp, 81), (nft::Protocol::Udp, 80)]
            .map(|(protocol, port)| denied(Traffic::Port(protocol, port)));
        assert_eq!([tcp, other, udp, denied(Traffic::Portless)], [true, false, false, false]);
    }

    #[test]
    fn audited_cluster_policy_changes_no_verdict() {
        let deny = || audited(policy("a", "Admin", 1, json!([to_db("Deny")])));
        let accept = |name: &str| policy(name, "Admin", 2, json!([to_db("Accept")]));
        let would = "passes: policies are only audited; if enforced, they would deny the flow by ClusterNetworkPolicy a \
                     spec.egress[0] 'to db' (Admin tier, Deny)";
        for others in [vec![], vec![accept("b")], vec![network_policy(json!([{}]))]] {
            let explanation = explained(&[others, vec![deny()]].concat(), DB);
            assert!(explanation.allowed && explanation.would_be_denied());
            assert_eq!(explanation.egress.to_string(), would);
        }
        assert!(egress(&[deny(), network_policy(json!([]))], DB).starts_with("denied\n    isolated by shop/np"));
        assert_eq!(
            egress(&[audited(accept("b"))], DB),
            "passes: no policy isolates the pod; with audited policies enforced, allowed by ClusterNetworkPolicy b \
             spec.egress[0] 'to db' (Admin tier, Accept)"
        );
        // An audited Accept opens nothing.
        assert!(egress(&[audited(accept("b")), network_policy(json!([]))], DB).starts_with("denied"));
    }
}
