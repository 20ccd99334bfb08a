//! The netlink path against the real kernel and against `nft`.

use std::sync::Arc;

use kit::kernel_table::{listing_after_netlink, listing_after_text, load_netlink, load_text, nft as run_nft};
use kit::netns::in_new_namespace;
use nfnetlink::{CommitError, Kernel, clear_marks, repair};
use nft::{
    Action, Chain, Comment, ConntrackDirection, Datum, Dynamic, Element, EtherType, Family, Field, Hook, IgmpType,
    InterfaceName, Key, KeyType, Limit, LinkAddressOption, Log, Match, Name, Operation, PacketPriority, Period,
    Protocol, ReroutingOption, Rule, Ruleset, Set, State, Table, Verdict, create, difference,
};

// The source check of pods.
mod commit_moment;
mod edge;
mod flow_monitor;
mod kernel_features;
mod notifications;
mod ownership;
mod packet_log;
mod records;
mod rulesets;
use rulesets::{
    commented, empty, every_bridge_rule, every_rule, every_set, goto, name, port_ranges, ports, range4, with_chain,
    with_set,
};

/// Commits operations at the current kernel generation.
fn commit(kernel: &mut Kernel, operations: &[Operation]) {
    let generation = kernel.generation().unwrap();
    let committed = kernel.commit(operations, generation).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(committed.generation, kernel.generation().unwrap(), "the generation that the commit made");
}

/// The operations that would repair the kernel's table.
fn missing(kernel: &mut Kernel, wanted: &Ruleset) -> Vec<String> {
    let observed = kernel.read(&wanted.table).unwrap();
    repair(observed.as_ref(), wanted).iter().map(Operation::to_string).collect()
}

/// Repairs the table and checks that no operation is left.
fn mend(kernel: &mut Kernel, wanted: &Ruleset) -> Vec<String> {
    let observed = kernel.read(&wanted.table).unwrap();
    let operations = repair(observed.as_ref(), wanted);
    commit(kernel, &operations);
    assert_eq!(missing(kernel, wanted), [""; 0]);
    operations.iter().map(Operation::to_string).collect()
}

#[test]
fn netlink_and_text_make_the_same_table() {
    for ruleset in rulesets::all() {
        assert_eq!(ruleset.validate(), [], "{ruleset}");
        let (netlink, text) = (listing_after_netlink(&ruleset), listing_after_text(&ruleset));
        assert_eq!(netlink, text, "{ruleset}");
    }
}

#[test]
fn commit_and_loaded_text_read_back_complete() {
    for ruleset in rulesets::all() {
        in_new_namespace(|| {
            load_netlink(&ruleset);
            assert_eq!(missing(&mut Kernel::open().unwrap(), &ruleset), [""; 0]);
        });
        in_new_namespace(|| {
            load_text(&ruleset.to_string());
            assert_eq!(missing(&mut Kernel::open().unwrap(), &ruleset), [""; 0]);
        });
    }
}

