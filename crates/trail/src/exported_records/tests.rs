use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::{record, window, with_service};
use crate::window_lines::{SettledRecord, WindowState, new_lines};
use flow::FlowRecord;

const NODES: [&str; 3] = ["n0", "n1", "n2"];
const WINDOWS: i64 = 4;

/// Connections of two nodes, which both report.
#[derive(Debug, Clone, Copy)]
struct Conversation {
    client: usize,
    server: usize,
    window: i64,
    service: bool,
    count: u64,
}

/// The records of each node, in the order of its windows.
fn records(conversations: &[Conversation]) -> [Vec<FlowRecord>; 3] {
    std::array::from_fn(|node| {
        let mut records: Vec<FlowRecord> = Vec::new();
        for number in 0..WINDOWS {
            for service in [true, false] {
                let mine = |conversation: &&Conversation| {
                    conversation.window == number && conversation.client == node && conversation.service == service
                };
                records.extend(sum(
                    conversations.iter().filter(mine).filter(|conversation| conversation.server != node),
                    node,
                    number,
                    service,
                ));
                records.extend(sum(
                    conversations.iter().filter(mine).filter(|conversation| conversation.server == node),
                    node,
                    number,
                    service,
                ));
            }
            // The server's node does not know the Service.
            let theirs = conversations.iter().filter(|conversation| {
                conversation.window == number && conversation.server == node && conversation.client != node
            });
            records.extend(sum(theirs, node, number, false));
        }
        records
    })
}

fn sum<'a>(
    conversations: impl Iterator<Item = &'a Conversation>,
    node: usize,
    number: i64,
    service: bool,
) -> Option<FlowRecord> {
    let conversations: Vec<&Conversation> = conversations.collect();
    let names = |end: fn(&Conversation) -> usize| {
        conversations.iter().map(|conversation| NODES[end(conversation)]).collect::<Vec<&str>>()
    };
    let count = conversations.iter().map(|conversation| conversation.count).sum();
    let sum = record(
        NODES[node],
        number,
        &names(|conversation| conversation.client),
        &names(|conversation| conversation.server),
        count,
    );
    let sum = if service { with_service(sum, "db") } else { sum };
    (!conversations.is_empty()).then_some(sum)
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The next `count` records of a node arrive.
    Deliver { node: usize, count: usize },
    /// Exports the windows before this one.
    Pass { window: i64 },
    /// The process restarts and agents resend their records. `is_hasty`: the next pass does not wait for them.
    Restart { is_hasty: bool },
    /// The process ends during a pass, before the position is written.
    CrashInPass { window: i64 },
    /// The agent of a node restarts without its records. `is_set_back`: its clock was set back meanwhile.
    RestartAgent { node: usize, is_set_back: bool },
}

/// Model of an agent: its epoch, and its records in the order of their sequence numbers.
struct Agent {
    epoch: u64,
    /// Number of records of its earlier epochs.
    lost: usize,
    /// Number of records that any aggregator has received.
    sent: usize,
}

/// Model of an aggregator with its exporter.
struct Aggregator {
    progress: ExportProgress,
    store: BTreeMap<Timestamp, Vec<FlowRecord>>,
    received: [usize; 3],
}

impl Aggregator {
    fn new(position: Option<ExportPosition>) -> Aggregator {
        Aggregator { progress: ExportProgress::new(position, Timestamp::MIN), store: BTreeMap::new(), received: [0; 3] }
    }

    fn deliver(&mut self, node: usize, agent: &mut Agent, records: &[FlowRecord], count: usize) {
        let begin = self.received[node].max(agent.lost);
        let end = records.len().min(begin + count);
        for (index, record) in records.iter().enumerate().take(end).skip(begin) {
            self.store.entry(record.window).or_default().push(record.clone());
            self.progress.record_arrival(&record.node, agent.epoch, (index - agent.lost) as u64 + 1, record.window);
        }
        self.received[node] = end.max(begin);
        agent.sent = agent.sent.max(end);
    }

