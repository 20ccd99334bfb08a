//! Query parameters, deserialized by serde. A parameter that is unknown, invalid or given twice is refused, never ignored.

use std::fmt;
use std::str::FromStr;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

/// Query of a route without parameters.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NoParameters {}

/// The name of one object, without a slash.
#[derive(Debug)]
pub(crate) struct SingleName(String);

impl FromStr for SingleName {
    type Err = String;

    fn from_str(text: &str) -> Result<SingleName, String> {
        match text.is_empty() || text.contains('/') {
            true => Err(format!("invalid name '{text}'")),
            false => Ok(SingleName(text.to_owned())),
        }
    }
}

/// Parses a parameter as the command line does.
pub(crate) fn parsed<'de, T: FromStr<Err: fmt::Display>, D: Deserializer<'de>>(text: D) -> Result<T, D::Error> {
    String::deserialize(text)?.parse().map_err(D::Error::custom)
}

/// Parses the name of one object.
pub(crate) fn name<'de, D: Deserializer<'de>>(text: D) -> Result<String, D::Error> {
    parsed(text).map(|SingleName(name)| name)
}

/// Parses the name of one object, if the parameter is present.
pub(crate) fn optional_name<'de, D: Deserializer<'de>>(text: D) -> Result<Option<String>, D::Error> {
    name(text).map(Some)
}

#[cfg(test)]
pub(crate) mod tests {
    use axum::extract::Query;
    use serde::de::DeserializeOwned;

    use super::super::ExplainQuery;
    use super::super::audit::{AuditQuery, SuggestionQuery};
    use super::super::drops::DropsQuery;
    use super::*;

    /// The query of a URL with these parameters.
    pub(crate) fn queried<Q: DeserializeOwned>(parameters: &str) -> Result<Q, String> {
        let uri = format!("/?{parameters}").parse().unwrap();
        Query::try_from_uri(&uri).map(|Query(query)| query).map_err(|refused| refused.body_text())
    }

    #[track_caller]
    fn assert_refused<Q: DeserializeOwned + fmt::Debug>(parameters: &str, reason: &str) {
        let refused = queried::<Q>(parameters).unwrap_err();
        assert_eq!(refused, format!("Failed to deserialize query string: {reason}"));
    }

    #[test]
    fn invalid_query_parameters_are_refused_with_reason() {
        for (parameters, reason) in [
            ("verdict=nope", "verdict: unknown variant `nope`, expected `denied` or `would-deny`"),
            ("follow=1", "follow: provided string was not `true` or `false`"),
            ("pod=a/b/c", "pod: invalid pod 'a/b/c': expected NAME or NAMESPACE/NAME"),
            ("pod=shop/", "pod: invalid pod 'shop/': expected NAME or NAMESPACE/NAME"),
            ("namespace=", "namespace: invalid name ''"),
            ("pod=a&pod=b", "duplicate field `pod`"),
            ("pood=a", "pood: unknown field `pood`, expected one of `follow`, `namespace`, `pod`, `verdict`"),
        ] {
            assert_refused::<DropsQuery>(parameters, reason);
        }
        assert_refused::<SuggestionQuery>("namespace=a&pod=b&workload=c", "pod and workload are mutually exclusive");
        assert_refused::<NoParameters>("a=b", "a: unknown field `a`, there are no fields");
        let refused = queried::<ExplainQuery>("source=shop/web&destination=10.1.0.1&traffic=x/y").unwrap_err();
        assert!(refused.contains("traffic: invalid port 'x/y'"), "{refused}");
        assert_refused::<ExplainQuery>("", "missing field `source`");
        assert_refused::<SuggestionQuery>("", "missing field `namespace`");
    }

    #[test]
    fn valid_query_parameters_are_parsed() {
        assert_eq!(queried::<AuditQuery>(""), Ok(AuditQuery { namespace: None }));
        let query = queried::<DropsQuery>("follow=true&pod=shop%2Fweb&verdict=would-deny").unwrap();
        assert!(query.follow && query.verdict == Some(policy::Judgement::WouldDeny));
        assert_eq!(query.pod.as_deref(), Some("shop/web"));
    }
}
