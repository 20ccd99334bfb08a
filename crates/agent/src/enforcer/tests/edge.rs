//! Tests of interfaces that are gone at the commit, and of kernels without chains at interfaces.

use std::collections::BTreeMap;

use nfnetlink::ObservedHook;
use nft::{Hook, TableFamily};
use nix::net::if_::if_nametoindex;
use policy::{Attachment, AttachmentId, ObjectName};

use super::*;
use crate::translation_check::TranslationCheck;

/// Every network namespace has this interface.
const PRESENT: &str = "lo";
const VANISHED: &str = "veth-gone";

fn attachment(number: u8, interface: &str, bridged: bool) -> Attachment {
    Attachment {
        id: AttachmentId { container: format!("c{number}").into(), interface: "eth0".into() },
        pod: ObjectName::new("shop", &format!("pod-{number}")),
        uid: None,
        addresses: vec![IpAddr::from([10, 1, 1, number])],
        host_interface: Some(interface.parse().expect("an interface name")),
        bridged,
        input_interface: None,
        hardware_address: None,
        link_local: vec![],
        since: number.into(),
    }
}

/// [`state`] with a pod at each of these interfaces.
fn state_at(interfaces: &[&str], web: &[&str]) -> ClusterState {
    let mut state = state(web);
    for (number, interface) in (1..).zip(interfaces) {
        state.attach(attachment(number, interface, false));
    }
    state
}

fn refuse(operation: &Operation, errno: i32) -> Refusal {
    let reason = std::io::Error::from_raw_os_error(errno).to_string();
    Refusal { operation: Some(operation.clone()), errno, reason }
}

/// A kernel before Linux 6.16: it refuses a chain at a missing interface, and then every rule of the chain.
fn requires_interfaces(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    let mut missing = BTreeSet::new();
    let mut refusals = Vec::new();
    for operation in operations {
        let is_refused = match operation {
            Operation::AddChain { chain, hook: Some(Hook::Ingress(interface)), .. } => {
                let is_gone = if_nametoindex(interface.as_str()).is_err();
                if is_gone {
                    missing.insert(chain.clone());
                }
                is_gone
            }
            Operation::AddRule { chain, .. } | Operation::FlushChain { chain, .. } => missing.contains(chain),
            _ => false,
        };
        refusals.extend(is_refused.then(|| refuse(operation, libc::ENOENT)));
    }
    commit_unless(refusals, kernel, operations, generation)
}

/// A kernel without `CONFIG_NF_TABLES_NETDEV`.
fn lacks_netdev_family(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    let refusal = |operation: &Operation| match operation {
        _ if operation.table().family != TableFamily::Netdev => None,
        Operation::AddTable { .. } => Some(refuse(operation, libc::EOPNOTSUPP)),
        _ => Some(refuse(operation, libc::ENOENT)),
    };
    commit_unless(operations.iter().filter_map(refusal).collect(), kernel, operations, generation)
}

/// A kernel with the family but without its chain type, for which it returns the error of a missing interface.
fn lacks_netdev_chains(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    let is_base = |o: &&Operation| matches!(o, Operation::AddChain { hook: Some(Hook::Ingress(_)), .. });
    let refusals = operations.iter().filter(is_base).map(|operation| refuse(operation, libc::ENOENT)).collect();
    commit_unless(refusals, kernel, operations, generation)
}

/// The base chains of a table, each with its interface; `None` if the table does not exist.
fn base_chains(enforcer: &mut TestEnforcer, table: fn(Name) -> Table) -> Option<BTreeMap<String, Option<String>>> {
    let table = table(enforcer.name.clone());
    let observed = enforcer.kernel.read(&table).expect("the table is readable")?;
    let hooked = observed.chains.into_iter().filter_map(|(name, chain)| {
        let ObservedHook { device, .. } = chain.hook?;
        Some((name, device))
    });
    Some(hooked.collect())
}

fn at_interfaces(enforcer: &mut TestEnforcer) -> Vec<String> {
    base_chains(enforcer, Table::netdev).expect("a table of family netdev").into_values().flatten().collect()
}

#[test]
fn vanished_interface_leaves_out_its_chain_alone() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(requires_interfaces);
        let before = state_at(&[PRESENT, VANISHED], &["10.2.0.1"]);
        enforce(&mut enforcer, &before).expect("the rest is committed");
        assert_eq!(at_interfaces(&mut enforcer), [PRESENT]);
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.1"]));
        assert_eq!((enforcer.left_out(), enforcer.edge_hook()), (vec![], EdgeHook::Ingress));
        assert_eq!(compare(&mut enforcer, &before), TableVerdict::Equal);

        let refused = enforcer.metrics.refused_commits.get();
        enforce(&mut enforcer, &state_at(&[PRESENT, VANISHED], &["10.2.0.3"])).expect("a change");
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.3"]));
        assert_eq!(enforcer.metrics.refused_commits.get(), refused, "the chain is not tried again");
    });
}

