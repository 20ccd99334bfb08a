//! Checks for rules of other programs and their effect on policies.

use std::io::ErrorKind;
use std::path::Path;

use nfnetlink::{BaseChain, ChainName, Flowtable, Kernel, LegacyTables, MarkWriter, legacy_mark_writers};
use policy::DEFAULT_MARK_MASK;

use super::finding::{Check, Finding, list};

/// Chains of a lower priority see packets before connection tracking (`NF_IP_PRI_CONNTRACK`), and can exempt them from
/// it.
const CONNECTION_TRACKING: i32 = -200;

/// Rules in the namespace, including the agent's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct NamespaceRules {
    pub(crate) base_chains: Vec<BaseChain>,
    pub(crate) chains: Vec<ChainName>,
    pub(crate) flowtables: Vec<Flowtable>,
    /// Rules that write the connection mark.
    pub(crate) mark_writers: Vec<MarkWriter>,
    /// Rules of the legacy iptables backend.
    pub(crate) legacy: Legacy,
}

/// Contents of the legacy iptables tables.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Legacy {
    pub(crate) mark_writers: Vec<MarkWriter>,
    /// Tables that cannot be read, and why.
    pub(crate) unreadable: Vec<String>,
}

impl Legacy {
    /// Reads the legacy tables of the calling thread's network namespace.
    fn gather(root: &Path) -> Legacy {
        let mut legacy = Legacy::default();
        for family in LegacyTables::BOTH {
            let file = match family {
                LegacyTables::Ip => "ip_tables_names",
                LegacyTables::Ip6 => "ip6_tables_names",
            };
            let path = root.join("proc/thread-self/net").join(file);
            let names = match std::fs::read_to_string(&path) {
                Ok(names) => names,
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    legacy.unreadable.push(format!("{}: {error}", path.display()));
                    continue;
                }
            };
            for table in names.lines() {
                match legacy_mark_writers(family, table) {
                    Ok(writers) => legacy.mark_writers.extend(writers),
                    Err(error) => legacy.unreadable.push(format!("table {table} of {file}: {error}")),
                }
            }
        }
        legacy
    }
}

/// Gathers facts about the network namespace of the calling thread.
pub(super) fn gather(root: &Path) -> Result<NamespaceRules, String> {
    let mut kernel = Kernel::open().map_err(|e| e.to_string())?;
    Ok(NamespaceRules {
        base_chains: kernel.base_chains().map_err(|e| e.to_string())?,
        chains: kernel.chain_names().map_err(|e| e.to_string())?,
        flowtables: kernel.flowtables().map_err(|e| e.to_string())?,
        mark_writers: kernel.mark_writers().map_err(|e| e.to_string())?,
        legacy: Legacy::gather(root),
    })
}

/// Another NetworkPolicy engine, recognized by the names of its tables and chains.
struct Engine {
    name: &'static str,
    /// Name prefixes of its tables and chains.
    marks: &'static [&'static str],
}

const ENGINES: &[Engine] = &[
    // Also used by k3s and k0s.
    Engine { name: "kube-router", marks: &["KUBE-ROUTER-", "KUBE-NWPLCY-", "KUBE-POD-FW-", "kube-router"] },
    Engine { name: "Calico", marks: &["cali-", "calico"] },
    Engine { name: "Antrea", marks: &["ANTREA-", "antrea"] },
    // Also used by kindnet, the network plugin of kind.
    Engine { name: "kube-network-policies", marks: &["kube-network-policies", "kindnet-network-policies"] },
    Engine { name: "Weave Net", marks: &["WEAVE-NPC"] },
    Engine { name: "Cilium", marks: &["CILIUM_"] },
];

/// Lists only the flowtables.
pub(super) fn gather_flowtables() -> Result<Vec<Flowtable>, String> {
    let mut kernel = Kernel::open().map_err(|e| e.to_string())?;
    kernel.flowtables().map_err(|e| e.to_string())
}

