//! The status as text: one line per subject, the worst in colour. It is 80 columns wide, except for texts of other
//! programs.

use std::fmt::Write;
use std::time::Duration;

use anstyle::Style;
use console::{BAD, DOUBTFUL, GOOD};

use crate::api::flows::FlowCoverage;
use crate::api::status::{
    AgentStatusReport, DiagnosticReport, Drops, Features, LastCommitReport, ObjectSource, Pods, Policies, Remote,
    RemoteCluster, Repairs, Severity, SourceKind,
};
use crate::status::in_words;

/// Maximum number of lines of a list; further ones are counted. With empty lists the screen has some twelve lines, and
/// few lists are long at the same time.
const MOST_LISTED: usize = 4;

pub(super) fn text(report: &AgentStatusReport) -> String {
    let mut screen = Screen::default();
    headline(&mut screen, report);
    agent(&mut screen, report);
    source(&mut screen, &report.source);
    rules(&mut screen, report);
    policies(&mut screen, report.policies, &report.diagnostics);
    pods(&mut screen, report);
    remote(&mut screen, report.remote.as_ref());
    repairs(&mut screen, report.repairs);
    drops(&mut screen, report.drops);
    flows(&mut screen, report.flows.as_ref());
    features(&mut screen, &report.features);
    screen.text
}

#[derive(Default)]
struct Screen {
    text: String,
}

impl Screen {
    fn line(&mut self, subject: &str, style: Style, says: &str) {
        writeln!(self.text, "{subject:<12} {style}{says}{style:#}").expect("a String takes everything");
    }

    fn list(&mut self, style: Style, entries: &[String]) {
        self.styled_list(&entries.iter().map(|entry| (style, entry.as_str())).collect::<Vec<_>>());
    }

    fn styled_list(&mut self, entries: &[(Style, impl AsRef<str>)]) {
        for (style, entry) in entries.iter().take(MOST_LISTED) {
            for (index, line) in entry.as_ref().lines().enumerate() {
                let mark = if index == 0 { "- " } else { "  " };
                self.line("", *style, &format!("{mark}{line}"));
            }
        }
        if let Some(more) = entries.len().checked_sub(MOST_LISTED).filter(|more| *more > 0) {
            self.line("", Style::new(), &format!("  and {more} more (--output json has all)"));
        }
    }
}

fn headline(screen: &mut Screen, report: &AgentStatusReport) {
    match &report.unready {
        None => screen.line(&report.node, GOOD, "ready"),
        Some(reason) => {
            screen.line(&report.node, BAD, "NOT READY");
            screen.list(BAD, std::slice::from_ref(reason));
        }
    }
    let said = |text: &&String| report.unready.as_ref().is_none_or(|reason| !reason.contains(text.as_str()));
    let others = report.unenforced.iter().chain(&report.attachment_problems).filter(said).cloned();
    screen.list(BAD, &others.collect::<Vec<_>>());
    screen.list(DOUBTFUL, &report.notes);
}

fn agent(screen: &mut Screen, report: &AgentStatusReport) {
    let AgentStatusReport { version, kernel, seconds_up, .. } = report;
    let kernel = kernel.as_deref().unwrap_or("of unknown version");
    screen.line("agent", Style::new(), &format!("ringfence {version}, Linux {kernel}, up {}", ago(*seconds_up)));
}

fn source(screen: &mut Screen, source: &ObjectSource) {
    let ObjectSource {
        kind,
        waiting_for,
        seconds_since_synced,
        seconds_since_change,
        namespaces,
        pods,
        network_policies,
        ..
    } = source;
    let from = match kind {
        SourceKind::Cluster => "cluster",
        SourceKind::Folder => "folder",
    };
    match seconds_since_synced {
        Some(seconds) => screen.line("synced", Style::new(), &format!("{from}, since {}", ago(*seconds))),
        None => screen.line(
            "synced",
            BAD,
            &format!("no: initial sync of the {from} not complete, waiting for the list of {}", waiting_for.join(", ")),
        ),
    }
    let change = seconds_since_change.map_or_else(|| "none yet".into(), |seconds| format!("{} ago", ago(seconds)));
    let objects = format!("{pods} pods, {namespaces} namespaces, {network_policies} policies; last change {change}");
    screen.line("objects", Style::new(), &objects);
}

