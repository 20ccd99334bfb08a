//! What the kernel holds of one table, as it was read: the far side of the comparison.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::expression::{Compare, CtKey, Expression, Register, Verdict};
use crate::lower::SetHeader;

/// One table at one generation.
///
/// Flowtables and named stateful objects are not read: they do nothing unless a rule names them, and such a rule is
/// found to be foreign.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The generation of the ruleset (of all tables of the namespace) at which this was read.
    pub generation: u32,
    /// Table flags (`NFT_TABLE_F_*`).
    pub flags: u32,
    /// The port id of the socket that owns the table, while that socket is open.
    pub owner: Option<u32>,
    pub comment: Option<String>,
    pub chains: BTreeMap<String, ObservedChain>,
    pub sets: BTreeMap<String, ObservedSet>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedChain {
    /// Set for a base chain.
    pub hook: Option<ObservedHook>,
    /// It has something that the language cannot say: a comment, several devices, hardware offload.
    pub foreign: bool,
    pub rules: Vec<ObservedRule>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedHook {
    /// `filter`, `nat` or `route`.
    pub kind: String,
    /// `NF_INET_*`
    pub number: u32,
    pub priority: i32,
    /// `NF_ACCEPT` or `NF_DROP`
    pub policy: u32,
    /// The interface of a chain of family `netdev`.
    pub device: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedRule {
    pub handle: u64,
    /// The bytecode; none if any of it is not of the language.
    pub expressions: Option<Vec<Expression>>,
    pub comment: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObservedSet {
    pub header: SetHeader,
    /// It has something that the language cannot say: a collection interval, an eviction policy, expressions.
    pub foreign: bool,
    /// Those of a dynamic set are not read: they are the kernel's.
    pub elements: Vec<RawElement>,
}

/// An element as the kernel stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawElement {
    /// The fields in network order, padded as the set says. Empty for a catch-all element.
    pub key: Vec<u8>,
    /// It is the end of a range, one past its last value.
    pub end: bool,
    pub verdict: Option<Verdict>,
    pub comment: Option<Box<str>>,
    /// It starts a range up to the largest value. Only written, for nft's sake; reading does not set it.
    pub open: bool,
    /// It has something that the language cannot say: a timeout, a counter, a reference to an object.
    pub foreign: bool,
}

impl RawElement {
    pub(crate) fn of_key(key: Vec<u8>) -> RawElement {
        RawElement { key, end: false, verdict: None, comment: None, open: false, foreign: false }
    }
}

/// The chain of which a rule tells the generation of approved flows.
const FORWARD: &str = "forward";

impl Observed {
    /// The table's comment, by which its owner knows it.
    pub fn comment(&self) -> Option<&str> {
        self.comment.as_deref()
    }

    /// The socket that owns the table, if it is not the one with this port id: until it is closed, whatever would
    /// change the table is refused (`EPERM`).
    pub fn held_by_other(&self, port: u32) -> Option<u32> {
        self.owner.filter(|owner| *owner != port)
    }

    /// The value for which a rule of chain `forward` is `ct mark & mask == value accept`, if one is that.
    pub fn generation_mark(&self, mask: u32) -> Option<u32> {
        self.chains.get(FORWARD)?.rules.iter().find_map(|rule| approved_mark(rule.expressions.as_deref()?, mask))
    }

    /// The group of nfnetlink_log that the table's rules log to, if any do.
    pub fn log_group(&self) -> Option<u16> {
        let rules = self.chains.values().flat_map(|chain| &chain.rules);
        rules.flat_map(|rule| rule.expressions.iter().flatten()).find_map(|expression| match expression {
            Expression::Log { group, .. } => Some(*group),
            _ => None,
        })
    }

    /// The addresses that a set holds one by one; none if there is no such set.
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

fn approved_mark(expressions: &[Expression], mask: u32) -> Option<u32> {
    let [Expression::Ct { key: CtKey::Mark, direction: None, .. }, masked, compared, decided] = expressions else {
        return None;
    };
    let expected = Expression::Bitwise {
        from: Register::FIRST,
        to: Register::FIRST,
        mask: mask.to_ne_bytes().to_vec(),
        xor: vec![0; 4],
    };
    match (compared, decided) {
        (Expression::Cmp { operator: Compare::Equal, data, .. }, Expression::Verdict(Verdict::Accept))
            if *masked == expected =>
        {
            data[..].try_into().ok().map(u32::from_ne_bytes)
        }
        _ => None,
    }
}
