//! Fuzzes the parser of DNS answers.

use agent::dns::answer::answer;

/// Bytes as a DNS message. A name that is learned is one that a policy can have, and has an address.
///
/// # Panics
/// If that does not hold.
pub fn dns_answers(bytes: &[u8]) {
    let Some(answer) = answer(bytes) else { return };
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    assert!(answer.name.bytes().all(is_plain), "{answer:?}");
    assert!(!answer.addresses.is_empty(), "{answer:?}");
    assert!(answer.addresses.iter().all(|(_, ttl)| *ttl <= i32::MAX as u32), "{answer:?}");
}
