//! Parses the server's JSON without the fields that lowering does not read.
//!
//! A pod is several kilobytes of text, of which enforcement reads a few hundred bytes: the rest is skipped without
//! allocation. Kept fields are not interpreted and may have any type, so that lowering finds the same errors in them as
//! in the whole object; skipped fields cannot make an object unreadable.

use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::Keep;

use Keep::{All, Each, Only, Whole};

/// Parses the kept fields of an object. Public for the tests of what a schema omits.
pub fn read_lean(keep: Keep, text: &str) -> serde_json::Result<Value> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = keep.deserialize(&mut deserializer)?;
    deserializer.end()?;
    match value {
        Value::Object(_) => Ok(value),
        _ => Err(serde_json::Error::custom("not an object")),
    }
}

impl<'de> DeserializeSeed<'de> for Keep {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        match self {
            Whole => Value::deserialize(deserializer),
            Only(_) | All(_) | Each(_) => deserializer.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Keep {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        match self {
            Only(known) => {
                while let Some(field) = access.next_key_seed(KnownFields(known))? {
                    match field {
                        Some((name, keep)) => {
                            fields.insert((*name).to_owned(), access.next_value_seed(*keep)?);
                        }
                        None => {
                            access.next_value::<IgnoredAny>()?;
                        }
                    }
                }
            }
            All(known) => {
                while let Some(name) = access.next_key::<String>()? {
                    let keep = known.iter().find(|(of, _)| *of == name).map_or(Whole, |(_, keep)| *keep);
                    fields.insert(name, access.next_value_seed(keep)?);
                }
            }
            Whole | Each(_) => {
                while let Some((name, value)) = access.next_entry()? {
                    fields.insert(name, value);
                }
            }
        }
        Ok(Value::Object(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let keep = match self {
            Each(keep) => *keep,
            Whole | Only(_) | All(_) => Whole,
        };
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(keep)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }
}

/// A field name, matched against this list without being copied.
struct KnownFields(&'static [(&'static str, Keep)]);

impl<'de> DeserializeSeed<'de> for KnownFields {
    type Value = Option<&'static (&'static str, Keep)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for KnownFields {
    type Value = Option<&'static (&'static str, Keep)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a field")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.0.iter().find(|(known, _)| *known == name))
    }
}

#[cfg(test)]
mod tests {
    use policy::{Kind, Object};
    use serde_json::json;

    use super::*;
    use crate::Watchable;

    fn read(kind: Kind, text: &str) -> serde_json::Result<Value> {
        read_lean(Object::resource(kind).keep, text)
    }

