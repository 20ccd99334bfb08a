//! Keeps the kernel's tables equal to what the cluster's state asks for.
//!
//! As long as nothing is in doubt, a change becomes the difference between the rulesets that were committed last and
//! the new ones. On doubt (a start, a refusal, somebody else's commit) the tables are read back and repaired. In either
//! case it is one transaction, and the generation of approved flows moves whenever something may have been taken
//! away. What the kernel refuses is left out and denied, as little as possible, and tried again later.

mod live;
pub(crate) mod snapshot;
pub(crate) mod tables;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use ipnet::IpNet;
use nfnetlink::{CommitError, Committed, Foreign, Kernel, Notifications, Observed, Refusal, clear_marks};
use nft::{Hook, Name, Operation, Ruleset, Table, TableFamily};
use nix::net::if_::if_nametoindex;
use policy::{
    Changed, ClusterState, EdgeHook, Layout, TABLE_COMMENT, Translation, Translator, leave_out, narrows, stamp,
};

use crate::api::TableVerdict;
use crate::isolation::{Covered, Release};
use crate::metrics::Metrics;
use crate::metrics::labels::RepairCause;
use crate::translation_check::TranslationCheck;
use live::Live;
use snapshot::verdict;
use tables::{Held, Mending, Tables};

/// Commits lost in a row to other programs' commits before it is given up until the next tick. Each loss means that
/// somebody else's transaction came between two of our system calls.
const MOST_RACES: usize = 16;

/// Rounds in which the kernel may find fault with something else. Each round leaves out up to sixteen things.
const MOST_ROUNDS: usize = 64;

/// Of a transaction that exceeds the limit at least this part is left out at a time (1 in 16), so that the rounds above
/// suffice for one that exceeds it many times.
const PART_LEFT_OUT: usize = 16;

/// Until what was left out is tried again; doubles up to the second figure, since a refused commit costs the kernel
/// more than one that it takes.
const FIRST_TRIAL: Duration = Duration::from_secs(30);
const LAST_TRIAL: Duration = Duration::from_secs(1800);

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

/// What the kernel does not take.
#[derive(Default)]
struct LeftOut {
    parts: Vec<(Operation, String)>,
    trial: Option<(Instant, Duration)>,
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

    /// From what we committed last. Any doubt ends in [`Enforcer::adopt`].
    fn step(&mut self, mut live: Live, translation: &mut Translation) -> Result<Option<Commit>, Trouble> {
        for _ in 0..MOST_RACES {
            let generation = self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?;
            live.see(generation);
            let layout = match narrows(&live.tables.policy, &translation.ruleset) {
                true => self.next_layout()?,
                false => self.layout.clone(),
            };
            stamp(&mut translation.ruleset, &layout);
            let wanted = Tables::of(translation);
            self.forget_ended_ports(&mut live, &wanted)?;
            let operations = live.tables.difference(&wanted);
            if operations.is_empty() {
                self.live = Some(live);
                return Ok(None);
            }
            match (self.commit)(&mut self.kernel, &operations, generation) {
                Ok(committed) => {
                    live.committed(wanted, committed.generation);
                    self.live = Some(live);
                    self.layout = layout;
                    return Ok(Some(summary(&operations, None)));
                }
                Err(CommitError::Moved) => {}
                Err(error) => {
                    // The table may have been changed under us; what we find there decides.
                    self.metrics.refused_commits.inc();
                    tracing::warn!(%error, "the kernel refused a transaction; comparing the whole table");
                    return self.adopt(translation);
                }
            }
        }
        // Nothing is known any more of what is in force: whoever verifies next compares with what is wanted.
        Err(Trouble::Outrun)
    }

