//! Time of a packet with conntrack accounting and events, enabled and disabled.
//!
//! Accounting and events belong to a conntrack entry from its first packet on. So each configuration has its own
//! namespace with our rules in force; these alternate as rulesets do elsewhere.

use std::fmt;

use nfnetlink::Subscription;

use super::super::Size;
use super::super::ours::Cluster;
use super::super::place::Place;
use super::super::series::Packet;
use super::super::traffic::{Ends, Traffic};
use super::listener::{Listener, Reads, Setup};
use super::set_conntrack;
use crate::figures::Figure;
use kit::kernel_table::{load_netlink, load_text};

/// A configuration of connection tracking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TrackingConfig {
    /// Counters and timestamps.
    pub(super) accounting: bool,
    pub(super) events: Events,
}

/// Which conntrack events are delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Events {
    /// No events, and entries are not prepared for them.
    Off,
    /// A listener for NEW and DESTROY events.
    All(Reads),
    /// A listener for DESTROY events only: the kernel builds no message for NEW.
    Removed(Reads),
    /// A listener for the events that a rule selects for the entry (`ct event set`).
    Chosen(&'static str, Reads),
}

impl TrackingConfig {
    const fn of(accounting: bool, events: Events) -> TrackingConfig {
        TrackingConfig { accounting, events }
    }

    pub(super) const OFF: TrackingConfig = TrackingConfig::of(false, Events::Off);

    /// The configuration of flow records.
    pub(super) const RECORDS: TrackingConfig = TrackingConfig::of(true, Events::Removed(Reads::Periodically));

    /// Each group begins with its reference configuration. A listener for NEW events in any namespace makes the kernel
    /// build messages of them in all namespaces (`netlink_has_listeners`), so the configurations without one form a
    /// separate group, which is measured while there is none.
    const GROUPS: [&[TrackingConfig]; 2] = [
        &[TrackingConfig::OFF, TrackingConfig::of(true, Events::Off), TrackingConfig::RECORDS],
        &[
            TrackingConfig::OFF,
            TrackingConfig::of(true, Events::Removed(Reads::Periodically)),
            TrackingConfig::of(false, Events::All(Reads::WhenWoken)),
            TrackingConfig::of(true, Events::All(Reads::WhenWoken)),
            TrackingConfig::of(true, Events::All(Reads::Periodically)),
            TrackingConfig::of(true, Events::Chosen("new,destroy", Reads::WhenWoken)),
            TrackingConfig::of(true, Events::Chosen("new,destroy", Reads::Periodically)),
            TrackingConfig::of(true, Events::Chosen("destroy", Reads::WhenWoken)),
        ],
    ];

    /// How its listener reads; `None` without a listener.
    fn reads(self) -> Option<Reads> {
        match self.events {
            Events::Off => None,
            Events::All(reads) | Events::Removed(reads) | Events::Chosen(_, reads) => Some(reads),
        }
    }

    fn subscription(self) -> Subscription {
        match self.events {
            Events::Removed(_) => Subscription::Removed,
            Events::Off | Events::All(_) | Events::Chosen(..) => Subscription::All,
        }
    }
}

impl fmt::Display for TrackingConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accounting = if self.accounting { "accounting and timestamps" } else { "no accounting" };
        match self.events {
            Events::Off => write!(f, "{accounting}, no events"),
            Events::All(reads) => write!(f, "{accounting}, a listener that reads {reads}"),
            Events::Removed(reads) => write!(f, "{accounting}, a listener to removed entries that reads {reads}"),
            Events::Chosen(which, reads) => {
                write!(f, "{accounting}, `ct event set {which}`, a listener that reads {reads}")
            }
        }
    }
}

/// Cost of a configuration of connection tracking: the median of each run, in nanoseconds.
pub(super) struct Cost {
    pub(super) tracking: TrackingConfig,
    pub(super) established: Vec<f64>,
    pub(super) first: Vec<f64>,
}

/// The namespace of one configuration.
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) ends: Ends,
    listener: Option<Listener>,
}

impl Node {
    pub(super) fn new(tracking: TrackingConfig, cluster: &Cluster) -> Node {
        let place = Place::new();
        let ends = Ends::of(&place);
        for name in ["acct", "timestamp"] {
            set_conntrack(&place, name, tracking.accounting.into());
        }
        // Other programs on this machine may listen, which would make 2, the default, act as 1
        // (`nf_ct_ecache_ext_add`).
        set_conntrack(&place, "events", if tracking.events == Events::Off { 0 } else { 2 });
        place.on_node(|| {
            load_netlink(&cluster.ruleset("ringfence"));
            if let Some(edge) = cluster.edge("ringfence") {
                load_netlink(&edge);
            }
            if let Events::Chosen(which, _) = tracking.events {
                load_text(&format!(
                    "table inet events {{ chain forward {{ type filter hook forward priority -1; \
                       ct state new ct event set {which}; }}; }}"
                ));
            }
        });
        let subscription = tracking.subscription();
        let start = |reads| Listener::start(&place, Setup { subscription, mebibytes: 8, reliable: false, reads });
        let listener = tracking.reads().map(start);
        Node { place, ends, listener }
    }

    /// Nanoseconds per packet in one turn.
    pub(super) fn turn(&self, traffic: &Traffic, batches: u32) -> f64 {
        self.ends.establish();
        let nanoseconds = self.ends.nanoseconds(traffic, batches / 2, batches);
        self.flush_conntrack();
        nanoseconds
    }

    /// Flushes the conntrack entries, and lets the listener read the events outside of the measurement.
    pub(super) fn flush_conntrack(&self) {
        self.place.flush_conntrack();
        if let Some(listener) = &self.listener {
            listener.await_silence();
        }
    }
}

/// Measures each configuration, in groups that begin with [`TrackingConfig::OFF`]; those of a group alternate.
pub(super) fn measure(size: Size) -> Vec<Vec<Cost>> {
    TrackingConfig::GROUPS.into_iter().map(|group| measure_group(group, size)).collect()
}

fn measure_group(group: &[TrackingConfig], size: Size) -> Vec<Cost> {
    let nodes: Vec<Node> = group.iter().map(|tracking| Node::new(*tracking, &Cluster::SMALLEST)).collect();
    let [mut established, mut first] = [Packet::Established, Packet::First].map(|packet| {
        let traffic = match packet {
            Packet::Established => Traffic::Established,
            Packet::First => Traffic::FirstBetweenPods,
        };
        turns(nodes.len(), size, |number| nodes[number].turn(&traffic, size.batches)).into_iter()
    });
    for listener in nodes.into_iter().filter_map(|node| node.listener) {
        listener.end();
    }
    let mut next = |tracking: &TrackingConfig| {
        let (established, first) = established.next().zip(first.next()).expect("a figure of each");
        Cost { tracking: *tracking, established, first }
    };
    group.iter().map(&mut next).collect()
}

/// The medians of each run, for `count` alternating subjects.
pub(super) fn turns(count: usize, size: Size, mut turn: impl FnMut(usize) -> f64) -> Vec<Vec<f64>> {
    let mut runs: Vec<Vec<f64>> = vec![Vec::new(); count];
    for _ in 0..size.rounds {
        let mut slices: Vec<Vec<f64>> = vec![Vec::new(); count];
        for slice in 0..size.slices {
            for place in 0..count {
                let number = (place + slice) % count;
                slices[number].push(turn(number));
            }
        }
        for (runs, slices) in runs.iter_mut().zip(slices) {
            runs.push(Figure::of(slices).median());
        }
    }
    runs
}
