//! Strict JSON parsing: the type must be right and every field known. Null counts as absent.

use std::net::IpAddr;

use serde_json::Value;

/// An invalid or unsupported value. The caller must deny.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotUnderstood;

/// The named members of an object, in the order of `names`. Not understood: anything but an object, and an object
/// with any other member.
pub(super) fn fields<'a, const N: usize>(
    value: &'a Value,
    names: [&str; N],
) -> Result<[Option<&'a Value>; N], NotUnderstood> {
    let members = value.as_object().ok_or(NotUnderstood)?;
    for (name, member) in members {
        if !member.is_null() && !names.contains(&name.as_str()) {
            return Err(NotUnderstood);
        }
    }
    Ok(names.map(|name| member(value, name)))
}

/// One member of an object; `None` when it is absent or null, or when this is not an object.
pub(super) fn member<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    value.get(name).filter(|member| !member.is_null())
}

/// A list; absent is empty.
pub(super) fn list(value: Option<&Value>) -> Result<&[Value], NotUnderstood> {
    match value {
        None => Ok(&[]),
        Some(Value::Array(items)) => Ok(items),
        Some(_) => Err(NotUnderstood),
    }
}

pub(super) fn string(value: &Value) -> Result<&str, NotUnderstood> {
    value.as_str().ok_or(NotUnderstood)
}

/// An integer from 1 to 65535.
pub(super) fn port_number(value: &Value) -> Result<u16, NotUnderstood> {
    let number = value.as_u64().ok_or(NotUnderstood)?;
    u16::try_from(number).ok().filter(|port| *port != 0).ok_or(NotUnderstood)
}

/// Whether `block`, a CIDR, holds the address. Host bits of the CIDR do not count; an IPv4 block holds no IPv6
/// address and the reverse.
pub(super) fn cidr_holds(block: &Value, address: IpAddr) -> Result<bool, NotUnderstood> {
    let (network, length) = string(block)?.split_once('/').ok_or(NotUnderstood)?;
    let network: IpAddr = network.parse().map_err(|_| NotUnderstood)?;
    if length.is_empty() || !length.chars().all(|c| c.is_ascii_digit()) {
        return Err(NotUnderstood);
    }
    let length: u32 = length.parse().map_err(|_| NotUnderstood)?;
    if length > if network.is_ipv4() { 32 } else { 128 } {
        return Err(NotUnderstood);
    }
    Ok(match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            let differing = network.to_bits() ^ address.to_bits();
            differing.leading_zeros() >= length
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => {
            let differing = network.to_bits() ^ address.to_bits();
            differing.leading_zeros() >= length
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    })
}
