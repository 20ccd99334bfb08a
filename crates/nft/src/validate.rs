//! Finds rulesets that the kernel would refuse, before they are committed.

mod incremental;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

use crate::packet_reads::FieldSource;
use crate::{
    Action, Chain, Datum, Element, Family, Field, Hook, Key, KeyType, Match, Name, Operation, Rule, Ruleset, Set,
    Table, TableFamily, Verdict,
};
pub use incremental::ValidatedRuleset;

/// A defect of a ruleset. The kernel accepts a ruleset without defects, memory permitting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// A jump, a goto or an element of a verdict map: the kernel fails with `ENOENT`.
    #[error("{user} refers to chain {chain}, which does not exist")]
    NoChain {
        /// Holder of the reference: `chain NAME` or `map NAME`.
        user: String,
        /// The missing chain.
        chain: Name,
    },
    /// The kernel fails with `EOPNOTSUPP`: only a hook enters a base chain.
    #[error("{user} jumps to base chain {chain}")]
    IntoBaseChain {
        /// Holder of the reference: `chain NAME` or `map NAME`.
        user: String,
        /// The base chain.
        chain: Name,
    },
    /// The kernel fails with `ENOENT`.
    #[error("{user} refers to set {set}, which does not exist")]
    NoSet {
        /// Holder of the reference: `chain NAME`.
        user: String,
        /// The missing set or map.
        set: Name,
    },
    /// Types of the fields, kind of the set (set, verdict map, dynamic) or number of fields of an interval set differ.
    #[error("{user} uses set {set} with a key of another type")]
    WrongKey {
        /// Holder of the reference: `chain NAME`.
        user: String,
        /// The set or map as declared.
        set: Name,
    },
    /// Types, range or verdict differ from the declaration of the set, or a range ends before it starts.
    #[error("element {key} of set {set} does not match the type of the set")]
    WrongElement {
        /// Set or map of the element.
        set: Name,
        /// The element at fault.
        key: Key,
    },
    /// The kernel refuses overlaps, and `auto-merge` of nft would join adjacent ranges of one verdict.
    #[error("set {set} has overlapping or adjacent ranges at {key}")]
    Overlap {
        /// The interval set.
        set: Name,
        /// The second range of the two.
        key: Key,
    },
    /// Protocols and interface names have no order that rules could use.
    #[error("set {set} has ranges of {word}, a type without ranges", word = .key_type.as_str())]
    NoRanges {
        /// The set declared with `flags interval`.
        set: Name,
        /// The type without ranges.
        key_type: KeyType,
    },
    /// [`Hook::family`](crate::Hook::family) differs from the family of the table.
    #[error("chain {chain} is at a hook that tables of family {word} do not have", word = .family.as_str())]
    Hook {
        /// The base chain.
        chain: Name,
        /// Family of the ruleset's table.
        family: TableFamily,
    },
    /// The condition is for [`TableFamily::Inet`] alone.
    #[error(
        "{user} matches a conntrack entry or an address family, which tables of families bridge and netdev do not \
         support"
    )]
    NotOnFrames {
        /// Holder of the rule: `chain NAME`.
        user: String,
    },
    /// The condition is for [`TableFamily::Bridge`] and [`TableFamily::Netdev`] alone.
    #[error("{user} matches the link header or ARP, which only tables of families bridge and netdev support")]
    OnlyOnFrames {
        /// Holder of the rule: `chain NAME`.
        user: String,
    },
    /// Other types of message have other bodies (RFC 792, RFC 4443), which the condition would misread.
    #[error("{user} reads the body of an ICMP message before a match on its type")]
    IcmpBodyWithoutType {
        /// Holder of the rule: `chain NAME`.
        user: String,
    },
    /// The kernel fails with `ELOOP` or `EMLINK`. Reported once, and only for a ruleset without other defects.
    #[error("jump loop through chain {chain}")]
    Loop {
        /// A chain of the loop.
        chain: Name,
    },
    /// Without the protocol, the type of `proto-src` and `proto-dst` is undefined.
    #[error("{user} reads a port of the conntrack entry before a match on the protocol, which nft refuses")]
    PortWithoutProtocol {
        /// Holder of the rule: `chain NAME`.
        user: String,
    },
    /// The kernel accepts such a rule, which would have no effect.
    #[error("{user} reads fields of both address families, so it never matches")]
    MixedFamilies {
        /// Holder of the rule: `chain NAME`.
        user: String,
    },
    /// See [`Match::Mark`] for the masks of the language.
    #[error("{user} uses mask {mask:#010x}: expected contiguous bits from the top")]
    Mask {
        /// Holder of the rule: `chain NAME`.
        user: String,
        /// The mask at fault.
        mask: u32,
    },
    /// See [`Rule::only_reports`]: a limit before a verdict would make the decision depend on the rate of packets.
    #[error("{user} has a rule that limits, records or logs and has another statement")]
    DecidesBesides {
        /// Holder of the rule: `chain NAME`.
        user: String,
    },
    /// See [`Set::dynamic`].
    #[error("set {set} is dynamic: expected a size, and no ranges, verdicts or static elements")]
    NotDynamic {
        /// The dynamic set at fault.
        set: Name,
    },
    /// The kernel fails with `ENFILE`, and treats a size of 0 as no limit.
    #[error("set {set} has {elements} elements, more than its size {size}, or the size is 0")]
    BeyondSize {
        /// The set or map.
        set: Name,
        /// Number of its elements.
        elements: usize,
        /// The declared size.
        size: u32,
    },
}

