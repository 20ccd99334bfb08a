//! Cost of the rules per packet, for established packets and first packets, along each axis with which it could grow.
//!
//! One thread sends, and within its system calls the node forwards and the receiver's socket queues the packet: the
//! whole path is one processor's time. All rulesets are loaded in one namespace, dormant but one; they are active in
//! turns of a few milliseconds, so that drift (a virtual machine's speed) affects all of them.

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
use super::record::Measurement;
use series::Series;

/// Parameters of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    /// Runs of each series, whose medians are compared.
    pub rounds: usize,
    /// Turns of each ruleset in a run.
    pub slices: usize,
    /// Batches of 64 packets in a turn, after half as many for warm-up.
    pub batches: u32,
    /// Every large count is divided by this.
    pub divisor: u32,
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn of_rounds(rounds: usize) -> Size {
        Size { rounds, slices: 30, batches: 40, divisor: 1 }
    }
}

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(size: Size) -> Measurement {
    on_one_processor(|| report::of(size, &Series::all(size)))
}

/// Processor affinity is set in a new thread, so that the caller's stays unchanged.
fn on_one_processor(measure: impl FnOnce() -> Measurement + Send) -> Measurement {
    std::thread::scope(|scope| {
        let measuring = scope.spawn(|| {
            stay(Processor::Flood);
            measure()
        });
        measuring.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
