//! Pods of other clusters.
//!
//! "A remote set is seen as a pod (labels name, namespace, cluster) in a remote namespace (labels cluster, namespace)."
//! Each label exists under every prefix. "A remote namespace matches a namespaceSelector only if that selector names
//! the cluster label key in a way that requires it (matchLabels, In, Exists): `{}`, NotIn and DoesNotExist never reach
//! another cluster."

use std::net::IpAddr;

use serde_json::Value;

use super::json::{NotUnderstood, list, member};
use super::{Remote, World, selector};

/// Whether the address, which no pod of this cluster owns, is that of a remote pod that both selectors match.
pub(super) fn matches(
    world: &World,
    address: IpAddr,
    namespaces: &Value,
    pods: Option<&Value>,
) -> Result<bool, NotUnderstood> {
    let Some(Remote { prefixes, sets }) = &world.remote else { return Ok(false) };
    let requires_cluster = prefixes.iter().any(|prefix| requires(namespaces, &format!("{prefix}/cluster")));
    let mut matched = false;
    for set in sets.iter().filter(|set| set.addresses.contains(&address)) {
        let labels = |pairs: &[(&str, &String)]| -> selector::Labels {
            let of_prefix = |prefix: &String| {
                pairs.iter().map(|(key, value)| (format!("{prefix}/{key}"), (*value).clone())).collect::<Vec<_>>()
            };
            prefixes.iter().flat_map(of_prefix).collect()
        };
        let of_namespace = labels(&[("cluster", &set.cluster), ("namespace", &set.namespace)]);
        let of_pod = labels(&[("cluster", &set.cluster), ("namespace", &set.namespace), ("name", &set.name)]);
        let by_namespace = selector::matches(namespaces, &of_namespace)?;
        let by_pod = match pods {
            None => true,
            Some(wanted) => selector::matches(wanted, &of_pod)?,
        };
        matched |= requires_cluster && by_namespace && by_pod;
    }
    Ok(matched)
}

fn requires(selector: &Value, key: &str) -> bool {
    let by_label = member(selector, "matchLabels").is_some_and(|labels| labels.get(key).is_some());
    let expressions = list(member(selector, "matchExpressions")).unwrap_or(&[]);
    by_label
        || expressions.iter().any(|expression| {
            expression["key"] == key && (expression["operator"] == "In" || expression["operator"] == "Exists")
        })
}
