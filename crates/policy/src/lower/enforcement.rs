//! Lowers the annotation that selects whether policies are enforced or audited.
//!
//! Only a valid annotation disables enforcement: any other value enforces, and is reported.

use serde_json::Value;

use super::FieldError;
use super::json::{JsonObject, field, join, object, text};
use crate::{ENFORCEMENT_ANNOTATION as ANNOTATION, Enforcement};

/// `None` without an annotation.
pub(super) fn lower(metadata: &Value) -> Result<Option<Enforcement>, FieldError> {
    const PATH: &str = "metadata.annotations";
    let annotations: Option<&JsonObject> = match metadata.get("annotations").filter(|v| !v.is_null()) {
        None => None,
        Some(value) => Some(object(value, PATH)?),
    };
    let Some(value) = annotations.and_then(|a| field(a, ANNOTATION)) else { return Ok(None) };
    let path = join(PATH, ANNOTATION);
    match text(value, &path)? {
        "enforce" => Ok(Some(Enforcement::Enforce)),
        "audit" => Ok(Some(Enforcement::Audit)),
        other => Err(FieldError::new(path, format!("invalid value '{other}': expected 'audit' or 'enforce'"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Change, ClusterState, Kind, Object, ObjectName, Severity};

    const NOTHING: Value = Value::Null;

    fn policy(metadata: Value) -> Value {
        let mut policy = json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": "policy"},
            "spec": {"podSelector": {}},
        });
        policy["metadata"]["annotations"] = metadata;
        policy
    }

    fn namespace(annotations: Value) -> Value {
        json!({"metadata": {"name": "shop", "annotations": annotations}})
    }

    fn says(enforcement: &str) -> Value {
        json!({"other": "thing", ANNOTATION: enforcement})
    }

    /// The enforcement of the policy, and the reported problems. A null namespace is unknown.
    fn enforcement(policy: Value, namespace: Value, default: Enforcement) -> (Enforcement, Vec<String>) {
        let mut state = ClusterState::new();
        state.set_default_enforcement(default);
        let objects = [(Kind::NetworkPolicy, policy), (Kind::Namespace, namespace)];
        for (kind, object) in objects.into_iter().filter(|(_, object)| !object.is_null()) {
            state.apply(Change::Set(crate::lower(kind, &object).unwrap()));
        }
        let problems = state.problems();
        assert!(problems.iter().all(|problem| problem.severity == Severity::Error));
        let policy = state.policy(&ObjectName::new("shop", "policy")).unwrap();
        (state.enforcement(policy), problems.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn enforcement_follows_policy_then_namespace_then_default() {
        use Enforcement::{Audit, Enforce};
        for (policy_says, namespace_object, default, expected) in [
            (NOTHING, NOTHING, Enforce, Enforce),
            (NOTHING, NOTHING, Audit, Audit),
            (NOTHING, namespace(NOTHING), Audit, Audit),
            (NOTHING, namespace(json!({"other": "thing"})), Enforce, Enforce),
            (NOTHING, namespace(json!({ANNOTATION: null})), Audit, Audit),
            (NOTHING, namespace(says("audit")), Enforce, Audit),
            (NOTHING, namespace(says("enforce")), Audit, Enforce),
            (says("audit"), NOTHING, Enforce, Audit),
            (says("audit"), namespace(says("enforce")), Enforce, Audit),
            (says("enforce"), namespace(says("audit")), Audit, Enforce),
        ] {
            let shown = format!("{policy_says} {namespace_object} {default:?}");
            let found = enforcement(policy(policy_says), namespace_object, default);
            assert_eq!(found, (expected, vec![]), "{shown}");
        }
    }

    #[test]
    fn invalid_enforcement_value_enforces_and_is_reported() {
        let wrong = [json!({ANNOTATION: "off"}), json!({ANNOTATION: "Audit"}), json!({ANNOTATION: ""})];
        for annotations in wrong.into_iter().chain([json!({ANNOTATION: true}), json!("audit"), json!(["audit"])]) {
            let of_policy = enforcement(policy(annotations.clone()), namespace(says("audit")), Enforcement::Audit);
            assert_eq!((of_policy.0, of_policy.1.len()), (Enforcement::Enforce, 1), "{annotations}");
            let of_namespace = enforcement(policy(NOTHING), namespace(annotations.clone()), Enforcement::Audit);
            assert_eq!((of_namespace.0, of_namespace.1.len()), (Enforcement::Enforce, 1), "{annotations}");
            // The policy's own annotation takes precedence.
            let both = enforcement(policy(says("audit")), namespace(annotations), Enforcement::Enforce);
            assert_eq!((both.0, both.1.len()), (Enforcement::Audit, 1));
        }
        let (_, forged) = enforcement(policy(says("no\nINFO all is well\x1b[2J")), NOTHING, Enforcement::Audit);
        assert!(forged[0].contains("'no?INFO all is well?[2J'"), "{forged:?}");
        let (_, reported) = enforcement(policy(says("dry-run")), NOTHING, Enforcement::Audit);
        assert_eq!(
            reported,
            ["NetworkPolicy shop/policy metadata.annotations.ringfence.io/enforcement: invalid value 'dry-run': \
                 expected 'audit' \
                 or 'enforce'; the policy is enforced"]
        );
    }

    #[test]
    fn invalid_policy_keeps_audit_annotation() {
        let mut broken = policy(says("audit"));
        broken["spec"] = json!("nothing");
        let Object::Policy(lowered) = crate::lower(Kind::NetworkPolicy, &broken).unwrap() else { unreachable!() };
        assert_eq!(lowered.enforcement, Some(Enforcement::Audit));
        assert_eq!(lowered.ingress, Some(vec![]));
    }

    #[test]
    fn invalid_namespace_labels_keep_its_enforcement_annotation() {
        let mut object = namespace(says("audit"));
        object["metadata"]["labels"] = json!({"team": 7});
        let Object::Namespace(lowered) = crate::lower(Kind::Namespace, &object).unwrap() else { unreachable!() };
        assert!(lowered.unreadable);
        assert_eq!((lowered.enforcement, lowered.problems.len()), (Some(Enforcement::Audit), 1));
    }
}
