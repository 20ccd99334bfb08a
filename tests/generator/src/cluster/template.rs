//! JSON templates: fields that differ between objects are filled in, the rest is copied. This makes writing 100,000
//! objects of some kilobytes as fast as a server must be.

/// `$name$` marks a gap.
const MARK: char = '$';

#[derive(Debug)]
pub(super) struct Template {
    /// Texts before, between and after the gaps, without insignificant white space.
    texts: Vec<String>,
    gaps: Vec<String>,
}

impl Template {
    pub(super) fn new(source: &str) -> Template {
        let packed = without_white_space(source);
        let (texts, gaps): (Vec<_>, Vec<_>) = packed.split(MARK).enumerate().partition(|(place, _)| place % 2 == 0);
        let strings = |parts: Vec<(usize, &str)>| parts.into_iter().map(|(_, part)| part.to_owned()).collect();
        Template { texts: strings(texts), gaps: strings(gaps) }
    }

    /// Writes the text; `fill` writes the value of a gap by its name.
    pub(super) fn write(&self, out: &mut Vec<u8>, mut fill: impl FnMut(&str, &mut Vec<u8>)) {
        for (place, text) in self.texts.iter().enumerate() {
            out.extend_from_slice(text.as_bytes());
            if let Some(gap) = self.gaps.get(place) {
                fill(gap, out);
            }
        }
    }
}

fn without_white_space(json: &str) -> String {
    let mut in_text = false;
    let mut escaped = false;
    let keep = |c: &char| {
        if in_text {
            in_text = escaped || *c != '"';
            escaped = !escaped && *c == '\\';
            true
        } else {
            in_text = *c == '"';
            !c.is_whitespace()
        }
    };
    json.chars().filter(keep).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn template_fills_gaps_and_keeps_whitespace_in_strings() {
        let template = Template::new("{ \"a b\": \"$name$ \\\" x\",\n \"c\": $list$ }");
        let mut out = Vec::new();
        template.write(&mut out, |gap, out| out.extend(if gap == "name" { "web".bytes() } else { "[1]".bytes() }));
        assert_eq!(String::from_utf8(out).unwrap(), "{\"a b\":\"web \\\" x\",\"c\":[1]}");
    }
}
