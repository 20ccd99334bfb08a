//! A pass: settled windows become lines, and lines become batches in the spools.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use goldmane::collector::encode_updates;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::oneshot;
use trail::otlp::MetricBody;
use trail::{
    BATCH_BYTES, Batch, DueWindow, Entry, Namespaces, SettledRecord, TrailRecord, WindowState, new_lines, plan,
};

use super::goldmane::new_flows;
use super::sink::Sink;
use super::{ByteSums, Exports};
use crate::aggregate::{Aggregate, Reader};

/// Interval of the check for settled windows.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// After a restart, the first pass waits until the agents of the position have resent their exported records, at most for this
/// time: twice the longest backoff of agents.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// Agents have the records of an hour.
pub(crate) const RESENT: SignedDuration = SignedDuration::from_mins(61);

/// Makes passes until `end` is sent or dropped.
pub(super) async fn run(exports: Arc<Exports>, aggregate: Arc<Aggregate>, mut end: oneshot::Receiver<()>) {
    let started = Instant::now();
    let settled = aggregate.settled();
    let mut look = tokio::time::interval(CHECK_INTERVAL);
    let (mut passed, mut waits) = (Timestamp::MIN, true);
    let mut namespaces = Namespaces::default();
    loop {
        tokio::select! {
            _ = look.tick() => {}
            _ = &mut end => break,
        }
        let now = *settled.borrow();
        if now == passed {
            continue;
        }
        if waits && is_delayed(&exports, &aggregate, started.elapsed(), Timestamp::now()) {
            continue;
        }
        waits = false;
        namespaces = pass_on_thread(&exports, &aggregate, now, namespaces).await;
        passed = now;
    }
    // With a position on disk the next process exports what has not settled. Without, it exports no window of before its start.
    if exports.position.is_none() {
        pass_on_thread(&exports, &aggregate, Timestamp::MAX, namespaces).await;
    }
}

/// Whether the first pass has to wait for agents, at this time after the start. Agents that reconnect later add late lines to
/// windows that were exported: those that the position does not have are waited for in the start delay, and the others until
/// they have resent their exported records.
fn is_delayed(exports: &Exports, aggregate: &Aggregate, elapsed: Duration, now: Timestamp) -> bool {
    elapsed < exports.start_delay || (elapsed < LONGEST_WAIT && aggregate.awaits_agents(Reader::Exports, now, RESENT))
}

/// A pass on a thread that may block. Returns the namespaces for the next one.
async fn pass_on_thread(
    exports: &Arc<Exports>,
    aggregate: &Arc<Aggregate>,
    settled: Timestamp,
    mut namespaces: Namespaces,
) -> Namespaces {
    let (exports, aggregate) = (exports.clone(), aggregate.clone());
    let work = move || {
        pass(&exports, &aggregate, settled, &mut namespaces);
        namespaces
    };
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|panic| {
        tracing::error!("a pass of exports failed: {panic}");
        Namespaces::default()
    })
}

/// Exports the windows that begin before `settled`.
fn pass(exports: &Exports, aggregate: &Aggregate, settled: Timestamp, namespaces: &mut Namespaces) {
    let Some((due, mut position)) = aggregate.begin_pass(Reader::Exports, settled) else { return };
    exports.counts().unexported = aggregate.unread(Reader::Exports);
    if due.is_empty() {
        return;
    }
    let now = Timestamp::now();
    if let Some(sums) = &exports.byte_sums {
        sums.lock().expire(now);
    }
    let (mut done, mut excess, mut sums) = (Vec::new(), Vec::new(), [0; 4]);
    for window in due {
        // The window may have left memory; the next pass counts what it had.
        let Some((records, mut state)) = aggregate.read_settled(Reader::Exports, &window) else { continue };
        let lines = new_lines(&records, &mut state);
        let late = lines.records.iter().filter(|line| line.late).count() as u64;
        let total = lines.records.len() as u64;
        let mut unencodable = 0;
        // Flows without known counts would be empty.
        if lines.uncounted == 0 {
            unencodable += spool_flows(exports, position.pass, &window, &records, total);
        }
        if let Some(sums) = &exports.byte_sums {
            let mut sums = sums.lock();
            lines.records.iter().for_each(|line| sums.add(line, now));
        }
        unencodable += spool(exports, position.pass, &window, lines.records, namespaces);
        for (sum, count) in sums.iter_mut().zip([total, late, lines.uncounted, unencodable]) {
            *sum += count;
        }
        let WindowState { is_late: _, unknown_nodes: _, excess: edges } = state;
        excess.push((window.window, edges));
        done.push(window);
    }
    if let Some(byte_sums) = &exports.byte_sums {
        spool_sums(exports, byte_sums, position.pass, now);
    }
    position.excess = aggregate.end_pass(Reader::Exports, &done, excess);
    let mut is_durable = true;
    for exporter in &exports.exporters {
        is_durable &= exporter.sync();
    }
    if let Some(file) = &exports.position {
        // Batches in memory are lost with the process: without a new position, agents send their records again.
        let written = if is_durable {
            file.write(&position).map_err(|error| error.to_string())
        } else {
            Err("batches wait in memory".into())
        };
        let problem = written.err();
        let mut counts = exports.counts();
        if let (Some(why), None) = (&problem, &counts.position_problem) {
            tracing::warn!("cannot write the position of exports: {why}");
        }
        counts.position_problem = problem;
    }
    exports.committed.store(position.pass, Ordering::Release);
    // Lines of a pass that was not committed are discarded at a restart, and are not lines of the trail.
    let [lines, late, uncounted, unencodable] = sums;
    let mut counts = exports.counts();
    counts.lines += lines;
    counts.late += late;
    counts.uncounted += uncounted;
    counts.unencodable += unencodable;
    drop(counts);
    for exporter in &exports.exporters {
        exporter.wake();
    }
}

