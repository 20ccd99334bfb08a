//! Flow records: which connections the pods of a node had, between whom, how much went each way, and which rule decided
//! about them.
//!
//! Everything here is a function of values that others bring: connection tracking events, names of ends, times. The
//! agent reads the kernel, names the ends and serves the records.
//!
//! A [`Connection`] is one entry of connection tracking. A [`Subject`] says what it is about: its [`FlowKey`] and the
//! [`Member`] at each end. Connections of one key within one window are one [`FlowRecord`].

mod connection;
mod endpoint;
mod record;
mod trace;

pub use connection::{Connection, ConnectionId, Tuple, Volume};
pub use endpoint::{Endpoint, EndpointKind, Member, Network, ServicePort};
pub use record::{Connections, EndSample, FlowKey, FlowRecord, MOST_MEMBERS, Subject, WINDOW_SECONDS};
pub use trace::{PolicyAction, PolicyHit, SideTrace, TraceVerdict, Verdict};
