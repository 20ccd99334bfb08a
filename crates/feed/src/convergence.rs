//! Convergence: a consumer's table ends equal to the producer's, over a simulated network that loses, repeats and
//! reorders messages.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use crate::publication::Bounds;
use crate::sse::{self, Parser, PullData};
use crate::{DeltaEvent, FeedBacklog, Follower, Next, Position};

type KeyTable = BTreeMap<u8, u8>;

#[derive(Debug, Serialize, Deserialize)]
struct Delta {
    #[serde(flatten)]
    position: Position,
    upserts: Vec<(u8, u8)>,
    removes: Vec<u8>,
}

fn apply(table: &mut KeyTable, delta: Delta) {
    table.extend(delta.upserts);
    table.retain(|key, _| !delta.removes.contains(key));
}

/// The producer's table, the published table, and the publication.
struct Producer {
    live: KeyTable,
    published: KeyTable,
    publication: FeedBacklog,
}

impl Producer {
    /// Publishes the difference since the last call as one delta. `None` if there is no difference.
    fn flush(&mut self) -> Option<bytes::Bytes> {
        let upserts: Vec<(u8, u8)> =
            self.live.iter().filter(|(k, v)| self.published.get(k) != Some(v)).map(|(k, v)| (*k, *v)).collect();
        let removes: Vec<u8> = self.published.keys().filter(|k| !self.live.contains_key(k)).copied().collect();
        if upserts.is_empty() && removes.is_empty() {
            return None;
        }
        let event = self.publication.publish(|position| {
            serde_json::to_vec(&Delta { position, upserts: upserts.clone(), removes: removes.clone() }).unwrap()
        });
        self.published = self.live.clone();
        assert_eq!(event.position, self.publication.position());
        Some(DeltaEvent::clone(&event).frame)
    }

    /// A baseline contains only what deltas have carried.
    fn baseline(&self) -> (Position, KeyTable) {
        (self.publication.position(), self.published.clone())
    }
}

#[derive(Default)]
struct Consumer {
    follower: Follower,
    table: KeyTable,
    /// Frames in flight. `None`: the stream is closed.
    stream: Option<Vec<bytes::Bytes>>,
    /// A requested baseline in flight, as old as it is.
    download: Option<(Position, KeyTable)>,
}

impl Consumer {
    fn connect(&mut self, producer: &Producer) {
        self.download = None;
        self.stream = Some(producer.publication.since(self.follower.position()).frames());
    }

    /// Reads the frames that have arrived, and follows the follower's decisions.
    fn read(&mut self, producer: &Producer) {
        let Some(frames) = &mut self.stream else { return };
        let mut events = vec![];
        Parser::new().push(&std::mem::take(frames).concat(), &mut events).unwrap();
        for event in events {
            let next = match event.event.as_str() {
                sse::POSITION => self.follower.begins(serde_json::from_slice(&event.data).unwrap()),
                sse::DELTA => {
                    let delta: Delta = serde_json::from_slice(&event.data).unwrap();
                    assert_eq!(event.id, delta.position.to_string());
                    let before = self.follower.position();
                    let next = self.follower.delta(delta.position);
                    if next == Next::Apply {
                        assert_eq!(before.map(Position::next), Some(delta.position), "never out of order");
                        apply(&mut self.table, delta);
                    }
                    next
                }
                sse::PULL => {
                    let data: PullData = serde_json::from_slice(&event.data).unwrap();
                    self.follower.pull_requested(data.position, &data.reason)
                }
                other => panic!("{other}"),
            };
            match next {
                Next::Apply | Next::Known => {}
                Next::Pull(_) => drop(self.download.get_or_insert_with(|| producer.baseline())),
            }
        }
    }

    /// The requested baseline arrives. One that the stream does not join ends the stream.
    fn arrive(&mut self) {
        let Some((position, table)) = self.download.take() else { return };
        self.table = table;
        match self.follower.baseline(position) {
            Next::Known => {}
            Next::Pull(_) => self.stream = None,
            Next::Apply => panic!("a baseline is no delta"),
        }
    }
}

#[derive(Debug, Clone)]
enum Step {
    Set(u8, u8),
    Remove(u8),
    Flush,
    /// The producer restarts: it has the state, and no publication.
    Restart,
    /// The producer becomes the leader, with a new epoch, and notifies its subscribers.
    Renew,
    Connect(usize),
    Disconnect(usize),
    /// The n-th frame in flight to a consumer is lost, duplicated, or swapped with the next.
    Drop(usize, usize),
    Duplicate(usize, usize),
    Swap(usize, usize),
    Read(usize),
    Arrive(usize),
}

const CONSUMERS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let consumer = 0..CONSUMERS;
    let place = (0..CONSUMERS, 0..4_usize);
    prop_oneof![
        6 => (0..8_u8, any::<u8>()).prop_map(|(key, value)| Step::Set(key, value)),
        3 => (0..8_u8).prop_map(Step::Remove),
        8 => Just(Step::Flush),
        1 => Just(Step::Restart),
        1 => Just(Step::Renew),
        2 => consumer.clone().prop_map(Step::Connect),
        1 => consumer.clone().prop_map(Step::Disconnect),
        1 => place.clone().prop_map(|(c, n)| Step::Drop(c, n)),
        1 => place.clone().prop_map(|(c, n)| Step::Duplicate(c, n)),
        1 => place.prop_map(|(c, n)| Step::Swap(c, n)),
        4 => consumer.clone().prop_map(Step::Read),
        4 => consumer.prop_map(Step::Arrive),
    ]
}