/// A flowtable forwards offloaded flows at the ingress hook of its devices, bypassing all rules. Other programs' rules
/// select these flows, so any flowtable may contain those of an isolated pod.
pub(super) fn flowtables(flowtables: &Result<Vec<Flowtable>, String>, isolates_pods: bool) -> Finding {
    let found = match flowtables {
        Ok(found) => found,
        Err(error) => {
            let finding = format!("cannot list flowtables: {error}");
            return Finding::warning(Check::Flowtables, finding, "run this as root, or with CAP_NET_ADMIN");
        }
    };
    if found.is_empty() {
        return Finding::ok(Check::Flowtables, "no flowtable offloads flows");
    }
    let names: Vec<String> = found.iter().map(|f| format!("{} {} {}", f.family, f.table, f.name)).collect();
    let finding = format!(
        "flows that a flowtable offloads ({}) bypass all rules, so a tightened policy does not drop them",
        list(&names)
    );
    let advice = "remove the flowtable, or exclude the flows of pods from it";
    match isolates_pods {
        true => Finding::error(Check::Flowtables, finding, advice),
        false => Finding::warning(Check::Flowtables, finding, advice),
    }
}

pub(super) fn findings(others: &Result<NamespaceRules, String>, table: &str, isolates_pods: bool) -> Vec<Finding> {
    let others = match others {
        Ok(others) => others,
        Err(error) => {
            let finding = format!("cannot list the tables of other programs: {error}");
            return vec![Finding::warning(Check::OtherTables, finding, "run this as root, or with CAP_NET_ADMIN")];
        }
    };
    let mut findings = vec![drop_policies(others, table)];
    findings.extend(engines(others));
    if !others.flowtables.is_empty() {
        findings.push(flowtables(&Ok(others.flowtables.clone()), isolates_pods));
    }
    findings.extend(notrack(others));
    findings.extend(connection_marks(others, table));
    findings.extend(unreadable_legacy_rules(&others.legacy));
    findings
}

/// Rules of other programs that write connection mark bits used for approvals: the bits that the agent's rules write,
/// or the default mask while it has none.
fn connection_marks(others: &NamespaceRules, table: &str) -> Option<Finding> {
    let is_ours = |writer: &&MarkWriter| writer.family == "inet" && writer.table == table;
    let (ours, foreign): (Vec<&MarkWriter>, Vec<&MarkWriter>) = others.mark_writers.iter().partition(is_ours);
    let mask = ours.iter().map(|writer| writer.bits).reduce(|all, bits| all | bits).unwrap_or(DEFAULT_MARK_MASK);
    let mut names: Vec<String> = foreign
        .into_iter()
        .chain(&others.legacy.mark_writers)
        .filter(|writer| writer.bits & mask != 0)
        .map(|MarkWriter { family, table, chain, bits }| format!("{family} {table} {chain} (bits {bits:#010x})"))
        .collect();
    names.dedup();
    (!names.is_empty()).then(|| {
        Finding::error(
            Check::ConnectionMark,
            format!(
                "{} writes bits of the connection mark that Ringfence uses for approvals ({mask:#010x})",
                list(&names)
            ),
            "choose bits that no other program writes (--ct-mark-mask), or configure the mask of the other program",
        )
    })
}

fn unreadable_legacy_rules(legacy: &Legacy) -> Option<Finding> {
    (!legacy.unreadable.is_empty()).then(|| {
        Finding::warning(
            Check::ConnectionMark,
            format!("cannot read the rules of the legacy iptables backend: {}", list(&legacy.unreadable)),
            "run this as root; search the output of iptables-legacy-save and ip6tables-legacy-save for CONNMARK",
        )
    })
}

/// Does not check whether the rules use notrack, since that is the purpose of most such chains.
fn notrack(others: &NamespaceRules) -> Option<Finding> {
    let early = others.base_chains.iter().filter(|c| {
        is_ip(c) && c.priority < CONNECTION_TRACKING && ["prerouting", "output"].contains(&c.hook) && c.rules > 0
    });
    let names: Vec<String> = early.map(name).collect();
    (!names.is_empty()).then(|| {
        Finding::note(
            Check::Notrack,
            format!(
                "{} can exempt packets from connection tracking (notrack); untracked packets of isolated pods are \
                 dropped",
                list(&names)
            ),
            "exclude the traffic of pods from such rules",
        )
    })
}

