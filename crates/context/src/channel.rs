//! The publication of one table: its deltas, and the baseline that contains them.
//!
//! A baseline is made from what was published, never from unpublished state, so that no change reaches a consumer
//! through a baseline alone. It is encoded on the first request, once.

use std::fmt;
use std::io::Write as _;
use std::str::FromStr;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use feed::{DeltaEvent, FeedBacklog, Head, Position, StreamOpening, sse};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::{Mutex, OnceCell, broadcast, watch};

use crate::frame::EventFrame;

/// Deltas that a subscriber may lag behind before it is disconnected: those of 256,000 addresses that change at once,
/// or of a minute at five a second. Subscribers share them; at half a megabyte each, the largest possible, all take 128
/// MB.
const BEHIND_AT_MOST: usize = 256;

/// Level of detail of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FeedForm {
    #[default]
    Whole,
    /// Numbers alone, for a feed with this form.
    Numbers,
}

impl FeedForm {
    /// The form of numbers in a query, and its part of a baseline.
    pub(crate) const NUMBERS: &str = "numbers";
}

impl FromStr for FeedForm {
    type Err = UnknownForm;

    fn from_str(text: &str) -> Result<FeedForm, UnknownForm> {
        if text == FeedForm::NUMBERS { Ok(FeedForm::Numbers) } else { Err(UnknownForm) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown form of the feed: the feed identity has the form numbers, other feeds have none")]
pub(crate) struct UnknownForm;

/// One form of a baseline. The first is the one that is downloaded and pushed.
pub(crate) struct BaselineForm {
    /// `baseline`, or the name of another part.
    pub(crate) what: &'static str,
    /// File name extension.
    pub(crate) extension: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) encode: Encode,
}

/// Encodes a table with the position and version.
pub(crate) type Encode = Box<dyn Fn(Position, &str) -> Result<Bytes, Unencodable> + Send + Sync>;

/// A baseline that cannot be encoded.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot encode the baseline: {0}")]
pub struct Unencodable(pub(crate) String);

/// A table at a position.
pub(crate) struct Baseline {
    pub(crate) version: String,
    pub(crate) position: Position,
    pub(crate) count: usize,
    parts: Arc<[BaselineForm]>,
    /// The first parts, this many, are stored; the others are other forms, encoded on request.
    stored: usize,
    /// The first part, once it was requested; the other parts are cached only while in use.
    table: OnceCell<Arc<EncodedForm>>,
    others: Box<[Mutex<Weak<EncodedForm>>]>,
}

/// An encoded part.
pub(crate) struct EncodedForm {
    pub(crate) head: Head,
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Bytes,
    gzip: OnceCell<Bytes>,
}

impl Baseline {
    pub(crate) fn new(version: String, position: Position, count: usize, parts: Vec<BaselineForm>) -> Baseline {
        Baseline::with_forms(version, position, count, parts, vec![])
    }

    /// With other forms, which are encoded on request and not stored.
    pub(crate) fn with_forms(
        version: String,
        position: Position,
        count: usize,
        mut parts: Vec<BaselineForm>,
        forms: Vec<BaselineForm>,
    ) -> Baseline {
        let stored = parts.len();
        parts.extend(forms);
        Baseline::of(version, position, count, parts.into(), stored)
    }

    fn of(version: String, position: Position, count: usize, parts: Arc<[BaselineForm]>, stored: usize) -> Baseline {
        let others = parts.iter().skip(1).map(|_| Mutex::default()).collect();
        Baseline { version, position, count, parts, stored, table: OnceCell::new(), others }
    }

    /// The same table at another position.
    fn at(&self, position: Position) -> Baseline {
        Baseline::of(self.version.clone(), position, self.count, self.parts.clone(), self.stored)
    }

    /// Name and extension of each stored part.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.parts.iter().take(self.stored).map(|part| (part.what, part.extension))
    }

    /// An encoded form. `None` if the baseline has no such form.
    pub(crate) async fn encoded_form(&self, form: FeedForm) -> Option<Result<Arc<EncodedForm>, Unencodable>> {
        match form {
            FeedForm::Whole => Some(self.encoded().await),
            FeedForm::Numbers => self.encoded_part(FeedForm::NUMBERS).await,
        }
    }

    /// The first part, encoded. Concurrent callers share one encoding.
    pub(crate) async fn encoded(&self) -> Result<Arc<EncodedForm>, Unencodable> {
        self.table.get_or_try_init(|| in_background(self.encode(0))).await.cloned()
    }

    /// An encoded part. `None` if there is no such part.
    pub(crate) async fn encoded_part(&self, what: &str) -> Option<Result<Arc<EncodedForm>, Unencodable>> {
        let number = self.parts.iter().position(|part| part.what == what)?;
        let Some(held) = number.checked_sub(1).and_then(|number| self.others.get(number)) else {
            return Some(self.encoded().await);
        };
        let mut held = held.lock().await;
        if let Some(encoded) = held.upgrade() {
            return Some(Ok(encoded));
        }
        let encoded = in_background(self.encode(number)).await;
        if let Ok(encoded) = &encoded {
            *held = Arc::downgrade(encoded);
        }
        Some(encoded)
    }

    /// The first part, encoded in the calling thread.
    pub(crate) fn encoded_here(&self) -> Result<Arc<EncodedForm>, Unencodable> {
        self.encode(0)()
    }

    fn encode(&self, number: usize) -> impl FnOnce() -> Result<Arc<EncodedForm>, Unencodable> + use<> {
        let (parts, position, version, count) = (self.parts.clone(), self.position, self.version.clone(), self.count);
        move || {
            let part = parts.get(number).ok_or_else(|| Unencodable("missing format".into()))?;
            let bytes = (part.encode)(position, &version)?;
            let head = Head::of(&bytes, version, position, count as u64);
            Ok(Arc::new(EncodedForm { head, media_type: part.media_type, bytes, gzip: OnceCell::new() }))
        }
    }
}

impl fmt::Debug for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ({})", self.version, self.position, self.count)
    }
}

