//! Attribution of connections: names of both ends, the Service that the client asked for, and the policies that decided.

mod ends;
#[cfg(test)]
mod tests;
mod traces;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use flow::{ConnectionId, CountedFlow, FlowKey, FlowVerdict, ServicePort, SideTrace, Subject, TraceVerdict, Tuple};
use jiff::Timestamp;
use policy::{Cause, Direction, Generation, Layout, explain_side};

use super::feed::DeniedPackets;
use super::replica::Replica;
use crate::reports::traffic_of;
pub(crate) use ends::NameInputs;
use ends::{EndRole, NamedEnd};
use traces::{denied_by, of_side};

/// Maximum number of cached subjects, for further connections between the same ends. One has about a kilobyte.
const MOST_CACHED: usize = 8192;

/// Maximum number of entries that are known to be of denied packets.
const MOST_DENIED: usize = 65_536;

/// The Service of the API servers.
const API_SERVICE: (&str, &str) = ("default", "kubernetes");

/// Attributes connections to ends and rules, as of one state of the cluster.
pub(crate) struct Attribution {
    naming: NameInputs,
    /// Decodes generations from connection marks.
    layout: Layout,
    /// Subjects of connections; `None` if neither end is a pod of this node.
    cached: HashMap<CacheKey, Option<Attributed>>,
    /// Version of the replica from which the cached subjects were computed.
    version: (u64, u64),
    /// Entries of packets that policies denied when they began, with their creation times.
    denied: HashSet<(ConnectionId, Option<Timestamp>)>,
}

/// The parts of a connection that its subject depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CacheKey {
    source: IpAddr,
    asked: (IpAddr, Option<u16>),
    answering: (IpAddr, Option<u16>),
    protocol: u8,
    icmp_type: Option<u8>,
    judging: ApprovalState,
}

/// The subject of a connection.
#[derive(Debug, Clone)]
struct Attributed {
    subject: Arc<Subject>,
    /// The policies of the replica deny the connection.
    is_denied: bool,
}

/// Which policies decided about a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ApprovalState {
    /// `None` if no policy has approved it.
    generation: Option<u32>,
    /// Whether the replica had the state under which the connection began.
    is_known: bool,
}

impl Attribution {
    pub(crate) fn new(naming: NameInputs, layout: Layout) -> Attribution {
        Attribution { naming, layout, cached: HashMap::new(), version: (0, 0), denied: HashSet::new() }
    }

    /// The generation that approved a connection with this mark.
    pub(crate) fn generation(&self, mark: u32) -> Option<u32> {
        self.layout.generation_at(mark).map(Generation::number)
    }

    /// Reads the inputs of names other than the cluster state.
    pub(crate) fn refresh(&mut self) {
        if self.naming.read_own_addresses() {
            self.cached.clear();
        }
    }

    /// The subject of a connection that passed; `None` if neither end is a pod of this node, or if the connection did
    /// not pass.
    ///
    /// The kernel confirms an entry of a frame that a bridge floods when the first copy passes, which may be the copy for
    /// the node itself (`br_nf_local_in`, Linux 6.8), although every copy for a pod was dropped. Such an entry has no
    /// approval, and the policies deny it. An entry that passed before the policies denied it has no approval
    /// either. If it is first listed under later policies, it is recorded if a reply was seen, which may have been denied,
    /// too. One from before the agent's start does not pass any more.
    ///
    /// Advances the replica to the state that judged the connection, which began at that time. Policies from before the
    /// agent's start are unknown, unless the generation that approved the connection is still in force.
    pub(crate) fn of_connection(
        &mut self,
        replica: &mut Replica,
        connection: &CountedFlow,
        began: Timestamp,
    ) -> Option<Arc<Subject>> {
        let marked = self.generation(connection.mark);
        replica.advance_to(began);
        // Later rules may have judged the connection again: the rules that approved it are those at its beginning.
        let is_judged_again = marked.is_some_and(|generation| replica.awaits_generation(generation));
        let is_recent = replica.has_state_of(began);
        let judging = |replica: &Replica| {
            let generation = if is_judged_again { replica.generation() } else { marked };
            let is_known = generation.map_or(is_recent, |generation| replica.generation() == Some(generation));
            ApprovalState { generation, is_known }
        };
        let attributed = self.subject(replica, connection, judging(replica))?;
        let mut may_have_passed = is_recent && !replica.is_at(began) && connection.has_reply;
        // A connection that passed was not denied: it began during a commit, and the rules after it judged the flow.
        let attributed = if is_unexplained(&attributed.subject) && replica.advance_within_commit(began) {
            may_have_passed = false;
            self.subject(replica, connection, judging(replica))?
        } else {
            attributed
        };
        if marked.is_some() || !attributed.is_denied {
            return Some(attributed.subject);
        }
        let entry = (connection.id, connection.started);
        if !may_have_passed {
            // Entries stay if their end events are lost.
            if self.denied.len() >= MOST_DENIED {
                self.denied.clear();
            }
            self.denied.insert(entry);
        }
        (may_have_passed && !self.denied.contains(&entry)).then_some(attributed.subject)
    }

