//! Names of network interfaces.

use std::fmt;
use std::str::FromStr;

/// Longest name: `IFNAMSIZ` is 16 including the trailing NUL.
const LONGEST: usize = 15;

/// The name of a network interface: 1 to 15 bytes of printable ASCII, without those that the kernel refuses
/// (`dev_valid_name`) and those with a special meaning in quoted strings of nft's grammar (`"`, `\`, and the wildcard
/// `*`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName {
    /// Padded with NULs, as the kernel compares it.
    bytes: [u8; InterfaceName::WIDTH],
}

/// Why a text is not a valid [`InterfaceName`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported interface name '{0}': expected 1 to {LONGEST} printable characters without / : * \" \\")]
pub struct InterfaceNameError(String);

impl InterfaceName {
    /// Width of a name in a key, in bytes.
    pub const WIDTH: usize = LONGEST + 1;

    /// Accepts exactly the texts that satisfy the rules above.
    pub fn new(text: &str) -> Result<InterfaceName, InterfaceNameError> {
        let ordinary = |b: u8| b.is_ascii_graphic() && !matches!(b, b'/' | b':' | b'*' | b'"' | b'\\');
        let fits = (1..=LONGEST).contains(&text.len()) && !matches!(text, "." | "..");
        if !fits || !text.bytes().all(ordinary) {
            return Err(InterfaceNameError(text.into()));
        }
        let mut bytes = [0; InterfaceName::WIDTH];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(InterfaceName { bytes })
    }

    /// The name as the kernel stores it in a key: padded with NULs.
    pub fn padded(self) -> [u8; InterfaceName::WIDTH] {
        self.bytes
    }

    /// The name in these bytes of a key; `None` if there are other bytes after the first NUL, or if
    /// [`InterfaceName::new`] refuses the name.
    pub fn from_padded(bytes: &[u8; InterfaceName::WIDTH]) -> Option<InterfaceName> {
        let length = bytes.iter().position(|b| *b == 0)?;
        let (name, padding) = bytes.split_at(length);
        let name = InterfaceName::new(std::str::from_utf8(name).ok()?).ok()?;
        padding.iter().all(|b| *b == 0).then_some(name)
    }

    /// The name without padding.
    pub fn as_str(&self) -> &str {
        let length = self.bytes.iter().position(|b| *b == 0).unwrap_or(LONGEST);
        std::str::from_utf8(&self.bytes[..length]).expect("it was made of ASCII")
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for InterfaceName {
    type Err = InterfaceNameError;
    fn from_str(text: &str) -> Result<InterfaceName, InterfaceNameError> {
        InterfaceName::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_name_must_suit_kernel_and_nft_grammar() {
        for good in ["veth0", "a", "fifteen-bytes.x", "eth0@if3", "a-'b'#{}"] {
            assert_eq!(InterfaceName::new(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "sixteen-bytes.xy", "a b", "a/b", "a:b", "eth*", "a\"", "a\\", "\u{e9}", "a\n"] {
            assert!(InterfaceName::new(bad).is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn padded_name_round_trips_and_invalid_is_none() {
        let name = InterfaceName::new("veth0").unwrap();
        assert_eq!(InterfaceName::from_padded(&name.padded()), Some(name));
        assert_eq!(InterfaceName::from_padded(b"veth0\0x\0\0\0\0\0\0\0\0\0"), None);
        assert_eq!(InterfaceName::from_padded(&[b'x'; 16]), None);
        assert_eq!(InterfaceName::from_padded(&[0; 16]), None);
    }
}
