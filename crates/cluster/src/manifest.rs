//! Parses the text of a manifest into documents: one object each, with the line where it begins.
//!
//! Lists are split here, as `kubectl get -o yaml` and the API server write them. This module does not depend on the
//! meaning of objects. Any text may be passed: the result is documents or an error, within limits.

mod tree;

use serde_json::{Map, Value};
use serde_saphyr::options::NonFiniteFloatPolicy;
use serde_saphyr::{Options, Spanned, UserMessageFormatter};

use tree::{Items, Tree};

/// Limit of the size of a file; larger files are refused unread. Room for a dump of some ten thousand pods; larger
/// dumps have to be split.
pub const FILE_BYTES: usize = 64 << 20;

/// Limit of the depth of a document. The deepest CustomResourceDefinitions, often found in such folders, have half of
/// it.
const DEPTH: usize = 96;

/// Limit of the scalars, lists and maps in a file. A pod in a dump has some 250, so real files reach the size limit
/// first; files with more are made to exhaust memory.
const NODES: usize = 6_000_000;

/// Limit of the nodes that aliases add to a file. People write a handful; alias bombs consist of them.
const ALIASED_EVENTS: usize = 100_000;

/// The kinds with typed lists, such as `kind: PodList`.
const LISTED: [&str; 14] = [
    "Namespace",
    "Pod",
    "NetworkPolicy",
    "Node",
    "ClusterNetworkPolicy",
    "Service",
    "EndpointSlice",
    "Ingress",
    "Gateway",
    "HTTPRoute",
    "GRPCRoute",
    "TLSRoute",
    "TCPRoute",
    "UDPRoute",
];

/// An object, or the invalid value in its place.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// First line, one-based.
    pub line: usize,
    pub value: Value,
}

/// Why a text is not valid YAML, or exceeds a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {reason}")]
pub struct ParseError {
    /// One-based.
    pub line: usize,
    /// One-based.
    pub column: usize,
    pub reason: String,
}

/// Parses YAML or JSON with one or many documents. Empty documents are skipped.
///
/// Ambiguous YAML is read so that it can only deny: a number that JSON cannot represent is its text; `0755` and
/// `1_000`, on which parsers disagree, are text; a tag or a key that JSON cannot represent is an error, as is a
/// duplicate key. `yes` and `on` are true, as for kubectl.
pub fn parse(text: &str) -> Result<Vec<Document>, ParseError> {
    if text.len() > FILE_BYTES {
        let reason = format!("larger than {} MiB", FILE_BYTES >> 20);
        return Err(ParseError { line: 1, column: 1, reason });
    }
    let documents: Vec<Spanned<Tree>> = serde_saphyr::from_multiple_with_options(text, options()).map_err(explain)?;
    let mut objects = Vec::new();
    for document in documents {
        let line = line_of(&document);
        match document.value {
            Tree::Map { fields, items: None } => push(&mut objects, line, Value::Object(fields)),
            Tree::Map { fields, items: Some(items) } => match (list_of(&fields), items) {
                (Some(item_type), Items::Sequence(items)) => {
                    for item in items {
                        push(&mut objects, line_of(&item), item_type.apply(item.value));
                    }
                }
                (_, items) => {
                    let mut fields = fields;
                    fields.insert("items".into(), items.into_value());
                    objects.push(Document { line, value: Value::Object(fields) });
                }
            },
            Tree::Other(value) => objects.push(Document { line, value }),
        }
    }
    Ok(objects)
}

/// Adds an object, or the items of a list, recursively. The recursion is limited by the depth of the text.
fn push(objects: &mut Vec<Document>, line: usize, value: Value) {
    let Value::Object(mut fields) = value else {
        objects.push(Document { line, value });
        return;
    };
    match (list_of(&fields), fields.get_mut("items").map(Value::take)) {
        (Some(item_type), Some(Value::Array(items))) => {
            items.into_iter().for_each(|item| push(objects, line, item_type.apply(item)));
        }
        (_, items) => {
            if let Some(items) = items {
                fields.insert("items".into(), items);
            }
            objects.push(Document { line, value: Value::Object(fields) });
        }
    }
}

/// Kind and version of list items that lack them, as in responses of the API server.
#[derive(Clone)]
struct ItemType {
    kind: Option<&'static str>,
    api_version: Option<Value>,
}

impl ItemType {
    fn apply(&self, mut item: Value) -> Value {
        if let (Value::Object(fields), Some(kind)) = (&mut item, self.kind)
            && !fields.contains_key("kind")
        {
            fields.insert("kind".into(), kind.into());
            if let Some(version) = &self.api_version {
                fields.entry("apiVersion").or_insert_with(|| version.clone());
            }
        }
        item
    }
}

