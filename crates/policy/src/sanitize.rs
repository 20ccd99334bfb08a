//! Sanitizes untrusted text for output: one line, no terminal control characters, and bounded length.

/// Longest untrusted text in a message. Names are shorter (RFC 1123: 253 bytes).
const LONGEST_CHARS: usize = 256;

/// Replaces line breaks, control characters and bidirectional formatting characters by `?`.
pub fn plain(text: &str) -> String {
    let fit = |c: char| match c {
        '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => '?',
        c if c.is_control() => '?',
        c => c,
    };
    let mut chars = text.chars().map(fit);
    let mut short: String = chars.by_ref().take(LONGEST_CHARS).collect();
    if chars.next().is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_has_no_line_breaks_or_escapes() {
        assert_eq!(plain("a\nb\x1b[2J\u{9b}c\u{2028}d\u{202e}e"), "a?b?[2J?c?d?e");
        assert_eq!(plain("größe"), "größe");
    }

    #[test]
    fn long_text_is_truncated() {
        assert_eq!(plain(&"x".repeat(100_000)).chars().count(), LONGEST_CHARS + 1);
        assert_eq!(plain(&"x".repeat(LONGEST_CHARS)), "x".repeat(LONGEST_CHARS));
    }
}
