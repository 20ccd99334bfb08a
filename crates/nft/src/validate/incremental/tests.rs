//! Incremental and full validation agree over random edits.

use proptest::prelude::*;

use super::*;
use crate::{Comment, Datum, Dynamic, Family, Field, Hook, KeyType, Limit, Match, Period, Table};

const CHAINS: [&str; 6] = ["forward", "a", "b", "c", "d", "e"];
const SETS: [&str; 5] = ["ports", "ranges", "verdicts", "verdict-ranges", "recorded"];

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

#[derive(Debug, Clone)]
enum Edit {
    SetChain { chain: usize, is_base: bool, rules: Vec<Rule> },
    RemoveChain(usize),
    Declare { set: usize, like: usize, size: Option<u32> },
    RemoveSet(usize),
    AddElement { set: usize, first: u16, last: u16, target: Option<usize> },
    RemoveElement { set: usize, position: usize },
}

fn rule() -> impl Strategy<Value = Rule> {
    let fields = || vec![Field::SourcePort];
    let limit = || Limit { packets: 1, per: Period::Second, burst: 1, over: false };
    let chain = || (0..CHAINS.len()).prop_map(|i| name(CHAINS[i]));
    let set = || (0..SETS.len()).prop_map(|i| name(SETS[i]));
    prop_oneof![
        6 => chain().prop_map(|chain| Rule::new(vec![], vec![Action::Verdict(Verdict::Jump(chain))])),
        2 => set().prop_map(move |set| {
            Rule::new(vec![Match::InSet { fields: fields(), set }], vec![Action::Verdict(Verdict::Accept)])
        }),
        4 => set().prop_map(|map| Rule::new(vec![], vec![Action::VerdictMap { field: Field::SourcePort, map }])),
        1 => set().prop_map(move |set| Rule::new(vec![], vec![Action::Record { fields: fields(), set, limit: limit() }])),
        1 => Just(Rule::new(vec![Match::FlowPort(80, 80)], vec![Action::Verdict(Verdict::Drop)])),
        1 => Just(Rule::new(
            vec![Match::Family(Family::V4), Match::Icmpv6Type(1, 1)],
            vec![Action::Verdict(Verdict::Drop)]
        )),
    ]
}

fn edit() -> impl Strategy<Value = Edit> {
    let chain = || 0..CHAINS.len();
    let set = || 0..SETS.len();
    prop_oneof![
        6 => (chain(), prop::bool::weighted(0.4), prop::collection::vec(rule(), 0..3))
            .prop_map(|(chain, is_base, rules)| Edit::SetChain { chain, is_base, rules }),
        1 => chain().prop_map(Edit::RemoveChain),
        2 => (set(), set(), prop::bool::weighted(0.9), prop::option::weighted(0.3, 0..5_u32)).prop_map(
            |(set, like, is_usual, size)| Edit::Declare { set, like: if is_usual { set } else { like }, size }
        ),
        1 => set().prop_map(Edit::RemoveSet),
        8 => (set(), 0..12_u16, 0..3_u16, prop::option::weighted(0.6, chain()))
            .prop_map(|(set, first, length, target)| Edit::AddElement { set, first, last: first + length, target }),
        3 => (set(), 0..5_usize).prop_map(|(set, position)| Edit::RemoveElement { set, position }),
    ]
}

/// The usual declaration of each set.
fn declaration(set: usize, size: Option<u32>) -> Set {
    let ports = Set { size, ..Set::of(&[KeyType::InetService]) };
    match SETS[set] {
        "ranges" => Set { interval: true, ..ports },
        "verdicts" => Set { verdicts: true, ..ports },
        "verdict-ranges" => Set { interval: true, verdicts: true, ..ports },
        "recorded" => Set { dynamic: Some(Dynamic { timeout_seconds: 60 }), size: Some(size.unwrap_or(16)), ..ports },
        _ => ports,
    }
}

impl Edit {
    fn apply(self, ruleset: &mut Ruleset) {
        match self {
            Edit::SetChain { chain, is_base, rules } => {
                let hook = (is_base || chain == 0).then_some(Hook::Forward);
                ruleset.chains.insert(name(CHAINS[chain]), Arc::new(Chain { hook, rules }));
            }
            Edit::RemoveChain(chain) => drop(ruleset.chains.remove(&name(CHAINS[chain]))),
            Edit::Declare { set, like, size } => {
                let elements = ruleset.sets.get(&name(SETS[set])).map(|set| set.elements.clone()).unwrap_or_default();
                let declared = Set { elements, ..declaration(like, size) };
                ruleset.sets.insert(name(SETS[set]), Arc::new(declared));
            }
            Edit::RemoveSet(set) => drop(ruleset.sets.remove(&name(SETS[set]))),
            Edit::AddElement { set, first, last, target } => {
                let Some(set) = ruleset.sets.get_mut(&name(SETS[set])) else { return };
                let set = Arc::make_mut(set);
                let key = match set.interval {
                    true => Key::Range(Datum::Port(first), Datum::Port(last)),
                    false => Key::One(Datum::Port(first)),
                };
                let verdict = target.map(|target| Verdict::Goto(name(CHAINS[target])));
                let verdict = if set.verdicts { Some(verdict.unwrap_or(Verdict::Drop)) } else { None };
                set.elements.insert(key, Element { verdict, comment: None });
            }
            Edit::RemoveElement { set, position } => {
                let Some(set) = ruleset.sets.get_mut(&name(SETS[set])) else { return };
                let set = Arc::make_mut(set);
                let key = set.elements.keys().nth(position);
                if let Some(key) = key {
                    set.elements.remove(&key);
                }
            }
        }
    }
}

