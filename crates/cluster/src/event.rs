//! What a source reports: changes, problems, and how much of the whole is known.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

use policy::{Change, Object, Tracked};

use crate::{Need, Watched};

/// A report of a source.
#[derive(Debug, Clone, PartialEq)]
pub enum Event<O: Tracked = Object> {
    /// Changes that were ready together; they belong into one transaction.
    Changes(Vec<Told<O>>),
    /// All problems that the source has at present, sorted; the list replaces the one before.
    Problems(Vec<Problem>),
    /// All [optional](Need::Optional) kinds that the server does not know at present, sorted; of these there is nothing.
    /// The list replaces the one before.
    Unserved(Vec<O::Kind>),
}

/// A change, and when this process was told of it: when the watch's line had come, or the folder's first notice.
#[derive(Debug, Clone, PartialEq)]
pub struct Told<O: Tracked = Object> {
    pub change: Change<O>,
    pub at: Instant,
}

/// Something that keeps a source from telling the whole truth.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Problem {
    /// `pods watch`, or `shop/web.yaml:12`.
    pub origin: String,
    /// What is wrong, and what to do about it.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)
    }
}

/// The kinds of which everything is known: those whose first [`Change::Replace`] has come.
///
/// Until those that are [needed](Need) are complete a ruleset made from what has come would be wrong: pods without the policies that select them,
/// policies without their peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sync<O: Watched = Object> {
    kinds: BTreeSet<O::Kind>,
}

impl<O: Watched> Default for Sync<O> {
    fn default() -> Sync<O> {
        Sync { kinds: BTreeSet::new() }
    }
}

impl<O: Watched> Sync<O> {
    /// Takes note of changes that come from a source. Says whether they completed the picture.
    pub fn observe<'a>(&mut self, changes: impl IntoIterator<Item = &'a Change<O>>) -> bool {
        let before = self.is_complete();
        for change in changes {
            match change {
                Change::Replace(kind, _) => {
                    self.kinds.insert(*kind);
                }
                Change::Set(_) | Change::Remove(..) => {}
            }
        }
        !before && self.is_complete()
    }

    pub fn is_complete(&self) -> bool {
        self.missing().is_empty()
    }

    /// The kinds that are needed and have not been listed yet.
    pub fn missing(&self) -> Vec<O::Kind> {
        self.unlisted().filter(|kind| O::resource(*kind).need == Need::Needed).collect()
    }

    /// All kinds that have not been listed yet, those without which the picture is complete included.
    pub fn unlisted(&self) -> impl Iterator<Item = O::Kind> {
        O::KINDS.iter().copied().filter(|kind| !self.kinds.contains(kind))
    }
}

#[cfg(test)]
mod tests {
    use policy::Kind;

    use super::*;

    #[test]
    fn sync_completes_once_after_list_of_every_kind() {
        let mut sync: Sync = Sync::default();
        assert_eq!(sync.missing(), Kind::NEEDED);
        assert!(!sync.observe(&[Change::Replace(Kind::Pod, vec![]), Change::Replace(Kind::Namespace, vec![])]));
        assert_eq!(sync.missing(), [Kind::NetworkPolicy]);
        let policies = [Change::Replace(Kind::NetworkPolicy, vec![])];
        assert!(sync.observe(&policies));
        assert!(!sync.observe(&policies));
        assert!(sync.is_complete());
        assert!(sync.unlisted().eq([Kind::Node]));
    }

    #[test]
    fn single_object_does_not_count_as_list() {
        let mut sync: Sync = Sync::default();
        sync.observe(&[Change::Remove(Kind::Pod, policy::ObjectName::new("a", "b"))]);
        assert_eq!(sync.missing(), Kind::NEEDED);
    }
}
