use std::collections::BTreeMap;

use kit::oracle::{Probe, World};
use nft::{Operation, Packet, Ruleset, Stop, create, evaluate};
use policy::{Layout, translate};
use tests::generate::{NODES, draw_probes, draw_tiered_worlds, draw_worlds};
use tests::objects::state_of;

use crate::reporting::GROUP;

/// Random clusters, flows of each, and operations of each that the kernel refuses in the test.
const CLUSTERS: usize = 80;
const FLOWS: usize = 60;
const REFUSED: usize = 40;

/// Half of the clusters have cluster policies.
fn worlds() -> impl Iterator<Item = World> {
    draw_worlds(CLUSTERS / 2).into_iter().chain(draw_tiered_worlds(CLUSTERS / 2))
}

/// Two of three clusters log denied packets.
fn layout(number: usize) -> Layout {
    Layout::for_table("ringfence").expect("a name").logging_to((!number.is_multiple_of(3)).then_some(GROUP))
}

/// The indices of the flows that the ruleset accepts.
fn accepted(ruleset: &Ruleset, flows: &[Probe]) -> Vec<usize> {
    let first = |flow: &Probe| Packet::first(flow.source, flow.destination, flow.protocol, flow.port);
    let passes = |flow: &Probe| evaluate(ruleset, &first(flow)).stop == Stop::Accepted;
    flows.iter().enumerate().filter(|(_, flow)| passes(flow)).map(|(place, _)| place).collect()
}

/// The category of the operation, for the counts.
fn sort(operation: &Operation) -> String {
    operation.to_string().split_whitespace().take(2).collect::<Vec<_>>().join(" ")
}

/// The operations as the kernel reports refusals: elements are refused one at a time.
fn refusals(operations: Vec<Operation>) -> Vec<Operation> {
    let mut all = Vec::new();
    for operation in operations {
        match operation {
            Operation::AddElements { table, name, set, elements } => {
                all.extend(elements.into_iter().map(|element| Operation::AddElements {
                    table: table.clone(),
                    name: name.clone(),
                    set: set.clone(),
                    elements: vec![element],
                }));
            }
            other => all.push(other),
        }
    }
    all
}

#[test]
fn omitted_operations_allow_no_further_flows() {
    let mut counts: BTreeMap<(String, bool), usize> = BTreeMap::new();
    for (number, world) in worlds().enumerate() {
        let (state, flows) = (state_of(&world), draw_probes(&world, FLOWS));
        for node in NODES {
            let draft = translate(&state, node, &layout(number)).ruleset;
            let whole = draft.in_first_generation();
            let allowed = accepted(&whole, &flows);
            let all = refusals(create(&whole));
            let step = all.len().div_ceil(REFUSED).max(1);
            for refused in all.iter().step_by(step) {
                let mut rest = draft.clone();
                let left_out = rest.leave_out(refused);
                let rest = rest.in_first_generation();
                *counts.entry((sort(refused), left_out)).or_default() += 1;
                if !left_out {
                    assert_eq!(rest, whole, "{refused}");
                    continue;
                }
                assert_eq!(rest.validate(), [], "without {refused}");
                assert!(!refusals(create(&rest)).contains(refused), "{refused} is still there");
                let more: Vec<&Probe> = accepted(&rest, &flows)
                    .into_iter()
                    .filter(|place| !allowed.contains(place))
                    .map(|place| &flows[place])
                    .collect();
                assert!(more.is_empty(), "without {refused} these pass: {more:?} in\n{rest}");
            }
        }
    }
    println!("{counts:#?}");
    for (sort, left_out) in [("add rule", true), ("add rule", false), ("add element", true), ("add set", true)] {
        assert!(counts.get(&(sort.to_owned(), left_out)).is_some_and(|n| *n > 20), "{sort} {left_out}: {counts:?}");
    }
}

#[test]
fn successive_omitted_operations_allow_no_further_flows() {
    for (number, world) in worlds().enumerate() {
        let (state, flows) = (state_of(&world), draw_probes(&world, FLOWS));
        let mut draft = translate(&state, NODES[0], &layout(number)).ruleset;
        let mut ruleset = draft.in_first_generation();
        let mut allowed = accepted(&ruleset, &flows);
        // In rounds, as the agent does it: the next refused operation is one of the remaining ruleset.
        for round in 0..REFUSED {
            let all = refusals(create(&ruleset));
            let refused = &all[(round * 7919) % all.len()];
            let is_left_out = draft.leave_out(refused);
            let before = std::mem::replace(&mut ruleset, draft.in_first_generation());
            if !is_left_out {
                assert_eq!(ruleset, before, "{refused}");
                continue;
            }
            assert_eq!(ruleset.validate(), [], "without {refused}");
            let now = accepted(&ruleset, &flows);
            assert!(now.iter().all(|place| allowed.contains(place)), "without {refused} more passes in\n{ruleset}");
            allowed = now;
        }
    }
}

#[test]
fn omitted_operations_of_audited_policies_deny_nothing() {
    let mut left_out = 0;
    for world in draw_worlds(CLUSTERS) {
        let mut world = World { audits_by_default: true, ..world };
        world.namespaces.iter_mut().for_each(|namespace| namespace.metadata.annotations = None);
        world.policies.iter_mut().for_each(|policy| policy["metadata"]["annotations"] = serde_json::Value::Null);
        let (state, flows) = (state_of(&world), draw_probes(&world, FLOWS));
        let draft = translate(&state, NODES[0], &Layout::for_table("ringfence").expect("a name")).ruleset;
        let whole = draft.in_first_generation();
        assert_eq!(accepted(&whole, &flows).len(), flows.len());
        let all = refusals(create(&whole));
        for refused in all.iter().step_by(all.len().div_ceil(REFUSED).max(1)) {
            let mut rest = draft.clone();
            left_out += usize::from(rest.leave_out(refused));
            let rest = rest.in_first_generation();
            assert_eq!(rest.validate(), [], "without {refused}");
            assert_eq!(accepted(&rest, &flows).len(), flows.len(), "without {refused} some are denied in\n{rest}");
        }
    }
    assert!(left_out > 150, "{left_out}");
}
