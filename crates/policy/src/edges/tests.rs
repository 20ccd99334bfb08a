//! Lines of small clusters, and their deltas after single changes.

mod imports;

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::remote::{RemoteChange, RemoteSet};
use crate::{Change, Kind, lower};

/// A cluster of one namespace with its edges. A pod's workload is its name up to the last dash.
struct IncrementalEdges {
    state: ClusterState,
    edges: Edges,
}

impl IncrementalEdges {
    fn of(objects: Vec<(Kind, Value)>) -> IncrementalEdges {
        let mut followed = IncrementalEdges { state: ClusterState::new(), edges: Edges::new() };
        followed.set(objects);
        followed
    }

    fn set(&mut self, objects: Vec<(Kind, Value)>) -> EdgeChanges {
        let mut changed = StateDelta::default();
        for (kind, object) in objects {
            changed.join(self.state.apply(Change::Set(lower(kind, &object).unwrap())));
        }
        self.apply(&changed)
    }

    fn remove(&mut self, kind: Kind, name: &str) -> EdgeChanges {
        let changed = self.state.apply(Change::Remove(kind, ObjectName::new("shop", name)));
        self.apply(&changed)
    }

    /// Changes addresses of the set in cluster `east`, namespace `shop`.
    fn update_remote(&mut self, name: &str, adds: &[&str], removes: &[&str]) -> EdgeChanges {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let set = RemoteSet::new("east", "shop", name);
        let changed = self.state.apply_remote(RemoteChange::Update { set, adds: parse(adds), removes: parse(removes) });
        self.apply(&changed)
    }

    fn apply(&mut self, changed: &StateDelta) -> EdgeChanges {
        let workload = |pod: &Pod| Arc::from(pod.name.name.rsplit_once('-').unwrap().0);
        self.edges.update(&self.state, changed, &workload, &BTreeSet::new())
    }

    /// The edges in short form: ends, the number of spans or `*`, and whether it is partial.
    fn shown(&self) -> Vec<String> {
        let end = |end: &EdgeEnd| match end {
            EdgeEnd::Any => "*".to_owned(),
            EdgeEnd::Workload(name) => name.name.to_string(),
            EdgeEnd::Remote(set) => set.to_string(),
        };
        let shown = |line: DeclaredLine| match line {
            DeclaredLine::Edge { source, destination, ports, partial } => {
                let ports = ports.spans().map_or("*".to_owned(), |spans| {
                    let numbers: Vec<String> = spans.iter().map(|span| span.first.to_string()).collect();
                    numbers.join(",")
                });
                Some(format!("{}>{}:{ports}{}", end(&source), end(&destination), if partial { " some" } else { "" }))
            }
            DeclaredLine::IngressGoverned(_)
            | DeclaredLine::EgressGoverned(_)
            | DeclaredLine::Rule { .. }
            | DeclaredLine::Governs { .. }
            | DeclaredLine::ClusterGoverns { .. }
            | DeclaredLine::FromBlock { .. }
            | DeclaredLine::ToBlock { .. }
            | DeclaredLine::ToName { .. } => None,
        };
        self.edges.lines().into_iter().filter_map(shown).collect()
    }
}

fn namespace() -> (Kind, Value) {
    (Kind::Namespace, json!({"metadata": {"name": "shop"}}))
}

fn pod(name: &str, host: u8, labels: Value) -> (Kind, Value) {
    let status = json!({"phase": "Running", "podIPs": [{"ip": format!("10.0.0.{host}")}]});
    let spec = json!({"nodeName": "n", "containers": [{"name": "c"}]});
    (
        Kind::Pod,
        json!({"metadata": {"namespace": "shop", "name": name, "labels": labels}, "spec": spec, "status": status}),
    )
}

fn policy(name: &str, spec: Value) -> (Kind, Value) {
    let metadata = json!({"namespace": "shop", "name": name});
    let (version, kind) = ("networking.k8s.io/v1", "NetworkPolicy");
    (Kind::NetworkPolicy, json!({"apiVersion": version, "kind": kind, "metadata": metadata, "spec": spec}))
}

