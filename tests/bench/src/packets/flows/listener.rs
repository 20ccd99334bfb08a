//! A thread that receives events as the agent does: it decodes and counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use std::{fmt, fs};

use nfnetlink::{FlowEvent, FlowEvents, FlowMonitor, Subscription};

use super::super::place::Place;
use crate::machine::{Place as Processor, stay};

/// Socket options of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) subscription: Subscription,
    /// Size of the socket's buffer.
    pub(super) mebibytes: usize,
    pub(super) reliable: bool,
    pub(super) reads: Reads,
}

/// How the listener reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reads {
    /// Blocks at the socket, so that an event wakes it within the path of the packet that causes the event.
    WhenWoken,
    /// Sleeps for 20 ms and then reads everything available.
    Periodically,
}

const PERIOD: Duration = Duration::from_millis(20);

impl fmt::Display for Reads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Reads::WhenWoken => "when woken",
            Reads::Periodically => "every 20 ms",
        })
    }
}

/// Counts of one listener.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ListenerCounts {
    pub(super) new: u64,
    pub(super) destroyed: u64,
    /// How often the kernel reported a loss (ENOBUFS).
    pub(super) losses: u64,
    pub(super) processor: Duration,
}

pub(super) struct Listener {
    thread: JoinHandle<ListenerCounts>,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    stands_still: AtomicBool,
    ends: AtomicBool,
    received: AtomicU64,
}

/// Interval at which the thread polls its state.
const LOOK: Duration = Duration::from_millis(5);

/// Silence longer than a period.
const SILENCE: Duration = Duration::from_millis(25);

impl Listener {
    /// Starts a listener in the node's namespace, on the processor that does not send.
    pub(super) fn start(place: &Place, setup: Setup) -> Listener {
        let mut monitor =
            place.on_node(|| FlowMonitor::open(setup.subscription, setup.mebibytes << 20)).expect("conntrack events");
        if setup.reliable {
            monitor.set_reliable(true).expect("options of a netlink socket");
        }
        let state = Arc::new(State::default());
        let thread = thread::spawn({
            let state = state.clone();
            move || {
                stay(Processor::Others);
                receive(&mut monitor, setup.reads, &state)
            }
        });
        Listener { thread, state }
    }

    pub(super) fn stand_still(&self, still: bool) {
        self.state.stands_still.store(still, Ordering::Relaxed);
    }

    /// Waits until no more events arrive, so that the thread is asleep.
    pub(super) fn await_silence(&self) {
        let mut before = u64::MAX;
        loop {
            let received = self.state.received.load(Ordering::Relaxed);
            if received == before {
                return;
            }
            before = received;
            thread::sleep(SILENCE);
        }
    }

    /// Stops the listener and returns its counts, after it has read all pending events.
    pub(super) fn end(self) -> ListenerCounts {
        self.state.ends.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn receive(monitor: &mut FlowMonitor, reads: Reads, state: &State) -> ListenerCounts {
    let mut received = ListenerCounts::default();
    let timeout = match reads {
        Reads::WhenWoken => LOOK,
        Reads::Periodically => Duration::ZERO,
    };
    loop {
        while state.stands_still.load(Ordering::Relaxed) {
            thread::sleep(LOOK);
        }
        match monitor.next(timeout).expect("events of connection tracking") {
            Some(FlowEvents::Events(events)) => {
                for event in events {
                    match event {
                        FlowEvent::New(_) => received.new += 1,
                        FlowEvent::Destroyed(_) => received.destroyed += 1,
                    }
                }
                state.received.fetch_add(1, Ordering::Relaxed);
            }
            Some(FlowEvents::Lost) => received.losses += 1,
            None if state.ends.load(Ordering::Relaxed) => break,
            None => match reads {
                Reads::WhenWoken => {}
                Reads::Periodically => thread::sleep(PERIOD),
            },
        }
    }
    received.processor = processor_time();
    received
}

/// Processor time of the calling thread: the first number of schedstat, in nanoseconds (sched-stats.rst).
fn processor_time() -> Duration {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("CONFIG_SCHED_INFO");
    let nanoseconds = text.split(' ').next().and_then(|number| number.parse().ok()).expect("sched-stats.rst");
    Duration::from_nanos(nanoseconds)
}
