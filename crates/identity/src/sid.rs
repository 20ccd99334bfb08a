//! The security identity: its canonical form, hash and text.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;

use data_encoding::BASE32_NOPAD;
use policy::Labels;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest, Sha256};

/// The security identity of all pods of one namespace with the same relevant labels: the first 64 bits of the SHA-256
/// hash of the [`canonical`] form. Its text has 13 characters of `a-z` and `2-7`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sid(pub u64);

impl Serialize for Sid {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Sid {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Sid, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

/// First text of the canonical form, so that no other protocol hashes the same bytes. A changed form needs another
/// number.
const DOMAIN: &str = "ringfence-identity-1";

/// Length of an identity's text: 64 bits, five for each character.
const TEXT_CHARS: usize = 13;

impl Sid {
    /// The identity of pods with these labels. Only relevant labels may be passed ([`crate::LabelFilter`]): every one
    /// becomes part of the identity.
    pub fn of(cluster: &str, namespace: &str, pod: &Labels, of_namespace: &Labels) -> Sid {
        let [a, b, c, d, e, f, g, h, ..] = Sha256::digest(canonical(cluster, namespace, pod, of_namespace)).0;
        Sid(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// The bytes that are hashed. The encoding is injective.
pub fn canonical(cluster: &str, namespace: &str, pod: &Labels, of_namespace: &Labels) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in [DOMAIN, cluster, namespace] {
        text(&mut bytes, part);
    }
    for labels in [pod, of_namespace] {
        number(&mut bytes, labels.len());
        for (key, value) in labels.iter() {
            text(&mut bytes, key);
            text(&mut bytes, value);
        }
    }
    bytes
}

fn text(bytes: &mut Vec<u8>, text: &str) {
    number(bytes, text.len());
    bytes.extend_from_slice(text.as_bytes());
}

/// The API server limits objects to a few megabytes, so every length fits into 32 bits.
fn number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend_from_slice(&u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes());
}

impl fmt::Display for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&BASE32_NOPAD.encode(&self.0.to_be_bytes()).to_ascii_lowercase())
    }
}

impl fmt::Debug for Sid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid identity '{0}': expected 13 characters a-z and 2-7")]
pub struct ParseSidError(String);

/// Accepts exactly the texts that [`Sid`] prints.
impl FromStr for Sid {
    type Err = ParseSidError;
    fn from_str(text: &str) -> Result<Sid, ParseSidError> {
        let not = || ParseSidError(text.into());
        if text.len() != TEXT_CHARS || text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(not());
        }
        let bytes = BASE32_NOPAD.decode(text.to_ascii_uppercase().as_bytes()).map_err(|_| not())?;
        Ok(Sid(u64::from_be_bytes(bytes.try_into().map_err(|_| not())?)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;
    use serde_json::Value;

    use crate::Space;
    use crate::testing::labels;

    use super::*;

    fn labels_of_json(value: &Value) -> Labels {
        let pairs = value.as_object().unwrap().iter();
        pairs.map(|(key, value)| (key.as_str().into(), value.as_str().unwrap().into())).collect()
    }

    /// Checks the vectors in the document, which are for other implementations.
    #[test]
    fn test_vectors_of_the_document_hold() {
        let document = include_str!("../../../docs/identity.md");
        let block = document.split_once("```json\n").unwrap().1.split_once("```").unwrap().0;
        let vectors: Vec<Value> = serde_json::from_str(block).unwrap();
        assert!(vectors.len() >= 6);
        for vector in &vectors {
            let text = |name: &str| vector[name].as_str().unwrap();
            let (pod, namespace) = (labels_of_json(&vector["labels"]), labels_of_json(&vector["namespace_labels"]));
            let bytes = canonical(text("cluster"), text("namespace"), &pod, &namespace);
            assert_eq!(data_encoding::HEXLOWER.encode(&bytes), text("canonical"), "{vector}");
            let sid = Sid::of(text("cluster"), text("namespace"), &pod, &namespace);
            assert_eq!((format!("{:016x}", sid.0), sid.to_string()), (text("hash").into(), text("sid").into()));
            assert_eq!(u64::from(Space::STANDARD.home(sid)), vector["home"].as_u64().unwrap(), "{vector}");
            for (k, number) in (1..).zip(vector["attempts"].as_array().unwrap()) {
                assert_eq!(u64::from(Space::STANDARD.attempt(sid, k)), number.as_u64().unwrap(), "{vector}");
            }
        }
    }

    #[test]
    fn each_part_is_delimited_in_the_canonical_form() {
        let sid = |cluster: &str, namespace: &str, pod: &[(&str, &str)], of_namespace: &[(&str, &str)]| {
            Sid::of(cluster, namespace, &labels(pod), &labels(of_namespace))
        };
        let all = [
            sid("", "", &[], &[]),
            sid("c", "", &[], &[]),
            sid("", "c", &[], &[]),
            sid("c", "n", &[], &[]),
            sid("cn", "", &[], &[]),
            sid("c", "n", &[("a", "b")], &[]),
            sid("c", "n", &[], &[("a", "b")]),
            sid("c", "n", &[("ab", "")], &[]),
            sid("c", "n", &[("", "ab")], &[]),
            sid("c", "n", &[("a", "b"), ("c", "d")], &[]),
            sid("c", "n", &[("a", "b")], &[("c", "d")]),
            sid("c", "n", &[("a", "d"), ("c", "b")], &[]),
        ];
        assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    }

    #[test]
    fn invalid_texts_are_refused() {
        let text = Sid(u64::MAX).to_string();
        assert_eq!((text.as_str(), Sid(0).to_string().as_str()), ("7777777777776", "aaaaaaaaaaaaa"));
        // The last character encodes only four bits.
        for not in ["", "aaaaaaaaaaaa", "aaaaaaaaaaaaaa", "7777777777777", "AAAAAAAAAAAAA", "aaaaaa1aaaaaa", "aaaaaaä"]
        {
            assert_eq!(not.parse::<Sid>(), Err(ParseSidError(not.into())));
        }
    }

    proptest! {
        #[test]
        fn text_of_an_identity_parses_back(number: u64) {
            let text = Sid(number).to_string();
            prop_assert_eq!(text.len(), TEXT_CHARS);
            prop_assert_eq!(text.parse(), Ok(Sid(number)));
        }
    }
}
