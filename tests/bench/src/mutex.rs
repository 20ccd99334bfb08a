//! How long others wait for our largest transaction: a complete table for a large cluster, in one transaction and in
//! bounded ones.
//!
//! The kernel processes one transaction of a network namespace at a time (`commit_mutex` of nf_tables). Meanwhile two
//! programs, one in the same namespace and one in another, repeatedly commit a small change, and a third requests the
//! generation. A waiter in the same namespace holds the lock that every batch to nf_tables acquires first, in any
//! namespace (`nfnl_lock` around `nf_tables_valid_genid` in `nfnetlink_rcv_batch`), so that other namespaces wait too.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nfnetlink::Kernel;
use nft::{Comment, Name, Operation, Ruleset};

use super::figures::Figure;
use super::packets::ours::Cluster;
use super::record::{Measurement, Record};
use super::table::MarkdownTable;
use kit::netns::in_new_namespace;

/// Parameters of the measurement.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub rounds: usize,
    /// Elements of the largest set.
    pub elements: u32,
    /// Pod programs: pods that have their own policy.
    pub programs: u32,
}

impl Size {
    /// The parameters of `docs/performance.md`.
    pub fn of_rounds(rounds: usize) -> Size {
        Size { rounds, elements: 100_000, programs: 1000 }
    }
}

/// How the table is committed.
#[derive(Debug, Clone, Copy)]
enum Way {
    AtOnce,
    /// Sets without references are filled first, this many elements per transaction; then everything else is committed.
    FilledFirst(usize),
}

impl Way {
    const ALL: [Way; 4] = [Way::AtOnce, Way::FilledFirst(20_000), Way::FilledFirst(5000), Way::FilledFirst(1000)];
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::AtOnce => f.write_str("one transaction"),
            Way::FilledFirst(most) => write!(f, "sets first, {most} elements each"),
        }
    }
}

/// Durations in milliseconds.
struct Run {
    transactions: usize,
    /// The time until the last transaction is acknowledged.
    all: f64,
    /// The longest of our own transactions, from the encoding to the acknowledgement.
    longest: f64,
    /// The longest wait of others.
    committing_here: f64,
    committing_elsewhere: f64,
    asking_here: f64,
}

/// Selects a figure of a run.
type FigureOf = fn(&Run) -> f64;

const UNIT: &str = "ms";

/// Measures, and reports.
///
/// # Panics
/// If something cannot be measured. It needs root.
pub fn measure(size: Size) -> Measurement {
    let Size { rounds, elements, programs } = size;
    let cluster = Cluster { peer_addresses: elements, programs, ..Cluster::SMALLEST };
    let ruleset = cluster.ruleset("ringfence");
    let mut runs: Vec<Vec<Run>> = Way::ALL.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (way, runs) in Way::ALL.iter().zip(&mut runs) {
            runs.push(run(&transactions(&ruleset, *way)));
        }
    }
    let mut report = format!(
        "\nmutex: {elements} elements, {programs} programs; ms, the median of {rounds} runs in turn (least-most), of others \
         the longest wait of each run\n\n"
    );
    let heads = Way::ALL.iter().map(Way::to_string);
    let mut table = MarkdownTable::new(std::iter::once(String::new()).chain(heads));
    let transactions = runs.iter().map(|runs| runs[0].transactions.to_string());
    table.row(std::iter::once("transactions".to_owned()).chain(transactions));
    let of: [(&str, FigureOf); 5] = [
        ("all of it", |run| run.all),
        ("our longest transaction", |run| run.longest),
        ("a small commit in the same namespace waits", |run| run.committing_here),
        ("a small commit in another namespace waits", |run| run.committing_elsewhere),
        ("the generation, asked for in the same namespace", |run| run.asking_here),
    ];
    let mut records = Vec::new();
    for (what, value) in of {
        let figures: Vec<Figure> = runs.iter().map(|runs| Figure::of(runs.iter().map(value))).collect();
        table.row(std::iter::once(what.to_owned()).chain(figures.iter().map(|figure| format!("{figure:.1}"))));
        for (way, figure) in Way::ALL.iter().zip(&figures) {
            let x = match way {
                Way::AtOnce => elements as usize,
                Way::FilledFirst(most) => *most,
            };
            let x = (x as f64, "elements a transaction");
            records.push(Record::new("mutex", ("large table", what), x, (figure, UNIT)));
        }
    }
    write!(report, "{table}").expect("a String takes all");
    Measurement { report, records }
}

