//! Label selectors in canonical form: selectors that only differ in order are equal.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use serde::Serialize;

use crate::Labels;

/// Requirements that must all hold; without any, everything is selected. Cheap to clone.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Selector {
    /// Sorted, without duplicates.
    requirements: Arc<[Requirement]>,
}

/// A condition on one label. Prints as in `kubectl get -l`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Requirement {
    /// The label's key.
    pub key: Arc<str>,
    /// The condition on its value.
    pub operator: Operator,
}

/// The operators of `matchExpressions`; `matchLabels` is `In` with one value. The value sets are not empty.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Operator {
    /// The label exists with one of the values.
    In(Values),
    /// Also holds for objects without the key.
    NotIn(Values),
    /// The label exists, with any value.
    Exists,
    /// The label does not exist.
    DoesNotExist,
}

/// Sorted texts, without duplicates.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Values(Box<[Arc<str>]>);

impl Values {
    fn holds(&self, value: &str) -> bool {
        self.0.binary_search_by(|held| (**held).cmp(value)).is_ok()
    }
}

impl FromIterator<Arc<str>> for Values {
    fn from_iter<I: IntoIterator<Item = Arc<str>>>(texts: I) -> Values {
        Values(sorted(texts).into())
    }
}

impl Deref for Values {
    type Target = [Arc<str>];
    fn deref(&self) -> &[Arc<str>] {
        &self.0
    }
}

fn sorted<T: Ord>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut values: Vec<T> = values.into_iter().collect();
    values.sort();
    values.dedup();
    values
}

impl Selector {
    /// The selector without requirements: `{}` in YAML.
    pub(crate) fn everything() -> Selector {
        Selector::default()
    }

    /// Sorts the requirements, and drops duplicates.
    pub(crate) fn of(requirements: impl IntoIterator<Item = Requirement>) -> Selector {
        let requirements = sorted(requirements);
        // All empty selectors share one allocation, which a conversion would not use.
        if requirements.is_empty() { Selector::default() } else { Selector { requirements: requirements.into() } }
    }

    /// Replaces the requirements by the equal ones that `share` returns.
    pub(crate) fn shared(self, share: impl FnOnce(&[Requirement]) -> Arc<[Requirement]>) -> Selector {
        Selector { requirements: share(&self.requirements) }
    }

    /// All must hold. Sorted, by key first.
    pub fn requirements(&self) -> impl Iterator<Item = &Requirement> {
        self.requirements.iter()
    }

    pub(crate) fn selects_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// The requirements that objects without labels do not meet: `In` and `Exists`.
    pub(crate) fn positive(&self) -> Selector {
        let is_positive = |requirement: &&Requirement| match requirement.operator {
            Operator::In(_) | Operator::Exists => true,
            Operator::NotIn(_) | Operator::DoesNotExist => false,
        };
        if self.requirements().all(|requirement| is_positive(&requirement)) {
            return self.clone();
        }
        Selector::of(self.requirements().filter(is_positive).cloned())
    }

    /// Whether only labels with the key can match: an `In` or `Exists` requirement names it.
    pub fn requires(&self, key: &str) -> bool {
        self.requirements.iter().any(|requirement| match requirement.operator {
            Operator::In(_) | Operator::Exists => *requirement.key == *key,
            Operator::NotIn(_) | Operator::DoesNotExist => false,
        })
    }

    /// Whether all requirements hold.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|r| r.holds(labels))
    }

    /// The first requirement that the labels do not meet.
    pub fn unmet<'a>(&'a self, labels: &Labels) -> Option<&'a Requirement> {
        self.requirements.iter().find(|r| !r.holds(labels))
    }
}

impl Requirement {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match &self.operator {
            Operator::In(values) => value.is_some_and(|v| values.holds(v)),
            Operator::NotIn(values) => value.is_none_or(|v| !values.holds(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, requirement) in self.requirements.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            requirement.fmt(f)?;
        }
        Ok(())
    }
}

/// In the syntax of `kubectl get -l`.
impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |values: &Values| values.iter().map(|v| &**v).collect::<Vec<_>>().join(",");
        match &self.operator {
            Operator::In(values) if values.len() == 1 => write!(f, "{}={}", self.key, list(values)),
            Operator::In(values) => write!(f, "{} in ({})", self.key, list(values)),
            Operator::NotIn(values) if values.len() == 1 => write!(f, "{}!={}", self.key, list(values)),
            Operator::NotIn(values) => write!(f, "{} notin ({})", self.key, list(values)),
            Operator::Exists => f.write_str(&self.key),
            Operator::DoesNotExist => write!(f, "!{}", self.key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    fn selector(operator: Operator) -> Selector {
        Selector::of([Requirement { key: "app".into(), operator }])
    }

    #[test]
    fn negative_operators_match_objects_without_the_key() {
        let values: Values = ["web".into()].into_iter().collect();
        for (operator, web, api, none) in [
            (Operator::In(values.clone()), true, false, false),
            (Operator::NotIn(values), false, true, true),
            (Operator::Exists, true, true, false),
            (Operator::DoesNotExist, false, false, true),
        ] {
            let s = selector(operator);
            assert_eq!(s.matches(&labels(&[("app", "web")])), web, "{s}");
            assert_eq!(s.matches(&labels(&[("app", "api")])), api, "{s}");
            assert_eq!(s.matches(&labels(&[])), none, "{s}");
        }
    }

    #[test]
    fn selector_requires_key_for_in_and_exists_only() {
        let values: Values = ["web".into()].into_iter().collect();
        for (operator, required) in [
            (Operator::In(values.clone()), true),
            (Operator::NotIn(values), false),
            (Operator::Exists, true),
            (Operator::DoesNotExist, false),
        ] {
            let s = selector(operator);
            assert_eq!((s.requires("app"), s.requires("ap"), s.requires("")), (required, false, false), "{s}");
        }
        assert!(!Selector::everything().requires("app"));
    }
}