/// The counted references and the depths are those of the ruleset.
fn assert_consistent(validated: &ValidatedRuleset) {
    let full = ReferenceGraph::of(validated);
    let counts = |graph: &ReferenceGraph| -> Vec<(NodeName, usize)> {
        let nodes = graph.nodes.iter().filter(|(_, node)| node.references > 0);
        nodes.map(|(name, node)| (name.clone(), node.references)).collect()
    };
    assert_eq!(counts(&validated.graph), counts(&full));
    for (chain_name, chain) in &validated.chains {
        for target in targets_of_chain(chain) {
            let from = NodeName::Chain(chain_name.clone());
            assert!(validated.graph.depth(&from) < validated.graph.depth(&target), "{from:?} {target:?}");
        }
    }
}

fn empty() -> ValidatedRuleset {
    ValidatedRuleset::new(Ruleset::new(Table::inet(name("t")), Comment::new(""))).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn incremental_validation_agrees_with_full_validation(edits in prop::collection::vec(edit(), 1..60)) {
        let mut live = empty();
        // An invalid edit is followed by others, as a correction may be part of a later difference.
        let mut next = live.clone().into_ruleset();
        for edit in edits {
            edit.apply(&mut next);
            match live.after(next.clone()) {
                Ok(validated) => {
                    prop_assert_eq!(next.validate(), vec![]);
                    assert_consistent(&validated);
                    live = validated;
                }
                Err(invalid) => {
                    prop_assert!(!invalid.is_empty());
                    prop_assert_eq!(&invalid, &next.invalid_parts());
                    if invalid.len() > 2 {
                        next = live.clone().into_ruleset();
                    }
                }
            }
        }
    }
}

/// A ruleset as of a node with many peers: an address set, a dispatch map and one program per entry.
fn large(addresses: u32, programs: u16) -> Ruleset {
    let mut ruleset = empty().into_ruleset();
    let mut peers = Set::of(&[KeyType::Ipv4Addr]);
    peers.elements.extend((0..addresses).map(|n| (Key::One(Datum::V4(n.into())), Element::default())));
    ruleset.sets.insert(name("peers"), Arc::new(peers));
    let mut dispatch = Set { verdicts: true, ..Set::of(&[KeyType::InetService]) };
    for port in 0..programs {
        let program = name(&format!("program/{port}"));
        let looks = Match::InSet { fields: vec![Field::Source(Family::V4)], set: name("peers") };
        let rules = vec![Rule::new(vec![looks], vec![Action::Verdict(Verdict::Accept)])];
        ruleset.chains.insert(program.clone(), Arc::new(Chain { hook: None, rules }));
        let verdict = Some(Verdict::Jump(program));
        dispatch.elements.insert(Key::One(Datum::Port(port)), Element { verdict, comment: None });
    }
    ruleset.sets.insert(name("dispatch"), Arc::new(dispatch));
    let lead = Rule::new(vec![], vec![Action::VerdictMap { field: Field::SourcePort, map: name("dispatch") }]);
    ruleset.chains.insert(name("forward"), Arc::new(Chain { hook: Some(Hook::Forward), rules: vec![lead] }));
    ruleset
}

#[test]
fn usual_changes_need_no_full_validation() {
    let live = ValidatedRuleset::new(large(1_000, 50)).unwrap();
    let mut next = live.clone().into_ruleset();
    Arc::make_mut(&mut next.sets[&name("peers")])
        .elements
        .insert(Key::One(Datum::V4(5_000.into())), Element::default());
    let program = name("program/new");
    next.chains.insert(program.clone(), next.chains[&name("program/1")].clone());
    let dispatched = Element { verdict: Some(Verdict::Jump(program)), comment: None };
    let dispatch = &mut Arc::make_mut(&mut next.sets[&name("dispatch")]).elements;
    dispatch.insert(Key::One(Datum::Port(900)), dispatched);
    dispatch.remove(&Key::One(Datum::Port(7)));
    next.chains.remove(&name("program/7"));
    assert!(live.graph_after(&next).is_some());
    let next = live.after(next).unwrap();
    assert_consistent(&next);

    // The program that is still dispatched to cannot be removed.
    let mut dangling = next.clone().into_ruleset();
    dangling.chains.remove(&name("program/8"));
    assert!(next.graph_after(&dangling).is_none());
    let invalid = next.after(dangling).unwrap_err();
    assert_eq!(invalid[0].operation.to_string(), "add element inet t dispatch { 8 : jump program/8 }");
}

#[test]
fn invalid_rule_is_named_by_its_operation() {
    let mut ruleset = large(1, 1);
    let broken = Rule::new(vec![Match::FlowPort(80, 80)], vec![Action::Verdict(Verdict::Drop)]);
    Arc::make_mut(&mut ruleset.chains[&name("program/0")]).rules.push(broken);
    let invalid = ValidatedRuleset::new(ruleset).unwrap_err();
    let texts: Vec<String> = invalid.iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        ["invalid operation `add rule inet t program/0 ct reply proto-src 80 drop`: chain program/0 reads a port of \
          the conntrack entry before a match on the protocol, which nft refuses"]
    );
}
