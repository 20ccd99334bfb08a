//! Comparison of two identities, from their rows in the table of identities.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use policy::plain;
use serde::Serialize;

use super::Row;

/// One part in which two identities differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct IdentityDifference {
    #[serde(flatten)]
    pub(crate) part: IdentityInput,
    /// The value of the first identity; null if it lacks the label.
    pub(crate) a: Option<String>,
    /// The value of the second identity.
    pub(crate) b: Option<String>,
}

/// One of the inputs of an identity.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(tag = "part", rename_all = "kebab-case")]
pub(crate) enum IdentityInput {
    Namespace,
    PodLabel { key: String },
    NamespaceLabel { key: String },
}

impl fmt::Display for IdentityInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentityInput::Namespace => f.write_str("namespace"),
            IdentityInput::PodLabel { key } => write!(f, "label {}", plain(key)),
            IdentityInput::NamespaceLabel { key } => write!(f, "label of the namespace {}", plain(key)),
        }
    }
}

/// The differing parts, in order.
pub(crate) fn differences(a: &Row, b: &Row) -> Vec<IdentityDifference> {
    let namespaces = (a.namespace != b.namespace).then(|| IdentityDifference {
        part: IdentityInput::Namespace,
        a: Some(a.namespace.clone()),
        b: Some(b.namespace.clone()),
    });
    let labels = of_labels(&a.labels, &b.labels, |key| IdentityInput::PodLabel { key });
    let of_namespaces =
        of_labels(&a.namespace_labels, &b.namespace_labels, |key| IdentityInput::NamespaceLabel { key });
    namespaces.into_iter().chain(labels).chain(of_namespaces).collect()
}

fn of_labels(
    a: &BTreeMap<String, String>,
    b: &BTreeMap<String, String>,
    part: impl Fn(String) -> IdentityInput,
) -> Vec<IdentityDifference> {
    let keys: BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let differing = keys.into_iter().filter(|key| a.get(*key) != b.get(*key));
    differing
        .map(|key| IdentityDifference { part: part(key.clone()), a: a.get(key).cloned(), b: b.get(key).cloned() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pairs<'a> = &'a [(&'a str, &'a str)];

    fn row(namespace: &str, labels: Pairs, namespace_labels: Pairs) -> Row {
        let owned = |pairs: Pairs| pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
        Row {
            sid: ::identity::Sid(7),
            num: 263,
            namespace: namespace.into(),
            labels: owned(labels),
            namespace_labels: owned(namespace_labels),
            references: 1,
        }
    }

    #[test]
    fn differences_name_changed_missing_and_added_labels() {
        let a = row("shop", &[("app", "web"), ("tier", "front")], &[("team", "shop")]);
        let b = row("data", &[("app", "db"), ("zone", "")], &[("team", "shop"), ("holds", "data")]);
        let found: Vec<String> =
            differences(&a, &b).iter().map(|d| format!("{}: {:?} {:?}", d.part, d.a, d.b)).collect();
        assert_eq!(
            found,
            [
                r#"namespace: Some("shop") Some("data")"#,
                r#"label app: Some("web") Some("db")"#,
                r#"label tier: Some("front") None"#,
                r#"label zone: None Some("")"#,
                r#"label of the namespace holds: None Some("data")"#,
            ]
        );
        assert_eq!(differences(&a, &a), []);
    }

    #[test]
    fn differences_have_this_json() {
        let (a, b) = (row("shop", &[("app", "web")], &[]), row("data", &[], &[]));
        assert_eq!(
            serde_json::to_string(&differences(&a, &b)).unwrap(),
            r#"[{"part":"namespace","a":"shop","b":"data"},{"part":"pod-label","key":"app","a":"web","b":null}]"#
        );
    }
}
