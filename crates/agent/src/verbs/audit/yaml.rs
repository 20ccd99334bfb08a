//! JSON values as YAML of one style: blocks, with strings quoted wherever they could be read as something else.

use serde_json::Value;

/// One document, without its `---`.
pub(super) fn document(value: &Value) -> String {
    let mut text = String::new();
    match is_block(value) {
        true => write(&mut text, value, 0, false),
        false => text.push_str(&format!("{}\n", inline(value))),
    }
    text
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

/// Lines of a block. The first stands behind what is there already, if it is the item of a list.
fn write(text: &mut String, value: &Value, depth: usize, behind: bool) {
    let indent = "  ".repeat(depth);
    let begin = |text: &mut String, first: bool| text.push_str(if first && behind { "" } else { &indent });
    match value {
        Value::Object(fields) => {
            for (number, (key, value)) in fields.iter().enumerate() {
                begin(text, number == 0);
                text.push_str(&scalar(key));
                text.push(':');
                after(text, value, depth);
            }
        }
        Value::Array(items) => {
            for (number, item) in items.iter().enumerate() {
                begin(text, number == 0);
                text.push_str("- ");
                match is_block(item) {
                    true => write(text, item, depth + 1, true),
                    false => text.push_str(&format!("{}\n", inline(item))),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => text.push_str(&inline(value)),
    }
}

/// What follows a key: on its line, or a block below it. Lists stand under their key, as kubectl writes them.
fn after(text: &mut String, value: &Value, depth: usize) {
    if !is_block(value) {
        return text.push_str(&format!(" {}\n", inline(value)));
    }
    text.push('\n');
    write(text, value, if value.is_array() { depth } else { depth + 1 }, false);
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        // Empty ones; JSON is YAML.
        Value::Object(_) | Value::Array(_) | Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

/// Words that YAML 1.1 or 1.2 reads as something other than text.
const WORDS: [&str; 9] = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];

fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-./_".contains(c);
    let is_plain = text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.chars().all(plain)
        && !WORDS.contains(&text.to_ascii_lowercase().as_str());
    // A string of JSON is one of YAML (YAML 1.2, section 1.3).
    if is_plain { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn strings_that_could_be_something_else_are_quoted() {
        for plain in ["web", "networking.k8s.io/v1", "10-web", "a_b"] {
            assert_eq!(scalar(plain) == plain, plain.starts_with(|c: char| c.is_ascii_alphabetic()), "{plain}");
        }
        for odd in ["true", "No", "1", "1e3", "", "a: b", "- a", "10.1.0.0/24", "a b", "#a", "ä", "y", "~"] {
            assert!(scalar(odd).starts_with('"'), "{odd}");
        }
    }

    #[test]
    fn lists_and_maps_are_blocks_unless_they_are_empty() {
        let value = json!({"a": {"b": [{"c": 1, "d": [2, []]}, [3, {"e": {}}]]}, "f": []});
        let expected = "a:\n  b:\n  - c: 1\n    d:\n    - 2\n    - []\n  - - 3\n    - e: {}\nf: []\n";
        assert_eq!(document(&value), expected);
    }
}
