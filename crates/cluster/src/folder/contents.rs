//! Contents of one file: the relevant objects, and the problems of the others.

use policy::{Interner, SourceObject};
use serde_json::Value;

use super::{LocatedObject, Origin};
use crate::manifest::{Document, ParseError, parse};
use crate::{Manifests, MissingName, Problem, Watchable};

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Contents<O: SourceObject> {
    /// In file order.
    pub(super) objects: Vec<LocatedObject<O>>,
    pub(super) problems: Vec<Problem>,
    pub(super) ignored: usize,
}

/// Classification of a document by kind and API version.
enum Meaning<K> {
    Object(K),
    Ignored,
    Wrong(String),
}

impl<O: Watchable> Contents<O> {
    pub(super) fn nothing() -> Contents<O> {
        Contents { objects: Vec::new(), problems: Vec::new(), ignored: 0 }
    }

    pub(super) fn is_nothing(&self) -> bool {
        self.objects.is_empty() && self.problems.is_empty() && self.ignored == 0
    }

    pub(super) fn read(file: &str, text: &str, interner: &mut Interner) -> Result<Contents<O>, ParseError> {
        let mut contents = Contents::nothing();
        for document in parse(text)? {
            contents.add(file, document, interner);
        }
        Ok(contents)
    }

    fn add(&mut self, file: &str, document: Document, interner: &mut Interner) {
        let Document { line, value } = document;
        let origin = Origin { file: file.to_owned(), line };
        let wrong = match meaning::<O>(&value) {
            Meaning::Ignored => {
                self.ignored += 1;
                return;
            }
            Meaning::Wrong(message) => message,
            Meaning::Object(_) if !value["metadata"].is_object() => "an object without metadata".to_owned(),
            Meaning::Object(kind) => match O::lower(interner, kind, &value) {
                Ok(object) => {
                    self.objects.push(LocatedObject { object, origin });
                    return;
                }
                Err(MissingName) => {
                    format!("missing or invalid metadata.name of a {kind}; set it to a string")
                }
            },
        };
        self.problems.push(Problem { origin: origin.to_string(), message: format!("{wrong}; the object is ignored") });
    }
}

fn meaning<O: Watchable>(value: &Value) -> Meaning<O::Kind> {
    if !value.is_object() {
        return Meaning::Wrong("not a Kubernetes object: expected a mapping with apiVersion and kind".into());
    }
    let Some(written) = value["kind"].as_str() else {
        return Meaning::Wrong("an object without a kind".into());
    };
    let Some(kind) = O::KINDS.iter().copied().find(|kind| kind.to_string() == written) else {
        return meaning_of_other::<O>(written, value["apiVersion"].as_str());
    };
    let resource = O::resource(kind);
    match (resource.manifests, &value["apiVersion"]) {
        (Manifests::OfAnyVersion, _) => Meaning::Object(kind),
        (Manifests::OfGroup, Value::String(version)) if is_of_group(version, resource.group) => Meaning::Object(kind),
        // A resource of another API group with the same kind.
        (Manifests::OfGroup, Value::String(_)) => Meaning::Ignored,
        (Manifests::OfGroup, _) => {
            let separator = if resource.group.is_empty() { "" } else { "/" };
            let version = format!("{}{separator}{}", resource.group, resource.version);
            Meaning::Wrong(format!("an object without 'apiVersion: {version}'"))
        }
    }
}

/// Whether the version belongs to the API group; the core group will only ever have one version.
fn is_of_group(version: &str, group: &str) -> bool {
    match version.split_once('/') {
        None => group.is_empty() && version == "v1",
        Some((of, _)) => of == group && !group.is_empty(),
    }
}

/// Kinds of the API group of policies that do not affect connectivity.
const HARMLESS: [&str; 5] = ["Ingress", "IngressList", "IngressClass", "IPAddress", "ServiceCIDR"];

const POLICY: &str = "NetworkPolicy";

/// The API group of ClusterNetworkPolicy.
const CLUSTER_POLICIES: &str = "policy.networking.k8s.io/";

/// The kinds that ClusterNetworkPolicy has replaced, with its tier for them.
const REPLACED: [(&str, &str); 2] = [("AdminNetworkPolicy", "Admin"), ("BaselineAdminNetworkPolicy", "Baseline")];

