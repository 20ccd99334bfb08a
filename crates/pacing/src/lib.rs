//! When to act next: exponential backoff of retries, and debounce of changes. The caller supplies the clock and does the
//! waiting.
//!
//! ```
//! use std::time::{Duration, Instant};
//!
//! use pacing::{Backoff, Debounce};
//!
//! let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30));
//! assert!(backoff.wait() <= Duration::from_secs(1));
//! assert!(backoff.wait() <= Duration::from_secs(2));
//! backoff.reset();
//!
//! let (mut debounce, now) = (Debounce::new(), Instant::now());
//! debounce.change(now);
//! assert!(!debounce.take_due(now));
//! assert!(debounce.take_due(now + Duration::from_millis(200)));
//! ```

#![warn(missing_docs)]

mod backoff;
mod debounce;

pub use backoff::Backoff;
pub use debounce::Debounce;
