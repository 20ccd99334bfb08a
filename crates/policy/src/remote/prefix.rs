//! Label prefixes: pods of other clusters are named by the label `PREFIX/name`, and policies of this cluster select
//! them by `PREFIX/cluster`, `PREFIX/namespace` and `PREFIX/name`.

use std::fmt;
use std::sync::Arc;

/// A DNS subdomain, as required for the prefix of a label key
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#syntax-and-character-set>).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LabelPrefix(Arc<str>);

/// The prefixes used unless configured, the one for suggestions first.
pub const DEFAULT_PREFIXES: [&str; 2] = ["semaphore.uw.systems", "policy.semaphore.uw.io"];

/// RFC 1123, with the limits of Kubernetes.
const LONGEST_SUBDOMAIN: usize = 253;
const LONGEST_LABEL: usize = 63;

/// The text is not a label prefix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid label prefix '{0}': expected a DNS name in lower case without '/', such as example.com")]
pub struct NotALabelPrefix(String);

impl LabelPrefix {
    /// Without the `/` of label keys.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Those of [`DEFAULT_PREFIXES`].
    pub fn defaults() -> Vec<LabelPrefix> {
        DEFAULT_PREFIXES.iter().map(|prefix| LabelPrefix((*prefix).into())).collect()
    }

    /// `PREFIX/name`
    pub fn name_label(&self) -> Arc<str> {
        self.label("name")
    }

    /// `PREFIX/namespace`
    pub fn namespace_label(&self) -> Arc<str> {
        self.label("namespace")
    }

    /// `PREFIX/cluster`
    pub fn cluster_label(&self) -> Arc<str> {
        self.label("cluster")
    }

    fn label(&self, name: &str) -> Arc<str> {
        format!("{}/{name}", self.0).into()
    }
}

impl std::str::FromStr for LabelPrefix {
    type Err = NotALabelPrefix;
    fn from_str(text: &str) -> Result<LabelPrefix, NotALabelPrefix> {
        let is_label = |label: &str| {
            let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
            !label.is_empty()
                && label.len() <= LONGEST_LABEL
                && label.bytes().all(inner)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        match text.len() <= LONGEST_SUBDOMAIN && text.split('.').all(is_label) {
            true => Ok(LabelPrefix(text.into())),
            false => Err(NotALabelPrefix(crate::plain(text))),
        }
    }
}

impl fmt::Display for LabelPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_prefix_must_be_valid_key_prefix() {
        for text in DEFAULT_PREFIXES.into_iter().chain(["a", "example.com", "a-b.9c"]) {
            assert_eq!(text.parse::<LabelPrefix>().map(|prefix| prefix.to_string()).as_deref(), Ok(text));
        }
        let long = "a".repeat(64);
        let longer = ["a"; 128].join(".");
        for text in ["", ".", "a.", "a/b", "Example.com", "-a", "a-.b", "a b", &long, &longer] {
            assert!(text.parse::<LabelPrefix>().is_err(), "{text}");
        }
        let error = "a\n\nb.c".parse::<LabelPrefix>().unwrap_err().to_string();
        assert!(error.starts_with("invalid label prefix 'a??b.c'"), "{error}");
    }
}
