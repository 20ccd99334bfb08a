//! One table as read from the kernel, for comparison with the wanted ruleset.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::expression::{Compare, CtKey, Expression, Register, VerdictCode};
use crate::lower::SetHeader;

/// One table at one generation.
///
/// Flowtables and named stateful objects are not read: they have no effect unless a rule refers to them, and such a
/// rule is foreign.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableSnapshot {
    /// The kernel generation (of all tables of the namespace) of this snapshot.
    pub generation: u32,
    /// Table flags (`NFT_TABLE_F_*`).
    pub flags: u32,
    /// The port id of the socket that owns the table, while that socket is open.
    pub owner: Option<u32>,
    /// From the user data of the table.
    pub comment: Option<String>,
    /// By name.
    pub chains: BTreeMap<String, ObservedChain>,
    /// Sets and maps by name, without anonymous sets.
    pub sets: BTreeMap<String, ObservedSet>,
}

/// A chain as the kernel stores it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedChain {
    /// Set for a base chain.
    pub hook: Option<ObservedHook>,
    /// The chain has a property that the language cannot express: a comment, several devices, hardware offload.
    pub foreign: bool,
    /// In the order of evaluation.
    pub rules: Vec<ObservedRule>,
}

/// The hook of a base chain as the kernel reports it (`NFTA_CHAIN_HOOK`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedHook {
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// `NF_INET_*`
    pub number: u32,
    /// Ascending in the order of evaluation; `filter` is 0 for `inet` and -200 for `bridge`.
    pub priority: i32,
    /// `NF_ACCEPT` or `NF_DROP`
    pub policy: u32,
    /// The interface of a chain of family `netdev`.
    pub device: Option<String>,
}

/// A rule as the kernel stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedRule {
    /// Assigned by the kernel, unique within the table, by which a rule is deleted.
    pub handle: u64,
    /// The bytecode; `None` if the language lacks part of it.
    pub expressions: Option<Vec<Expression>>,
    /// From the user data of the rule.
    pub comment: Option<String>,
}

/// A set or map as the kernel stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedSet {
    /// Compared with [`SetHeader::of`] the wanted set.
    pub header: SetHeader,
    /// The set has a property that the language cannot express: a collection interval, an eviction policy, expressions.
    pub foreign: bool,
    /// Not read for a dynamic set, whose elements rules add.
    pub elements: Vec<RawElement>,
}

/// An element as the kernel stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawElement {
    /// The fields in network order, padded as in the set's key. Empty for a catch-all element.
    pub key: Vec<u8>,
    /// The element is the end of a range, one past its last value.
    pub end: bool,
    /// `None` in a set, and at the end of a range.
    pub verdict: Option<VerdictCode>,
    /// From the user data of the element.
    pub comment: Option<Box<str>>,
    /// The element starts a range up to the largest value. Only written, since nft expects it; not read back.
    pub open: bool,
    /// The element has a property that the language cannot express: a timeout, a counter, a reference to an object.
    pub foreign: bool,
}

impl RawElement {
    pub(crate) fn of_key(key: Vec<u8>) -> RawElement {
        RawElement { key, end: false, verdict: None, comment: None, open: false, foreign: false }
    }
}

impl TableSnapshot {
    /// The table's comment, which identifies its owner.
    pub fn comment(&self) -> Option<&str> {
        self.comment.as_deref()
    }

    /// The port id of the owning socket, if it differs from `port`: until that socket is closed, the kernel refuses
    /// every change of the table (`EPERM`).
    pub fn held_by_other(&self, port: u32) -> Option<u32> {
        self.owner.filter(|owner| *owner != port)
    }

    /// The `value` of the rule `ct mark & mask == value accept` in a chain, if there is one.
    pub fn accepted_mark(&self, chain: &str, mask: u32) -> Option<u32> {
        self.accepted_marks(chain).find(|(of, _)| *of == mask).map(|(_, value)| value)
    }

    /// `mask` and `value` of the rules `ct mark & mask == value accept` in a chain.
    pub fn accepted_marks(&self, chain: &str) -> impl Iterator<Item = (u32, u32)> {
        let rules = self.chains.get(chain).into_iter().flat_map(|chain| &chain.rules);
        rules.filter_map(|rule| mark_of_accept_rule(rule.expressions.as_deref()?))
    }

    /// The group of nfnetlink_log that the table's rules log to with a prefix that begins like this, if any.
    pub fn log_group(&self, begin: &str) -> Option<u16> {
        let rules = self.chains.values().flat_map(|chain| &chain.rules);
        rules.flat_map(|rule| rule.expressions.iter().flatten()).find_map(|expression| match expression {
            Expression::Log { group, prefix, .. } if prefix.starts_with(begin) => Some(*group),
            _ => None,
        })
    }

    /// The single addresses in a set; empty if there is no such set.
    pub fn addresses(&self, set: &str) -> Vec<IpAddr> {
        let address = |element: &RawElement| match <[u8; 4]>::try_from(&element.key[..]) {
            Ok(v4) => Some(IpAddr::from(v4)),
            Err(_) => <[u8; 16]>::try_from(&element.key[..]).ok().map(IpAddr::from),
        };
        self.sets.get(set).into_iter().flat_map(|set| set.elements.iter().filter_map(address)).collect()
    }

    /// The element count of all sets, counting both ends of a range.
    pub fn element_count(&self) -> usize {
        self.sets.values().map(|s| s.elements.len()).sum()
    }
}

fn mark_of_accept_rule(expressions: &[Expression]) -> Option<(u32, u32)> {
    let [Expression::Ct { key: CtKey::Mark, direction: None, .. }, masked, compared, decided] = expressions else {
        return None;
    };
    let Expression::Bitwise { from: Register::FIRST, to: Register::FIRST, mask, xor } = masked else { return None };
    let Expression::Cmp { operator: Compare::Equal, data, .. } = compared else { return None };
    let number = |bytes: &[u8]| Some(u32::from_ne_bytes(bytes.try_into().ok()?));
    let is_accepted = *xor == [0; 4] && *decided == Expression::Verdict(VerdictCode::Accept);
    is_accepted.then_some((number(mask)?, number(data)?))
}
