//! Tests of kernel refusals, in separate network namespaces: a wrapper refuses operations, and a real kernel gets the
//! rest.

mod edge;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::DerefMut;
use std::process::Command;

use nfnetlink::{CommitReceipt, Refusal};
use nft::{Invalid, Operation, ValidatedRuleset};
use pacing::Backoff;
use policy::{Change, EdgeHook, Kind, lower};
use serde_json::{Value, json};

use super::refusals::{FIRST_TRIAL, LAST_TRIAL};
use super::*;
use crate::netns::in_new_namespace;

const WEB: &str = "pods4/shop/app/web";
const REFUSED: &str = "10.2.0.2";

/// A database that some web servers may reach.
fn state(web: &[&str]) -> ClusterState {
    let pod = |name: &str, app: &str, node: &str, address: &str| {
        json!({
            "metadata": {"name": name, "namespace": "shop", "labels": {"app": app}},
            "spec": {"nodeName": node}, "status": {"podIPs": [{"ip": address}]},
        })
    };
    let peers = json!([{"podSelector": {"matchLabels": {"app": "web"}}}]);
    let policy = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [{"from": peers}]},
    });
    let mut pods = vec![pod("db", "db", "node-a", "10.1.0.1")];
    pods.extend(web.iter().map(|address| pod(&format!("web-{address}"), "web", "node-b", address)));
    let mut state = ClusterState::new();
    let mut replace = |kind, objects: &[Value]| {
        let lowered = objects.iter().map(|object| lower(kind, object).expect("it has a name")).collect();
        state.apply(Change::Replace(kind, lowered));
    };
    replace(Kind::Pod, &pods);
    replace(Kind::NetworkPolicy, &[policy]);
    state
}

/// An enforcer and the layout that its tables were last translated for.
struct TestEnforcer {
    enforcer: Enforcer,
    layout: Layout,
}

impl TestEnforcer {
    fn edge_hook(&self) -> EdgeHook {
        self.layout.edge_hook()
    }
}

impl Deref for TestEnforcer {
    type Target = Enforcer;

    fn deref(&self) -> &Enforcer {
        &self.enforcer
    }
}

impl DerefMut for TestEnforcer {
    fn deref_mut(&mut self) -> &mut Enforcer {
        &mut self.enforcer
    }
}

fn translator(enforcer: &TestEnforcer, state: &ClusterState) -> Translator {
    let mut translator = Translator::new("node-a", enforcer.layout.clone());
    translator.begin(state);
    translator
}

fn enforce(enforcer: &mut TestEnforcer, state: &ClusterState) -> Result<EnforceResult, Trouble> {
    let mut translator = translator(enforcer, state);
    let enforced = enforcer.enforce(&mut translator);
    enforcer.layout = translator.layout().clone();
    enforced
}

fn verify(enforcer: &mut TestEnforcer, state: &ClusterState) -> Result<Option<EnforceResult>, Trouble> {
    let mut translator = translator(enforcer, state);
    enforcer.verify(&mut translator)
}

fn compare(enforcer: &mut TestEnforcer, state: &ClusterState) -> TableVerdict {
    let translator = translator(enforcer, state);
    enforcer.compare(&translator)
}

fn enforcer(commit: CommitWith) -> TestEnforcer {
    let layout = Layout::for_table("ringfence").unwrap();
    let mut enforcer = Enforcer::start(&layout, layout.first_generation(), Arc::new(Metrics::new())).unwrap();
    enforcer.commit = commit;
    TestEnforcer { enforcer, layout }
}

/// Commits the operations if none of them is refused.
fn commit_unless(
    refusals: Vec<Refusal>,
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    match refusals.is_empty() {
        true => kernel.commit(operations, generation),
        false => Err(CommitError::Refused { refusals, more: 0 }),
    }
}

