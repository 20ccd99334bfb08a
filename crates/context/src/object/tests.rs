use std::fs;

use super::{WatchedKind, WatchedObject};

/// The result of reading a folder with this file: objects in order, problems, and the number of ignored objects.
fn read(text: &str) -> (Vec<String>, Vec<String>, usize) {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("f.yaml"), text).unwrap();
    let folder = cluster::read_folder::<WatchedObject>(folder.path()).unwrap();
    let name = |object: &WatchedObject| format!("{} {}", object.kind(), object.name());
    let objects = folder.objects.iter().map(|found| name(&found.object)).collect();
    (objects, folder.problems.iter().map(ToString::to_string).collect(), folder.ignored)
}

#[test]
fn folder_manifests_yield_context_objects() {
    let text = "\
{apiVersion: v1, kind: Service, metadata: {name: web}}
---
{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: in}}
---
{apiVersion: gateway.networking.k8s.io/v1beta1, kind: HTTPRoute, metadata: {name: in}}
---
{apiVersion: gateway.networking.k8s.io/v1alpha2, kind: TLSRoute, metadata: {name: in}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: x}}
";
    let objects = ["Namespace default", "Service default/web", "Ingress default/in", "HTTPRoute default/in"];
    let objects: Vec<String> = objects.into_iter().chain(["TLSRoute default/in"]).map(str::to_owned).collect();
    assert_eq!(read(text), (objects, vec![], 1));
}

#[test]
fn lists_of_every_kind_are_flattened() {
    for kind in WatchedKind::ALL.into_iter().filter(|kind| *kind != WatchedKind::Namespace) {
        let resource = <WatchedObject as cluster::Watchable>::resource(kind);
        let version = [resource.group, resource.version].join("/");
        let version = version.trim_start_matches('/');
        let text = format!("apiVersion: {version}\nkind: {kind}List\nitems: [{{metadata: {{name: a}}}}]\n");
        let (objects, problems, ignored) = read(&text);
        let expected = match kind {
            WatchedKind::Node | WatchedKind::ClusterNetworkPolicy => vec![format!("{kind} a")],
            _ => vec!["Namespace default".to_owned(), format!("{kind} default/a")],
        };
        assert_eq!(objects, expected, "{problems:?}");
        assert_eq!((problems.len(), ignored), (0, 0));
    }
}

#[test]
fn same_named_resources_of_other_apis_are_ignored() {
    let text = "\
{apiVersion: serving.knative.dev/v1, kind: Service, metadata: {name: web}}
---
{apiVersion: extensions/v1beta1, kind: Ingress, metadata: {name: in}}
---
{apiVersion: v1, kind: HTTPRoute, metadata: {name: in}}
";
    assert_eq!(read(text), (vec![], vec![], 3));
}

#[test]
fn misspelt_kind_or_missing_version_is_problem() {
    let text = "\
{apiVersion: networking.k8s.io/v1, kind: Networkpolicy, metadata: {name: a}}
---
{apiVersion: gateway.networking.k8s.io/v1, kind: HttpRoute, metadata: {name: a}}
---
{kind: GRPCRoute, metadata: {name: a}}
";
    let (objects, problems, ignored) = read(text);
    assert_eq!((objects.len(), ignored), (0, 0));
    let expected = [
        "f.yaml:1: unknown kind",
        "f.yaml:3: unknown kind",
        "f.yaml:5: an object without 'apiVersion: gateway.networking.k8s.io/v1'",
    ];
    assert_eq!(problems.len(), expected.len(), "{problems:?}");
    for (problem, expected) in problems.iter().zip(expected) {
        assert!(problem.starts_with(expected), "{problem}");
    }
}