    /// An object as the server sends it, with all fields that lowering reads and many that it does not.
    fn whole(kind: Kind) -> Value {
        let metadata = json!({
            "name": "web", "namespace": "shop", "uid": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "resourceVersion": "7",
            "labels": {"app": "web", "tier": "front"}, "generateName": "we", "generation": 3,
            "annotations": {"kubernetes.io/config.mirror": "hash", "ringfence.io/enforcement": "audit", "other": "{}"},
            "deletionTimestamp": "2026-01-02T03:04:06Z", "creationTimestamp": "2026-01-02T03:04:05Z",
            "ownerReferences": [
                {"kind": "Team", "name": "a", "uid": "1"},
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": true},
            ],
            "managedFields": [{"fieldsV1": {"f:spec": {}}}],
        });
        match kind {
            Kind::Namespace => json!({"metadata": metadata, "spec": {"finalizers": []}, "status": {"phase": "Active"}}),
            Kind::Pod => json!({
                "metadata": metadata,
                "spec": {
                    "nodeName": "node-a", "hostNetwork": false, "volumes": [{"name": "data", "emptyDir": {}}],
                    "containers": [{
                        "name": "main", "env": [{"name": "A", "value": "1"}],
                        "ports": [{"name": "http", "containerPort": 80, "protocol": "TCP", "hostPort": 8080}],
                    }],
                    "initContainers": [
                        {"name": "mesh", "restartPolicy": "Always", "ports": [{"name": "admin", "containerPort": 15000}]},
                        {"name": "once", "ports": [{"name": "never", "containerPort": 1}]},
                    ],
                },
                "status": {
                    "phase": "Running", "podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}],
                    "startTime": "2026-01-02T03:04:05Z", "hostIP": "10.9.0.1", "conditions": [{"type": "Ready"}],
                },
            }),
            Kind::Node => json!({
                "metadata": {
                    "name": "node-a", "resourceVersion": "7", "labels": {"a": "b"},
                    "annotations": {
                        "flannel.alpha.coreos.com/public-ip": "192.0.2.1", "other": "{}",
                        "flannel.alpha.coreos.com/public-ipv6": "2001:db8::1",
                        "alpha.kubernetes.io/provided-node-ip": "192.0.2.2",
                    },
                },
                "spec": {"podCIDR": "10.1.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00:1::/64"], "taints": [{"key": "a"}]},
                "status": {
                    "addresses": [{"type": "InternalIP", "address": "192.0.2.3"}, {"type": "Hostname", "address": "a"}],
                    "conditions": [{"type": "Ready"}], "images": [{"names": ["a"], "sizeBytes": 1}],
                },
            }),
            Kind::ClusterNetworkPolicy => json!({
                "apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": metadata,
                "spec": {
                    "tier": "Admin", "priority": 5,
                    "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}}},
                    "ingress": [{"action": "Pass", "from": [{"namespaces": {}}]}],
                    "egress": [{
                        "name": "a", "action": "Deny",
                        "to": [{"networks": ["10.0.0.0/8"]}, {"nodes": {"matchLabels": {"a": "b"}}}],
                        "protocols": [
                            {"tcp": {"destinationPort": {"number": 80}}},
                            {"udp": {"destinationPort": {"range": {"start": 1, "end": 9}}}},
                            {"destinationNamedPort": "http"},
                        ],
                    }],
                },
                "status": {"conditions": []},
            }),
            Kind::NetworkPolicy => json!({
                "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata,
                "spec": {
                    "podSelector": {
                        "matchLabels": {"app": "web"},
                        "matchExpressions": [{"key": "tier", "operator": "In", "values": ["front", "back"]}],
                    },
                    "policyTypes": ["Ingress", "Egress"],
                    "ingress": [{
                        "from": [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "api"}}}],
                        "ports": [{"protocol": "TCP", "port": 80, "endPort": 90}, {"port": "http"}],
                    }],
                    "egress": [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}],
                },
            }),
        }
    }

    /// Values of wrong types.
    fn wrong() -> [Value; 16] {
        [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(80),
            json!(70_000),
            json!(1.5),
            json!(""),
            json!("text"),
            json!("10.0.0.0/33"),
            json!([]),
            json!([null]),
            json!(["text", {"name": 7}]),
            json!({}),
            json!({"name": "text", "ports": 7, "metadata": {"managedFields": []}}),
            json!([{"ports": [{"name": "http", "containerPort": "80"}]}, {"ip": "no"}]),
        ]
    }

    /// The JSON pointers of all values, including the root.
    fn places(value: &Value, here: String, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (name, field) in fields {
                    places(field, format!("{here}/{}", name.replace('~', "~0").replace('/', "~1")), found);
                }
            }
            Value::Array(items) => {
                for (i, item) in items.iter().enumerate() {
                    places(item, format!("{here}/{i}"), found);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
        found.push(here);
    }

    fn check(kind: Kind, object: &Value, what: &str) {
        let lean = read(kind, &object.to_string()).unwrap();
        assert_eq!(policy::lower(kind, &lean), policy::lower(kind, object), "{what}: {lean}");
        assert_eq!(lean["metadata"]["resourceVersion"], object["metadata"]["resourceVersion"], "{what}");
    }

    #[test]
    fn lean_object_lowers_like_whole_with_any_values() {
        for kind in Kind::ALL {
            let whole = whole(kind);
            check(kind, &whole, "whole");
            let mut found = Vec::new();
            places(&whole, String::new(), &mut found);
            assert!(found.len() > 20);
            for place in found.iter().filter(|place| !place.is_empty()) {
                for value in wrong() {
                    let mut object = whole.clone();
                    *object.pointer_mut(place).unwrap() = value.clone();
                    check(kind, &object, &format!("{kind} {place} is {value}"));
                    if let Some(Value::Object(fields)) = whole.pointer(place) {
                        let mut more = fields.clone();
                        more.insert("newerField".into(), value.clone());
                        *object.pointer_mut(place).unwrap() = more.into();
                        check(kind, &object, &format!("{kind} {place} has more"));
                    }
                }
            }
        }
    }

    #[test]
    fn lean_node_lacks_images_and_conditions() {
        let kept = read(Kind::Node, &whole(Kind::Node).to_string()).unwrap();
        for place in ["/metadata/annotations/other", "/status/images", "/status/conditions"] {
            assert_eq!(kept.pointer(place), None);
        }
    }

    #[test]
    fn most_of_a_pod_is_not_kept() {
        let kept = read(Kind::Pod, &whole(Kind::Pod).to_string()).unwrap();
        for place in ["/metadata/managedFields", "/metadata/annotations/other", "/spec/volumes", "/status/conditions"] {
            assert_eq!(kept.pointer(place), None);
        }
        assert_eq!(kept["spec"]["containers"][0].as_object().map(Map::len), Some(1));
    }

    #[test]
    fn last_of_duplicate_fields_counts() {
        let twice =
            r#"{"metadata": {"name": "a", "name": "b"}, "spec": 1, "spec": {"nodeName": "x", "nodeName": "y"}}"#;
        let whole: Value = serde_json::from_str(twice).unwrap();
        assert_eq!(read(Kind::Pod, twice).unwrap(), whole);
    }

    #[test]
    fn only_an_object_is_one() {
        for text in ["7", "[]", "null", "\"x\"", "{} {}", "{", ""] {
            assert!(read(Kind::Pod, text).is_err(), "{text}");
        }
    }
}