    /// The kernel has deleted the entry of the connection.
    pub(crate) fn forget(&mut self, connection: &CountedFlow) {
        self.denied.remove(&(connection.id, connection.started));
    }

    fn subject(&mut self, replica: &Replica, connection: &CountedFlow, judging: ApprovalState) -> Option<Attributed> {
        if self.version != replica.version() || self.cached.len() >= MOST_CACHED {
            self.cached.clear();
            self.version = replica.version();
        }
        let (asked, reply) = (&connection.id.original, &connection.reply);
        let key = CacheKey {
            source: asked.source,
            asked: (asked.destination, asked.destination_port),
            answering: (reply.source, reply.source_port),
            protocol: asked.protocol,
            icmp_type: asked.icmp_type,
            judging,
        };
        if let Some(attributed) = self.cached.get(&key) {
            return attributed.clone();
        }
        let attributed = self.passed(replica, asked, reply, judging);
        self.cached.insert(key, attributed.clone());
        attributed
    }

    fn passed(
        &mut self,
        replica: &Replica,
        asked: &Tuple,
        reply: &Tuple,
        judging: ApprovalState,
    ) -> Option<Attributed> {
        self.naming.update(replica);
        let (from, to) = (asked.source, reply.source);
        let port = reply.source_port;
        let service = self.service(replica, asked.destination, asked.destination_port, asked.protocol);
        let of_api_service = service.as_ref().is_some_and(is_api_service);
        let source = self.naming.end(replica, from, EndRole::Source);
        let destination = self.naming.end(replica, to, EndRole::Destination { of_api_service });
        if !source.is_local && !destination.is_local {
            return None;
        }
        let traffic = traffic_of(asked.protocol, port);
        let side = |named: &NamedEnd, direction| {
            of_side(explain_side(replica.state(), from, to, traffic, direction), named.is_local)
        };
        let (mut egress, mut ingress) = (side(&source, Direction::Egress), side(&destination, Direction::Ingress));
        let mut is_denied = false;
        for (trace, peer) in [(&mut egress, &destination), (&mut ingress, &source)] {
            // Some addresses of the node are in no object, such as a bridge's; no rule judges traffic between the node
            // and its pods.
            if trace.enforced_here && self.naming.is_own_node(peer) {
                *trace = traces::own_node();
            }
            // Policies that cannot be read deny.
            is_denied |=
                trace.enforced_here && matches!(trace.verdict, TraceVerdict::Denied | TraceVerdict::Unreadable);
            // The approving rules are no longer known, or the known rules deny the connection.
            if trace.enforced_here && (!judging.is_known || trace.verdict == TraceVerdict::Denied) && is_judged(trace) {
                *trace = traces::unknown(trace.enforced_here);
            }
        }
        let would_deny = [&egress, &ingress].iter().any(|t| t.enforced_here && t.verdict == TraceVerdict::WouldDeny);
        let key = FlowKey {
            source: source.endpoint,
            destination: destination.endpoint,
            protocol: asked.protocol,
            port,
            icmp_type: asked.icmp_type,
            service,
            verdict: if would_deny { FlowVerdict::WouldDeny } else { FlowVerdict::Allowed },
            drop_cause: None,
            egress,
            ingress,
        };
        let (source, destination) = (source.member, destination.member);
        let subject = Subject { key: Arc::new(key), source, destination, generation: judging.generation };
        Some(Attributed { subject: Arc::new(subject), is_denied })
    }

