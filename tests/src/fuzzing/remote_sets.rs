//! The feed of remote sets, as an agent processes it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use agent::remote::Mirror;
use jiff::{SignedDuration, Timestamp};
use policy::remote::wire::{RemoteBaseline, RemoteDelta};
use policy::remote::{RemoteChange, RemoteSet};

type Sets = BTreeMap<RemoteSet, BTreeSet<IpAddr>>;

/// How long the sets of all clusters are enforced after contact is lost.
const MAX_STALE: Duration = Duration::from_secs(600);

/// Each line is a baseline, a delta, or a command: the stream is lost or resumes, time passes, the agent restarts. The
/// changes that the agent enforces must add up to the sets that it reports, and a restart must not change them.
///
/// # Panics
/// If that does not hold.
pub fn remote_sets(bytes: &[u8]) {
    let Some((flags, bytes)) = bytes.split_first() else { return };
    let max_stale = (flags & 1 == 1).then_some(MAX_STALE);
    let mut mirror = Mirror::new(max_stale);
    let mut enforced = Sets::new();
    let mut now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(500_000);
    for line in bytes.split(|byte| *byte == b'\n') {
        now += SignedDuration::from_secs(1);
        let changes = match line {
            b"lost" => mirror.lost(now),
            b"resumed" => mirror.resumed(now),
            b"hour" => {
                now += SignedDuration::from_hours(1);
                mirror.reconcile(now)
            }
            b"restart" => {
                let kept = mirror.to_keep();
                let text = serde_json::to_vec(&kept).expect("texts, addresses and moments");
                let kept_again: RemoteBaseline = serde_json::from_slice(&text).expect("it was written by us");
                assert_eq!(kept_again, kept);
                mirror = Mirror::new(max_stale);
                enforced = Sets::new();
                mirror.recall(&kept, now)
            }
            line => {
                if let Ok(baseline) = serde_json::from_slice::<RemoteBaseline>(line) {
                    mirror.baseline(&baseline, now)
                } else if let Ok(delta) = serde_json::from_slice::<RemoteDelta>(line) {
                    mirror.delta(&delta, now)
                } else {
                    continue;
                }
            }
        };
        changes.into_iter().for_each(|change| enforce(&mut enforced, change));
        let known = known(&mirror.to_keep());
        match max_stale {
            None => assert_eq!(enforced, known),
            // Sets of clusters that have been stale for too long are no longer enforced.
            Some(_) => {
                assert!(enforced.iter().all(|(set, addresses)| known.get(set) == Some(addresses)), "{enforced:?}")
            }
        }
    }
}

/// Applies a change as the agent's state does.
fn enforce(sets: &mut Sets, change: RemoteChange) {
    match change {
        RemoteChange::Update { set, adds, removes } => {
            let known = sets.entry(set.clone()).or_default();
            for address in removes {
                known.remove(&address.to_canonical());
            }
            known.extend(adds.iter().map(IpAddr::to_canonical));
            if known.is_empty() {
                sets.remove(&set);
            }
        }
        RemoteChange::Replace(all) => *sets = all.into_iter().map(|(set, list)| (set, canonical(&list))).collect(),
        RemoteChange::RemoveCluster(cluster) => sets.retain(|set, _| set.cluster != cluster),
    }
}

fn known(kept: &RemoteBaseline) -> Sets {
    kept.sets.iter().map(|row| (row.set.clone(), canonical(&row.addresses))).collect()
}

fn canonical(addresses: &[IpAddr]) -> BTreeSet<IpAddr> {
    addresses.iter().map(IpAddr::to_canonical).collect()
}
