//! A table as it is published: its deltas as they are made, and the baseline of what they have told.
//!
//! A baseline is made from what was published, never from what is only known, so that no change reaches a consumer
//! through a baseline that no delta carried. It is encoded when somebody asks for it, once.

use std::fmt;
use std::io::Write as _;
use std::str::FromStr;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use feed::{Event, Head, Opening, Position, Publication, sse};
use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::sync::{Mutex, OnceCell, broadcast, watch};

use crate::frame::Frame;

/// Deltas that a subscriber may lie behind before it is sent away: those of 256,000 addresses that change at once, or of
/// a minute at five a second. Subscribers share them; with half a megabyte each, the largest there are, all take 128 MB.
const BEHIND_AT_MOST: usize = 256;

/// How much a feed says of each of its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum FeedForm {
    #[default]
    Whole,
    /// Numbers alone, where the feed has this form.
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
pub(crate) struct Part {
    /// `baseline`, or what else goes with it.
    pub(crate) what: &'static str,
    /// Of the name that it has as a file.
    pub(crate) extension: &'static str,
    pub(crate) media_type: &'static str,
    pub(crate) encode: Encode,
}

/// Writes a table down that is at the position and has the version.
pub(crate) type Encode = Box<dyn Fn(Position, &str) -> Result<Bytes, Unencodable> + Send + Sync>;

/// A baseline that cannot be written down.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot encode the baseline: {0}")]
pub struct Unencodable(pub(crate) String);

/// A table at a position.
pub(crate) struct Baseline {
    pub(crate) version: String,
    pub(crate) position: Position,
    pub(crate) count: usize,
    parts: Arc<[Part]>,
    /// Of the parts, so many go to stores; the others are other forms, which are encoded on request.
    stored: usize,
    /// The first part, once somebody has asked for it; others are held by those who use them.
    table: OnceCell<Arc<Encoded>>,
    others: Box<[Mutex<Weak<Encoded>>]>,
}

/// A part in bytes.
pub(crate) struct Encoded {
    pub(crate) head: Head,
    pub(crate) media_type: &'static str,
    pub(crate) bytes: Bytes,
    gzip: OnceCell<Bytes>,
}

impl Baseline {
    pub(crate) fn new(version: String, position: Position, count: usize, parts: Vec<Part>) -> Baseline {
        Baseline::with_forms(version, position, count, parts, vec![])
    }

    /// With other forms, which are encoded on request and not stored.
    pub(crate) fn with_forms(
        version: String,
        position: Position,
        count: usize,
        mut parts: Vec<Part>,
        forms: Vec<Part>,
    ) -> Baseline {
        let stored = parts.len();
        parts.extend(forms);
        Baseline::of(version, position, count, parts.into(), stored)
    }

    fn of(version: String, position: Position, count: usize, parts: Arc<[Part]>, stored: usize) -> Baseline {
        let others = parts.iter().skip(1).map(|_| Mutex::default()).collect();
        Baseline { version, position, count, parts, stored, table: OnceCell::new(), others }
    }

    /// The same table at another position.
    fn at(&self, position: Position) -> Baseline {
        Baseline::of(self.version.clone(), position, self.count, self.parts.clone(), self.stored)
    }

    /// What it consists of: what each part is, and its extension.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        self.parts.iter().take(self.stored).map(|part| (part.what, part.extension))
    }

    /// A form of it in bytes. `None` if it has no such form.
    pub(crate) async fn encoded_form(&self, form: FeedForm) -> Option<Result<Arc<Encoded>, Unencodable>> {
        match form {
            FeedForm::Whole => Some(self.encoded().await),
            FeedForm::Numbers => self.encoded_part(FeedForm::NUMBERS).await,
        }
    }

    /// Its first part in bytes. Whoever asks first waits for the work, and the others with him.
    pub(crate) async fn encoded(&self) -> Result<Arc<Encoded>, Unencodable> {
        self.table.get_or_try_init(|| in_background(self.encode(0))).await.cloned()
    }

    /// A part in bytes. None if there is no such part.
    pub(crate) async fn encoded_part(&self, what: &str) -> Option<Result<Arc<Encoded>, Unencodable>> {
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

    /// Its first part in bytes, worked out by whoever asks.
    pub(crate) fn encoded_here(&self) -> Result<Arc<Encoded>, Unencodable> {
        self.encode(0)()
    }

    fn encode(&self, number: usize) -> impl FnOnce() -> Result<Arc<Encoded>, Unencodable> + use<> {
        let (parts, position, version, count) = (self.parts.clone(), self.position, self.version.clone(), self.count);
        move || {
            let part = parts.get(number).ok_or_else(|| Unencodable("missing format".into()))?;
            let bytes = (part.encode)(position, &version)?;
            let head = Head::of(&bytes, version, position, count as u64);
            Ok(Arc::new(Encoded { head, media_type: part.media_type, bytes, gzip: OnceCell::new() }))
        }
    }
}

impl fmt::Debug for Baseline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ({})", self.version, self.position, self.count)
    }
}

