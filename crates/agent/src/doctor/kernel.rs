//! Checks whether the kernel has nf_tables and connection tracking, and whether the conntrack table has room.

use std::fmt;
use std::path::Path;

use nfnetlink::{Feature, Features, FlowCount, Kernel, KernelRelease};

use super::finding::{Check, Finding};
use super::sysctl::Sysctls;
use crate::kernel_support;

/// Fill level that is reported: when the conntrack table is full, the first packet of every new flow is dropped.
const NEARLY_FULL_PERCENT: u64 = 80;

const HELPER: &str = "net/netfilter/nf_conntrack_helper";
/// Exists only if the kernel tracks SCTP.
const SCTP: &str = "net/netfilter/nf_conntrack_sctp_timeout_established";
const MOST_ENTRIES: &str = "net/netfilter/nf_conntrack_max";

#[derive(Debug, Clone)]
pub(crate) struct KernelFacts {
    pub(crate) release: String,
    /// The generation of the ruleset.
    pub(crate) nf_tables: Result<u32, String>,
    pub(crate) conntrack: Result<FlowCount, String>,
    pub(crate) sysctls: Sysctls,
    /// Features tested in a scratch namespace; `None` if they were not tested.
    pub(crate) features: Option<Result<Features, String>>,
}

/// Fill level of the conntrack table.
#[derive(Debug, Clone, Copy)]
pub(super) struct TableFill {
    pub(super) entries: u64,
    /// Never 0.
    pub(super) most: u64,
}

impl TableFill {
    pub(super) fn percent(self) -> u64 {
        self.entries * 100 / self.most
    }
}

impl fmt::Display for TableFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TableFill { entries, most } = self;
        write!(f, "connection tracking (conntrack) has {entries} of {most} entries ({} %)", self.percent())
    }
}

impl KernelFacts {
    /// `None` if it is unknown, or the table has no limit.
    pub(super) fn fill(&self) -> Option<TableFill> {
        let usage = self.conntrack.as_ref().ok()?;
        let most = match usage.limit {
            Some(most) => u64::from(most),
            None => u64::try_from(self.sysctls.get(MOST_ENTRIES)?).ok()?,
        };
        // 0 means no limit.
        (most > 0).then_some(TableFill { entries: u64::from(usage.entries), most })
    }
}

/// Gathers facts about the network namespace of the calling thread.
pub(super) fn gather(root: &Path) -> KernelFacts {
    let release = std::fs::read_to_string(root.join("proc/sys/kernel/osrelease"));
    let generation = Kernel::open().map_err(|e| e.to_string()).and_then(|mut kernel| {
        let generation = kernel.generation();
        generation.map_err(|e| e.to_string())
    });
    KernelFacts {
        release: release.map_or_else(|e| format!("of unknown release ({e})"), |text| text.trim().to_owned()),
        nf_tables: generation,
        conntrack: nfnetlink::count_flows().map_err(|e| e.to_string()),
        sysctls: Sysctls::read(root, [HELPER, SCTP, MOST_ENTRIES]),
        features: None,
    }
}

/// As [`gather`], and tests the features that rules need in a scratch network namespace.
pub(super) fn gather_and_try(root: &Path) -> KernelFacts {
    KernelFacts { features: Some(nfnetlink::probe().map_err(|e| e.to_string())), ..gather(root) }
}

