//! Which labels of pods and namespaces are relevant to security, so that pods that differ in them have different
//! identities.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

use crate::labels::is_churn;

/// The longest pattern that matches a key decides, and of equally long ones an exclusion. A key that no pattern matches
/// is included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelFilter {
    /// By length, longest first, exclusions before inclusions; each text once.
    patterns: Vec<Pattern>,
    /// Those that somebody gave, in the same order.
    given: Vec<Pattern>,
}

/// The start of a key, as in `team.example.com/`; with `*.` before it any subdomain of its key's prefix, as in
/// `*.example.com/`; with `!` before all of it, keys that match are excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    verdict: Verdict,
    domain: Domain,
    start: Box<str>,
}

/// In the order in which equally long patterns count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Exclude,
    Include,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Domain {
    AsWritten,
    AnySubdomain,
}

/// Why a text is no pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid pattern of label keys '{0}': expected a key prefix, or '*.' and a domain suffix, with '!' in front to \
     exclude"
)]
pub struct NotAPattern(String);

/// What is relevant where nobody says otherwise: everything but what Kubernetes and its parts write, with the
/// recommended labels, which people write.
const DEFAULTS: [(Verdict, Domain, &str); 5] = [
    (Verdict::Exclude, Domain::AsWritten, "kubernetes.io/"),
    (Verdict::Exclude, Domain::AnySubdomain, "kubernetes.io/"),
    (Verdict::Exclude, Domain::AsWritten, "k8s.io/"),
    (Verdict::Exclude, Domain::AnySubdomain, "k8s.io/"),
    (Verdict::Include, Domain::AsWritten, "app.kubernetes.io/"),
];

impl LabelFilter {
    /// These patterns before the defaults, whose patterns of the same text they replace.
    pub fn with(patterns: impl IntoIterator<Item = Pattern>) -> LabelFilter {
        let in_order = |mut patterns: Vec<Pattern>| {
            patterns.sort_by_key(|pattern| (Reverse(pattern.length()), pattern.verdict));
            patterns
        };
        let given: Vec<Pattern> = patterns.into_iter().collect();
        let mut all = given.clone();
        for (verdict, domain, start) in DEFAULTS {
            if !given.iter().any(|pattern| pattern.domain == domain && *pattern.start == *start) {
                all.push(Pattern { verdict, domain, start: start.into() });
            }
        }
        LabelFilter { patterns: in_order(all), given: in_order(given) }
    }

    /// Whether the label is part of a pod's identity. Labels that churn never are.
    pub fn includes(&self, key: &str) -> bool {
        !is_churn(key) && included(&self.patterns, key)
    }

    /// Whether the label of a namespace is part of the identities of its pods. The defaults are about pods: all are, but
    /// for what a pattern that somebody gave excludes.
    pub fn includes_of_namespace(&self, key: &str) -> bool {
        included(&self.given, key)
    }

    /// Whether nobody gave a pattern, so that all labels of namespaces are included.
    pub(crate) fn is_default(&self) -> bool {
        self.given.is_empty()
    }
}

/// Whether the first pattern that matches includes the key, or none matches.
fn included(patterns: &[Pattern], key: &str) -> bool {
    let decides = patterns.iter().find(|pattern| pattern.matches(key));
    decides.is_none_or(|pattern| pattern.verdict == Verdict::Include)
}

impl Default for LabelFilter {
    fn default() -> LabelFilter {
        LabelFilter::with([])
    }
}

impl Pattern {
    fn matches(&self, key: &str) -> bool {
        match self.domain {
            Domain::AsWritten => key.starts_with(&*self.start),
            Domain::AnySubdomain => {
                let domain = key.split_once('/').map_or("", |(domain, _)| domain);
                domain.match_indices('.').any(|(dot, _)| dot > 0 && key[dot + 1..].starts_with(&*self.start))
            }
        }
    }

    /// Of the text, without `!`.
    fn length(&self) -> usize {
        self.domain.text().len() + self.start.len()
    }
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Verdict::Exclude => "!",
            Verdict::Include => "",
        }
    }
}

impl Domain {
    fn text(self) -> &'static str {
        match self {
            Domain::AsWritten => "",
            Domain::AnySubdomain => "*.",
        }
    }
}

