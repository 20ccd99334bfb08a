//! Checks whether an agent is running, and whether the kernel's table equals the rules that it committed.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use nfnetlink::{Kernel, TableRecord};
use nft::Name;
use policy::TABLE_COMMENT;

use crate::api::TableVerdict;
use crate::api::client::{self, RequestError};
use crate::api::status::AgentStatusReport;

use super::finding::{Check, Finding};

/// Timeout of a response. The agent needs about a second to compare a hundred thousand elements.
const AGENT_TIMEOUT: Duration = Duration::from_secs(20);

/// Bound on differences in a finding.
const SHOWN: usize = 3;

/// `NFT_TABLE_F_*`
const OWNER: u32 = 2;
const PERSIST: u32 = 4;

#[derive(Debug, Clone)]
pub(crate) struct EnforcementFacts {
    pub(crate) agent: Result<AgentFacts, String>,
    /// Whether the table equals the desired rules; `None` if the agent does not respond.
    pub(crate) verdict: Option<Result<TableVerdict, String>>,
    pub(crate) table_name: String,
    pub(crate) table: Result<Option<TableSeen>, String>,
    /// Names of other tables of Ringfence.
    pub(crate) other_tables: BTreeSet<String>,
    /// The kernel's generation when the table was read.
    pub(crate) generation: Option<u32>,
}

/// The parts of the agent's status used by the checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AgentFacts {
    pub(crate) version: String,
    pub(crate) table: String,
    /// Why the node is not ready.
    pub(crate) unready: Option<String>,
    /// Why the agent has no TCP port.
    pub(crate) port_problem: Option<String>,
    pub(crate) kernel_generation: Option<u32>,
    pub(crate) seconds_since_commit: Option<u64>,
    /// Pods of this node isolated by a policy.
    pub(crate) isolated_pods: usize,
    /// UDP tunnel ports to which pods cannot send; empty if this is not checked.
    pub(crate) tunnel_ports: Vec<u16>,
    /// Whether the agent runs with `--flows on`.
    pub(crate) records_flows: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TableSeen {
    pub(crate) comment: Option<String>,
    pub(crate) flags: u32,
}

/// Queries the agent, and the kernel about the network namespace of the calling thread.
pub(super) fn gather(run_dir: &Path, table: &Name) -> anyhow::Result<EnforcementFacts> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let agent = runtime.block_on(in_time(client::status(run_dir))).map(AgentFacts::of);
    let verdict = agent.is_ok().then(|| runtime.block_on(in_time(client::verify(run_dir))));
    let table_name = match &agent {
        Ok(status) => Name::new(&status.table)?,
        Err(_) => table.clone(),
    };
    let (table, other_tables, generation) = match read_table(&table_name) {
        Ok((seen, others, generation)) => (Ok(seen), others, Some(generation)),
        Err(error) => (Err(error), BTreeSet::new(), None),
    };
    Ok(EnforcementFacts { agent, verdict, table_name: table_name.to_string(), table, other_tables, generation })
}

async fn in_time<T>(answer: impl Future<Output = Result<T, RequestError>>) -> Result<T, String> {
    match tokio::time::timeout(AGENT_TIMEOUT, answer).await {
        Ok(answer) => answer.map_err(|e| format!("{:#}", anyhow::Error::new(e))),
        Err(_) => Err(format!("the agent did not answer within {} s", AGENT_TIMEOUT.as_secs())),
    }
}

impl AgentFacts {
    fn of(report: AgentStatusReport) -> AgentFacts {
        let AgentStatusReport { version, unready, rules, last_commit, port_problem, pods, features, flows, .. } =
            report;
        AgentFacts {
            version,
            port_problem,
            table: rules.table,
            unready,
            kernel_generation: rules.kernel_generation,
            seconds_since_commit: last_commit.map(|commit| commit.seconds_ago),
            isolated_pods: pods.isolated,
            tunnel_ports: features.tunnel_ports,
            records_flows: flows.is_some(),
        }
    }
}

impl EnforcementFacts {
    /// Whether a pod of this node may be isolated: the rules of an agent that does not respond stay in force.
    pub(super) fn isolates_pods(&self) -> bool {
        self.agent.as_ref().map_or(true, |status| status.isolated_pods > 0)
    }

