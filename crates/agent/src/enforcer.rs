//! Keeps the kernel's tables equal to what the cluster's state asks for.
//!
//! As long as nothing is in doubt, a change becomes the difference between the rulesets that were committed last and
//! the new ones. On doubt (a start, a refusal, somebody else's commit) the tables are read back and repaired. In either
//! case it is one transaction, and the generation of approved flows moves whenever something may have been taken
//! away. What the kernel refuses is left out and denied, as little as possible, and tried again later.

mod commit;
mod live;
mod refusals;
pub(crate) mod snapshot;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nfnetlink::{CommitError, Committed, Foreign, Kernel, Notifications};
use nft::{Name, Operation, Ruleset, Table};
use policy::{Changed, ClusterState, EdgeHook, Layout, TABLE_COMMENT, Translation, Translator, stamp};

use crate::api::TableVerdict;
use crate::isolation::{Covered, Release};
use crate::metrics::Metrics;
use crate::metrics::labels::RepairCause;
use crate::translation_check::TranslationCheck;
use commit::MOST_RACES;
use live::Live;
use refusals::{LeftOut, take_out};
use snapshot::verdict;
use tables::{Mending, Tables};

/// Operations that a verdict names.
const OPERATIONS_SHOWN: usize = 10;

/// How long it may take until a killed predecessor holds its tables no more, and how often that is looked at.
const PREDECESSOR_ENDS: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// How operations become one transaction: [`Kernel::commit`], but in tests of what a kernel refuses.
type CommitWith = fn(&mut Kernel, &[Operation], u32) -> Result<Committed, CommitError>;

pub(crate) struct Enforcer {
    kernel: Kernel,
    commit: CommitWith,
    /// Follows the state.
    translator: Translator,
    /// What the translator was made for.
    node: Arc<str>,
    translated_layout: Layout,
    layout: Layout,
    /// Tables of an earlier agent are protected again.
    pub(crate) claimed: bool,
    live: Option<Live>,
    /// What this process committed or found right last; none before that. What is different, others have changed.
    left: Option<Tables>,
    left_out: LeftOut,
    /// Chains of interfaces that were gone when they were to be committed, until other attachments are known.
    ended_ports: BTreeSet<Name>,
    metrics: Arc<Metrics>,
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
    /// Why rules had to be put right; none if it is a change that was asked for.
    pub(crate) repaired: Option<RepairCause>,
}

/// Why the wanted rules are not in force. Those that were in force before still are.
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
    Held(Table, u32),
    #[error("cannot read the rules from the kernel: {0}")]
    Unreadable(String),
    #[error("{0}")]
    Refused(CommitError),
    #[error("cannot clear stale approvals from the connection marks (conntrack): {0}")]
    Marks(String),
    #[error(
        "{MOST_RACES} transactions in a row were outdated (ERESTART): other programs keep changing the ruleset; find \
         them with 'nft monitor'"
    )]
    Outrun,
}

impl Enforcer {
    /// Opens the kernel, makes sure that the tables, if they are there, are ours, and claims those that an earlier
    /// agent left, so that from now on nobody else can change them.
    pub(crate) fn start(node: &str, layout: Layout, metrics: Arc<Metrics>) -> anyhow::Result<Enforcer> {
        let mut kernel = Kernel::open()?;
        let claimed = claim(&mut kernel, &layout)?;
        let left_out = LeftOut::default();
        let commit = Kernel::commit;
        let translator = Translator::new(node, layout.clone());
        let (node, translated_layout) = (node.into(), layout.clone());
        Ok(Enforcer {
            kernel,
            commit,
            translator,
            node,
            translated_layout,
            layout,
            claimed,
            live: None,
            left: None,
            left_out,
            ended_ports: BTreeSet::new(),
            metrics,
        })
    }

    /// A subscription to the commits that others make.
    pub(crate) fn notifications(&self) -> anyhow::Result<Notifications> {
        Ok(Notifications::open(&self.kernel, &tables::names(&self.layout))?)
    }

    pub(crate) fn kernel_generation(&self) -> Option<u32> {
        self.live.as_ref().map(|l| l.generation)
    }

    /// The rules that the kernel has, as far as is known.
    pub(crate) fn rulesets(&self) -> impl Iterator<Item = &Ruleset> {
        self.live.iter().flat_map(|live| live.tables.rulesets()).flatten()
    }

    pub(crate) fn policy_generation(&self) -> u32 {
        self.layout.generation()
    }

    /// Takes over pods that the CNI plugin isolated by itself, when the rules that are in force cover them. Says
    /// whether some are not known here.
    ///
    /// # Errors
    /// If its table cannot be read or changed.
    pub(crate) fn release_isolated(&mut self, state: &ClusterState) -> anyhow::Result<bool> {
        let Release { released, kept } = crate::isolation::release(&mut self.kernel, &Covered::of(state))?;
        if released > 0 {
            tracing::info!(addresses = released, "adopted pods that the CNI plugin had isolated without the agent");
        }
        Ok(kept > 0)
    }

