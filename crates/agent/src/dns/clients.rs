//! The pods whose DNS answers the kernel copies, shared by the event loop, which commits the rules, and the reader of the
//! copies.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::connections::REASSEMBLY;
use crate::enforcer::EarlierTables;

/// Since when answers to each pod have been copied. The reader continues no connection from before.
#[derive(Debug, Clone)]
pub(crate) struct DnsClients {
    since: Arc<Mutex<BTreeMap<IpAddr, Instant>>>,
    /// No copies from before this time count.
    begin: Instant,
}

impl DnsClients {
    /// Of an agent that starts now. Where an earlier one copied, pauses may last (its rules stay), and segments be under way
    /// in fragments.
    pub(crate) fn of_agent(earlier: EarlierTables, now: Instant) -> DnsClients {
        let begin = match earlier {
            EarlierTables::Missing => now,
            EarlierTables::Present | EarlierTables::Claimed => now + REASSEMBLY,
        };
        DnsClients { since: Arc::default(), begin }
    }

    /// Replaces the pods after a commit, before the next one.
    pub(crate) fn publish(&self, pods: &BTreeSet<IpAddr>, now: Instant) {
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|pod, _| pods.contains(pod));
        for pod in pods {
            since.entry(*pod).or_insert(now.max(self.begin));
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
        let now = Instant::now();
        let clients = DnsClients::of_agent(EarlierTables::Missing, now);
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

    #[test]
    fn pauses_of_earlier_agent_have_ended() {
        let now = Instant::now();
        let pod = "10.0.0.1".parse().unwrap();
        for (earlier, since) in [
            (EarlierTables::Missing, now),
            (EarlierTables::Present, now + REASSEMBLY),
            (EarlierTables::Claimed, now + REASSEMBLY),
        ] {
            let clients = DnsClients::of_agent(earlier, now);
            clients.publish(&[pod].into(), now);
            assert_eq!(clients.since(pod), Some(since));
            clients.publish(&[].into(), now);
            clients.publish(&[pod].into(), now + 2 * REASSEMBLY);
            assert_eq!(clients.since(pod), Some(now + 2 * REASSEMBLY));
        }
    }
}