/// A backlog so short that most reconnecting consumers must pull.
const BOUNDS: Bounds = Bounds { events: 3, bytes: 4_096 };

struct World {
    producer: Producer,
    consumers: [Consumer; CONSUMERS],
    epoch: u64,
}

impl World {
    fn new() -> World {
        let publication = FeedBacklog::with_bounds(1, BOUNDS);
        let producer = Producer { live: KeyTable::new(), published: KeyTable::new(), publication };
        World { producer, consumers: Default::default(), epoch: 1 }
    }

    fn broadcast(&mut self, frame: &bytes::Bytes) {
        for consumer in &mut self.consumers {
            consumer.stream.iter_mut().for_each(|stream| stream.push(frame.clone()));
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Set(key, value) => drop(self.producer.live.insert(key, value)),
            Step::Remove(key) => drop(self.producer.live.remove(&key)),
            Step::Flush => {
                if let Some(frame) = self.producer.flush() {
                    self.broadcast(&frame);
                }
            }
            Step::Restart => {
                self.epoch += 1;
                self.producer.publication = FeedBacklog::with_bounds(self.epoch, BOUNDS);
                self.producer.published = self.producer.live.clone();
                self.consumers.iter_mut().for_each(|consumer| consumer.stream = None);
            }
            Step::Renew => {
                self.epoch += 1;
                self.producer.published = self.producer.live.clone();
                let begins = self.producer.publication.renew(self.epoch);
                self.broadcast(&sse::pull(begins, "another epoch"));
            }
            Step::Connect(c) => self.consumers[c].connect(&self.producer),
            Step::Disconnect(c) => self.consumers[c].stream = None,
            Step::Drop(c, n) => self.mangle(c, n, |stream, n| drop(stream.remove(n))),
            Step::Duplicate(c, n) => self.mangle(c, n, |stream, n| stream.push(stream[n].clone())),
            Step::Swap(c, n) => self.mangle(c, n, |stream, n| {
                let other = (n + 1) % stream.len();
                stream.swap(n, other);
            }),
            Step::Read(c) => self.consumers[c].read(&self.producer),
            Step::Arrive(c) => self.consumers[c].arrive(),
        }
    }

    fn mangle(&mut self, consumer: usize, n: usize, how: impl Fn(&mut Vec<bytes::Bytes>, usize)) {
        if let Some(stream) = self.consumers[consumer].stream.as_mut().filter(|stream| n < stream.len()) {
            how(stream, n);
        }
    }

    /// The network recovers. A frame lost at the end is detected by the next one; if none follows, the stream counts as
    /// broken.
    fn converge(&mut self, broken: [bool; CONSUMERS]) {
        for (c, broken) in broken.into_iter().enumerate() {
            if broken {
                self.apply(Step::Disconnect(c));
            }
        }
        self.apply(Step::Flush);
        for c in 0..CONSUMERS {
            for _ in 0..8 {
                if self.consumers[c].stream.is_none() {
                    self.apply(Step::Connect(c));
                }
                self.apply(Step::Read(c));
                self.apply(Step::Arrive(c));
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn every_consumer_ends_with_the_producer_s_table(steps in prop::collection::vec(step(), 0..80)) {
        let mut world = World::new();
        let mut broken = [false; CONSUMERS];
        for step in steps {
            match step {
                Step::Drop(c, _) | Step::Swap(c, _) => broken[c] = true,
                Step::Connect(c) => broken[c] = false,
                Step::Set(..) | Step::Remove(_) | Step::Flush | Step::Restart | Step::Renew | Step::Disconnect(_)
                | Step::Duplicate(..) | Step::Read(_) | Step::Arrive(_) => {}
            }
            world.apply(step);
        }
        world.converge(broken);
        for consumer in &world.consumers {
            prop_assert_eq!(&consumer.table, &world.producer.live);
            prop_assert_eq!(consumer.follower.position(), Some(world.producer.publication.position()));
        }
    }

    /// A lost delta is detected by any later one, without a broken stream.
    #[test]
    fn lost_delta_is_recovered_after_next_one(steps in prop::collection::vec(step(), 0..80), last in any::<u8>()) {
        let mut world = World::new();
        for c in 0..CONSUMERS {
            world.apply(Step::Connect(c));
        }
        world.converge([false; CONSUMERS]);
        let lost = |step: &Step| !matches!(step, Step::Connect(_) | Step::Disconnect(_) | Step::Restart);
        for step in steps.into_iter().filter(lost) {
            world.apply(step);
        }
        world.apply(Step::Set(0, last));
        world.apply(Step::Flush);
        world.apply(Step::Set(0, last.wrapping_add(1)));
        world.converge([false; CONSUMERS]);
        for consumer in &world.consumers {
            prop_assert_eq!(&consumer.table, &world.producer.live);
        }
    }
}
