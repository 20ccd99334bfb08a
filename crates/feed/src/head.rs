//! Metadata of a baseline: the JSON of `version`, and the headers of `download`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Position, PositionError};

/// Version, position and checksum of a baseline: JSON of `version`, headers of `download`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Version of the content, `id-<16 hex>`: equal content has the same version at any position.
    pub version: String,
    /// Position of the last delta that the baseline contains.
    #[serde(flatten)]
    pub position: Position,
    /// Entries of the table.
    pub count: u64,
    /// Length of the baseline, uncompressed.
    pub bytes: u64,
    /// Hash of the uncompressed baseline.
    pub sha256: Digest,
}

impl Head {
    pub(crate) const VERSION_HEADER: &'static str = "ringfence-version";
    pub(crate) const POSITION_HEADER: &'static str = "ringfence-position";
    pub(crate) const COUNT_HEADER: &'static str = "ringfence-count";
    pub(crate) const SHA256_HEADER: &'static str = "ringfence-sha256";

    /// The head of these bytes. `version` and `count` describe the content, which this crate does not parse.
    pub fn of(baseline: &[u8], version: String, position: Position, count: u64) -> Head {
        Head { version, position, count, bytes: baseline.len() as u64, sha256: Digest::of(baseline) }
    }

    /// For `ETag` and `If-None-Match`. Weak: baselines of one version differ in their position.
    pub fn etag(&self) -> String {
        format!("W/\"{}\"", self.version)
    }

    /// The headers of `download`. They are in the same response as the baseline, so that no delta is published between
    /// them.
    pub fn headers(&self) -> [(&'static str, String); 4] {
        [
            (Head::VERSION_HEADER, self.version.clone()),
            (Head::POSITION_HEADER, self.position.to_string()),
            (Head::COUNT_HEADER, self.count.to_string()),
            (Head::SHA256_HEADER, self.sha256.to_string()),
        ]
    }

    /// Parses the headers of a downloaded baseline, and verifies its bytes.
    ///
    /// # Errors
    /// If a header is missing or invalid, or if the length or hash does not match.
    pub fn of_download<'h>(header: impl Fn(&str) -> Option<&'h str>, baseline: &[u8]) -> Result<Head, HeadError> {
        let text = |name| header(name).ok_or(HeadError::Missing(name));
        let sha256: Digest = text(Head::SHA256_HEADER)?.parse()?;
        let version = text(Head::VERSION_HEADER)?;
        if version.is_empty() || version.len() > VERSION_BYTES || !version.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(HeadError::Version);
        }
        let count = text(Head::COUNT_HEADER)?.parse().map_err(|_| HeadError::Count)?;
        let head = Head::of(baseline, version.to_owned(), text(Head::POSITION_HEADER)?.parse()?, count);
        if head.sha256 != sha256 {
            return Err(HeadError::Content { bytes: head.bytes, is: head.sha256, meant: sha256 });
        }
        Ok(head)
    }
}

/// Longer than any version of a provider, and short enough for a file name.
const VERSION_BYTES: usize = 64;

/// Why the headers of a download, or its bytes, are invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// Every header of [`Head::headers`] is required.
    #[error("missing header {0} of the baseline")]
    Missing(&'static str),
    /// Expected 1 to 64 printable ASCII characters.
    #[error("invalid version of the baseline")]
    Version,
    /// The number of entries is not a decimal `u64`.
    #[error("invalid count of the baseline: expected a number")]
    Count,
    /// The position is not `EPOCH:SEQ`.
    #[error(transparent)]
    Position(#[from] PositionError),
    /// The digest is not SHA-256 in hexadecimal.
    #[error("invalid SHA-256 of the baseline: expected 64 hexadecimal digits")]
    Digest,
    /// The baseline was corrupted or truncated on its way.
    #[error("SHA-256 mismatch of the baseline ({bytes} bytes): expected {meant}, got {is}")]
    Content {
        /// Length of the baseline as received.
        bytes: u64,
        /// Digest of the baseline as received.
        is: Digest,
        /// Digest in the header.
        meant: Digest,
    },
}

/// A SHA-256 digest, as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest([u8; 32]);

impl Digest {
    /// Hashes the bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = HeadError;

    fn try_from(text: String) -> Result<Digest, HeadError> {
        text.parse()
    }
}

impl FromStr for Digest {
    type Err = HeadError;

    fn from_str(text: &str) -> Result<Digest, HeadError> {
        let nibble = |byte: u8| char::from(byte).to_digit(16).map(|n| n as u8);
        let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return Err(HeadError::Digest) };
        let bytes: Option<Vec<u8>> =
            pairs.iter().map(|[high, low]| Some(nibble(*high)? << 4 | nibble(*low)?)).collect();
        bytes.and_then(|bytes| bytes.try_into().ok()).map(Digest).ok_or(HeadError::Digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(baseline: &[u8]) -> Head {
        Head::of(baseline, "id-0011223344556677".into(), Position { epoch: 9, seq: 4 }, 2)
    }

    fn received(head: &Head, baseline: &[u8]) -> Result<Head, HeadError> {
        let headers = head.headers();
        let value = |name: &str| headers.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str());
        Head::of_download(value, baseline)
    }

    #[test]
    fn the_json_has_the_fields_that_consumers_read() {
        let json = serde_json::to_string(&head(b"abc")).unwrap();
        let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(
            json,
            format!(r#"{{"version":"id-0011223344556677","epoch":9,"seq":4,"count":2,"bytes":3,"sha256":"{sha256}"}}"#)
        );
        assert_eq!(serde_json::from_str::<Head>(&json).unwrap(), head(b"abc"));
    }

    #[test]
    fn download_must_match_its_headers() {
        let meant = head(b"abc");
        assert_eq!(received(&meant, b"abc"), Ok(meant.clone()));
        assert!(matches!(received(&meant, b"ab"), Err(HeadError::Content { bytes: 2, .. })));
        for (name, _) in meant.headers() {
            let headers = meant.headers();
            let without = |asked: &str| {
                headers.iter().find(|(n, _)| *n == asked && asked != name).map(|(_, value)| value.as_str())
            };
            assert_eq!(Head::of_download(without, b"abc"), Err(HeadError::Missing(name)));
        }
    }

    #[test]
    fn version_with_unsafe_characters_is_refused() {
        for version in ["", "a b", "a\nb", "ä", &"x".repeat(65)] {
            let meant = Head { version: version.into(), ..head(b"abc") };
            assert_eq!(received(&meant, b"abc"), Err(HeadError::Version), "{version:?}");
        }
    }

    #[test]
    fn invalid_digest_is_refused() {
        let good = Digest::of(b"").to_string();
        assert_eq!(good.parse(), Ok(Digest::of(b"")));
        for text in ["", &good[1..], &good[2..], &format!("{good}00"), &good.replace('e', "g"), &good.replace('e', "+")]
        {
            assert_eq!(text.parse::<Digest>(), Err(HeadError::Digest), "{text}");
        }
    }
}
