//! Names of chains and sets: their content in clear text if that is short and unambiguous, else a hint and a digest.
//! Different contents never share a name. The prefix of a name is that of its [role](super::roles).

use std::collections::BTreeSet;
use std::sync::Arc;

use nft::{Comment, Element, Elements, Family, Key, Name, Verdict};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::audit::AuditRole;
use super::layout::fixed;
use super::roles::{ChainRole, DecidedKind, NameRole, PortOwner, SetRole};
use super::tier_rules::TierDecision;
use super::{Direction, NamedPorts};
use crate::peers::{NamedPeers, Namespaces, PeerUnion, PodPeer, describe};
use crate::{Block, Operator, Policy};

/// Longest clear text. It leaves room within nft's 127 bytes for the prefixes and suffixes below.
const LONGEST_CLEAR: usize = 90;
/// Longest hint beside a digest.
const LONGEST_HINT: usize = 40;

/// The program of cluster policies: `cluster-egress/<policy>_<policy>` for the Admin tier alone, else with a digest.
/// The policies of a tier are in the order of evaluation, with whether they certainly select the pods; `policies` is
/// the program of the pods' NetworkPolicies, and `pending` their pending program. Policies that decide nothing leave the
/// name to `audited`.
pub(super) fn tier_program(
    role: ChainRole,
    admin: &[(Arc<str>, bool)],
    baseline: &[(Arc<str>, bool)],
    policies: Option<&str>,
    named: &NamedPorts,
    pending: Option<&str>,
) -> Name {
    let mut written: Vec<&str> = admin.iter().chain(baseline).map(|(name, _)| &**name).collect();
    if written.is_empty() {
        written.push("audited");
    }
    let is_plain = |text: &str| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.';
        !text.is_empty() && text.bytes().all(plain)
    };
    let clear = baseline.is_empty()
        && policies.is_none()
        && pending.is_none()
        && !admin.is_empty()
        && named.is_empty()
        && admin.iter().all(|(name, certain)| *certain && is_plain(name));
    let named: Vec<(&str, &str, u16)> =
        named.iter().map(|((name, protocol), number)| (&**name, protocol.as_str(), *number)).collect();
    let identity = (admin, baseline, policies, named);
    match pending {
        None => name(role, written.join("_"), !clear, &identity),
        Some(pending) => name(role, written.join("_"), true, &(identity, pending)),
    }
}

/// The chain of the Baseline tier in a program of cluster policies.
pub(super) fn baseline(program: &Name) -> Name {
    fixed(&format!("{program}/baseline"))
}

/// The chain of a tier for pods that are not known yet.
pub(super) fn of_unknown(chain: &Name) -> Name {
    fixed(&format!("{chain}/unknown"))
}

/// The set of the addresses of known pods and nodes, which programs of cluster policies share.
pub(super) fn known_set(family: Family) -> Name {
    fixed(&format!("{}/pods-and-nodes", SetRole::TierKnown(family).prefix()))
}

/// The set of the addresses that are in the pod range of no node, which programs of cluster policies share.
pub(super) fn outside_set(family: Family) -> Name {
    fixed(&format!("{}/pod-ranges", SetRole::TierOutside(family).prefix()))
}

/// The chain that decides about the other end of a flow by the rules of a tier.
pub(super) fn tier_judge(direction: Direction, role: AuditRole, hint: &str, identity: &impl Serialize) -> Name {
    name(ChainRole::TierJudge(direction, role), hint.into(), true, identity)
}

/// The addresses that rules lead to the decision.
pub(super) fn decided_set(
    family: Family,
    kind: DecidedKind,
    decision: TierDecision,
    only_denies: bool,
    hint: &str,
    rules: &impl Serialize,
) -> Name {
    let role = SetRole::decided(family, kind, decision, only_denies);
    name(role, hint.into(), true, &(rules, decision, only_denies))
}

/// `egress/<namespace>/<policy>_<policy>`, with `/<port>-<protocol>-<number>` for the named ports that it resolves;
/// `audit-egress/…` for an audited program, `pending-egress/…` for a pending one.
pub(super) fn program(direction: Direction, role: AuditRole, policies: &[Arc<Policy>], named: &NamedPorts) -> Name {
    let namespace = policies.first().map_or("", |p| &*p.name.namespace);
    let names: Vec<&str> = policies.iter().map(|p| &*p.name.name).collect();
    let ports: Vec<(&str, &str, u16)> = named.iter().map(|((n, p), number)| (&**n, p.as_str(), *number)).collect();
    let written: Vec<String> =
        ports.iter().map(|(name, protocol, number)| format!("{name}-{protocol}-{number}")).collect();
    let mut clear = format!("{namespace}/{}", names.join("_"));
    if !written.is_empty() {
        clear.push('/');
        clear.push_str(&written.join("_"));
    }
    // Kubernetes names contain neither `_` nor `/`, so the separators are unambiguous; manifests may contain anything.
    let plain = |text: &str| {
        !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
    };
    let mistakable = !plain(namespace) || !names.iter().all(|n| plain(n)) || !ports.iter().all(|(n, ..)| plain(n));
    name(ChainRole::Program(direction, role), clear, mistakable, &(namespace, names, ports))
}

