//! A pod whose first process does nothing but send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::Sandbox;
use crate::prober::{Sent, Shots};

/// Ready in a pod's namespace, to send as soon as it is told to: what a container's process does once ADD has returned,
/// without the time that it takes to start one.
pub struct Prober {
    go: Sender<Duration>,
    thread: JoinHandle<Sent>,
}

impl Prober {
    /// Waits in the sandbox, whose interface need not be there yet.
    ///
    /// # Panics
    /// If it cannot be entered.
    pub fn ready(sandbox: &Arc<Sandbox>, target: SocketAddr) -> Prober {
        let (go, start) = channel();
        let (is_ready, ready) = channel();
        let sandbox = sandbox.clone();
        let thread = std::thread::spawn(move || {
            sandbox.enter();
            let shots = Shots::new(None, target);
            is_ready.send(()).expect("somebody waits");
            send(&start, shots)
        });
        ready.recv().expect("the prober is ready");
        Prober { go, thread }
    }

    /// Sends for this long, beginning now. It is sending when this returns, or about to; see [`Sending::end`].
    pub fn start(self, time: Duration) -> Sending {
        self.go.send(time).expect("the prober waits");
        Sending(self.thread)
    }
}

/// A prober at work.
pub struct Sending(JoinHandle<Sent>);

impl Sending {
    /// Waits until its time is up.
    ///
    /// # Panics
    /// If it could not send at all.
    pub fn end(self) -> Sent {
        self.0.join().expect("the prober sends")
    }
}

fn send(start: &Receiver<Duration>, mut shots: Shots) -> Sent {
    // Without a start there is nothing to do: the test has ended.
    let Ok(time) = start.recv() else { return shots.sent() };
    let end = Instant::now() + time;
    loop {
        shots.fire();
        if Instant::now() >= end {
            return shots.sent();
        }
    }
}
