//! Golden bytes of each message of Hubble's and Goldmane's protocols, written by the field numbers of their published
//! definitions.
//!
//! A golden has every field of its message. The declarations of the crates are read from their sources, so that a
//! message, a field or an enumeration without a golden fails.

mod goldmane;
mod hubble;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;

use prost::Message;
use tests::grpc_bytes::{Bytes, Fields, Writer};
use wire::KnownFields;

use super::walls::source_files;

/// The bytes of a message, which the crate encodes and decodes.
pub(crate) struct Golden {
    message: String,
    bytes: Bytes,
    /// Fields that a request may have, if others are refused.
    served: Option<&'static [u32]>,
}

/// Compares the encoding of a message with its golden, and the message with the decoded golden.
fn golden<M: Message + Default + PartialEq + Debug>(message: &M, golden: Writer) -> Golden {
    let bytes = golden.finish();
    assert_eq!(message.encode_to_vec(), bytes, "{message:?}");
    assert_eq!(&M::decode(&*bytes).unwrap(), message, "{bytes:02x?}");
    Golden { message: type_name::<M>(), bytes, served: None }
}

/// As [`golden`], for a message whose unknown fields are refused.
fn strict<M: KnownFields + PartialEq + Debug>(message: &M, bytes: Writer) -> Golden {
    Golden { served: Some(M::FIELDS), ..golden(message, bytes) }
}

/// Type name without its path.
fn type_name<T>() -> String {
    std::any::type_name::<T>().rsplit("::").next().unwrap_or_default().to_owned()
}

/// Values of an enumeration: its type, and the number of each.
type Numbers = (String, Vec<(String, i32)>);

/// Reads all values of an enumeration from its numbers, which are below 20 in both protocols.
fn numbers<E: TryFrom<i32> + Debug>() -> Numbers {
    let values = (0..20).filter_map(|number| Some((format!("{:?}", E::try_from(number).ok()?), number)));
    (type_name::<E>(), values.collect())
}

fn assert_numbers(numbers: &[Numbers], expected: &[(&str, &[(&str, i32)])], source: &Declarations) {
    let of = |(name, values): &(&str, &[(&str, i32)])| {
        ((*name).to_owned(), values.iter().map(|(value, number)| ((*value).to_owned(), *number)).collect())
    };
    assert_eq!(numbers, expected.iter().map(of).collect::<Vec<Numbers>>());
    let names: BTreeSet<&str> = expected.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, source.enumerations.iter().map(String::as_str).collect(), "declared enumerations");
}

/// Protobuf types that a crate declares.
#[derive(Debug, Default)]
struct Declarations {
    /// Field numbers of each message, with those of its oneofs.
    messages: BTreeMap<String, BTreeSet<u32>>,
    enumerations: BTreeSet<String>,
    /// Messages whose unknown fields are refused.
    strict: BTreeSet<String>,
}

impl Declarations {
    fn of_crate(name: &str) -> Declarations {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates").join(name).join("src");
        let mut declarations = Declarations::default();
        for path in source_files(&folder) {
            declarations.read(&std::fs::read_to_string(path).unwrap());
        }
        declarations
    }

    fn read(&mut self, source: &str) {
        let (mut derives, mut message) = (String::new(), None);
        for line in source.lines().map(str::trim) {
            if let Some(traits) = line.strip_prefix("#[derive(") {
                derives = traits.to_owned();
            } else if let Some(name) = declared_name(line) {
                message = derives.contains("Message").then(|| name.clone());
                if let Some(name) = &message {
                    assert!(self.messages.insert(name.clone(), BTreeSet::new()).is_none(), "two messages {name}");
                } else if derives.contains("Enumeration") {
                    self.enumerations.insert(name);
                }
                derives.clear();
            } else if let (Some(name), Some(attribute)) = (&message, line.strip_prefix("#[prost(")) {
                self.messages.entry(name.clone()).or_default().extend(tags(attribute));
            } else if let Some(name) = line.strip_prefix("impl KnownFields for ") {
                self.strict.insert(name.trim_end_matches(" {").to_owned());
            }
        }
    }

    fn assert_covered(&self, goldens: &[Golden]) {
        let mut covered: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
        for Golden { message, bytes, served } in goldens {
            covered.entry(message.clone()).or_default().extend(Fields::read(bytes).numbers());
            assert_eq!(served.is_some(), self.strict.contains(message), "golden of {message} checks its FIELDS");
            let served = served.map(|fields| fields.iter().copied().collect());
            assert!(served.is_none_or(|fields: BTreeSet<u32>| fields == self.messages[message]), "FIELDS of {message}");
        }
        assert_eq!(covered, self.messages, "fields of goldens, and declared fields");
    }
}

fn declared_name(line: &str) -> Option<String> {
    let rest = line.strip_prefix("pub struct ").or_else(|| line.strip_prefix("pub enum "))?;
    Some(rest.chars().take_while(|c| c.is_alphanumeric()).collect())
}

/// Numbers of `tag = "1"` or `tags = "1, 2"`.
fn tags(attribute: &str) -> Vec<u32> {
    let (_, rest) = attribute.split_once("tag").expect("a tag");
    let quoted = rest.split('"').nth(1).expect("a number in quotes");
    quoted.split(", ").map(|number| number.parse().expect("a field number")).collect()
}

#[test]
fn declarations_are_read_from_source() {
    let mut declarations = Declarations::default();
    declarations.read(
        "#[derive(Clone, prost::Message)]\npub struct Flow {\n    /// Time.\n    #[prost(message, optional, tag = \"1\")]\n\
         pub time: Option<Time>,\n    #[prost(oneof = \"Kind\", tags = \"2, 31\")]\n    pub kind: Option<Kind>,\n}\n\
         impl KnownFields for Flow {\n#[derive(prost::Oneof)]\npub enum Kind {\n    #[prost(bool, tag = \"2\")]\n\
         #[derive(Debug, prost::Enumeration)]\n#[repr(i32)]\npub enum Colour {\n    Red = 1,\n}",
    );
    assert_eq!(declarations.messages, [("Flow".to_owned(), [1, 2, 31].into())].into());
    assert_eq!(declarations.enumerations, ["Colour".to_owned()].into());
    assert_eq!(declarations.strict, ["Flow".to_owned()].into());
}