impl EncodedForm {
    pub(crate) async fn compressed(&self) -> Result<Bytes, Unencodable> {
        let bytes = self.bytes.clone();
        let compress = move || {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            let written = encoder.write_all(&bytes).and_then(|()| encoder.finish());
            written.map(Bytes::from).map_err(|e| Unencodable(e.to_string()))
        };
        self.gzip.get_or_try_init(|| in_background(compress)).await.cloned()
    }
}

/// Runs long work on a blocking thread.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Unencodable> + Send + 'static,
) -> Result<T, Unencodable> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Unencodable(e.to_string()))?
}

/// The publication of a table, and its subscribers.
pub(crate) struct Channel {
    /// `identity`.
    pub(crate) name: &'static str,
    state: std::sync::Mutex<State>,
    /// Frames for open streams.
    frames: broadcast::Sender<EventFrame>,
    /// `None` for a feed without the form of numbers.
    numbers: Option<NumberStreams>,
    /// Incremented with every baseline.
    baselines: watch::Sender<u64>,
}

/// The open streams of the form of numbers.
struct NumberStreams {
    frames: broadcast::Sender<EventFrame>,
    /// Encodes an empty delta.
    nothing: fn(Position) -> Vec<u8>,
}

struct State {
    publication: FeedBacklog,
    /// The same deltas in the form of numbers, since the first subscription to it.
    numbers: Option<FeedBacklog>,
    /// `None` before the initial sync.
    baseline: Option<Arc<Baseline>>,
}

/// Encodes a delta as JSON for its position.
pub(crate) type DeltaEncoder = Box<dyn FnOnce(Position) -> Vec<u8> + Send>;

impl Channel {
    pub(crate) fn new(name: &'static str, epoch: u64) -> Arc<Channel> {
        Channel::of(name, epoch, None)
    }

    /// A feed that also has the form of numbers. `nothing` encodes an empty delta of it.
    pub(crate) fn with_numbers(name: &'static str, epoch: u64, nothing: fn(Position) -> Vec<u8>) -> Arc<Channel> {
        let (frames, _) = broadcast::channel(BEHIND_AT_MOST);
        Channel::of(name, epoch, Some(NumberStreams { frames, nothing }))
    }

    fn of(name: &'static str, epoch: u64, numbers: Option<NumberStreams>) -> Arc<Channel> {
        let (frames, _) = broadcast::channel(BEHIND_AT_MOST);
        let state = State { publication: FeedBacklog::new(epoch), numbers: None, baseline: None };
        let state = std::sync::Mutex::new(state);
        Arc::new(Channel { name, state, frames, numbers, baselines: watch::Sender::new(0) })
    }

