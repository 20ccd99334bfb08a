//! The self-test passes with the real rules, fails with any others, and leaves nothing behind.

use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Arc;

use agent::doctor::self_test::{SelfTestError, TestedFamily, ruleset, run};
use kit::agent_process::{ProgramExit, ended, program};
use kit::netns::in_new_namespace;
use nft::{Action, Name, Rule, Ruleset, Verdict};

/// Changes the rules of every ingress program.
fn with_programs(mut change: impl FnMut(&mut Vec<Rule>)) -> Ruleset {
    let mut rules = ruleset();
    let programs: Vec<Name> =
        rules.chains.keys().filter(|name| name.as_str().starts_with("ingress/")).cloned().collect();
    assert!(!programs.is_empty(), "no program in {rules}");
    for name in programs {
        change(&mut Arc::make_mut(&mut rules.chains[&name]).rules);
    }
    rules
}

#[test]
fn unmodified_rules_pass_self_test_in_both_families() {
    let passed = run(&ruleset()).unwrap();
    assert_eq!(passed.families, BTreeSet::from([TestedFamily::Ipv4, TestedFamily::Ipv6]));
}

#[test]
fn rules_that_drop_nothing_are_found_out() {
    let mut nothing = ruleset();
    nothing.chains.clear();
    nothing.sets.clear();
    assert!(matches!(run(&nothing), Err(SelfTestError::Leaked(TestedFamily::Ipv4))));
    let accepting = with_programs(|rules| rules.insert(0, Rule::new(vec![], vec![Action::Verdict(Verdict::Accept)])));
    assert!(matches!(run(&accepting), Err(SelfTestError::Leaked(TestedFamily::Ipv4))));
}

#[test]
fn rules_that_drop_everything_are_found_out() {
    let denying = with_programs(|rules| rules.insert(0, Rule::new(vec![], vec![Action::Verdict(Verdict::Drop)])));
    assert!(matches!(run(&denying), Err(SelfTestError::Withheld(TestedFamily::Ipv4))));
}

#[test]
fn rules_refused_by_kernel_fail_self_test() {
    let nowhere = Verdict::Goto(Name::new("nowhere").unwrap());
    let broken = with_programs(|rules| rules.push(Rule::new(vec![], vec![Action::Verdict(nowhere.clone())])));
    let refused = run(&broken).unwrap_err();
    assert!(matches!(&refused, SelfTestError::Refused(reason) if reason.contains("nowhere")), "{refused}");
}

/// Everything in the calling thread's namespace that a self-test could leave behind.
fn surroundings() -> String {
    let commands =
        ["ip link", "ip address", "ip route show table all", "nft list ruleset", "cat /proc/sys/net/ipv4/ip_forward"];
    let said = commands.map(|command| {
        let mut words = command.split(' ');
        ended(Command::new(words.next().unwrap()).args(words)).stdout
    });
    said.join("\n")
}

#[test]
fn it_leaves_nothing_behind() {
    in_new_namespace(|| {
        let namespace = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        let mounts = || std::fs::read_to_string("/proc/thread-self/mountinfo").unwrap().contains("self-test");
        let before = (namespace(), surroundings(), mounts());
        run(&ruleset()).unwrap();
        assert!(run(&with_programs(Vec::clear)).is_err());
        assert_eq!((namespace(), surroundings(), mounts()), before);
    });
}

/// Runs the doctor in a new namespace, after a script that ends in its command line.
fn after(script: &str) -> String {
    let script = format!("{script} '{}' doctor --run-dir /nowhere", program().display());
    let ProgramExit { stdout, stderr, .. } = in_new_namespace(|| ended(Command::new("sh").args(["-ec", &script])));
    let line = stdout.lines().find(|line| line.contains("self-test:"));
    line.unwrap_or_else(|| panic!("{script}: {stdout}{stderr}")).to_owned()
}

#[test]
fn self_test_passes_with_read_only_sysctls() {
    let read_only = "mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys; exec";
    let line = after(&format!("unshare -m sh -ec '{read_only} \"$@\"' sh"));
    assert!(line.starts_with("ok ") && line.contains("IPv4 and IPv6"), "{line}");
}

#[test]
fn without_the_capability_it_is_a_note() {
    let line = after("setpriv --bounding-set -sys_admin");
    assert!(line.starts_with("note ") && line.contains("CAP_SYS_ADMIN"), "{line}");
}