    /// From what the kernel has. Tables that are right already are left as they are. What the kernel does not take is
    /// left out; a table that cannot be mended, since it holds something that nobody foresaw, is replaced whole.
    fn adopt(&mut self, translation: &mut Translation) -> Result<Option<Commit>, Trouble> {
        let mut mending = Mending::InPlace;
        let (mut races, mut rounds) = (0, 0);
        while races < MOST_RACES && rounds < MOST_ROUNDS {
            let observed = tables::read(&mut self.kernel, &self.layout)?;
            self.metrics.comparisons.inc();
            self.layout = self.adopted_layout(observed.policy.as_ref())?;
            let generation = self.kernel.generation().map_err(|e| Trouble::Unreadable(e.to_string()))?;
            if !observed.is_of(generation) {
                races += 1;
                continue;
            }
            stamp(&mut translation.ruleset, &self.layout);
            let mut layout = self.layout.clone();
            let mut wanted = Tables::of(translation);
            let mut operations = observed.mend(&wanted, mending);
            if !operations.is_empty() && observed.policy.is_some() {
                layout = self.next_layout()?;
                stamp(&mut translation.ruleset, &layout);
                wanted = Tables::of(translation);
                operations = observed.mend(&wanted, mending);
            }
            if operations.is_empty() {
                self.live = Some(Live::new(wanted, generation));
                return Ok(None);
            }
            match (self.commit)(&mut self.kernel, &operations, generation) {
                Ok(committed) => {
                    self.live = Some(Live::new(wanted, committed.generation));
                    self.layout = layout;
                    return Ok(Some(summary(&operations, repaired(self.left.as_ref(), &observed))));
                }
                Err(CommitError::Moved) => races += 1,
                Err(error) => {
                    rounds += 1;
                    self.metrics.refused_commits.inc();
                    let left_out = match error {
                        CommitError::TooBig => self.leave_out_largest(translation, &operations),
                        _ => self.leave_out(translation, &error),
                    };
                    if left_out {
                        continue;
                    }
                    if mending == Mending::Whole || !observed.is_there() {
                        return Err(Trouble::Refused(error));
                    }
                    tracing::warn!(%error, "cannot repair the table; replacing it");
                    mending = Mending::Whole;
                }
            }
        }
        Err(Trouble::Outrun)
    }

    /// Before Linux 6.16 the kernel removes a chain at an interface together with the interface, and refuses to remove it
    /// again.
    fn forget_ended_ports(&mut self, live: &mut Live, wanted: &Tables) -> Result<(), Trouble> {
        for chain in live.tables.ended_ports(wanted) {
            let Some(edge) = &mut live.tables.edge else { continue };
            let is_there = self.kernel.has_chain(&edge.table, &chain);
            if !is_there.map_err(|e| Trouble::Unreadable(e.to_string()))? {
                edge.chains.remove(&chain);
            }
        }
        Ok(())
    }

    /// Leaves out what the kernel refused; says whether there was anything that can be.
    fn leave_out(&mut self, translation: &mut Translation, error: &CommitError) -> bool {
        let CommitError::Refused { refusals, .. } = error else { return false };
        let mut any = false;
        for refusal in refusals {
            let Some(operation) = &refusal.operation else { continue };
            if refuses_edge(refusal) {
                self.fall_back(translation, refusal);
                return true;
            }
            if let Some(chain) = ended_port(translation, refusal) {
                self.ended_ports.insert(chain.clone());
                tracing::info!("the interface of chain {chain} was removed; its chain is left out: {refusal}");
                any = true;
                continue;
            }
            if take_out(translation, operation) {
                any = true;
                tracing::error!("left out of the rules and denied: {refusal}");
                self.left_out.parts.push((operation.clone(), refusal.to_string()));
            }
        }
        if any {
            self.plan_trial();
        }
        any
    }

