//! Learned addresses of domain names: from which answers they are learned, and when they expire.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use policy::{ClusterState, DomainPattern, is_learnable};

use super::Reconciler;
use super::schedule::Timer;
use crate::dns::{
    CopiedAnswer, Learned, LearnedTable, Lifetimes, MOST_ADDRESSES, MOST_ADDRESSES_BELOW_WILDCARDS,
    MOST_ADDRESSES_OF_NAME, NameMatch, Resolvers, SAVES_APART, SavedNames,
};
use crate::metrics::labels::{AddressRefusal, AnswerOutcome, Watched};

/// The inputs of learning.
pub(crate) struct NameLearning {
    pub(crate) resolvers: Resolvers,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) cluster_domain: Arc<str>,
    saved: SavedNames,
    /// Why answers are not copied; `None` if they are.
    uncopied: Option<String>,
    table: LearnedTable,
    /// An address was refused because a limit was reached.
    overfull: bool,
    /// The domain names of all cluster policies.
    patterns: BTreeSet<DomainPattern>,
    /// Cluster policies have changed since the patterns were read.
    outdated: bool,
    /// Cluster policies have changed since names without a policy were removed.
    unpruned: bool,
    /// The time of the first change that is not saved.
    unsaved: Option<Instant>,
}

impl NameLearning {
    /// Continues with the addresses that the last agent saved.
    pub(crate) fn new(
        resolvers: Resolvers,
        lifetimes: Lifetimes,
        cluster_domain: Arc<str>,
        saved: SavedNames,
        uncopied: Option<String>,
    ) -> NameLearning {
        let table = saved.read(lifetimes, Instant::now());
        NameLearning {
            resolvers,
            lifetimes,
            cluster_domain,
            saved,
            uncopied,
            table,
            overfull: false,
            patterns: BTreeSet::new(),
            outdated: true,
            unpruned: true,
            unsaved: None,
        }
    }

    pub(super) fn saved_addresses(&self) -> Vec<(Arc<str>, IpAddr)> {
        self.table.iter().map(|(name, address, _)| (name.clone(), address)).collect()
    }

    /// Takes note of a change of cluster policies.
    pub(super) fn outdate(&mut self) {
        (self.outdated, self.unpruned) = (true, true);
    }

    fn follow(&mut self, state: &ClusterState) {
        if std::mem::take(&mut self.outdated) {
            self.patterns = state.domain_names().cloned().collect();
        }
    }

    /// How policies have the name; `None` if none has it.
    fn matching(&self, name: &str) -> Option<NameMatch> {
        // A pattern without a wildcard is the name itself, and one with it is a domain above the name.
        let matches =
            |wildcard: bool, name: &str| self.patterns.contains(&DomainPattern { wildcard, name: name.into() });
        let above = std::iter::successors(name.split_once('.'), |(_, rest)| rest.split_once('.'));
        let mut domains = above.map(|(_, domain)| domain);
        match matches(false, name) {
            true => Some(NameMatch::InFull),
            false => domains.any(|domain| matches(true, domain)).then_some(NameMatch::ByWildcard),
        }
    }

    fn record_unsaved(&mut self) {
        self.unsaved.get_or_insert_with(Instant::now);
    }
}

impl Reconciler {
    /// Adds the saved addresses to the state.
    pub(super) fn restore_names(&mut self) {
        let mut changed = self.model.set_cluster_domain(self.names.cluster_domain.clone());
        for (name, address) in self.names.saved_addresses() {
            changed |= self.model.learn(name, address);
        }
        if changed {
            self.request_commit();
        }
    }

    /// Learns the addresses of answers. Returns whether the rules may have to change.
    pub(super) fn learn(&mut self, answers: Vec<CopiedAnswer>) -> bool {
        let mut changed = false;
        self.names.follow(self.model.state());
        for CopiedAnswer { resolver, answer, at } in answers {
            let is_trusted = self.names.resolvers.trusts(self.model.state(), resolver);
            let matching = if is_trusted { self.names.matching(&answer.name) } else { None };
            let outcome = match matching {
                Some(_) => AnswerOutcome::Learned,
                None if is_trusted => AnswerOutcome::OtherName,
                None => AnswerOutcome::Untrusted,
            };
            self.metrics.dns_answer(outcome, 1);
            let Some(matching) = matching else { continue };
            let mut is_new = false;
            for (address, ttl) in answer.addresses {
                if !is_learnable(address) {
                    self.metrics.dns_address_refused(AddressRefusal::NotUnicast);
                    continue;
                }
                match self.names.table.learn(&answer.name, address, at + self.names.lifetimes.of(ttl), matching) {
                    Learned::New => is_new |= self.model.learn(answer.name.clone(), address),
                    Learned::Known => {}
                    Learned::NoRoom => {
                        self.names.overfull = true;
                        self.metrics.dns_address_refused(AddressRefusal::NoRoom);
                    }
                }
            }
            self.names.record_unsaved();
            if is_new {
                self.latency.add(Watched::DomainName, at, &self.metrics);
            }
            changed |= is_new;
        }
        changed
    }

    /// Removes the addresses that have expired, and those of names that no policy has any more. Returns whether the rules
    /// may have to change.
    pub(super) fn expire_names(&mut self, now: Instant) -> bool {
        let mut gone = self.names.table.expire(now);
        // Before the initial sync, policies are missing.
        if self.sync.is_complete() && std::mem::take(&mut self.names.unpruned) {
            self.names.follow(self.model.state());
            let mut table = std::mem::take(&mut self.names.table);
            gone.extend(table.retain(|name| self.names.matching(name).is_some()));
            self.names.table = table;
        }
        if gone.is_empty() {
            return false;
        }
        self.names.record_unsaved();
        let removed = gone.into_iter().map(|(name, address)| self.model.remove_learned(&name, address));
        removed.fold(false, |changed, removed| changed | removed)
    }

    /// Saves the names, if that is due.
    pub(super) fn save_names(&mut self, now: Instant) {
        if self.names.unsaved.is_some_and(|since| now >= since + SAVES_APART) {
            self.names.unsaved = None;
            if let Err(error) = self.names.saved.write(&self.names.table, now) {
                tracing::warn!("cannot save the learned domain names; after a restart they are learned again: {error}");
            }
        }
    }

    /// Publishes the names in the status.
    pub(super) fn publish_names(&mut self) {
        let NameLearning { uncopied, overfull, patterns, table, .. } = &self.names;
        let problem = match uncopied {
            Some(reason) if !patterns.is_empty() => {
                Some(format!("domain names in policies match no address, since DNS answers are not copied: {reason}"))
            }
            Some(_) | None => overfull.then(|| {
                format!(
                    "addresses of domain names were not learned, and stay closed: a name has at most \
                     {MOST_ADDRESSES_OF_NAME}, all names have {MOST_ADDRESSES}, and names that only wildcards match \
                     have {MOST_ADDRESSES_BELOW_WILDCARDS} of these"
                )
            }),
        };
        self.status.record_names(table.names(), problem);
    }

    /// Sets the timers of the names.
    pub(super) fn schedule_names(&mut self) {
        let expiry = self.names.table.next_expiry();
        self.schedule.set(Timer::NameExpiry, expiry);
        self.schedule.set(Timer::SaveNames, self.names.unsaved.map(|since| since + SAVES_APART));
    }
}