/// An accept ends only the base chain that issues it, but a drop is final for all programs.
fn drop_policies(others: &NamespaceRules, table: &str) -> Finding {
    let is_ours = |c: &BaseChain| c.family == "inet" && c.table == table;
    let forward = others.base_chains.iter().filter(|c| c.hook == "forward" && is_ip(c) && !is_ours(c));
    let (dropping, accepting): (Vec<&BaseChain>, Vec<&BaseChain>) = forward.partition(|c| c.drops);
    if dropping.is_empty() {
        let count = accepting.len();
        let text = format!("{count} base chains of other programs are at the forward hook; none has policy drop");
        return Finding::ok(Check::OtherTables, text);
    }
    let names: Vec<String> = dropping.into_iter().map(name).collect();
    Finding::note(
        Check::OtherTables,
        format!(
            "{} has policy drop: it also drops packets that a NetworkPolicy allows, unless it accepts them itself",
            list(&names)
        ),
        "if allowed flows do not pass, accept the traffic of pods in that chain",
    )
}

fn engines(others: &NamespaceRules) -> Vec<Finding> {
    let found = ENGINES.iter().filter_map(|engine| {
        let marked = |name: &str| engine.marks.iter().any(|mark| name.starts_with(mark));
        let chain = others.chains.iter().find(|c| marked(&c.table) || marked(&c.name))?;
        let ChainName { family, table, name } = chain;
        Some(Finding::warning(
            Check::OtherEngines,
            format!(
                "{} has rules on this node ({family} {table} {name}): a packet that either of the two denies is \
                 dropped",
                engine.name
            ),
            format!(
                "let only one of the two enforce NetworkPolicy: disable it in {} and remove its rules, or uninstall \
                 Ringfence",
                engine.name
            ),
        ))
    });
    found.collect()
}

/// Whether the chain sees routed IP packets.
fn is_ip(chain: &BaseChain) -> bool {
    ["ip", "ip6", "inet"].contains(&chain.family)
}

