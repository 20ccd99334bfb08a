//! Sends the records of the node's ring to the aggregator.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use delivery::{Delivery, DeliveryFigures, DeliveryTarget};
use jiff::Timestamp;

use super::store::FlowStore;

/// Time in which the last records are sent at the end of the agent. The kubelet kills it after 5 s
/// (`terminationGracePeriodSeconds` of the DaemonSet).
const LAST_DELIVERY: Duration = Duration::from_secs(3);

/// File in the run directory with the number of records that an aggregator lacks, and its name while it is written.
const FILE: &str = "undelivered-flow-records";
const NEW: &str = "undelivered-flow-records.new";

/// Starts a task that sends the records of closed windows. Its buffer is the ring, so nothing waits for it.
pub(crate) fn start_delivery(node: &str, target: DeliveryTarget, store: &Arc<FlowStore>, run_dir: &Path) {
    // Microseconds since 1970. Readers compare epochs for equality only: an agent whose clock was set back starts with a
    // lower one.
    let epoch = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0);
    let delivery = Delivery::new(node.to_owned(), epoch, target);
    let figures = delivery.figures();
    let file = UndeliveredFile::new(run_dir);
    match file.read() {
        Ok(0) => {}
        Ok(lost) => {
            tracing::warn!(records = lost, "the previous agent ended before an aggregator had these flow records");
            figures.add_lost(lost);
        }
        Err(error) => tracing::warn!("cannot read how many flow records the previous agent had not delivered: {error}"),
    }
    store.set_delivery(figures.clone());
    tokio::spawn(save_undelivered(file, store.clone(), figures));
    let (closed, store) = (store.closed(), store.clone());
    tokio::spawn(delivery.run(closed, move |sequence, most| store.batch_from(sequence, most)));
}

/// Closes the open window and sends all records, because the agent ends. Without an aggregator it does nothing.
pub(crate) async fn finish_delivery(store: &FlowStore, run_dir: &Path) {
    let Some(figures) = store.delivery() else { return };
    let last = async {
        store.finish().await;
        figures.flush(store.newest()).await;
    };
    let is_flushed = tokio::time::timeout(LAST_DELIVERY, last).await.is_ok();
    let undelivered = store.undelivered(figures);
    if !is_flushed && undelivered > 0 {
        tracing::warn!(records = undelivered, "flow records are lost: no aggregator acknowledged them before the end");
    }
    if let Err(error) = UndeliveredFile::new(run_dir).write(undelivered) {
        tracing::warn!("cannot write the number of undelivered flow records for the next agent: {error}");
    }
}

/// Writes the number of undelivered records whenever it changes, for the case that the agent is killed.
async fn save_undelivered(file: UndeliveredFile, store: Arc<FlowStore>, figures: DeliveryFigures) {
    let (mut closed, mut changes) = (store.closed(), figures.changes());
    let mut saved = None;
    loop {
        let undelivered = store.undelivered(&figures);
        if saved != Some(undelivered) {
            saved = Some(undelivered);
            if let Err(error) = file.write(undelivered) {
                tracing::debug!("cannot write the number of undelivered flow records: {error}");
            }
        }
        let changed = tokio::select! {
            changed = closed.changed() => changed,
            changed = changes.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// The number of records that an aggregator lacks, which the next agent counts: no other process has it. The run
/// directory ends with the boot, as do the connections.
#[derive(Debug)]
pub(crate) struct UndeliveredFile {
    folder: PathBuf,
}

impl UndeliveredFile {
    fn new(folder: &Path) -> UndeliveredFile {
        UndeliveredFile { folder: folder.to_owned() }
    }

    /// Files in the folder that belong to the agent.
    pub(crate) fn files(folder: &Path) -> [PathBuf; 2] {
        [FILE, NEW].map(|name| folder.join(name))
    }

    fn read(&self) -> io::Result<u64> {
        match std::fs::read_to_string(self.folder.join(FILE)) {
            Ok(text) => text.trim().parse().map_err(io::Error::other),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn write(&self, records: u64) -> io::Result<()> {
        let new = self.folder.join(NEW);
        std::fs::write(&new, format!("{records}\n"))?;
        std::fs::rename(&new, self.folder.join(FILE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undelivered_records_are_read_by_next_agent() {
        let folder = tempfile::tempdir().unwrap();
        let file = UndeliveredFile::new(folder.path());
        assert_eq!(file.read().unwrap(), 0);
        file.write(7).unwrap();
        assert_eq!(file.read().unwrap(), 7);
        std::fs::write(folder.path().join(FILE), "many").unwrap();
        assert!(file.read().is_err());
    }
}