fn rules(screen: &mut Screen, report: &AgentStatusReport) {
    let rules = &report.rules;
    let number = |generation: Option<u32>| generation.map_or_else(|| "none".into(), |g| g.to_string());
    let what = format!(
        "table {}, generation {} (the kernel's: {})",
        rules.table,
        number(rules.policy_generation),
        number(rules.kernel_generation)
    );
    screen.line("rules", if rules.in_force { Style::new() } else { BAD }, &what);
    screen.line("", Style::new(), &format!("{} elements, {} programs", rules.elements, rules.programs));
    let commits = report.commits;
    let counts = format!("{} commits, {} refused", commits.committed, commits.refused);
    let last = match &report.last_commit {
        None => "none needed yet".into(),
        Some(LastCommitReport { seconds_ago, micros, operations, .. }) => format!(
            "{} ago, {operations} operations in {}.{:03} ms; {counts}",
            ago(*seconds_ago),
            micros / 1000,
            micros % 1000
        ),
    };
    screen.line("last commit", Style::new(), &last);
    if !rules.left_out.is_empty() {
        screen.line("left out", BAD, &format!("{} refused, so denied", rules.left_out.len()));
        screen.list(BAD, &rules.left_out);
    }
}

fn policies(screen: &mut Screen, policies: Policies, diagnostics: &[DiagnosticReport]) {
    let Policies { enforced, audit, not_understood } = policies;
    let style = if not_understood > 0 { DOUBTFUL } else { Style::new() };
    let says = format!("{enforced} enforced, {audit} in audit, {not_understood} not understood");
    screen.line("policies", style, &says);
    let errors = diagnostics.iter().filter(|d| d.severity == Severity::Error);
    let text_of = |DiagnosticReport { kind, object, field, message, .. }: &DiagnosticReport| match field.is_empty() {
        true => format!("{kind} {object}: {message}"),
        false => format!("{kind} {object} {field}: {message}"),
    };
    screen.list(DOUBTFUL, &errors.map(text_of).collect::<Vec<_>>());
}

fn pods(screen: &mut Screen, report: &AgentStatusReport) {
    let pods = report.pods;
    let style = if pods.unknown > 0 { DOUBTFUL } else { Style::new() };
    let unknown = match pods.unknown {
        0 => "0 unknown".into(),
        unknown => format!("{unknown} unknown (all traffic denied)"),
    };
    let Pods { on_node, isolated, audited, .. } = pods;
    screen.line("pods here", style, &format!("{on_node} known, {isolated} isolated, {audited} audited, {unknown}"));
}

/// Prints nothing without context providers.
fn remote(screen: &mut Screen, remote: Option<&Remote>) {
    let Some(Remote { problem, seconds_without, persist_problem, clusters }) = remote else { return };
    let stale = clusters.iter().filter(|cluster| !cluster.fresh).count();
    let says = match clusters.len() {
        0 => "none".into(),
        1 => format!("1 cluster, {stale} stale"),
        all => format!("{all} clusters, {stale} stale"),
    };
    screen.line("remote pods", if stale > 0 || problem.is_some() { DOUBTFUL } else { Style::new() }, &says);
    let without =
        problem.iter().map(|why| format!("no context provider for {}: {why}", ago(seconds_without.unwrap_or(0))));
    screen.list(DOUBTFUL, &without.chain(persist_problem.clone()).collect::<Vec<_>>());
    // Stale clusters are listed first.
    let (stale, fresh): (Vec<_>, Vec<_>) = clusters.iter().partition(|cluster| !cluster.fresh);
    let shown = stale.iter().map(|cluster| (DOUBTFUL, cluster)).chain(fresh.iter().map(|c| (Style::new(), c)));
    let lines: Vec<(Style, String)> = shown.map(|(style, cluster)| (style, remote_cluster(cluster))).collect();
    screen.styled_list(&lines);
}

fn remote_cluster(cluster: &RemoteCluster) -> String {
    let RemoteCluster { cluster, fresh, seconds_stale, held, dropped, sets, addresses } = cluster;
    let age = match (fresh, seconds_stale) {
        (true, _) => "fresh".to_owned(),
        (false, Some(seconds)) => format!("stale for {}", ago(*seconds)),
        (false, None) => "never seen".to_owned(),
    };
    let word = match (dropped, held) {
        (true, _) => "; expired, not in force",
        (false, true) => "; kept, although the current provider has older data",
        (false, false) => "",
    };
    let counted = |n: &usize, one: &str, more: &str| format!("{n} {}", if *n == 1 { one } else { more });
    let (sets, addresses) = (counted(sets, "set", "sets"), counted(addresses, "address", "addresses"));
    format!("{cluster}: {sets}, {addresses}, {age}{word}")
}

