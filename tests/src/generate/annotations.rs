//! Generated annotations for enforcement or audit of policies.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Value, json};

use super::optional;

const ANNOTATION: &str = "ringfence.io/enforcement";

/// Annotations of a policy: any JSON.
pub(super) fn of_policy() -> BoxedStrategy<Option<Value>> {
    some_of(0.4)
}

/// Annotations of a cluster policy: fewer, since an audited one decides nothing.
pub(super) fn of_cluster_policy() -> BoxedStrategy<Option<Value>> {
    some_of(0.25)
}

fn some_of(share: f64) -> BoxedStrategy<Option<Value>> {
    let strange = select(vec![
        json!({ANNOTATION: "off"}),
        json!({ANNOTATION: "Audit"}),
        json!({ANNOTATION: true}),
        json!({ANNOTATION: null}),
        json!({"other": "thing"}),
        json!("audit"),
        json!([ANNOTATION]),
    ]);
    let plain = select(vec!["audit", "audit", "enforce"]).prop_map(|word| json!({ANNOTATION: word, "other": "thing"}));
    optional(share, prop_oneof![9 => plain, 1 => strange])
}

/// Annotations of a namespace, which the API server stores as strings.
pub(super) fn of_namespace() -> BoxedStrategy<Option<BTreeMap<String, String>>> {
    let word = select(vec!["audit", "audit", "audit", "enforce", "no"]);
    prop::option::weighted(0.25, word.prop_map(|word| BTreeMap::from([(ANNOTATION.into(), word.into())]))).boxed()
}
