//! Patterns of names: text, with `*` for any characters, none included.

use std::fmt;

use serde::Deserialize;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct NamePattern(String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid name pattern '{0}': expected letters, digits, '-', '_', '.' and '*'")]
pub struct InvalidNamePattern(String);

impl NamePattern {
    pub fn matches(&self, name: &str) -> bool {
        let mut parts = self.0.split('*');
        let Some(mut rest) = parts.next().and_then(|first| name.strip_prefix(first)) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            // The first match is sufficient: it leaves the longest rest.
            let Some((_, behind)) = rest.split_once(part) else { return false };
            rest = behind;
        }
        rest.ends_with(last)
    }
}

impl TryFrom<String> for NamePattern {
    type Error = InvalidNamePattern;

    fn try_from(text: String) -> Result<NamePattern, InvalidNamePattern> {
        let fits = |b: u8| b.is_ascii_alphanumeric() || b"-_.*".contains(&b);
        match !text.is_empty() && text.bytes().all(fits) {
            true => Ok(NamePattern(text)),
            false => Err(InvalidNamePattern(text)),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> NamePattern {
        NamePattern::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn star_matches_any_characters_and_rest_exactly() {
        let cases = [
            ("web", "web", true),
            ("web", "web-1", false),
            ("*", "anything", true),
            ("web-*", "web-", true),
            ("web-*", "web-1", true),
            ("web-*", "aweb-1", false),
            ("*-web", "a-web", true),
            ("*-web", "a-web-1", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*b*c", "abc", true),
            ("ab*ba", "aba", false),
            ("*a*a*", "a", false),
            ("**", "x", true),
        ];
        for (text, name, matches) in cases {
            assert_eq!(pattern(text).matches(name), matches, "{text} {name}");
        }
    }

    #[test]
    fn pattern_refuses_characters_invalid_in_names() {
        for text in ["", "a b", "a/b", "[a-z]", "a?"] {
            assert!(NamePattern::try_from(text.to_owned()).is_err(), "{text}");
        }
    }
}
