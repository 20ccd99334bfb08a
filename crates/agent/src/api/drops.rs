//! `GET /v1/drops`: packets that were denied, or would have been, as NDJSON, a [`DropLine`] each.

use std::fmt;
use std::net::IpAddr;

use identity::EndIdentity;
use policy::{Cause, ClusterRuleName, Direction, Judgement, NearMiss, RuleName};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};

use super::query::{SingleName, optional_name};

/// A line of the response.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum DropLine {
    Drop(Box<NamedDrop>),
    /// Number of lines that were skipped because the reader was too slow.
    Lost {
        lost: u64,
    },
}

/// Packets of one flow that were denied, or would have been: the first, or those since the last line about the flow.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NamedDrop {
    /// RFC 3339, in UTC, with milliseconds: when the agent received the report.
    pub(crate) time: String,
    pub(crate) verdict: Judgement,
    pub(crate) cause: Cause,
    /// Direction of the policies that deny; null if the cause is not a policy.
    pub(crate) direction: Option<Direction>,
    /// The source in the original direction.
    pub(crate) source: DropEnd,
    pub(crate) destination: DropEnd,
    /// Null if the frame has no address, or while the name of the cluster is unknown.
    #[serde(default)]
    pub(crate) source_identity: Option<EndIdentity>,
    /// As `source_identity`.
    #[serde(default)]
    pub(crate) destination_identity: Option<EndIdentity>,
    /// `80/tcp`, `icmp type 8`, `icmp`, `protocol 47`, or `frame 0x88cc`; with ` reply` for packets in reply direction.
    pub(crate) traffic: String,
    /// The policies that isolate the pod: enforced ones if it was denied, audited ones if it would have been; or the
    /// ClusterNetworkPolicy of `rule`.
    pub(crate) policies: Vec<String>,
    /// Number of policies left out of the list.
    pub(crate) more_policies: usize,
    /// The rule of a ClusterNetworkPolicy that denies. Omitted if none does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) rule: Option<ClusterRuleName>,
    /// Rules of enforced ClusterNetworkPolicies that passed the flow to the next tier. Omitted if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) passed_by: Vec<ClusterRuleName>,
    /// The rule of these policies that matches most closely.
    pub(crate) closest: Option<NearMiss>,
    /// Rules of audited policies that would allow what was denied.
    pub(crate) would_allow: Vec<RuleName>,
    /// Further information about the event.
    pub(crate) note: Option<String>,
    /// Number of packets.
    pub(crate) count: u64,
    /// The node that reported the event.
    pub(crate) node: String,
}

/// Bound on the policies, and on the rules, listed in one event.
const MOST_LISTED: usize = 16;

impl NamedDrop {
    /// Bounds the lists of an event before it is kept, sent and logged: users can create many policies for one pod.
    pub(crate) fn shortened(mut self) -> NamedDrop {
        self.more_policies = self.policies.len().saturating_sub(MOST_LISTED);
        self.policies.truncate(MOST_LISTED);
        self.would_allow.truncate(MOST_LISTED);
        self.passed_by.truncate(MOST_LISTED);
        self
    }

    /// The service identity of the pod whose policies deny, which is the sender if the cause is not a policy; of the other
    /// end if that is not a pod of this node.
    pub(crate) fn service_of_node(&self, node: &str) -> Option<&str> {
        let (source, destination) =
            ((&self.source, &self.source_identity), (&self.destination, &self.destination_identity));
        let (first, second) = match self.direction {
            Some(Direction::Egress) | None => (source, destination),
            Some(Direction::Ingress) => (destination, source),
        };
        let of_node =
            [first, second].into_iter().find(|(end, _)| end.pod.is_some() && end.node.as_deref() == Some(node));
        of_node?.1.as_ref()?.service.as_deref()
    }
}

/// An end of a flow.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct DropEnd {
    /// Address in the packet; null if it has none.
    pub(crate) address: Option<IpAddr>,
    pub(crate) kind: EndKind,
    /// `namespace/name`
    pub(crate) pod: Option<String>,
    /// The node of the pod, or the node that owns the address.
    pub(crate) node: Option<String>,
    /// Name of the other cluster.
    pub(crate) cluster: Option<String>,
    /// `namespace/name` of the remote set in the other cluster; left out if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) set: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum EndKind {
    Pod,
    /// A node of this cluster, or a process in its host network.
    Node,
    RemoteCluster,
    /// A pod of this node whose object is unknown.
    UnknownPod,
    /// None of the above: outside the cluster, as far as the agent knows.
    World,
    /// The frame has no address.
    Unknown,
}

/// How many of the denied packets are covered by events.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Coverage {
    /// Whether the kernel reports packets. If not, they are only counted, without events or flows.
    pub(crate) reporting: bool,
    /// Why packets are reported, or why not.
    pub(crate) reporting_reason: String,
    /// RFC 3339: every event since this time is kept.
    pub(crate) kept_since: String,
    /// Events that were evicted.
    pub(crate) forgotten_events: u64,
    /// Packets counted since the agent started; null while it does not count them.
    pub(crate) denied: Option<u64>,
    pub(crate) would_deny: Option<u64>,
    /// Packets not covered by an event, or not yet.
    pub(crate) unnamed: Option<u64>,
}

