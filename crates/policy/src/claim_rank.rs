//! Which of several pods that claim an address owns it.

use crate::{Moment, ObjectName, Pod, Uid};

/// Rank of a pod among those that claim an address; the greatest owns it. A pod that is not terminating precedes one that
/// is, then a ready one, the later start, the later creation, the greater UID and the greater name. So the owner does not
/// depend on the order of events.
///
/// ```
/// use policy::{ClaimRank, Kind, Object, lower};
/// use serde_json::json;
///
/// let pod = |name: &str, started: &str| {
///     let object = json!({"metadata": {"name": name}, "status": {"startTime": started}});
///     match lower(Kind::Pod, &object) {
///         Ok(Object::Pod(pod)) => pod,
///         other => panic!("{other:?}"),
///     }
/// };
/// let (first, second) = (pod("b", "2026-05-04T03:02:01Z"), pod("a", "2026-05-04T03:02:02Z"));
/// assert!(ClaimRank::of(&second, true) > ClaimRank::of(&first, true));
/// assert!(ClaimRank::of(&second, false) < ClaimRank::of(&first, true));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimRank<'a> {
    life: Life,
    started: Moment,
    created: Moment,
    uid: &'a Uid,
    name: &'a ObjectName,
}

/// How likely the pod is to send traffic. A pod that is not ready may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Life {
    Terminating,
    NotReady,
    Ready,
}

impl ClaimRank<'_> {
    /// Rank of the pod. A caller that does not know whether pods are ready passes true for all.
    pub fn of(pod: &Pod, is_ready: bool) -> ClaimRank<'_> {
        let life = match (pod.terminating, is_ready) {
            (true, _) => Life::Terminating,
            (false, false) => Life::NotReady,
            (false, true) => Life::Ready,
        };
        ClaimRank { life, started: pod.started, created: pod.created, uid: &pod.uid, name: &pod.name }
    }
}
