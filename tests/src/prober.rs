//! Whether what is denied ever gets through, and what is allowed ever stops: asked all the time, while something else
//! happens.

mod arrivals;
mod chance;
mod flow;
mod probing;
mod shots;

pub use arrivals::{Arrived, arrivals, count_arrivals};
pub use chance::Chance;
pub use flow::{Flow, Way, dropped, listener, socket};
pub use probing::{Probing, Seen};
pub use shots::{Sent, Shots};