/// Parameters of the query.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct DropsQuery {
    /// Keep sending new events after the kept ones.
    pub(crate) follow: bool,
    /// Only events where one end is a pod of this namespace.
    #[serde(deserialize_with = "optional_name")]
    pub(crate) namespace: Option<String>,
    /// Only events where one end is this pod: `name`, or `namespace/name`.
    #[serde(deserialize_with = "pod")]
    pub(crate) pod: Option<String>,
    pub(crate) verdict: Option<Judgement>,
}

/// Parses `name` or `namespace/name`.
fn pod<'de, D: Deserializer<'de>>(text: D) -> Result<Option<String>, D::Error> {
    let text = String::deserialize(text)?;
    let (namespace, name) = text.split_once('/').unwrap_or((&text, &text));
    match [namespace, name].iter().all(|part| part.parse::<SingleName>().is_ok()) {
        true => Ok(Some(text)),
        false => Err(D::Error::custom(format_args!("invalid pod '{text}': expected NAME or NAMESPACE/NAME"))),
    }
}

impl DropsQuery {
    pub(crate) fn admits(&self, denial: &NamedDrop) -> bool {
        let DropsQuery { follow: _, namespace, pod, verdict } = self;
        let ends = [&denial.source, &denial.destination];
        let any = |fits: &dyn Fn(&str, &str) -> bool| {
            let names = ends.iter().filter_map(|end| end.pod.as_deref()?.split_once('/'));
            names.into_iter().any(|(namespace, name)| fits(namespace, name))
        };
        let is_pod = |wanted: &str| match wanted.split_once('/') {
            Some((in_namespace, named)) => any(&|namespace, name| namespace == in_namespace && name == named),
            None => any(&|_, name| name == wanted),
        };
        verdict.is_none_or(|verdict| verdict == denial.verdict)
            && namespace.as_deref().is_none_or(|wanted| any(&|namespace, _| namespace == wanted))
            && pod.as_deref().is_none_or(is_pod)
    }
}

impl DropEnd {
    /// The name of the end, without its address.
    pub(crate) fn named(&self) -> String {
        let (what, names) = match self.kind {
            EndKind::Pod => ("", [&self.pod, &None]),
            EndKind::Node => ("node", [&self.node, &None]),
            EndKind::RemoteCluster => ("cluster", [&self.cluster, &self.set]),
            EndKind::UnknownPod => ("unknown pod", [&self.pod, &None]),
            EndKind::World => ("world", [&None, &None]),
            EndKind::Unknown => ("unknown", [&None, &None]),
        };
        let names = names.into_iter().flatten().map(|name| name.as_str());
        std::iter::once(what).chain(names).collect::<Vec<&str>>().join(" ").trim().to_owned()
    }
}

impl fmt::Display for DropEnd {
    /// The name, followed by the address in parentheses if there is one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.named())?;
        self.address.map_or(Ok(()), |address| write!(f, " ({address})"))
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::tests::golden;
    use super::*;

    fn pod(name: &str, address: &str) -> DropEnd {
        let address = Some(address.parse().unwrap());
        DropEnd {
            address,
            kind: EndKind::Pod,
            pod: Some(name.into()),
            node: Some("node-a".into()),
            cluster: None,
            set: None,
        }
    }

    fn denial() -> NamedDrop {
        let rule = |policy: &str| RuleName { policy: policy.into(), field: "spec.ingress[0]".into() };
        NamedDrop {
            time: "2026-05-04T03:02:01.000Z".into(),
            verdict: Judgement::Denied,
            cause: Cause::Ingress,
            direction: Some(Direction::Ingress),
            source: pod("shop/web", "10.1.0.1"),
            destination: pod("data/db", "10.1.0.2"),
            source_identity: Some(EndIdentity::of_sid("rdsrexpux6y4o".parse().unwrap(), "shop".into())),
            destination_identity: None,
            traffic: "80/tcp".into(),
            policies: vec!["data/db".into()],
            more_policies: 0,
            rule: None,
            passed_by: vec![],
            closest: Some(NearMiss { rule: rule("data/db"), lacks: vec!["the port".into()] }),
            would_allow: vec![rule("data/next")],
            note: Some("a note".into()),
            count: 3,
            node: "node-a".into(),
        }
    }