#[test]
fn difference_commits_to_exactly_the_new_ruleset() {
    let base = with_chain(empty(), "forward", Some(Hook::Forward), vec![]);
    let interval = |ranges: &[(u16, u16)]| with_set(base.clone(), "s", port_ranges(ranges));
    let addresses = |ranges: &[(&str, &str)]| {
        let mut set = Set { interval: true, ..Set::of(&[KeyType::Ipv4Addr]) };
        set.elements.extend(ranges.iter().map(|(a, b)| (range4(a, b), Element::default())));
        with_set(base.clone(), "a", set)
    };
    let chain = |rules: Vec<Rule>| {
        let ruleset = with_chain(base.clone(), "p", None, rules);
        with_chain(ruleset, "forward", Some(Hook::Forward), vec![goto("p")])
    };
    let drops = || Rule::new(vec![], vec![Action::Verdict(Verdict::Drop)]);
    let sized = |size: u32, numbers: &[u16], further: Vec<Rule>| {
        let looks = Match::InSet { fields: vec![Field::FlowPort], set: name("s") };
        let protocol = Match::Protocol(Protocol::Tcp);
        let looks = Rule::new(vec![protocol, looks], vec![Action::Verdict(Verdict::Accept)]);
        let ruleset = with_set(base.clone(), "s", Set { size: Some(size), ..ports(numbers) });
        with_chain(ruleset, "p", None, [vec![looks], further].concat())
    };
    let steps = [
        base.clone(),
        with_set(base.clone(), "s", ports(&[1, 2])),
        with_set(base.clone(), "s", ports(&[2, 3])),
        with_set(base.clone(), "s", Set { comment: Some(Comment::new("other")), ..ports(&[3]) }),
        interval(&[(10, 20), (30, 40)]),
        interval(&[(10, 40)]),
        interval(&[(10, 24), (26, 40)]),
        interval(&[(0, 5), (26, 65535)]),
        interval(&[(0, 65535)]),
        interval(&[]),
        addresses(&[("10.0.0.0", "10.0.0.127"), ("10.0.1.0", "10.0.1.255")]),
        addresses(&[("10.0.0.0", "10.0.1.255")]),
        addresses(&[("10.0.0.0", "10.0.0.255"), ("10.0.1.128", "255.255.255.255")]),
        addresses(&[("0.0.0.0", "255.255.255.255")]),
        sized(2, &[1, 2], vec![]),
        sized(4, &[1, 2, 3], vec![]),
        sized(4, &[2, 3, 4, 5], vec![]),
        sized(16, &[1, 2, 3, 4, 5], vec![drops()]),
        sized(2, &[5, 6], vec![]),
        chain(vec![drops()]),
        chain(vec![drops().commented("now with a comment")]),
        with_chain(base.clone(), "q", None, vec![drops()]),
        every_set(),
        every_rule(),
        base.clone(),
        every_rule(),
    ];
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        commit(&mut kernel, &create(&steps[0]));
        for pair in steps.windows(2) {
            commit(&mut kernel, &difference(&pair[0], &pair[1]));
            assert_eq!(missing(&mut kernel, &pair[1]), [""; 0], "from\n{}to\n{}", pair[0], pair[1]);
            assert_ne!(missing(&mut kernel, &pair[0]), [""; 0], "from\n{}to\n{}", pair[0], pair[1]);
        }
    });
}

#[test]
fn tampered_table_is_repaired_in_place() {
    let wanted = every_rule();
    let cases = [
        ("delete element inet ringfence hosts4 { 10.0.0.2 }", "add element inet ringfence hosts4"),
        ("add element inet ringfence hosts4 { 10.9.9.9 : drop }", "delete element inet ringfence hosts4 { 10.9.9.9 }"),
        (
            "add element inet ringfence blocks4 { 172.16.0.0/12 }",
            "delete element inet ringfence blocks4 { 172.16.0.0/12 }",
        ),
        ("delete element inet ringfence blocks4 { 10.0.0.0/8 }", "add element inet ringfence blocks4 { 10.0.0.0/8"),
        ("add rule inet ringfence program/a accept", "flush chain inet ringfence program/a"),
        ("insert rule inet ringfence forward ip saddr 1.2.3.4 log", "flush chain inet ringfence forward"),
        ("insert rule inet ringfence forward ip saddr { 1.2.3.4, 1.2.3.5 } drop", "flush chain inet ringfence forward"),
        ("flush chain inet ringfence forward", "flush chain inet ringfence forward"),
        ("add chain inet ringfence extra", "flush chain inet ringfence extra"),
        ("add set inet ringfence extra { type ipv4_addr; }", "delete set inet ringfence extra"),
        (
            "add set inet ringfence timed { type ipv4_addr; timeout 1h; elements = { 1.1.1.1 } ; }",
            "delete set inet ringfence timed",
        ),
        ("flush set inet ringfence blocks4", "add element inet ringfence blocks4"),
        (
            "add chain inet ringfence late { type filter hook forward priority 10; policy drop; }",
            "delete table inet ringfence",
        ),
        ("chain inet ringfence forward { policy drop; }", "delete table inet ringfence"),
        ("add table inet ringfence { flags dormant; }", "delete table inet ringfence"),
        ("flush ruleset", "add table inet ringfence"),
        ("delete table inet ringfence", "add table inet ringfence"),
    ];
    for (tampering, first_step) in cases {
        in_new_namespace(|| {
            let mut kernel = Kernel::open().unwrap();
            commit(&mut kernel, &create(&wanted));
            load_text(tampering);
            let steps = mend(&mut kernel, &wanted);
            assert!(steps[0].starts_with(first_step), "{tampering}: {steps:#?}");
        });
    }
}

