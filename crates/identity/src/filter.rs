//! Which labels of pods and namespaces are part of an identity.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;

/// Labels that controllers write to distinguish the pods of one workload. They are never part of an identity: there
/// would be as many identities as pods.
pub const CHURN: [&str; 9] = [
    "pod-template-hash",
    "controller-revision-hash",
    "pod-template-generation",
    "statefulset.kubernetes.io/pod-name",
    "apps.kubernetes.io/pod-index",
    "controller-uid",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
    "job-name",
];

/// Decides which labels are part of an identity. The longest pattern that matches a key decides, and of equally long ones
/// an exclusion. A key that no pattern matches is included.
///
/// ```
/// use identity::{LabelFilter, LabelKeyPattern};
///
/// let filter = LabelFilter::with(["!example.com/".parse::<LabelKeyPattern>()?, "example.com/team".parse()?]);
/// assert!(filter.includes("app") && filter.includes("example.com/team"));
/// assert!(!filter.includes("example.com/build"));
/// // Excluded by the defaults, which are about pods.
/// assert!(!filter.includes("topology.kubernetes.io/zone"));
/// assert!(filter.includes_of_namespace("topology.kubernetes.io/zone"));
/// # Ok::<(), identity::InvalidLabelKeyPattern>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelFilter {
    /// The configured patterns and the defaults, by length, longest first, exclusions before inclusions; each text once.
    patterns: Vec<LabelKeyPattern>,
    /// The configured patterns in the same order.
    configured: Vec<LabelKeyPattern>,
}

/// A prefix of label keys, as in `team.example.com/`. With `*.` in front it matches behind any dot of the key's domain, as
/// in `*.example.com/`. With `!` in front of all that, matching keys are excluded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelKeyPattern {
    verdict: Verdict,
    domain: Domain,
    start: Box<str>,
}

/// Ordered by precedence between patterns of equal length.
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

/// Why a text is not a pattern.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid pattern of label keys '{0}': expected a key prefix, or '*.' and a domain suffix, with '!' in front to \
     exclude"
)]
pub struct InvalidLabelKeyPattern(String);

/// The default patterns exclude labels that Kubernetes and its components write, except for the recommended labels
/// `app.kubernetes.io/`, which users write.
const DEFAULTS: [(Verdict, Domain, &str); 5] = [
    (Verdict::Exclude, Domain::AsWritten, "kubernetes.io/"),
    (Verdict::Exclude, Domain::AnySubdomain, "kubernetes.io/"),
    (Verdict::Exclude, Domain::AsWritten, "k8s.io/"),
    (Verdict::Exclude, Domain::AnySubdomain, "k8s.io/"),
    (Verdict::Include, Domain::AsWritten, "app.kubernetes.io/"),
];

impl LabelFilter {
    /// A filter of these patterns and the defaults. A pattern replaces the default with the same text.
    pub fn with(patterns: impl IntoIterator<Item = LabelKeyPattern>) -> LabelFilter {
        let in_order = |mut patterns: Vec<LabelKeyPattern>| {
            patterns.sort_by_key(|pattern| (Reverse(pattern.length()), pattern.verdict));
            patterns
        };
        let configured: Vec<LabelKeyPattern> = patterns.into_iter().collect();
        let mut all = configured.clone();
        for (verdict, domain, start) in DEFAULTS {
            if !configured.iter().any(|pattern| pattern.domain == domain && *pattern.start == *start) {
                all.push(LabelKeyPattern { verdict, domain, start: start.into() });
            }
        }
        LabelFilter { patterns: in_order(all), configured: in_order(configured) }
    }

    /// Whether a pod's label is part of its identity. [`CHURN`] never is.
    pub fn includes(&self, key: &str) -> bool {
        self.exclusion(key).is_none()
    }

    /// Whether a label of a namespace is part of the identities of its pods. The defaults are about pods, so only a
    /// configured pattern excludes one.
    pub fn includes_of_namespace(&self, key: &str) -> bool {
        self.exclusion_of_namespace(key).is_none()
    }

    /// Why a pod's label is not part of its identity; `None` if it is.
    pub fn exclusion(&self, key: &str) -> Option<Exclusion<'_>> {
        if CHURN.contains(&key) { Some(Exclusion::Churn) } else { excluding(&self.patterns, key) }
    }

    /// Why a label of a namespace is not part of the identities of its pods; `None` if it is.
    pub fn exclusion_of_namespace(&self, key: &str) -> Option<Exclusion<'_>> {
        excluding(&self.configured, key)
    }

    /// Whether no pattern is configured, so that all labels of namespaces are included.
    pub fn is_default(&self) -> bool {
        self.configured.is_empty()
    }
}