fn selecting(app: &str) -> Value {
    json!({"matchLabels": {"app": app}})
}

/// Web and api, with one pod each; `ingress` are the ingress rules of api, and web may send to anyone.
fn shop(ingress: Value) -> Vec<(Kind, Value)> {
    vec![
        namespace(),
        pod("web-1", 1, json!({"app": "web", "release": "1"})),
        pod("api-1", 2, json!({"app": "api"})),
        policy("web", json!({"podSelector": selecting("web"), "policyTypes": ["Egress"], "egress": [{}]})),
        policy("api", json!({"podSelector": selecting("api"), "ingress": ingress})),
    ]
}

#[test]
fn wildcard_line_depends_on_single_denied_workload() {
    let mut shop_closed = IncrementalEdges::of(shop(json!([])));
    assert_eq!(shop_closed.shown(), ["web>web:*"]);
    shop_closed.set(vec![policy("api", json!({"podSelector": selecting("api"), "ingress": [{}]}))]);
    assert_eq!(shop_closed.shown(), ["*>api:*", "web>*:*"]);
    let from_web = json!([{"from": [{"podSelector": selecting("web")}], "ports": [{"port": 80}]}]);
    shop_closed.set(vec![policy("api", json!({"podSelector": selecting("api"), "ingress": from_web}))]);
    // Web may send to every workload at port 80, and to web at every port.
    assert_eq!(shop_closed.shown(), ["web>*:80", "web>api:80", "web>web:*"]);
    shop_closed.set(vec![policy("api", json!({"podSelector": selecting("api"), "ingress": []}))]);
    assert_eq!(shop_closed.shown(), ["web>web:*"]);
    shop_closed.remove(Kind::NetworkPolicy, "api");
    assert_eq!(shop_closed.shown(), ["web>*:*"]);
}

#[test]
fn denied_workload_expands_wildcard_source() {
    let mut open = IncrementalEdges::of(shop(json!([{"ports": [{"port": 80}]}])));
    assert_eq!(open.shown().first().map(String::as_str), Some("*>api:80"));
    let shut = policy("shut", json!({"podSelector": selecting("shut"), "policyTypes": ["Egress"]}));
    let changes = open.set(vec![pod("shut-1", 3, json!({"app": "shut"})), shut]);
    assert!(open.shown().starts_with(&["api>api:80".into(), "web>*:80".into()]), "{:?}", open.shown());
    assert!(
        changes.removes.iter().any(|line| matches!(line, DeclaredLine::Edge { source: EdgeEnd::Any, .. })),
        "{changes:?}"
    );
    open.remove(Kind::Pod, "shut-1");
    assert_eq!(open.shown().first().map(String::as_str), Some("*>api:80"));
}

