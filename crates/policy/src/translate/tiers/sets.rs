//! The sets that the rules of a tier look up. Their names depend on their content, so programs share them.

use std::sync::Arc;

use nft::{Comment, Datum, Element, Family, Key, KeyType, Name, Set};

use super::TierEmitter;
use super::comments::comment_leading;
use crate::translate::layout::address_type;
use crate::translate::names;
use crate::translate::program_objects::SharedSet;
use crate::translate::roles::DecidedKind;
use crate::translate::set_contents::{PeerSet, PeersOf};
use crate::translate::tier_rules::{AddressRange, OwnRules, TierDecision, TierRules};
use crate::translate::tier_sets::{DecidedBy, DecisionSet};

impl TierEmitter<'_> {
    /// The set of the known addresses, or of those outside.
    pub(super) fn state_set(&mut self, family: Family, of: PeersOf) -> Name {
        let is_outside = of == PeersOf::Outside;
        let (name, about) = match is_outside {
            true => (names::outside_set(family), "addresses outside of the pod ranges of nodes"),
            false => (names::known_set(family), "known pods and nodes"),
        };
        self.shared(name, about, &[address_type(family)], |set| SharedSet {
            set: Set { interval: is_outside, ..set },
            peers: Some(PeerSet { family, of }),
        })
    }

    pub(super) fn decided_set(
        &mut self,
        family: Family,
        of: &DecidedBy,
        decision: TierDecision,
        only_denies: bool,
    ) -> Name {
        let about = comment_leading(of, decision, only_denies);
        let name = names::decided_set(family, DecidedKind::Members, decision, only_denies, &about, &identity(of));
        let of = PeersOf::Decided(DecisionSet { of: of.clone(), decision, only_denies });
        self.shared(name, &about, &[address_type(family)], |set| SharedSet { set, peers: Some(PeerSet { family, of }) })
    }

    pub(super) fn named_set(
        &mut self,
        family: Family,
        tier: &Arc<TierRules>,
        decision: TierDecision,
        only_denies: bool,
    ) -> Name {
        let named = tier.named();
        let ports: Vec<String> = named.iter().map(|(name, protocol)| format!("{name}/{protocol}")).collect();
        let about = ports.join(" ");
        let segments: Vec<(&str, Vec<_>)> = tier
            .segments
            .iter()
            .map(|(protocol, segments)| {
                (protocol.as_str(), segments.iter().map(|s| (s.first, s.last, &s.own)).collect())
            })
            .collect();
        let name = names::decided_set(
            family,
            DecidedKind::NamedPorts,
            decision,
            only_denies,
            &about,
            &(&tier.base.digest, segments),
        );
        let of =
            PeersOf::Decided(DecisionSet { of: DecidedBy::NamedPorts(named, tier.clone()), decision, only_denies });
        let types = [address_type(family), KeyType::InetProto, KeyType::InetService];
        self.shared(name, &about, &types, |set| SharedSet { set, peers: Some(PeerSet { family, of }) })
    }

    pub(super) fn network_set(
        &mut self,
        family: Family,
        of: &DecidedBy,
        decision: TierDecision,
        only_denies: bool,
        ranges: &[(Datum, Datum)],
    ) -> Name {
        let about = comment_leading(of, decision, only_denies);
        let name = names::decided_set(family, DecidedKind::Networks, decision, only_denies, &about, &identity(of));
        self.intervals(name, family, &about, ranges)
    }

    pub(super) fn intervals(&mut self, name: Name, family: Family, about: &str, ranges: &[(Datum, Datum)]) -> Name {
        self.shared(name, about, &[address_type(family)], |set| {
            let elements = ranges.iter().map(|(first, last)| (Key::Range(*first, *last), Element::default())).collect();
            SharedSet { set: Set { interval: true, elements, ..set }, peers: None }
        })
    }

    /// Adds a shared set once; its name depends on its content.
    pub(super) fn shared(
        &mut self,
        name: Name,
        about: &str,
        types: &[KeyType],
        fill: impl FnOnce(Set) -> SharedSet,
    ) -> Name {
        let set = || Set { comment: Some(Comment::new(about)), ..Set::of(types) };
        self.fragment.sets.entry(name.clone()).or_insert_with(|| fill(set()));
        name
    }
}

/// The parts that distinguish the rules from others.
pub(super) fn identity(of: &DecidedBy) -> (Option<&OwnRules>, &str) {
    match of {
        DecidedBy::Base(base) => (None, &base.digest),
        DecidedBy::Own(own, base) | DecidedBy::Learned(own, base) => (Some(own), &base.digest),
        DecidedBy::NamedPorts(_, tier) => (None, &tier.base.digest),
    }
}

/// The ranges of the decision; adjacent ones are joined.
pub(super) fn joined(networks: &[AddressRange], decision: TierDecision) -> Vec<(u128, u128)> {
    let mut ranges: Vec<(u128, u128)> = Vec::new();
    for (first, last, _) in networks.iter().filter(|(_, _, other)| *other == decision) {
        match ranges.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(*first) => *end = *last,
            _ => ranges.push((*first, *last)),
        }
    }
    ranges
}
