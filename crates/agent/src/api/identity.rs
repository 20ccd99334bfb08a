//! `GET /v1/identity`: the identity of a pod or an address, and the labels from which it is derived.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use identity::EndIdentity;
use policy::ObjectName;
use serde::{Deserialize, Serialize};

use super::query::parsed;

/// The pod or address of an identity query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum IdentitySubject {
    Pod(ObjectName),
    Address(IpAddr),
}

/// Why a text is neither a pod nor an address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid pod or address '{0}': expected NAMESPACE/NAME or an IP address")]
pub(crate) struct NotASubject(String);

impl FromStr for IdentitySubject {
    type Err = NotASubject;
    fn from_str(text: &str) -> Result<IdentitySubject, NotASubject> {
        match (text.parse(), text.parse()) {
            (Ok(address), _) => Ok(IdentitySubject::Address(address)),
            (Err(_), Ok(pod)) => Ok(IdentitySubject::Pod(pod)),
            (Err(_), Err(_)) => Err(NotASubject(policy::plain(text))),
        }
    }
}

impl fmt::Display for IdentitySubject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IdentitySubject::Pod(name) => name.fmt(f),
            IdentitySubject::Address(address) => address.fmt(f),
        }
    }
}

/// The parameters of the route.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IdentityQuery {
    #[serde(rename = "of", deserialize_with = "parsed")]
    pub(crate) subject: IdentitySubject,
}

/// The identity of a pod or an address.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct IdentityReport {
    /// `namespace/name`; null if the address does not belong to a pod.
    pub(crate) pod: Option<String>,
    /// The addresses of the pod, or the queried address.
    pub(crate) addresses: Vec<IpAddr>,
    pub(crate) identity: EndIdentity,
    /// Why the identity is a reserved one; null for a security identity.
    pub(crate) reason: Option<String>,
    /// The cluster ID, which is part of the security identities of this cluster.
    pub(crate) cluster: String,
    /// Null if the address does not belong to a pod.
    pub(crate) namespace: Option<String>,
    /// Labels of the pod that are part of the identity.
    pub(crate) labels: BTreeMap<String, String>,
    /// Labels of the namespace that are part of the identity.
    pub(crate) namespace_labels: BTreeMap<String, String>,
    /// Labels that are not part of the identity.
    pub(crate) excluded: Vec<ExcludedLabel>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExcludedLabel {
    /// `pod` or `namespace`: the object that has the label.
    pub(crate) object: String,
    pub(crate) key: String,
    pub(crate) value: String,
    /// Why the label is excluded.
    pub(crate) reason: String,
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::super::tests::golden;
    use super::*;

    #[test]
    fn identity_report_has_these_bytes() {
        let label = |key: &str, value: &str| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        golden(
            &IdentityReport {
                pod: Some("shop/web-1".into()),
                addresses: vec!["10.1.0.1".parse().unwrap()],
                identity: EndIdentity::of_sid("rdsrexpux6y4o".parse().unwrap(), "shop".into()),
                reason: None,
                cluster: "0a1b".into(),
                namespace: Some("shop".into()),
                labels: label("app", "web"),
                namespace_labels: label("team", "shop"),
                excluded: vec![ExcludedLabel {
                    object: "pod".into(),
                    key: "job-name".into(),
                    value: "x".into(),
                    reason: "differs between the pods of a workload".into(),
                }],
            },
            expect![[
                r#"{"pod":"shop/web-1","addresses":["10.1.0.1"],"identity":{"service":"shop","sid":"rdsrexpux6y4o","num":213703,"state":null},"reason":null,"cluster":"0a1b","namespace":"shop","labels":{"app":"web"},"namespaceLabels":{"team":"shop"},"excluded":[{"object":"pod","key":"job-name","value":"x","reason":"differs between the pods of a workload"}]}"#
            ]],
        );
    }
}
