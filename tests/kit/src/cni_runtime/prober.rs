//! A pod whose first process only sends.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Sandbox;
use crate::prober::{Sent, Shots};

/// A thread in a pod's namespace that is ready to send at once: like a container's process after ADD, without the time
/// to start one.
pub struct Prober {
    go: Sender<Duration>,
    thread: JoinHandle<Sent>,
}

impl Prober {
    /// Waits in the sandbox, whose interface does not have to exist yet.
    ///
    /// # Panics
    /// If the sandbox cannot be entered.
    pub fn ready(sandbox: &Arc<Sandbox>, target: SocketAddr) -> Prober {
        let (go, start) = channel();
        let (is_ready, ready) = channel();
        let sandbox = sandbox.clone();
        let thread = std::thread::spawn(move || {
            sandbox.enter();
            let shots = Shots::new(None, target);
            is_ready.send(()).expect("a waiting receiver");
            send(&start, shots)
        });
        ready.recv().expect("the prober is ready");
        Prober { go, thread }
    }

    /// Starts to send for this long. When this returns the thread sends, or is about to; see [`ProbeSender::end`].
    pub fn start(self, time: Duration) -> ProbeSender {
        self.go.send(time).expect("the prober waits");
        ProbeSender(self.thread)
    }
}

/// A sending prober.
pub struct ProbeSender(JoinHandle<Sent>);

impl ProbeSender {
    /// Waits until the time has passed.
    ///
    /// # Panics
    /// If nothing could be sent.
    pub fn end(self) -> Sent {
        self.0.join().expect("the prober sends")
    }
}

fn send(start: &Receiver<Duration>, mut shots: Shots) -> Sent {
    // The channel is closed without a start if the test has ended.
    let Ok(time) = start.recv() else { return shots.sent() };
    let end = Instant::now() + time;
    loop {
        shots.fire();
        if Instant::now() >= end {
            return shots.sent();
        }
    }
}