#[test]
fn a_deleted_chain_comes_back() {
    let wanted = every_rule();
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        commit(&mut kernel, &create(&wanted));
        run_nft("flush chain inet ringfence forward");
        for map in ["hosts4", "sized-hosts4", "services", "port-map", "pair-map", "block-map", "interface-map"] {
            run_nft(&format!("flush map inet ringfence {map}"));
        }
        run_nft("delete chain inet ringfence program/a");
        let steps = mend(&mut kernel, &wanted);
        assert_eq!(steps[0], "add chain inet ringfence program/a");
    });
}

#[test]
fn table_read_reports_comment_and_accepted_mark() {
    let mark = Match::Mark { mask: 0xfff0_0000, value: 0x0420_0000 };
    let accept = Rule::new(vec![mark], vec![Action::Verdict(Verdict::Accept)]);
    let ruleset = with_chain(empty(), "forward", Some(Hook::Forward), vec![accept]);
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        assert_eq!(kernel.read(&ruleset.table).unwrap(), None);
        commit(&mut kernel, &create(&ruleset));
        let observed = kernel.read(&ruleset.table).unwrap().unwrap();
        assert_eq!(observed.comment(), Some(ruleset.comment.as_str()));
        assert_eq!(observed.generation, kernel.generation().unwrap());
        assert_eq!(observed.accepted_mark("forward", 0xfff0_0000), Some(0x0420_0000));
        assert_eq!(observed.accepted_mark("forward", 0xff00_0000), None);
    });
}

#[test]
fn refused_commit_names_operation_and_changes_nothing() {
    let wanted = every_rule();
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        commit(&mut kernel, &create(&wanted));
        let generation = kernel.generation().unwrap();
        let (table, chain) = (wanted.table.clone(), name("program/a"));
        let in_no_set = Match::InSet { fields: vec![Field::Source(Family::V4)], set: name("nowhere") };
        let rule = Rule::new(vec![in_no_set], vec![Action::Verdict(Verdict::Drop)]).commented("why");
        let refused = kernel.commit(
            &[
                Operation::FlushChain { table: table.clone(), chain: chain.clone() },
                Operation::AddRule { table: table.clone(), chain, rule },
                Operation::DeleteChain { table, chain: name("elsewhere") },
            ],
            generation,
        );
        let expected = "the kernel refused `add rule inet ringfence program/a ip saddr @nowhere drop comment \"why\"`: \
                        No such file or directory; \
                        the kernel refused `delete chain inet ringfence elsewhere`: No such file or directory";
        assert_eq!(refused.unwrap_err().to_string(), expected);
        assert_eq!(missing(&mut kernel, &wanted), [""; 0]);
        assert_eq!(kernel.generation().unwrap(), generation);
    });
}

#[test]
fn a_refused_element_is_named_among_many() {
    let mut set = Set { verdicts: true, interval: true, ..Set::of(&[KeyType::InetService]) };
    set.comment = Some(Comment::new("map"));
    let ruleset = with_set(empty(), "m", set.clone());
    let element = |n: u16| {
        let target = if n == 4321 { "nowhere" } else { "somewhere" };
        (Key::Range(Datum::Port(10 * n), Datum::Port(10 * n + 4)), commented(Some(Verdict::Goto(name(target))), "x"))
    };
    let elements: Vec<_> = (0..6000).map(element).collect();
    let ruleset = with_chain(ruleset, "somewhere", None, vec![]);
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        commit(&mut kernel, &create(&ruleset));
        let add =
            Operation::AddElements { table: ruleset.table.clone(), name: name("m"), set: Arc::new(set), elements };
        let generation = kernel.generation().unwrap();
        let Err(CommitError::Refused { refusals, more: 0 }) = kernel.commit(&[add], generation) else {
            panic!("the commit was not refused");
        };
        let named: Vec<String> =
            refusals.iter().map(|r| r.operation.as_ref().map(ToString::to_string).unwrap_or_default()).collect();
        assert_eq!(named, ["add element inet ringfence m { 43210-43214 comment \"x\" : goto nowhere }"]);
    });
}