    /// False if the agent does not respond.
    pub(super) fn records_flows(&self) -> bool {
        self.agent.as_ref().is_ok_and(|status| status.records_flows)
    }

    /// Tunnel ports known to the agent; empty if it does not respond.
    pub(super) fn tunnel_ports(&self) -> &[u16] {
        self.agent.as_ref().map_or(&[], |status| &status.tunnel_ports)
    }
}

/// The agent's table, the names of other tables of Ringfence, and the generation of the ruleset.
fn read_table(table: &Name) -> Result<(Option<TableSeen>, BTreeSet<String>, u32), String> {
    let mut kernel = Kernel::open().map_err(|e| e.to_string())?;
    let generation = kernel.generation().map_err(|e| e.to_string())?;
    let tables = kernel.tables().map_err(|e| e.to_string())?;
    let ours = |t: &TableRecord| i32::from(t.family) == libc::NFPROTO_INET && t.name == table.as_str();
    let is_other = |t: &&TableRecord| t.comment.as_deref() == Some(TABLE_COMMENT) && t.name != table.as_str();
    let others = tables.iter().filter(is_other).map(|t| t.name.clone()).collect();
    let seen = tables.into_iter().find(ours).map(|t| TableSeen { comment: t.comment, flags: t.flags });
    Ok((seen, others, generation))
}

pub(super) fn findings(facts: &EnforcementFacts) -> Vec<Finding> {
    let mut findings = match &facts.agent {
        Ok(status) => agent(facts, status),
        Err(error) => vec![Finding::error(
            Check::Agent,
            format!("no agent answers, so changes of pods and policies are not enforced: {error}"),
            "start the agent, or find out why it does not run (kubectl --namespace ringfence get pods, its log); if \
             its run directory is another one, set --run-dir",
        )],
    };
    findings.extend(table(facts));
    findings.extend(facts.other_tables.iter().map(|name| other_table(name)));
    findings.extend(facts.verdict.as_ref().map(contents));
    findings
}

fn agent(facts: &EnforcementFacts, status: &AgentFacts) -> Vec<Finding> {
    let mut findings = vec![match &status.unready {
        None => Finding::ok(Check::Agent, format!("agent {} is ready", status.version)),
        Some(reason) => Finding::error(
            Check::Agent,
            format!("agent {} is not ready: {}", status.version, reason.replace('\n', "; ")),
            "resolve the reason; see the agent's log for details",
        ),
    }];
    if let Some(problem) = &status.port_problem {
        findings.push(Finding::warning(
            Check::Agent,
            format!("the agent does not serve metrics: {problem}"),
            "find the process that uses the port: ss -ltnp; the agent retries by itself",
        ));
    }
    findings.push(match status.seconds_since_commit {
        Some(seconds) => Finding::ok(Check::LastCommit, format!("the agent's last commit was {} ago", age(seconds))),
        None => {
            Finding::ok(Check::LastCommit, "the agent has committed nothing since it started: no change was needed")
        }
    });
    match (status.kernel_generation, facts.generation) {
        (Some(agents), Some(kernels)) if agents == kernels => findings.push(Finding::ok(
            Check::KernelGeneration,
            format!("the ruleset is unchanged since the agent's last resync (kernel generation {kernels})"),
        )),
        (Some(agents), Some(kernels)) => findings.push(Finding::note(
            Check::KernelGeneration,
            format!(
                "another program has changed the ruleset since the agent's last resync (kernel generation \
                 {kernels}, the agent's {agents})"
            ),
            "no action needed: the agent compares and repairs its tables at its next resync; nft monitor shows the \
             program",
        )),
        (None, _) | (_, None) => {}
    }
    findings
}

fn age(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
    }
}

