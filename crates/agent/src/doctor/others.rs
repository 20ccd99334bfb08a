//! Who else has rules where ours are, and what follows from it.

use super::finding::{Check, Finding};

/// Findings of one kind name so many.
const NAMED: usize = 5;

/// A chain of any family that packets enter by a hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseChain {
    /// As nft writes it: `ip`, `ip6`, `inet`, `bridge`, `netdev`, `arp`.
    pub(crate) family: String,
    pub(crate) table: String,
    pub(crate) chain: String,
    pub(crate) hook: String,
    pub(crate) priority: i32,
    /// What happens to packets that reach its end.
    pub(crate) policy: Policy,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policy {
    Accept,
    Drop,
}

/// What the namespace holds beside our table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Others {
    pub(crate) base_chains: Vec<BaseChain>,
    /// Every chain, base chain or not, as `family table chain`.
    pub(crate) chains: Vec<(String, String, String)>,
    /// As `family table name`.
    pub(crate) flowtables: Vec<(String, String, String)>,
    /// Chains with a rule that takes packets out of connection tracking, as `family table chain`.
    pub(crate) notrack: Vec<(String, String, String)>,
}

/// Another engine for NetworkPolicy, known by the names that it gives to tables and chains.
struct Engine {
    name: &'static str,
    /// What the name of a table or of a chain begins with.
    marks: &'static [&'static str],
}

const ENGINES: &[Engine] = &[
    // Also within k3s and k0s.
    Engine { name: "kube-router", marks: &["KUBE-ROUTER-", "KUBE-NWPLCY-", "KUBE-POD-FW-", "kube-router"] },
    Engine { name: "Calico", marks: &["cali-", "calico"] },
    Engine { name: "Antrea", marks: &["ANTREA-", "antrea"] },
    // Also within kindnet, the network plugin of kind.
    Engine { name: "kube-network-policies", marks: &["kube-network-policies", "kindnet-network-policies"] },
    Engine { name: "Weave Net", marks: &["WEAVE-NPC"] },
    Engine { name: "Cilium", marks: &["CILIUM_"] },
];

pub(super) fn findings(others: &Result<Others, String>, table: &str) -> Vec<Finding> {
    let others = match others {
        Ok(others) => others,
        Err(error) => {
            let finding = format!("the tables of others cannot be listed: {error}");
            return vec![Finding::warning(Check::OtherTables, finding, "run this as root, or with CAP_NET_ADMIN")];
        }
    };
    let mut findings = vec![drop_policies(others, table)];
    findings.extend(engines(others));
    if !others.flowtables.is_empty() {
        findings.push(Finding::warning(
            Check::Flowtables,
            format!(
                "flows that a flowtable has taken over ({}) pass by all rules, so that a tightened policy does not cut them",
                list(&others.flowtables)
            ),
            "remove the flowtable, or keep the flows of pods out of it",
        ));
    }
    if !others.notrack.is_empty() {
        findings.push(Finding::note(
            Check::Notrack,
            format!(
                "rules in {} take packets out of connection tracking; isolated pods neither send nor receive what is not tracked",
                list(&others.notrack)
            ),
            "leave the traffic of pods out of these rules",
        ));
    }
    findings
}

/// An accept of others is not final for us and the other way round; a drop is, whoever says it.
fn drop_policies(others: &Others, table: &str) -> Finding {
    let forward = others.base_chains.iter().filter(|c| {
        c.hook == "forward" && ["ip", "ip6", "inet"].contains(&&*c.family) && !(c.family == "inet" && c.table == table)
    });
    let (dropping, accepting): (Vec<&BaseChain>, Vec<&BaseChain>) = forward.partition(|c| c.policy == Policy::Drop);
    if dropping.is_empty() {
        let count = accepting.len();
        let text = format!("{count} base chains of others are at the forward hook; none drops what it does not know");
        return Finding::ok(Check::OtherTables, text);
    }
    let names: Vec<_> = dropping.iter().map(|c| (c.family.clone(), c.table.clone(), c.chain.clone())).collect();
    Finding::note(
        Check::OtherTables,
        format!("{} drops what it does not accept itself, also what a policy allows", list(&names)),
        "if allowed flows do not pass, accept the traffic of pods there",
    )
}

