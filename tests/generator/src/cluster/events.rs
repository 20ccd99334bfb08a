//! Events of a cluster: one at a time, random but the same at every run.
//!
//! The number of objects of each kind stays constant, up to one, so that growth after a million events is
//! not that of the cluster.

use std::collections::BTreeSet;
use std::fmt;
use std::net::Ipv4Addr;

use cluster::Watchable;
use policy::{Change, Interner, Kind};

use super::generation::{COMPONENTS, SPECIAL, TEAMS, add_pod, add_policy};
use super::json::{self, Form};
use super::policies::Sort;
use super::{Cluster, Phase, Pod, Size, lowered};

/// The kinds of event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum EventKind {
    PodAdded,
    PodRemoved,
    PodRelabelled,
    /// The pod ends, or an ended one restarts.
    PodMoved,
    LocalPodAdded,
    LocalPodRemoved,
    LocalPodRelabelled,
    PolicyAdded,
    PolicyChanged,
    PolicyDeleted,
    NamespaceRelabelled,
}

impl EventKind {
    pub const ALL: [EventKind; 11] = [
        EventKind::PodAdded,
        EventKind::PodRemoved,
        EventKind::PodRelabelled,
        EventKind::PodMoved,
        EventKind::LocalPodAdded,
        EventKind::LocalPodRemoved,
        EventKind::LocalPodRelabelled,
        EventKind::PolicyAdded,
        EventKind::PolicyChanged,
        EventKind::PolicyDeleted,
        EventKind::NamespaceRelabelled,
    ];

    pub fn is_of_pod(self) -> bool {
        match self {
            EventKind::PodAdded
            | EventKind::PodRemoved
            | EventKind::PodRelabelled
            | EventKind::PodMoved
            | EventKind::LocalPodAdded
            | EventKind::LocalPodRemoved
            | EventKind::LocalPodRelabelled => true,
            EventKind::PolicyAdded
            | EventKind::PolicyChanged
            | EventKind::PolicyDeleted
            | EventKind::NamespaceRelabelled => false,
        }
    }

    pub fn words(self) -> &'static str {
        match self {
            EventKind::PodAdded => "remote pod added",
            EventKind::PodRemoved => "remote pod removed",
            EventKind::PodRelabelled => "remote pod relabelled",
            EventKind::PodMoved => "remote pod ended or began again",
            EventKind::LocalPodAdded => "local pod added",
            EventKind::LocalPodRemoved => "local pod removed",
            EventKind::LocalPodRelabelled => "local pod relabelled",
            EventKind::PolicyAdded => "policy added",
            EventKind::PolicyChanged => "policy changed",
            EventKind::PolicyDeleted => "policy deleted",
            EventKind::NamespaceRelabelled => "namespace relabelled",
        }
    }
}

/// The place of an affected policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Anywhere,
    /// Only namespaces with pods on the agent's node: others do not affect it.
    Here,
}

/// The type of a watch event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchEventType {
    Added,
    Modified,
    Deleted,
}

/// An event of the cluster.
#[derive(Debug, Clone)]
pub struct Event {
    pub kind: Kind,
    /// The version of the object, which becomes that of the cluster.
    pub version: u64,
    line: WatchEventType,
    object: Vec<u8>,
}

impl Event {
    /// The line of a watch, with its newline.
    pub fn line(&self) -> Vec<u8> {
        let word: &[u8] = match self.line {
            WatchEventType::Added => b"ADDED",
            WatchEventType::Modified => b"MODIFIED",
            WatchEventType::Deleted => b"DELETED",
        };
        [b"{\"type\":\"", word, b"\",\"object\":", &self.object, b"}\n"].concat()
    }

    /// The line as the agent decodes it.
    pub fn change(&self) -> Change {
        self.change_of(&mut Interner::new())
    }

    /// The line as a program that watches such objects decodes it.
    pub fn change_of<O: Watchable>(&self, interner: &mut Interner) -> Change<O>
    where
        O::Kind: TryFrom<Kind, Error: fmt::Debug>,
    {
        let object: O = lowered(interner, self.kind, &self.object);
        match self.line {
            WatchEventType::Added | WatchEventType::Modified => Change::Set(object),
            WatchEventType::Deleted => Change::Remove(object.kind(), object.name().clone()),
        }
    }
}

