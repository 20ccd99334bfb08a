use super::*;

// Semantics 4.

#[test]
fn selectors_of_one_peer_are_anded_peers_ored() {
    let b = json!({"matchLabels": {"team": "b"}});
    let web = json!({"matchLabels": {"app": "web"}});
    let db = json!({"matchLabels": {"app": "db"}});
    assert_sources(json!([{"from": [{"namespaceSelector": b, "podSelector": web}]}]), &[OTHER], &[CACHE, DB, GHOST]);
    assert_sources(json!([{"from": [{"namespaceSelector": b, "podSelector": db}]}]), &[], &[DB, OTHER]);
    assert_sources(json!([{"from": [{"namespaceSelector": b}, {"podSelector": db}]}]), &[DB, OTHER], &[CACHE]);
}

#[test]
fn pod_selector_alone_selects_in_own_namespace() {
    assert_sources(json!([{"from": [{"podSelector": {}}]}]), &[CACHE, DB], &[OTHER, GHOST, OUTSIDE]);
}

#[test]
fn an_absent_selector_and_an_empty_one_differ() {
    assert_sources(json!([{"from": [{"namespaceSelector": {}}]}]), &[CACHE, DB, OTHER], &[GHOST, OUTSIDE]);
    assert_sources(json!([{"from": [{"namespaceSelector": null, "podSelector": {}}]}]), &[CACHE], &[OTHER]);
    assert_sources(json!([{"from": [{}]}]), &[], &[CACHE, OTHER, OUTSIDE]);
}

#[test]
fn negative_operators_match_objects_without_the_key() {
    let select = |key: &str, operator: &str, values: Value| {
        json!([{"from": [{"podSelector":
            {"matchExpressions": [{"key": key, "operator": operator, "values": values}]}}]}])
    };
    assert_sources(select("app", "In", json!(["db", "x"])), &[DB], &[CACHE]);
    assert_sources(select("app", "NotIn", json!(["db"])), &[CACHE], &[DB]);
    assert_sources(select("none", "NotIn", json!(["db"])), &[CACHE, DB], &[]);
    assert_sources(select("app", "Exists", Value::Null), &[CACHE, DB], &[]);
    assert_sources(select("none", "Exists", json!([])), &[], &[CACHE, DB]);
    assert_sources(select("app", "DoesNotExist", Value::Null), &[], &[CACHE, DB]);
    assert_sources(select("none", "DoesNotExist", json!([])), &[CACHE, DB], &[]);
}

#[test]
fn labels_and_expressions_are_anded() {
    let selector = json!({"matchLabels": {"app": "db"}, "matchExpressions": [{"key": "none", "operator": "Exists"}]});
    assert_sources(json!([{"from": [{"podSelector": selector}]}]), &[], &[DB, CACHE]);
}

#[test]
fn namespace_name_label_is_implied_and_authoritative() {
    let named =
        |name: &str| json!([{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}]}]);
    let mut world = world([ingress(named("other"))]);
    let lie = [("kubernetes.io/metadata.name".to_owned(), "shop".to_owned())];
    world.namespaces[1].metadata.labels.as_mut().unwrap().extend(lie);
    assert_eq!([OTHER, CACHE].map(|source| from(&world, source)), [Allowed, Denied]);
    assert_sources(named("ghost"), &[], &[GHOST]);
}
