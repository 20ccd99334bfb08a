//! Checks the conntrack settings that flow records need. Only used while an agent records flows.

use super::finding::{Check, Finding};
use super::kernel::TableFill;
use super::sysctl::Sysctls;
use crate::flows::GIVE_UP_AT as MOST_FILLED_PERCENT;
use crate::flows::accounting::{ConntrackSetting, EVENTS};

pub(super) fn findings(records_flows: bool, sysctls: &Sysctls, fill: Option<TableFill>) -> Vec<Finding> {
    if !records_flows {
        return vec![];
    }
    let is_off = |setting: &ConntrackSetting| sysctls.get(setting.path()) != Some(1);
    let mut findings: Vec<Finding> = ConntrackSetting::ALL.into_iter().filter(is_off).map(off).collect();
    if sysctls.get(EVENTS) == Some(0) {
        let finding = "net.netfilter.nf_conntrack_events is 0, so flow records miss connections of less than 15 s";
        let advice = "run sysctl -w net.netfilter.nf_conntrack_events=2, and write it into /etc/sysctl.d";
        findings.push(Finding::warning(Check::FlowRecords, finding, advice));
    }
    if findings.is_empty() {
        let text = "connection tracking counts the packets and bytes of connections, and has their times";
        findings.push(Finding::ok(Check::FlowRecords, text));
    }
    findings.extend(fill.filter(|fill| fill.percent() >= MOST_FILLED_PERCENT).map(|fill| {
        let finding = format!("{fill}; from {MOST_FILLED_PERCENT} % on flow records may miss ends of connections");
        let advice = "find the source of the flows (conntrack -L), or raise net.netfilter.nf_conntrack_max";
        Finding::warning(Check::FlowRecords, finding, advice)
    }));
    findings
}

fn off(setting: ConntrackSetting) -> Finding {
    let lack = match setting {
        ConntrackSetting::Counters => "flow records have no packets and bytes",
        ConntrackSetting::Timestamps => "flow records have no times at which connections began",
    };
    Finding::warning(
        Check::FlowRecords,
        format!("{setting} is off, so {lack}"),
        format!("run sysctl -w {setting}=1, and write it into /etc/sysctl.d; it applies to new connections"),
    )
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity::{self, Ok as Fine, Warning};
    use super::*;

    const ACCT: &str = "net/netfilter/nf_conntrack_acct";
    const TIMESTAMP: &str = "net/netfilter/nf_conntrack_timestamp";

    fn severities(records_flows: bool, sysctls: &Sysctls, entries: u64) -> Vec<FindingSeverity> {
        let fill = Some(TableFill { entries, most: 100 });
        findings(records_flows, sysctls, fill).iter().map(|finding| finding.severity).collect()
    }

    #[test]
    fn settings_that_are_off_are_warnings_with_advice() {
        assert_eq!(severities(true, &[(ACCT, 1), (TIMESTAMP, 1)].into(), 0), [Fine]);
        assert_eq!(severities(true, &[(ACCT, 0), (TIMESTAMP, 1)].into(), 0), [Warning]);
        assert_eq!(severities(true, &Sysctls::default(), 0), [Warning, Warning]);
        assert_eq!(severities(true, &[(ACCT, 1), (TIMESTAMP, 1), (EVENTS, 0)].into(), 0), [Warning]);
        let finding = findings(true, &[(ACCT, 0), (TIMESTAMP, 1)].into(), None).remove(0);
        assert!(finding.advice.unwrap().starts_with("run sysctl -w net.netfilter.nf_conntrack_acct=1"));
    }

    #[test]
    fn conntrack_table_is_warning_from_70_percent() {
        let on: Sysctls = [(ACCT, 1), (TIMESTAMP, 1)].into();
        assert_eq!(severities(true, &on, 69), [Fine]);
        assert_eq!(severities(true, &on, 70), [Fine, Warning]);
    }

    #[test]
    fn flow_checks_are_skipped_without_flow_records() {
        assert_eq!(severities(false, &Sysctls::default(), 99), []);
    }
}