/// A pod of another node whose address must reach the agent's kernel.
#[derive(Debug, Clone, Copy)]
pub struct AddedPeer {
    pod: u32,
    pub address: Ipv4Addr,
    /// The version of the event that added it.
    pub version: u64,
}

/// One pod in this many has ended, on average.
const ONE_ENDED_OF: usize = 100;

/// The frequency of each kind of event, out of 1,000. Most events of a watch are about pods.
const MIXTURE: [(usize, &[EventKind]); 7] = [
    (560, &[EventKind::PodAdded, EventKind::PodRemoved]),
    (200, &[EventKind::PodRelabelled]),
    (160, &[EventKind::PodMoved]),
    (40, &[EventKind::LocalPodAdded, EventKind::LocalPodRemoved]),
    (10, &[EventKind::LocalPodRelabelled]),
    (25, &[EventKind::PolicyAdded, EventKind::PolicyChanged, EventKind::PolicyDeleted]),
    (5, &[EventKind::NamespaceRelabelled]),
];

impl Cluster {
    /// The next event of the mixture.
    pub fn next_event(&mut self) -> Event {
        let happening = self.choose();
        self.happen(happening, Place::Anywhere)
    }

    fn choose(&mut self) -> EventKind {
        let mut drawn = self.random.below(MIXTURE.iter().map(|(weight, _)| weight).sum());
        let of = MIXTURE.iter().find(|(weight, _)| {
            let is_it = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            is_it
        });
        let happenings = of.expect("a number below the sum").1;
        let drawn = *self.random.one_of(happenings);
        let (remote, local) = (self.pods.len() - self.local_pods, self.local_pods);
        let wanted_remote = self.size.pods - self.size.local_pods;
        let choose = |count: usize, wanted: usize, more: EventKind, fewer: EventKind| match count.cmp(&wanted) {
            std::cmp::Ordering::Less => more,
            std::cmp::Ordering::Equal => drawn,
            std::cmp::Ordering::Greater => fewer,
        };
        match drawn {
            EventKind::PodAdded | EventKind::PodRemoved => {
                choose(remote, wanted_remote, EventKind::PodAdded, EventKind::PodRemoved)
            }
            EventKind::LocalPodAdded | EventKind::LocalPodRemoved => {
                choose(local, self.size.local_pods, EventKind::LocalPodAdded, EventKind::LocalPodRemoved)
            }
            EventKind::PolicyAdded | EventKind::PolicyDeleted => {
                choose(self.policies.len(), self.size.policies, EventKind::PolicyAdded, EventKind::PolicyDeleted)
            }
            EventKind::PodRelabelled
            | EventKind::PodMoved
            | EventKind::LocalPodRelabelled
            | EventKind::PolicyChanged
            | EventKind::NamespaceRelabelled => drawn,
        }
    }