/// A kernel that refuses the operations that `faults` selects.
fn refusing(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
    faults: fn(&Operation) -> Vec<Operation>,
) -> Result<CommitReceipt, CommitError> {
    let refusal =
        |operation| Refusal { operation: Some(operation), errno: 12, reason: "Cannot allocate memory".into() };
    let refusals: Vec<Refusal> = operations.iter().flat_map(faults).map(refusal).collect();
    commit_unless(refusals, kernel, operations, generation)
}

/// Refuses one element, in any transaction.
fn refuses_an_element(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    refusing(kernel, operations, generation, |operation| match operation {
        Operation::AddElements { table, name, set, elements } if name.as_str() == WEB => {
            let one = |(key, element): &(nft::Key, nft::Element)| Operation::AddElements {
                table: table.clone(),
                name: name.clone(),
                set: set.clone(),
                elements: vec![(*key, element.clone())],
            };
            elements.iter().map(one).filter(|operation| operation.to_string().contains(REFUSED)).collect()
        }
        _ => vec![],
    })
}

/// Refuses the isolation of a pod.
fn refuses_isolation(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    refusing(kernel, operations, generation, |operation| match operation {
        Operation::AddElements { name, .. } if name.as_str() == "ingress4" => vec![operation.clone()],
        _ => vec![],
    })
}

fn in_kernel(enforcer: &mut TestEnforcer) -> BTreeSet<String> {
    let table = Table::inet(enforcer.name.clone());
    let observed = enforcer.kernel.read(&table).unwrap().expect("a table");
    observed.addresses(WEB).iter().map(IpAddr::to_string).collect()
}

fn texts(addresses: &[&str]) -> BTreeSet<String> {
    addresses.iter().map(ToString::to_string).collect()
}

#[test]
fn refused_element_is_left_out_of_initial_commit() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(refuses_an_element);
        let whole = state(&["10.2.0.1", REFUSED]);
        enforce(&mut enforcer, &whole).unwrap();
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.1"]));
        let left_out = enforcer.left_out();
        assert!(left_out.len() == 1 && left_out[0].contains(REFUSED) && left_out[0].contains("memory"), "{left_out:?}");
        assert_eq!(compare(&mut enforcer, &whole), TableVerdict::Equal);

        // The refused part stays left out of later commits, which succeed without another refusal.
        let refused = enforcer.metrics.refused_commits.get();
        enforce(&mut enforcer, &state(&["10.2.0.1", REFUSED, "10.2.0.3"])).unwrap();
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.1", "10.2.0.3"]));
        assert_eq!(enforcer.metrics.refused_commits.get(), refused);
    });
}

#[test]
fn refused_element_is_left_out_of_later_commit() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(refuses_an_element);
        enforce(&mut enforcer, &state(&["10.2.0.1"])).unwrap();
        enforce(&mut enforcer, &state(&["10.2.0.3", REFUSED])).unwrap();
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.3"]));
        assert_eq!(enforcer.left_out().len(), 1);
    });
}

#[test]
fn left_out_element_is_retried_with_backoff() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(refuses_an_element);
        let whole = state(&["10.2.0.1", REFUSED]);
        enforce(&mut enforcer, &whole).unwrap();
        let due = |enforcer: &mut TestEnforcer| {
            let (at, backoff) = enforcer.left_out.trial.as_mut().expect("a trial to come");
            *at = Instant::now();
            backoff.failures()
        };
        assert_eq!(due(&mut enforcer), 1);
        verify(&mut enforcer, &whole).unwrap().expect("a trial");
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.1"]));
        assert_eq!(due(&mut enforcer), 2, "a refused commit is expensive, so the next trial is later");

        enforcer.commit = Kernel::commit;
        verify(&mut enforcer, &whole).unwrap().expect("a trial");
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.1", REFUSED]));
        assert_eq!(enforcer.left_out(), Vec::<String>::new());
        assert!(verify(&mut enforcer, &whole).unwrap().is_none(), "there is nothing to try any more");
    });
}

