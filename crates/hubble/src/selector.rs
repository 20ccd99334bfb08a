//! Label selectors of filters, in Kubernetes syntax; a key may have the source of its label as a prefix (`k8s:app`,
//! `reserved:world`).

/// One requirement of a selector on a flow's labels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    /// `None` for labels of any source.
    source: Option<String>,
    key: String,
    condition: Condition,
}

/// Operator and values. A record lists the labels of several pods, so a key may have several values; one matching value
/// suffices.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Exists,
    Missing,
    In(Vec<String>),
    /// Also matches if the key is absent.
    NotIn(Vec<String>),
}

/// Limit of the requirements of one selector: policies have fewer, and each is compared with each label of a flow.
const MOST_REQUIREMENTS: usize = 32;

impl Selector {
    /// # Errors
    /// If the selector is invalid; the message names what was expected.
    pub(crate) fn parse(text: &str) -> Result<Selector, String> {
        let mut requirements = Vec::new();
        for part in split(text) {
            requirements.push(requirement(part.trim()).ok_or_else(|| {
                format!(
                    "'{}': expected a label selector such as k8s:app=web, app in (web, db) or !app",
                    part.escape_debug()
                )
            })?);
        }
        if requirements.len() > MOST_REQUIREMENTS {
            return Err(format!("more than {MOST_REQUIREMENTS} requirements in a label selector"));
        }
        Ok(Selector(requirements))
    }

    /// Labels are `source:key=value` or `source:key`.
    pub(crate) fn matches(&self, labels: &[String]) -> bool {
        self.0.iter().all(|requirement| requirement.is_met(labels))
    }
}

impl Requirement {
    fn is_met(&self, labels: &[String]) -> bool {
        let mut values = labels.iter().filter_map(|label| {
            let (name, value) = label.split_once('=').unwrap_or((label, ""));
            let (source, key) = name.split_once(':')?;
            (key == self.key && self.source.as_ref().is_none_or(|wanted| source == wanted)).then_some(value)
        });
        match &self.condition {
            Condition::Exists => values.next().is_some(),
            Condition::Missing => values.next().is_none(),
            Condition::In(wanted) => values.any(|value| wanted.iter().any(|wanted| wanted == value)),
            Condition::NotIn(unwanted) => !values.any(|value| unwanted.iter().any(|unwanted| unwanted == value)),
        }
    }
}

/// Splits a selector at the commas outside parentheses.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0i32;
    text.split(move |c| {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        c == ',' && depth == 0
    })
}

fn requirement(text: &str) -> Option<Requirement> {
    if let Some(key) = text.strip_prefix('!') {
        return with(key, Condition::Missing);
    }
    if let Some((key, values)) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
        let (key, operator) = key.trim().rsplit_once(char::is_whitespace)?;
        let values: Option<Vec<String>> = values.split(',').map(value).collect();
        return match operator {
            "in" => with(key, Condition::In(values?)),
            "notin" => with(key, Condition::NotIn(values?)),
            _ => None,
        };
    }
    match text.split_once('=') {
        None => with(text, Condition::Exists),
        Some((key, wanted)) => match key.strip_suffix('!') {
            Some(key) => with(key, Condition::NotIn(vec![value(wanted)?])),
            None => with(key, Condition::In(vec![value(wanted.strip_prefix('=').unwrap_or(wanted))?])),
        },
    }
}

fn with(key: &str, condition: Condition) -> Option<Requirement> {
    let (source, key) = match key.trim().split_once(':') {
        Some(("any", key)) => (None, key),
        Some((source, key)) => (Some(source), key),
        None => (None, key.trim()),
    };
    let is_name = |text: &str, others: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || others.contains(c))
    };
    if !is_name(key, "-_./") || !source.is_none_or(|source| is_name(source, "-")) {
        return None;
    }
    Some(Requirement { source: source.map(str::to_owned), key: key.to_owned(), condition })
}

fn value(text: &str) -> Option<String> {
    let text = text.trim();
    text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(selector: &str) -> bool {
        let labels = ["k8s:app=web", "k8s:app=api", "k8s:io.kubernetes.pod.namespace=shop", "reserved:world"];
        Selector::parse(selector).unwrap().matches(&labels.map(str::to_owned))
    }

    #[test]
    fn selectors_match_labels() {
        for selector in [
            "app",
            "k8s:app",
            "any:app=web",
            "app=api",
            "app == web",
            "app in (db, web),k8s:io.kubernetes.pod.namespace=shop",
            "reserved:world",
            "!tier",
            "tier!=front",
            "tier notin (front,back)",
            "reserved:app!=web",
        ] {
            assert!(admits(selector), "{selector}");
        }
        for selector in ["reserved:app", "app=db", "app!=web", "!app", "k8s:world", "app notin (web)", "app,tier"] {
            assert!(!admits(selector), "{selector}");
        }
    }

    #[test]
    fn other_texts_are_no_selectors() {
        for text in ["", "app>1", "app in", "app in web", "app near (web)", "=web", "a b", "app=w b", "app,,tier"] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
        assert!(Selector::parse(&["a"; MOST_REQUIREMENTS + 1].join(",")).is_err());
    }
}
