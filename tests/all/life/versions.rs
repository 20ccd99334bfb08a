use std::collections::{BTreeMap, BTreeSet};

use kit::kernel_table::load_text;

use super::{FILE, assert_protected, flows_to_cut, objects, probe, stage, start};
use crate::stage::{NODE, Stage, state_of};

/// The output of `nft list table inet ringfence` of an earlier release, for these objects.
const EARLIER: &str = include_str!("earlier_release.nft");

/// A table that a future release may leave.
fn of_a_later_release() -> String {
    let later = EARLIER.replace("priority filter;", "priority filter - 5;");
    let more = "\tset budget {\n\t\ttype mark\n\t\tflags timeout\n\t}\n\n\tchain output {\n\
                \t\ttype filter hook output priority filter; policy accept;\n\t\tct mark @budget drop\n\t}\n}\n";
    format!("{}{more}", later.strip_suffix("}\n").expect("it ends with the table"))
}

/// Replaces the table.
fn load(stage: &Stage, text: &str) {
    let table = "table inet ringfence";
    stage.lab.node_exec(NODE, || load_text(&format!("{table} {{ }}\ndelete {table}\n{text}")));
}

fn is_adopted(text: &str, owner: &str) {
    let stage = stage();
    stage.write_objects(FILE, &objects());
    // The earlier release allowed the stranger before, and denies it now.
    let mark = |text: &str, generation: u32| text.replace("0x00010000", &format!("{:#010x}", generation << 16));
    let open = text
        .replace("elements = { 10.1.0.1 }", "elements = { 10.1.0.1, 10.1.0.3 }")
        .replace("elements = { fd00:1::1 }", "elements = { fd00:1::1, fd00:1::3 }");
    assert_ne!(open, text);
    load(&stage, &mark(&open, 1));
    let cut = flows_to_cut(&stage);
    load(&stage, &mark(text, 2));
    let probing = probe(&stage, cut);

    let generation = stage.kernel_generation();
    let mut agent = start(&stage, owner);
    agent.until_ready();
    assert_protected(probing);
    assert!(stage.enforces(&state_of(&objects())));
    assert_eq!(agent.metric("ringfence_commits_total"), 1);
    assert_eq!(stage.kernel_generation(), generation + 1, "one transaction");
    // This release does not accept marks of the earlier one: flows that it approved are judged again.
    assert!(stage.policy_generation() >= 1);
}

#[test]
fn earlier_release_table_is_updated_in_one_transaction() {
    is_adopted(EARLIER, "off");
}

#[test]
fn earlier_release_table_becomes_owned_in_one_transaction() {
    is_adopted(EARLIER, "auto");
}

#[test]
fn incompatible_release_table_is_replaced_in_one_transaction() {
    is_adopted(&of_a_later_release(), "off");
    is_adopted(&of_a_later_release(), "auto");
}

#[test]
fn unchanged_rules_of_earlier_release_keep_handles() {
    let stage = stage();
    stage.write_objects(FILE, &objects());
    load(&stage, EARLIER);
    let rules = || -> BTreeMap<String, Vec<u64>> {
        let chains = stage.observed().expect("a table").chains;
        chains.into_iter().map(|(name, c)| (name, c.rules.iter().map(|r| r.handle).collect())).collect()
    };
    let before = rules();
    start(&stage, "off").until_ready();
    let after = rules();
    let anew: Vec<&str> = before.iter().filter(|(n, r)| after.get(*n) != Some(r)).map(|(n, _)| n.as_str()).collect();
    // New since that release: denying chains log, guard rules follow the map lookups, and program maps have a size.
    let programs = ["egress/shop/client", "ingress/shop/server"];
    let others = ["approve", "deny/egress", "deny/ingress", "forward", "ingress", "stray"];
    assert_eq!(BTreeSet::from_iter(anew), programs.into_iter().chain(others).collect());
}