/// Why a label is not part of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exclusion<'a> {
    /// It is one of [`CHURN`].
    Churn,
    /// This pattern is the longest that matches, and excludes.
    Pattern(&'a LabelKeyPattern),
}

impl fmt::Display for Exclusion<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exclusion::Churn => f.write_str("differs between the pods of a workload"),
            Exclusion::Pattern(pattern) => write!(f, "pattern {pattern}"),
        }
    }
}

/// The first pattern that matches the key, if it excludes.
fn excluding<'a>(patterns: &'a [LabelKeyPattern], key: &str) -> Option<Exclusion<'a>> {
    let first = patterns.iter().find(|pattern| pattern.matches(key))?;
    match first.verdict {
        Verdict::Exclude => Some(Exclusion::Pattern(first)),
        Verdict::Include => None,
    }
}

impl Default for LabelFilter {
    fn default() -> LabelFilter {
        LabelFilter::with([])
    }
}

impl LabelKeyPattern {
    fn matches(&self, key: &str) -> bool {
        match self.domain {
            Domain::AsWritten => key.starts_with(&*self.start),
            Domain::AnySubdomain => {
                let domain = key.split_once('/').map_or("", |(domain, _)| domain);
                domain.match_indices('.').any(|(dot, _)| dot > 0 && key[dot + 1..].starts_with(&*self.start))
            }
        }
    }

    /// Length of the text without `!`.
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

impl FromStr for LabelKeyPattern {
    type Err = InvalidLabelKeyPattern;
    fn from_str(text: &str) -> Result<LabelKeyPattern, InvalidLabelKeyPattern> {
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
            return Err(InvalidLabelKeyPattern(text.into()));
        }
        Ok(LabelKeyPattern { verdict, domain, start: start.into() })
    }
}

impl fmt::Display for LabelKeyPattern {
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
    fn defaults_exclude_churn_and_labels_of_kubernetes() {
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
        check(&[], &["notkubernetes.io/x", "kubernetes.io", "x/a.kubernetes.io/y"], &CHURN);
    }

    #[test]
    fn longest_matching_pattern_decides() {
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
    fn exclusion_wins_among_patterns_of_equal_length() {
        check(&["app", "!app"], &["tier"], &["app"]);
        check(&["!*.example.com/", "a.example.com/"], &["example.com/x"], &["a.example.com/x", "b.example.com/x"]);
        check(&["!*.example.com/", "ab.example.com/"], &["ab.example.com/x"], &["b.example.com/x"]);
    }

    #[test]
    fn configured_pattern_replaces_default_of_same_text() {
        check(&["kubernetes.io/"], &["kubernetes.io/arch"], &["node.kubernetes.io/x"]);
        check(&["*.k8s.io/"], &["node.k8s.io/x"], &["k8s.io/x"]);
    }

    #[test]
    fn only_configured_patterns_exclude_labels_of_namespaces() {
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
    fn churn_is_excluded_even_if_a_pattern_matches() {
        check(&["pod-template-hash", "job-name"], &["pod-template-hash-2"], &["pod-template-hash", "job-name"]);
    }

    #[test]
    fn exclusion_names_the_pattern_that_decides() {
        let filter = filter(&["!team.example.com/", "!team"]);
        let reason = |key: &str| filter.exclusion(key).map(|exclusion| exclusion.to_string());
        assert_eq!(reason("team.example.com/x").as_deref(), Some("pattern !team.example.com/"));
        assert_eq!(reason("node.k8s.io/x").as_deref(), Some("pattern !*.k8s.io/"));
        assert_eq!(reason("job-name").as_deref(), Some("differs between the pods of a workload"));
        assert_eq!(reason("app"), None);
        let of_namespace = filter.exclusion_of_namespace("team-x").map(|exclusion| exclusion.to_string());
        assert_eq!((of_namespace.as_deref(), filter.exclusion_of_namespace("job-name")), (Some("pattern !team"), None));
    }

    #[test]
    fn pattern_parses_back_and_invalid_text_is_refused() {
        for text in ["", "!", "app", "!app", "*.example.com/", "!*.example.com/a"] {
            assert_eq!(text.parse::<LabelKeyPattern>().unwrap().to_string(), text);
        }
        for text in ["*.", "*", "a*", "!!a", "a b", "!*.", "*.*.a", "ä"] {
            assert_eq!(text.parse::<LabelKeyPattern>(), Err(InvalidLabelKeyPattern(text.into())));
        }
    }
}
