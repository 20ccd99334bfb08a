//! Baselines and deltas: publishing a table of one process, and following it in others.
//!
//! A publication has an epoch, one per life of its producer, and numbers its deltas from 1 without gaps. Every baseline
//! has the position of the last delta in it. A follower's table is a baseline and the deltas after it; after a gap, it
//! pulls the baseline again. This crate is independent of the table's contents.
//!
//! A feed `X` has three resources: `X/version` ([`Head`] as JSON), `X/download` (the baseline, with the fields of its
//! head as headers) and `X/deltas` (server-sent events, [`sse`]). A feed may have other forms (`?form=`), which have
//! less detail of the same table at the same positions.
//!
//! A producer with two deltas, and a subscriber whose stream loses the first one:
//!
//! ```
//! use feed::{FeedBacklog, Follower, Next, Pull, sse};
//!
//! let mut publication = FeedBacklog::new(1_700_000_000_000);
//! let opening = publication.since(None);
//! let lost = publication.publish(|_| br#"{"upserts":[1]}"#.to_vec());
//! let second = publication.publish(|_| br#"{"upserts":[2]}"#.to_vec());
//!
//! let mut subscriber = Follower::new();
//! assert_eq!(subscriber.begins(opening.begins), Next::Pull(Pull::NoTable));
//! // The baseline was encoded before the deltas: it has the position of the opening.
//! assert_eq!(subscriber.baseline(opening.begins), Next::Known);
//!
//! let mut events = vec![];
//! sse::Parser::new().push(&second.frame, &mut events)?;
//! assert_eq!((events[0].event.as_str(), events[0].id.as_str()), (sse::DELTA, "1700000000000:2"));
//! assert!(matches!(subscriber.delta(second.position), Next::Pull(Pull::Gap { .. })));
//!
//! // Instead of a baseline, a new stream can carry both deltas, since the backlog has them.
//! let opening = publication.since(subscriber.position());
//! assert_eq!(subscriber.begins(opening.begins), Next::Known);
//! for delta in opening.rest.unwrap() {
//!     assert_eq!(subscriber.delta(delta.position), Next::Apply);
//! }
//! assert_eq!(subscriber.position(), Some(publication.position()));
//! assert!(lost.position < second.position);
//! # Ok::<(), sse::TooLong>(())
//! ```

#![warn(missing_docs)]

mod access;
pub mod client;
mod follower;
mod head;
mod position;
mod publication;
pub mod sse;

#[cfg(test)]
mod convergence;

pub use access::{Access, AccessError, install_tls_provider, read_basic_auth};
pub use follower::{Follower, Next, Pull};
pub use head::{Digest, Head, HeadError};
pub use position::{Position, PositionError};
pub use publication::{DeltaEvent, FeedBacklog, NoReplay, StreamOpening};
