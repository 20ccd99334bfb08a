//! Sets of ports per protocol and of protocols without ports, or everything, which is all of them.

use std::sync::Arc;

use nft::Protocol;

use crate::Traffic;

/// Cheap to clone. Equal sets are equal values.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowPorts(PortStorage);

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum PortStorage {
    /// Sorted, disjoint and non-adjacent.
    Spans(Arc<[PortSpan]>),
    Everything,
    /// Protocols without ports, and these spans, which are not all ports of all protocols. Results from rules that
    /// deny ports.
    Portless(Arc<[PortSpan]>),
}

/// Ports of one protocol from the first to the last, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortSpan {
    /// A protocol with ports.
    pub protocol: Protocol,
    /// The smallest port.
    pub first: u16,
    /// The largest port; not below `first`.
    pub last: u16,
}

impl PortSpan {
    /// Every port of the protocol.
    pub fn all(protocol: Protocol) -> PortSpan {
        PortSpan { protocol, first: 0, last: u16::MAX }
    }

    /// Whether it is every port of the protocol: `*/TCP`.
    pub fn is_all(&self) -> bool {
        self.first == 0 && self.last == u16::MAX
    }

    fn holds(&self, other: &PortSpan) -> bool {
        self.protocol == other.protocol && self.first <= other.first && other.last <= self.last
    }
}

impl FlowPorts {
    /// Every port and every protocol, including those without ports.
    pub fn everything() -> FlowPorts {
        FlowPorts(PortStorage::Everything)
    }

    /// The empty set.
    pub fn none() -> FlowPorts {
        FlowPorts(PortStorage::Spans(Arc::default()))
    }

    /// The union of the spans, without protocols without ports.
    pub fn of(spans: impl IntoIterator<Item = PortSpan>) -> FlowPorts {
        let joined = joined(spans);
        // All empty sets share one allocation.
        if joined.is_empty() { FlowPorts::none() } else { FlowPorts(PortStorage::Spans(joined.into())) }
    }

    /// The spans, and protocols without ports.
    pub fn with_portless(spans: impl IntoIterator<Item = PortSpan>) -> FlowPorts {
        let joined = joined(spans);
        let is_whole = joined.len() == Protocol::ALL.len() && joined.iter().all(PortSpan::is_all);
        if is_whole { FlowPorts::everything() } else { FlowPorts(PortStorage::Portless(joined.into())) }
    }

    fn build(spans: impl IntoIterator<Item = PortSpan>, portless: bool) -> FlowPorts {
        if portless { FlowPorts::with_portless(spans) } else { FlowPorts::of(spans) }
    }

    /// Whether the set is empty.
    pub fn is_none(&self) -> bool {
        matches!(&self.0, PortStorage::Spans(spans) if spans.is_empty())
    }

    /// Whether the set is every port and every protocol.
    pub(crate) fn is_everything(&self) -> bool {
        match &self.0 {
            PortStorage::Everything => true,
            PortStorage::Spans(_) | PortStorage::Portless(_) => false,
        }
    }

    /// The sorted port spans; `None` if the set is everything.
    pub fn spans(&self) -> Option<&[PortSpan]> {
        match &self.0 {
            PortStorage::Everything => None,
            PortStorage::Spans(spans) | PortStorage::Portless(spans) => Some(spans),
        }
    }

    /// Whether protocols without ports are in the set.
    pub fn has_portless(&self) -> bool {
        match &self.0 {
            PortStorage::Everything | PortStorage::Portless(_) => true,
            PortStorage::Spans(_) => false,
        }
    }

    /// Whether the set contains the destination port, or protocols without ports.
    pub fn holds(&self, traffic: Traffic) -> bool {
        match (&self.0, traffic) {
            (PortStorage::Everything, _) | (PortStorage::Portless(_), Traffic::Portless) => true,
            (PortStorage::Spans(_), Traffic::Portless) => false,
            (PortStorage::Spans(spans) | PortStorage::Portless(spans), Traffic::Port(protocol, port)) => {
                let one = PortSpan { protocol, first: port, last: port };
                spans.iter().any(|span| span.holds(&one))
            }
        }
    }

    /// The union of both sets.
    pub fn union(&self, other: &FlowPorts) -> FlowPorts {
        let (Some(own), Some(others)) = (self.spans(), other.spans()) else { return FlowPorts::everything() };
        if self == other || other.is_none() {
            return self.clone();
        }
        if self.is_none() {
            return other.clone();
        }
        FlowPorts::build(own.iter().chain(others).copied(), self.has_portless() || other.has_portless())
    }

    /// The intersection of both sets.
    pub fn intersection(&self, other: &FlowPorts) -> FlowPorts {
        let Some(own) = self.spans() else { return other.clone() };
        let Some(others) = other.spans() else { return self.clone() };
        if self == other {
            return self.clone();
        }
        let cut = |a: &PortSpan, b: &PortSpan| PortSpan {
            protocol: a.protocol,
            first: a.first.max(b.first),
            last: a.last.min(b.last),
        };
        let met = |a: &PortSpan| {
            let a = *a;
            others.iter().filter(move |b| b.protocol == a.protocol).map(move |b| cut(&a, b))
        };
        FlowPorts::build(own.iter().flat_map(met), self.has_portless() && other.has_portless())
    }

