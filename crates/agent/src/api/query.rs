//! Query parameters, parsed in the same way for every route: an unknown parameter is refused, never ignored.

use std::collections::BTreeMap;
use std::fmt;

/// The query of a route, parsed from parameters.
pub(crate) trait ApiQuery: Sized {
    /// Names of all parameters.
    const PARAMETERS: &'static [&'static str];

    fn read(parameters: &Parameters) -> Result<Self, InvalidQuery>;
}

/// Parameters by name; duplicates are refused.
#[derive(Debug, Default)]
pub(crate) struct Parameters(BTreeMap<String, String>);

/// Why a query is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InvalidQuery {
    #[error("missing parameter {0}")]
    Missing(&'static str),
    #[error("unknown parameter '{given}'; {}", KnownParameters(.known))]
    Unknown { given: String, known: &'static [&'static str] },
    #[error("duplicate parameter {0}")]
    Repeated(String),
    #[error("invalid parameter {parameter}: {reason}")]
    Unreadable { parameter: &'static str, reason: String },
    #[error("{0} and {1} exclude each other")]
    Both(&'static str, &'static str),
    #[error("invalid query string: {0}")]
    Garbled(String),
}

struct KnownParameters<'a>(&'a [&'static str]);

impl Parameters {
    pub(crate) fn new<Q: ApiQuery>(given: Vec<(String, String)>) -> Result<Parameters, InvalidQuery> {
        let mut taken = BTreeMap::new();
        for (name, value) in given {
            if !Q::PARAMETERS.contains(&&*name) {
                return Err(InvalidQuery::Unknown { given: name, known: Q::PARAMETERS });
            }
            if taken.insert(name.clone(), value).is_some() {
                return Err(InvalidQuery::Repeated(name));
            }
        }
        Ok(Parameters(taken))
    }

    /// Parses the value of the parameter, if it is present.
    pub(crate) fn read<T, E: fmt::Display>(
        &self,
        parameter: &'static str,
        read: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<Option<T>, InvalidQuery> {
        let unreadable = |error: E| InvalidQuery::Unreadable { parameter, reason: error.to_string() };
        self.0.get(parameter).map(|text| read(text)).transpose().map_err(unreadable)
    }
}

pub(crate) fn boolean(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("invalid value '{text}': expected true or false"))
}

/// The name of one object, without a slash.
pub(crate) fn single_name(text: &str) -> Result<String, String> {
    match text.is_empty() || text.contains('/') {
        true => Err(format!("invalid name '{text}'")),
        false => Ok(text.to_owned()),
    }
}

impl fmt::Display for KnownParameters<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            [] => f.write_str("this resource has no parameters"),
            names => write!(f, "the parameters of this resource are {}", names.join(", ")),
        }
    }
}

/// Query of a route without parameters.
#[derive(Debug)]
pub(crate) struct NoParameters;

impl ApiQuery for NoParameters {
    const PARAMETERS: &'static [&'static str] = &[];

    fn read(_: &Parameters) -> Result<NoParameters, InvalidQuery> {
        Ok(NoParameters)
    }
}

#[cfg(test)]
mod tests {
    use super::super::ExplainQuery;
    use super::super::audit::{AuditQuery, SuggestionQuery};
    use super::super::drops::DropsQuery;
    use super::*;

    fn asked<Q: ApiQuery>(given: &[(&str, &str)]) -> Result<Q, String> {
        let given = given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Parameters::new::<Q>(given).and_then(|parameters| Q::read(&parameters)).map_err(|bad| bad.to_string())
    }

    #[test]
    fn invalid_query_parameters_are_refused_with_reason() {
        for (given, sentence) in [
            (
                &[("verdict", "nope")][..],
                "invalid parameter verdict: invalid verdict 'nope': expected denied or would-deny",
            ),
            (&[("follow", "1")], "invalid parameter follow: invalid value '1': expected true or false"),
            (&[("pod", "a/b/c")], "invalid parameter pod: invalid pod 'a/b/c': expected NAME or NAMESPACE/NAME"),
            (&[("pod", "shop/")], "invalid parameter pod: invalid pod 'shop/': expected NAME or NAMESPACE/NAME"),
            (&[("namespace", "")], "invalid parameter namespace: invalid name ''"),
            (&[("pod", "a"), ("pod", "b")], "duplicate parameter pod"),
            (
                &[("pood", "a")],
                "unknown parameter 'pood'; the parameters of this resource are follow, namespace, pod, verdict",
            ),
        ] {
            assert_eq!(asked::<DropsQuery>(given).unwrap_err(), sentence);
        }
        assert_eq!(
            asked::<SuggestionQuery>(&[("namespace", "a"), ("pod", "b"), ("workload", "c")]).unwrap_err(),
            "a pod and a workload exclude each other"
        );
        let explain = [("source", "shop/web"), ("destination", "10.1.0.1"), ("traffic", "x/y")];
        assert!(asked::<ExplainQuery>(&explain).unwrap_err().contains("invalid port 'x/y'"));
        let unknown = asked::<NoParameters>(&[("a", "b")]).unwrap_err();
        assert_eq!(unknown, "unknown parameter 'a'; this resource has no parameters");
    }

    #[test]
    fn missing_parameter_is_distinct_from_invalid_one() {
        let missing = Parameters::new::<ExplainQuery>(vec![]).and_then(|p| ExplainQuery::read(&p)).unwrap_err();
        assert_eq!(missing, InvalidQuery::Missing("source"));
        assert_eq!(asked::<SuggestionQuery>(&[]).unwrap_err(), "missing parameter namespace");
    }

    #[test]
    fn valid_query_parameters_are_parsed() {
        assert_eq!(asked::<AuditQuery>(&[]), Ok(AuditQuery { namespace: None }));
        let query = asked::<DropsQuery>(&[("follow", "true"), ("pod", "shop/web"), ("verdict", "would-deny")]).unwrap();
        assert!(query.follow && query.verdict == Some(policy::Judgement::WouldDeny));
        assert_eq!(query.pod.as_deref(), Some("shop/web"));
    }
}