fn table(facts: &EnforcementFacts) -> Vec<Finding> {
    let name = &facts.table_name;
    let seen = match &facts.table {
        Ok(Some(seen)) => seen,
        Ok(None) => {
            return vec![Finding::error(
                Check::Table,
                format!("table inet {name} is missing: no policy is enforced on this node"),
                "start the agent; if it runs, see its log for why it has not committed (if its table has another \
                 name, set --table)",
            )];
        }
        Err(error) => {
            let finding = format!("cannot read table inet {name}: {error}");
            return vec![Finding::error(Check::Table, finding, "run this as root, or with CAP_NET_ADMIN")];
        }
    };
    if seen.comment.as_deref() != Some(TABLE_COMMENT) {
        return vec![Finding::error(
            Check::Table,
            format!("table inet {name} belongs to another program: it lacks the comment \"{TABLE_COMMENT}\""),
            format!(
                "delete it with 'nft delete table inet {name}', or choose another name for the agent's table with \
                 --table"
            ),
        )];
    }
    vec![Finding::ok(Check::Table, format!("table inet {name} exists and belongs to Ringfence")), owner(name, seen)]
}

/// The table of an agent that ran with another `--table`, or of a second agent.
fn other_table(name: &str) -> Finding {
    Finding::error(
        Check::Table,
        format!(
            "tables with the name {name} are in force, too: packets have to pass the rules of both, and both approve \
             flows by the same bits of the connection mark"
        ),
        format!(
            "if no agent uses them, remove them with 'ringfence uninstall --table {name}'; otherwise give both agents \
             a --ct-mark-mask without common bits"
        ),
    )
}

fn owner(name: &str, seen: &TableSeen) -> Finding {
    match (seen.flags & OWNER != 0, seen.flags & PERSIST != 0) {
        (true, true) => Finding::ok(
            Check::TableOwner,
            format!(
                "table inet {name} can be changed only by the agent and persists after the agent ends (flags owner \
                 and persist)"
            ),
        ),
        (true, false) => Finding::error(
            Check::TableOwner,
            format!("table inet {name} is deleted when the process that owns it ends (flag owner without persist)"),
            "restart the agent, which sets the flag persist (--table-owner auto)",
        ),
        (false, _) => Finding::note(
            Check::TableOwner,
            format!(
                "other programs can change or delete table inet {name}, for example with 'nft flush ruleset'; the \
                 agent repairs it"
            ),
            "use Linux 6.9 or later and --table-owner auto to protect the table",
        ),
    }
}