/// The part of a ruleset that a defect is in.
#[derive(Debug, Clone, Copy)]
enum RulesetPart<'a> {
    Set(&'a Name, &'a Arc<Set>),
    Element(&'a Name, &'a Arc<Set>, Key, &'a Element),
    Chain(&'a Name, Option<Hook>),
    Rule(&'a Name, &'a Rule),
}

impl RulesetPart<'_> {
    /// Holder of a reference, as in an error.
    fn user(self) -> String {
        match self {
            RulesetPart::Set(name, _) | RulesetPart::Element(name, ..) => format!("map {name}"),
            RulesetPart::Chain(name, _) | RulesetPart::Rule(name, _) => format!("chain {name}"),
        }
    }

    /// The operation that would add the part to the table.
    fn operation(self, table: Table) -> Operation {
        match self {
            RulesetPart::Set(name, set) => Operation::AddSet { table, name: name.clone(), set: set.clone() },
            RulesetPart::Element(name, set, key, element) => Operation::AddElements {
                table,
                name: name.clone(),
                set: set.clone(),
                elements: vec![(key, element.clone())],
            },
            RulesetPart::Chain(name, hook) => Operation::AddChain { table, chain: name.clone(), hook },
            RulesetPart::Rule(name, rule) => Operation::AddRule { table, chain: name.clone(), rule: rule.clone() },
        }
    }
}

/// A defect, with the smallest part of the ruleset that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidPart {
    /// The operation that would add the part to the table.
    pub operation: Operation,
    /// Why the kernel would refuse it.
    pub defect: Invalid,
}

impl Display for InvalidPart {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "invalid operation `{}`: {}", self.operation, self.defect)
    }
}

type Defects<'a> = Vec<(RulesetPart<'a>, Invalid)>;

impl Ruleset {
    /// Returns all defects.
    pub fn validate(&self) -> Vec<Invalid> {
        self.defects().into_iter().map(|(_, defect)| defect).collect()
    }

    /// All defects, each with the part that has it.
    pub fn invalid_parts(&self) -> Vec<InvalidPart> {
        let with_operation = |(part, defect): (RulesetPart<'_>, Invalid)| InvalidPart {
            operation: part.operation(self.table.clone()),
            defect,
        };
        self.defects().into_iter().map(with_operation).collect()
    }

