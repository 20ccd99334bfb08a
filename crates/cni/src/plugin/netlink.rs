//! The parts of netlink messages that rtnetlink and generic netlink share (netlink(7), `include/uapi/linux/netlink.h`).

const NLMSG_ERROR: u16 = 2;
pub(super) const NLM_F_REQUEST: u16 = 1;
pub(super) const NLM_F_ACK: u16 = 4;
pub(super) const NLA_F_NESTED: u16 = 0x8000;
/// Both flags that an attribute's type may have.
const NLA_FLAGS: u16 = 0xc000;

/// Size of `struct nlmsghdr`.
pub(super) const HEADER_BYTES: usize = 16;

/// Encodes an attribute with its padding. The values here are far shorter than the maximum of 64 KiB.
pub(super) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(4 + value.len()).expect("attributes of requests are short");
    let mut bytes = [length.to_ne_bytes(), kind.to_ne_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

/// Consecutive attributes, without the flags of their types, up to the first truncated one.
pub(super) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)?;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & !NLA_FLAGS, value))
    })
}

/// Value of the first attribute of that type.
pub(super) fn find(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(found, _)| *found == kind).map(|(_, value)| value)
}

/// The type of a message.
pub(super) fn message_type(message: &[u8]) -> Option<u16> {
    u16_at(message, 4)
}

/// Whether a message is an error or an acknowledgement, which is an error of code 0.
pub(super) fn is_error(message: &[u8]) -> Option<bool> {
    Some(message_type(message)? == NLMSG_ERROR)
}

/// Result of a request that has no other response; `None` if the message is something else, or truncated.
pub(super) fn acknowledgement(message: &[u8]) -> Option<std::io::Result<()>> {
    if !is_error(message)? {
        return None;
    }
    let code = i32::from_ne_bytes(message.get(HEADER_BYTES..HEADER_BYTES + 4)?.try_into().ok()?);
    Some(match code {
        0 => Ok(()),
        code => Err(std::io::Error::from_raw_os_error(-code)),
    })
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found_again() {
        let both = [attribute(1, b"abc"), attribute(2 | NLA_F_NESTED, &attribute(3, &[7]))].concat();
        assert_eq!(both.len(), 8 + 12);
        assert_eq!(find(&both, 1), Some(&b"abc"[..]));
        assert_eq!(find(&both, 2).and_then(|nested| find(nested, 3)), Some(&[7][..]));
        assert_eq!(find(&both[..18], 2), None, "it is cut off");
        assert_eq!(find(&[0; 8], 1), None, "a length of zero");
    }
}