/// The verdict map of a program for one protocol, from single ports.
pub(super) fn port_map(program: &Name, protocol: nft::Protocol) -> Name {
    fixed(&format!("{program}/{protocol}"))
}

/// The verdict map of a program for one protocol, from ranges of ports. The name depends on the elements, so that a
/// commit never changes them in place: the kernel publishes changed intervals some time after changed rules
/// (`nft_rbtree_commit`), and a packet in between that finds a removed element would be approved by the new rules, in
/// the new generation. It finds nothing in a new map.
pub(super) fn range_map(program: &Name, protocol: nft::Protocol, elements: &Elements) -> Name {
    let written = |(key, Element { verdict, comment }): (Key, &Element)| {
        (key.to_string(), verdict.as_ref().map(Verdict::to_string), comment.as_ref().map(Comment::to_string))
    };
    let written: Vec<_> = elements.iter().map(written).collect();
    let owner = match ChainRole::of(program).is_of_tiers() {
        true => PortOwner::ClusterPolicies,
        false => PortOwner::NetworkPolicies,
    };
    name(
        SetRole::RangeMap(owner),
        format!("{program}-{protocol}"),
        true,
        &(program.as_str(), protocol.as_str(), written),
    )
}

/// The chain that allows a union of peers: `to/…`, `from/…`, `audit-to/…`, `audit-from/…`.
pub(super) fn peers_chain(direction: Direction, role: AuditRole, peers: &PeerUnion) -> Name {
    let role = ChainRole::Peers(direction, role);
    match (peers.pods.is_empty(), peers.blocks.is_empty()) {
        (false, true) => pods(role.into(), &peers.pods),
        (true, _) => blocks(role.into(), &peers.blocks),
        (false, false) => {
            let hint = format!("{}; {}", describe(&peers.pods), describe(&peers.blocks));
            name(role, hint, true, &(&peers.pods, &peers.blocks))
        }
    }
}

/// The chain that allows the union of the layers with these digests.
pub(super) fn layered_chain(direction: Direction, role: AuditRole, layers: &[&str]) -> Name {
    name(ChainRole::Peers(direction, role), "layers".into(), true, &("layers", layers))
}

/// The set of the addresses of the pods selected by `base` and by none of `variants`.
pub(super) fn excluded_set(family: Family, base: &PodPeer, variants: &BTreeSet<PodPeer>) -> Name {
    name(SetRole::Excluded(family), base.to_string(), true, &(base, variants))
}

/// The set of the pods' addresses.
pub(super) fn pod_set(family: Family, peers: &BTreeSet<PodPeer>) -> Name {
    pods(SetRole::Pods(family).into(), peers)
}

/// The set of the blocks' addresses.
pub(super) fn block_set(family: Family, peers: &BTreeSet<Block>) -> Name {
    blocks(SetRole::Blocks(family).into(), peers)
}

/// The set of addresses and ports that pods resolve these names to.
pub(super) fn named_set(family: Family, peers: &NamedPeers) -> Name {
    let names: Vec<&str> = peers.keys().map(|(name, _)| &**name).collect();
    let identity: Vec<_> = peers.iter().map(|((name, protocol), targets)| (name, protocol.as_str(), targets)).collect();
    name(SetRole::NamedPorts(family), names.join("-"), true, &identity)
}

/// `<namespace>` for all its pods, `<namespace>/<key>/<value>` for those with one label.
fn pods(role: NameRole, peers: &BTreeSet<PodPeer>) -> Name {
    let clear = match peers.first() {
        Some(PodPeer { namespaces: Namespaces::Named(namespace), pods }) if peers.len() == 1 && is_label(namespace) => {
            let requirements: Vec<_> = pods.requirements().collect();
            match requirements[..] {
                [] => Some(namespace.to_string()),
                [r] => match &r.operator {
                    Operator::In(values) if values.len() == 1 && is_label_key(&r.key) => {
                        let value = values.first().filter(|value| is_label_part(value));
                        value.map(|value| format!("{namespace}/{}/{value}", r.key))
                    }
                    Operator::In(_) | Operator::NotIn(_) | Operator::Exists | Operator::DoesNotExist => None,
                },
                _ => None,
            }
        }
        _ => None,
    };
    let mistakable = clear.is_none();
    name(role, clear.unwrap_or_else(|| describe(peers)), mistakable, peers)
}