#[test]
fn interface_that_vanishes_before_commit_delays_no_policy() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(requires_interfaces);
        enforce(&mut enforcer, &state_at(&[PRESENT], &["10.2.0.1"])).expect("a start");
        enforce(&mut enforcer, &state_at(&[PRESENT, VANISHED], &["10.2.0.3"])).expect("the rest is committed");
        assert_eq!(at_interfaces(&mut enforcer), [PRESENT]);
        assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.3"]));
        assert_eq!((enforcer.left_out(), enforcer.edge_hook()), (vec![], EdgeHook::Ingress));
    });
}

#[test]
fn vanished_interface_is_tried_again_after_another_attachment() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(requires_interfaces);
        let mut state = state_at(&[PRESENT, VANISHED], &[]);
        enforce(&mut enforcer, &state).expect("the rest is committed");
        enforcer.commit = Kernel::commit;
        let ip = |words: &str| std::process::Command::new("ip").args(words.split(' ')).status();
        assert!(ip(&format!("link add {VANISHED} type veth peer name peer")).expect("iproute2").success());
        let changed = state.attach(Attachment { since: 3, ..attachment(2, VANISHED, false) });
        enforcer.record_delta(&changed);
        enforce(&mut enforcer, &state).expect("a change");
        assert_eq!(at_interfaces(&mut enforcer), [PRESENT, VANISHED]);
    });
}

/// Before Linux 6.16 the kernel removes a chain with its interface.
#[test]
fn chain_removed_by_kernel_is_not_deleted() {
    in_new_namespace(|| {
        let ip = |words: &str| std::process::Command::new("ip").args(words.split(' ')).status();
        assert!(ip(&format!("link add {VANISHED} type veth peer name peer")).expect("iproute2").success());
        let mut enforcer = enforcer(Kernel::commit);
        enforce(&mut enforcer, &state_at(&[PRESENT, VANISHED], &[])).expect("a start");
        let chains = base_chains(&mut enforcer, Table::netdev).expect("a table of family netdev");
        let (removed, _) = chains.into_iter().find(|(_, device)| device.as_deref() == Some(VANISHED)).expect("a chain");
        let (table, chain) = (Table::netdev(enforcer.name.clone()), Name::new(&removed).expect("a name"));
        let operations = [
            Operation::FlushChain { table: table.clone(), chain: chain.clone() },
            Operation::DeleteChain { table, chain },
        ];
        enforcer.kernel.commit(&operations, 0).expect("the chain is there");
        enforce(&mut enforcer, &state_at(&[PRESENT], &[])).expect("a change");
        assert_eq!(at_interfaces(&mut enforcer), [PRESENT]);
        assert_eq!(enforcer.metrics.refused_commits.get(), 0);
    });
}

/// Asserts that the source check of the pod at [`PRESENT`] is in a prerouting chain, and that the enforcer reports
/// that.
fn assert_at_prerouting(enforcer: &mut TestEnforcer, state: &ClusterState) {
    assert_eq!(enforcer.edge_hook(), EdgeHook::Prerouting);
    assert_eq!(base_chains(enforcer, Table::netdev), None);
    let table = Table::inet(enforcer.name.clone());
    let observed = enforcer.kernel.read(&table).expect("the table is readable").expect("a table");
    assert!(observed.chains.get("prerouting").is_some_and(|chain| chain.hook.is_some() && !chain.rules.is_empty()));
    assert!(!observed.chains[&format!("pod/{PRESENT}")].rules.is_empty());
    assert_eq!(enforcer.left_out(), Vec::<String>::new());
    assert_eq!(compare(enforcer, state), TableVerdict::Equal);
}

#[test]
fn refused_netdev_table_falls_back_to_prerouting_hooks() {
    for commit in [lacks_netdev_family as CommitWith, lacks_netdev_chains] {
        in_new_namespace(move || {
            let mut enforcer = enforcer(commit);
            let mut state = state_at(&[PRESENT], &["10.2.0.1"]);
            state.attach(attachment(9, "veth9", true));
            enforce(&mut enforcer, &state).expect("the check at the other hooks");
            assert_at_prerouting(&mut enforcer, &state);
            assert_eq!(in_kernel(&mut enforcer), texts(&["10.2.0.1"]));
            let bridge = base_chains(&mut enforcer, Table::bridge).expect("a table of family bridge");
            assert!(bridge.contains_key("prerouting"), "{bridge:?}");
        });
    }
}