/// Number of records that have no JSON form.
fn spool(
    exports: &Exports,
    pass: u64,
    window: &DueWindow,
    records: Vec<TrailRecord>,
    namespaces: &mut Namespaces,
) -> u64 {
    let total = records.len();
    let entries: Vec<Entry> =
        records.into_iter().filter_map(|record| Entry::new(&exports.cluster, record, namespaces).ok()).collect();
    let mut unencodable = (total - entries.len()) as u64;
    for part in plan(entries) {
        for exporter in &exports.exporters {
            match exporter.sink().encode_lines(&exports.cluster, &part) {
                None => {}
                Some(Ok(body)) => {
                    exporter.append(pass, vec![Batch { window: window.window, records: part.len() as u64, body }]);
                }
                Some(Err(error)) => {
                    tracing::error!("cannot encode flow records: {error}");
                    unencodable += part.len() as u64;
                }
            }
        }
    }
    unencodable
}

/// Appends the flows of a window to the spools of Goldmanes. Returns the number of lines without flows, out of `lines`.
fn spool_flows(exports: &Exports, pass: u64, window: &DueWindow, records: &[SettledRecord], lines: u64) -> u64 {
    let mut receivers = exports.exporters.iter().filter(|exporter| matches!(exporter.sink(), Sink::Goldmane(_)));
    let Some(exporter) = receivers.next() else { return 0 };
    let flows = match new_flows(records) {
        Ok(flows) => flows,
        Err(error) => {
            tracing::error!("cannot encode flow records for Goldmane: {error}");
            return lines;
        }
    };
    let batches = encode_updates(flows, BATCH_BYTES).into_iter();
    let batches = batches.map(|batch| Batch { window: window.window, records: batch.updates, body: batch.body });
    exporter.append(pass, batches.collect());
    0
}

/// Appends the sums of bytes to the spool of their receiver.
fn spool_sums(exports: &Exports, byte_sums: &ByteSums, pass: u64, now: Timestamp) {
    let encoded = byte_sums.lock().encode(&exports.cluster, now);
    for exporter in exports.exporters.iter().filter(|exporter| matches!(exporter.sink(), Sink::OtlpMetrics(_))) {
        match &encoded {
            Ok(None) => {}
            Ok(Some(MetricBody { points, body })) => {
                exporter.append(pass, vec![Batch { window: now, records: *points, body: body.clone() }]);
            }
            // The next pass has the bytes.
            Err(error) => tracing::error!("cannot encode the sums of bytes: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use flow::FlowFilters;

    use super::*;
    use crate::export::ExportArguments;
    use crate::testing::{push_from, window};

    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        export: ExportArguments,
    }

    /// Lines and late lines of a start after which `n2` reconnects at the end of its longest backoff.
    async fn lines_after_start(more: &[&str]) -> (u64, u64) {
        let aggregate = Aggregate::new(1 << 20);
        let arguments = ["test", "--export-file", "/dev/null"].iter().chain(more);
        let arguments = Arguments::try_parse_from(arguments).unwrap();
        let exports = Exports::open(&arguments.export, &aggregate, window(-1)).await.unwrap();
        let mut namespaces = Namespaces::default();
        for second in 0..=60 {
            let (elapsed, now) = (Duration::from_secs(second), window(4) + SignedDuration::from_secs(second as i64));
            match second {
                1 => push_from("n1", &aggregate, 1, &[(0, 5432, 3)], now),
                30 => push_from("n2", &aggregate, 1, &[(0, 5432, 3)], now),
                _ => {}
            }
            if !is_delayed(&exports, &aggregate, elapsed, now) {
                pass(&exports, &aggregate, window(2), &mut namespaces);
            }
        }
        let [joined] = &*aggregate.read(window(0), &FlowFilters::default()) else { panic!("one record") };
        assert!(joined.source_verdict.is_some() && joined.destination_verdict.is_some());
        let counts = exports.counts();
        (counts.lines, counts.late)
    }

    #[tokio::test]
    async fn first_pass_waits_until_agents_reconnect() {
        assert_eq!(lines_after_start(&[]).await, (1, 0));
        assert_eq!(lines_after_start(&["--export-start-delay", "1s"]).await, (2, 1), "n2 adds a late line");
    }
}
