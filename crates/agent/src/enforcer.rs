//! Reconciles the kernel's tables with the cluster state.
//!
//! In the normal case a commit is the delta between the last committed rulesets and the new ones. In doubt (a start, a
//! refused commit, a foreign commit) the tables are read back and repaired. Either way it is one transaction, and the
//! generation of approved flows moves whenever access may have been removed. Parts that are invalid or that the
//! kernel refuses, as small as possible, are left out and denied, and retried later.

mod commit;
mod live;
mod refusals;
pub(crate) mod snapshot;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::{CommitError, Foreign, Kernel, Notifications};
use nft::{InvalidPart, Name, Ruleset, Table};
use policy::{ClusterState, Generation, Layout, Revocations, StateDelta, TABLE_COMMENT, Translation, Translator};

use crate::api::TableVerdict;
use crate::isolation_release::{CoveredPods, ReleaseResult};
use crate::metrics::Metrics;
use crate::metrics::labels::RepairCause;
use crate::transaction::{COMMIT, CommitWith, RepairMode};
use commit::MOST_RACES;
use live::Live;
use refusals::{LeftOut, remove_refused};
use snapshot::verdict;
pub(crate) use tables::EarlierTables;
use tables::{Tables, ValidateWith};

/// Maximum number of operations that a verdict or an error lists.
const OPERATIONS_SHOWN: usize = 10;

/// How long a killed predecessor may still own its tables, and the polling interval meanwhile.
const PREDECESSOR_ENDS: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) struct Enforcer {
    kernel: Kernel,
    commit: CommitWith,
    validate: ValidateWith,
    /// The name of the tables of all families.
    name: Name,
    /// The generation of the policy table in the kernel, or the next to be tried before the first commit.
    generation: Generation,
    pub(crate) earlier_tables: EarlierTables,
    live: Option<Live>,
    /// The desired tables of the last successful validation, with which the next validation compares.
    validated: Option<Tables>,
    /// Tables that this process last committed or verified; `None` before. Any difference is a foreign change.
    left: Option<Tables>,
    /// Those of the translation that is in force; `None` before.
    revocations: Option<Revocations>,
    left_out: LeftOut,
    /// Interface chains whose interface was removed before their commit; cleared when the attachments change.
    ended_ports: BTreeSet<Name>,
    /// Whether flows may have been approved in the present generation that its rules do not allow.
    doubtful_approvals: bool,
    /// The program of the last foreign commit, until a repair names it.
    foreign_program: Option<String>,
    metrics: Arc<Metrics>,
}

/// Result of a successful attempt to enforce.
pub(crate) struct EnforceResult {
    pub(crate) translation: Translation,
    /// Parts that are invalid or that the kernel refused, which are denied.
    pub(crate) left_out: Vec<String>,
    /// `None` if the kernel already had the right rules.
    pub(crate) commit: Option<Commit>,
}

pub(crate) struct Commit {
    pub(crate) operations: usize,
    pub(crate) weight: usize,
    pub(crate) duration: Duration,
    /// Cause of a repair; `None` if the commit applies a change of the state.
    pub(crate) repaired: Option<RepairCause>,
    /// The program whose commit was repaired, if a notification named it.
    pub(crate) foreign_program: Option<String>,
}

impl Commit {
    /// Two commits as one, of which the second only begins another generation.
    fn both(first: Option<Commit>, second: Option<Commit>) -> Option<Commit> {
        match (first, second) {
            (Some(first), Some(second)) => {
                let (operations, weight) = (first.operations + second.operations, first.weight + second.weight);
                Some(Commit { operations, weight, ..first })
            }
            (first, second) => first.or(second),
        }
    }
}

