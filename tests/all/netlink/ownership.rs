//! Protected tables: who can change them, what remains of them without their owner, and how they are adopted.

use super::*;
use kit::agent_process::until;
use kit::kernel_table::try_nft;
use nfnetlink::TableSnapshot;

/// `NFT_TABLE_F_OWNER | NFT_TABLE_F_PERSIST`, and the remaining flags without an owner.
const OWNED: u32 = 6;
const ORPHAN: u32 = 4;

fn protected() -> Ruleset {
    let rule = Rule::new(vec![], vec![Action::Counter]).commented("something to keep");
    let ruleset = with_set(empty(), "ports", ports(&[80, 443]));
    with_chain(ruleset, "forward", Some(Hook::Forward), vec![rule]).protected(true)
}

fn flags(kernel: &mut Kernel) -> u32 {
    kernel.read(&empty().table).unwrap().unwrap().flags
}

/// Commits the table by a socket that is closed afterwards.
fn leave_orphan(ruleset: &Ruleset) {
    let mut kernel = Kernel::open().unwrap();
    commit(&mut kernel, &create(ruleset));
    assert_eq!(flags(&mut kernel), OWNED);
    drop(kernel);
    let mut kernel = Kernel::open().unwrap();
    until_orphan(&mut kernel, ruleset);
}

/// A process that another test forks has a copy of the owner's socket until it calls exec.
fn until_orphan(kernel: &mut Kernel, ruleset: &Ruleset) -> TableSnapshot {
    until("the table is an orphan", || {
        let observed = kernel.read(&ruleset.table).unwrap().unwrap();
        (observed.flags == ORPHAN).then_some(observed)
    })
}

#[test]
fn owned_table_is_changed_by_its_owner_only() {
    let wanted = protected();
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        commit(&mut kernel, &create(&wanted));
        for refused in [
            "delete table inet ringfence",
            "flush table inet ringfence",
            "add chain inet ringfence extra",
            "delete element inet ringfence ports { 80 }",
            "flush chain inet ringfence forward",
        ] {
            let error = try_nft(&refused.split(' ').collect::<Vec<_>>(), "").expect_err(refused);
            assert!(error.contains("Operation not permitted"), "{refused}: {error}");
        }
        run_nft("flush ruleset");
        assert_eq!(missing(&mut kernel, &wanted), [""; 0]);
        let fewer = with_set(wanted.clone(), "ports", ports(&[80]));
        commit(&mut kernel, &difference(&wanted, &fewer));
        assert_eq!(missing(&mut kernel, &fewer), [""; 0]);
        let observed = kernel.read(&wanted.table).unwrap().unwrap();
        assert_eq!((observed.flags, observed.owner), (OWNED, Some(kernel.port())));
        assert_eq!(observed.held_by_other(kernel.port()), None);
        commit(&mut kernel, &[Operation::DeleteTable { table: wanted.table.clone() }]);
        assert_eq!(kernel.read(&wanted.table).unwrap(), None);
    });
}

#[test]
fn orphaned_table_is_claimed_without_changes() {
    let wanted = protected();
    // Handles in the table only: nft lists the table itself with its owner.
    let handles = || -> Vec<String> {
        let listed = run_nft("-a list table inet ringfence");
        listed.lines().filter(|l| l.starts_with('\t') && l.contains("# handle")).map(str::to_owned).collect()
    };
    in_new_namespace(|| {
        leave_orphan(&wanted);
        let mut kernel = Kernel::open().unwrap();
        assert_eq!(flags(&mut kernel), ORPHAN);
        let before = handles();
        let claim = format!("add table inet ringfence {{ comment {}; }}", wanted.comment);
        assert_eq!(mend(&mut kernel, &wanted), [claim]);
        assert_eq!(flags(&mut kernel), OWNED);
        assert_eq!(handles(), before, "nothing was made anew");
    });
}

