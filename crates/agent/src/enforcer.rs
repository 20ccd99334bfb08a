//! Keeps the kernel's table equal to what the cluster's state asks for.
//!
//! As long as nothing is in doubt, a change becomes the difference between the ruleset that was committed last and
//! the new one. On doubt (a start, a refusal, somebody else's commit) the table is read back and repaired. In either
//! case it is one transaction, and the generation of approved flows moves whenever something may have been taken
//! away.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::{CommitError, Kernel, Observed, clear_marks, repair};
use nft::{Operation, Ruleset, Table, difference, replace};
use policy::{ClusterState, Layout, TABLE_COMMENT, Translation, narrows, stamp, translate};

use crate::metrics::Metrics;

/// Commits lost in a row to other programs' commits before it is given up until the next tick. Each loss means that
/// somebody else's transaction came between two of our system calls.
const MOST_RACES: usize = 16;

pub(crate) struct Enforcer {
    kernel: Kernel,
    node: String,
    layout: Layout,
    live: Option<Live>,
    /// What this process committed or found right last; none before that. What is different, others have changed.
    left: Option<Ruleset>,
    metrics: Arc<Metrics>,
}

/// What the kernel has, as far as is known.
struct Live {
    ruleset: Ruleset,
    /// The kernel's ruleset generation after our last commit or reading.
    generation: u32,
    /// Somebody else has committed since we last read the table.
    suspect: bool,
}

/// What came of an attempt to enforce.
pub(crate) struct Enforced {
    pub(crate) translation: Translation,
    /// None when the kernel had the right rules already.
    pub(crate) commit: Option<Commit>,
}

pub(crate) struct Commit {
    pub(crate) operations: usize,
    pub(crate) weight: usize,
    pub(crate) duration: Duration,
    /// Somebody else had changed or removed what we left.
    pub(crate) repaired: bool,
}

/// Why the wanted rules are not in force. Those that were in force before still are.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(
        "table {0} is somebody else's: it lacks the comment \"{TABLE_COMMENT}\"; choose another name with --table, \
         or remove it with 'nft delete table {0}'"
    )]
    ForeignTable(Table),
    #[error("cannot read the kernel's rules: {0}")]
    Unreadable(String),
    #[error("{0}")]
    Refused(CommitError),
    #[error("cannot clear old approvals from connection tracking: {0}")]
    Marks(String),
    #[error("other programs change the ruleset so often that {MOST_RACES} attempts in a row came too late")]
    Outrun,
}

impl Enforcer {
    /// Opens the kernel and makes sure that the table, if there is one, is ours.
    pub(crate) fn start(node: String, layout: Layout, metrics: Arc<Metrics>) -> anyhow::Result<Enforcer> {
        let mut kernel = Kernel::open()?;
        read(&mut kernel, &Table::inet(layout.table().clone()))?;
        Ok(Enforcer { kernel, node, layout, live: None, left: None, metrics })
    }

    pub(crate) fn kernel_generation(&self) -> Option<u32> {
        self.live.as_ref().map(|l| l.generation)
    }

    pub(crate) fn policy_generation(&self) -> u32 {
        self.layout.generation()
    }

    /// Makes the kernel's rules those that the state asks for.
    pub(crate) fn enforce(&mut self, state: &ClusterState) -> Result<Enforced, Trouble> {
        let mut translation = translate(state, &self.node, &self.layout);
        let started = Instant::now();
        let commit = match self.live.take() {
            Some(live) => self.step(live, &mut translation)?,
            None => self.adopt(&mut translation)?,
        };
        let commit = commit.map(|commit| Commit { duration: started.elapsed(), ..commit });
        if commit.is_some() || self.left.is_none() {
            self.left = self.live.as_ref().map(|live| live.ruleset.clone());
        }
        if let Some(commit) = &commit {
            self.metrics.commits.inc();
            self.metrics.commit_seconds.observe(commit.duration.as_secs_f64());
            if commit.repaired {
                self.metrics.repairs.inc();
            }
        }
        Ok(Enforced { translation, commit })
    }

    /// Compares the kernel's rules with what was committed, at the cost of one small request if nobody has touched
    /// any ruleset since; repairs what differs.
    pub(crate) fn verify(&mut self, state: &ClusterState) -> Result<Option<Enforced>, Trouble> {
        if let Some(live) = &self.live {
            let generation = self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?;
            if generation == live.generation && !live.suspect {
                return Ok(None);
            }
        }
        self.live = None;
        self.enforce(state).map(Some)
    }