/// Why the desired rules are not in force. The previous rules stay in force.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(
        "table {0} belongs to another program: it lacks the comment \"{TABLE_COMMENT}\"; choose another name with \
         --table, or delete the table with 'nft delete table {0}'"
    )]
    ForeignTable(Table),
    #[error(
        "table {0} is owned by another process (netlink port {1}), probably by another agent on this node; stop that \
         agent, or start this one with another --table and --run-dir"
    )]
    KernelTables(Table, u32),
    #[error("cannot read the rules from the kernel: {0}")]
    Unreadable(String),
    #[error("{0}")]
    Refused(CommitError),
    #[error(
        "the rules are invalid, and the invalid part cannot be left out; please report this. The previous rules stay \
         in force: {0}"
    )]
    Invalid(String),
    #[error("cannot clear stale approvals from the connection marks (conntrack): {0}")]
    Marks(String),
    #[error(
        "{MOST_RACES} transactions in a row were outdated (ERESTART): other programs keep changing the ruleset; find \
         them with 'nft monitor'"
    )]
    Outrun,
}

impl Trouble {
    fn invalid(parts: &[InvalidPart]) -> Trouble {
        let texts: Vec<String> = parts.iter().take(OPERATIONS_SHOWN).map(InvalidPart::to_string).collect();
        Trouble::Invalid(texts.join("; "))
    }
}

impl Enforcer {
    /// Opens the kernel, checks that existing tables belong to Ringfence, and claims those of an earlier agent, so that
    /// no other program can change them.
    /// `generation` is the one that begins if there are no tables.
    pub(crate) fn start(layout: &Layout, generation: Generation, metrics: Arc<Metrics>) -> anyhow::Result<Enforcer> {
        let mut kernel = Kernel::open()?;
        let earlier_tables = claim(&mut kernel, layout)?;
        let left_out = LeftOut::default();
        Ok(Enforcer {
            kernel,
            commit: COMMIT,
            validate: tables::validate,
            name: layout.table().clone(),
            generation,
            earlier_tables,
            live: None,
            validated: None,
            left: None,
            revocations: None,
            left_out,
            ended_ports: BTreeSet::new(),
            doubtful_approvals: false,
            foreign_program: None,
            metrics,
        })
    }

    /// Subscribes to foreign commits.
    pub(crate) fn notifications(&self) -> anyhow::Result<Notifications> {
        Ok(Notifications::open(&self.kernel, &tables::names(&self.name))?)
    }

    pub(crate) fn kernel_generation(&self) -> Option<u32> {
        self.live.as_ref().map(|l| l.generation)
    }

    /// The last known rulesets of the kernel.
    pub(crate) fn rulesets(&self) -> impl Iterator<Item = &Ruleset> {
        self.live.iter().flat_map(|live| live.tables.rulesets()).flatten().map(Deref::deref)
    }

    pub(crate) fn policy_generation(&self) -> u32 {
        self.generation.number()
    }

    /// Adopts pods that the CNI plugin isolated, if the rules in force cover them. Returns whether isolated pods remain
    /// that are unknown here.
    ///
    /// # Errors
    /// If its table cannot be read or changed.
    pub(crate) fn release_isolated(&mut self, state: &ClusterState) -> anyhow::Result<bool> {
        let ReleaseResult { released, kept } =
            crate::isolation_release::release(&mut self.kernel, &CoveredPods::of(state))?;
        if released > 0 {
            tracing::info!(addresses = released, "adopted pods that the CNI plugin had isolated without the agent");
        }
        Ok(kept > 0)
    }

    /// Parts that are invalid or that the kernel refused, which are denied.
    pub(crate) fn left_out(&self) -> Vec<String> {
        self.left_out.parts.iter().map(|(_, reason)| reason.clone()).collect()
    }

    /// Records a translated delta: interfaces that were missing may be present now.
    pub(crate) fn record_delta(&mut self, delta: &StateDelta) {
        if delta.attachments() {
            self.ended_ports.clear();
        }
    }

    /// The desired translation without the parts that are left out.
    fn translation(&self, translator: &Translator) -> Translation {
        let mut translation = translator.translation();
        for (operation, _) in &self.left_out.parts {
            remove_refused(&mut translation, operation);
        }
        if let Some(edge) = &mut translation.edge {
            for chain in &self.ended_ports {
                edge.chains.remove(chain);
            }
        }
        translation
    }

