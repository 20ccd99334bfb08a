//! Removes the tables in the kernel.

use cni::isolation::{TABLE as ISOLATION_TABLE, TABLE_COMMENT as ISOLATION_COMMENT};
use nfnetlink::{CommitError, Kernel, RequestError};
use nft::{Name, NameError, Table};
use policy::TABLE_COMMENT;

use super::report::UninstallReport;
use crate::transaction::Transaction;

/// Error of the kernel for access to a table that another socket owns (`nft_table_lookup`).
const OWNED: i32 = rustix::io::Errno::PERM.raw_os_error();

/// Maximum number of commits in a row that are lost to foreign commits, as in the agent.
const MOST_RACES: usize = 16;

/// The tables that Ringfence may have created, for this name of the agent's table, and the comments that identify them.
fn ours(agents: &Name) -> Result<[(Table, &'static str); 6], NameError> {
    Ok([
        (Table::inet(agents.clone()), TABLE_COMMENT),
        (Table::bridge(agents.clone()), TABLE_COMMENT),
        (Table::netdev(agents.clone()), TABLE_COMMENT),
        (Table::inet(Name::new(ISOLATION_TABLE)?), ISOLATION_COMMENT),
        (Table::netdev(Name::new(ISOLATION_TABLE)?), ISOLATION_COMMENT),
        (Table::bridge(Name::new(ISOLATION_TABLE)?), ISOLATION_COMMENT),
    ])
}

#[derive(Debug, thiserror::Error)]
enum DeleteError {
    #[error("{0}")]
    Generation(RequestError),
    #[error("{0}")]
    Refused(CommitError),
    #[error("{0} owns the table, and no other process can delete it: terminate that process and retry")]
    Owned(String),
    #[error(
        "{MOST_RACES} transactions in a row were outdated (ERESTART): other programs keep changing the ruleset; find \
         them with 'nft monitor'"
    )]
    Outrun,
}

pub(super) fn remove(report: &mut UninstallReport, agents: &Name) {
    let opened = Kernel::open().map_err(|e| e.to_string());
    let tables = ours(agents).map_err(|e| e.to_string());
    let (mut kernel, tables) = match (opened, tables) {
        (Ok(kernel), Ok(tables)) => (kernel, tables),
        (Err(e), _) | (_, Err(e)) => return report.failed("the tables in the kernel", e),
    };
    for (table, comment) in tables {
        let what = format!("table {table}");
        match kernel.read(&table) {
            Err(e) => report.failed(what, e),
            Ok(None) => report.absent(what),
            Ok(Some(observed)) if observed.comment() != Some(comment) => {
                report.kept(what, format!("it belongs to another program: it lacks the comment \"{comment}\""));
            }
            Ok(Some(observed)) => report.remove(what, || delete(&mut kernel, &table, observed.owner)),
        }
    }
}

fn delete(kernel: &mut Kernel, table: &Table, owner: Option<u32>) -> Result<(), DeleteError> {
    for _ in 0..MOST_RACES {
        let generation = kernel.generation().map_err(DeleteError::Generation)?;
        match Transaction::deleting(table.clone()).commit(kernel, generation) {
            Ok(_) => return Ok(()),
            Err(CommitError::Moved) => {}
            Err(CommitError::Refused { refusals, .. }) if refusals.iter().any(|r| r.errno == OWNED) => {
                return Err(DeleteError::Owned(owner.map_or_else(|| "a running process".into(), holder)));
            }
            Err(e) => return Err(DeleteError::Refused(e)),
        }
    }
    Err(DeleteError::Outrun)
}

/// Name of the process with that port id: the kernel assigns a process's first socket its process ID
/// (`netlink_autobind`).
fn holder(port: u32) -> String {
    match std::fs::read_to_string(format!("/proc/{port}/comm")) {
        Ok(name) => format!("process {port} ({})", name.trim()),
        Err(_) => format!("a running process (netlink port {port})"),
    }
}
