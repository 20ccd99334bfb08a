//! Label and field selectors of requests, and the events that a watch with a selector gets.

use std::collections::BTreeMap;

use serde_json::Value;

use super::store::event;

/// The supported selectors: label keys that must exist, a namespace, and the name of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Selection {
    keys: Vec<String>,
    namespace: Option<String>,
    name: Option<String>,
}

impl Selection {
    /// # Panics
    /// If the label selector is more than keys and commas, or the field selector has a field other than the name.
    pub(crate) fn of(namespace: Option<&str>, query: &BTreeMap<String, String>) -> Selection {
        let keys = query.get("labelSelector").into_iter().flat_map(|text| text.split(','));
        let keys: Vec<String> = keys.map(str::to_owned).collect();
        assert!(keys.iter().all(|key| !key.contains(['=', '!', '(', ' '])), "the fake does not know {keys:?}");
        let name = query.get("fieldSelector").map(|text| {
            text.strip_prefix("metadata.name=").unwrap_or_else(|| panic!("the fake does not know {text}")).to_owned()
        });
        Selection { keys, namespace: namespace.map(str::to_owned), name }
    }

    pub(crate) fn is_all(&self) -> bool {
        *self == Selection::default()
    }

    pub(crate) fn matches(&self, object: &Value) -> bool {
        self.names(object) && self.has_keys(&object["metadata"]["labels"])
    }

    fn names(&self, object: &Value) -> bool {
        let metadata = &object["metadata"];
        let is = |wanted: &Option<String>, field: &str| wanted.as_ref().is_none_or(|text| metadata[field] == **text);
        is(&self.namespace, "namespace") && is(&self.name, "name")
    }

    fn has_keys(&self, labels: &Value) -> bool {
        self.keys.iter().all(|key| labels[key].is_string())
    }

    /// The event for a watch with this selector: an object that starts to match is ADDED, one that stops matching is
    /// DELETED. `None` if the watch gets no event. `before` holds the object's previous labels.
    pub(crate) fn selected(&self, before: &Value, line: Vec<u8>) -> Option<Vec<u8>> {
        if self.is_all() {
            return Some(line);
        }
        let sent: Value = serde_json::from_slice(&line).expect("a line of ours");
        if !self.names(&sent["object"]) {
            return None;
        }
        if self.keys.is_empty() {
            return Some(line);
        }
        let is_gone = sent["type"] == "DELETED";
        let matches = !is_gone && self.has_keys(&sent["object"]["metadata"]["labels"]);
        match (self.has_keys(before), matches) {
            (false, false) => None,
            (false, true) => Some(event("ADDED", &sent["object"])),
            (true, true) => Some(line),
            (true, false) => Some(event("DELETED", &sent["object"])),
        }
    }
}
