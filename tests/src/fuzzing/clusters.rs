//! Fuzzes the parser of the clusters file.

use std::collections::BTreeSet;

use context::remote::config::parse_clusters;
use context::remote::limits::ClusterLimits;
use policy::ObjectName;

/// Bytes as a clusters file. An accepted file names each cluster once and stays within its limits; an error is one
/// line.
///
/// # Panics
/// If that does not hold.
pub fn clusters(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let clusters = match parse_clusters(text) {
        Ok(clusters) => clusters,
        Err(error) => {
            assert!(!error.trim().is_empty() && error.lines().count() == 1, "{error:?}");
            return;
        }
    };
    let names: BTreeSet<&str> = clusters.iter().map(|cluster| &*cluster.name).collect();
    assert_eq!(names.len(), clusters.len(), "a name stands twice");
    for cluster in &clusters {
        let prefixes: BTreeSet<_> = cluster.prefixes.iter().collect();
        assert!(!prefixes.is_empty() && prefixes.len() == cluster.prefixes.len(), "{cluster:?}");
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!((1..=63).contains(&cluster.name.len()) && cluster.name.chars().all(is_name), "{cluster:?}");
        let rules = &cluster.rules;
        let is_limited =
            rules.limits.0.fits(ClusterLimits::MAX) && rules.limits.0.sets > 0 && rules.limits.0.addresses > 0;
        assert!(is_limited && rules.limits.0.label_bytes > 0, "{cluster:?}");
        // Patterns are matched against names that others choose.
        for (namespace, name) in
            [("shop", "web-1"), ("", ""), ("a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a", "aaaaaaaaaaaaaaaaaaab")]
        {
            let accepts = rules.accepts(&ObjectName::new(namespace, name));
            assert!(accepts || rules.accept.is_some(), "{cluster:?}");
        }
    }
    assert_eq!(parse_clusters(text), Ok(clusters), "the same text twice");
}