fn list_of(fields: &Map<String, Value>) -> Option<ItemType> {
    let kind = match fields.get("kind")?.as_str()?.strip_suffix("List")? {
        "" => None,
        item => Some(*LISTED.iter().find(|kind| **kind == item)?),
    };
    Some(ItemType { kind, api_version: fields.get("apiVersion").cloned() })
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: DEPTH,
            flow_nesting_limit: DEPTH,
            max_nodes: NODES,
            max_events: 2 * NODES,
            max_documents: NODES,
            max_total_scalar_bytes: FILE_BYTES,
            max_recorded_anchor_events: ALIASED_EVENTS,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: ALIASED_EVENTS },
        non_finite_float_policy: NonFiniteFloatPolicy::AsString,
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn line_of<T>(node: &Spanned<T>) -> usize {
    position(node.referenced.line())
}

/// The parser counts in 64 bits, and reports zero for some errors at the very beginning.
fn position(count: u64) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX).max(1)
}

fn explain(error: serde_saphyr::Error) -> ParseError {
    let (line, column) =
        error.location().map_or((1, 1), |location| (position(location.line()), position(location.column())));
    let rendered = error.render_with_formatter(&UserMessageFormatter);
    let reason = match rendered.rsplit_once(" at line ") {
        Some((reason, _)) => reason.to_owned(),
        None => rendered,
    };
    ParseError { line, column, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn lines_and_names(text: &str) -> Vec<(usize, String)> {
        let name = |d: Document| (d.line, d.value["metadata"]["name"].as_str().unwrap_or("?").to_owned());
        parse(text).unwrap().into_iter().map(name).collect()
    }

    fn error(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn documents_have_line_and_empty_ones_are_skipped() {
        let text = "# head\nmetadata: {name: a}\n---\n---\n# only a comment\n---\n\nmetadata:\n  name: b\n...\n";
        assert_eq!(lines_and_names(text), [(2, "a".into()), (8, "b".into())]);
        assert!(parse("").unwrap().is_empty());
    }

    #[test]
    fn list_items_have_line_kind_and_api_version() {
        let text = "apiVersion: v1\nitems:\n- metadata: {name: a}\n- metadata:\n    name: b\nkind: PodList\n";
        assert_eq!(lines_and_names(text), [(3, "a".into()), (4, "b".into())]);
        let first = &parse(text).unwrap()[0].value;
        assert_eq!((&first["kind"], &first["apiVersion"]), (&json!("Pod"), &json!("v1")));
    }

    #[test]
    fn nested_lists_are_flattened() {
        let text = "kind: List\nitems:\n- kind: List\n  items: [{metadata: {name: a}}, {metadata: {name: b}}]\n";
        assert_eq!(lines_and_names(text), [(3, "a".into()), (3, "b".into())]);
    }

    #[test]
    fn items_of_other_kinds_are_not_flattened() {
        let documents = parse("kind: Basket\nitems: [1]\n---\nkind: List\nitems: none\n").unwrap();
        assert_eq!(documents[0].value["items"], json!([1]));
        assert_eq!(documents[1].value["items"], json!("none"));
    }

    #[test]
    fn json_is_read_with_tabs_and_all() {
        let text = "{\n\t\"metadata\": {\n\t\t\"name\": \"a\"\n\t}\n}\n";
        assert_eq!(lines_and_names(text), [(1, "a".into())]);
    }

    #[test]
    fn ambiguous_yaml_scalars_do_not_become_other_values() {
        let value = &parse("a: .nan\nb: 0755\nc: 1_000\nd: 1e999\ne: yes").unwrap()[0].value;
        assert_eq!(*value, json!({"a": ".nan", "b": "0755", "c": "1_000", "d": ".inf", "e": true}));
    }

    #[test]
    fn parse_errors_have_line_column_and_reason() {
        assert_eq!(error("a: 1\nb: c: d\n"), "line 2, column 5: mapping values are not allowed in this context");
        assert_eq!(error("a: 1\na: 2\n"), "line 2, column 1: duplicate mapping key `a` is not allowed here");
        assert!(error("a: !secret b").starts_with("line 1, column "));
        assert!(error("? [1, 2]\n: c\n").starts_with("line 1, column "));
    }

    #[test]
    fn bombs_are_errors() {
        let mut laughs = "a: &a [x, x]\n".to_owned();
        for (before, name) in ('a'..='y').zip('b'..) {
            laughs += &format!("{name}: &{name} [{}]\n", vec![format!("*{before}"); 10].join(", "));
        }
        for text in [laughs, "[".repeat(1 << 16), "- ".repeat(1 << 16), "{a: ".repeat(1 << 16), "? ".repeat(1 << 16)] {
            parse(&text).unwrap_err();
        }
    }

    #[test]
    fn a_file_that_is_too_large_is_refused() {
        assert_eq!(error(&" ".repeat(FILE_BYTES + 1)), "line 1, column 1: larger than 64 MiB");
    }
}
