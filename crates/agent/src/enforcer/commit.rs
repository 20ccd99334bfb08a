//! Commits: the delta to the last commit, or the repair of tables that were read back.

use std::time::Duration;

use nfnetlink::{CommitError, TableSnapshot, clear_marks};
use nft::{InvalidPart, Operation};
use policy::{FORWARD_CHAIN, Generation, Translation, Translator, changes_intervals};

use super::live::Live;
use super::tables::{self, KernelTables, Tables};
use super::{Commit, Enforcer, Trouble};
use crate::metrics::labels::RepairCause;
use crate::transaction::{RepairMode, Transaction};

/// Commits lost in a row to foreign commits before the attempt is given up until the next tick. Each loss is a foreign
/// transaction between two of our system calls.
pub(super) const MOST_RACES: usize = 16;

/// Maximum number of commits in which the kernel refuses different parts. Each round leaves out up to sixteen of them.
const MOST_ROUNDS: usize = 64;

/// The generation that continues after the kernel's table.
struct Adopted {
    generation: Generation,
    /// The table has marks of another mask, which are numbers of this one. Until the commit that replaces it, it approves
    /// flows: they are cleared after the commit, and another generation begins, which no flow carries.
    may_have_approved: bool,
}

impl Enforcer {
    /// Commits the delta to our last commit. In doubt it falls back to [`Enforcer::adopt`].
    pub(super) fn step(
        &mut self,
        mut live: Live,
        translator: &mut Translator,
        translation: &mut Translation,
    ) -> Result<Option<Commit>, Trouble> {
        for _ in 0..MOST_RACES {
            let generation = self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?;
            live.record_generation(generation);
            let revokes = self.doubtful_approvals
                || self.revokes(translation)
                || translation.ruleset.narrows(&live.tables.policy);
            let approving = match revokes {
                true => self.next_generation()?,
                false => self.generation,
            };
            let wanted = match self.desired(translation, approving) {
                Ok(wanted) => wanted,
                Err(trouble) => {
                    self.live = Some(live);
                    return Err(trouble);
                }
            };
            self.remove_ended_ports(&mut live, &wanted)?;
            let transaction = live.tables.difference(&wanted);
            if transaction.is_empty() {
                self.live = Some(live);
                return Ok(None);
            }
            match transaction.commit_with(self.commit, &mut self.kernel, generation) {
                Ok(committed) => {
                    live.committed(wanted, committed.generation);
                    self.live = Some(live);
                    self.generation = approving;
                    self.doubtful_approvals = changes_intervals(transaction.operations());
                    return Ok(Some(summary(&transaction, None)));
                }
                Err(CommitError::Moved) => {}
                Err(error) => {
                    // The table may have been changed by another program; its contents decide.
                    self.metrics.refused_commits.inc();
                    tracing::warn!(%error, "the kernel refused a transaction; comparing the whole table");
                    return self.adopt(translator, translation);
                }
            }
        }
        // The kernel's rules are unknown now: the next verification reads them back.
        Err(Trouble::Outrun)
    }

    /// Repairs the tables that were read back from the kernel. Correct tables are not touched. Parts that the kernel
    /// refuses are left out; a table that cannot be repaired in place, since it has unexpected contents, is replaced
    /// whole.
    pub(super) fn adopt(
        &mut self,
        translator: &mut Translator,
        translation: &mut Translation,
    ) -> Result<Option<Commit>, Trouble> {
        let mut mode = RepairMode::InPlace;
        let (mut races, mut rounds) = (0, 0);
        while races < MOST_RACES && rounds < MOST_ROUNDS {
            let observed = tables::read(&mut self.kernel, &self.name)?;
            self.metrics.resyncs.inc();
            let adopted = self.adopted_generation(observed.policy.as_ref())?;
            self.generation = adopted.generation;
            let generation = self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?;
            if !observed.is_of(generation) {
                races += 1;
                continue;
            }
            let mut approving = self.generation;
            let mut wanted = self.desired(translation, approving)?;
            let mut transaction = observed.repair(&wanted, mode);
            let revokes = self.doubtful_approvals || self.revokes(translation);
            if observed.policy.is_some() && (!transaction.is_empty() || revokes) {
                approving = self.next_generation()?;
                wanted = self.desired(translation, approving)?;
                transaction = observed.repair(&wanted, mode);
            }
            if transaction.is_empty() {
                self.live = Some(Live::new(wanted, generation));
                return Ok(None);
            }
            match transaction.commit_with(self.commit, &mut self.kernel, generation) {
                Ok(committed) => {
                    self.live = Some(Live::new(wanted, committed.generation));
                    self.generation = approving;
                    self.doubtful_approvals = changes_intervals(transaction.operations()) || adopted.may_have_approved;
                    if adopted.may_have_approved {
                        clear_approvals(approving.mask(), approving.mark())?;
                    }
                    let repaired = repaired(self.left.as_ref(), &observed);
                    let foreign_program = match repaired {
                        Some(RepairCause::Changed | RepairCause::Removed) => self.foreign_program.take(),
                        Some(RepairCause::AtStart) | None => None,
                    };
                    return Ok(Some(Commit { foreign_program, ..summary(&transaction, repaired) }));
                }
                Err(CommitError::Moved) => races += 1,
                Err(error) => {
                    rounds += 1;
                    self.metrics.refused_commits.inc();
                    let left_out = match error {
                        CommitError::TooBig => self.leave_out_largest(translation, transaction.operations()),
                        _ => self.leave_out(translator, translation, &error),
                    };
                    if left_out {
                        continue;
                    }
                    if mode == RepairMode::Whole || !observed.is_there() {
                        return Err(Trouble::Refused(error));
                    }
                    tracing::warn!(%error, "cannot repair the table; replacing it");
                    mode = RepairMode::Whole;
                }
            }
        }
        Err(Trouble::Outrun)
    }

