//! Explanations as text.

use std::fmt;

use super::{ClusterRuleName, Explanation, FlowEnd, NearMiss, RuleName, SideVerdict, Traffic};
use crate::sanitize::plain;

impl fmt::Display for Traffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Traffic::Port(protocol, port) => write!(f, "{port}/{protocol}"),
            Traffic::Portless => f.write_str("icmp"),
        }
    }
}

impl fmt::Display for FlowEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.pod, &self.remote[..]) {
            (Some(pod), _) => write!(f, "{pod} ({})", self.address),
            (None, []) => self.address.fmt(f),
            (None, remote) => write!(f, "{} ({})", remote_names(remote.iter()), self.address),
        }
    }
}

/// Number of remote sets that are named; the others are counted. An address is in several only if a pod has several
/// names, or if its address moved to another pod.
const REMOTE_NAMED: usize = 4;

/// `remote my-cluster/my-ns/my-app`
pub(super) fn remote_names<T: fmt::Display>(sets: impl ExactSizeIterator<Item = T>) -> String {
    let more = sets.len().saturating_sub(REMOTE_NAMED);
    let named: Vec<String> = sets.take(REMOTE_NAMED).map(|set| set.to_string()).collect();
    match more {
        0 => format!("remote {}", named.join(", ")),
        more => format!("remote {} and {more} more", named.join(", ")),
    }
}

/// Writes the verdict of the party's side.
fn write_side(f: &mut fmt::Formatter<'_>, party: &FlowEnd, side: &SideVerdict) -> fmt::Result {
    match *side == SideVerdict::NotAPod && !party.remote.is_empty() {
        true => f.write_str("not enforced here: the address belongs to a pod of another cluster"),
        false => write!(f, "{side}"),
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.policy, self.field)
    }
}

/// `ClusterNetworkPolicy tenants spec.ingress[0] 'monitoring' (Admin tier, Deny)`
impl fmt::Display for ClusterRuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClusterRuleName { tier, policy, field, name, action, unclear } = self;
        write!(f, "ClusterNetworkPolicy {policy} {field}")?;
        if let Some(name) = name {
            write!(f, " '{}'", plain(name))?;
        }
        write!(f, " ({tier} tier, {action})")?;
        f.write_str(if *unclear { ", which may match: labels or ports are not known" } else { "" })
    }
}

impl fmt::Display for SideVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SideVerdict::NotAPod => f.write_str("not enforced: the address belongs to no pod"),
            SideVerdict::NotIsolated => f.write_str("allowed: no policy isolates the pod"),
            SideVerdict::Itself => f.write_str("allowed: NetworkPolicies do not deny a pod's flows to itself"),
            SideVerdict::OwnNode => f.write_str("always allowed: traffic between a node and its own pods"),
            SideVerdict::Unreadable { reason } => write!(f, "denied: the pod is invalid ({reason})"),
            SideVerdict::Allowed { isolated_by, rule } => {
                write!(f, "allowed by {rule}\n    isolated by {}", isolated_by.join(", "))
            }
            SideVerdict::Denied { isolated_by, closest, would_allow } => {
                write!(f, "denied\n    isolated by {}", isolated_by.join(", "))?;
                write_closest(f, closest.as_ref())?;
                if would_allow.is_empty() {
                    return Ok(());
                }
                f.write_str("\n    rules of audited policies would allow the flow once they are enforced:")?;
                would_allow.iter().try_for_each(|rule| write!(f, "\n      {rule}"))
            }
            SideVerdict::Accepted { rule } => write!(f, "allowed by {rule}"),
            SideVerdict::DeniedByRule { rule } => write!(f, "denied by {rule}"),
            SideVerdict::WouldAccept { rule } => {
                write!(f, "passes: no policy isolates the pod; with audited policies enforced, allowed by {rule}")
            }
            SideVerdict::WouldDenyByRule { rule } => {
                write!(f, "passes: policies are only audited; if enforced, they would deny the flow by {rule}")
            }
            SideVerdict::WouldAllow { audited_by, rule } => {
                write!(
                    f,
                    "passes: the pod's policies are only audited; if enforced, they would allow the flow by {rule}"
                )?;
                write!(f, "\n    audited by {}", audited_by.join(", "))
            }
            SideVerdict::WouldDeny { audited_by, closest } => {
                f.write_str("passes: the pod's policies are only audited; if enforced, they would deny the flow")?;
                write!(f, "\n    audited by {}", audited_by.join(", "))?;
                write_closest(f, closest.as_ref())
            }
        }
    }
}