    /// Checks what pods send at the prerouting hooks from now on.
    fn fall_back(&mut self, translation: &mut Translation, refusal: &Refusal) {
        tracing::error!(
            "the kernel refused chains at the ingress hook of interfaces; falling back to the prerouting hooks, which \
             do not see ARP of routed pods: {refusal}"
        );
        self.translator.check_at_prerouting();
        self.layout = self.layout.clone().with_edge_hook(EdgeHook::Prerouting);
        self.translated_layout = self.translated_layout.clone().with_edge_hook(EdgeHook::Prerouting);
        *translation = self.translation();
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

    /// Leaves out the largest sets and chains of a transaction that exceeds the limit; returns whether there was one
    /// that can be left out.
    fn leave_out_largest(&mut self, translation: &mut Translation, operations: &[Operation]) -> bool {
        let total: usize = operations.iter().map(Operation::weight).sum();
        let mut left_out = 0;
        for (weight, part) in parts_by_weight(operations) {
            if left_out * PART_LEFT_OUT >= total && left_out > 0 {
                break;
            }
            if take_out(translation, &part) {
                left_out += weight;
                let reason = format!("the transaction exceeds the size limit, and `{part}` is among its largest parts");
                tracing::error!(weight, "left out of the rules and denied: {reason}");
                self.left_out.parts.push((part, reason));
            }
        }
        if left_out > 0 {
            self.plan_trial();
        }
        left_out > 0
    }

    fn plan_trial(&mut self) {
        let wait = self.left_out.trial.map_or(FIRST_TRIAL, |(_, wait)| (wait * 2).min(LAST_TRIAL));
        self.left_out.trial = Some((Instant::now() + wait, wait));
    }

    /// The layout in the generation that the kernel is in. Where that cannot be told, no flow may carry an approval
    /// that a generation of ours could be mistaken for.
    fn adopted_layout(&self, observed: Option<&Observed>) -> Result<Layout, Trouble> {
        let mark = observed.and_then(|o| o.generation_mark(self.layout.mask()));
        match mark.and_then(|mark| self.layout.at_mark(mark)) {
            Some(layout) => Ok(layout),
            None => {
                clear_marks(self.layout.mask(), 0).map_err(|e| Trouble::Marks(e.to_string()))?;
                Ok(self.layout.next())
            }
        }
    }

    /// The next generation, made sure that no flow carries it already.
    fn next_layout(&self) -> Result<Layout, Trouble> {
        if self.layout.clears_before_next() {
            let cleared = clear_marks(self.layout.mask(), self.layout.mark());
            let cleared = cleared.map_err(|e| Trouble::Marks(e.to_string()))?;
            tracing::info!(
                cleared,
                "cleared stale approvals from the connection marks (conntrack), so that their generations can be reused"
            );
        }
        Ok(self.layout.next())
    }
}

/// Takes out what the kernel refused; says whether anything could be. Without its table of family `bridge` a node still
/// enforces every policy, but not that bridged pods send with their own addresses.
fn take_out(translation: &mut Translation, refused: &Operation) -> bool {
    match refused.table().family {
        TableFamily::Inet => leave_out(&mut translation.ruleset, refused),
        TableFamily::Bridge => translation.bridge.take().is_some(),
        TableFamily::Netdev => false,
    }
}

/// What the kernel says to tables of family `netdev`, or to rules in them, that it cannot have.
const UNSUPPORTED: [i32; 4] = [libc::EOPNOTSUPP, libc::EAFNOSUPPORT, libc::EPROTONOSUPPORT, libc::EINVAL];

/// Whether the kernel cannot have chains at interfaces, rather than this one chain.
fn refuses_edge(refusal: &Refusal) -> bool {
    let Some(operation) = refusal.operation.as_ref().filter(|o| o.table().family == TableFamily::Netdev) else {
        return false;
    };
    match operation {
        // A kernel without this type of chain says the same as to a chain at an interface that is not there.
        Operation::AddChain { hook: Some(Hook::Ingress(interface)), .. } if refusal.errno == libc::ENOENT => {
            if_nametoindex(interface.as_str()).is_ok()
        }
        _ => UNSUPPORTED.contains(&refusal.errno),
    }
}

/// Takes out the chain of an interface that has gone meanwhile, and gives its name.
fn ended_port(translation: &mut Translation, refusal: &Refusal) -> Option<Name> {
    let Some(Operation::AddChain { table, chain, hook: Some(Hook::Ingress(_)) }) = &refusal.operation else {
        return None;
    };
    let edge = translation.edge.as_mut().filter(|edge| edge.table == *table && refusal.errno == libc::ENOENT)?;
    edge.chains.remove(chain).map(|_| chain.clone())
}

/// The sets and chains of a table of family `inet` that operations fill, as the operations that would create them, the
/// largest first.
fn parts_by_weight(operations: &[Operation]) -> Vec<(usize, Operation)> {
    let mut parts: BTreeMap<(bool, &Name), (usize, Operation)> = BTreeMap::new();
    for operation in operations.iter().filter(|operation| operation.table().family == TableFamily::Inet) {
        let (key, create) = match operation {
            Operation::AddElements { table, name, set, elements: _ } => {
                let (table, set) = (table.clone(), set.clone());
                ((true, name), Operation::AddSet { table, name: name.clone(), set })
            }
            Operation::AddRule { table, chain, rule: _ } => {
                ((false, chain), Operation::AddChain { table: table.clone(), chain: chain.clone(), hook: None })
            }
            Operation::AddTable { .. }
            | Operation::DeleteTable { .. }
            | Operation::AddChain { .. }
            | Operation::FlushChain { .. }
            | Operation::DeleteChain { .. }
            | Operation::AddSet { .. }
            | Operation::DeleteSet { .. }
            | Operation::DeleteElements { .. } => continue,
        };
        parts.entry(key).or_insert((0, create)).0 += operation.weight();
    }
    let mut parts: Vec<(usize, Operation)> = parts.into_values().collect();
    // The order of equal ones is that of their names.
    parts.sort_by_key(|(weight, _)| std::cmp::Reverse(*weight));
    parts
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

/// Why there was something to commit in tables that were read back, beside what has changed in the state.
fn repaired(left: Option<&Tables>, observed: &Held) -> Option<RepairCause> {
    match left {
        None => observed.is_there().then_some(RepairCause::AtStart),
        Some(left) if observed.lacks(left) => Some(RepairCause::Removed),
        Some(left) if observed.mend(left, Mending::InPlace).is_empty() => None,
        Some(_) => Some(RepairCause::Changed),
    }
}

fn summary(operations: &[Operation], repaired: Option<RepairCause>) -> Commit {
    let weight = operations.iter().map(Operation::weight).sum();
    Commit { operations: operations.len(), weight, duration: Duration::ZERO, repaired }
}