/// A kernel without `CONFIG_IP_ROUTE_CLASSID`.
fn lacks_route_realms(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    let is_refused = |operation: &&Operation| match operation {
        Operation::AddRule { rule, .. } => rule.matches.contains(&nft::Match::HasRoute),
        _ => false,
    };
    let refusals = operations.iter().filter(is_refused).map(|o| refuse(o, libc::EOPNOTSUPP)).collect();
    commit_unless(refusals, kernel, operations, generation)
}

/// The other rules between the ports of a bridge stay.
#[test]
fn refused_route_match_omits_its_rules_alone() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(lacks_route_realms);
        let mut state = state(&["10.2.0.1"]);
        state.attach(attachment(1, PRESENT, true));
        enforce(&mut enforcer, &state).expect("the rest is committed");
        assert_eq!((enforcer.left_out(), enforcer.edge_hook()), (vec![], EdgeHook::Ingress));
        assert!(!enforcer.layout.requires_hooks_of_bridge());
        let table = Table::bridge(enforcer.name.clone());
        let observed = enforcer.kernel.read(&table).expect("the table is readable").expect("a table");
        assert!(!observed.chains["forward"].rules.is_empty());
        assert_eq!(compare(&mut enforcer, &state), TableVerdict::Equal);
    });
}

#[test]
fn first_interface_falls_back_to_prerouting_while_running() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(lacks_netdev_family);
        let mut state = state(&["10.2.0.1"]);
        enforce(&mut enforcer, &state).expect("no pod has an interface");
        assert_eq!(enforcer.edge_hook(), EdgeHook::Ingress);
        let mut translator = super::translator(&enforcer, &state);
        let changed = state.attach(attachment(1, PRESENT, false));
        translator.update(&state, &changed);
        enforcer.enforce(&mut translator).expect("the check at the other hooks");
        enforcer.layout = translator.layout().clone();
        assert_at_prerouting(&mut enforcer, &state);
        let check = TranslationCheck {
            state: state.into(),
            node: translator.node().into(),
            layout: translator.layout().clone(),
            followed: translator.translation(),
        };
        assert_eq!(check.run(), Vec::<String>::new());
    });
}

/// Refuses the isolation of ports of a bridge, for lack of memory.
fn refuses_bridge_isolation(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    refusing(kernel, operations, generation, |operation| match operation {
        Operation::AddElements { table, .. } if table.family == TableFamily::Bridge => vec![operation.clone()],
        _ => vec![],
    })
}

/// A kernel without `CONFIG_NF_TABLES_BRIDGE`.
fn lacks_bridge_family(
    kernel: &mut Kernel,
    operations: &[Operation],
    generation: u32,
) -> Result<CommitReceipt, CommitError> {
    let refusal = |operation: &Operation| match operation {
        _ if operation.table().family != TableFamily::Bridge => None,
        Operation::AddTable { .. } => Some(refuse(operation, libc::EOPNOTSUPP)),
        _ => Some(refuse(operation, libc::ENOENT)),
    };
    commit_unless(operations.iter().filter_map(refusal).collect(), kernel, operations, generation)
}

/// Without the table, a bridge would forward frames to all isolated pods.
#[test]
fn bridge_table_survives_refusal_for_lack_of_memory() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(Kernel::commit);
        let mut before = state(&["10.2.0.1"]);
        before.attach(attachment(1, PRESENT, true));
        enforce(&mut enforcer, &before).expect("a start");
        let mut after = before.clone();
        after.attach(attachment(2, VANISHED, true));
        enforcer.commit = refuses_bridge_isolation;
        let Err(trouble) = enforce(&mut enforcer, &after) else { panic!("it was refused") };
        assert!(matches!(trouble, Trouble::Refused(_)), "{trouble}");
        assert_eq!(compare(&mut enforcer, &before), TableVerdict::Equal);
        assert!(base_chains(&mut enforcer, Table::bridge).is_some());
        enforcer.commit = Kernel::commit;
        enforce(&mut enforcer, &after).expect("a change");
        assert_eq!(compare(&mut enforcer, &after), TableVerdict::Equal);
    });
}

#[test]
fn kernel_without_bridge_family_enforces_the_rest() {
    in_new_namespace(|| {
        let mut enforcer = enforcer(lacks_bridge_family);
        let mut state = state(&["10.2.0.1"]);
        state.attach(attachment(1, PRESENT, true));
        enforce(&mut enforcer, &state).expect("the rest is committed");
        assert!(!enforcer.left_out().is_empty());
        assert_eq!(base_chains(&mut enforcer, Table::bridge), None);
        assert_eq!(
            (in_kernel(&mut enforcer), at_interfaces(&mut enforcer)),
            (texts(&["10.2.0.1"]), vec![PRESENT.into()])
        );
    });
}