#[test]
fn verify_commits_change_lost_to_foreign_commits() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(Kernel::commit);
        let (old, new) = (state(&["10.2.0.1"]), state(&["10.2.0.3"]));
        enforce(&mut enforcer, &old).unwrap();
        enforcer.commit = |_, _, _| Err(CommitError::Moved);
        let Err(trouble) = enforce(&mut enforcer, &new) else { panic!("it was outrun") };
        assert!(matches!(trouble, Trouble::Outrun), "{trouble}");
        enforcer.commit = Kernel::commit;
        assert!(verify(&mut enforcer, &new).unwrap().is_some_and(|enforced| enforced.commit.is_some()));
        assert_eq!(in_kernel(&mut enforcer), ["10.2.0.3".to_owned()].into());
    });
}

fn conntrack(arguments: &[&str]) -> String {
    let output = Command::new("conntrack").args(arguments).output().expect("conntrack is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Until its end, a table with another mask approves flows. Its marks begin with 1010, which is number 2 of the smallest
/// mask.
fn approve_with_default_mask(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    if conntrack(&["-L"]).is_empty() {
        let tuple = ["-I", "-p", "udp", "-s", "10.2.0.1", "-d", "10.1.0.1", "--sport", "4000", "--dport", "80"];
        conntrack(&[&tuple[..], &["--timeout", "600", "--mark", "0xa0010000"]].concat());
    }
    kernel.commit(operations, generation)
}

#[test]
fn table_with_other_mask_leaves_no_approval() {
    // The first commit begins the generation after this one: that of the approval, or the one before it.
    for first in 0..7 {
        in_new_namespace(|| {
            let state = state(&["10.2.0.1"]);
            enforce(&mut enforcer(Kernel::commit), &state).unwrap();
            let layout = Layout::new("ringfence".parse().unwrap(), 0xf000_0000).unwrap();
            let generation = layout.first_generation().drawn_from(first);
            let mut started = Enforcer::start(&layout, generation, Arc::new(Metrics::new())).unwrap();
            started.commit = approve_with_default_mask;
            let mut restarted = TestEnforcer { enforcer: started, layout };
            enforce(&mut restarted, &state).unwrap();
            let listed = conntrack(&["-L"]);
            let mark = listed.split_whitespace().find_map(|word| word.strip_prefix("mark=")).expect("an entry");
            let approved_in = restarted.generation.at_mark(mark.parse().unwrap());
            assert_ne!(approved_in, Some(restarted.generation), "{listed}");
        });
    }
}

#[test]
fn refused_isolation_keeps_previous_rules() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(Kernel::commit);
        let old = state(&["10.2.0.1"]);
        enforce(&mut enforcer, &old).unwrap();
        let generation = enforcer.kernel.generation().unwrap();
        enforcer.commit = refuses_isolation;
        // The database has a new address, whose rules are refused.
        let mut new = old.clone();
        let moved = json!({
            "metadata": {"name": "db", "namespace": "shop", "labels": {"app": "db"}},
            "spec": {"nodeName": "node-a"}, "status": {"podIPs": [{"ip": "10.1.0.9"}]},
        });
        new.apply(Change::Set(lower(Kind::Pod, &moved).unwrap()));
        let Err(trouble) = enforce(&mut enforcer, &new) else { panic!("it was refused") };
        assert!(matches!(&trouble, Trouble::Refused(_)) && trouble.to_string().contains("10.1.0.9"), "{trouble}");
        assert_eq!(enforcer.kernel.generation().unwrap(), generation);
        assert_eq!(compare(&mut enforcer, &old), TableVerdict::Equal);

        enforcer.commit = Kernel::commit;
        enforce(&mut enforcer, &new).unwrap();
        assert_eq!(compare(&mut enforcer, &new), TableVerdict::Equal);
    });
}