    /// Reconciles the kernel's rules with the translation.
    pub(crate) fn enforce(&mut self, translator: &mut Translator) -> Result<EnforceResult, Trouble> {
        let mut translation = self.translation(translator);
        let started = Instant::now();
        let commit = match self.live.take() {
            Some(live) => self.step(live, translator, &mut translation)?,
            None => self.adopt(translator, &mut translation)?,
        };
        let commit = match self.live.take() {
            Some(live) if self.doubtful_approvals => {
                Commit::both(commit, self.step(live, translator, &mut translation)?)
            }
            live => {
                self.live = live;
                commit
            }
        };
        self.revocations = Some(translation.revocations);
        let commit = commit.map(|commit| Commit { duration: started.elapsed(), ..commit });
        if commit.is_some() || self.left.is_none() {
            self.left = self.live.as_ref().map(|live| live.tables.clone());
        }
        if let Some(commit) = &commit {
            self.metrics.commits.inc();
            self.metrics.commit_seconds.observe(commit.duration.as_secs_f64());
            if let Some(cause) = commit.repaired {
                self.metrics.repaired(cause);
            }
        }
        Ok(EnforceResult { translation, left_out: self.left_out(), commit })
    }

    /// Records a foreign commit. Returns whether it may have touched our tables.
    pub(crate) fn record_foreign_commit(&mut self, foreign: &Foreign) -> bool {
        if let Some(live) = &mut self.live {
            live.explain(foreign);
        }
        if foreign.touches {
            // The program may revert its change before the tables are read.
            self.doubtful_approvals = true;
            self.foreign_program = Some(format!("{} (process {})", foreign.program, foreign.process));
        }
        foreign.touches
    }

    /// Compares the kernel's rules with the last commit and repairs differences. Costs one small request if there were
    /// no foreign commits since.
    pub(crate) fn verify(&mut self, translator: &mut Translator) -> Result<Option<EnforceResult>, Trouble> {
        let trial = self.left_out.trial.as_ref().is_some_and(|(at, _)| Instant::now() >= *at);
        if let Some(live) = &mut self.live {
            let generation = self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?;
            live.record_generation(generation);
            if !live.is_doubtful() && !trial {
                return Ok(None);
            }
        }
        if trial {
            tracing::info!("retrying the operations that the kernel refused");
            self.left_out.parts.clear();
        }
        self.live = None;
        let enforced = self.enforce(translator);
        if self.left_out.parts.is_empty() {
            self.left_out.trial = None;
        }
        enforced.map(Some)
    }

    /// Compares the kernel's tables, read afresh, with the desired ones; changes nothing.
    pub(crate) fn compare(&mut self, translator: &Translator) -> TableVerdict {
        let observed = match tables::read(&mut self.kernel, &self.name) {
            Ok(observed) => observed,
            Err(trouble) => return TableVerdict::Unknown { reason: trouble.to_string() },
        };
        if observed.policy.is_none() {
            return TableVerdict::Missing;
        }
        let translation = self.translation(translator);
        match Tables::of(&translation, self.generation, self.validated.as_ref(), self.validate) {
            Ok(wanted) => verdict(observed.repair(&wanted, RepairMode::InPlace).operations()),
            Err(invalid) => TableVerdict::Unknown { reason: Trouble::invalid(&invalid).to_string() },
        }
    }
}

/// Claims the tables. The sockets of a killed agent may own them for a moment longer.
fn claim(kernel: &mut Kernel, layout: &Layout) -> Result<EarlierTables, Trouble> {
    let deadline = Instant::now() + PREDECESSOR_ENDS;
    loop {
        match tables::claim(kernel, layout) {
            Err(Trouble::KernelTables(..)) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            outcome => return outcome,
        }
    }
}