    /// From what we committed last. Any doubt ends in [`Enforcer::adopt`].
    fn step(&mut self, mut live: Live, translation: &mut Translation) -> Result<Option<Commit>, Trouble> {
        for _ in 0..MOST_RACES {
            let generation = self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?;
            live.suspect |= generation != live.generation;
            let layout = match narrows(&live.ruleset, &translation.ruleset) {
                true => self.next_layout()?,
                false => self.layout.clone(),
            };
            stamp(&mut translation.ruleset, &layout);
            let operations = difference(&live.ruleset, &translation.ruleset);
            if operations.is_empty() {
                self.live = Some(live);
                return Ok(None);
            }
            match self.kernel.commit(&operations, generation) {
                Ok(committed) => {
                    let ruleset = translation.ruleset.clone();
                    self.live = Some(Live { ruleset, generation: committed.generation, suspect: live.suspect });
                    self.layout = layout;
                    return Ok(Some(summary(&operations, false)));
                }
                Err(CommitError::Moved) => {}
                Err(error) => {
                    // The table may have been changed under us; what we find there decides.
                    self.metrics.refused_commits.inc();
                    tracing::warn!(%error, "a change was refused; comparing the whole table");
                    return self.adopt(translation);
                }
            }
        }
        self.live = Some(live);
        Err(Trouble::Outrun)
    }

    /// From what the kernel has. A table that is right already is left as it is; one that cannot be mended, since it
    /// holds something that nobody foresaw, is replaced whole.
    fn adopt(&mut self, translation: &mut Translation) -> Result<Option<Commit>, Trouble> {
        let mut mendable = true;
        for _ in 0..MOST_RACES {
            let observed = read(&mut self.kernel, &translation.ruleset.table)?;
            self.layout = self.adopted_layout(observed.as_ref())?;
            let generation = match &observed {
                Some(observed) => observed.generation,
                None => self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?,
            };
            stamp(&mut translation.ruleset, &self.layout);
            let mut layout = self.layout.clone();
            let mut operations = repair(observed.as_ref(), &translation.ruleset);
            if !operations.is_empty() && observed.is_some() {
                layout = self.next_layout()?;
                stamp(&mut translation.ruleset, &layout);
                operations = match mendable {
                    true => repair(observed.as_ref(), &translation.ruleset),
                    false => replace(&translation.ruleset.table, &translation.ruleset),
                };
            }
            if operations.is_empty() {
                self.live = Some(Live { ruleset: translation.ruleset.clone(), generation, suspect: false });
                return Ok(None);
            }
            match self.kernel.commit(&operations, generation) {
                Ok(committed) => {
                    let ruleset = translation.ruleset.clone();
                    self.live = Some(Live { ruleset, generation: committed.generation, suspect: false });
                    self.layout = layout;
                    let touched = |left: &Ruleset| !repair(observed.as_ref(), left).is_empty();
                    return Ok(Some(summary(&operations, self.left.as_ref().is_some_and(touched))));
                }
                Err(CommitError::Moved) => {}
                Err(error @ CommitError::Refused { .. }) if observed.is_some() && mendable => {
                    self.metrics.refused_commits.inc();
                    tracing::warn!(%error, "the table cannot be mended; replacing it whole");
                    mendable = false;
                }
                Err(error) => {
                    self.metrics.refused_commits.inc();
                    return Err(Trouble::Refused(error));
                }
            }
        }
        Err(Trouble::Outrun)
    }

    /// The layout in the generation that the kernel is in. Where that cannot be told, no flow may carry an approval
    /// that a generation of ours could be mistaken for.
    fn adopted_layout(&self, observed: Option<&Observed>) -> Result<Layout, Trouble> {
        match observed.and_then(|o| o.generation_mark(self.layout.mask())) {
            Some(mark) => Ok(self.layout.at_mark(mark)),
            None => {
                clear_marks(self.layout.mask(), 0).map_err(|e| Trouble::Marks(e.to_string()))?;
                Ok(if observed.is_some() { self.layout.next() } else { self.layout.at_mark(0) })
            }
        }
    }

    /// The next generation, made sure that no flow carries it already.
    fn next_layout(&self) -> Result<Layout, Trouble> {
        if self.layout.clears_before_next() {
            let cleared = clear_marks(self.layout.mask(), self.layout.mark());
            let cleared = cleared.map_err(|e| Trouble::Marks(e.to_string()))?;
            tracing::info!(cleared, "old approvals were cleared, so that their generations can come again");
        }
        Ok(self.layout.next())
    }
}

/// Reads the table, if there is one, and refuses somebody else's.
fn read(kernel: &mut Kernel, table: &Table) -> Result<Option<Observed>, Trouble> {
    let observed = kernel.read(table).map_err(|e| Trouble::Unreadable(e.to_string()))?;
    match &observed {
        Some(observed) if observed.comment() != Some(TABLE_COMMENT) => Err(Trouble::ForeignTable(table.clone())),
        _ => Ok(observed),
    }
}

fn summary(operations: &[Operation], repaired: bool) -> Commit {
    let weight = operations.iter().map(Operation::weight).sum();
    Commit { operations: operations.len(), weight, duration: Duration::ZERO, repaired }
}