    /// What the kernel refused, which is denied.
    pub(crate) fn left_out(&self) -> Vec<String> {
        self.left_out.parts.iter().map(|(_, reason)| reason.clone()).collect()
    }

    /// Takes in what changed in the state. Nothing is enforced by it yet.
    pub(crate) fn follow(&mut self, state: &ClusterState, changed: &Changed) {
        if changed.attachments() {
            self.ended_ports.clear();
        }
        self.translator.update(state, changed);
    }

    /// A comparison of what was followed with a fresh translation of the state, which has been followed to the last
    /// change.
    pub(crate) fn translation_check(&self, state: &ClusterState) -> TranslationCheck {
        TranslationCheck {
            state: state.clone(),
            node: self.node.clone(),
            layout: self.translated_layout.clone(),
            followed: self.translator.translation(),
        }
    }

    /// Translates the whole state afresh and goes on from there. Nothing is enforced by it yet.
    pub(crate) fn retranslate(&mut self, state: &ClusterState) {
        self.translator.begin(state);
    }

    /// Whether it follows the state, and has to be told of every change.
    pub(crate) fn follows(&self) -> bool {
        self.translator.has_begun()
    }

    /// What the state asks for, without what the kernel refused, in whatever generation.
    fn translation(&self) -> Translation {
        let mut translation = self.translator.translation();
        for (operation, _) in &self.left_out.parts {
            take_out(&mut translation, operation);
        }
        if let Some(edge) = &mut translation.edge {
            for chain in &self.ended_ports {
                edge.chains.remove(chain);
            }
        }
        translation
    }

    /// Makes the kernel's rules those that the state asks for, as far as it was followed.
    pub(crate) fn enforce(&mut self) -> Result<Enforced, Trouble> {
        let mut translation = self.translation();
        let started = Instant::now();
        let commit = match self.live.take() {
            Some(live) => self.step(live, &mut translation)?,
            None => self.adopt(&mut translation)?,
        };
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
        Ok(Enforced { translation, commit })
    }

    /// Takes in that somebody else has committed. Says whether our tables were touched.
    pub(crate) fn notice(&mut self, foreign: &Foreign) -> bool {
        if let Some(live) = &mut self.live {
            live.explain(foreign);
        }
        foreign.touches
    }

    /// Compares the kernel's rules with what was committed, at the cost of one small request if nobody has touched
    /// them since; repairs what differs.
    pub(crate) fn verify(&mut self) -> Result<Option<Enforced>, Trouble> {
        let trial = self.left_out.trial.is_some_and(|(at, _)| Instant::now() >= at);
        if let Some(live) = &mut self.live {
            let generation = self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?;
            live.see(generation);
            if !live.is_doubtful() && !trial {
                return Ok(None);
            }
        }
        if trial {
            tracing::info!("retrying the operations that the kernel refused");
            self.left_out.parts.clear();
        }
        self.live = None;
        let enforced = self.enforce();
        if self.left_out.parts.is_empty() {
            self.left_out.trial = None;
        }
        enforced.map(Some)
    }

    /// Compares the kernel's tables, read anew, with what the state asks for, and changes nothing.
    pub(crate) fn compare(&mut self) -> TableVerdict {
        let observed = match tables::read(&mut self.kernel, &self.layout) {
            Ok(observed) => observed,
            Err(trouble) => return TableVerdict::Unknown { reason: trouble.to_string() },
        };
        if observed.policy.is_none() {
            return TableVerdict::Missing;
        }
        let mut translation = self.translation();
        stamp(&mut translation.ruleset, &self.layout);
        verdict(&observed.mend(&Tables::of(&translation), Mending::InPlace))
    }

    /// Takes in the subnets of the node's interfaces. Returns whether they changed. Nothing is enforced by it yet.
    pub(crate) fn set_own_subnets(&mut self, subnets: Vec<IpNet>) -> bool {
        if self.layout.own_subnets() == subnets {
            return false;
        }
        self.layout = self.layout.clone().in_subnets(subnets.clone());
        self.translated_layout = self.translated_layout.clone().in_subnets(subnets.clone());
        self.translator.set_own_subnets(subnets);
        true
    }

    /// Where the packets of pods are checked.
    pub(crate) fn edge_hook(&self) -> EdgeHook {
        self.layout.edge_hook()
    }
}

/// Claims the tables. The sockets of an agent that was killed may live on for a moment, as owners of the tables.
fn claim(kernel: &mut Kernel, layout: &Layout) -> Result<bool, Trouble> {
    let deadline = Instant::now() + PREDECESSOR_ENDS;
    loop {
        match tables::claim(kernel, layout) {
            Err(Trouble::Held(..)) if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
            outcome => return outcome,
        }
    }
}
