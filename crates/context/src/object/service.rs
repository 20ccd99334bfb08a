//! Services: which pods they stand for, and whether the outside reaches them.

use policy::{Interner, Labels, ObjectName};
use serde_json::Value;

use super::reader::Reader;
use super::{Kind, Service};

pub(super) fn lower(name: ObjectName, object: &Value, interner: &mut Interner) -> Service {
    let mut reader = Reader::new(Kind::Service, &name, "the field is ignored");
    let spec = reader.object(&object["spec"], "spec");
    let sort = reader.text(&spec["type"], "spec.type").unwrap_or("ClusterIP");
    let (selects, leads_in) = match sort {
        "ClusterIP" => (true, false),
        "NodePort" | "LoadBalancer" => (true, true),
        // A name for somewhere else; a selector beside it means nothing.
        "ExternalName" => (false, false),
        other => {
            reader.not_understood("spec.type", &format!("unknown type '{}'", other.escape_debug()));
            (true, false)
        }
    };
    let selector = if selects { selector(&spec["selector"], &mut reader, interner) } else { Labels::new() };
    let exposed = leads_in || selects && has_external_addresses(&spec["externalIPs"], &mut reader);
    let problems = reader.problems();
    Service { name, selector, exposed, problems }
}

/// A pair that is not understood would narrow the selector: without it, pods were selected that are not meant.
fn selector(value: &Value, reader: &mut Reader<'_>, interner: &mut Interner) -> Labels {
    let Value::Object(pairs) = reader.object(value, "spec.selector") else { return Labels::new() };
    let mut understood = Vec::with_capacity(pairs.len());
    for (key, value) in pairs {
        match value {
            Value::String(text) => understood.push((key.as_str(), text.as_str())),
            other => {
                reader.expected("a string", other, &format!("spec.selector.{}", key.escape_debug()));
                return Labels::new();
            }
        }
    }
    interner.labels(understood)
}

fn has_external_addresses(value: &Value, reader: &mut Reader<'_>) -> bool {
    match value {
        Value::Null => false,
        Value::Array(addresses) => !addresses.is_empty(),
        other => {
            reader.expected("a list", other, "spec.externalIPs");
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cluster::Watched;
    use serde_json::json;

    use super::*;
    use crate::object::Object;

    fn service(spec: Value) -> Arc<Service> {
        let object = json!({"metadata": {"namespace": "shop", "name": "web"}, "spec": spec});
        let Ok(Object::Service(service)) = Object::lower(&mut Interner::new(), Kind::Service, &object) else {
            panic!("no service")
        };
        service
    }

    fn selected(service: &Service) -> Vec<String> {
        service.selector.iter().map(|(key, value)| format!("{key}={value}")).collect()
    }

    #[test]
    fn what_leads_in_from_outside_is_exposed() {
        let selector = json!({"app": "web"});
        for (spec, exposed) in [
            (json!({"selector": selector}), false),
            (json!({"selector": selector, "type": "ClusterIP", "externalIPs": []}), false),
            (json!({"selector": selector, "type": "ClusterIP", "externalIPs": ["203.0.113.5"]}), true),
            (json!({"selector": selector, "type": "NodePort"}), true),
            (json!({"selector": selector, "type": "LoadBalancer"}), true),
        ] {
            let service = service(spec.clone());
            assert_eq!((service.exposed, selected(&service)), (exposed, vec!["app=web".to_owned()]), "{spec}");
            assert!(service.problems.is_empty(), "{spec}");
        }
    }

    #[test]
    fn a_name_for_somewhere_else_stands_for_no_pods() {
        let service =
            service(json!({"selector": {"app": "web"}, "type": "ExternalName", "externalIPs": ["203.0.113.5"]}));
        assert_eq!((service.exposed, service.selector.is_empty(), service.problems.len()), (false, true, 0));
    }

    #[test]
    fn a_selector_that_is_not_understood_selects_nothing_and_is_a_problem() {
        for selector in [json!("app=web"), json!([]), json!({"app": 7, "tier": "front"}), json!({"app": null})] {
            let service = service(json!({"selector": selector, "type": "LoadBalancer"}));
            assert!(service.exposed && service.selector.is_empty(), "{selector}");
            assert_eq!(service.problems.len(), 1, "{selector}");
            assert!(service.problems[0].origin.starts_with("Service shop/web spec.selector"), "{selector}");
        }
    }

    #[test]
    fn what_is_understood_beside_a_mistake_counts() {
        let service = service(json!({"selector": {"app": "web"}, "type": "Teleport", "externalIPs": "203.0.113.5"}));
        assert_eq!((service.exposed, selected(&service), service.problems.len()), (false, vec!["app=web".into()], 2));
    }
}