    /// Number of connections on the lines of a pass, and the position after the pass.
    fn pass(&mut self, settled: i64) -> (u64, ExportPosition) {
        let kept = self.store.keys().copied().collect();
        let due = self.progress.due(window(settled), &kept);
        let mut position = self.progress.advance(window(settled));
        let (mut started, mut excess) = (0, Vec::new());
        for window in &due {
            let records = self.store[&window.window].iter().zip(&window.exported);
            let records: Vec<SettledRecord> = records
                .map(|(record, exported)| SettledRecord { record: record.clone(), is_exported: *exported })
                .collect();
            let mut state = WindowState {
                is_late: window.is_late,
                unknown_nodes: self.progress.unknown_nodes(window.window),
                excess: self.progress.excess(window.window),
            };
            let lines = new_lines(&records, &mut state);
            started += lines.records.iter().map(|line| line.joined.record.connections.started).sum::<u64>();
            excess.push((window.window, state.excess));
        }
        self.progress.exported(&due, excess);
        position.excess = self.progress.all_excess();
        (started, position)
    }
}

fn conversation() -> impl Strategy<Value = Conversation> {
    (0..3usize, 0..3usize, 0..WINDOWS, any::<bool>(), 1..9u64)
        .prop_map(|(client, server, window, service, count)| Conversation { client, server, window, service, count })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..3usize, 1..4usize).prop_map(|(node, count)| Step::Deliver { node, count }),
        4 => (1..=WINDOWS).prop_map(|window| Step::Pass { window }),
        1 => any::<bool>().prop_map(|is_hasty| Step::Restart { is_hasty }),
        1 => (1..=WINDOWS).prop_map(|window| Step::CrashInPass { window }),
        1 => (0..3usize, any::<bool>()).prop_map(|(node, is_set_back)| Step::RestartAgent { node, is_set_back }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Exported lines count each connection of the nodes, despite late records, and restarts of the aggregator and of agents.
    #[test]
    fn trail_has_each_connection_once(conversations in vec(conversation(), 0..12), steps in vec(step(), 0..24)) {
        let made = records(&conversations);
        let total: u64 = conversations.iter().map(|conversation| conversation.count).sum();
        let (mut aggregator, mut position) = (Aggregator::new(None), None);
        let mut agents = [const { Agent { epoch: 100, lost: 0, sent: 0 } }; 3];
        let (mut exported, mut settled, mut is_incomplete) = (0, 0, false);
        // Acknowledged records of each agent before a restart, which the agent resends before the next pass.
        let mut resent = [0; 3];
        for step in steps {
            match step {
                Step::Deliver { node, count } => aggregator.deliver(node, &mut agents[node], &made[node], count),
                Step::Pass { window } | Step::CrashInPass { window } => {
                    for node in 0..3 {
                        let received = aggregator.received[node].max(agents[node].lost);
                        let missing = resent[node].max(received) - received;
                        aggregator.deliver(node, &mut agents[node], &made[node], missing);
                    }
                    settled = settled.max(window);
                    let (lines, next) = aggregator.pass(settled);
                    if let Step::CrashInPass { .. } = step {
                        resent = std::array::from_fn(|node| resent[node].max(aggregator.received[node]));
                        is_incomplete |= agents.iter().any(|agent| agent.lost > 0);
                        aggregator = Aggregator::new(position.clone());
                    } else {
                        exported += lines;
                        position = Some(next);
                    }
                }
                Step::Restart { is_hasty } => {
                    let received = std::array::from_fn(|node| resent[node].max(aggregator.received[node]));
                    resent = if is_hasty { [0; 3] } else { received };
                    is_incomplete |= is_hasty || agents.iter().any(|agent| agent.lost > 0);
                    aggregator = Aggregator::new(position.clone());
                }
                // Records that the ended agent has not sent belong to the next epoch here: without them nothing is tested.
                Step::RestartAgent { node, is_set_back } => {
                    let agent = &mut agents[node];
                    let received = aggregator.received[node].max(agent.lost);
                    // Records of before a restart of the aggregator, which were not resent to this one.
                    is_incomplete |= agent.sent > received;
                    let epoch = if is_set_back { agent.epoch - 1 } else { agent.epoch + 50 };
                    *agent = Agent { epoch, lost: agent.sent, sent: agent.sent };
                }
            }
            prop_assert!(exported <= total, "{exported} of {total}");
        }
        for (node, records) in made.iter().enumerate() {
            aggregator.deliver(node, &mut agents[node], records, usize::MAX / 2);
        }
        exported += aggregator.pass(WINDOWS).0;
        prop_assert!(exported <= total, "{exported} of {total}");
        if !is_incomplete {
            prop_assert_eq!(exported, total);
        }
    }
}

