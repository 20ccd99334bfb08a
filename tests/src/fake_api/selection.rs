//! What a request with a `labelSelector` is about, and what a watch with one is told.

use serde_json::Value;

use super::store::event;

/// Keys that a label must have. The fake knows no other selectors.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Selection(Vec<String>);

impl Selection {
    /// # Panics
    /// If it is more than keys and commas.
    pub(crate) fn of(selector: Option<&String>) -> Selection {
        let keys: Vec<String> = selector.into_iter().flat_map(|text| text.split(',')).map(str::to_owned).collect();
        assert!(keys.iter().all(|key| !key.contains(['=', '!', '(', ' '])), "the fake does not know {keys:?}");
        Selection(keys)
    }

    pub(crate) fn is_all(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, labels: &Value) -> bool {
        self.0.iter().all(|key| labels[key].is_string())
    }

    /// A line as this watch gets it: an object that begins to match is new to it, and one that matches no longer is
    /// deleted. None if it is not told.
    pub(crate) fn told(&self, before: &Value, line: Vec<u8>) -> Option<Vec<u8>> {
        if self.is_all() {
            return Some(line);
        }
        let told: Value = serde_json::from_slice(&line).expect("a line of ours");
        let is_gone = told["type"] == "DELETED";
        let matches = !is_gone && self.matches(&told["object"]["metadata"]["labels"]);
        match (self.matches(before), matches) {
            (false, false) => None,
            (false, true) => Some(event("ADDED", &told["object"])),
            (true, true) => Some(line),
            (true, false) => Some(event("DELETED", &told["object"])),
        }
    }
}