fn name(chain: &BaseChain) -> String {
    format!("{} {} {}", chain.family, chain.table, chain.name)
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity::{self, Error, Note, Ok as Fine, Warning};
    use super::*;

    fn base(family: &'static str, table: &str, hook: &'static str, drops: bool) -> BaseChain {
        BaseChain {
            family,
            table: table.into(),
            name: "FORWARD".into(),
            kind: "filter".into(),
            hook,
            priority: 0,
            drops,
            rules: 1,
        }
    }

    fn chain(family: &'static str, table: &str, name: &str) -> ChainName {
        ChainName { family, table: table.into(), name: name.into() }
    }

    fn found(others: NamespaceRules) -> Vec<(Check, FindingSeverity)> {
        findings(&Ok(others), "ringfence", false).iter().map(|f| (f.id, f.severity)).collect()
    }

    #[test]
    fn foreign_accepting_or_unrelated_base_chains_are_ok() {
        let base_chains = vec![
            base("ip", "filter", "forward", false),
            base("ip", "filter", "input", true),
            base("bridge", "filter", "forward", true),
            base("inet", "ringfence", "forward", false),
        ];
        let others = NamespaceRules { base_chains, ..NamespaceRules::default() };
        assert_eq!(found(others.clone()), [(Check::OtherTables, Fine)]);
        assert!(findings(&Ok(others), "ringfence", false)[0].finding.starts_with("1 base chains"));
    }

    #[test]
    fn foreign_drop_policy_chain_is_note_with_name() {
        let others =
            NamespaceRules { base_chains: vec![base("ip", "filter", "forward", true)], ..NamespaceRules::default() };
        assert!(findings(&Ok(others.clone()), "ringfence", false)[0].finding.contains("ip filter FORWARD"));
        assert_eq!(found(others), [(Check::OtherTables, Note)]);
    }

    #[test]
    fn other_policy_engines_are_detected_by_chain_names() {
        let marks = [
            ("ip", "filter", "KUBE-NWPLCY-ABC", "kube-router"),
            ("ip6", "filter", "KUBE-POD-FW-ABC", "kube-router"),
            ("ip", "filter", "cali-FORWARD", "Calico"),
            ("ip", "calico", "filter-cali-FORWARD", "Calico"),
            ("inet", "kube-network-policies", "postrouting", "kube-network-policies"),
            ("inet", "kindnet-network-policies", "postrouting", "kube-network-policies"),
            ("ip", "filter", "ANTREA-FORWARD", "Antrea"),
        ];
        for (family, table, name, engine) in marks {
            let others = NamespaceRules { chains: vec![chain(family, table, name)], ..NamespaceRules::default() };
            let finding = findings(&Ok(others.clone()), "ringfence", false).remove(1);
            assert!(finding.finding.starts_with(engine), "{finding}");
            assert_eq!(found(others), [(Check::OtherTables, Fine), (Check::OtherEngines, Warning)]);
        }
        let usual = ["KUBE-FORWARD", "KUBE-SERVICES", "FLANNEL-FWD", "CNI-FORWARD", "DOCKER-USER"];
        let chains = usual.iter().map(|name| chain("ip", "filter", name)).collect();
        assert_eq!(found(NamespaceRules { chains, ..NamespaceRules::default() }), [(Check::OtherTables, Fine)]);
    }

    #[test]
    fn flowtable_is_an_error_while_pods_are_isolated() {
        let (table, name) = ("fw".into(), "fast".into());
        let fast = Flowtable { family: "inet", table, name, devices: vec![], counts: false };
        let severity = |found: &Result<Vec<Flowtable>, String>, isolates| flowtables(found, isolates).severity;
        assert_eq!(severity(&Ok(vec![fast.clone()]), true), Error);
        assert_eq!(severity(&Ok(vec![fast.clone()]), false), Warning);
        assert_eq!(severity(&Ok(vec![]), true), Fine);
        assert_eq!(severity(&Err("no".into()), true), Warning);
        let others = NamespaceRules { flowtables: vec![fast], ..NamespaceRules::default() };
        assert_eq!(found(others), [(Check::OtherTables, Fine), (Check::Flowtables, Warning)]);
    }

    #[test]
    fn rules_before_connection_tracking_are_noted() {
        let raw = BaseChain { priority: -300, ..base("ip", "raw", "prerouting", false) };
        let only = |chain: BaseChain| found(NamespaceRules { base_chains: vec![chain], ..NamespaceRules::default() });
        assert_eq!(only(raw.clone()), [(Check::OtherTables, Fine), (Check::Notrack, Note)]);
        assert_eq!(only(BaseChain { rules: 0, ..raw.clone() }), [(Check::OtherTables, Fine)]);
        assert_eq!(only(BaseChain { priority: -150, ..raw.clone() }), [(Check::OtherTables, Fine)]);
        assert_eq!(only(BaseChain { family: "bridge", ..raw }), [(Check::OtherTables, Fine)]);
    }

    #[test]
    fn foreign_writers_of_approval_bits_are_an_error() {
        let writer =
            |table: &str, bits: u32| MarkWriter { family: "inet", table: table.into(), chain: "approve".into(), bits };
        let of = |mark_writers: Vec<MarkWriter>| found(NamespaceRules { mark_writers, ..NamespaceRules::default() });
        let ours = || writer("ringfence", 0xff00_0000);
        assert_eq!(of(vec![ours()]), [(Check::OtherTables, Fine)]);
        assert_eq!(of(vec![ours(), writer("netbird", 0x00ff_ffff)]), [(Check::OtherTables, Fine)]);
        let error = [(Check::OtherTables, Fine), (Check::ConnectionMark, FindingSeverity::Error)];
        assert_eq!(of(vec![ours(), writer("netbird", u32::MAX)]), error);
        assert_eq!(of(vec![writer("netbird", 0x0001_0000)]), error, "the default mask");
        let legacy = Legacy { mark_writers: vec![writer("mangle", u32::MAX)], unreadable: vec![] };
        assert_eq!(found(NamespaceRules { mark_writers: vec![ours()], legacy, ..NamespaceRules::default() }), error);
    }

    #[test]
    fn unreadable_legacy_iptables_rules_are_warning() {
        let legacy = Legacy { mark_writers: vec![], unreadable: vec!["no".into()] };
        let findings = found(NamespaceRules { legacy, ..NamespaceRules::default() });
        assert_eq!(findings, [(Check::OtherTables, Fine), (Check::ConnectionMark, Warning)]);
    }

    #[test]
    fn unreadable_tables_are_warning() {
        let found = findings(&Err("no".into()), "ringfence", false);
        assert_eq!((found[0].id, found[0].severity), (Check::OtherTables, Warning));
    }
}