#[test]
fn withheld_edges_also_remove_lines_of_removed_workload() {
    let mut followed = IncrementalEdges { state: ClusterState::new(), edges: Edges::with_limit(2) };
    let client = |name: &str, host: u8| pod(name, host, json!({"role": "client"}));
    let from_clients = json!([{"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}]);
    followed.set(vec![
        namespace(),
        policy("api", json!({"podSelector": selecting("api"), "ingress": from_clients})),
        pod("api-1", 1, json!({"app": "api"})),
        pod("other-1", 2, json!({})),
        client("old-1", 3),
    ]);
    let before = followed.edges.lines();
    assert_eq!(followed.shown(), ["old>api:*"]);
    let mut changed = followed.state.apply(Change::Remove(Kind::Pod, ObjectName::new("shop", "old-1")));
    for number in 10..20 {
        let (kind, object) = client(&format!("new{number}-1"), number);
        changed.join(followed.state.apply(Change::Set(lower(kind, &object).unwrap())));
    }
    let mut changes = followed.apply(&changed);
    changes.removes.sort_unstable();
    assert!(followed.edges.is_withheld());
    assert_eq!((changes.adds, changes.removes), (vec![], before));
}

#[test]
fn a_pod_like_others_changes_no_line() {
    let mut shop = IncrementalEdges::of(shop(json!([{"from": [{"podSelector": selecting("web")}]}])));
    let (lines, classes) = (shop.edges.lines(), shop.edges.class_count());
    // No policy selects by its release.
    let changes = shop.set(vec![pod("web-2", 3, json!({"app": "web", "release": "2"}))]);
    assert_eq!((changes.is_empty(), shop.edges.class_count()), (true, classes));
    assert!(shop.remove(Kind::Pod, "web-1").is_empty());
    assert_eq!(shop.edges.lines(), lines);
}

#[test]
fn line_is_partial_while_policy_distinguishes_replicas() {
    let mut shop = IncrementalEdges::of(shop(json!([{"from": [{"podSelector": selecting("web")}]}])));
    shop.set(vec![pod("web-2", 3, json!({"app": "web", "release": "2"}))]);
    assert!(
        shop.shown().contains(&"web>api:*".into()) || shop.shown().contains(&"web>*:*".into()),
        "{:?}",
        shop.shown()
    );
    let from_release = json!([{"from": [{"podSelector": {"matchLabels": {"release": "2"}}}], "ports": [{"port": 80}]}]);
    shop.set(vec![policy("api", json!({"podSelector": selecting("api"), "ingress": from_release}))]);
    assert!(shop.shown().contains(&"web>api:80 some".into()), "{:?}", shop.shown());
    shop.remove(Kind::Pod, "web-1");
    assert!(shop.shown().contains(&"web>api:80".into()), "{:?}", shop.shown());
}

#[test]
fn edges_over_limit_are_withheld_until_below_it() {
    let mut shop = IncrementalEdges::of(shop(json!([{"ports": [{"port": 80}]}])));
    shop.edges.limit = 20;
    let known = shop.edges.lines();
    let more: Vec<_> = (1..10)
        .map(|n| {
            policy(
                &format!("p{n}"),
                json!({"podSelector": {}, "ingress": [
        {"from": [{"podSelector": selecting("web")}], "ports": [{"port": n}]}]}),
            )
        })
        .collect();
    let mut pods: Vec<_> = (10..20).map(|n| pod(&format!("w{n}-1"), n, json!({"app": format!("w{n}")}))).collect();
    pods.extend(more);
    let changes = shop.set(pods);
    assert!(shop.edges.is_withheld());
    assert_eq!((changes.adds, changes.removes), (vec![], known.clone()));
    assert_eq!(shop.edges.lines(), []);
    let mut back = EdgeChanges::default();
    for n in 1..10 {
        back = shop.remove(Kind::NetworkPolicy, &format!("p{n}"));
    }
    assert!(!shop.edges.is_withheld());
    assert_eq!((back.adds, back.removes), (shop.edges.lines(), vec![]));
}

/// A peer that selects all sets of the cluster `east`, or those of the name.
fn of_east(name: Option<&str>) -> Value {
    let namespaces = json!({"matchLabels": {"semaphore.uw.systems/cluster": "east"}});
    match name {
        None => json!({"namespaceSelector": namespaces}),
        Some(name) => json!({
            "namespaceSelector": namespaces,
            "podSelector": {"matchLabels": {"semaphore.uw.systems/name": name}},
        }),
    }
}

/// Api, with one pod; `ingress` are its ingress rules.
fn api(ingress: Value) -> Vec<(Kind, Value)> {
    vec![
        namespace(),
        pod("api-1", 2, json!({"app": "api"})),
        policy("api", json!({"podSelector": selecting("api"), "ingress": ingress})),
    ]
}

#[test]
fn remote_line_exists_only_with_its_set() {
    let ports = json!([{"port": 80}]);
    let mut followed = IncrementalEdges::of(api(json!([{"from": [of_east(Some("web"))], "ports": ports}])));
    assert_eq!(followed.shown(), Vec::<String>::new());
    let added_classes = followed.update_remote("web", &["10.9.0.1"], &[]);
    assert_eq!((added_classes.adds.len(), added_classes.removes.len()), (1, 0));
    assert_eq!(followed.shown(), ["east/shop/web>api:80"]);
    assert!(followed.update_remote("web", &["10.9.0.2", "fd00:9::1"], &[]).is_empty());
    assert!(followed.update_remote("jobs", &["10.9.0.3"], &[]).is_empty(), "no rule selects it");
    let both = json!([{"from": [of_east(None)], "ports": ports}]);
    followed.set(vec![policy("api", json!({"podSelector": selecting("api"), "ingress": both}))]);
    assert_eq!(followed.shown(), ["east/shop/jobs>api:80", "east/shop/web>api:80"]);
    // Its only pod has no address of the remaining family.
    let gone = followed.update_remote("web", &[], &["10.9.0.1", "10.9.0.2"]);
    assert_eq!((gone.adds.len(), gone.removes.len()), (0, 1));
    assert_eq!(followed.shown(), ["east/shop/jobs>api:80"]);
    followed.remove(Kind::NetworkPolicy, "api");
    assert!(followed.edges.lines().is_empty(), "{:?}", followed.edges.lines());
}

#[test]
fn remote_set_may_be_destination_by_port_number() {
    let egress = json!([{"to": [of_east(None)], "ports": [{"port": 443}, {"port": "http"}]}]);
    let spec = json!({"podSelector": selecting("api"), "policyTypes": ["Egress"], "egress": egress});
    let mut followed =
        IncrementalEdges::of(vec![namespace(), pod("api-1", 2, json!({"app": "api"})), policy("api", spec)]);
    followed.update_remote("web", &["10.9.0.1"], &[]);
    assert_eq!(followed.shown(), ["api>east/shop/web:443"]);
}

#[test]
fn remote_line_is_partial_where_replicas_differ() {
    let mut followed = IncrementalEdges::of(api(json!([{"from": [of_east(None)], "ports": [{"port": 80}]}])));
    followed.update_remote("web", &["10.9.0.1"], &[]);
    let canary = json!([{"from": [of_east(None)], "ports": [{"port": 90}]}]);
    let selecting_canary = json!({"matchLabels": {"app": "api", "track": "canary"}});
    followed.set(vec![
        pod("api-2", 3, json!({"app": "api", "track": "canary"})),
        policy("canary", json!({"podSelector": selecting_canary, "ingress": canary})),
    ]);
    assert_eq!(followed.shown(), ["east/shop/web>api:80", "east/shop/web>api:90 some"]);
    followed.remove(Kind::Pod, "api-1");
    assert_eq!(followed.shown(), ["east/shop/web>api:80,90"]);
}

#[test]
fn remote_set_of_local_addresses_has_no_line() {
    let mut followed = IncrementalEdges::of(api(json!([{"from": [of_east(None)], "ports": [{"port": 80}]}])));
    followed.update_remote("web", &["10.0.0.9"], &[]);
    assert_eq!(followed.shown(), ["east/shop/web>api:80"]);
    followed.set(vec![pod("own-1", 9, json!({}))]);
    assert_eq!(followed.shown(), Vec::<String>::new());
    followed.remove(Kind::Pod, "own-1");
    assert_eq!(followed.shown(), ["east/shop/web>api:80"]);
}

#[test]
fn everyone_does_not_mean_remote_sets() {
    let mut followed =
        IncrementalEdges::of(api(json!([{"from": [{"namespaceSelector": {}}], "ports": [{"port": 80}]}])));
    assert_eq!(followed.shown(), ["*>api:80"]);
    assert!(followed.update_remote("web", &["10.9.0.1"], &[]).is_empty());
}

#[test]
fn remote_lines_count_towards_the_limit() {
    let mut followed = IncrementalEdges { state: ClusterState::new(), edges: Edges::with_limit(3) };
    followed.set(api(json!([{"from": [of_east(None)], "ports": [{"port": 80}]}])));
    for name in ["a", "b", "c"] {
        followed.update_remote(name, &["10.9.0.1"], &[]);
    }
    let before = followed.edges.lines();
    assert_eq!(followed.shown().len(), 3);
    let withheld = followed.update_remote("d", &["10.9.0.1"], &[]);
    assert!(followed.edges.is_withheld());
    assert_eq!((withheld.adds, withheld.removes), (vec![], before.clone()));
    let back = followed.update_remote("d", &[], &["10.9.0.1"]);
    assert!(!followed.edges.is_withheld());
    assert_eq!((back.adds, back.removes), (before, vec![]));
}

fn cluster_policy(name: &str, priority: u16, rules: Value) -> (Kind, Value) {
    let spec = json!({"tier": "Admin", "priority": priority, "subject": {"namespaces": {}}, "ingress": rules});
    let version = "policy.networking.k8s.io/v1alpha2";
    (Kind::ClusterNetworkPolicy, json!({"apiVersion": version, "metadata": {"name": name}, "spec": spec}))
}

/// The lines of rules that accept.
fn accepting(followed: &IncrementalEdges) -> Vec<String> {
    let named = |line: DeclaredLine| match line {
        DeclaredLine::Rule { rule, .. } => Some(format!("{}[{}] {}", rule.policy, rule.index, rule.action)),
        DeclaredLine::Edge { .. }
        | DeclaredLine::IngressGoverned(_)
        | DeclaredLine::EgressGoverned(_)
        | DeclaredLine::Governs { .. }
        | DeclaredLine::ClusterGoverns { .. }
        | DeclaredLine::FromBlock { .. }
        | DeclaredLine::ToBlock { .. }
        | DeclaredLine::ToName { .. } => None,
    };
    followed.edges.lines().into_iter().filter_map(named).collect()
}

#[test]
fn cluster_policy_precedes_network_policy() {
    let mut followed = IncrementalEdges::of(shop(json!([])));
    assert_eq!(followed.shown(), ["web>web:*"]);
    let from_web = |action: &str| json!([{"action": action, "from": [{"pods": {"podSelector": selecting("web")}}]}]);
    followed.set(vec![cluster_policy("a", 1, from_web("Accept"))]);
    assert_eq!(followed.shown(), ["*>web:*", "web>*:*", "web>api:*"]);
    assert_eq!(accepting(&followed), ["a[0] Accept"]);
    let changes = followed.set(vec![cluster_policy("deny", 0, from_web("Deny"))]);
    assert_eq!((followed.shown(), accepting(&followed)), (vec!["api>web:*".to_owned()], vec![]));
    assert!(changes.removes.iter().any(|line| matches!(line, DeclaredLine::Rule { .. })), "{changes:?}");
    for name in ["deny", "a"] {
        let removed = Change::Remove(Kind::ClusterNetworkPolicy, ObjectName::new("", name));
        let changed = followed.state.apply(removed);
        followed.apply(&changed);
    }
    assert_eq!(followed.shown(), ["web>web:*"]);
}

#[test]
fn denied_ports_are_subtracted_from_everything() {
    let mut followed = IncrementalEdges::of(vec![namespace(), pod("web-1", 1, json!({"app": "web"}))]);
    let denied = json!([{"tcp": {"destinationPort": {"range": {"start": 20, "end": 29}}}}]);
    let rules = json!([{"action": "Deny", "from": [{"namespaces": {}}], "protocols": denied}]);
    followed.set(vec![cluster_policy("a", 1, rules)]);
    // TCP below and above the range, UDP, SCTP, and protocols without ports, which are not shown here.
    assert_eq!(followed.shown(), ["*>web:0,30,0,0"]);
    assert_eq!(followed.edges.count_with_denied_ports(), 1);
}

#[test]
fn wildcard_line_remains_until_denied_workload_exists() {
    let mut followed = IncrementalEdges::of(vec![namespace(), pod("web-1", 1, json!({"app": "web"}))]);
    let from_evil = json!([{"action": "Deny", "from": [{"pods": {"podSelector": selecting("evil")}}]}]);
    followed.set(vec![cluster_policy("a", 1, from_evil)]);
    assert_eq!(followed.shown(), ["*>web:*"]);
    followed.set(vec![pod("evil-1", 2, json!({"app": "evil"}))]);
    assert_eq!(followed.shown(), ["web>evil:*", "web>web:*"]);
    followed.remove(Kind::Pod, "evil-1");
    assert_eq!(followed.shown(), ["*>web:*"]);
}