fn repairs(screen: &mut Screen, repairs: Repairs) {
    let Repairs { changed, removed, at_start } = repairs;
    let style = if changed + removed > 0 { DOUBTFUL } else { Style::new() };
    let says = format!("{changed} of changed tables, {removed} of removed ones, {at_start} at the start");
    screen.line("repairs", style, &says);
}

fn drops(screen: &mut Screen, drops: Option<Drops>) {
    let Some(Drops { denied, would_deny, denied_per_minute, would_deny_per_minute, lost, unnamed }) = drops else {
        return screen.line("drops", Style::new(), "not counted");
    };
    let says = format!("{denied_per_minute:.1} packets a minute, {denied} since the start");
    screen.line("drops", Style::new(), &says);
    let says = format!("in audit {would_deny_per_minute:.1} a minute, {would_deny} since the start");
    screen.line("", Style::new(), &says);
    if lost > 0 {
        screen.line("", DOUBTFUL, &format!("{lost} NFLOG messages lost (the packets are counted)"));
    }
    if unnamed > 0 {
        screen.line("", Style::new(), &format!("{unnamed} packets are not in any event of 'ringfence drops'"));
    }
}

/// Prints nothing with `--flows off`.
fn flows(screen: &mut Screen, flows: Option<&FlowCoverage>) {
    let Some(flows) = flows else { return };
    let FlowCoverage { since, started, ended, live, lost, untracked, lost_events, reliable, problems, .. } = flows;
    let is_complete = problems.is_empty() && *reliable && lost + untracked + lost_events == 0;
    let (style, word) = if is_complete { (Style::new(), "recorded") } else { (DOUBTFUL, "recorded, not completely") };
    let counts = format!("{started} connections: {ended} ended, {live} open, {lost} lost");
    match since {
        Some(_) => screen.line("flows", style, &format!("{word}: {counts}")),
        None => screen.line("flows", DOUBTFUL, "not recorded yet"),
    }
    if *lost_events > 0 {
        screen.line("", DOUBTFUL, &format!("{lost_events} conntrack events lost"));
    }
    if *untracked > 0 {
        screen.line("", DOUBTFUL, &format!("{untracked} connections not tracked, since too many were open"));
    }
    if since.is_some() && !reliable {
        screen.line("", DOUBTFUL, "ends of connections may be lost: connection tracking is nearly full");
    }
    screen.list(DOUBTFUL, problems);
}

fn features(screen: &mut Screen, features: &Features) {
    let Features {
        protection,
        protection_reason,
        source_check,
        bridge_table,
        source_check_hook,
        tunnel_ports: _,
        drop_log_group: _,
        drop_log_reason,
    } = features;
    let on = |on: bool| if on { "on" } else { "off" };
    let says = format!(
        "protection {}, source check {}, bridge table {}",
        on(*protection),
        on(*source_check),
        on(*bridge_table)
    );
    screen.line("kernel", Style::new(), &says);
    if *source_check && source_check_hook == "prerouting" {
        let says = "source addresses are checked at the prerouting hooks, not at the pods' interfaces";
        screen.line("", DOUBTFUL, says);
    }
    if !protection {
        screen.line("", Style::new(), &format!("protection is {protection_reason}"));
    }
    screen.line("drop log", Style::new(), drop_log_reason);
}