fn contents(verdict: &Result<TableVerdict, String>) -> Finding {
    match verdict {
        Ok(TableVerdict::Equal) => Finding::ok(Check::TableContents, "the rules in the kernel match the policies"),
        Ok(TableVerdict::Different { operations, more }) => {
            let shown = operations.iter().take(SHOWN).map(|o| format!("`{o}`")).collect::<Vec<_>>().join(", ");
            let rest = operations.len().saturating_sub(SHOWN) + more;
            let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
            Finding::error(
                Check::TableContents,
                format!("the rules in the kernel do not match the policies; missing operations: {shown}{rest}"),
                "wait for the agent's next resync; if the finding remains, see the agent's log for what the kernel \
                 refuses",
            )
        }
        Ok(TableVerdict::Missing) => Finding::error(
            Check::TableContents,
            "the agent's table is missing: no policy is enforced on this node",
            "wait for the agent's next resync; if the finding remains, see the agent's log for refused operations",
        ),
        Ok(TableVerdict::Unknown { reason }) => Finding::warning(
            Check::TableContents,
            format!("the agent cannot compare the rules in the kernel with the policies: {reason}"),
            "run this again once the agent is ready",
        ),
        Err(error) => Finding::warning(
            Check::TableContents,
            format!("no answer from the agent on whether the rules in the kernel match the policies: {error}"),
            "run ringfence doctor of the agent's own release",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity::{self, Error, Note, Ok as Fine, Warning};
    use super::*;

    fn status() -> AgentFacts {
        AgentFacts {
            version: "0.1.0".into(),
            table: "ringfence".into(),
            unready: None,
            port_problem: None,
            kernel_generation: Some(7),
            seconds_since_commit: Some(5),
            isolated_pods: 0,
            tunnel_ports: vec![8472],
            records_flows: false,
        }
    }

    fn healthy() -> EnforcementFacts {
        EnforcementFacts {
            agent: Ok(status()),
            verdict: Some(Ok(TableVerdict::Equal)),
            table_name: "ringfence".into(),
            table: Ok(Some(TableSeen { comment: Some(TABLE_COMMENT.into()), flags: OWNER | PERSIST })),
            other_tables: BTreeSet::new(),
            generation: Some(7),
        }
    }

    fn wrong(facts: &EnforcementFacts) -> Vec<(Check, FindingSeverity)> {
        findings(facts).iter().map(|f| (f.id, f.severity)).filter(|(_, s)| *s != Fine).collect()
    }

    #[test]
    fn table_of_another_name_is_an_error() {
        let facts = EnforcementFacts { other_tables: ["other".into()].into(), ..healthy() };
        assert_eq!(wrong(&facts), [(Check::Table, FindingSeverity::Error)]);
    }

    #[test]
    fn an_agent_at_work_has_nothing_wrong() {
        let ids: Vec<Check> = findings(&healthy()).iter().map(|f| f.id).collect();
        let expected = [
            Check::Agent,
            Check::LastCommit,
            Check::KernelGeneration,
            Check::Table,
            Check::TableOwner,
            Check::TableContents,
        ];
        assert_eq!((ids, wrong(&healthy())), (expected.to_vec(), vec![]));
        let quiet = AgentFacts { kernel_generation: None, seconds_since_commit: None, ..status() };
        assert_eq!(wrong(&EnforcementFacts { agent: Ok(quiet), ..healthy() }), []);
    }

    #[test]
    fn unready_or_absent_agent_is_error() {
        let unready = AgentFacts { unready: Some("waiting for\nsomething".into()), ..status() };
        let facts = EnforcementFacts { agent: Ok(unready), ..healthy() };
        assert_eq!(wrong(&facts), [(Check::Agent, Error)]);
        assert!(findings(&facts)[0].finding.ends_with("waiting for; something"));
        let absent = EnforcementFacts { agent: Err("no".into()), verdict: None, ..healthy() };
        assert_eq!(wrong(&absent), [(Check::Agent, Error)]);
    }

    #[test]
    fn newer_kernel_generation_is_note() {
        let facts = EnforcementFacts { generation: Some(8), ..healthy() };
        assert_eq!(wrong(&facts), [(Check::KernelGeneration, Note)]);
    }

    #[test]
    fn missing_foreign_or_unreadable_table_is_error() {
        let foreign = TableSeen { comment: None, flags: 0 };
        for table in [Ok(None), Ok(Some(foreign)), Err("no".into())] {
            assert_eq!(wrong(&EnforcementFacts { table, ..healthy() }), [(Check::Table, Error)]);
        }
    }

    #[test]
    fn owned_table_without_persist_flag_is_error() {
        for (flags, severity) in [(0, Note), (PERSIST, Note), (OWNER, Error)] {
            let table = Ok(Some(TableSeen { comment: Some(TABLE_COMMENT.into()), flags }));
            assert_eq!(wrong(&EnforcementFacts { table, ..healthy() }), [(Check::TableOwner, severity)]);
        }
    }

    #[test]
    fn table_contents_differing_from_policies_are_error() {
        let operations: Vec<String> = (1..=4).map(|n| format!("add rule {n}")).collect();
        let different = TableVerdict::Different { operations, more: 2 };
        assert!(contents(&Ok(different.clone())).finding.ends_with("`add rule 3` and 3 more"));
        let verdicts = [
            (Ok(different), Error),
            (Ok(TableVerdict::Missing), Error),
            (Ok(TableVerdict::Unknown { reason: "no".into() }), Warning),
            (Err("no".into()), Warning),
        ];
        for (verdict, severity) in verdicts {
            let facts = EnforcementFacts { verdict: Some(verdict), ..healthy() };
            assert_eq!(wrong(&facts), [(Check::TableContents, severity)]);
        }
    }

    #[test]
    fn age_uses_seconds_minutes_or_hours() {
        assert_eq!(
            (age(119), age(120), age(7_199), age(7_200)),
            ("119 s".into(), "2 min".into(), "119 min".into(), "2 h".into())
        );
    }
}
