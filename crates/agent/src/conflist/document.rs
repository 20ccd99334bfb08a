//! Positions of the parts of a configuration in its text.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::Unusable;

/// The fields of a JSON object in order, with the values as raw text.
pub(super) struct Document<'a> {
    text: &'a str,
    fields: Vec<(String, &'a RawValue)>,
}

/// One plugin of a list.
pub(super) struct ConflistPlugin {
    pub(super) kind: String,
    /// Span of its object in the text.
    pub(super) span: Range<usize>,
    /// Position of its first value.
    pub(super) first_value: Option<usize>,
}

struct ObjectFields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for ObjectFields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = ObjectFields<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ObjectFields<'de>, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(ObjectFields(fields))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}

impl<'a> Document<'a> {
    pub(super) fn parse(text: &'a str) -> Result<Document<'a>, Unusable> {
        let ObjectFields(fields) = serde_json::from_str(text).map_err(|e| Unusable::Malformed(e.to_string()))?;
        for key in ["type", "plugins", "cniVersion", "cniVersions"] {
            if fields.iter().filter(|(name, _)| name == key).count() > 1 {
                return Err(Unusable::UnexpectedShape("duplicate key"));
            }
        }
        Ok(Document { text, fields })
    }

    pub(super) fn field(&self, key: &str) -> Option<&'a RawValue> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| *value)
    }

    pub(super) fn text_field(&self, key: &str) -> Option<String> {
        serde_json::from_str(self.field(key)?.get()).ok()
    }

    pub(super) fn plugins(&self) -> Result<Vec<ConflistPlugin>, Unusable> {
        let list = self.field("plugins").ok_or(Unusable::UnexpectedShape("missing list 'plugins'"))?;
        let elements: Vec<&RawValue> =
            serde_json::from_str(list.get()).map_err(|_| Unusable::UnexpectedShape("'plugins' is not a list"))?;
        elements.into_iter().map(|element| self.plugin(element)).collect()
    }

    fn plugin(&self, element: &'a RawValue) -> Result<ConflistPlugin, Unusable> {
        let parsed =
            Document::parse(element.get()).map_err(|_| Unusable::UnexpectedShape("a plugin is not an object"))?;
        let kind = parsed.text_field("type").ok_or(Unusable::UnexpectedShape("a plugin has no 'type'"))?;
        let first_value = parsed.fields.first().map(|(_, value)| self.position(value));
        let start = self.position(element);
        Ok(ConflistPlugin { kind, span: start..start + element.get().len(), first_value })
    }

    /// Offset of the value in the text. A raw value is a slice of the text that it was parsed from.
    fn position(&self, value: &RawValue) -> usize {
        value.get().as_ptr().addr() - self.text.as_ptr().addr()
    }
}