impl FromStr for Pattern {
    type Err = NotAPattern;
    fn from_str(text: &str) -> Result<Pattern, NotAPattern> {
        let (verdict, rest) = match text.strip_prefix(Verdict::Exclude.text()) {
            Some(rest) => (Verdict::Exclude, rest),
            None => (Verdict::Include, text),
        };
        let (domain, start) = match rest.strip_prefix(Domain::AnySubdomain.text()) {
            Some(start) => (Domain::AnySubdomain, start),
            None => (Domain::AsWritten, rest),
        };
        let of_key = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if !start.chars().all(of_key) || (domain == Domain::AnySubdomain && start.is_empty()) {
            return Err(NotAPattern(text.into()));
        }
        Ok(Pattern { verdict, domain, start: start.into() })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}{}", self.verdict.text(), self.domain.text(), self.start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(patterns: &[&str]) -> LabelFilter {
        LabelFilter::with(patterns.iter().map(|text| text.parse().unwrap()))
    }

    fn check(patterns: &[&str], included: &[&str], excluded: &[&str]) {
        let filter = filter(patterns);
        for (keys, expected) in [(included, true), (excluded, false)] {
            for key in keys {
                assert_eq!(filter.includes(key), expected, "{key} under {patterns:?}");
            }
        }
    }

    #[test]
    fn by_default_everything_counts_but_churn_and_what_kubernetes_writes() {
        check(
            &[],
            &[
                "app",
                "tier",
                "app.kubernetes.io/name",
                "app.kubernetes.io/",
                "example.com/kubernetes.io",
                "",
                "/",
                "x/",
            ],
            &[
                "kubernetes.io/hostname",
                "topology.kubernetes.io/zone",
                "a.b.kubernetes.io/x",
                "k8s.io/x",
                "node.k8s.io/x",
            ],
        );
        check(&[], &["notkubernetes.io/x", "kubernetes.io", "x/a.kubernetes.io/y"], &crate::labels::CHURN);
    }

    #[test]
    fn the_longest_pattern_decides() {
        check(&["!app", "app.kubernetes.io/name", "appearance"], &["appearance", "tier"], &["app", "apple"]);
        check(
            &["!app.kubernetes.io/", "app.kubernetes.io/name"],
            &["app.kubernetes.io/name"],
            &["app.kubernetes.io/part-of"],
        );
        check(&["!", "app"], &["app", "app.kubernetes.io/name"], &["tier", "example.com/x"]);
        check(&["topology.kubernetes.io/"], &["topology.kubernetes.io/zone"], &["node.kubernetes.io/zone"]);
    }

    #[test]
    fn of_equally_long_patterns_an_exclusion_decides() {
        check(&["app", "!app"], &["tier"], &["app"]);
        check(&["!*.example.com/", "a.example.com/"], &["example.com/x"], &["a.example.com/x", "b.example.com/x"]);
        check(&["!*.example.com/", "ab.example.com/"], &["ab.example.com/x"], &["b.example.com/x"]);
    }

    #[test]
    fn what_is_given_replaces_a_default_of_the_same_text() {
        check(&["kubernetes.io/"], &["kubernetes.io/arch"], &["node.kubernetes.io/x"]);
        check(&["*.k8s.io/"], &["node.k8s.io/x"], &["k8s.io/x"]);
    }

    #[test]
    fn of_a_namespace_only_what_is_given_excludes() {
        let included = |patterns: &[&str], keys: &[&str]| {
            let filter = filter(patterns);
            keys.iter().map(|key| filter.includes_of_namespace(key)).collect::<Vec<_>>()
        };
        let keys = ["kubernetes.io/metadata.name", "pod-security.kubernetes.io/enforce", "team", "team.example.com/x"];
        assert_eq!(included(&[], &keys), [true; 4]);
        assert_eq!(included(&["!team"], &keys), [true, true, false, false]);
        assert_eq!(included(&["!team", "team.example.com/"], &keys), [true, true, false, true]);
        assert_eq!(included(&["!", "kubernetes.io/"], &keys), [true, false, false, false]);
    }

    #[test]
    fn churn_is_never_part_of_an_identity() {
        check(&["pod-template-hash", "job-name"], &["pod-template-hash-2"], &["pod-template-hash", "job-name"]);
    }

    #[test]
    fn patterns_are_texts_and_other_texts_are_none() {
        for text in ["", "!", "app", "!app", "*.example.com/", "!*.example.com/a"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
        for text in ["*.", "*", "a*", "!!a", "a b", "!*.", "*.*.a", "ä"] {
            assert_eq!(text.parse::<Pattern>(), Err(NotAPattern(text.into())));
        }
    }
}