/// A validation that refuses the elements that `is_invalid` selects.
fn validate_unless(
    previous: Option<&ValidatedRuleset>,
    next: Ruleset,
    is_invalid: fn(&Name, &nft::Key) -> bool,
) -> Result<ValidatedRuleset, Vec<InvalidPart>> {
    let invalid = |(name, set): (&Name, &Arc<nft::Set>)| {
        let keys = set.elements.keys().filter(|key| is_invalid(name, key));
        let part = |key| InvalidPart {
            operation: Operation::AddElements {
                table: next.table.clone(),
                name: name.clone(),
                set: set.clone(),
                elements: vec![(key, set.elements.get(&key).expect("an element").clone())],
            },
            defect: Invalid::WrongElement { set: name.clone(), key },
        };
        keys.map(part).collect::<Vec<InvalidPart>>()
    };
    let invalid: Vec<InvalidPart> = next.sets.iter().flat_map(invalid).collect();
    if invalid.is_empty() { tables::validate(previous, next) } else { Err(invalid) }
}

#[test]
fn invalid_element_is_left_out_and_retried() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(Kernel::commit);
        enforce(&mut enforcer, &state(&["10.2.0.1"])).unwrap();
        enforcer.validate = |previous, next| {
            validate_unless(previous, next, |set, key| set.as_str() == WEB && key.to_string() == REFUSED)
        };
        let whole = state(&["10.2.0.3", REFUSED]);
        enforce(&mut enforcer, &whole).unwrap();
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.3"]));
        let left_out = enforcer.left_out();
        assert!(left_out.len() == 1 && left_out[0].contains("invalid operation"), "{left_out:?}");
        assert_eq!(compare(&mut enforcer, &whole), TableVerdict::Equal);
        assert_eq!(enforcer.metrics.refused_commits.get(), 0, "nothing invalid is sent to the kernel");

        enforcer.validate = tables::validate;
        enforcer.left_out.trial = Some((Instant::now(), Backoff::new(FIRST_TRIAL, LAST_TRIAL)));
        verify(&mut enforcer, &whole).unwrap().expect("a trial");
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.3", REFUSED]));
        assert_eq!(enforcer.left_out(), Vec::<String>::new());
    });
}

#[test]
fn invalid_isolation_keeps_previous_rules() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(Kernel::commit);
        let old = state(&["10.2.0.1"]);
        enforce(&mut enforcer, &old).unwrap();
        let generation = enforcer.kernel.generation().unwrap();
        enforcer.validate = |previous, next| validate_unless(previous, next, |set, _| set.as_str() == "ingress4");
        let new = state(&["10.2.0.3"]);
        let Err(trouble) = enforce(&mut enforcer, &new) else { panic!("it was invalid") };
        assert!(matches!(&trouble, Trouble::Invalid(_)) && trouble.to_string().contains("10.1.0.1"), "{trouble}");
        assert_eq!(enforcer.kernel.generation().unwrap(), generation);
        assert!(enforcer.live.is_some(), "nothing was sent, so nothing has to be read back");

        enforcer.validate = tables::validate;
        assert_eq!(compare(&mut enforcer, &old), TableVerdict::Equal);
        enforce(&mut enforcer, &new).unwrap();
        assert_eq!(compare(&mut enforcer, &new), TableVerdict::Equal);
    });
}

/// A kernel whose size limit is below a transaction with the elements of the large set.
fn limits_size(kernel: &mut Kernel, operations: &[Operation], generation: u32) -> Result<CommitReceipt, CommitError> {
    match operations.iter().map(Operation::weight).sum::<usize>() > 300 {
        true => Err(CommitError::TooBig),
        false => kernel.commit(operations, generation),
    }
}