    /// Events that restore the initial number of objects.
    pub fn restore_size(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.restore_one()).collect()
    }

    fn restore_one(&mut self) -> Option<Event> {
        let Size { pods, policies, local_pods, .. } = self.size;
        let remote = self.pods.len() - self.local_pods;
        let happening = if self.local_pods > local_pods {
            EventKind::LocalPodRemoved
        } else if self.local_pods < local_pods {
            EventKind::LocalPodAdded
        } else if remote > pods - local_pods {
            EventKind::PodRemoved
        } else if remote < pods - local_pods {
            EventKind::PodAdded
        } else if self.policies.len() > policies {
            EventKind::PolicyDeleted
        } else if self.policies.len() < policies {
            EventKind::PolicyAdded
        } else {
            return None;
        };
        Some(self.happen(happening, Place::Anywhere))
    }

    /// Applies an event of this kind to a random object. The place is that of policies.
    ///
    /// # Panics
    /// If no object is eligible.
    pub fn happen(&mut self, happening: EventKind, place: Place) -> Event {
        match happening {
            EventKind::PodAdded => {
                let workload = self.random.below(self.workloads.len());
                self.remote_pod_added(workload)
            }
            EventKind::PodRemoved => {
                let index = self.some_pod(|pod| !pod.is_local());
                self.pod_removed(index)
            }
            EventKind::PodRelabelled => {
                let index = self.some_pod(|pod| !pod.is_local());
                self.pod_relabelled(index)
            }
            EventKind::PodMoved => {
                let ended = self.finished > self.pods.len() / ONE_ENDED_OF;
                let index = self.some_pod(|pod| !pod.is_local() && (pod.phase == Phase::Succeeded) == ended);
                self.pod_moved(index)
            }
            EventKind::LocalPodAdded => {
                let workload = self.random.below(self.workloads.len());
                let index = add_pod(self, workload, 0).expect("a node has room for twice its pods");
                self.event(Kind::Pod, index, WatchEventType::Added)
            }
            EventKind::LocalPodRemoved => {
                let index = self.some_pod(|pod| pod.is_local());
                self.pod_removed(index)
            }
            EventKind::LocalPodRelabelled => {
                let index = self.some_pod(|pod| pod.is_local());
                self.pod_relabelled(index)
            }
            EventKind::PolicyAdded => {
                let namespace = self.some_namespace(place);
                let sort = *self.random.one_of(&Sort::OTHERS);
                let index = add_policy(self, namespace, sort);
                self.event(Kind::NetworkPolicy, index, WatchEventType::Added)
            }
            EventKind::PolicyChanged => {
                let index = self.some_policy(place);
                let (seed, version) = (self.random.next(), self.next_version());
                let policy = &mut self.policies[index];
                (policy.seed, policy.version) = (seed, version);
                self.event(Kind::NetworkPolicy, index, WatchEventType::Modified)
            }
            EventKind::PolicyDeleted => {
                let index = self.some_policy(place);
                self.policies[index].version = self.next_version();
                let event = self.event(Kind::NetworkPolicy, index, WatchEventType::Deleted);
                self.policies.swap_remove(index);
                event
            }
            EventKind::NamespaceRelabelled => {
                let index = SPECIAL.len() + self.random.below(self.namespaces.len() - SPECIAL.len());
                let (team, version) = (self.random.below(TEAMS), self.next_version());
                let namespace = &mut self.namespaces[index];
                (namespace.team, namespace.version) = (team, version);
                self.event(Kind::Namespace, index, WatchEventType::Modified)
            }
        }
    }

    /// Shuffles items at random, but the same at every run.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        self.random.shuffle(items);
    }

    /// Adds a pod of another node to a namespace whose pods on the agent's node admit all pods of the namespace: its
    /// address must reach that node's kernel.
    ///
    /// # Panics
    /// If there is no such namespace.
    pub fn peer_added(&mut self) -> (Event, AddedPeer) {
        let here = self.namespaces_here();
        let lets_all_in = |index: &usize| {
            self.policies.iter().any(|policy| policy.namespace == *index && policy.sort == Sort::FromNamespace)
        };
        let namespaces: Vec<usize> = here.into_iter().filter(lets_all_in).collect();
        let namespace = *self.random.one_of(&namespaces);
        let workloads = self.namespaces[namespace].workloads.clone();
        let workload = workloads.start + self.random.below(workloads.len());
        let event = self.remote_pod_added(workload);
        let pod = self.pods.last().expect("it was added");
        let peer = AddedPeer { pod: pod.id, address: pod.v4(), version: pod.version };
        (event, peer)
    }

    /// Removes a pod added by [`Cluster::peer_added`].
    ///
    /// # Panics
    /// If it was already removed.
    pub fn peer_removed(&mut self, peer: AddedPeer) -> Event {
        let index = self.pods.iter().position(|pod| pod.id == peer.pod).expect("a pod that is there");
        self.pod_removed(index)
    }

    fn remote_pod_added(&mut self, workload: usize) -> Event {
        let others = self.nodes.len() - 1;
        let from = self.random.below(others);
        let mut nodes = (from..from + others).map(|node| (1 + node % others) as u32);
        let index = nodes.find_map(|node| add_pod(self, workload, node)).expect("nodes have room for twice their pods");
        self.event(Kind::Pod, index, WatchEventType::Added)
    }

    fn pod_removed(&mut self, index: usize) -> Event {
        self.pods[index].version = self.next_version();
        let event = self.event(Kind::Pod, index, WatchEventType::Deleted);
        let pod = self.pods.swap_remove(index);
        self.nodes[pod.node as usize].give_back(pod.host);
        self.local_pods -= usize::from(pod.is_local());
        self.finished -= usize::from(pod.phase == Phase::Succeeded);
        event
    }

    /// Sets another component label, which policies may select by, and another release.
    fn pod_relabelled(&mut self, index: usize) -> Event {
        let others = self.random.below(COMPONENTS.len() - 1) + 1;
        let (release, version) = (self.random.below(5) as u8, self.next_version());
        let pod = &mut self.pods[index];
        let now = COMPONENTS.iter().position(|component| *component == pod.component).expect("one of them");
        pod.component = COMPONENTS[(now + others) % COMPONENTS.len()];
        (pod.release, pod.version) = (release, version);
        self.event(Kind::Pod, index, WatchEventType::Modified)
    }

    fn pod_moved(&mut self, index: usize) -> Event {
        let version = self.next_version();
        let pod = &mut self.pods[index];
        pod.version = version;
        match pod.phase {
            Phase::Running => {
                pod.phase = Phase::Succeeded;
                self.finished += 1;
            }
            Phase::Succeeded => {
                pod.phase = Phase::Running;
                self.finished -= 1;
            }
        }
        self.event(Kind::Pod, index, WatchEventType::Modified)
    }

    fn event(&self, kind: Kind, index: usize, line: WatchEventType) -> Event {
        let mut object = Vec::new();
        json::write(self, kind, index, Form::Watched, &mut object);
        Event { kind, version: self.version, line, object }
    }

    /// # Panics
    /// If no pod matches.
    fn some_pod(&mut self, is_it: impl Fn(&Pod) -> bool) -> usize {
        let from = self.random.below(self.pods.len());
        let (before, after) = (0..from, from..self.pods.len());
        after.chain(before).find(|index| is_it(&self.pods[*index])).expect("a pod that it can happen to")
    }

    fn some_namespace(&mut self, place: Place) -> usize {
        match place {
            Place::Anywhere => self.random.below(self.namespaces.len()),
            Place::Here => {
                let here = self.namespaces_here();
                *self.random.one_of(&here)
            }
        }
    }

    fn some_policy(&mut self, place: Place) -> usize {
        match place {
            Place::Anywhere => self.random.below(self.policies.len()),
            Place::Here => {
                let here = self.namespaces_here();
                let of_here = |index: &usize| here.contains(&self.policies[*index].namespace);
                let policies: Vec<usize> = (0..self.policies.len()).filter(of_here).collect();
                *self.random.one_of(&policies)
            }
        }
    }

    /// Namespaces that have pods on the agent's node, in order.
    fn namespaces_here(&self) -> Vec<usize> {
        let local = self.pods.iter().filter(|pod| pod.is_local());
        let here: BTreeSet<usize> = local.map(|pod| self.workloads[pod.workload].namespace).collect();
        here.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use policy::ClusterState;

    use super::super::Size;
    use super::*;

    #[test]
    fn events_are_the_same_at_every_run() {
        let lines = || {
            let mut cluster = Cluster::of(Size::of_pods(300));
            (0..500).map(|_| String::from_utf8(cluster.next_event().line()).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(lines(), lines());
    }

    #[test]
    fn state_after_events_equals_that_of_lists() {
        let mut cluster = Cluster::of(Size::of_pods(300));
        let mut state = cluster.state();
        let mut versions = vec![cluster.version()];
        for _ in 0..2_000 {
            let event = cluster.next_event();
            versions.push(event.version);
            assert!(state.apply(event.change()).any() || event.line == WatchEventType::Modified);
        }
        for happening in EventKind::ALL {
            for place in [Place::Anywhere, Place::Here] {
                state.apply(cluster.happen(happening, place).change());
            }
        }
        for event in cluster.restore_size() {
            state.apply(event.change());
        }
        assert!(versions.is_sorted());
        let listed = cluster.state();
        let text = |state: &ClusterState| {
            let pods = state.pods().map(|pod| format!("{pod:?}\n"));
            let policies = state.policies().map(|policy| format!("{policy:?}\n"));
            let namespaces = state.namespaces().map(|namespace| format!("{namespace:?}\n"));
            pods.chain(policies).chain(namespaces).collect::<BTreeSet<String>>()
        };
        let different: Vec<String> = text(&state).symmetric_difference(&text(&listed)).cloned().collect();
        assert_eq!(different, Vec::<String>::new());
        assert!(state == listed);
        let size = cluster.size();
        assert_eq!(Kind::NEEDED.map(|kind| cluster.count(kind)), [size.namespaces, size.pods, size.policies]);
        assert_eq!(cluster.local_pods(), size.local_pods);
    }
}
