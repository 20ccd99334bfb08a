use context::mmdb::read::Database;
use feed::{Follower, Next, Position};
use kit::agent_process::until;
use serde_json::Value;
use tests::fake_relay::{FakeRelay, ReceivedPush};

use super::IDENTITY;
use super::table::FollowedTable;

/// A receiver's table after everything that the relay accepted. It applies a baseline of another epoch directly; if a
/// delta does not join, it pulls the relay's last baseline and its deltas after that.
pub(super) struct RelayedTable {
    pub(super) table: FollowedTable,
    pub(super) position: Option<Position>,
    pub(super) baselines: usize,
    pub(super) deltas: usize,
    /// Number of deltas that did not join and required a baseline.
    pub(super) gaps: usize,
    /// Whether the relay's last baseline and deltas do not join.
    lacks: bool,
}

pub(super) fn relayed(relay: &FakeRelay, feed: &'static str) -> RelayedTable {
    let mut follower = Follower::new();
    let mut got = RelayedTable {
        table: FollowedTable::empty(feed),
        position: None,
        baselines: 0,
        deltas: 0,
        gaps: 0,
        lacks: false,
    };
    let mut latest: Option<(Position, FollowedTable)> = None;
    let mut held: Vec<(Position, Value)> = vec![];
    for taken in relay.taken(feed) {
        let joins = match taken {
            ReceivedPush::Baseline { version, position, bytes, .. } => {
                let position: Position = position.expect("a baseline says where it stands").parse().unwrap();
                if feed == IDENTITY {
                    let database = Database::open(&bytes[..]).unwrap();
                    assert_eq!(
                        (database.description().position, &database.description().version),
                        (position, &version)
                    );
                }
                latest = Some((position, FollowedTable::of(feed, &bytes)));
                got.baselines += 1;
                follower.position().is_some_and(|at| at.epoch == position.epoch) && !got.lacks
            }
            ReceivedPush::Delta(delta) => {
                let at = |key: &str| delta[key].as_u64().unwrap();
                let position = Position { epoch: at("epoch"), seq: at("seq") };
                got.deltas += 1;
                let next = follower.delta(position);
                if next == Next::Apply {
                    got.table.apply(&delta);
                }
                held.push((position, delta));
                got.gaps += usize::from(matches!(next, Next::Pull(_)));
                !matches!(next, Next::Pull(_))
            }
        };
        if let Some((position, table)) = latest.as_ref().filter(|_| !joins) {
            (follower, got.table) = (Follower::new(), table.clone());
            got.lacks = matches!(follower.baseline(*position), Next::Pull(_));
            for (at, delta) in &held {
                match follower.delta(*at) {
                    Next::Apply => got.table.apply(delta),
                    Next::Known => {}
                    Next::Pull(_) => got.lacks = at.epoch == position.epoch,
                }
            }
        }
    }
    got.position = follower.position();
    got
}

/// Waits until a receiver behind the relay has this table.
#[track_caller]
pub(super) fn until_relayed(relay: &FakeRelay, feed: &'static str, table: &FollowedTable) -> RelayedTable {
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        until("the relay's table is that of a fresh start", || {
            Some(relayed(relay, feed)).filter(|got| got.table == *table)
        })
    }));
    waited.unwrap_or_else(|_| {
        let RelayedTable { table: got, position, .. } = relayed(relay, feed);
        panic!("who receives {feed} has, at {position:?}, {got:#?}\nwhere a fresh start has {table:#?}")
    })
}