    /// The subject of denied packets; `None` if neither end is a pod of this node.
    pub(crate) fn of_denied(&mut self, replica: &Replica, packets: &DeniedPackets) -> Option<Subject> {
        self.naming.update(replica);
        let flow = packets.flow;
        let source = self.naming.end(replica, flow.source, EndRole::Source);
        let service =
            packets.first.asked.and_then(|(address, port)| self.service(replica, address, port, flow.protocol));
        let of_api_service = service.as_ref().is_some_and(is_api_service);
        let destination = self.naming.end(replica, flow.destination, EndRole::Destination { of_api_service });
        // If the addresses may be forged, the drop event names the pod of the interface.
        let source = self.naming.corrected(replica, source, &packets.source);
        let destination = self.naming.corrected(replica, destination, &packets.destination);
        if !source.is_local && !destination.is_local {
            return None;
        }
        let traffic = traffic_of(flow.protocol, flow.port);
        let side = |named: &NamedEnd, direction| match packets.direction {
            Some(denying) if denying == direction => denied_by(&packets.by, named.is_local),
            // Rules of the source are evaluated first: packets that the destination's rules deny have passed them.
            // Packets that they deny do not reach the destination's rules, and packets that no policy denied reach
            // neither.
            Some(_) | None => {
                let explained = explain_side(replica.state(), flow.source, flow.destination, traffic, direction);
                let was_judged = packets.direction == Some(Direction::Ingress) && direction == Direction::Egress;
                of_side(explained, was_judged && named.is_local)
            }
        };
        let (egress, ingress) = (side(&source, Direction::Egress), side(&destination, Direction::Ingress));
        let drop_cause = match packets.cause {
            Cause::Egress | Cause::Ingress => None,
            cause => Some(Arc::from(cause.as_str())),
        };
        let key = FlowKey {
            source: source.endpoint,
            destination: destination.endpoint,
            protocol: flow.protocol,
            port: flow.port,
            icmp_type: packets.first.icmp,
            service,
            verdict: FlowVerdict::Denied,
            drop_cause,
            egress,
            ingress,
        };
        let (source, destination) = (source.member, destination.member);
        let generation = packets.direction.and(replica.generation());
        Some(Subject { key: Arc::new(key), source, destination, generation })
    }

    /// The Service port that a client asked for.
    fn service(&self, replica: &Replica, address: IpAddr, port: Option<u16>, protocol: u8) -> Option<ServicePort> {
        let is_node = self.naming.is_node(replica, address);
        replica.services().service_port(address, is_node, protocol, port?)
    }
}

fn is_api_service(service: &ServicePort) -> bool {
    (&*service.namespace, &*service.name) == API_SERVICE
}

/// Whether no known policy explains why the connection was allowed.
fn is_unexplained(subject: &Subject) -> bool {
    [&subject.key.egress, &subject.key.ingress]
        .iter()
        .any(|trace| trace.enforced_here && trace.verdict == TraceVerdict::Unknown)
}

/// Whether policies judge the side at all.
fn is_judged(trace: &SideTrace) -> bool {
    match trace.verdict {
        TraceVerdict::Allowed
        | TraceVerdict::Denied
        | TraceVerdict::WouldAllow
        | TraceVerdict::WouldDeny
        | TraceVerdict::Unreadable
        | TraceVerdict::Unknown => true,
        TraceVerdict::NotAPod | TraceVerdict::NotIsolated | TraceVerdict::Itself | TraceVerdict::OwnNode => false,
    }
}