#[test]
fn claim_and_repair_are_one_transaction() {
    let wanted = protected();
    in_new_namespace(|| {
        leave_orphan(&wanted);
        run_nft("delete element inet ringfence ports { 443 }");
        let mut kernel = Kernel::open().unwrap();
        let observed = kernel.read(&wanted.table).unwrap();
        let mut operations = repair(observed.as_ref(), &wanted);
        let nowhere = Operation::DeleteChain { table: wanted.table.clone(), chain: name("nowhere") };
        operations.push(nowhere);
        let refused = kernel.commit(&operations, observed.unwrap().generation);
        assert!(matches!(refused, Err(CommitError::Refused { .. })), "{refused:?}");
        assert_eq!(flags(&mut kernel), ORPHAN, "the claim was taken back");
        let done = mend(&mut kernel, &wanted);
        assert_eq!(done.len(), 2, "{done:?}");
        assert_eq!(done[1], "add element inet ringfence ports { 443 }");
        assert_eq!(flags(&mut kernel), OWNED);
    });
}

#[test]
fn unowned_layout_updates_orphan_without_claiming_it() {
    let unprotected = protected().protected(false);
    in_new_namespace(|| {
        leave_orphan(&protected());
        let mut kernel = Kernel::open().unwrap();
        assert_eq!(missing(&mut kernel, &unprotected), [""; 0]);
        let more = with_set(unprotected.clone(), "ports", ports(&[80, 443, 8080]));
        assert_eq!(mend(&mut kernel, &more), ["add element inet ringfence ports { 8080 }"]);
        assert_eq!(flags(&mut kernel), ORPHAN);
    });
}

#[test]
fn unowned_table_becomes_owned_in_one_transaction() {
    let wanted = protected();
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        commit(&mut kernel, &create(&protected().protected(false)));
        let generation = kernel.generation().unwrap();
        assert_eq!(mend(&mut kernel, &wanted)[0], "delete table inet ringfence");
        assert_eq!(kernel.generation().unwrap(), generation + 1);
        assert_eq!(flags(&mut kernel), OWNED);
        assert_eq!(mend(&mut kernel, &protected().protected(false))[0], "delete table inet ringfence");
        assert_eq!(flags(&mut kernel), 0);
    });
}

#[test]
fn read_reports_owner_of_table_on_another_socket() {
    let wanted = protected();
    in_new_namespace(|| {
        let mut owner = Kernel::open().unwrap();
        commit(&mut owner, &create(&wanted));
        let mut kernel = Kernel::open().unwrap();
        let observed = kernel.read(&wanted.table).unwrap().unwrap();
        assert_eq!(observed.held_by_other(kernel.port()), Some(owner.port()));
        // The table is complete and readable; every change is refused.
        assert!(repair(Some(&observed), &wanted).is_empty());
        let more = with_set(wanted.clone(), "ports", ports(&[80, 443, 8080]));
        let refused = kernel.commit(&repair(Some(&observed), &more), observed.generation).unwrap_err();
        let expected = "the kernel refused `add element inet ringfence ports { 8080 }`: Operation not permitted";
        assert_eq!(refused.to_string(), expected);
        drop(owner);
        let observed = until_orphan(&mut kernel, &wanted);
        assert_eq!(observed.owner, None);
        assert_eq!(observed.held_by_other(kernel.port()), None);
    });
}

#[test]
fn tables_of_two_families_are_one_transaction() {
    let (inet, bridge) = (every_rule().protected(true), every_bridge_rule().protected(true));
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        let before = kernel.generation().unwrap();
        let both = [create(&inet), create(&bridge)].concat();
        let nowhere = Operation::DeleteChain { table: bridge.table.clone(), chain: name("nowhere") };
        let refused = kernel.commit(&[&both[..], &[nowhere]].concat(), before).unwrap_err();
        let expected = "the kernel refused `delete chain bridge ringfence nowhere`: No such file or directory";
        assert_eq!(refused.to_string(), expected);
        assert_eq!(kernel.read(&inet.table).unwrap(), None, "nothing of it took place");
        commit(&mut kernel, &both);
        assert_eq!(kernel.generation().unwrap(), before + 1);
        assert_eq!((missing(&mut kernel, &inet), missing(&mut kernel, &bridge)), (vec![], vec![]));
    });
}