    /// The desired tables. Invalid parts are left out, like parts that the kernel refuses.
    fn desired(&mut self, translation: &mut Translation, generation: Generation) -> Result<Tables, Trouble> {
        let mut invalid: Vec<InvalidPart> = vec![];
        for _ in 0..MOST_ROUNDS {
            match Tables::of(translation, generation, self.validated.as_ref(), self.validate) {
                Ok(tables) => {
                    self.validated = Some(tables.clone());
                    return Ok(tables);
                }
                Err(parts) => invalid = parts,
            }
            if !self.leave_out_invalid(translation, &invalid) {
                break;
            }
        }
        Err(Trouble::invalid(&invalid))
    }

    /// Whether flows to learned addresses may be denied since the last translation that was enforced.
    fn revokes(&self, translation: &Translation) -> bool {
        self.revocations.is_some_and(|enforced| enforced != translation.revocations)
    }

    /// Before Linux 6.16 the kernel removes an interface's chain together with the interface, and then refuses to
    /// delete the chain.
    fn remove_ended_ports(&mut self, live: &mut Live, wanted: &Tables) -> Result<(), Trouble> {
        for chain in live.tables.ended_ports(wanted) {
            let Some(edge) = &mut live.tables.edge else { continue };
            let is_there = self.kernel.has_chain(&edge.table, &chain);
            if !is_there.map_err(|e| Trouble::Unreadable(e.to_string()))? {
                let mut rest = edge.clone().into_ruleset();
                rest.chains.remove(&chain);
                *edge = edge.after(rest).map_err(|invalid| Trouble::invalid(&invalid))?;
            }
        }
        Ok(())
    }

    /// The generation of the kernel's policy table. If that is unknown, all approvals are cleared, so that none is mistaken
    /// for one of a later generation. So are those of other generations unless this process committed the table: another
    /// program may have restored an earlier one (`nft -f` of a listing), whose next generations have been used.
    fn adopted_generation(&self, observed: Option<&TableSnapshot>) -> Result<Adopted, Trouble> {
        let mark = observed.and_then(|o| o.accepted_mark(FORWARD_CHAIN, self.generation.mask()));
        let (generation, may_have_approved) = match mark.and_then(|mark| self.generation.at_mark(mark)) {
            Some(generation) if generation == self.generation && self.left.is_some() => (generation, false),
            Some(generation) => {
                clear_approvals(generation.mask(), generation.mark())?;
                (generation, false)
            }
            None => {
                clear_approvals(self.generation.mask(), 0)?;
                let mut marks = observed.into_iter().flat_map(|o| o.accepted_marks(FORWARD_CHAIN));
                let may_have_approved = marks.any(|(_, mark)| self.generation.at_mark(mark).is_some());
                (self.generation.next(), may_have_approved)
            }
        };
        Ok(Adopted { generation, may_have_approved })
    }

    /// The next generation, after stale approvals that carry it are cleared.
    fn next_generation(&self) -> Result<Generation, Trouble> {
        if self.generation.clears_before_next() {
            let cleared = clear_approvals(self.generation.mask(), self.generation.mark())?;
            tracing::info!(
                cleared,
                "cleared stale approvals from the connection marks (conntrack), so that their generations can be reused"
            );
        }
        Ok(self.generation.next())
    }
}

/// Clears the marks of all flows but those with this one.
fn clear_approvals(mask: u32, kept: u32) -> Result<usize, Trouble> {
    clear_marks(mask, kept).map_err(|e| Trouble::Marks(e.to_string()))
}

/// Cause of the repair of tables that were read back; `None` if the difference comes from a change of the state.
fn repaired(left: Option<&Tables>, observed: &KernelTables) -> Option<RepairCause> {
    match left {
        None => observed.is_there().then_some(RepairCause::AtStart),
        Some(left) if observed.lacks(left) => Some(RepairCause::Removed),
        Some(left) if observed.repair(left, RepairMode::InPlace).is_empty() => None,
        Some(_) => Some(RepairCause::Changed),
    }
}

fn summary(transaction: &Transaction, repaired: Option<RepairCause>) -> Commit {
    let operations = transaction.operations();
    let weight = operations.iter().map(Operation::weight).sum();
    Commit { operations: operations.len(), weight, duration: Duration::ZERO, repaired, foreign_program: None }
}
