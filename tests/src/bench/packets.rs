//! What the rules cost a packet: an established flow's and a flow's first, by what the cost could grow with.
//!
//! One thread sends, and within its system calls the node forwards and the receiver's socket takes the packet in: the
//! whole path is one processor's time. All rulesets lie in one namespace, asleep but one; they take turns every few
//! milliseconds, so that what drifts (a virtual machine's speed) drifts for all of them.

pub mod flows;
mod linear;
pub(super) mod ours;
mod place;
pub mod profile;
mod report;
mod series;
mod traffic;
mod turns;

use super::machine::{Place as Processor, stay};
use super::record::Measured;
use series::Series;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Runs of each series, whose medians are compared.
    pub rounds: usize,
    /// Turns of each ruleset in a run.
    pub slices: usize,
    /// Batches of 64 packets in a turn, and as many again in half that warm up.
    pub batches: u32,
    /// Of everything that is large, one part in so many is taken.
    pub divisor: u32,
}

impl Size {
    /// What `docs/performance.md` is measured with.
    pub fn of_rounds(rounds: usize) -> Size {
        Size { rounds, slices: 30, batches: 40, divisor: 1 }
    }
}

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(size: Size) -> Measured {
    on_one_processor(|| report::of(size, &Series::all(size)))
}

/// The processor is chosen for a thread of its own, so that the caller's stay as they are.
fn on_one_processor(measure: impl FnOnce() -> Measured + Send) -> Measured {
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            stay(Processor::Flood);
            measure()
        });
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
