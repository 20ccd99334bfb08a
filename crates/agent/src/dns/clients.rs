//! The pods whose DNS answers the kernel copies, shared by the event loop, which commits the rules, and the reader of the
//! copies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Since when answers to each pod have been copied. The reader continues no connection from before.
#[derive(Debug, Clone, Default)]
pub(crate) struct DnsClients {
    since: Arc<Mutex<BTreeMap<IpAddr, Instant>>>,
}

impl DnsClients {
    /// Replaces the pods after a commit, before the next one.
    pub(crate) fn publish(&self, pods: &BTreeSet<IpAddr>, now: Instant) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|pod, _| pods.contains(pod));
        for pod in pods {
            since.entry(*pod).or_insert(now);
        }
    }

    /// `None` if no rules that copy answers to the pod are known to be committed.
    pub(super) fn since(&self, pod: IpAddr) -> Option<Instant> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner).get(&pod).copied()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pod_that_was_away_begins_again() {
        let (clients, now) = (DnsClients::default(), Instant::now());
        let [first, second] = ["10.0.0.1", "fd00::2"].map(|text| text.parse().unwrap());
        let later = |seconds| now + Duration::from_secs(seconds);
        clients.publish(&[first].into(), now);
        clients.publish(&[first, second].into(), later(1));
        assert_eq!([first, second].map(|pod| clients.since(pod)), [Some(now), Some(later(1))]);
        clients.publish(&[second].into(), later(2));
        assert_eq!(clients.since(first), None);
        clients.publish(&[first, second].into(), later(3));
        assert_eq!([first, second].map(|pod| clients.since(pod)), [Some(later(3)), Some(later(1))]);
    }
}
