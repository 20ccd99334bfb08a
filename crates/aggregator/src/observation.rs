//! Observations over days: the ledger of edges, the evidence about audited policies, and when nodes reported. They are fed
//! from settled windows, saved in the state folder, and the source of first-seen events.

mod arguments;
mod collector;
mod state_file;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use insight::{AuditEvidence, EdgeLedger, FirstSeen, LedgerLimits, NodePresence};
use jiff::Timestamp;
use tokio::sync::oneshot;
use trail::{ExportPosition, ExportProgress, TrailRecord, WindowState, new_lines};

use crate::aggregate::{Aggregate, Reader};
use crate::cluster_view::ClusterView;
use crate::export::{Exports, pass};
pub(crate) use arguments::ObservationArguments;
use collector::EventCounts;
pub(crate) use collector::ObservationCollector;
use state_file::{SavedState, StateFile};

/// Interval of the check for settled windows.
const LOOK: Duration = Duration::from_secs(1);

/// Interval of saving. Records that were added since are read again after a crash: agents have those of an hour.
const SAVE: Duration = Duration::from_secs(300);

/// The observations of a process.
pub(crate) struct Observation {
    core: Mutex<Core>,
    file: Option<StateFile>,
    view: Option<Arc<ClusterView>>,
    events: EventCounts,
}

/// Everything that is saved together, so that each record is in all of it once.
pub(crate) struct Core {
    pub(crate) ledger: EdgeLedger,
    pub(crate) audits: AuditEvidence,
    pub(crate) presence: NodePresence,
    position: Option<ExportPosition>,
    /// Why an earlier state was lost, or the last one could not be saved.
    problem: Option<String>,
}

impl Observation {
    /// Continues the saved state, and makes the aggregate track which records were added.
    ///
    /// # Errors
    /// If the state folder cannot be used.
    pub(crate) fn open(
        arguments: &ObservationArguments,
        view: Option<Arc<ClusterView>>,
        aggregate: &Aggregate,
        now: Timestamp,
    ) -> anyhow::Result<Observation> {
        let limits = arguments.limits();
        let file =
            match &arguments.state_dir {
                Some(folder) => Some(StateFile::open(folder).context(
                    "cannot use the state folder; choose a folder that no other process uses with --state-dir",
                )?),
                None => None,
            };
        let core = match file.as_ref().map(StateFile::read) {
            Some(Ok(Some(saved))) => Core::restore(saved, limits),
            Some(Ok(None)) | None => Core::new(limits, now),
            Some(Err(error)) => {
                let problem = format!("{error}; observed edges and the evidence of audits start anew");
                tracing::error!("{problem}");
                Core { problem: Some(problem), ..Core::new(limits, now) }
            }
        };
        aggregate.mark(Reader::Edges, ExportProgress::new(core.position.clone(), Timestamp::MIN));
        Ok(Observation { core: Mutex::new(core), file, view, events: EventCounts::default() })
    }

    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why observations are incomplete, as sentences for people.
    pub(crate) fn problems(&self) -> Vec<String> {
        let core = self.core();
        let mut problems: Vec<String> = core.problem.iter().cloned().collect();
        let counts = core.ledger.counts();
        if counts.left_out_records > 0 {
            problems.push(format!(
                "{} records of new edges were left out of the observed edges, for lack of memory (--edge-memory-mib)",
                counts.left_out_records
            ));
        }
        problems
    }

    /// Follows the settled windows until `end` is sent, and saves a last time.
    pub(crate) async fn run(
        self: Arc<Observation>,
        aggregate: Arc<Aggregate>,
        exports: Arc<Exports>,
        mut end: oneshot::Receiver<()>,
    ) {
        let started = Instant::now();
        let settled = aggregate.settled();
        let mut look = tokio::time::interval(LOOK);
        let (mut passed, mut saved) = (Timestamp::MIN, Instant::now());
        loop {
            let is_end = tokio::select! {
                _ = look.tick() => false,
                _ = &mut end => true,
            };
            let (now, now_settled) = (Timestamp::now(), *settled.borrow());
            // Records of agents that reconnect later are late, and add what is new.
            let waits =
                started.elapsed() < pass::LONGEST_WAIT && aggregate.awaits_agents(Reader::Edges, now, pass::RESENT);
            let is_due = now_settled != passed && !waits;
            if !is_due && !is_end {
                continue;
            }
            let is_save_due = is_end || saved.elapsed() >= SAVE;
            let (this, aggregate, exports) = (self.clone(), aggregate.clone(), exports.clone());
            let work = move || {
                if is_due {
                    this.observe(&aggregate, now_settled, now);
                }
                let events = this.core().ledger.pending().to_vec();
                if is_save_due || !events.is_empty() {
                    // Events are saved before they are raised, so that a crash cannot lose any.
                    this.save();
                    this.raise(&events, &exports);
                    this.core().ledger.confirm(events.len());
                    if !events.is_empty() {
                        this.save();
                    }
                    return true;
                }
                false
            };
            match tokio::task::spawn_blocking(work).await {
                Ok(true) => saved = Instant::now(),
                Ok(false) => {}
                Err(panic) => tracing::error!("observing edges failed: {panic}"),
            }
            if is_due {
                passed = now_settled;
            }
            if is_end {
                return;
            }
        }
    }