    /// Publishes deltas that belong together, and the baseline that contains them.
    pub(crate) fn publish(
        &self,
        deltas: Vec<DeltaEncoder>,
        baseline: impl FnOnce(Position) -> Baseline,
    ) -> Vec<Arc<DeltaEvent>> {
        self.publish_forms(deltas, vec![], baseline)
    }

    /// As [`Channel::publish`], with each delta in the form of numbers, too: it is encoded only if that form has
    /// subscribers.
    ///
    /// # Panics
    /// If that form has subscribers, and one of the two forms of a delta is missing.
    pub(crate) fn publish_forms(
        &self,
        deltas: Vec<DeltaEncoder>,
        numbers: Vec<DeltaEncoder>,
        baseline: impl FnOnce(Position) -> Baseline,
    ) -> Vec<Arc<DeltaEvent>> {
        let mut state = self.lock();
        let events: Vec<Arc<DeltaEvent>> = deltas.into_iter().map(|delta| state.publication.publish(delta)).collect();
        let position = state.publication.position();
        if let Some(publication) = &mut state.numbers {
            for delta in numbers {
                self.carry_on_numbers(publication.publish(delta).frame.clone());
            }
            assert_eq!(publication.position(), position, "all forms of a feed have the same positions");
        }
        state.baseline = Some(Arc::new(baseline(position)));
        for event in &events {
            self.carry_on(event.frame.clone());
        }
        self.baselines.send_modify(|count| *count += 1);
        events
    }

    /// Publishes an empty delta, which reveals a gap to a subscriber that missed an earlier one. `None` before the
    /// initial sync.
    pub(crate) fn publish_notice(&self, nothing: impl FnOnce(Position) -> Vec<u8>) -> Option<Arc<DeltaEvent>> {
        let mut state = self.lock();
        let baseline = state.baseline.clone()?;
        let event = state.publication.publish(nothing);
        if let (Some(publication), Some(numbers)) = (&mut state.numbers, &self.numbers) {
            self.carry_on_numbers(publication.publish(numbers.nothing).frame.clone());
        }
        state.baseline = Some(Arc::new(baseline.at(event.position)));
        self.carry_on(event.frame.clone());
        self.baselines.send_modify(|count| *count += 1);
        Some(event)
    }

    /// Starts a new epoch: all subscribers pull the baseline again.
    pub(crate) fn renew(&self, epoch: u64, reason: &str, baseline: impl FnOnce(Position) -> Baseline) {
        let mut state = self.lock();
        let position = state.publication.renew(epoch);
        if let Some(publication) = &mut state.numbers {
            *publication = FeedBacklog::starting_at(position);
        }
        state.baseline = Some(Arc::new(baseline(position)));
        let pull = sse::pull(position, reason.to_owned());
        self.carry_on(pull.clone());
        self.carry_on_numbers(pull);
        self.baselines.send_modify(|count| *count += 1);
    }

    fn carry_on(&self, frame: Bytes) {
        // An error means that there are no subscribers.
        drop(self.frames.send(EventFrame::new(frame)));
    }

    fn carry_on_numbers(&self, frame: Bytes) {
        if let Some(numbers) = &self.numbers {
            // An error means that this form has no subscribers.
            drop(numbers.frames.send(EventFrame::new(frame)));
        }
    }

    /// `None` before the initial sync.
    pub(crate) fn baseline(&self) -> Option<Arc<Baseline>> {
        self.lock().baseline.clone()
    }

    /// The opening of a stream, and the receiver of its further frames.
    ///
    /// # Errors
    /// If the feed has no such form.
    pub(crate) fn subscribe(
        &self,
        form: FeedForm,
        from: Option<Position>,
    ) -> Result<(StreamOpening, broadcast::Receiver<EventFrame>), UnknownForm> {
        let mut state = self.lock();
        match (form, &self.numbers) {
            (FeedForm::Whole, _) => Ok((state.publication.since(from), self.frames.subscribe())),
            (FeedForm::Numbers, None) => Err(UnknownForm),
            (FeedForm::Numbers, Some(numbers)) => {
                let position = state.publication.position();
                let publication = state.numbers.get_or_insert_with(|| FeedBacklog::starting_at(position));
                Ok((publication.since(from), numbers.frames.subscribe()))
            }
        }
    }

    /// Changes with every baseline.
    pub(crate) fn baselines(&self) -> watch::Receiver<u64> {
        self.baselines.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