fn engines(others: &Others) -> Vec<Finding> {
    let found = ENGINES.iter().filter_map(|engine| {
        let marked = |name: &str| engine.marks.iter().any(|mark| name.starts_with(mark));
        let of_engine = |(_, table, chain): &&(String, String, String)| marked(table) || marked(chain);
        others.chains.iter().find(of_engine).map(|(family, table, chain)| {
            Finding::warning(
                Check::OtherEngines,
                format!("{} has rules here ({family} {table} {chain}): what either of the two denies is dropped", engine.name),
                format!(
                    "let one of the two enforce NetworkPolicy: switch it off in {} and remove its rules, or uninstall Ringfence",
                    engine.name
                ),
            )
        })
    });
    found.collect()
}

fn list(names: &[(String, String, String)]) -> String {
    let named: Vec<String> =
        names.iter().take(NAMED).map(|(family, table, name)| format!("{family} {table} {name}")).collect();
    let mut text = named.join(", ");
    if names.len() > NAMED {
        text.push_str(&format!(" and {} more", names.len() - NAMED));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::finding::Severity::{self, Note, Ok as Fine, Warning};
    use super::*;

    fn base(family: &str, table: &str, hook: &str, policy: Policy) -> BaseChain {
        let (family, table, hook) = (family.into(), table.into(), hook.into());
        BaseChain { family, table, chain: "FORWARD".into(), hook, priority: 0, policy }
    }

    fn named(family: &str, table: &str, name: &str) -> (String, String, String) {
        (family.into(), table.into(), name.into())
    }

    fn found(others: Others) -> Vec<(Check, Severity)> {
        findings(&Ok(others), "ringfence").iter().map(|f| (f.id, f.severity)).collect()
    }

    #[test]
    fn chains_that_accept_or_are_at_other_hooks_are_fine() {
        let base_chains = vec![
            base("ip", "filter", "forward", Policy::Accept),
            base("ip", "filter", "input", Policy::Drop),
            base("bridge", "filter", "forward", Policy::Drop),
            base("inet", "ringfence", "forward", Policy::Accept),
        ];
        let others = Others { base_chains, ..Others::default() };
        assert_eq!(found(others.clone()), [(Check::OtherTables, Fine)]);
        assert!(findings(&Ok(others), "ringfence")[0].finding.starts_with("1 base chains"));
    }

    #[test]
    fn a_drop_policy_of_another_table_is_noted_by_name() {
        let others = Others { base_chains: vec![base("ip", "filter", "forward", Policy::Drop)], ..Others::default() };
        assert!(findings(&Ok(others.clone()), "ringfence")[0].finding.contains("ip filter FORWARD"));
        assert_eq!(found(others), [(Check::OtherTables, Note)]);
    }

    #[test]
    fn other_engines_are_known_by_their_chains_and_tables() {
        let marks = [
            ("ip", "filter", "KUBE-NWPLCY-ABC", "kube-router"),
            ("ip6", "filter", "KUBE-POD-FW-ABC", "kube-router"),
            ("ip", "filter", "cali-FORWARD", "Calico"),
            ("ip", "calico", "filter-cali-FORWARD", "Calico"),
            ("inet", "kube-network-policies", "postrouting", "kube-network-policies"),
            ("inet", "kindnet-network-policies", "postrouting", "kube-network-policies"),
            ("ip", "filter", "ANTREA-FORWARD", "Antrea"),
        ];
        for (family, table, chain, engine) in marks {
            let others = Others { chains: vec![named(family, table, chain)], ..Others::default() };
            let finding = findings(&Ok(others.clone()), "ringfence").remove(1);
            assert!(finding.finding.starts_with(engine), "{finding}");
            assert_eq!(found(others), [(Check::OtherTables, Fine), (Check::OtherEngines, Warning)]);
        }
        let usual = ["KUBE-FORWARD", "KUBE-SERVICES", "FLANNEL-FWD", "CNI-FORWARD", "DOCKER-USER"];
        let chains = usual.iter().map(|chain| named("ip", "filter", chain)).collect();
        assert_eq!(found(Others { chains, ..Others::default() }), [(Check::OtherTables, Fine)]);
    }

    #[test]
    fn flowtables_are_a_warning_and_notrack_is_noted() {
        let others = Others { flowtables: vec![named("inet", "fw", "fast")], ..Others::default() };
        assert_eq!(found(others), [(Check::OtherTables, Fine), (Check::Flowtables, Warning)]);
        let others = Others { notrack: vec![named("ip", "raw", "PREROUTING")], ..Others::default() };
        assert_eq!(found(others), [(Check::OtherTables, Fine), (Check::Notrack, Note)]);
    }

    #[test]
    fn tables_that_cannot_be_listed_are_told() {
        let found = findings(&Err("no".into()), "ringfence");
        assert_eq!((found[0].id, found[0].severity), (Check::OtherTables, Warning));
    }
}
