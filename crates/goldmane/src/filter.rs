//! Filters of flows. Values of a field are alternatives, and all fields must match. A fuzzy value matches a substring.
//!
//! Only criteria for policies match everything if they are empty: an exact empty name, port 0 and an unspecified action
//! match flows with exactly these values, as in Goldmane.

use prost::Message;
use wire::Strict;

use crate::message::{
    Action, Filter, FlowKey, MatchType, PolicyHit, PolicyKind, PolicyMatch, PolicyTrace, Reporter, StringMatch,
};

/// Limit of the values in all fields of a filter: each is compared with each flow.
const MOST_VALUES: usize = 256;

/// Names of networks, in Whisker and in flows.
const ALIASES: [(&str, &str); 2] = [("PUBLIC NETWORK", "pub"), ("PRIVATE NETWORK", "pvt")];

/// Reason for which a request is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    #[error("field {field} of {message} is not known")]
    Unknown { message: &'static str, field: u32 },
    #[error("value {value} of {field} is not known")]
    Value { field: &'static str, value: i32 },
    #[error("more than {MOST_VALUES} values of filters")]
    TooManyValues,
    #[error("the start ({start}) must be before the end ({end})")]
    Range { start: i64, end: i64 },
    #[error("page and page_size must not be negative")]
    Page,
    #[error("{0} of a policy is neither a name nor a StringMatch")]
    PolicyText(&'static str),
    #[error("at most one sort order is supported")]
    SortOrders,
    #[error("unsupported sort order: {0}")]
    SortOrder(&'static str),
    #[error("aggregation_interval must be 15")]
    Interval,
    #[error("the result has more than {0} flows: ask for pages, for less time, or with a filter")]
    TooManyFlows(usize),
}

/// Validated filter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filters {
    filter: Filter,
    policies: Vec<PolicyCriteria>,
}

/// Validated criteria for policies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PolicyCriteria {
    kind: i32,
    tier: StringMatch,
    namespace: StringMatch,
    name: StringMatch,
    action: i32,
}

/// Decodes a message; an error if it has unknown fields.
pub(crate) fn known<'a, M>(given: &'a Strict<M>, message: &'static str) -> Result<&'a M, RequestError> {
    match given.unknown {
        Some(field) => Err(RequestError::Unknown { message, field }),
        None => Ok(&given.message),
    }
}

/// A value of an enumeration.
pub(crate) fn value<E: TryFrom<i32>>(field: &'static str, value: i32) -> Result<E, RequestError> {
    E::try_from(value).map_err(|_| RequestError::Value { field, value })
}

impl Filters {
    /// # Errors
    /// If a field or a value is unknown.
    pub fn parse(given: Option<&Strict<Filter>>) -> Result<Filters, RequestError> {
        let Some(given) = given else { return Ok(Filters::default()) };
        let filter = known(given, "the filter")?.clone();
        let strings = [
            &filter.source_names,
            &filter.source_namespaces,
            &filter.dest_names,
            &filter.dest_namespaces,
            &filter.protocols,
        ];
        for text in strings.into_iter().flatten() {
            check_text(text)?;
        }
        for port in &filter.dest_ports {
            known(port, "a port of the filter")?;
        }
        for action in filter.actions.iter().chain(&filter.pending_actions) {
            value::<Action>("actions", *action)?;
        }
        let policies = filter.policies.iter().map(PolicyCriteria::parse).collect::<Result<Vec<_>, _>>()?;
        value::<Reporter>("reporter", filter.reporter)?;
        let others =
            [filter.dest_ports.len(), filter.actions.len(), filter.policies.len(), filter.pending_actions.len()];
        if strings.into_iter().map(Vec::len).chain(others).sum::<usize>() > MOST_VALUES {
            return Err(RequestError::TooManyValues);
        }
        Ok(Filters { filter, policies })
    }

    /// Whether the criteria other than those for policies admit a flow.
    pub(crate) fn admits_ends(&self, key: &FlowKey) -> bool {
        let Filter {
            source_names,
            source_namespaces,
            dest_names,
            dest_namespaces,
            protocols,
            dest_ports,
            actions,
            policies: _,
            reporter,
            pending_actions: _,
        } = &self.filter;
        any_text(source_names, &key.source_name)
            && any_text(source_namespaces, &key.source_namespace)
            && any_text(dest_names, &key.dest_name)
            && any_text(dest_namespaces, &key.dest_namespace)
            && any_text(protocols, &key.proto)
            && any(dest_ports, |port| port.message.port == key.dest_port)
            && any(actions, |action| *action == key.action)
            && (*reporter == i32::from(Reporter::Unspecified) || *reporter == key.reporter)
    }

    /// Whether the criteria for policies admit a flow with this trace.
    pub(crate) fn admits_policies(&self, trace: &PolicyTrace) -> bool {
        let PolicyTrace { enforced_policies, pending_policies } = trace;
        any(&self.policies, |policy| enforced_policies.iter().chain(pending_policies).any(|hit| policy.admits(hit)))
            && any(&self.filter.pending_actions, |action| pending_policies.iter().any(|hit| hit.action == *action))
    }
}

impl PolicyCriteria {
    /// # Errors
    /// If a field or a value is unknown.
    pub(crate) fn parse(given: &Strict<PolicyMatch>) -> Result<PolicyCriteria, RequestError> {
        let PolicyMatch { kind, tier, namespace, name, action } = known(given, "a policy of the filter")?;
        value::<Action>("action of a policy", *action)?;
        Ok(PolicyCriteria {
            kind: *kind,
            tier: policy_text("tier", tier)?,
            namespace: policy_text("namespace", namespace)?,
            name: policy_text("name", name)?,
            action: *action,
        })
    }

    /// The end of a tier also matches by its trigger, which has the namespace and the name of the policy.
    pub(crate) fn admits(&self, hit: &PolicyHit) -> bool {
        let PolicyCriteria { kind, tier, namespace, name, action } = self;
        let matches = |wanted: &StringMatch, text: &str| wanted.value.is_empty() || matches_text(wanted, text);
        let is_named = |hit: &PolicyHit| {
            (*kind == i32::from(PolicyKind::Unspecified) || *kind == hit.kind)
                && matches(tier, &hit.tier)
                && matches(namespace, &hit.namespace)
                && matches(name, &hit.name)
        };
        (*action == i32::from(Action::Unspecified) || *action == hit.action)
            && (is_named(hit) || hit.trigger.as_ref().is_some_and(|trigger| is_named(trigger)))
    }
}

/// Tags of messages of three fields are control characters, and names have none.
fn policy_text(field: &'static str, bytes: &[u8]) -> Result<StringMatch, RequestError> {
    if bytes.first().is_some_and(u8::is_ascii_control) {
        let text = Strict::<StringMatch>::decode(bytes).map_err(|_| RequestError::PolicyText(field))?;
        return check_text(&text).cloned();
    }
    let value = String::from_utf8(bytes.to_vec()).map_err(|_| RequestError::PolicyText(field))?;
    Ok(StringMatch { value, r#type: MatchType::Exact.into() })
}

fn check_text(given: &Strict<StringMatch>) -> Result<&StringMatch, RequestError> {
    let text = known(given, "a text of the filter")?;
    value::<MatchType>("type of a filter", text.r#type)?;
    Ok(text)
}

fn any<T>(alternatives: &[T], matches: impl Fn(&T) -> bool) -> bool {
    alternatives.is_empty() || alternatives.iter().any(matches)
}

fn any_text(alternatives: &[Strict<StringMatch>], text: &str) -> bool {
    any(alternatives, |wanted| {
        let aliases = ALIASES.iter().filter(|(_, name)| *name == text).map(|(alias, _)| *alias);
        [text].into_iter().chain(aliases).any(|text| matches_text(&wanted.message, text))
    })
}

fn matches_text(StringMatch { value, r#type }: &StringMatch, text: &str) -> bool {
    match *r#type == i32::from(MatchType::Fuzzy) {
        true => text.contains(value.as_str()),
        false => text == value,
    }
}
