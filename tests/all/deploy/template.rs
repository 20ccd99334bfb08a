//! The subset of Helm's template language that the chart uses: a value by its path, `default`, a quoted string, `toYaml
//! | nindent`, `if`, `if not`, `end`, and `{{-`. Anything else is an error, so that nothing is misinterpreted.

use serde_json::Value;

/// Renders a template with the variables `Values`, `Chart` and `Release`.
pub(super) fn render(template: &str, context: &Value) -> String {
    let mut output = String::new();
    // The conditions of the open `if` blocks.
    let mut open: Vec<bool> = Vec::new();
    let mut rest = template;
    while let Some((text, tail)) = rest.split_once("{{") {
        let (trims, tail) = match tail.strip_prefix('-') {
            Some(tail) => (true, tail),
            None => (false, tail),
        };
        if open.iter().all(|holds| *holds) {
            output.push_str(if trims { text.trim_end() } else { text });
        }
        let (action, tail) = cut(tail);
        rest = tail;
        let words: Vec<&str> = action.split_whitespace().collect();
        match words[..] {
            ["if", path] => open.push(is_true(value(context, path))),
            ["if", "not", path] => open.push(!is_true(value(context, path))),
            ["end"] => assert!(open.pop().is_some(), "an end without an if"),
            _ if !open.iter().all(|holds| *holds) => {}
            ["toYaml", path, "|", "nindent", width] => {
                let mut yaml = String::new();
                write_yaml(&mut yaml, value(context, path), width.parse().expect("a number"));
                output.push('\n');
                output.push_str(yaml.trim_end());
            }
            [path, "|", "default", other] => {
                let given = value(context, path);
                output.push_str(&scalar(if is_true(given) { given } else { value(context, other) }));
            }
            _ if action.starts_with('"') => {
                output.push_str(action.strip_prefix('"').and_then(|a| a.strip_suffix('"')).expect("a text"));
            }
            [path] => output.push_str(&scalar(value(context, path))),
            _ => panic!("the chart does not keep to what is rendered here: {{{{{action}}}}}"),
        }
    }
    assert!(open.is_empty(), "an if without an end");
    output.push_str(rest);
    output
}

/// The action up to its closing braces, ignoring braces within a string.
fn cut(tail: &str) -> (&str, &str) {
    let mut quoted = false;
    for (i, c) in tail.char_indices() {
        if c == '"' {
            quoted = !quoted;
        } else if !quoted && tail[i..].starts_with("}}") {
            return (tail[..i].trim(), &tail[i + 2..]);
        }
    }
    panic!("an action without an end: {tail}");
}

fn value<'a>(context: &'a Value, path: &str) -> &'a Value {
    let keys = path.strip_prefix('.').unwrap_or_else(|| panic!("{path} is not a path"));
    context.pointer(&format!("/{}", keys.replace('.', "/"))).unwrap_or_else(|| panic!("no value {path}"))
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) if number.is_u64() => number.to_string(),
        _ => panic!("{value} is neither a text nor a whole number"),
    }
}

/// Truth as in Go's templates.
fn is_true(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(holds) => *holds,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
    }
}

/// Block style, as `toYaml` writes it: the tests also check that the indentation fits its place.
fn write_yaml(output: &mut String, value: &Value, width: usize) {
    let margin = " ".repeat(width);
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                match value {
                    Value::Object(_) | Value::Array(_) => {
                        output.push_str(&format!("{margin}{key}:\n"));
                        let inner = if value.is_array() { width } else { width + 2 };
                        write_yaml(output, value, inner);
                    }
                    scalar => output.push_str(&format!("{margin}{key}: {scalar}\n")),
                }
            }
        }
        Value::Array(items) => {
            for item in items {
                let mut inner = String::new();
                write_yaml(&mut inner, item, width + 2);
                output.push_str(&format!("{margin}- {}\n", inner.trim()));
            }
        }
        scalar => output.push_str(&format!("{margin}{scalar}\n")),
    }
}

#[test]
fn what_is_rendered_is_what_helm_renders() {
    let context = serde_json::json!({"Values": {"a": "x", "n": 2, "none": "", "list": ["p", {"k": "v", "l": 1}], "map": {"b": {"c": true}}, "off": false}});
    for (template, expected) in [
        ("a: {{ .Values.a }}\n", "a: x\n"),
        ("n: {{ .Values.n }}\n", "n: 2\n"),
        ("a: {{ .Values.none | default .Values.a }}\n", "a: x\n"),
        ("{{ \"{{ $labels.x }}\" }}!", "{{ $labels.x }}!"),
        ("l:\n  {{- toYaml .Values.list | nindent 2 }}\nm: 1\n", "l:\n  - \"p\"\n  - k: \"v\"\n    l: 1\nm: 1\n"),
        ("m:\n  {{- toYaml .Values.map | nindent 2 }}\n", "m:\n  b:\n    c: true\n"),
        ("a\n{{- if .Values.off }}\nb\n{{- end }}\nc\n", "a\nc\n"),
        ("a\n{{- if not .Values.off }}\nb\n{{- end }}\nc\n", "a\nb\nc\n"),
    ] {
        assert_eq!(render(template, &context), expected, "{template}");
    }
}