#[test]
fn windows_before_start_are_not_exported_without_position() {
    let mut progress = ExportProgress::new(None, window(2));
    let node = Arc::from("n1");
    for (sequence, number) in [(1, 0), (2, 2)] {
        progress.record_arrival(&node, 1, sequence, window(number));
    }
    let kept = [window(0), window(2)].into();
    assert_eq!(progress.due(window(9), &kept).iter().map(|due| due.window).collect::<Vec<_>>(), [window(2)]);
    assert_eq!(progress.evicted(), 0);
}

#[test]
fn evicted_records_are_counted_once() {
    let mut progress = ExportProgress::new(None, Timestamp::MIN);
    let node = Arc::from("n1");
    progress.record_arrival(&node, 1, 1, window(0));
    progress.record_arrival(&node, 1, 2, window(1));
    for _ in 0..2 {
        let due = progress.due(window(9), &[window(1)].into());
        assert_eq!((due.len(), progress.evicted()), (1, 1));
    }
}

#[test]
fn earlier_life_of_agent_is_exported_as_new() {
    let node: Arc<str> = "n1".into();
    let mut progress = ExportProgress::new(None, Timestamp::MIN);
    progress.record_arrival(&node, 2, 1, window(0));
    let due = progress.due(window(1), &[window(0)].into());
    let position = progress.advance(window(1));
    progress.exported(&due, vec![]);
    assert_eq!(position.nodes[&node][0].sequence, 1);
    let mut progress = ExportProgress::new(Some(position), Timestamp::MIN);
    // A resent record, a record of another epoch, and a new record of the same epoch.
    progress.record_arrival(&node, 2, 1, window(0));
    progress.record_arrival(&node, 1, 1, window(0));
    progress.record_arrival(&node, 2, 2, window(0));
    let due = progress.due(window(1), &[window(0)].into());
    assert_eq!(due[0].exported, [true, false, false]);
    assert!(due[0].is_late);
}

#[test]
fn lower_epoch_is_exported_once_across_restart() {
    let node: Arc<str> = "n1".into();
    let mut progress = ExportProgress::new(None, Timestamp::MIN);
    // The clock of the agent was ahead at its start, and is set back before the next one.
    for (epoch, number) in [(200, 0), (100, 2)] {
        progress.record_arrival(&node, epoch, 1, window(number));
        let due = progress.due(window(number + 1), &[window(0), window(2)].into());
        assert_eq!(due.len(), 1);
        drop(progress.advance(window(number + 1)));
        progress.exported(&due, vec![]);
    }
    let position = progress.advance(window(3));
    // The aggregator restarts, and the agent resends the record.
    let mut progress = ExportProgress::new(Some(position), Timestamp::MIN);
    assert!(progress.awaits_agents(window(2)));
    progress.record_arrival(&node, 100, 1, window(2));
    assert!(!progress.awaits_agents(Timestamp::MIN));
    assert_eq!(progress.due(window(3), &[window(2)].into()), [], "exported twice");
    assert_eq!(progress.unknown_nodes(window(2)), [].into());
    assert_eq!(progress.unknown_nodes(window(0)), [node].into(), "the ended agent cannot resend its record");
}

#[test]
fn epochs_of_a_node_are_bounded() {
    let node: Arc<str> = "n1".into();
    let mut progress = ExportProgress::new(None, Timestamp::MIN);
    for epoch in 0..20 {
        progress.record_arrival(&node, epoch, 1, window(20 - epoch as i64));
    }
    let position = progress.advance(window(30));
    let epochs = &position.nodes[&node];
    assert_eq!((epochs.len(), epochs[0].newest), (MOST_EPOCHS, window(20)));
}

#[test]
fn positions_outlive_a_clock_that_is_ahead() {
    let node: Arc<str> = "n1".into();
    let mut progress = ExportProgress::new(None, Timestamp::MIN);
    progress.record_arrival(&node, 1, 1, window(0));
    let ahead = window(0) + SignedDuration::from_hours(24);
    let due = progress.due(ahead, &[window(0)].into());
    let position = progress.advance(ahead);
    progress.exported(&due, vec![]);
    // The clock is set back, the aggregator restarts, and the agent resends the record.
    let mut progress = ExportProgress::new(Some(position), Timestamp::MIN);
    progress.record_arrival(&node, 1, 1, window(0));
    assert_eq!(progress.due(window(1), &[window(0)].into()), []);
}