    fn defects(&self) -> Defects<'_> {
        let mut found = Vec::new();
        for (name, set) in &self.sets {
            self.validate_set(name, set, &mut found);
        }
        for (name, chain) in &self.chains {
            self.validate_chain(name, chain, &mut found);
        }
        if found.is_empty() {
            self.find_loop(&mut found);
        }
        found
    }

    fn validate_set<'a>(&'a self, name: &'a Name, set: &'a Arc<Set>, found: &mut Defects<'a>) {
        found.extend(set.header_defects(name).into_iter().map(|defect| (RulesetPart::Set(name, set), defect)));
        let mut previous: Option<(Key, &Option<Verdict>)> = None;
        for (key, element) in &set.elements {
            let part = RulesetPart::Element(name, set, key, element);
            if !set.admits(key, element) {
                found.push((part, Invalid::WrongElement { set: name.clone(), key }));
            }
            if previous.is_some_and(|previous| overlaps(previous, (key, &element.verdict))) {
                found.push((part, Invalid::Overlap { set: name.clone(), key }));
            }
            self.validate_target(part, element.verdict.as_ref(), found);
            previous = Some((key, &element.verdict));
        }
    }

    fn validate_target<'a>(&'a self, part: RulesetPart<'a>, verdict: Option<&Verdict>, found: &mut Defects<'a>) {
        let Some(chain) = verdict.and_then(Verdict::target) else { return };
        match self.chains.get(chain) {
            None => found.push((part, Invalid::NoChain { user: part.user(), chain: chain.clone() })),
            Some(target) if target.hook.is_some() => {
                found.push((part, Invalid::IntoBaseChain { user: part.user(), chain: chain.clone() }));
            }
            Some(_) => {}
        }
    }

    fn validate_chain<'a>(&'a self, name: &'a Name, chain: &'a Chain, found: &mut Defects<'a>) {
        let family = self.table.family;
        if chain.hook.is_some_and(|hook| hook.family() != family) {
            found.push((RulesetPart::Chain(name, chain.hook), Invalid::Hook { chain: name.clone(), family }));
        }
        for rule in &chain.rules {
            self.validate_rule(RulesetPart::Rule(name, rule), rule, found);
        }
    }

    fn validate_rule<'a>(&'a self, part: RulesetPart<'a>, rule: &'a Rule, found: &mut Defects<'a>) {
        let family = self.table.family;
        let mask_is_bad = |mask: u32| mask == 0 || mask.leading_ones() + mask.trailing_zeros() != 32;
        if rule.reads_port_without_protocol() {
            found.push((part, Invalid::PortWithoutProtocol { user: part.user() }));
        }
        if family != TableFamily::Inet && rule.is_for_routed_packets() {
            found.push((part, Invalid::NotOnFrames { user: part.user() }));
        }
        if family == TableFamily::Inet && rule.matches.iter().any(|m| m.reads().source == FieldSource::Frame) {
            found.push((part, Invalid::OnlyOnFrames { user: part.user() }));
        }
        if rule.reads_icmp_body_without_type() {
            found.push((part, Invalid::IcmpBodyWithoutType { user: part.user() }));
        }
        if rule.families().len() > 1 {
            found.push((part, Invalid::MixedFamilies { user: part.user() }));
        }
        for condition in &rule.matches {
            match condition {
                // A lookup in a dynamic set counts the packet in the element it finds; `NotInSet` matches without
                // an element.
                Match::NotInSet { fields, set } if self.is_dynamic(set) => {
                    self.validate_record(part, fields, set, found);
                }
                Match::InSet { fields, set } | Match::NotInSet { fields, set } => {
                    self.validate_lookup(part, fields, set, false, found)
                }
                Match::Mark { mask, .. } if mask_is_bad(*mask) => {
                    found.push((part, Invalid::Mask { user: part.user(), mask: *mask }));
                }
                _ => {}
            }
        }
        if rule.actions.iter().any(Action::reports) && !rule.only_reports() {
            found.push((part, Invalid::DecidesBesides { user: part.user() }));
        }
        for action in &rule.actions {
            match action {
                Action::VerdictMap { field, map } => self.validate_lookup(part, &[*field], map, true, found),
                Action::Record { fields, set, .. } => self.validate_record(part, fields, set, found),
                Action::Verdict(verdict) => self.validate_target(part, Some(verdict), found),
                Action::SetMark { mask, .. } if mask_is_bad(*mask) => {
                    found.push((part, Invalid::Mask { user: part.user(), mask: *mask }));
                }
                Action::SetMark { .. }
                | Action::SetPriority(_)
                | Action::Counter
                | Action::Limit(_)
                | Action::Log(_) => {}
            }
        }
    }

    fn validate_lookup<'a>(
        &'a self,
        part: RulesetPart<'a>,
        fields: &[Field],
        name: &Name,
        verdicts: bool,
        found: &mut Defects<'a>,
    ) {
        let fits = |set: &Set| {
            let ranges_of_many = set.interval && fields.len() != 1;
            set.verdicts == verdicts && !ranges_of_many && set.dynamic.is_none()
        };
        self.validate_key(part, fields, name, fits, found);
    }

    fn validate_record<'a>(&'a self, part: RulesetPart<'a>, fields: &[Field], name: &Name, found: &mut Defects<'a>) {
        self.validate_key(part, fields, name, |set| set.dynamic.is_some(), found);
    }

    /// Checks that the set exists, fits, and has the fields as its key.
    fn validate_key<'a>(
        &'a self,
        part: RulesetPart<'a>,
        fields: &[Field],
        name: &Name,
        fits: impl Fn(&Set) -> bool,
        found: &mut Defects<'a>,
    ) {
        let types = fields.iter().map(|f| f.key_type());
        match self.sets.get(name) {
            None => found.push((part, Invalid::NoSet { user: part.user(), set: name.clone() })),
            Some(set) if types.eq(set.types.iter().copied()) && fits(set) => {}
            Some(_) => found.push((part, Invalid::WrongKey { user: part.user(), set: name.clone() })),
        }
    }

    fn is_dynamic(&self, set: &Name) -> bool {
        self.sets.get(set).is_some_and(|set| set.dynamic.is_some())
    }

    /// Searches the chain graph for jump loops, depth first without recursion.
    fn find_loop<'a>(&'a self, found: &mut Defects<'a>) {
        let mut edges: BTreeMap<&Name, BTreeSet<&Name>> = BTreeMap::new();
        for (name, chain) in &self.chains {
            edges.insert(name, self.targets(chain));
        }
        let mut done: BTreeSet<&Name> = BTreeSet::new();
        for start in self.chains.keys() {
            let mut path: Vec<(&Name, Vec<&Name>)> = vec![(start, edges[start].iter().copied().collect())];
            while let Some((name, rest)) = path.last_mut() {
                let name = *name;
                match rest.pop() {
                    None => {
                        done.insert(name);
                        path.pop();
                    }
                    Some(next) if path.iter().any(|(n, _)| *n == next) => {
                        found.push((RulesetPart::Chain(next, None), Invalid::Loop { chain: next.clone() }));
                        return;
                    }
                    Some(next) if !done.contains(next) => path.push((next, edges[next].iter().copied().collect())),
                    Some(_) => {}
                }
            }
        }
    }

    fn targets<'a>(&'a self, chain: &'a Chain) -> BTreeSet<&'a Name> {
        let mut targets = BTreeSet::new();
        for rule in &chain.rules {
            targets.extend(rule.verdict().and_then(Verdict::target));
            for action in &rule.actions {
                if let Action::VerdictMap { map, .. } = action {
                    let elements = self.sets[map].elements.values();
                    targets.extend(elements.filter_map(|e| e.verdict.as_ref().and_then(Verdict::target)));
                }
            }
        }
        targets
    }
}