fn ago(seconds: u64) -> String {
    in_words(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;
    use crate::api::status::{Commits, ProblemReport, Rules};

    fn healthy() -> AgentStatusReport {
        AgentStatusReport {
            node: "node-a".into(),
            version: "0.1.0".into(),
            kernel: Some("6.12.38+deb13-amd64".into()),
            seconds_up: 11_000,
            ready: true,
            unready: None,
            notes: vec![],
            source: ObjectSource {
                kind: SourceKind::Cluster,
                waiting_for: vec![],
                seconds_since_synced: Some(10_999),
                seconds_since_change: Some(4),
                namespaces: 40,
                pods: 2000,
                network_policies: 200,
                problems: vec![],
            },
            rules: Rules {
                table: "ringfence".into(),
                in_force: true,
                trouble: None,
                kernel_generation: Some(107),
                policy_generation: Some(41),
                elements: 32_941,
                programs: 120,
                left_out: vec![],
            },
            last_commit: Some(LastCommitReport {
                time: "2026-05-04T03:02:01.000Z".into(),
                seconds_ago: 12,
                micros: 1_203,
                operations: 2,
            }),
            commits: Commits { committed: 98, refused: 0 },
            repairs: Repairs { changed: 0, removed: 0, at_start: 1 },
            policies: Policies { enforced: 200, audit: 0, not_understood: 0 },
            diagnostics: vec![],
            pods: Pods { on_node: 110, isolated: 88, audited: 12, unknown: 0 },
            unenforced: vec![],
            attachment_problems: vec![],
            port_problem: None,
            features: Features {
                protection: true,
                protection_reason: "on: only the agent can change its tables".into(),
                source_check: true,
                bridge_table: true,
                source_check_hook: "ingress".into(),
                tunnel_ports: vec![4789, 8472],
                drop_log_group: Some(9470),
                drop_log_reason: "on: the kernel logs them to NFLOG group 9470".into(),
            },
            drops: Some(Drops {
                denied: 12_345,
                would_deny: 60,
                denied_per_minute: 4.25,
                would_deny_per_minute: 0.0,
                lost: 0,
                unnamed: 0,
            }),
            flows: None,
            remote: None,
        }
    }

    fn plain(report: &AgentStatusReport) -> String {
        anstream::adapter::strip_str(&text(report)).to_string()
    }

    #[test]
    fn a_healthy_node_is_one_screen() {
        let text = plain(&healthy());
        assert!(text.lines().count() <= 24 && text.lines().all(|line| line.len() <= 80), "{text}");
        expect![[r#"
            node-a       ready
            agent        ringfence 0.1.0, Linux 6.12.38+deb13-amd64, up 3 h 3 min
            synced       cluster, since 3 h 3 min
            objects      2000 pods, 40 namespaces, 200 policies; last change 4 s ago
            rules        table ringfence, generation 41 (the kernel's: 107)
                         32941 elements, 120 programs
            last commit  12 s ago, 2 operations in 1.203 ms; 98 commits, 0 refused
            policies     200 enforced, 0 in audit, 0 not understood
            pods here    110 known, 88 isolated, 12 audited, 0 unknown
            repairs      0 of changed tables, 0 of removed ones, 1 at the start
            drops        4.2 packets a minute, 12345 since the start
                         in audit 0.0 a minute, 60 since the start
            kernel       protection on, source check on, bridge table on
            drop log     on: the kernel logs them to NFLOG group 9470
        "#]]
        .assert_eq(&text);
    }

    #[test]
    fn other_clusters_are_shown_the_stale_ones_first() {
        let cluster = |name: &str, fresh, seconds_stale, sets| RemoteCluster {
            cluster: name.into(),
            fresh,
            seconds_stale,
            held: name == "north",
            dropped: name == "west",
            sets,
            addresses: sets * 2,
        };
        let clusters = vec![
            cluster("east", true, Some(0), 1),
            cluster("north", false, Some(9), 2),
            cluster("south", false, None, 0),
            cluster("west", false, Some(90_000), 0),
        ];
        let remote =
            Remote { problem: Some("refused".into()), seconds_without: Some(9), persist_problem: None, clusters };
        let text = plain(&AgentStatusReport { remote: Some(remote), ..healthy() });
        let shown: String = text
            .lines()
            .skip_while(|line| !line.starts_with("remote"))
            .take(6)
            .fold(String::new(), |all, line| all + line + "\n");
        expect![[r#"
            remote pods  4 clusters, 3 stale
                         - no context provider for 9 s: refused
                         - north: 2 sets, 4 addresses, stale for 9 s; kept, although the current provider has older data
                         - south: 0 sets, 0 addresses, never seen
                         - west: 0 sets, 0 addresses, stale for 25 h 0 min; expired, not in force
                         - east: 1 set, 2 addresses, fresh
        "#]]
        .assert_eq(&shown);
    }

    #[test]
    fn status_shows_problems_with_bounded_lists() {
        let diagnostic = |n: usize| DiagnosticReport {
            severity: Severity::Error,
            kind: "NetworkPolicy".into(),
            object: format!("shop/policy-{n}"),
            field: "spec.ingress[0]".into(),
            message: "unknown protocol 'QUIC'; the port entry matches nothing".into(),
        };
        let reason =
            "initial sync not complete; waiting for the list of: Pod\npods watch: cannot connect to the API server";
        let mut report = AgentStatusReport {
            ready: false,
            unready: Some(reason.into()),
            last_commit: None,
            repairs: Repairs { changed: 3, removed: 1, at_start: 0 },
            policies: Policies { enforced: 1, audit: 2, not_understood: 6 },
            diagnostics: (0..6).map(diagnostic).collect(),
            pods: Pods { on_node: 3, isolated: 2, audited: 0, unknown: 1 },
            drops: None,
            ..healthy()
        };
        report.source.waiting_for = vec!["Pod".into()];
        report.source.seconds_since_synced = None;
        report.source.problems = vec![ProblemReport { origin: "pods watch".into(), message: "no".into(), seconds: 3 }];
        report.rules.in_force = false;
        report.rules.policy_generation = None;
        report.rules.left_out = vec!["add element inet ringfence x: Cannot allocate memory".into()];
        report.features.protection = false;
        report.features.protection_reason = "off (--table-owner off)".into();
        expect![[r#"
            node-a       NOT READY
                         - initial sync not complete; waiting for the list of: Pod
                           pods watch: cannot connect to the API server
            agent        ringfence 0.1.0, Linux 6.12.38+deb13-amd64, up 3 h 3 min
            synced       no: initial sync of the cluster not complete, waiting for the list of Pod
            objects      2000 pods, 40 namespaces, 200 policies; last change 4 s ago
            rules        table ringfence, generation none (the kernel's: 107)
                         32941 elements, 120 programs
            last commit  none needed yet
            left out     1 refused, so denied
                         - add element inet ringfence x: Cannot allocate memory
            policies     1 enforced, 2 in audit, 6 not understood
                         - NetworkPolicy shop/policy-0 spec.ingress[0]: unknown protocol 'QUIC'; the port entry matches nothing
                         - NetworkPolicy shop/policy-1 spec.ingress[0]: unknown protocol 'QUIC'; the port entry matches nothing
                         - NetworkPolicy shop/policy-2 spec.ingress[0]: unknown protocol 'QUIC'; the port entry matches nothing
                         - NetworkPolicy shop/policy-3 spec.ingress[0]: unknown protocol 'QUIC'; the port entry matches nothing
                           and 2 more (--output json has all)
            pods here    3 known, 2 isolated, 0 audited, 1 unknown (all traffic denied)
            repairs      3 of changed tables, 1 of removed ones, 0 at the start
            drops        not counted
            kernel       protection off, source check on, bridge table on
                         protection is off (--table-owner off)
            drop log     on: the kernel logs them to NFLOG group 9470
        "#]].assert_eq(&plain(&report));
        let colours = text(&report);
        assert!(colours.contains(&format!("{BAD}NOT READY{BAD:#}")), "{colours}");
    }

    #[test]
    fn flows_are_shown_where_they_are_recorded() {
        let coverage = |lost_events, reliable, problems: &[&str]| FlowCoverage {
            since: Some("2026-05-04T03:02:01.000Z".into()),
            kept_since: None,
            started: 9,
            ended: 7,
            live: 2,
            lost: 0,
            untracked: 0,
            lost_events,
            reliable,
            problems: problems.iter().map(|text| (*text).into()).collect(),
        };
        let lines = |count, flows| {
            let text = plain(&AgentStatusReport { flows: Some(flows), ..healthy() });
            let begin = text.find("flows  ").unwrap();
            text[begin..].lines().take(count).map(|line| line[13..].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(lines(1, coverage(0, true, &[])), ["recorded: 9 connections: 7 ended, 2 open, 0 lost"]);
        assert_eq!(
            lines(4, coverage(3, false, &["nf_conntrack_acct is off"])),
            [
                "recorded, not completely: 9 connections: 7 ended, 2 open, 0 lost",
                "3 conntrack events lost",
                "ends of connections may be lost: connection tracking is nearly full",
                "- nf_conntrack_acct is off"
            ]
        );
        let begins = FlowCoverage { since: None, ..coverage(0, false, &[]) };
        assert_eq!(lines(1, begins), ["not recorded yet"]);
        assert!(!plain(&healthy()).contains("flows  "));
    }
}
