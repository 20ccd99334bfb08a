//! Owner references: which controller a pod belongs to.
//!
//! An owner only names a pod. So an invalid reference neither denies anything nor makes the pod unreadable: the pod has
//! no owner, and callers that report names report the [`OwnerReading::invalid`] parts.

use serde_json::Value;

use super::FieldError;
use super::json::{boolean, list, object, text};

/// Longest accepted kind or name of an owner. The API limits names of objects to 253 bytes, but does not check owner
/// references, which anyone who may create a pod can set.
pub const LONGEST_OWNER_BYTES: usize = 256;

const PATH: &str = "metadata.ownerReferences";

/// The parts of an owner reference that name the controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OwnerReference<'a> {
    /// At most [`LONGEST_OWNER_BYTES`]; `ReplicaSet`, `Job`, `Node` and so on.
    pub kind: &'a str,
    /// At most [`LONGEST_OWNER_BYTES`].
    pub name: &'a str,
}

/// The controller of an object, and what is invalid in its references.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OwnerReading<'a> {
    /// The first reference with `controller: true`; `None` if there is none, or if it is invalid.
    pub owner: Option<OwnerReference<'a>>,
    /// Path and reason of each invalid part.
    pub invalid: Vec<(String, String)>,
}

/// Reads `ownerReferences` of an object's metadata.
pub fn read_owner(metadata: &Value) -> OwnerReading<'_> {
    let mut reading = OwnerReading::default();
    let references = &metadata["ownerReferences"];
    if references.is_null() {
        return reading;
    }
    let references = match list(references, PATH) {
        Ok(references) => references,
        Err(error) => {
            reading.record(error);
            return reading;
        }
    };
    for (index, reference) in references.iter().enumerate() {
        match controller(reference, &format!("{PATH}[{index}]")) {
            // Of two controllers, which the API does not allow, the first is used.
            Ok(Some(owner)) => reading.owner = reading.owner.or(Some(owner)),
            Ok(None) => {}
            Err(error) => reading.record(error),
        }
    }
    reading
}

impl OwnerReading<'_> {
    fn record(&mut self, error: FieldError) {
        self.invalid.push((error.field, error.reason));
    }
}

/// The reference, if it is the controller's.
fn controller<'a>(reference: &'a Value, path: &str) -> Result<Option<OwnerReference<'a>>, FieldError> {
    object(reference, path)?;
    let controls = match &reference["controller"] {
        Value::Null => false,
        value => boolean(value, &format!("{path}.controller"))?,
    };
    if !controls {
        return Ok(None);
    }
    let part = |field: &str| name(&reference[field], &format!("{path}.{field}"));
    Ok(Some(OwnerReference { kind: part("kind")?, name: part("name")? }))
}

fn name<'a>(value: &'a Value, path: &str) -> Result<&'a str, FieldError> {
    if value.is_null() {
        return Err(FieldError::new(path, "missing"));
    }
    match text(value, path)? {
        "" => Err(FieldError::new(path, "empty")),
        text if text.len() > LONGEST_OWNER_BYTES => {
            Err(FieldError::new(path, format!("longer than {LONGEST_OWNER_BYTES} bytes")))
        }
        text => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Change, ClusterState, Kind, Object, lower};

    fn owner(references: &Value) -> (Option<(String, String)>, Vec<String>) {
        let metadata = json!({"ownerReferences": references});
        let OwnerReading { owner, invalid } = read_owner(&metadata);
        let owner = owner.map(|OwnerReference { kind, name }| (kind.to_owned(), name.to_owned()));
        (owner, invalid.into_iter().map(|(field, reason)| format!("{field}: {reason}")).collect())
    }

    fn pod(references: &Value) -> Object {
        let metadata = json!({"namespace": "shop", "name": "web-0", "ownerReferences": references});
        let status = json!({"podIPs": [{"ip": "10.0.0.1"}]});
        lower(Kind::Pod, &json!({"metadata": metadata, "spec": {"nodeName": "a"}, "status": status})).unwrap()
    }

    #[test]
    fn owner_is_the_reference_that_controls() {
        let references = json!([
            {"kind": "Team", "name": "x"},
            {"kind": "Team", "name": "y", "controller": false},
            {"kind": "Team", "name": "z", "controller": null},
            {"kind": "ReplicaSet", "name": "web-5d9", "controller": true},
            {"kind": "ReplicaSet", "name": "other", "controller": true},
        ]);
        assert_eq!(owner(&references), (Some(("ReplicaSet".into(), "web-5d9".into())), vec![]));
        assert_eq!(owner(&json!([{"kind": "Team", "name": "x"}])), (None, vec![]));
        assert_eq!(owner(&Value::Null), (None, vec![]));
    }

    #[test]
    fn malformed_owner_is_none_and_named() {
        let long = "x".repeat(LONGEST_OWNER_BYTES + 1);
        for (references, expected) in [
            (json!("x"), ": expected a list, found a string"),
            (json!([7]), "[0]: expected an object, found a number"),
            (json!([{"kind": "ReplicaSet", "controller": true}]), "[0].name: missing"),
            (json!([{"kind": "ReplicaSet", "name": "", "controller": true}]), "[0].name: empty"),
            (json!([{"kind": 7, "name": "x", "controller": true}]), "[0].kind: expected a string, found a number"),
            (json!([{"kind": "x", "name": long, "controller": true}]), "[0].name: longer than 256 bytes"),
            (
                json!([{"kind": "x", "name": "x", "controller": "true"}]),
                "[0].controller: expected true or false, found a string",
            ),
        ] {
            assert_eq!(owner(&references), (None, vec![format!("{PATH}{expected}")]), "{references}");
        }
    }

    #[test]
    fn malformed_owner_leaves_the_pod_readable() {
        for references in [json!("x"), json!([7]), json!([{"controller": true}]), json!([{"controller": "true"}])] {
            let Object::Pod(pod) = pod(&references) else { panic!("no pod") };
            assert!(!pod.unreadable && pod.problems.is_empty() && pod.owner.is_none(), "{references}");
        }
    }

    #[test]
    fn changed_owner_alone_concerns_no_rule() {
        let owned = |name: &str| pod(&json!([{"kind": "ReplicaSet", "name": name, "controller": true}]));
        let mut state = ClusterState::new();
        assert!(state.apply(Change::Set(owned("web"))).any());
        assert!(!state.apply(Change::Set(owned("api"))).any());
        assert!(!state.apply(Change::Set(pod(&Value::Null))).any());
        assert!(!state.apply(Change::Set(owned("api"))).any());
        let mut fresh = ClusterState::new();
        fresh.apply(Change::Set(owned("api")));
        assert_eq!(state, fresh);
        let known = state.pods().next().unwrap();
        assert_eq!(known.owner.as_ref().map(|owner| &*owner.name), Some("api"));
        // Also found by address.
        assert_eq!(state.owner("10.0.0.1".parse().unwrap()).map(|pod| pod.owner.clone()), Some(known.owner.clone()));
    }
}
