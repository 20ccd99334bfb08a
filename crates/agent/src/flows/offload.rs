//! Volumes of connections that another program's flowtable forwards. They bypass conntrack, which counts their packets
//! only if the flowtable has the flag `counter`.

use flow::Volume;
use nfnetlink::{Flowtable, Kernel, TrackedFlow};

/// `IPS_OFFLOAD` and `IPS_HW_OFFLOAD` of `uapi/linux/netfilter/nf_conntrack_common.h`.
const OFFLOADED: u32 = 1 << 14 | 1 << 15;

pub(super) struct OffloadedVolume {
    read: fn() -> Result<Vec<Flowtable>, String>,
    /// Why volumes of offloaded connections are unknown, if they are; the outer option is `None` before one was found.
    reason: Option<Option<String>>,
}

impl Default for OffloadedVolume {
    fn default() -> OffloadedVolume {
        OffloadedVolume { read: flowtables, reason: None }
    }
}

impl OffloadedVolume {
    /// Rereads flowtables when the next offloaded connection is found.
    pub(super) fn renew(&mut self) {
        self.reason = None;
    }

    /// Why volumes are unknown.
    pub(super) fn problem(&self) -> Option<&str> {
        self.reason.as_ref()?.as_deref()
    }

    /// The counters of a connection; `None` if they lack packets.
    pub(super) fn volume(&mut self, flow: &TrackedFlow) -> Option<[Volume; 2]> {
        if flow.status & OFFLOADED != 0 {
            let read = self.read;
            let reason = self.reason.get_or_insert_with(|| reason(read()));
            if reason.is_some() {
                return None;
            }
        }
        flow.counters.map(|counters| counters.map(|c| Volume { packets: c.packets, bytes: c.bytes }))
    }
}

fn flowtables() -> Result<Vec<Flowtable>, String> {
    Kernel::open().map_err(|e| e.to_string())?.flowtables().map_err(|e| e.to_string())
}

fn reason(found: Result<Vec<Flowtable>, String>) -> Option<String> {
    match found {
        Ok(found) => {
            let Flowtable { family, table, name, .. } = found.into_iter().find(|flowtable| !flowtable.counts)?;
            Some(format!(
                "the flowtable {family} {table} {name} forwards packets that conntrack does not count: volumes of its \
                 connections are unknown (give it the flag counter)"
            ))
        }
        Err(error) => Some(format!("volumes of offloaded connections are unknown: cannot list flowtables: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use nfnetlink::{Counter, TrackedTuple};

    use super::*;

    fn flow(status: u32) -> TrackedFlow {
        let address = "10.1.0.1".parse().unwrap();
        let tuple = TrackedTuple {
            source: address,
            destination: address,
            protocol: 6,
            source_port: Some(1024),
            destination_port: Some(80),
            icmp_type: None,
        };
        TrackedFlow {
            id: 1,
            zone: 0,
            original: tuple,
            reply: tuple,
            mark: 0,
            status,
            counters: Some([Counter { packets: 1, bytes: 60 }; 2]),
            started_ns: None,
            stopped_ns: None,
        }
    }

    fn flowtable(counts: bool) -> Result<Vec<Flowtable>, String> {
        Ok(vec![Flowtable { family: "inet", table: "fw".into(), name: "fast".into(), devices: vec![], counts }])
    }

    #[test]
    fn offloaded_volume_is_unknown_unless_the_flowtable_counts() {
        for (read, is_known) in [
            (flowtables_that_count as fn() -> Result<Vec<Flowtable>, String>, true),
            (|| flowtable(false), false),
            (|| Err("no permission".into()), false),
            // The traffic control action `ct` has separate flowtables, which count.
            (|| Ok(vec![]), true),
        ] {
            let mut volumes = OffloadedVolume { read, ..OffloadedVolume::default() };
            assert!(volumes.volume(&flow(0)).is_some() && volumes.problem().is_none());
            for status in [1 << 14, 1 << 15] {
                assert_eq!(volumes.volume(&flow(status)).is_some(), is_known);
                assert_eq!(volumes.problem().is_none(), is_known);
            }
            volumes.renew();
            assert_eq!(volumes.problem(), None);
        }
    }

    fn flowtables_that_count() -> Result<Vec<Flowtable>, String> {
        flowtable(true)
    }
}
