//! Learned addresses of domain names: from which answers they are learned, and when they expire.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use policy::{ClusterState, DomainPattern, is_learnable};

use super::Reconciler;
use crate::dns::{
    CopiedAnswer, LearnOutcome, LearnedTable, Lifetimes, MOST_ADDRESSES, MOST_ADDRESSES_BELOW_WILDCARDS,
    MOST_ADDRESSES_OF_NAME, NameMatch, Resolvers, SAVES_APART,
};
use crate::metrics::labels::{AddressRefusal, AnswerOutcome, WatchedKind};

/// The inputs of learning.
pub(crate) struct NameLearning {
    pub(crate) resolvers: Resolvers,
    pub(crate) lifetimes: Lifetimes,
    pub(crate) cluster_domain: Arc<str>,
    /// Why answers are not copied; `None` if they are.
    uncopied: Option<String>,
    table: LearnedTable,
    /// An address was refused because a limit was reached.
    overfull: bool,
    /// The domain names of all cluster policies.
    patterns: BTreeSet<DomainPattern>,
    /// Cluster policies have changed since the patterns were read.
    stale: bool,
    /// Cluster policies have changed since names without a policy were removed.
    unpruned: bool,
    /// The time of the first change that is not saved.
    unsaved: Option<Instant>,
}

impl NameLearning {
    /// Continues with the addresses in the table, which an earlier process of the agent saved.
    pub(crate) fn new(
        resolvers: Resolvers,
        lifetimes: Lifetimes,
        cluster_domain: Arc<str>,
        table: LearnedTable,
        uncopied: Option<String>,
    ) -> NameLearning {
        NameLearning {
            resolvers,
            lifetimes,
            cluster_domain,
            uncopied,
            table,
            overfull: false,
            patterns: BTreeSet::new(),
            stale: true,
            unpruned: true,
            unsaved: None,
        }
    }

    pub(super) fn table(&self) -> &LearnedTable {
        &self.table
    }

    fn saved_addresses(&self) -> Vec<(Arc<str>, IpAddr)> {
        self.table.iter().map(|(name, address, _)| (name.clone(), address)).collect()
    }

    /// Records a change of cluster policies.
    pub(super) fn mark_stale(&mut self) {
        (self.stale, self.unpruned) = (true, true);
    }

    /// Collects the domain names of the policies again after a change of cluster policies.
    fn refresh_patterns(&mut self, state: &ClusterState) {
        if std::mem::take(&mut self.stale) {
            self.patterns = state.domain_names().cloned().collect();
        }
    }

    /// How policies match the name; `None` if no policy matches it.
    fn matching(&self, name: &str) -> Option<NameMatch> {
        // A pattern without a wildcard matches the name itself; one with a wildcard matches the names below its domain.
        let matches =
            |wildcard: bool, name: &str| self.patterns.contains(&DomainPattern { wildcard, name: name.into() });
        let above = std::iter::successors(name.split_once('.'), |(_, rest)| rest.split_once('.'));
        let mut domains = above.map(|(_, domain)| domain);
        match matches(false, name) {
            true => Some(NameMatch::InFull),
            false => domains.any(|domain| matches(true, domain)).then_some(NameMatch::ByWildcard),
        }
    }

    fn record_unsaved(&mut self, now: Instant) {
        self.unsaved.get_or_insert(now);
    }

    /// When the table is saved; `None` if no change is unsaved.
    pub(super) fn next_save(&self) -> Option<Instant> {
        self.unsaved.map(|since| since + SAVES_APART)
    }

    /// Records that the table is saved now.
    pub(super) fn begin_save(&mut self) {
        self.unsaved = None;
    }
}

impl Reconciler {
    /// Adds the saved addresses to the state.
    pub(super) fn restore_names(&mut self, now: Instant) {
        let mut changed = self.model.set_cluster_domain(self.names.cluster_domain.clone());
        for (name, address) in self.names.saved_addresses() {
            changed |= self.model.learn(name, address);
        }
        self.record_change(changed, now);
    }

    /// Learns the addresses of answers.
    pub(crate) fn learn(&mut self, answers: Vec<CopiedAnswer>, now: Instant) {
        let mut changed = false;
        self.names.refresh_patterns(self.model.state());
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
                    LearnOutcome::New => is_new |= self.model.learn(answer.name.clone(), address),
                    LearnOutcome::Known => {}
                    LearnOutcome::NoRoom => {
                        self.names.overfull = true;
                        self.metrics.dns_address_refused(AddressRefusal::NoRoom);
                    }
                }
            }
            self.names.record_unsaved(now);
            if is_new {
                self.latency.add(WatchedKind::DomainName, at, &self.metrics);
            }
            changed |= is_new;
        }
        self.record_change(changed, now);
    }

    /// When addresses expire next: immediately after a change of cluster policies, which may have removed names.
    pub(super) fn next_name_expiry(&self, now: Instant) -> Option<Instant> {
        match self.must_prune_names() {
            true => Some(now),
            false => self.names.table.next_expiry(),
        }
    }

    /// Whether names that match no policy must be removed: not before the initial sync, since policies are missing.
    fn must_prune_names(&self) -> bool {
        self.sync.is_complete() && self.names.unpruned
    }

    /// Removes the addresses that have expired, and those of names that no policy matches any more.
    pub(super) fn expire_names(&mut self, now: Instant) {
        let mut gone = self.names.table.expire(now);
        if self.must_prune_names() {
            self.names.unpruned = false;
            self.names.refresh_patterns(self.model.state());
            let mut table = std::mem::take(&mut self.names.table);
            gone.extend(table.retain(|name| self.names.matching(name).is_some()));
            self.names.table = table;
        }
        if gone.is_empty() {
            return;
        }
        self.names.record_unsaved(now);
        let removed = gone.into_iter().map(|(name, address)| self.model.remove_learned(&name, address));
        let changed = removed.fold(false, |changed, removed| changed | removed);
        self.record_change(changed, now);
    }

    /// Records in the status the number of names, and why some have no addresses.
    pub(super) fn publish_names(&mut self) {
        let NameLearning { uncopied, overfull, patterns, table, .. } = &self.names;
        let problem = match uncopied {
            Some(reason) if !patterns.is_empty() => {
                Some(format!("domain names in policies match no address, since DNS answers are not copied: {reason}"))
            }
            Some(_) | None => overfull.then(|| {
                format!(
                    "addresses of domain names were refused at a limit, and stay denied: a name has at most \
                     {MOST_ADDRESSES_OF_NAME} addresses, all names have {MOST_ADDRESSES}, and names that only \
                     wildcards match have {MOST_ADDRESSES_BELOW_WILDCARDS} of these"
                )
            }),
        };
        self.status.record_names(table.names(), problem);
    }
}