impl Encoded {
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

/// Long work goes to a thread of its own.
async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Unencodable> + Send + 'static,
) -> Result<T, Unencodable> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Unencodable(e.to_string()))?
}

/// Where a table is published.
pub(crate) struct Channel {
    /// `identity`.
    pub(crate) name: &'static str,
    state: std::sync::Mutex<State>,
    /// What open streams carry on with.
    frames: broadcast::Sender<Frame>,
    /// `None` for a feed without the form of numbers.
    numbers: Option<NumberStreams>,
    /// Goes up with every baseline.
    baselines: watch::Sender<u64>,
}

/// The open streams of the form of numbers.
struct NumberStreams {
    frames: broadcast::Sender<Frame>,
    /// The delta that changes nothing.
    nothing: fn(Position) -> Vec<u8>,
}

struct State {
    publication: Publication,
    /// The same deltas in the form of numbers, from the first subscription to it on.
    numbers: Option<Publication>,
    /// None before anything is known.
    baseline: Option<Arc<Baseline>>,
}

/// A delta's JSON, given the position that it has.
pub(crate) type Delta = Box<dyn FnOnce(Position) -> Vec<u8> + Send>;

impl Channel {
    pub(crate) fn new(name: &'static str, epoch: u64) -> Arc<Channel> {
        Channel::of(name, epoch, None)
    }

    /// A feed that has the form of numbers, too. `nothing` encodes its delta that changes nothing.
    pub(crate) fn with_numbers(name: &'static str, epoch: u64, nothing: fn(Position) -> Vec<u8>) -> Arc<Channel> {
        let (frames, _) = broadcast::channel(BEHIND_AT_MOST);
        Channel::of(name, epoch, Some(NumberStreams { frames, nothing }))
    }

    fn of(name: &'static str, epoch: u64, numbers: Option<NumberStreams>) -> Arc<Channel> {
        let (frames, _) = broadcast::channel(BEHIND_AT_MOST);
        let state = State { publication: Publication::new(epoch), numbers: None, baseline: None };
        let state = std::sync::Mutex::new(state);
        Arc::new(Channel { name, state, frames, numbers, baselines: watch::Sender::new(0) })
    }

    /// Publishes deltas that belong together, and the baseline that contains them.
    pub(crate) fn publish(&self, deltas: Vec<Delta>, baseline: impl FnOnce(Position) -> Baseline) -> Vec<Arc<Event>> {
        self.publish_forms(deltas, vec![], baseline)
    }

    /// As [`Channel::publish`], with each delta in the form of numbers, too: it is encoded only if somebody has subscribed
    /// to that form.
    ///
    /// # Panics
    /// If somebody has, and one of the two forms of a delta is missing.
    pub(crate) fn publish_forms(
        &self,
        deltas: Vec<Delta>,
        numbers: Vec<Delta>,
        baseline: impl FnOnce(Position) -> Baseline,
    ) -> Vec<Arc<Event>> {
        let mut state = self.lock();
        let events: Vec<Arc<Event>> = deltas.into_iter().map(|delta| state.publication.publish(delta)).collect();
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

    /// Publishes a delta that changes nothing; whoever lacks one before it sees the gap. None before anything is known.
    pub(crate) fn publish_notice(&self, nothing: impl FnOnce(Position) -> Vec<u8>) -> Option<Arc<Event>> {
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

    /// Begins another epoch: all who follow pull the baseline again.
    pub(crate) fn renew(&self, epoch: u64, reason: &str, baseline: impl FnOnce(Position) -> Baseline) {
        let mut state = self.lock();
        let position = state.publication.renew(epoch);
        if let Some(publication) = &mut state.numbers {
            *publication = Publication::starting_at(position);
        }
        state.baseline = Some(Arc::new(baseline(position)));
        let pull = sse::pull(position, reason.to_owned());
        self.carry_on(pull.clone());
        self.carry_on_numbers(pull);
        self.baselines.send_modify(|count| *count += 1);
    }

    fn carry_on(&self, frame: Bytes) {
        // An error means that nobody listens.
        drop(self.frames.send(Frame::new(frame)));
    }

    fn carry_on_numbers(&self, frame: Bytes) {
        if let Some(numbers) = &self.numbers {
            // An error means that there are no streams of this form.
            drop(numbers.frames.send(Frame::new(frame)));
        }
    }

    /// None before anything is known.
    pub(crate) fn baseline(&self) -> Option<Arc<Baseline>> {
        self.lock().baseline.clone()
    }

    /// How a stream begins, and what it carries on with.
    ///
    /// # Errors
    /// If the feed has no such form.
    pub(crate) fn subscribe(
        &self,
        form: FeedForm,
        from: Option<Position>,
    ) -> Result<(Opening, broadcast::Receiver<Frame>), UnknownForm> {
        let mut state = self.lock();
        match (form, &self.numbers) {
            (FeedForm::Whole, _) => Ok((state.publication.since(from), self.frames.subscribe())),
            (FeedForm::Numbers, None) => Err(UnknownForm),
            (FeedForm::Numbers, Some(numbers)) => {
                let position = state.publication.position();
                let publication = state.numbers.get_or_insert_with(|| Publication::starting_at(position));
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
