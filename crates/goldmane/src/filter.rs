//! Filters of flows. Values of a field are alternatives, and all fields must match; a fuzzy value matches a substring,
//! and an empty one everything.

use wire::Strict;

use crate::message::{
    Action, Filter, FlowKey, MatchType, PolicyHit, PolicyKind, PolicyMatch, PolicyTrace, PortMatch, Reporter,
    StringMatch,
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
            value::<MatchType>("type of a filter", text.r#type)?;
        }
        for action in filter.actions.iter().chain(&filter.pending_actions) {
            value::<Action>("actions", *action)?;
        }
        for policy in &filter.policies {
            check_policy(policy)?;
        }
        value::<Reporter>("reporter", filter.reporter)?;
        let others =
            [filter.dest_ports.len(), filter.actions.len(), filter.policies.len(), filter.pending_actions.len()];
        if strings.into_iter().map(Vec::len).chain(others).sum::<usize>() > MOST_VALUES {
            return Err(RequestError::TooManyValues);
        }
        Ok(Filters { filter })
    }

    pub fn admits(&self, key: &FlowKey) -> bool {
        let Filter {
            source_names,
            source_namespaces,
            dest_names,
            dest_namespaces,
            protocols,
            dest_ports,
            actions,
            policies,
            reporter,
            pending_actions,
        } = &self.filter;
        let nothing = PolicyTrace::default();
        let PolicyTrace { enforced_policies, pending_policies } = key.policies.as_ref().unwrap_or(&nothing);
        any_text(source_names, &key.source_name)
            && any_text(source_namespaces, &key.source_namespace)
            && any_text(dest_names, &key.dest_name)
            && any_text(dest_namespaces, &key.dest_namespace)
            && any_text(protocols, &key.proto)
            && any(dest_ports, |PortMatch { port }| *port == 0 || *port == key.dest_port)
            && any(actions, |action| *action == i32::from(Action::Unspecified) || *action == key.action)
            && any(policies, |policy| {
                enforced_policies.iter().chain(pending_policies).any(|hit| admits_hit(&policy.message, hit))
            })
            && (*reporter == i32::from(Reporter::Unspecified) || *reporter == key.reporter)
            && any(pending_actions, |action| {
                *action == i32::from(Action::Unspecified) || pending_policies.iter().any(|hit| hit.action == *action)
            })
    }
}

pub(crate) fn check_policy(given: &Strict<PolicyMatch>) -> Result<&PolicyMatch, RequestError> {
    let policy = known(given, "a policy of the filter")?;
    value::<Action>("action of a policy", policy.action)?;
    Ok(policy)
}

fn any<T>(alternatives: &[T], matches: impl Fn(&T) -> bool) -> bool {
    alternatives.is_empty() || alternatives.iter().any(matches)
}

fn any_text(alternatives: &[StringMatch], text: &str) -> bool {
    any(alternatives, |StringMatch { value, r#type }| {
        let is_fuzzy = *r#type == i32::from(MatchType::Fuzzy);
        let matches = |value: &str| if is_fuzzy { text.contains(value) } else { text == value };
        value.is_empty()
            || matches(value)
            || ALIASES.iter().any(|(alias, name)| {
                *name == text && if is_fuzzy { alias.contains(value.as_str()) } else { *alias == value }
            })
    })
}

/// Empty fields match everything. For the end of a tier, name and namespace are those of its trigger.
pub(crate) fn admits_hit(wanted: &PolicyMatch, hit: &PolicyHit) -> bool {
    let PolicyMatch { kind, tier, namespace, name, action } = wanted;
    let matches = |wanted: &str, text: &str| wanted.is_empty() || wanted == text;
    let is_named = |hit: &PolicyHit| {
        (*kind == i32::from(PolicyKind::Unspecified) || *kind == hit.kind)
            && matches(tier, &hit.tier)
            && matches(namespace, &hit.namespace)
            && matches(name, &hit.name)
    };
    (*action == i32::from(Action::Unspecified) || *action == hit.action)
        && (is_named(hit) || hit.trigger.as_ref().is_some_and(|trigger| is_named(trigger)))
}