/// `<address>/<length>` for one IPv4 block without exceptions.
fn blocks(role: NameRole, peers: &BTreeSet<Block>) -> Name {
    let plain = peers.len() == 1 && peers.iter().all(|b| b.except.is_empty() && b.cidr.addr().is_ipv4());
    name(role, describe(peers), !plain, peers)
}

/// Whether the text is a namespace name (RFC 1123 label), which `_`, the start of names with a digest, is not.
fn is_label(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// In Kubernetes, the prefix, the name and the value of a label contain no slash (and are not empty here), so the
/// slashes of a clear-text name are unambiguous. A manifest may contain anything.
fn is_label_part(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text.split_once('/').unwrap_or(("none", text));
    is_label_part(prefix) && is_label_part(name)
}

/// `<prefix>/<clear>`, or `<prefix>/_/<hint>/<digest of the identity>` if that would be ambiguous, too long, or not a
/// valid name.
fn name(role: impl Into<NameRole>, clear: String, mistakable: bool, identity: &impl Serialize) -> Name {
    let role = role.into();
    let prefix = role.prefix();
    let in_clear = || Name::new(&format!("{prefix}/{clear}")).ok();
    let name = match !mistakable && clear.len() <= LONGEST_CLEAR {
        true => in_clear(),
        false => None,
    };
    let with_digest = || {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        let mut hint: String = clear.chars().map(plain).collect();
        hint.truncate(LONGEST_HINT);
        fixed(&format!("{prefix}/_/{}/{}", hint.trim_matches('-'), digest(identity)))
    };
    let name = name.unwrap_or_else(with_digest);
    debug_assert!(role.is_of(&name), "{name} has another role than {role:?}");
    name
}

/// Length of a digest in characters: 128 bits, five per character.
const DIGEST_CHARACTERS: u32 = 26;

/// 128 bits of SHA-256 over the JSON form, in base32: a collision of two selectors takes some 2^64 attempts to find.
pub(crate) fn digest(identity: &impl Serialize) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let json = match serde_json::to_vec(identity) {
        Ok(json) => json,
        Err(e) => unreachable!("names and selectors are plain data: {e}"),
    };
    let hash = Sha256::digest(&json);
    let bits = hash[..16].iter().fold(0u128, |acc, byte| acc << 8 | u128::from(*byte));
    // The last character holds the three lowest bits, followed by two zeros.
    let character = |i: u32| match 123_u32.checked_sub(5 * i) {
        Some(shift) => bits >> shift,
        None => bits << 2,
    };
    (0..DIGEST_CHARACTERS).map(|i| char::from(ALPHABET[character(i) as usize & 31])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Requirement, Selector};

    fn set_of(key: &str, value: &str) -> String {
        let operator = Operator::In([value.into()].into_iter().collect());
        let pods = Selector::of([Requirement { key: key.into(), operator }]);
        let peer = PodPeer { namespaces: Namespaces::Named("shop".into()), pods };
        pod_set(Family::V4, &[peer].into()).to_string()
    }

    #[test]
    fn digest_holds_every_bit_of_128() {
        let decode = |digest: &str| {
            let value = |c: u8| u128::from(if c.is_ascii_lowercase() { c - b'a' } else { c - b'2' + 26 });
            let (last, rest) = digest.as_bytes().split_last().unwrap();
            rest.iter().fold(0u128, |bits, c| bits << 5 | value(*c)) << 3 | value(*last) >> 2
        };
        for identity in ["a", "b", "shop"] {
            let hash = Sha256::digest(serde_json::to_vec(identity).unwrap());
            assert_eq!(decode(&digest(&identity)).to_be_bytes(), hash[..16]);
        }
    }

    #[test]
    fn longest_name_with_digest_fits_nft() {
        let namespace = "n".repeat(63);
        let values: crate::selector::Values =
            (0..9).map(|n| format!("{n}{}", "v".repeat(62)).as_str().into()).collect();
        let pods = Selector::of([Requirement { key: "k".repeat(63).as_str().into(), operator: Operator::In(values) }]);
        let peers = BTreeSet::from([PodPeer { namespaces: Namespaces::Named(namespace.as_str().into()), pods }]);
        let name = pod_set(Family::V4, &peers);
        assert!(name.as_str().len() <= 127 && name.as_str().rsplit('/').next().unwrap().len() == 26, "{name}");
    }

    #[test]
    fn labels_with_equal_joined_text_get_distinct_sets() {
        assert_eq!(set_of("app", "web"), "pods4/shop/app/web");
        assert_eq!(set_of("a/b", "c"), "pods4/shop/a/b/c");
        for (key, value) in [("a", "b/c"), ("a/b/c", "d"), ("a", ""), ("", "a"), ("/a", "b")] {
            assert!(set_of(key, value).starts_with("pods4/_/"), "{key}={value}");
        }
        assert_ne!(set_of("a", "b/c"), set_of("a/b", "c"));
    }
}
