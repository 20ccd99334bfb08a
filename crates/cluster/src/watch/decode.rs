//! Decodes the server's JSON into values that can be lowered, one object at a time.
//!
//! An invalid object never affects the rest of its list or watch (docs/semantics.md, 16): objects stay raw until they
//! are decoded one by one, and one that cannot be decoded becomes an object of the same name with unreadable content.

use policy::{Interner, ObjectName};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::lean_json::read_lean;
use crate::{MissingName, Watchable};

/// A page of a list.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Page<'a> {
    /// API version of the items: the server omits it in each (`meta.v1.TypeMeta` is empty in typed lists).
    #[serde(default)]
    pub(super) api_version: Option<String>,
    #[serde(default)]
    pub(super) metadata: PageMetadata,
    /// The server writes null for an empty list. A response without the key is not a list, and must not be read as
    /// empty.
    #[serde(borrow, deserialize_with = "Option::deserialize")]
    pub(super) items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageMetadata {
    pub(super) resource_version: Option<String>,
    #[serde(rename = "continue")]
    pub(super) next: Option<String>,
}

/// A line of a watch.
#[derive(Deserialize)]
pub(super) struct WatchLine<'a> {
    #[serde(rename = "type")]
    pub(super) kind: WatchLineKind,
    #[serde(borrow)]
    pub(super) object: &'a RawValue,
}

#[derive(Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum WatchLineKind {
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

/// A bookmark, which only carries the resource version.
#[derive(Deserialize)]
pub(super) struct Bookmark {
    pub(super) metadata: BookmarkMetadata,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BookmarkMetadata {
    pub(super) resource_version: String,
    #[serde(default)]
    annotations: Map<String, Value>,
}

impl Bookmark {
    /// The bookmark after the last object of a streaming list.
    pub(super) fn ends_list(&self) -> bool {
        self.metadata.annotations.contains_key("k8s.io/initial-events-end")
    }
}

/// A lowered object, and the resource version of its event.
pub(super) struct DecodedEvent<O> {
    pub(super) object: O,
    pub(super) version: Option<String>,
}

/// Lowers the object of a watch event.
pub(super) fn decode<O: Watchable>(
    interner: &mut Interner,
    kind: O::Kind,
    raw: &RawValue,
) -> Result<DecodedEvent<O>, MissingName> {
    decode_item(interner, kind, raw, None)
}

/// Lowers an item of a list with this API version.
pub(super) fn decode_item<O: Watchable>(
    interner: &mut Interner,
    kind: O::Kind,
    raw: &RawValue,
    api_version: Option<&str>,
) -> Result<DecodedEvent<O>, MissingName> {
    let mut value = match read_lean(O::resource(kind).keep, raw.get()) {
        Ok(value) => value,
        Err(e) => unreadable(raw, &e)?,
    };
    if let (Some(version), Some(fields)) = (api_version, value.as_object_mut()) {
        fields.entry("apiVersion").or_insert_with(|| version.into());
    }
    let version = value["metadata"]["resourceVersion"].as_str().filter(|v| !v.is_empty()).map(str::to_owned);
    let object = O::lower(interner, kind, &value)?;
    Ok(DecodedEvent { object, version })
}

/// The name of a deleted object.
pub(super) fn decode_name<O: Watchable>(
    interner: &mut Interner,
    kind: O::Kind,
    raw: &RawValue,
) -> Result<(ObjectName, Option<String>), MissingName> {
    decode::<O>(interner, kind, raw).map(|decoded| (decoded.object.name().clone(), decoded.version))
}

/// Replacement for an object that cannot be parsed as JSON (nested too deep, a number out of range): its name, and
/// content of the wrong type, which lowering turns into denial.
fn unreadable(raw: &RawValue, why: &serde_json::Error) -> Result<Value, MissingName> {
    #[derive(Deserialize)]
    struct Shell {
        metadata: ShellMetadata,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct ShellMetadata {
        name: String,
        #[serde(default)]
        namespace: String,
        #[serde(default)]
        uid: String,
        #[serde(default)]
        resource_version: String,
    }
    let Shell { metadata: m } = serde_json::from_str(raw.get()).map_err(|_| MissingName)?;
    let why = format!("cannot decode: {why}");
    Ok(json!({
        "metadata": {
            "name": m.name, "namespace": m.namespace, "uid": m.uid, "resourceVersion": m.resource_version,
            "labels": why, "annotations": why,
        },
        "spec": why,
        "status": why,
    }))
}

#[cfg(test)]
mod tests {
    use policy::{Kind, Object};

    use super::*;

    fn raw(text: &str) -> Box<RawValue> {
        RawValue::from_string(text.into()).unwrap()
    }

    #[test]
    fn an_undecodable_item_does_not_spoil_its_page() {
        let page: Page = serde_json::from_str(
            r#"{"kind":"PodList","metadata":{"resourceVersion":"7","continue":""},
                "items":[{"metadata":{"name":"a","labels":7},"spec":"x"},{"metadata":{"name":"b"}},{"metadata":[]},9]}"#,
        )
        .unwrap();
        let items = page.items.unwrap();
        let names: Vec<_> = items
            .iter()
            .map(|i| decode::<Object>(&mut Interner::new(), Kind::Pod, i).map(|d| d.object.name().to_string()))
            .collect();
        assert_eq!(names[0].as_deref().unwrap(), "default/a");
        assert_eq!(names[1].as_deref().unwrap(), "default/b");
        assert!(names[2].is_err() && names[3].is_err());
    }

    #[test]
    fn too_deeply_nested_object_is_unreadable_not_lost() {
        let deep = format!("{}1{}", "[".repeat(5000), "]".repeat(5000));
        let text = format!(r#"{{"metadata":{{"namespace":"shop","name":"web","resourceVersion":"3"}},"spec":{deep}}}"#);
        let line = format!(r#"{{"type":"ADDED","object":{text}}}"#);
        let line: WatchLine = serde_json::from_str(&line).unwrap();
        let decoded = decode::<Object>(&mut Interner::new(), Kind::Pod, line.object).unwrap();
        assert_eq!(decoded.object.name().to_string(), "shop/web");
        assert_eq!(decoded.version.as_deref(), Some("3"));
        let Object::Pod(pod) = decoded.object else { panic!("not a pod") };
        assert!(pod.unreadable);
    }

    #[test]
    fn managed_fields_are_not_even_decoded() {
        let deep = format!("{}{}", "[".repeat(5000), "]".repeat(5000));
        let text =
            format!(r#"{{"metadata":{{"name":"web","managedFields":{deep},"labels":{{"a":"b"}}}},"spec":{{}}}}"#);
        let Object::Pod(pod) = decode(&mut Interner::new(), Kind::Pod, &raw(&text)).unwrap().object else {
            panic!("not a pod")
        };
        assert!(!pod.unreadable, "{pod:?}");
        assert_eq!(pod.labels.len(), 1);
    }

    #[test]
    fn a_list_without_items_is_empty() {
        let page: Page = serde_json::from_str(r#"{"metadata":{"resourceVersion":"7"},"items":null}"#).unwrap();
        assert!(page.items.is_none());
    }
}
