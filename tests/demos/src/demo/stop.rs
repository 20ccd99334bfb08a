//! Whether the demo has been asked to end. A signal only sets a flag; every step checks it and returns, so that there
//! is one path of cleanup.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::Context;
use nix::libc;
use nix::sys::signal::Signal;
use tokio::signal::unix::{SignalKind, signal};

/// The demo ends early because of a signal.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Interruption(Signal);

impl Interruption {
    /// The exit status that shells use.
    pub(crate) fn status(self) -> u8 {
        128 + u8::try_from(self.0 as i32).expect("a signal's number is small")
    }
}

/// The flag: the number of the first signal, or zero.
#[derive(Debug, Clone, Default)]
pub(crate) struct Stop(Arc<AtomicI32>);

impl Stop {
    /// Installs handlers that set the flag for the signals that ask a program to end.
    pub(crate) fn on_signals() -> anyhow::Result<Stop> {
        let stop = Stop::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        for (kind, number) in [
            (SignalKind::interrupt(), Signal::SIGINT),
            (SignalKind::terminate(), Signal::SIGTERM),
            (SignalKind::hangup(), Signal::SIGHUP),
        ] {
            let context = runtime.enter();
            let mut arrivals = signal(kind).context("cannot handle signals")?;
            drop(context);
            let stop = stop.clone();
            runtime.spawn(async move {
                while arrivals.recv().await.is_some() {
                    stop.request(number);
                }
            });
        }
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        Ok(stop)
    }

    /// The first request is the one that counts.
    pub(crate) fn request(&self, signal: Signal) {
        if self.0.compare_exchange(0, signal as libc::c_int, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            && signal != Signal::SIGPIPE
        {
            eprintln!("\n{signal}: removing everything");
        }
    }

    pub(crate) fn check(&self) -> Result<(), Interruption> {
        match Signal::try_from(self.0.load(Ordering::Relaxed)) {
            Ok(signal) => Err(Interruption(signal)),
            Err(_) => Ok(()),
        }
    }
}