/// Whether the ranges of consecutive elements overlap, or are adjacent with equal verdicts.
fn overlaps((key, verdict): (Key, &Option<Verdict>), (next, next_verdict): (Key, &Option<Verdict>)) -> bool {
    let (Key::Range(_, end), Key::Range(start, _)) = (key, next) else { return false };
    end >= start || end.successor().is_none_or(|after| after == start && verdict == next_verdict)
}

impl Set {
    /// The defects that depend on the elements only by their number.
    fn header_defects(&self, name: &Name) -> Vec<Invalid> {
        let mut found = Vec::new();
        if let Some(&key_type) = self.types.iter().find(|t| self.interval && !t.has_ranges()) {
            found.push(Invalid::NoRanges { set: name.clone(), key_type });
        }
        if self.dynamic.is_some()
            && (self.size.is_none() || self.interval || self.verdicts || !self.elements.is_empty())
        {
            found.push(Invalid::NotDynamic { set: name.clone() });
        }
        // The kernel treats a size of 0 as unlimited.
        if let Some(size) = self.size.filter(|size| *size == 0 || self.elements.len() > *size as usize) {
            found.push(Invalid::BeyondSize { set: name.clone(), elements: self.elements.len(), size });
        }
        found
    }

    /// Whether the element is of the declared types, range and verdict.
    fn admits(&self, key: Key, element: &Element) -> bool {
        let is_ordered = match key {
            Key::Range(first, last) => first <= last && first.key_type() == last.key_type(),
            Key::One(_) | Key::Two(..) | Key::Three(..) => true,
        };
        let is_of_types = match (key, &self.types[..]) {
            (Key::One(a) | Key::Range(a, _), [x]) => a.key_type() == *x,
            (Key::Two(a, b), [x, y]) => [a, b].map(Datum::key_type) == [*x, *y],
            (Key::Three(a, b, c), [x, y, z]) => [a, b, c].map(Datum::key_type) == [*x, *y, *z],
            (Key::One(_) | Key::Range(..) | Key::Two(..) | Key::Three(..), _) => false,
        };
        is_of_types && key.is_range() == self.interval && element.verdict.is_some() == self.verdicts && is_ordered
    }
}

