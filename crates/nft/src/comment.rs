//! Comments that the kernel stores and `nft list` shows.

use std::fmt;
use std::sync::Arc;

/// nft refuses comments of 128 bytes and more (`NFTNL_UDATA_COMMENT_MAXLEN`).
const LONGEST: usize = 127;

/// A comment on a table, set, element or rule: printable ASCII without quotes, at most 127 bytes. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Comment(Arc<str>);

impl Comment {
    /// Accepts any text: unprintable characters become `?`, quotes become `'`, and longer text is truncated with `...`.
    pub fn new(text: &str) -> Comment {
        let mut clean: String = text
            .chars()
            .map(|c| match c {
                '"' => '\'',
                '\\' => '/',
                ' '..='~' => c,
                _ => '?',
            })
            .collect();
        if clean.len() > LONGEST {
            clean.truncate(LONGEST - 3);
            clean.push_str("...");
        }
        Comment(clean.into())
    }

    /// The text without the quotes that [`Display`](fmt::Display) adds.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

impl fmt::Debug for Comment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comment_sanitises_and_shortens_any_text() {
        assert_eq!(Comment::new("a \"b\"\n\u{e9}").as_str(), "a 'b'??");
        let long = Comment::new(&"x".repeat(300));
        assert_eq!(long.as_str().len(), LONGEST);
        assert!(long.as_str().ends_with("..."));
    }
}