/// The operations of each transaction.
fn transactions(ruleset: &Ruleset, way: Way) -> Vec<Vec<Operation>> {
    let all = nft::create(ruleset);
    let most = match way {
        Way::AtOnce => return vec![all],
        Way::FilledFirst(most) => most,
    };
    // The elements of a verdict map refer to chains, so they are added later.
    let is_early = |operation: &Operation| match operation {
        Operation::AddTable { .. } => true,
        Operation::AddSet { set, .. } | Operation::AddElements { set, .. } => !set.verdicts,
        Operation::DeleteTable { .. }
        | Operation::AddChain { .. }
        | Operation::FlushChain { .. }
        | Operation::DeleteChain { .. }
        | Operation::AddRule { .. }
        | Operation::DeleteSet { .. }
        | Operation::DeleteElements { .. } => false,
    };
    let (early, last): (Vec<Operation>, Vec<Operation>) = all.into_iter().partition(is_early);
    let mut transactions: Vec<Vec<Operation>> = vec![Vec::new()];
    let mut room = most;
    for operation in early {
        let Operation::AddElements { table, name, set, elements } = operation else {
            transactions[0].push(operation);
            continue;
        };
        let mut rest = &elements[..];
        while !rest.is_empty() {
            if room == 0 {
                transactions.push(Vec::new());
                room = most;
            }
            let (now, later) = rest.split_at(room.min(rest.len()));
            let (table, name, set) = (table.clone(), name.clone(), set.clone());
            let part = Operation::AddElements { table, name, set, elements: now.to_vec() };
            transactions.last_mut().expect("there is a first one").push(part);
            (rest, room) = (later, room - now.len());
        }
    }
    transactions.push(last);
    transactions
}

/// Runs in a new namespace.
fn run(transactions: &[Vec<Operation>]) -> Run {
    in_new_namespace(|| {
        let open = || Kernel::open().expect("nf_tables");
        let (mut kernel, mut committing, mut asking) = (open(), open(), open());
        let mut elsewhere = in_new_namespace(open);
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let here = scope.spawn(|| longest(&over, |turn| commit_something_small(&mut committing, turn)));
            let there = scope.spawn(|| longest(&over, |turn| commit_something_small(&mut elsewhere, turn)));
            let asker = scope.spawn(|| {
                longest(&over, |_| {
                    asking.generation().expect("a generation");
                })
            });
            // The others are running before the measurement begins, and until it has ended.
            thread::sleep(Duration::from_millis(20));
            let begun = Instant::now();
            let mut longest_of_ours = Duration::ZERO;
            for operations in transactions {
                let begun = Instant::now();
                kernel.commit(operations, 0).unwrap_or_else(|e| panic!("{e}"));
                longest_of_ours = longest_of_ours.max(begun.elapsed());
            }
            let all = begun.elapsed();
            over.store(true, Ordering::Relaxed);
            let waited = [here, there, asker].map(|other| match other.join() {
                Ok(waited) => milliseconds(waited),
                Err(panic) => std::panic::resume_unwind(panic),
            });
            Run {
                transactions: transactions.len(),
                all: milliseconds(all),
                longest: milliseconds(longest_of_ours),
                committing_here: waited[0],
                committing_elsewhere: waited[1],
                asking_here: waited[2],
            }
        })
    })
}

/// The longest duration of repeated calls, with a pause between two.
fn longest(over: &AtomicBool, mut act: impl FnMut(u32)) -> Duration {
    const BETWEEN: Duration = Duration::from_millis(1);
    let (mut longest, mut turn) = (Duration::ZERO, 0);
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        act(turn);
        longest = longest.max(begun.elapsed());
        turn += 1;
        thread::sleep(BETWEEN);
    }
    longest
}

/// Adds and removes an empty table.
fn commit_something_small(kernel: &mut Kernel, turn: u32) {
    let table = nft::Table::inet(Name::new("somebody-else").expect("a name"));
    let operation = if turn.is_multiple_of(2) {
        Operation::AddTable { table, comment: Comment::new("not ours"), protected: false }
    } else {
        Operation::DeleteTable { table }
    };
    kernel.commit(&[operation], 0).unwrap_or_else(|e| panic!("{e}"));
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
