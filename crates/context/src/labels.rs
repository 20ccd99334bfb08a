//! Selects the labels of a record: without those that differ between pods or rollouts, and those that exceed the size
//! limits.

use std::sync::Arc;

use ::identity::CHURN;
use policy::Labels;

/// Limit of a value. The API allows 63 bytes, but manifests may contain anything, and every consumer receives the
/// records.
pub const LONGEST_VALUE_BYTES: usize = 256;
/// Limit of a key, as in the API: a domain, a slash and a name.
pub const LONGEST_KEY_BYTES: usize = 317;
/// Limit of all labels of a record, keys and values: some 500 labels of usual size.
pub const MOST_BYTES: usize = 16 << 10;

/// The labels that describe a pod, in order, and whether a record has room for each.
fn with_room(labels: &Labels) -> impl Iterator<Item = (&Arc<str>, &Arc<str>, bool)> {
    let mut left = MOST_BYTES;
    labels.iter().filter(|(key, _)| !CHURN.contains(&&***key)).map(move |(key, value)| {
        let fits = key.len() <= LONGEST_KEY_BYTES && value.len() <= LONGEST_VALUE_BYTES;
        let rest = left.checked_sub(key.len() + value.len()).filter(|_| fits);
        left = rest.unwrap_or(left);
        (key, value, rest.is_some())
    })
}

/// The labels of a pod that fit into its record.
pub(crate) fn bounded(labels: &Labels) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
    with_room(labels).filter(|(_, _, has_room)| *has_room).map(|(key, value, _)| (key, value))
}

/// Keys of the labels that are omitted because of their size.
pub(crate) fn too_long(labels: &Labels) -> impl Iterator<Item = &Arc<str>> {
    with_room(labels).filter(|(_, _, has_room)| !has_room).map(|(key, _, _)| key)
}

#[cfg(test)]
mod tests {
    use crate::testing::labels;

    use super::*;

    fn carried(labels: &Labels) -> Labels {
        bounded(labels).map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    #[test]
    fn record_omits_churn_labels() {
        let mut all: Vec<(&str, &str)> = CHURN.iter().map(|key| (*key, "x")).collect();
        let kept = [("app", "web"), ("app.kubernetes.io/name", "web"), ("job-name-of-mine", "x"), ("tier", "")];
        all.extend(kept);
        assert_eq!(carried(&labels(&all)), labels(&kept));
        assert_eq!(too_long(&labels(&all)).count(), 0);
    }

    #[test]
    fn too_long_labels_are_omitted_and_reported() {
        let long = "x".repeat(LONGEST_VALUE_BYTES + 1);
        let (fits, long_key) = (&long[1..], "k".repeat(LONGEST_KEY_BYTES + 1));
        let all = labels(&[("a", fits), ("b", long.as_str()), ("job-name", long.as_str()), (long_key.as_str(), "x")]);
        assert_eq!(carried(&all), labels(&[("a", fits)]));
        assert_eq!(too_long(&all).map(|key| &**key).collect::<Vec<_>>(), ["b", long_key.as_str()]);
    }

    #[test]
    fn last_labels_over_record_size_are_omitted() {
        let value = "x".repeat(LONGEST_VALUE_BYTES - 4);
        let fit = MOST_BYTES / LONGEST_VALUE_BYTES;
        let keys: Vec<String> = (0..fit + 2).map(|number| format!("k{number:03}")).collect();
        let all = labels(&keys.iter().map(|key| (key.as_str(), value.as_str())).collect::<Vec<_>>());
        let kept = carried(&all);
        assert!(kept.keys().map(|key| &**key).eq(keys[..fit].iter().map(String::as_str)));
        assert_eq!(too_long(&all).map(|key| &**key).collect::<Vec<_>>(), keys[fit..]);
    }
}