pub(super) fn findings(facts: &KernelFacts) -> Vec<Finding> {
    let mut findings = vec![nf_tables(facts)];
    findings.extend(facts.features.iter().flat_map(features));
    // If the features could not be tested, the kernel version decides.
    if let Some(Err(_)) = facts.features {
        findings.extend(by_version(&KernelRelease::new(&facts.release)));
    }
    match &facts.conntrack {
        Ok(_) => {
            findings.push(Finding::ok(Check::Conntrack, "connection tracking (conntrack) is available"));
            findings.extend(facts.fill().map(space));
            findings.extend(sctp(facts));
        }
        Err(error) => findings.push(Finding::error(
            Check::Conntrack,
            format!("connection tracking (conntrack) is unavailable, so policies cannot be enforced: {error}"),
            "load the modules nf_conntrack and nf_conntrack_netlink; run this as root, or with CAP_NET_ADMIN",
        )),
    }
    if facts.sysctls.get(HELPER) == Some(1) {
        findings.push(Finding::note(
            Check::ConntrackHelper,
            "connection tracking helpers are assigned by port, so the payload that a pod sends on port 21 can open \
             other ports for related connections",
            "set net.netfilter.nf_conntrack_helper to 0, unless a program on this node relies on it",
        ));
    }
    findings
}

fn nf_tables(facts: &KernelFacts) -> Finding {
    match &facts.nf_tables {
        Ok(generation) => Finding::ok(
            Check::NfTables,
            format!("Linux {} has nf_tables; its ruleset has generation {generation}", facts.release),
        ),
        Err(error) => Finding::error(
            Check::NfTables,
            format!("cannot program nf_tables on Linux {}: {error}", facts.release),
            "run this as root, or with CAP_NET_ADMIN, on a kernel with nf_tables (module nf_tables, family inet)",
        ),
    }
}

fn features(tried: &Result<Features, String>) -> Vec<Finding> {
    let missing = match tried {
        Ok(Features { missing }) => missing,
        Err(error) => {
            let finding = format!("the features of the kernel were not probed: {error}");
            return vec![Finding::note(Check::KernelFeatures, finding, "run ringfence doctor as root on the node")];
        }
    };
    if missing.is_empty() {
        return vec![Finding::ok(Check::KernelFeatures, "the kernel supports all rules and sets that Ringfence uses")];
    }
    let lack = |(feature, why): &(Feature, String)| {
        let (finding, advice) =
            (format!("the kernel does not support {feature}: {why}"), format!("use a kernel with {}", feature.needs()));
        match feature {
            Feature::TableComments | Feature::RoutedPackets | Feature::Flows | Feature::Sets => {
                Finding::error(Check::KernelFeatures, format!("{finding}; policies cannot be enforced"), advice)
            }
            Feature::BridgedFrames => Finding::warning(
                Check::KernelFeatures,
                format!("{finding}; an isolated pod on a bridge receives frames that are not addressed to it"),
                advice,
            ),
            Feature::InterfaceIngress => Finding::warning(
                Check::KernelFeatures,
                format!(
                    "{finding}; source addresses are checked at the prerouting hooks, which do not see ARP of routed \
                     pods"
                ),
                advice,
            ),
            Feature::Reports => Finding::warning(
                Check::KernelFeatures,
                format!("{finding}; denied packets are counted, but not reported by pod"),
                advice,
            ),
            Feature::Protection => Finding::note(Check::KernelFeatures, finding, advice),
        }
    };
    missing.iter().map(lack).collect()
}

fn by_version(release: &KernelRelease) -> Option<Finding> {
    let missing = kernel_support::missing_by_version(release)?;
    Some(Finding::error(
        Check::KernelFeatures,
        format!("{missing}; policies cannot be enforced"),
        "use a newer kernel, or run ringfence doctor as root, which probes for features that the distribution has \
         backported",
    ))
}

fn space(fill: TableFill) -> Finding {
    match fill.percent() >= NEARLY_FULL_PERCENT {
        false => Finding::ok(Check::ConntrackSpace, fill.to_string()),
        true => Finding::warning(
            Check::ConntrackSpace,
            format!("{fill}; when the table is full, the kernel drops the packets of new flows"),
            "find the source of the flows (conntrack -L), or raise net.netfilter.nf_conntrack_max",
        ),
    }
}