/// A misspelt policy must not be ignored: its pods would be open without any warning.
fn meaning_of_other<O: Watchable>(kind: &str, version: Option<&str>) -> Meaning<O::Kind> {
    let replaced = REPLACED.iter().find(|(replaced, _)| *replaced == kind);
    if let Some((_, tier)) = replaced.filter(|_| version.is_some_and(|v| v.starts_with(CLUSTER_POLICIES))) {
        return Meaning::Wrong(format!("{kind} is not enforced: write a ClusterNetworkPolicy of tier {tier} instead"));
    }
    let misspelt = O::KINDS.iter().any(|known| known.to_string().eq_ignore_ascii_case(kind));
    let of_policies = O::KINDS.iter().any(|known| known.to_string() == POLICY)
        && version.is_some_and(|v| v.starts_with("networking.k8s.io/"))
        && !HARMLESS.contains(&kind);
    if misspelt || of_policies {
        return Meaning::Wrong("unknown kind; expected for example 'kind: NetworkPolicy'".into());
    }
    Meaning::Ignored
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, objects: &[&str], problems: &[&str], ignored: usize) {
        let contents: Contents<policy::Object> = Contents::read("f.yaml", text, &mut Interner::new()).unwrap();
        let names: Vec<String> =
            contents.objects.iter().map(|f| format!("{} {}", f.object.kind(), f.object.name())).collect();
        let found: Vec<String> = contents.problems.iter().map(Problem::to_string).collect();
        assert_eq!(
            (names.iter().map(String::as_str).collect::<Vec<_>>(), contents.ignored),
            (objects.to_vec(), ignored)
        );
        assert_eq!(found.len(), problems.len(), "{found:?}");
        for (found, expected) in found.iter().zip(problems) {
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn objects_without_a_namespace_are_in_default() {
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\n{kind: NetworkPolicy, metadata: {name: b, \
            namespace: ''}}";
        check(text, &["Pod default/a", "NetworkPolicy default/b"], &[], 0);
    }

    #[test]
    fn other_kinds_are_counted_and_ignored() {
        let text = "{apiVersion: v1, kind: Service}\n---\n{apiVersion: x.io/v1, kind: Pod, metadata: {name: a}}";
        check(text, &[], &[], 2);
    }

    #[test]
    fn replaced_kinds_of_cluster_policies_are_problems() {
        let text = "{apiVersion: policy.networking.k8s.io/v1alpha1, kind: AdminNetworkPolicy, metadata: {name: a}}\n---\n\
                    {apiVersion: policy.networking.k8s.io/v1alpha1, kind: BaselineAdminNetworkPolicy}\n---\n\
                    {apiVersion: x.io/v1, kind: AdminNetworkPolicy}";
        let problems = [
            "f.yaml:1: AdminNetworkPolicy is not enforced: write a ClusterNetworkPolicy of tier Admin instead",
            "f.yaml:3: BaselineAdminNetworkPolicy is not enforced: write a ClusterNetworkPolicy of tier Baseline",
        ];
        check(text, &[], &problems, 1);
    }

    #[test]
    fn a_policy_of_an_unknown_version_counts() {
        let text = "{apiVersion: networking.k8s.io/v9, kind: NetworkPolicy, metadata: {name: a}, spec: {}}";
        check(text, &["NetworkPolicy default/a"], &[], 0);
    }

    #[test]
    fn invalid_documents_are_problems_with_line_numbers() {
        let text = "[1]\n---\nname: x\n---\n{kind: Pod, metadata: {name: a}}\n---\n\
                    {apiVersion: v1, kind: Pod, metadata: {}}\n---\n\
                    {apiVersion: networking.k8s.io/v1, kind: Networkpolicy, metadata: {name: a}}\n---\n\
                    {apiVersion: v1, kind: Pod}\n---\n\
                    {apiVersion: v1, kind: Namespace, metadata: {name: a}}";
        let problems = [
            "f.yaml:1: not a Kubernetes object",
            "f.yaml:3: an object without a kind",
            "f.yaml:5: an object without 'apiVersion: v1'",
            "f.yaml:7: missing or invalid metadata.name of a Pod",
            "f.yaml:9: unknown kind",
            "f.yaml:11: an object without metadata",
        ];
        check(text, &["Namespace a"], &problems, 0);
    }
}
