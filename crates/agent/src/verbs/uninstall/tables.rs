//! The tables in the kernel.

use cni::isolation::{TABLE as ISOLATION_TABLE, TABLE_COMMENT as ISOLATION_COMMENT};
use nfnetlink::{CommitError, Kernel, ReadError, RequestError};
use nft::{Name, Operation, Table};
use policy::TABLE_COMMENT;

use super::report::Report;

/// The kernel's answer to whoever touches a table that somebody else's socket owns (`nft_table_lookup`).
const OWNED: i32 = rustix::io::Errno::PERM.raw_os_error();

/// Commits lost in a row to other programs' commits, as in the agent.
const MOST_RACES: usize = 16;

/// A table that we may have made, and the comment by which it is known to be ours.
struct Ours {
    table: Table,
    comment: &'static str,
}

impl Ours {
    /// Those that are ours, where the agent's are called so.
    fn all(agents: &Name) -> Result<[Ours; 3], nft::NameError> {
        let agents = [Table::bridge(agents.clone()), Table::inet(agents.clone())];
        let [bridge, policy] = agents.map(|table| Ours { table, comment: TABLE_COMMENT });
        let isolation = Ours { table: Table::inet(Name::new(ISOLATION_TABLE)?), comment: ISOLATION_COMMENT };
        Ok([bridge, policy, isolation])
    }

    /// The comment of the table in the kernel, if there is one, and whether there is a table.
    fn observe(&self, kernel: &mut Kernel) -> Result<Option<Option<String>>, ReadError> {
        Ok(kernel.read(&self.table)?.map(|observed| observed.comment().map(String::from)))
    }

    fn deletion(&self) -> Operation {
        Operation::DeleteTable { table: self.table.clone() }
    }

    fn shown(&self) -> String {
        format!("table {}", self.table)
    }
}

#[derive(Debug, thiserror::Error)]
enum DeleteError {
    #[error("{0}")]
    Generation(RequestError),
    #[error("{0}")]
    Refused(CommitError),
    #[error("a running process owns it, and only that can delete it: end the agent that holds it, and try again")]
    Owned,
    #[error("other programs change the ruleset so often that {MOST_RACES} attempts in a row came too late")]
    Outrun,
}

pub(super) fn remove(report: &mut Report, agents: &Name) {
    let opened = Kernel::open().map_err(|e| e.to_string());
    let tables = Ours::all(agents).map_err(|e| e.to_string());
    let (mut kernel, tables) = match (opened, tables) {
        (Ok(kernel), Ok(tables)) => (kernel, tables),
        (Err(e), _) | (_, Err(e)) => return report.failed("the tables in the kernel", e),
    };
    for table in tables {
        let what = table.shown();
        match table.observe(&mut kernel) {
            Err(e) => report.failed(what, e),
            Ok(None) => report.absent(what),
            Ok(Some(comment)) if comment.as_deref() != Some(table.comment) => {
                report.kept(what, format!("it is somebody else's: it lacks the comment \"{}\"", table.comment));
            }
            Ok(Some(_)) => report.remove(what, || delete(&mut kernel, &table)),
        }
    }
}

fn delete(kernel: &mut Kernel, table: &Ours) -> Result<(), DeleteError> {
    for _ in 0..MOST_RACES {
        let generation = kernel.generation().map_err(DeleteError::Generation)?;
        match kernel.commit(&[table.deletion()], generation) {
            Ok(_) => return Ok(()),
            Err(CommitError::Moved) => {}
            Err(CommitError::Refused { refusals, .. }) if refusals.iter().any(|r| r.errno == OWNED) => {
                return Err(DeleteError::Owned);
            }
            Err(e) => return Err(DeleteError::Refused(e)),
        }
    }
    Err(DeleteError::Outrun)
}