impl Rule {
    /// Whether the rule reads the body of an ICMP message before it has matched the type.
    fn reads_icmp_body_without_type(&self) -> bool {
        self.matches.iter().enumerate().any(|(position, condition)| {
            let before = &self.matches[..position];
            condition.reads_icmp_body().is_some_and(|family| !before.iter().any(|m| m.is_icmp_type_of(family)))
        })
    }

    fn reads_port_without_protocol(&self) -> bool {
        let protocol = self.matches.iter().position(|m| matches!(m, Match::Protocol(_)));
        let in_match = self.matches.iter().position(Match::reads_flow_port);
        let in_action = self.actions.iter().any(|a| match a {
            Action::VerdictMap { field, .. } => field.is_port_of_flow(),
            _ => false,
        });
        let port = in_match.or(in_action.then_some(self.matches.len()));
        port.is_some_and(|port| protocol.is_none_or(|protocol| port < protocol))
    }

    fn is_for_routed_packets(&self) -> bool {
        self.matches.iter().any(|m| m.reads().source == FieldSource::RoutedPacket)
            || self.actions.iter().any(|a| match a {
                Action::SetMark { .. } => true,
                Action::VerdictMap { field, .. } => field.is_of_flow(),
                Action::Record { fields, .. } => fields.iter().any(|field| field.is_of_flow()),
                Action::Counter | Action::SetPriority(_) | Action::Verdict(_) | Action::Limit(_) | Action::Log(_) => {
                    false
                }
            })
    }

    fn families(&self) -> BTreeSet<Family> {
        let of_action = self.actions.iter().flat_map(|a| match a {
            Action::VerdictMap { field, .. } => field.family().into_iter().collect(),
            Action::Record { fields, .. } => fields.iter().filter_map(|f| f.family()).collect(),
            Action::Counter
            | Action::SetMark { .. }
            | Action::SetPriority(_)
            | Action::Verdict(_)
            | Action::Limit(_)
            | Action::Log(_) => vec![],
        });
        self.matches.iter().flat_map(Match::families).chain(of_action).collect()
    }
}