fn sctp(facts: &KernelFacts) -> Option<Finding> {
    facts.sysctls.get(SCTP).is_none().then(|| {
        Finding::note(
            Check::ConntrackSctp,
            "this kernel does not track SCTP, so policies that allow SCTP ports have no effect",
            "use a kernel with CONFIG_NF_CT_PROTO_SCTP if pods use SCTP",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity::{self, Error, Note, Ok as Fine, Warning};
    use super::*;

    fn healthy() -> KernelFacts {
        KernelFacts {
            release: "6.1.0".into(),
            nf_tables: Ok(7),
            conntrack: Ok(FlowCount { entries: 10, limit: Some(100) }),
            sysctls: [(SCTP, 432_000)].into(),
            features: Some(Ok(Features { missing: vec![] })),
        }
    }

    fn severities(facts: &KernelFacts) -> Vec<(Check, FindingSeverity)> {
        findings(facts).iter().map(|f| (f.id, f.severity)).collect()
    }

    #[test]
    fn a_healthy_kernel_has_nothing_wrong() {
        let expected = [
            (Check::NfTables, Fine),
            (Check::KernelFeatures, Fine),
            (Check::Conntrack, Fine),
            (Check::ConntrackSpace, Fine),
        ];
        assert_eq!(severities(&healthy()), expected);
    }

    #[test]
    fn each_lack_of_the_kernel_is_found() {
        let lacks: [(KernelFacts, Check, FindingSeverity); 6] = [
            (KernelFacts { nf_tables: Err("no".into()), ..healthy() }, Check::NfTables, Error),
            (KernelFacts { conntrack: Err("no".into()), ..healthy() }, Check::Conntrack, Error),
            (
                KernelFacts { conntrack: Ok(FlowCount { entries: 80, limit: Some(100) }), ..healthy() },
                Check::ConntrackSpace,
                Warning,
            ),
            (
                KernelFacts {
                    conntrack: Ok(FlowCount { entries: 99, limit: None }),
                    sysctls: [(SCTP, 1), (MOST_ENTRIES, 100)].into(),
                    ..healthy()
                },
                Check::ConntrackSpace,
                Warning,
            ),
            (KernelFacts { sysctls: Sysctls::default(), ..healthy() }, Check::ConntrackSctp, Note),
            (KernelFacts { sysctls: [(SCTP, 1), (HELPER, 1)].into(), ..healthy() }, Check::ConntrackHelper, Note),
        ];
        for (facts, check, severity) in lacks {
            let found = severities(&facts);
            assert!(found.contains(&(check, severity)), "{facts:?}: {found:?}");
            assert!(found.iter().all(|(c, s)| *c == check || *s == Fine), "{facts:?}: {found:?}");
        }
    }

    #[test]
    fn missing_kernel_feature_severity_depends_on_its_use() {
        for feature in Feature::ALL {
            let severity = match feature {
                Feature::TableComments | Feature::RoutedPackets | Feature::Flows | Feature::Sets => Error,
                Feature::BridgedFrames | Feature::InterfaceIngress | Feature::Reports => Warning,
                Feature::Protection => Note,
            };
            let features = Some(Ok(Features { missing: vec![(feature, "no".into())] }));
            assert!(severities(&KernelFacts { features, ..healthy() }).contains(&(Check::KernelFeatures, severity)));
        }
        let untried = KernelFacts { features: Some(Err("no".into())), ..healthy() };
        assert!(severities(&untried).contains(&(Check::KernelFeatures, Note)));
        let old = KernelFacts { release: "5.4.0-150-generic".into(), ..untried };
        assert!(severities(&old).contains(&(Check::KernelFeatures, Error)));
    }

    #[test]
    fn a_table_without_a_limit_is_never_full() {
        let facts = KernelFacts { conntrack: Ok(FlowCount { entries: 9, limit: Some(0) }), ..healthy() };
        assert!(severities(&facts).iter().all(|(check, _)| *check != Check::ConntrackSpace));
    }
}