#[test]
fn commit_at_stale_kernel_generation_fails_as_moved() {
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        let generation = kernel.generation().unwrap();
        run_nft("add table inet other");
        let outcome = kernel.commit(&create(&empty()), generation);
        assert!(matches!(outcome, Err(CommitError::Moved)), "{outcome:?}");
        assert_eq!(kernel.read(&empty().table).unwrap(), None);
        assert_eq!(kernel.commit(&[], generation).unwrap().generation, generation);
    });
}

#[test]
fn a_hundred_thousand_elements_are_one_transaction() {
    let mut map = Set { verdicts: true, ..Set::of(&[KeyType::Ipv4Addr]) };
    for n in 0..100_000u32 {
        let key = Key::One(Datum::V4((0x0a00_0000 + n).into()));
        map.elements.insert(key, commented(Some(Verdict::Goto(name("program/a"))), &format!("shop/web-{n}")));
    }
    let ruleset = with_chain(with_set(empty(), "pods", map), "program/a", None, vec![]);
    in_new_namespace(|| {
        let mut kernel = Kernel::open().unwrap();
        let before = kernel.generation().unwrap();
        let start = std::time::Instant::now();
        let committed = kernel.commit(&create(&ruleset), before).unwrap();
        let took = start.elapsed();
        assert_eq!(committed.generation, before + 1);
        let start = std::time::Instant::now();
        let observed = kernel.read(&ruleset.table).unwrap();
        let read = start.elapsed();
        let start = std::time::Instant::now();
        assert!(repair(observed.as_ref(), &ruleset).is_empty());
        let compared = start.elapsed();
        let one = with_one_more(&ruleset);
        let step = difference(&ruleset, &one);
        let start = std::time::Instant::now();
        kernel.commit(&step, committed.generation).unwrap();
        let single = start.elapsed();
        println!("100,000 elements: commit {took:?}, read {read:?}, compare {compared:?}; one more: {single:?}");
        assert_eq!(missing(&mut kernel, &one), [""; 0]);
    });
}

fn with_one_more(ruleset: &Ruleset) -> Ruleset {
    let mut map = Set::clone(&ruleset.sets[&name("pods")]);
    let key = Key::One(Datum::V4([192, 168, 0, 1].into()));
    map.elements.insert(key, commented(Some(Verdict::Goto(name("program/a"))), "shop/one-more"));
    with_set(ruleset.clone(), "pods", map)
}

#[test]
fn conntrack_marks_of_stale_generations_are_cleared() {
    let mark_of = |port: u16| {
        let listed = conntrack(&["-L", "-p", "udp", "--dport", &port.to_string()]);
        let word = listed.split_whitespace().find_map(|w| w.strip_prefix("mark=")).map(str::to_owned);
        word.unwrap_or_else(|| panic!("no entry for port {port}: {listed}")).parse::<u32>().unwrap()
    };
    in_new_namespace(|| {
        let entry = |source: &str, destination: &str, port: u16, mark: u32| {
            let (port, mark) = (port.to_string(), mark.to_string());
            let tuple = ["-I", "-p", "udp", "-s", source, "-d", destination, "--sport", "4000", "--dport", &port];
            conntrack(&[&tuple[..], &["--timeout", "600", "--mark", &mark]].concat());
        };
        entry("10.0.0.1", "10.0.0.2", 1001, 0x0010_0007);
        entry("10.0.0.1", "10.0.0.2", 1002, 0x0020_0007);
        entry("10.0.0.1", "10.0.0.2", 1003, 0x0000_0007);
        entry("fd00::1", "fd00::2", 1004, 0x0030_0000);
        assert_eq!(clear_marks(0xfff0_0000, 0x0020_0000).unwrap(), 2);
        assert_eq!([1001, 1002, 1003].map(mark_of), [7, 0x0020_0007, 7]);
        let six = conntrack(&["-L", "-f", "ipv6", "-p", "udp"]);
        assert!(six.contains("mark=0 "), "{six}");
        assert_eq!(clear_marks(0xfff0_0000, 0x0020_0000).unwrap(), 0);
    });
}

fn conntrack(arguments: &[&str]) -> String {
    let output = std::process::Command::new("conntrack").args(arguments).output().expect("conntrack is installed");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "conntrack {arguments:?}: {text}");
    String::from_utf8(output.stdout).unwrap()
}