    /// Adds the records of windows before `settled` that were not added before.
    fn observe(&self, aggregate: &Aggregate, settled: Timestamp, now: Timestamp) {
        let view = self.view.as_ref().and_then(|view| view.snapshot());
        {
            let mut core = self.core();
            core.presence.record_reports(&aggregate.figures().nodes, now);
            if let Some(state) = &view {
                core.presence.update(state.nodes().map(|node| &node.name.name), now);
                core.audits.update(state, now);
            }
            core.ledger.expire(now);
        }
        let Some((due, mut position)) = aggregate.begin_pass(Reader::Edges, settled) else { return };
        let (mut done, mut excess) = (Vec::new(), Vec::new());
        let mut records: Vec<TrailRecord> = Vec::new();
        for window in due {
            // The window may have left memory; the next pass counts what it had.
            let Some((settled, mut state)) = aggregate.read_settled(Reader::Edges, &window) else { continue };
            records.extend(new_lines(&settled, &mut state).records);
            let WindowState { is_late: _, unknown_nodes: _, excess: edges } = state;
            excess.push((window.window, edges));
            done.push(window);
        }
        position.excess = aggregate.end_pass(Reader::Edges, &done, excess);
        let mut core = self.core();
        for TrailRecord { joined, .. } in &records {
            core.ledger.add(joined);
            core.audits.add(joined);
        }
        core.position = Some(position);
    }

    /// Raises events: one log line, one line of the trail and one count each.
    fn raise(&self, events: &[FirstSeen], exports: &Exports) {
        for event in events {
            let key = &event.joined.record.key;
            tracing::info!(
                source = %key.source,
                destination = %key.destination,
                protocol = key.protocol,
                port = key.port,
                verdict = %key.verdict,
                first = %event.at(),
                "a flow was seen for the first time"
            );
            self.events.count(event);
        }
        let line = |event: &FirstSeen| TrailRecord { joined: event.joined.clone(), late: false, first_seen: true };
        exports.append(events.iter().map(line).collect());
    }

    fn save(&self) {
        let Some(file) = &self.file else { return };
        let state = self.core().save();
        let written = file.write(&state);
        let mut core = self.core();
        match written {
            Ok(()) => core.problem = core.problem.take().filter(|problem| !problem.starts_with(UNSAVED)),
            Err(error) => {
                let problem = format!("{UNSAVED}: {error}");
                tracing::warn!("{problem}");
                core.problem = Some(problem);
            }
        }
    }
}

/// Start of the problem that ends with the next save.
const UNSAVED: &str = "cannot save the observed edges";

impl Core {
    fn new(limits: LedgerLimits, now: Timestamp) -> Core {
        Core {
            ledger: EdgeLedger::new(limits, now),
            audits: AuditEvidence::default(),
            presence: NodePresence::default(),
            position: None,
            problem: None,
        }
    }

    fn restore(saved: SavedState, limits: LedgerLimits) -> Core {
        let SavedState { position, ledger, audits, presence } = saved;
        Core {
            ledger: EdgeLedger::restore(ledger, limits),
            audits: AuditEvidence::restore(audits),
            presence,
            position,
            problem: None,
        }
    }

    fn save(&self) -> SavedState {
        SavedState {
            position: self.position.clone(),
            ledger: self.ledger.save(),
            audits: self.audits.save(),
            presence: self.presence.clone(),
        }
    }
}

#[cfg(test)]
mod tests;