impl Field {
    /// The data type of the field.
    pub fn key_type(self) -> KeyType {
        match self {
            Field::FlowSource(family)
            | Field::FlowDestination(family)
            | Field::Source(family)
            | Field::Destination(family) => match family {
                Family::V4 => KeyType::Ipv4Addr,
                Family::V6 => KeyType::Ipv6Addr,
            },
            Field::L4Proto => KeyType::InetProto,
            Field::FlowPort | Field::FlowSourcePort | Field::SourcePort | Field::DestinationPort => {
                KeyType::InetService
            }
            Field::InInterface | Field::OutInterface => KeyType::InterfaceName,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Comment, InterfaceName, Protocol};

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn goto(target: &str) -> Arc<Chain> {
        let rule = Rule::new(vec![], vec![Action::Verdict(Verdict::Goto(name(target)))]);
        Arc::new(Chain { hook: None, rules: vec![rule] })
    }

    #[test]
    fn a_loop_and_a_missing_chain_are_found() {
        let mut r = Ruleset::new(Table::inet(name("t")), Comment::new(""));
        r.chains.insert(name("a"), goto("b"));
        assert!(matches!(r.validate()[..], [Invalid::NoChain { .. }]));
        r.chains.insert(name("b"), goto("a"));
        assert!(matches!(r.validate()[..], [Invalid::Loop { .. }]));
        r.chains.insert(name("b"), Arc::new(Chain::default()));
        assert_eq!(r.validate(), vec![]);
    }

    #[test]
    fn rule_that_nft_would_refuse_is_invalid() {
        let port = Match::FlowPort(80, 80);
        let tcp = Match::Protocol(Protocol::Tcp);
        for (matches, valid) in [
            (vec![port.clone()], false),
            (vec![port.clone(), tcp.clone()], false),
            (vec![tcp, port], true),
            (vec![Match::Family(Family::V4), Match::Icmpv6Type(1, 1)], false),
        ] {
            let mut r = Ruleset::new(Table::inet(name("t")), Comment::new(""));
            let rule = Rule::new(matches.clone(), vec![Action::Verdict(Verdict::Accept)]);
            r.chains.insert(name("a"), Arc::new(Chain { hook: None, rules: vec![rule] }));
            assert_eq!(r.validate().is_empty(), valid, "{matches:?}");
        }
    }

    #[test]
    fn overlapping_and_adjacent_ranges_are_found() {
        let port = Datum::Port;
        let mut r = Ruleset::new(Table::inet(name("t")), Comment::new(""));
        for (ranges, valid) in [([(1, 5), (5, 9)], false), ([(1, 5), (6, 9)], false), ([(1, 5), (7, 9)], true)] {
            let mut set = Set { interval: true, ..Set::of(&[KeyType::InetService]) };
            set.elements.extend(ranges.map(|(a, b)| (Key::Range(port(a), port(b)), Element::default())));
            r.sets.insert(name("s"), Arc::new(set));
            assert_eq!(r.validate().is_empty(), valid, "{ranges:?}");
        }
    }

    #[test]
    fn a_set_has_room_for_its_elements() {
        let mut r = Ruleset::new(Table::inet(name("t")), Comment::new(""));
        for (size, valid) in [(None, true), (Some(0), false), (Some(1), false), (Some(2), true), (Some(3), true)] {
            let mut set = Set { size, ..Set::of(&[KeyType::InetService]) };
            set.elements.extend([80, 443].map(|port| (Key::One(Datum::Port(port)), Element::default())));
            r.sets.insert(name("s"), Arc::new(set));
            assert_eq!(r.validate().is_empty(), valid, "{size:?}");
        }
        let dynamic = Some(crate::Dynamic { timeout_seconds: 60 });
        for (size, valid) in [(None, false), (Some(16), true)] {
            let set = Set { size, dynamic, ..Set::of(&[KeyType::InetService]) };
            r.sets.insert(name("s"), Arc::new(set));
            assert_eq!(r.validate().is_empty(), valid, "{size:?}");
        }
    }

    #[test]
    fn ranges_of_interface_names_are_found() {
        let name_of = |text| Datum::Interface(InterfaceName::new(text).unwrap());
        let mut r = Ruleset::new(Table::inet(name("t")), Comment::new(""));
        let mut set = Set { interval: true, ..Set::of(&[KeyType::InterfaceName]) };
        set.elements.insert(Key::Range(name_of("a"), name_of("b")), Element::default());
        r.sets.insert(name("s"), Arc::new(set));
        assert!(matches!(r.validate()[..], [Invalid::NoRanges { .. }]));
    }

    #[test]
    fn each_hook_belongs_to_one_family_of_tables() {
        for (table, hook, valid) in [
            (Table::inet(name("t")), Hook::Forward, true),
            (Table::inet(name("t")), Hook::Prerouting, false),
            (Table::bridge(name("t")), Hook::Forward, false),
            (Table::bridge(name("t")), Hook::Prerouting, true),
            (Table::inet(name("t")), Hook::Input, true),
            (Table::bridge(name("t")), Hook::Input, false),
            (Table::inet(name("t")), Hook::BridgeForward, false),
            (Table::bridge(name("t")), Hook::BridgeForward, true),
            (Table::inet(name("t")), Hook::BridgeOutput, false),
            (Table::bridge(name("t")), Hook::BridgeOutput, true),
        ] {
            let mut r = Ruleset::new(table, Comment::new(""));
            r.chains.insert(name("a"), Arc::new(Chain { hook: Some(hook), rules: vec![] }));
            assert_eq!(r.validate().is_empty(), valid, "{r}");
        }
    }

    #[test]
    fn rules_of_bridge_tables_ask_for_no_flow() {
        let addresses = Set::of(&[KeyType::Ipv4Addr]);
        let in_set = |field| Match::NotInSet { fields: vec![field], set: name("s") };
        for (condition, valid) in [
            (in_set(Field::Source(Family::V4)), true),
            (in_set(Field::FlowSource(Family::V4)), false),
            (Match::Family(Family::V4), false),
            (Match::Mark { mask: 0xf000_0000, value: 0 }, false),
            (Match::HopLimit(255), true),
        ] {
            let mut r = Ruleset::new(Table::bridge(name("t")), Comment::new(""));
            r.sets.insert(name("s"), Arc::new(addresses.clone()));
            let rule = Rule::new(vec![condition], vec![Action::Verdict(Verdict::Drop)]);
            r.chains.insert(name("a"), Arc::new(Chain { hook: None, rules: vec![rule] }));
            assert_eq!(r.validate().is_empty(), valid, "{r}");
        }
    }
}
