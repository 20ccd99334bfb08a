//! Continuous verification that denied packets never arrive and allowed flows never stop, while the test changes
//! something.

mod arrivals;
mod chance;
mod flow;
mod probing;
mod shots;

pub use arrivals::{Arrived, arrivals, count_arrivals};
pub use chance::Chance;
pub use flow::{Flow, Way, dropped, listener, socket};
pub use probing::{ProbeReport, Probing};
pub use shots::{Sent, Shots};
