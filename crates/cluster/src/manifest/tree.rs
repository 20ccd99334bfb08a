//! A YAML document as a JSON value, with the line of each list item.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IntoDeserializer, MapAccess, SeqAccess, Visitor, value};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

/// A document.
pub(super) enum Tree {
    /// The fields without `items`.
    Map {
        fields: Map<String, Value>,
        items: Option<Items>,
    },
    Other(Value),
}

/// The value of the key `items`.
pub(super) enum Items {
    Sequence(Vec<Spanned<Value>>),
    Other(Value),
}

impl Items {
    pub(super) fn into_value(self) -> Value {
        match self {
            Items::Sequence(items) => items.into_iter().map(|item| item.value).collect(),
            Items::Other(value) => value,
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(TreeVisitor)
    }
}

impl<'de> Deserialize<'de> for Items {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Items, D::Error> {
        deserializer.deserialize_any(ItemsVisitor)
    }
}

struct TreeVisitor;
struct ItemsVisitor;

/// The methods of both visitors for all other types of values.
macro_rules! other_values {
    ($type:ident) => {
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a YAML value")
        }
        fn visit_bool<E: Error>(self, value: bool) -> Result<$type, E> {
            Ok($type::Other(value.into()))
        }
        fn visit_i64<E: Error>(self, value: i64) -> Result<$type, E> {
            Ok($type::Other(value.into()))
        }
        fn visit_u64<E: Error>(self, value: u64) -> Result<$type, E> {
            Ok($type::Other(value.into()))
        }
        fn visit_f64<E: Error>(self, value: f64) -> Result<$type, E> {
            Value::deserialize(value.into_deserializer()).map($type::Other)
        }
        fn visit_str<E: Error>(self, value: &str) -> Result<$type, E> {
            Ok($type::Other(value.into()))
        }
        fn visit_unit<E: Error>(self) -> Result<$type, E> {
            Ok($type::Other(Value::Null))
        }
        fn visit_none<E: Error>(self) -> Result<$type, E> {
            Ok($type::Other(Value::Null))
        }
    };
}

impl<'de> Visitor<'de> for TreeVisitor {
    type Value = Tree;

    other_values!(Tree);

    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<Tree, A::Error> {
        Value::deserialize(value::SeqAccessDeserializer::new(access)).map(Tree::Other)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tree, A::Error> {
        let mut fields = Map::new();
        let mut items = None;
        while let Some(key) = access.next_key::<String>()? {
            if key == "items" {
                items = Some(access.next_value()?);
            } else {
                fields.insert(key, access.next_value()?);
            }
        }
        Ok(Tree::Map { fields, items })
    }
}

impl<'de> Visitor<'de> for ItemsVisitor {
    type Value = Items;

    other_values!(Items);

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Items, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element()? {
            items.push(item);
        }
        Ok(Items::Sequence(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<Items, A::Error> {
        Value::deserialize(value::MapAccessDeserializer::new(access)).map(Items::Other)
    }
}
