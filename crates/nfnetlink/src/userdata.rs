//! The type-length-value lists that nft stores in the `userdata` of tables, rules, sets and elements.
//!
//! The kernel does not interpret them. Without them `nft list` loses comments and guesses byte orders, so they are
//! written as nft 1.0.6 writes them. Types are those of libnftnl's `udata.h`.

/// `NFTNL_UDATA_TABLE_COMMENT`, `NFTNL_UDATA_RULE_COMMENT` and `NFTNL_UDATA_SET_ELEM_COMMENT` are all 0.
pub(crate) const COMMENT: u8 = 0;
/// `NFTNL_UDATA_SET_COMMENT`
pub(crate) const SET_COMMENT: u8 = 7;

/// `NFTNL_UDATA_SET_KEYBYTEORDER`
const KEY_BYTE_ORDER: u8 = 0;
/// `NFTNL_UDATA_SET_DATABYTEORDER`
const DATA_BYTE_ORDER: u8 = 1;
/// `NFTNL_UDATA_SET_KEY_TYPEOF`
const KEY_TYPEOF: u8 = 3;
/// `NFTNL_UDATA_SET_DATA_INTERVAL`
const DATA_INTERVAL: u8 = 6;
/// `NFTNL_UDATA_SET_ELEM_FLAGS`
const ELEMENT_FLAGS: u8 = 1;
/// nft's `SET_ELEM_F_INTERVAL_OPEN`: a range up to the largest value, which has no end.
const INTERVAL_OPEN: u32 = 1;
/// nft's `enum byteorder`.
const ORDER_UNKNOWN: u32 = 0;
const ORDER_HOST: u32 = 1;
const ORDER_BIG_ENDIAN: u32 = 2;
/// nft's `EXPR_CONCAT`, in the description of a concatenation's fields.
const EXPRESSION_CONCAT: u32 = 13;

/// The userdata of a table, a rule or an element; `open` marks a range up to the largest value. Empty without either.
pub(crate) fn of_comment(comment: Option<&str>, open: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(comment) = comment {
        put_text(&mut bytes, COMMENT, comment);
    }
    if open {
        put_number(&mut bytes, ELEMENT_FLAGS, INTERVAL_OPEN);
    }
    bytes
}

/// The userdata of a set, as nft writes it.
pub(crate) fn of_set(set: &nft::Set) -> Vec<u8> {
    let mut bytes = Vec::new();
    let order = match set.types[..] {
        [nft::KeyType::Ipv4Addr | nft::KeyType::Ipv6Addr | nft::KeyType::InetService] => ORDER_BIG_ENDIAN,
        [nft::KeyType::InterfaceName] => ORDER_HOST,
        _ => ORDER_UNKNOWN,
    };
    put_number(&mut bytes, KEY_BYTE_ORDER, order);
    if set.verdicts {
        put_number(&mut bytes, DATA_BYTE_ORDER, ORDER_UNKNOWN);
    }
    if set.types.len() > 1 {
        let mut typeof_key = Vec::new();
        put_number(&mut typeof_key, 0, EXPRESSION_CONCAT);
        put(&mut typeof_key, 1, &[]);
        put(&mut bytes, KEY_TYPEOF, &typeof_key);
    }
    if set.verdicts {
        put_number(&mut bytes, DATA_INTERVAL, 0);
    }
    if let Some(comment) = &set.comment {
        put_text(&mut bytes, SET_COMMENT, comment.as_str());
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, kind: u8, value: &[u8]) {
    // Values are numbers and comments of at most 127 bytes (`nft::Comment`).
    debug_assert!(value.len() < 256);
    bytes.push(kind);
    bytes.push(value.len() as u8);
    bytes.extend_from_slice(value);
}

fn put_number(bytes: &mut Vec<u8>, kind: u8, value: u32) {
    put(bytes, kind, &value.to_ne_bytes());
}

fn put_text(bytes: &mut Vec<u8>, kind: u8, text: &str) {
    let mut value = text.as_bytes().to_vec();
    value.push(0);
    put(bytes, kind, &value);
}

/// The text of type `kind`, if the list is valid up to it. Invalid UTF-8 is replaced, so that it never equals a comment
/// of the language.
pub(crate) fn text(mut bytes: &[u8], kind: u8) -> Option<String> {
    while let [found, length, rest @ ..] = bytes {
        let (value, next) = rest.split_at_checked(usize::from(*length))?;
        if *found == kind {
            let value = value.strip_suffix(&[0]).unwrap_or(value);
            return Some(String::from_utf8_lossy(value).into_owned());
        }
        bytes = next;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_range_with_comment_is_encoded_like_nft() {
        assert_eq!(of_comment(Some("last"), true), b"\x00\x05last\x00\x01\x04\x01\x00\x00\x00");
        assert_eq!(of_comment(None, false), b"");
    }

    #[test]
    fn map_of_concatenations_is_encoded_like_nft() {
        let types = [nft::KeyType::Ipv4Addr, nft::KeyType::InetService];
        let set = nft::Set { verdicts: true, ..nft::Set::of(&types) };
        let expected = b"\x00\x04\0\0\0\0\x01\x04\0\0\0\0\x03\x08\x00\x04\x0d\0\0\0\x01\x00\x06\x04\0\0\0\0";
        assert_eq!(of_set(&set), expected);
    }

    #[test]
    fn broken_lists_have_no_text() {
        assert_eq!(text(b"\x00\x09shop", COMMENT), None);
        assert_eq!(text(b"\x00", COMMENT), None);
        assert_eq!(text(b"\x01\x04\x01\0\0\0\x00\x03ab\0", COMMENT).as_deref(), Some("ab"));
        assert_eq!(text(b"\x00\x01\xff", COMMENT).as_deref(), Some("\u{fffd}"));
    }
}