    /// The exact difference of the sets.
    pub fn difference(&self, other: &FlowPorts) -> FlowPorts {
        let Some(others) = other.spans() else { return FlowPorts::none() };
        if other.is_none() {
            return self.clone();
        }
        let whole = Protocol::ALL.map(PortSpan::all);
        let own = self.spans().unwrap_or(&whole);
        let left = own.iter().flat_map(|span| without(*span, others));
        FlowPorts::build(left, self.has_portless() && !other.has_portless())
    }

    /// Whether the set includes the other.
    pub fn covers(&self, other: &FlowPorts) -> bool {
        match (self.spans(), other.spans()) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(own), Some(others)) => {
                (self.has_portless() || !other.has_portless())
                    && others.iter().all(|other| own.iter().any(|span| span.holds(other)))
            }
        }
    }

    /// A set whose union with the other is a superset of this one: empty if the other covers it, and the difference
    /// otherwise, except that everything without some ports is not split into the many spans left, but remains
    /// everything.
    pub fn beyond(&self, other: &FlowPorts) -> FlowPorts {
        match self.is_everything() && !other.has_portless() {
            true => FlowPorts::everything(),
            false => self.difference(other),
        }
    }
}

/// Sorted, disjoint and non-adjacent spans.
fn joined(spans: impl IntoIterator<Item = PortSpan>) -> Vec<PortSpan> {
    let mut spans: Vec<PortSpan> = spans.into_iter().filter(|span| span.first <= span.last).collect();
    spans.sort_unstable();
    let mut joined: Vec<PortSpan> = Vec::with_capacity(spans.len());
    for span in spans {
        match joined.last_mut() {
            Some(before) if before.protocol == span.protocol && u32::from(span.first) <= u32::from(before.last) + 1 => {
                before.last = before.last.max(span.last);
            }
            _ => joined.push(span),
        }
    }
    joined
}

/// The parts of a span outside of the others, which are sorted and disjoint.
fn without(span: PortSpan, others: &[PortSpan]) -> Vec<PortSpan> {
    let mut left = Vec::new();
    let mut next = u32::from(span.first);
    for other in others.iter().filter(|other| other.protocol == span.protocol) {
        if u32::from(other.last) < next || other.first > span.last {
            continue;
        }
        if u32::from(other.first) > next {
            // `next` is below the other's first port, so it fits into `u16`.
            left.push(PortSpan { first: next as u16, last: other.first - 1, ..span });
        }
        next = u32::from(other.last) + 1;
    }
    if next <= u32::from(span.last) {
        // `next` is at most the span's last port.
        left.push(PortSpan { first: next as u16, ..span });
    }
    left
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// Ports at which generated spans may begin or end, and their neighbours.
    const PORTS: [u16; 10] = [0, 1, 2, 3, 4, 5, 6, 65533, 65534, 65535];

    fn ports() -> impl Strategy<Value = FlowPorts> {
        let protocol = prop::sample::select(Protocol::ALL.to_vec());
        let port = || prop::sample::select(PORTS.to_vec());
        let span = (protocol, port(), port()).prop_map(|(protocol, first, last)| PortSpan { protocol, first, last });
        let spans = || prop::collection::vec(span.clone(), 0..5);
        prop_oneof![
            1 => Just(FlowPorts::everything()),
            6 => spans().prop_map(FlowPorts::of),
            3 => spans().prop_map(FlowPorts::with_portless),
            1 => spans().prop_map(|spans| FlowPorts::everything().difference(&FlowPorts::of(spans))),
        ]
    }

    /// The members of the set among [`PORTS`], two ports between them, and protocols without ports.
    fn held(ports: &FlowPorts) -> BTreeSet<Traffic> {
        let of = |protocol| PORTS.into_iter().chain([7, 65532]).map(move |port| Traffic::Port(protocol, port));
        let all = Protocol::ALL.into_iter().flat_map(of).chain([Traffic::Portless]);
        all.filter(|traffic| ports.holds(*traffic)).collect()
    }

    proptest! {
        #[test]
        fn port_set_operations_match_element_wise_ones(a in ports(), b in ports()) {
            let (one, other) = (held(&a), held(&b));
            prop_assert_eq!(held(&a.union(&b)), &one | &other);
            prop_assert_eq!(held(&a.intersection(&b)), &one & &other);
            prop_assert_eq!(a.covers(&b), one.is_superset(&other));
            prop_assert_eq!(a == b, one == other);
            prop_assert_eq!(a.is_none(), one.is_empty());
            prop_assert_eq!(held(&a.difference(&b)), &one - &other);
            let beyond = held(&a.beyond(&b));
            prop_assert_eq!(&beyond | &(&one & &other), one.clone());
            if !a.is_everything() || b.has_portless() {
                prop_assert_eq!(beyond, &one - &other);
            }
        }
    }

    #[test]
    fn all_ports_of_all_protocols_are_not_everything() {
        let all = FlowPorts::of(Protocol::ALL.map(PortSpan::all));
        assert!(!all.holds(Traffic::Portless) && !all.covers(&FlowPorts::everything()));
        assert!(FlowPorts::everything().covers(&all));
        assert_eq!(all.union(&FlowPorts::with_portless([])), FlowPorts::everything());
    }
}
