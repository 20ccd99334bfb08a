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

/// Maximum number of attempts of a commit that foreign commits outdate (ERESTART); then it fails until the reconciler
/// retries it. An attempt is outdated by a foreign transaction between two of our system calls.
pub(super) const MOST_RACES: usize = 16;

/// Maximum number of rounds, each of which leaves out parts that the kernel refuses or that are invalid. A refused
/// commit names up to 16 parts.
const MOST_ROUNDS: usize = 64;

/// Generation of approvals with which the enforcer continues after it has read the kernel's policy table.
struct Adopted {
    generation: Generation,
    /// True if the table sets marks under another mask, and one of them is also a mark of a generation under the
    /// present mask. Until a commit replaces the table, it may thus approve flows. So all approvals are cleared after
    /// that commit, and another generation begins, which no flow carries.
    may_have_approved: bool,
}

impl Enforcer {
    /// Commits the delta to our last commit. If the kernel refuses it, falls back to [`Enforcer::adopt`].
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
                    // Another program may have changed the tables, so the delta has to be based on their contents.
                    self.metrics.refused_commits.inc();
                    tracing::warn!(%error, "the kernel refused a transaction; resyncing from the kernel");
                    return self.adopt(translator, translation);
                }
            }
        }
        // The kernel's rules are unknown now (`self.live` is `None`): the next attempt reads them back.
        Err(Trouble::Outrun)
    }

    /// Reads the tables back from the kernel and repairs them. Correct tables are not touched. Parts that the kernel
    /// refuses are left out. If unexpected contents prevent a repair in place, the tables are replaced.
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

    /// Returns the desired tables. Invalid parts are left out, like parts that the kernel refuses.
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

    /// Whether the translation may deny flows to learned addresses of domain names that the last enforced translation
    /// allowed.
    fn revokes(&self, translation: &Translation) -> bool {
        self.revocations.is_some_and(|enforced| enforced != translation.revocations)
    }

    /// Removes from `live` the chains of removed interfaces that the kernel no longer has. Before Linux 6.16 the kernel
    /// removes an interface's chain together with the interface, and refuses a transaction that deletes the chain.
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

    /// Returns the generation of the kernel's policy table, or the next one if the table has none. In the latter case
    /// all approvals are cleared, so that none is mistaken for one of a later generation. Unless this process left the
    /// table in that generation, the approvals of all other generations are cleared: another program may have restored
    /// an earlier table (`nft -f` of a listing), and flows may carry the generations that followed it.
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

    /// Returns the next generation. Clears stale approvals before numbers of generations are reused
    /// ([`Generation::clears_before_next`]).
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

/// Clears the bits of `mask` in the connection marks of all flows, except those in which they equal `kept`.
fn clear_approvals(mask: u32, kept: u32) -> Result<usize, Trouble> {
    clear_marks(mask, kept).map_err(|e| Trouble::Marks(e.to_string()))
}

/// Cause of the repair of tables that were read back; `None` if there is nothing to repair: there were no tables at the
/// start, or they are those that this process left, so that any difference comes from a change of the state.
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