    #[test]
    fn shortened_drop_bounds_every_list() {
        let rule = |number: usize| RuleName { policy: format!("data/{number}"), field: "spec.ingress[0]".into() };
        let passing = |number: usize| ClusterRuleName {
            policy: format!("pass-{number}"),
            tier: policy::Tier::Admin,
            field: "spec.egress[0]".into(),
            name: None,
            action: policy::RuleAction::Pass,
            unclear: false,
        };
        let many = NamedDrop {
            policies: (0..MOST_LISTED + 3).map(|number| format!("data/{number}")).collect(),
            passed_by: (0..MOST_LISTED + 3).map(passing).collect(),
            would_allow: (0..MOST_LISTED + 3).map(rule).collect(),
            ..denial()
        };
        let shortened = many.clone().shortened();
        assert_eq!((shortened.policies.len(), shortened.more_policies), (MOST_LISTED, 3));
        assert_eq!(shortened.would_allow, many.would_allow[..MOST_LISTED]);
        assert_eq!(shortened.passed_by, many.passed_by[..MOST_LISTED]);
    }

    #[test]
    fn a_line_has_these_bytes() {
        golden(
            &DropLine::Drop(Box::new(denial())),
            expect![[
                r#"{"time":"2026-05-04T03:02:01.000Z","verdict":"denied","cause":"ingress","direction":"ingress","source":{"address":"10.1.0.1","kind":"pod","pod":"shop/web","node":"node-a","cluster":null},"destination":{"address":"10.1.0.2","kind":"pod","pod":"data/db","node":"node-a","cluster":null},"sourceIdentity":{"service":"shop","sid":"rdsrexpux6y4o","num":213703,"state":null},"destinationIdentity":null,"traffic":"80/tcp","policies":["data/db"],"morePolicies":0,"closest":{"rule":{"policy":"data/db","field":"spec.ingress[0]"},"lacks":["the port"]},"wouldAllow":[{"policy":"data/next","field":"spec.ingress[0]"}],"note":"a note","count":3,"node":"node-a"}"#
            ]],
        );
        golden(&DropLine::Lost { lost: 4 }, expect![[r#"{"lost":4}"#]]);
    }

    #[test]
    fn coverage_has_these_bytes() {
        let coverage = Coverage {
            reporting: false,
            reporting_reason: "off".into(),
            kept_since: "2026-05-04T03:02:01.000Z".into(),
            forgotten_events: 3,
            denied: Some(9),
            would_deny: Some(0),
            unnamed: None,
        };
        golden(
            &coverage,
            expect![[
                r#"{"reporting":false,"reportingReason":"off","keptSince":"2026-05-04T03:02:01.000Z","forgottenEvents":3,"denied":9,"wouldDeny":0,"unnamed":null}"#
            ]],
        );
    }

    #[test]
    fn denial_end_kinds_match_golden_text_and_json() {
        let end = |kind| DropEnd { kind, pod: None, ..pod("", "192.0.2.1") };
        let far = DropEnd { node: None, ..end(EndKind::RemoteCluster) };
        let named = DropEnd { cluster: Some("east".into()), set: Some("shop/api".into()), ..far.clone() };
        let frame = DropEnd { address: None, node: None, ..end(EndKind::Unknown) };
        let shown = [
            pod("shop/web", "10.1.0.1"),
            end(EndKind::Node),
            DropEnd { cluster: Some("east".into()), ..far.clone() },
            named.clone(),
            DropEnd { node: None, ..end(EndKind::UnknownPod) },
            DropEnd { pod: Some("shop/new".into()), ..end(EndKind::UnknownPod) },
            DropEnd { node: None, ..end(EndKind::World) },
            frame.clone(),
        ]
        .map(|end| end.to_string());
        expect![[r#"
            shop/web (10.1.0.1)
            node node-a (192.0.2.1)
            cluster east (192.0.2.1)
            cluster east shop/api (192.0.2.1)
            unknown pod (192.0.2.1)
            unknown pod shop/new (192.0.2.1)
            world (192.0.2.1)
            unknown"#]]
        .assert_eq(&shown.join("\n"));
        golden(
            &far,
            expect![[r#"{"address":"192.0.2.1","kind":"remote-cluster","pod":null,"node":null,"cluster":null}"#]],
        );
        golden(
            &named,
            expect![[
                r#"{"address":"192.0.2.1","kind":"remote-cluster","pod":null,"node":null,"cluster":"east","set":"shop/api"}"#
            ]],
        );
        golden(&frame, expect![[r#"{"address":null,"kind":"unknown","pod":null,"node":null,"cluster":null}"#]]);
    }

    #[test]
    fn drops_query_admits_matching_denials_only() {
        let all = DropsQuery::default();
        let of = |namespace: &str| DropsQuery { namespace: Some(namespace.into()), ..all.clone() };
        let with = |pod: &str| DropsQuery { pod: Some(pod.into()), ..all.clone() };
        let would = DropsQuery { verdict: Some(Judgement::WouldDeny), ..all.clone() };
        let admitted = [all.clone(), of("shop"), of("data"), with("db"), with("shop/web")];
        assert!(admitted.iter().all(|query| query.admits(&denial())));
        let others =
            [of("ops"), with("other"), with("shop/db"), would, DropsQuery { pod: Some("db".into()), ..of("x") }];
        assert!(others.iter().all(|query| !query.admits(&denial())));
    }
}
