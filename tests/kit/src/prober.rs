//! Continuous verification that denied packets never arrive and allowed flows never stop, while the test changes
//! something.

mod arrivals;
mod flow;
mod probing;
mod random;
mod shots;

pub use arrivals::{Arrived, arrivals, count_arrivals};
pub use flow::{Flow, Way, dropped, listener, socket};
pub use probing::{ProbeReport, Probing};
pub use random::Chance;
pub use shots::{Sent, Shots};