#[test]
fn transaction_too_big_leaves_out_its_largest_set() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(limits_size);
        let addresses: Vec<String> = (0..400).map(|n| format!("10.2.{}.{}", n / 200, n % 200)).collect();
        let addresses: Vec<&str> = addresses.iter().map(String::as_str).collect();
        enforce(&mut enforcer, &state(&addresses[..1])).unwrap();
        assert_eq!(in_kernel(&mut enforcer), texts(&addresses[..1]));

        let large = state(&addresses);
        enforce(&mut enforcer, &large).unwrap();
        let table = Table::inet(enforcer.name.clone());
        let observed = enforcer.kernel.read(&table).unwrap().expect("a table");
        assert!(observed.addresses(WEB).is_empty(), "the largest set is left out");
        assert!(observed.addresses("isolated-ingress4").contains(&"10.1.0.1".parse::<IpAddr>().unwrap()));
        let left_out = enforcer.left_out();
        assert!(left_out.len() == 1 && left_out[0].contains(WEB) && left_out[0].contains("limit"), "{left_out:?}");
        assert_eq!(compare(&mut enforcer, &large), TableVerdict::Equal);

        enforcer.left_out.trial = Some((Instant::now(), Backoff::new(FIRST_TRIAL, LAST_TRIAL)));
        verify(&mut enforcer, &state(&addresses[..2])).unwrap().expect("a trial");
        assert_eq!(in_kernel(&mut enforcer), texts(&addresses[..2]));
        assert_eq!(enforcer.left_out(), Vec::<String>::new());
    });
}

/// A cluster policy denies pods of a namespace to the database, and node-b has these pod ranges.
fn guarded_state(web: &[&str], ranges: &[&str]) -> ClusterState {
    let mut state = state(web);
    let policy = json!({
        "apiVersion": "policy.networking.k8s.io/v1alpha2", "metadata": {"name": "guard"},
        "spec": {
            "tier": "Admin", "priority": 1, "subject": {"namespaces": {}},
            "ingress": [{"action": "Deny", "from": [{"pods": {"podSelector": {"matchLabels": {"app": "web"}}}}]}],
        },
    });
    let node = json!({"metadata": {"name": "node-b"}, "spec": {"podCIDRs": ranges}});
    let namespace = json!({"metadata": {"name": "shop"}});
    for (kind, object) in [(Kind::ClusterNetworkPolicy, &policy), (Kind::Node, &node), (Kind::Namespace, &namespace)] {
        state.apply(Change::Set(lower(kind, object).unwrap()));
    }
    state
}

/// The kernel publishes intervals after rules.
#[test]
fn changed_intervals_are_followed_by_another_generation() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(Kernel::commit);
        let mut generations_of = |state: ClusterState| {
            let before = enforcer.policy_generation();
            let operations = enforce(&mut enforcer, &state).unwrap().commit.map_or(0, |commit| commit.operations);
            assert_eq!(compare(&mut enforcer, &state), TableVerdict::Equal);
            (enforcer.policy_generation() - before, operations > 0)
        };
        generations_of(guarded_state(&["10.2.0.1"], &[]));
        assert_eq!(generations_of(guarded_state(&["10.2.0.3"], &[])), (1, true), "no interval changes");
        assert_eq!(generations_of(guarded_state(&["10.2.0.3"], &["10.2.0.0/24"])), (2, true));
        assert_eq!(generations_of(guarded_state(&["10.2.0.3"], &["10.2.0.0/24"])), (0, false));
    });
}

#[test]
fn reverted_foreign_change_keeps_no_approval() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(Kernel::commit);
        let state = state(&["10.2.0.1"]);
        enforce(&mut enforcer, &state).unwrap();
        let mut generations_after = |touches: bool| {
            let before = enforcer.policy_generation();
            let generation = enforcer.kernel.generation().unwrap() + 1;
            enforcer.record_foreign_commit(&Foreign { generation, program: "nft".into(), process: 1, touches });
            verify(&mut enforcer, &state).unwrap();
            enforcer.policy_generation() - before
        };
        assert_eq!([true, false].map(&mut generations_after), [1, 0]);
    });
}
