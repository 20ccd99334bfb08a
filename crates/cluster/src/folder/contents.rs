//! What one file says: the objects that count, and what is wrong with the others.

use policy::{Interner, Kind};
use serde_json::Value;

use super::{Found, Origin};
use crate::Problem;
use crate::manifest::{Document, ParseError, parse};

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Contents {
    /// In the order of the file.
    pub(super) objects: Vec<Found>,
    pub(super) problems: Vec<Problem>,
    pub(super) ignored: usize,
}

/// What a document is to us.
enum Meaning {
    Object(Kind),
    Ignored,
    Wrong(&'static str),
}

impl Contents {
    pub(super) fn read(file: &str, text: &str, interner: &mut Interner) -> Result<Contents, ParseError> {
        let mut contents = Contents::default();
        for document in parse(text)? {
            contents.add(file, document, interner);
        }
        Ok(contents)
    }

    fn add(&mut self, file: &str, document: Document, interner: &mut Interner) {
        let Document { line, value } = document;
        let origin = Origin { file: file.to_owned(), line };
        let wrong = match meaning(&value) {
            Meaning::Ignored => {
                self.ignored += 1;
                return;
            }
            Meaning::Wrong(message) => message.to_owned(),
            Meaning::Object(_) if !value["metadata"].is_object() => "an object without metadata".to_owned(),
            Meaning::Object(kind) => match policy::lower_with(interner, kind, &value) {
                Ok(object) => {
                    self.objects.push(Found { object, origin });
                    return;
                }
                Err(nameless) => format!("{nameless}, or one that is not a string; give it a name"),
            },
        };
        self.problems.push(Problem { origin: origin.to_string(), message: format!("{wrong}; it is left out") });
    }
}

fn meaning(value: &Value) -> Meaning {
    if !value.is_object() {
        return Meaning::Wrong("not a Kubernetes object, which is a mapping with apiVersion and kind");
    }
    let Some(kind) = value["kind"].as_str() else {
        return Meaning::Wrong("an object without a kind");
    };
    let core = match kind {
        "Namespace" => Kind::Namespace,
        "Pod" => Kind::Pod,
        // Of any version: one that is too new to be understood must not be taken for none.
        "NetworkPolicy" => return Meaning::Object(Kind::NetworkPolicy),
        _ => return meaning_of_other(kind, value["apiVersion"].as_str()),
    };
    match &value["apiVersion"] {
        Value::String(version) if version == "v1" => Meaning::Object(core),
        // Another API's resource that happens to have the name.
        Value::String(_) => Meaning::Ignored,
        _ => Meaning::Wrong("an object without 'apiVersion: v1'"),
    }
}

/// Kinds of the API group of policies that say nothing about who may talk to whom.
const HARMLESS: [&str; 5] = ["Ingress", "IngressList", "IngressClass", "IPAddress", "ServiceCIDR"];

/// A misspelt policy must not be taken for something else: that would leave its pods open, and nobody told.
fn meaning_of_other(kind: &str, version: Option<&str>) -> Meaning {
    let misspelt = ["Namespace", "Pod", "NetworkPolicy"].iter().any(|known| known.eq_ignore_ascii_case(kind));
    let of_policies = version.is_some_and(|v| v.starts_with("networking.k8s.io/")) && !HARMLESS.contains(&kind);
    if misspelt || of_policies {
        return Meaning::Wrong("this kind is unknown; kinds are written as in 'kind: NetworkPolicy'");
    }
    Meaning::Ignored
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, objects: &[&str], problems: &[&str], ignored: usize) {
        let contents = Contents::read("f.yaml", text, &mut Interner::new()).unwrap();
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
        let text = "{apiVersion: v1, kind: Pod, metadata: {name: a}}\n---\n{kind: NetworkPolicy, metadata: {name: b, namespace: ''}}";
        check(text, &["Pod default/a", "NetworkPolicy default/b"], &[], 0);
    }

    #[test]
    fn other_kinds_are_counted_and_ignored() {
        let text = "{apiVersion: v1, kind: Service}\n---\n{apiVersion: x.io/v1, kind: Pod, metadata: {name: a}}";
        check(text, &[], &[], 2);
    }

    #[test]
    fn a_policy_of_an_unknown_version_counts() {
        let text = "{apiVersion: networking.k8s.io/v9, kind: NetworkPolicy, metadata: {name: a}, spec: {}}";
        check(text, &["NetworkPolicy default/a"], &[], 0);
    }

    #[test]
    fn what_is_no_object_is_a_problem_with_its_line_and_the_rest_counts() {
        let text = "[1]\n---\nname: x\n---\n{kind: Pod, metadata: {name: a}}\n---\n\
                    {apiVersion: v1, kind: Pod, metadata: {}}\n---\n\
                    {apiVersion: networking.k8s.io/v1, kind: Networkpolicy, metadata: {name: a}}\n---\n\
                    {apiVersion: v1, kind: Pod}\n---\n\
                    {apiVersion: v1, kind: Namespace, metadata: {name: a}}";
        let problems = [
            "f.yaml:1: not a Kubernetes object",
            "f.yaml:3: an object without a kind",
            "f.yaml:5: an object without 'apiVersion: v1'",
            "f.yaml:7: a Pod without metadata.name",
            "f.yaml:9: this kind is unknown",
            "f.yaml:11: an object without metadata",
        ];
        check(text, &["Namespace a"], &problems, 0);
    }
}
