use serde_json::{Value, json};

use crate::{
    ClusterPeer, ClusterPeers, ClusterPolicy, ClusterRule, Direction, Enforcement, Kind, Object, PortRange, Ports,
    Tier, lower,
};

fn policy(spec: Value) -> Value {
    json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
        "metadata": {"name": "p"}, "spec": spec,
    })
}

fn spec(directions: Value) -> Value {
    let mut spec =
        json!({"tier": "Baseline", "priority": 7, "subject": {"namespaces": {"matchLabels": {"team": "a"}}}});
    spec.as_object_mut().unwrap().extend(directions.as_object().unwrap().clone());
    spec
}

fn lowered(object: &Value) -> ClusterPolicy {
    match lower(Kind::ClusterNetworkPolicy, object) {
        Ok(Object::ClusterPolicy(policy)) => (*policy).clone(),
        other => panic!("{other:?}"),
    }
}

/// `Deny any`, `Accept networks 10.0.0.0/8 tcp 80,udp 1-9`; a rule with no peers matches nothing.
fn rule_text(rule: &ClusterRule) -> String {
    let peer = |peer: &ClusterPeer| match peer {
        ClusterPeer::Pods(scope) => format!("pods [{}] [{}]", scope.namespaces, scope.pods),
        ClusterPeer::Nodes(selector) => format!("nodes [{selector}]"),
        ClusterPeer::Networks(networks) => {
            format!("networks {}", networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        }
        ClusterPeer::DomainNames(names) => {
            format!("names {}", names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
        }
    };
    let peers = match &rule.peers {
        ClusterPeers::Any => "any".to_owned(),
        ClusterPeers::Of(peers) => peers.iter().map(peer).collect::<Vec<_>>().join("; "),
    };
    let ports = match &rule.ports {
        Ports::Any => String::new(),
        Ports::Of(ports) => {
            let port = |port: &crate::PortMatch| match &port.range {
                PortRange::All => format!("{} all", port.protocol),
                PortRange::Numbers(first, last) if first == last => format!("{} {first}", port.protocol),
                PortRange::Numbers(first, last) => format!("{} {first}-{last}", port.protocol),
                PortRange::Named(name) => format!("{} {name}", port.protocol),
            };
            format!(" on {}", ports.iter().map(port).collect::<Vec<_>>().join(","))
        }
    };
    format!("{} {} {peers}{ports}", rule.index, rule.action)
}

fn rules(policy: &ClusterPolicy, direction: Direction) -> Vec<String> {
    policy.rules(direction).iter().map(rule_text).collect()
}

fn problems(policy: &ClusterPolicy) -> Vec<String> {
    let prefix = "ClusterNetworkPolicy p ";
    policy.problems.iter().map(|p| p.to_string().strip_prefix(prefix).unwrap().to_owned()).collect()
}

/// The egress rule of each action with these fields, and its problems.
fn egress_rule(fields: &Value) -> [(String, Vec<String>); 3] {
    ["Accept", "Deny", "Pass"].map(|action| {
        let mut rule = fields.clone();
        rule["action"] = action.into();
        let policy = lowered(&policy(spec(json!({"egress": [rule]}))));
        let [rule] = &rules(&policy, Direction::Egress)[..] else { panic!("{policy:?}") };
        (rule.clone(), problems(&policy))
    })
}

/// Checks that the problem in a rule makes Accept match nothing, and Deny and Pass deny everything.
#[track_caller]
fn assert_closed(fields: &Value, problem: &str) {
    let of = |consequence: &str| vec![format!("spec.egress[0]{problem}; the rule {consequence}")];
    let denies = || ("0 Deny any".to_owned(), of("denies everything"));
    let expected = [("0 Accept ".to_owned(), of("matches nothing")), denies(), denies()];
    assert_eq!(egress_rule(fields), expected, "{fields}");
}

#[test]
fn audited_policy_has_no_problem() {
    let mut object = policy(json!({
        "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
        "ingress": [{"action": "Deny", "from": [{"namespaces": {}}]}],
    }));
    object["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "audit"});
    let policy = lowered(&object);
    assert_eq!(policy.enforcement, Some(Enforcement::Audit));
    assert!(problems(&policy).is_empty(), "{:?}", problems(&policy));
}

#[test]
fn valid_policy_lowers_without_problems() {
    for version in ["v1alpha2", "v1beta1"] {
        let mut object = policy(spec(json!({
            "ingress": [{"name": "web", "action": "Accept", "from": [{"namespaces": {}}]}],
            "egress": [
                {
                    "action": "Deny",
                    "to": [
                        {"pods": {"namespaceSelector": {"matchLabels": {"a": "b"}}, "podSelector": {}}},
                        {"pods": {"podSelector": {"matchLabels": {"app": "db"}}}},
                    ],
                    "protocols": [
                        {"tcp": {"destinationPort": {"number": 80}}},
                        {"udp": {"destinationPort": {"range": {"start": 1, "end": 9}}}},
                        {"sctp": {"destinationPort": {"number": 7}}},
                        {"destinationNamedPort": "http"},
                    ],
                },
                {"action": "Pass", "to": [{"nodes": {"matchLabels": {"z": "1"}}}, {"networks": ["10.1.2.3/8", "::/0"]}]},
            ],
        })));
        object["apiVersion"] = format!("policy.networking.k8s.io/{version}").into();
        object["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "enforce"});
        let policy = lowered(&object);
        assert_eq!(problems(&policy), Vec::<String>::new());
        assert_eq!((policy.tier, policy.priority, policy.enforcement), (Tier::Baseline, 7, Some(Enforcement::Enforce)));
        assert_eq!((&*policy.name.namespace, &*policy.name.name), ("", "p"));
        assert_eq!(
            (policy.subject.namespaces.to_string(), policy.subject.pods.to_string()),
            ("team=a".into(), "".into())
        );
        assert_eq!(rules(&policy, Direction::Ingress), ["0 Accept pods [] []"]);
        assert_eq!(policy.ingress[0].name.as_deref(), Some("web"));
        assert_eq!(
            rules(&policy, Direction::Egress),
            [
                "0 Deny pods [a=b] []; pods [] [app=db] on tcp 80,udp 1-9,sctp 7,tcp http,udp http,sctp http",
                "1 Pass nodes [z=1]; networks 10.0.0.0/8 ::/0",
            ]
        );
    }
}

#[test]
fn direction_without_rules_has_no_effect() {
    for directions in [json!({}), json!({"ingress": null}), json!({"ingress": [], "egress": []})] {
        let policy = lowered(&policy(spec(directions)));
        assert!(policy.ingress.is_empty() && policy.egress.is_empty() && policy.problems.is_empty());
    }
}

#[test]
fn invalid_peer_closes_its_rule() {
    let fields = "namespaces, pods, nodes, networks, domainNames";
    let selector = "unknown operator 'Like'";
    for (peer, problem) in [
        (json!({}), format!(": missing one of {fields}")),
        (json!("all"), ": expected an object, found a string".into()),
        (json!({"serviceAccounts": {}}), ".serviceAccounts: unknown field".into()),
        (json!({"namespaces": {}, "networks": ["::/0"]}), ": namespaces cannot be combined with networks".into()),
        (
            json!({"namespaces": {"matchExpressions": [{"key": "a", "operator": "Like", "values": ["b"]}]}}),
            format!(".namespaces.matchExpressions[0].operator: {selector}"),
        ),
        (json!({"pods": {"namespaceSelector": {}}}), ".pods.podSelector: missing".into()),
        (json!({"pods": {"podSelector": {}, "nodes": {}}}), ".pods.nodes: unknown field".into()),
        (json!({"nodes": {"matchFields": []}}), ".nodes.matchFields: unknown field".into()),
        (json!({"networks": []}), ".networks: the list is empty".into()),
        (json!({"networks": ["10.0.0.0/8", "10.0.0.1"]}), ".networks[1]: invalid CIDR block '10.0.0.1'".into()),
        (json!({"domainNames": ["*"]}), ".domainNames[0]: invalid domain name '*'".into()),
    ] {
        assert_closed(&json!({"to": [{"namespaces": {}}, peer]}), &format!(".to[1]{problem}"));
    }
}

#[test]
fn sources_are_pods_alone() {
    let rule = json!({"action": "Deny", "from": [{"networks": ["10.0.0.0/8"]}]});
    let policy = lowered(&policy(spec(json!({"ingress": [rule]}))));
    assert_eq!(rules(&policy, Direction::Ingress), ["0 Deny any"]);
    assert_eq!(problems(&policy), ["spec.ingress[0].from[0].networks: unknown field; the rule denies everything"]);
}

#[test]
fn invalid_part_closes_its_rule() {
    let peers = || json!([{"namespaces": {}}]);
    assert_closed(&json!({}), ".to: missing");
    assert_closed(&json!({"to": []}), ".to: the list is empty");
    assert_closed(&json!({"to": {}}), ".to: expected a list, found an object");
    assert_closed(&json!({"to": peers(), "ports": []}), ".ports: unknown field");
    assert_closed(&json!({"to": peers(), "name": 7}), ".name: expected a string, found a number");
    assert_closed(&json!({"to": peers(), "protocols": []}), ".protocols: the list is empty");
}

#[test]
fn unknown_action_denies_everything() {
    for (rule, problem) in [
        (
            json!({"action": "Allow", "to": [{"namespaces": {}}]}),
            ".action: unknown action 'Allow': expected Accept, Deny or Pass",
        ),
        (json!({"to": [{"namespaces": {}}]}), ".action: missing"),
        (json!("Accept"), ": expected an object, found a string"),
    ] {
        let policy = lowered(&policy(spec(json!({"egress": [rule]}))));
        assert_eq!(rules(&policy, Direction::Egress), ["0 Deny any"]);
        assert_eq!(problems(&policy), [format!("spec.egress[0]{problem}; the rule denies everything")]);
    }
}

#[test]
fn invalid_protocol_matches_nothing_or_denies_everything() {
    for (entry, problem) in [
        (json!({}), ": missing one of tcp, udp, sctp, destinationNamedPort"),
        (json!({"icmp": {}}), ".icmp: unknown field"),
        (json!({"tcp": {}}), ".tcp.destinationPort: missing"),
        (json!({"tcp": {"sourcePort": {"number": 1}}}), ".tcp.sourcePort: unknown field"),
        (json!({"udp": {"destinationPort": {}}}), ".udp.destinationPort: missing one of number, range"),
        (
            json!({"tcp": {"destinationPort": {"number": 0}}}),
            ".tcp.destinationPort.number: invalid port 0: expected 1 to 65535",
        ),
        (
            json!({"sctp": {"destinationPort": {"range": {"start": 9, "end": 9}}}}),
            ".sctp.destinationPort.range: start 9 is not smaller than end 9",
        ),
        (json!({"destinationNamedPort": ""}), ".destinationNamedPort: the name of a named port is empty"),
    ] {
        let valid = json!({"tcp": {"destinationPort": {"number": 80}}});
        let [accept, deny, pass] = egress_rule(&json!({"to": [{"namespaces": {}}], "protocols": [valid, entry]}));
        let problem = format!("spec.egress[0].protocols[1]{problem}");
        assert_eq!(
            accept,
            ("0 Accept pods [] [] on tcp 80".into(), vec![format!("{problem}; the protocol entry matches nothing")])
        );
        let denied = ("0 Deny any".to_owned(), vec![format!("{problem}; the rule denies everything")]);
        assert_eq!([deny, pass], [denied.clone(), denied]);
    }
}

#[test]
fn named_port_needs_pods_as_peers() {
    for peer in [json!({"networks": ["10.0.0.0/8"]}), json!({"nodes": {}})] {
        let [accept, deny, _] =
            egress_rule(&json!({"to": [{"namespaces": {}}, peer], "protocols": [{"destinationNamedPort": "http"}]}));
        assert!(accept.0.starts_with("0 Accept pods") && accept.0.ends_with(" on "), "{accept:?}");
        assert_eq!(deny.0, "0 Deny any");
        let problem = "spec.egress[0].protocols[0].destinationNamedPort: only pods have named ports, not the rule's peers; \
                       the rule denies everything";
        assert_eq!(deny.1, [problem]);
    }
}

#[test]
fn domain_names_are_only_for_accept_rules() {
    let [accept, deny, pass] =
        egress_rule(&json!({"to": [{"networks": ["::/0"]}, {"domainNames": ["*.Example.org.", "a.b"]}]}));
    assert_eq!(accept, ("0 Accept networks ::/0; names *.example.org a.b".to_owned(), vec![]));
    let problem =
        "spec.egress[0].to[1].domainNames: domain names are only supported in Accept rules; the rule denies everything";
    assert_eq!(
        [deny, pass].map(|(rule, problems)| (rule, problems.concat())),
        [("0 Deny any".to_owned(), problem.to_owned()), ("0 Deny any".to_owned(), problem.to_owned())]
    );
}

fn three_rules() -> Value {
    let rule = |action: &str| json!({"action": action, "from": [{"namespaces": {}}]});
    spec(json!({"ingress": [rule("Accept"), rule("Deny"), rule("Pass")]}))
}

#[test]
fn unknown_part_of_policy_closes_every_rule() {
    let damaged = |damage: fn(&mut Value)| {
        let mut object = policy(three_rules());
        damage(&mut object);
        let policy = lowered(&object);
        assert_eq!(rules(&policy, Direction::Ingress), ["0 Accept ", "1 Deny any", "2 Deny any"], "{object}");
        assert!(policy.egress.is_empty() && policy.subject.namespaces.to_string() == "team=a");
        (policy.tier, problems(&policy).concat())
    };
    let closed = "its Accept rules match nothing, and its Deny and Pass rules deny everything";
    let expected = |tier, problem: &str| (tier, format!("{problem}{closed}"));
    assert_eq!(damaged(|o| o["spec"]["scope"] = json!("x")), expected(Tier::Baseline, "spec.scope: unknown field; "));
    assert_eq!(damaged(|o| o["more"] = json!("x")), expected(Tier::Baseline, "more: unknown field; "));
    assert_eq!(damaged(|o| o["apiVersion"] = Value::Null), expected(Tier::Baseline, "apiVersion: missing; "));
    assert_eq!(
        damaged(|o| o["apiVersion"] = json!("policy.networking.k8s.io/v1")),
        expected(
            Tier::Baseline,
            "apiVersion: unsupported apiVersion 'policy.networking.k8s.io/v1': expected \
             policy.networking.k8s.io/v1alpha2 or policy.networking.k8s.io/v1beta1; ",
        )
    );
    assert_eq!(
        damaged(|o| o["spec"]["tier"] = json!("Platform")),
        expected(
            Tier::Admin,
            "spec.tier: unknown tier 'Platform': expected Admin or Baseline; the policy is of the Admin tier, ",
        )
    );
}

#[test]
fn invalid_priority_or_subject_denies_everything() {
    for (place, value, problem) in [
        ("/spec/priority", json!(1001), "spec.priority: invalid priority 1001: expected 0 to 1000"),
        ("/spec/priority", json!("5"), "spec.priority: invalid priority \"5\": expected 0 to 1000"),
        ("/spec/priority", Value::Null, "spec.priority: missing"),
        ("/spec/subject", Value::Null, "spec.subject: missing"),
        ("/spec/subject", json!({}), "spec.subject: missing one of namespaces, pods"),
        ("/spec/subject", json!({"nodes": {}}), "spec.subject.nodes: unknown field"),
    ] {
        let mut object = policy(three_rules());
        *object.pointer_mut(place).unwrap() = value;
        let policy = lowered(&object);
        assert_eq!(rules(&policy, Direction::Ingress), ["0 Deny any"], "{object}");
        assert!(policy.egress.is_empty());
        let everyone = place == "/spec/subject";
        assert_eq!((policy.subject.namespaces.selects_everything(), policy.priority == 0), (everyone, !everyone));
        let what = if everyone { "the policy selects every pod" } else { "the policy has priority 0" };
        assert_eq!(
            problems(&policy),
            [format!("{problem}; {what} and denies everything in each direction with rules")]
        );
    }
}

#[test]
fn invalid_spec_denies_everything_to_every_pod() {
    for (spec, problem) in [(Value::Null, "missing"), (json!([]), "expected an object, found a list")] {
        let policy = lowered(&policy(spec));
        assert_eq!(
            [Direction::Ingress, Direction::Egress].map(|d| rules(&policy, d)),
            [["0 Deny any"], ["0 Deny any"]]
        );
        assert!(policy.subject.namespaces.selects_everything() && policy.subject.pods.selects_everything());
        assert_eq!((policy.tier, policy.priority), (Tier::Admin, 0));
        assert_eq!(problems(&policy), [format!("spec: {problem}; the policy selects every pod and denies everything")]);
    }
}

#[test]
fn direction_that_is_not_a_list_denies_everything() {
    let policy = lowered(&policy(spec(json!({"egress": {}}))));
    assert!(policy.ingress.is_empty());
    assert_eq!(rules(&policy, Direction::Egress), ["0 Deny any"]);
    assert_eq!(
        problems(&policy),
        ["spec.egress: expected a list, found an object; the policy denies everything in the direction"]
    );
}

#[test]
fn invalid_enforcement_enforces() {
    let mut object = policy(spec(json!({})));
    object["metadata"]["annotations"] = json!({"ringfence.io/enforcement": "off"});
    let policy = lowered(&object);
    assert_eq!((policy.enforcement, policy.problems.len()), (Some(Enforcement::Enforce), 1));
}
