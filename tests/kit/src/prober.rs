//! Continuous verification that denied packets never arrive and allowed flows never stop, while the test changes
//! something.

mod arrivals;
mod first_packets;
mod flow;
mod probing;
mod random;

pub use arrivals::{PacketArrivals, arrivals, count_arrivals};
pub use first_packets::{Sent, Shots};
pub use flow::{Flow, Way, dropped, listener, socket};
pub use probing::{ProbeReport, Probes};
pub use random::Chance;