fn write_closest(f: &mut fmt::Formatter<'_>, closest: Option<&NearMiss>) -> fmt::Result {
    let Some(near) = closest else { return f.write_str("\n    no rule allows anything") };
    write!(f, "\n    closest rule: {}; it lacks", near.rule)?;
    near.lacks.iter().try_for_each(|lack| write!(f, "\n      {lack}"))
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verdict = if self.allowed { "ALLOWED" } else { "DENIED" };
        let audit = if self.would_be_denied() { "  (passes only because policies are audited)" } else { "" };
        writeln!(f, "{verdict}  {} -> {} {}{audit}", self.source, self.destination, self.traffic)?;
        f.write_str("  egress of the source: ")?;
        write_side(f, &self.source, &self.egress)?;
        write_passed_by(f, &self.egress_passed_by)?;
        f.write_str("\n  ingress of the destination: ")?;
        write_side(f, &self.destination, &self.ingress)?;
        write_passed_by(f, &self.ingress_passed_by)?;
        let is_itself = self.source.pod.is_some() && self.source.address == self.destination.address;
        match is_itself && !self.allowed {
            true => f.write_str("\n  only through a Service: packets of the pod to its own address do not leave it"),
            false => Ok(()),
        }
    }
}

fn write_passed_by(f: &mut fmt::Formatter<'_>, rules: &[ClusterRuleName]) -> fmt::Result {
    rules.iter().try_for_each(|rule| write!(f, "\n    passed to the next tier by {rule}"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::remote::{RemoteChange, RemoteSet};
    use crate::{Change, ClusterState, Kind, NamedTraffic, PartyError, PartyName, explain, explain_named, lower};

    fn policy(name: &str, enforcement: &str, ingress: Value) -> Value {
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {
                "namespace": "shop",
                "name": name,
                "annotations": {"ringfence.io/enforcement": enforcement},
            },
            "spec": {"podSelector": {"matchLabels": {"app": "api"}}, "policyTypes": ["Ingress"], "ingress": ingress},
        })
    }

    /// A flow from web to port 80 of api.
    fn explained(policies: &[Value]) -> Explanation {
        let pod = |name: &str, address: &str| {
            json!({
                "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}},
                "status": {"podIPs": [{"ip": address}]},
            })
        };
        let mut state = ClusterState::new();
        let pods = [pod("web", "10.0.0.1"), pod("api", "10.0.0.2")].into_iter().map(|pod| (Kind::Pod, pod));
        for (kind, object) in pods.chain(policies.iter().map(|p| (Kind::NetworkPolicy, p.clone()))) {
            state.apply(Change::Set(lower(kind, &object).unwrap()));
        }
        let [web, api] = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse().unwrap());
        explain(&state, web, api, Traffic::Port(nft::Protocol::Tcp, 80))
    }

    fn from_web() -> Value {
        json!([{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}], "ports": [{"port": 80}]}])
    }

    fn from_db() -> Value {
        json!([{"from": [{"podSelector": {"matchLabels": {"app": "db"}}}]}])
    }

    #[test]
    fn audited_denial_is_explained_as_would_deny() {
        let explanation = explained(&[policy("a", "audit", from_db()), policy("b", "audit", json!([]))]);
        assert!(explanation.allowed && explanation.would_be_denied());
        assert_eq!(
            explanation.to_string(),
            "ALLOWED  shop/web (10.0.0.1) -> shop/api (10.0.0.2) 80/tcp  (passes only because policies are audited)\n  \
             egress of the source: allowed: no policy isolates the pod\n  \
             ingress of the destination: passes: the pod's policies are only audited; if enforced, they would deny \
             the flow\n    \
             audited by shop/a, shop/b\n    \
             closest rule: shop/a spec.ingress[0]; it lacks\n      \
             the peer: shop/web does not match app=db"
        );
        assert_eq!(
            serde_json::to_value(&explanation.ingress).unwrap(),
            json!({
                "verdict": "would-deny",
                "auditedBy": ["shop/a", "shop/b"],
                "closest": {
                    "rule": {"policy": "shop/a", "field": "spec.ingress[0]"},
                    "lacks": ["the peer: shop/web does not match app=db"],
                },
            })
        );
    }

    #[test]
    fn audited_allow_is_explained_as_would_allow() {
        let explanation = explained(&[policy("a", "audit", from_db()), policy("b", "audit", from_web())]);
        assert!(explanation.allowed && !explanation.would_be_denied());
        assert_eq!(
            explanation.ingress.to_string(),
            "passes: the pod's policies are only audited; if enforced, they would allow the flow by shop/b \
             spec.ingress[0]\n    \
             audited by shop/a, shop/b"
        );
        assert_eq!(
            serde_json::to_value(&explanation.ingress).unwrap(),
            json!({
                "verdict": "would-allow",
                "auditedBy": ["shop/a", "shop/b"],
                "rule": {"policy": "shop/b", "field": "spec.ingress[0]"},
            })
        );
    }

    #[test]
    fn audited_policy_is_ineffective_beside_enforced_one() {
        let denied = explained(&[policy("a", "enforce", from_db()), policy("b", "audit", from_web())]);
        assert!(!denied.allowed && !denied.would_be_denied());
        assert_eq!(
            denied.ingress.to_string(),
            "denied\n    isolated by shop/a\n    \
             closest rule: shop/a spec.ingress[0]; it lacks\n      \
             the peer: shop/web does not match app=db\n    rules of audited policies would allow the flow once they \
             are enforced:\n      \
             shop/b spec.ingress[0]"
        );
        let wire = serde_json::to_value(&denied.ingress).unwrap();
        assert_eq!(wire["wouldAllow"], json!([{"policy": "shop/b", "field": "spec.ingress[0]"}]));
        let allowed = explained(&[policy("a", "enforce", from_web()), policy("b", "audit", json!([]))]);
        assert!(allowed.allowed && !allowed.would_be_denied());
        assert_eq!(allowed.ingress.to_string(), "allowed by shop/a spec.ingress[0]\n    isolated by shop/a");
    }

    /// A flow from api of cluster east, at an address shared with cache, to api with these policies.
    fn explained_from_east(policies: &[Value]) -> Explanation {
        let api = json!({"metadata": {"namespace": "shop", "name": "api", "labels": {"app": "api"}},
            "status": {"podIPs": [{"ip": "10.0.0.2"}]}});
        let mut state = ClusterState::new();
        state.apply(Change::Set(lower(Kind::Pod, &api).unwrap()));
        for policy in policies {
            state.apply(Change::Set(lower(Kind::NetworkPolicy, policy).unwrap()));
        }
        for name in ["api", "cache"] {
            let (set, adds) = (RemoteSet::new("east", "back", name), vec!["10.9.0.1".parse().unwrap()]);
            state.apply_remote(RemoteChange::Update { set, adds, removes: vec![] });
        }
        let named = ["east/back/api", "shop/api"].map(|text| text.parse::<PartyName>().unwrap());
        let traffic: NamedTraffic = "80".parse().unwrap();
        explain_named(&state, &named[0], &named[1], &traffic).unwrap().remove(0)
    }

    fn from_cluster(cluster: &str, name: &str) -> Value {
        json!([{"from": [{
            "namespaceSelector": {"matchLabels": {"semaphore.uw.systems/cluster": cluster}},
            "podSelector": {"matchLabels": {"semaphore.uw.systems/name": name}},
        }]}])
    }

    #[test]
    fn remote_pod_is_explained_by_its_sets() {
        let allowed = explained_from_east(&[policy("a", "enforce", from_cluster("east", "cache"))]);
        assert_eq!(
            allowed.to_string(),
            "ALLOWED  remote east/back/api, east/back/cache (10.9.0.1) -> shop/api (10.0.0.2) 80/tcp\n  \
             egress of the source: not enforced here: the address belongs to a pod of another cluster\n  \
             ingress of the destination: allowed by shop/a spec.ingress[0]\n    \
             isolated by shop/a"
        );
        assert_eq!(
            serde_json::to_value(&allowed.source).unwrap(),
            json!({"address": "10.9.0.1", "pod": null, "node": null, "remote": ["east/back/api", "east/back/cache"]})
        );
        assert_eq!(
            serde_json::to_value(&allowed.destination).unwrap(),
            json!({"address": "10.0.0.2", "pod": "shop/api", "node": null})
        );
    }

    #[test]
    fn selector_mismatch_with_remote_pod_is_explained() {
        let who = "the peer: remote east/back/api, east/back/cache";
        for (rules, lack) in [
            (
                from_db(),
                "is in another cluster, which only a namespaceSelector that requires the label of that cluster matches",
            ),
            (
                from_cluster("west", "cache"),
                "is in namespace back of east, which does not match semaphore.uw.systems/cluster=west and does not \
                 match semaphore.uw.systems/name=cache, or is in namespace back of east, which does not match \
                 semaphore.uw.systems/cluster=west",
            ),
            (
                from_cluster("east", "db"),
                "does not match semaphore.uw.systems/name=db, or does not match semaphore.uw.systems/name=db",
            ),
        ] {
            let SideVerdict::Denied { closest: Some(near), .. } =
                explained_from_east(&[policy("a", "enforce", rules)]).ingress
            else {
                panic!("{lack}")
            };
            assert_eq!(near.lacks, [format!("{who} {lack}")]);
        }
    }

    #[test]
    fn unknown_or_addressless_remote_set_is_not_explained() {
        let mut state = ClusterState::new();
        let web = json!({"metadata": {"namespace": "shop", "name": "web"}, "status": {"podIPs": [{"ip": "10.9.0.1"}]}});
        state.apply(Change::Set(lower(Kind::Pod, &web).unwrap()));
        let (set, adds) = (RemoteSet::new("east", "back", "api"), vec!["10.9.0.1".parse().unwrap()]);
        state.apply_remote(RemoteChange::Update { set: set.clone(), adds, removes: vec![] });
        let other = RemoteSet::new("west", "back", "api");
        for (named, expected) in
            [(other.clone(), PartyError::UnknownRemote(other)), (set.clone(), PartyError::NoRemoteAddress(set))]
        {
            let (from, to) = (PartyName::Remote(named), PartyName::Address("10.9.0.1".parse().unwrap()));
            assert_eq!(explain_named(&state, &from, &to, &NamedTraffic::Portless), Err(expected));
        }
    }
}
