//! Events of a source: changes, problems, and the state of the initial sync.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Instant;

use policy::{Change, Object, SourceObject};

use crate::{Need, Watchable};

/// An event of a source.
#[derive(Debug, Clone, PartialEq)]
pub enum SourceEvent<O: SourceObject = Object> {
    /// Changes that were ready together; the consumer applies them in one transaction.
    Changes(Vec<TimedChange<O>>),
    /// All current problems of the source, sorted; replaces the previous list.
    Problems(Vec<Problem>),
    /// All [optional](Need::Optional) kinds that the server does not serve, sorted; they have no objects. Replaces the
    /// previous list.
    Unserved(Vec<O::Kind>),
}

/// A change, and when this process received it: the watch line, or the first inotify event of the folder.
#[derive(Debug, Clone, PartialEq)]
pub struct TimedChange<O: SourceObject = Object> {
    pub change: Change<O>,
    pub at: Instant,
}

/// A problem that makes a source incomplete or stale.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Problem {
    /// `pods watch`, or `shop/web.yaml:12`.
    pub origin: String,
    /// The problem and its remedy.
    pub message: String,
}

impl Problem {
    /// Whether the problem is of the watch of this kind.
    pub fn is_of_watch<O: Watchable>(&self, kind: O::Kind) -> bool {
        self.origin == watch_origin(O::resource(kind).plural)
    }
}

/// The origin of problems of the watch of this resource.
pub(crate) fn watch_origin(plural: &str) -> String {
    format!("{plural} watch")
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.message)
    }
}

/// State of the initial sync: the kinds whose first [`Change::Replace`] was received.
///
/// Before the initial sync of all [needed](Need) kinds a ruleset would be wrong: pods without the policies that select
/// them, policies without their peers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sync<O: Watchable = Object> {
    kinds: BTreeSet<O::Kind>,
}

impl<O: Watchable> Default for Sync<O> {
    fn default() -> Sync<O> {
        Sync { kinds: BTreeSet::new() }
    }
}

impl<O: Watchable> Sync<O> {
    /// Records changes of a source. Returns true if they completed the initial sync.
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

    /// The kinds that the initial sync requires and that have not been listed yet.
    pub fn missing(&self) -> Vec<O::Kind> {
        self.unlisted().filter(|kind| O::resource(*kind).need != Need::Optional).collect()
    }

    /// All watched kinds that have not been listed yet, including optional ones.
    pub fn unlisted(&self) -> impl Iterator<Item = O::Kind> {
        O::KINDS.iter().copied().filter(|kind| !self.kinds.contains(kind))
    }
}

#[cfg(test)]
mod tests {
    use policy::Kind;

    use super::*;

    const REQUIRED: [Kind; 4] = [Kind::Namespace, Kind::Pod, Kind::NetworkPolicy, Kind::ClusterNetworkPolicy];

    #[test]
    fn sync_completes_once_after_list_of_every_kind() {
        let mut sync: Sync = Sync::default();
        assert_eq!(sync.missing(), REQUIRED);
        assert!(!sync.observe(&[Change::Replace(Kind::Pod, vec![]), Change::Replace(Kind::Namespace, vec![])]));
        assert_eq!(sync.missing(), [Kind::NetworkPolicy, Kind::ClusterNetworkPolicy]);
        assert!(!sync.observe(&[Change::Replace(Kind::NetworkPolicy, vec![])]));
        let policies = [Change::Replace(Kind::ClusterNetworkPolicy, vec![])];
        assert!(sync.observe(&policies));
        assert!(!sync.observe(&policies));
        assert!(sync.is_complete());
        assert!(sync.unlisted().eq([Kind::Node]));
    }

    #[test]
    fn single_object_does_not_count_as_list() {
        let mut sync: Sync = Sync::default();
        sync.observe(&[Change::Remove(Kind::Pod, policy::ObjectName::new("a", "b"))]);
        assert_eq!(sync.missing(), REQUIRED);
    }
}
