//! Keeps the plugin's binary and its entry in the network configuration installed.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use cluster::{BurstLimits, burst_end};
use inotify::{EventStream, Inotify, WatchMask};
use tokio::time::sleep;

use super::rate_limit::{FREE, RateLimit, WINDOW};
use super::{Attempt, Plugin, PluginEntry, install_entry};
use crate::conflist::ConflistEntry;

/// Debounce of file changes, which occur in bursts.
const BURST: BurstLimits = BurstLimits { quiet: Duration::from_millis(10), longest: Duration::from_millis(200) };

/// Resync interval, since inotify events may be lost by an overflow or unsupported by the file system.
const RESCAN: Duration = Duration::from_secs(30);

/// Resync interval while a folder is missing or inotify is unavailable.
const RESCAN_UNWATCHED: Duration = Duration::from_secs(1);

/// Size of the buffer for one read of inotify events; the kernel queues further events. An event with a file name of
/// maximum length has 272 bytes.
const EVENT_BYTES: usize = 4096;

/// The plugin's files to install and their destinations.
pub(crate) struct InstalledFiles {
    pub(crate) conf_dir: PathBuf,
    pub(crate) bin_dir: PathBuf,
    pub(crate) plugin: Plugin,
    pub(crate) entry: ConflistEntry,
}

/// Installs the plugin and the entry. Returns when both are installed. If they are to be `kept` installed, never
/// returns.
///
/// File errors are logged, and the attempt is retried.
pub(crate) async fn watch(watched: InstalledFiles, kept: bool) {
    let mut notices = match Inotify::init().and_then(|inotify| inotify.into_event_stream(vec![0; EVENT_BYTES])) {
        Ok(notices) => Some(notices),
        Err(e) => {
            tracing::warn!("inotify failed, so the configuration is polled every {RESCAN_UNWATCHED:?}: {e}");
            None
        }
    };
    let mut rate_limit = RateLimit::default();
    let mut reported = None;
    let mut installed = false;
    loop {
        let is_watched = notices.as_mut().is_some_and(|notices| add_watches(notices, &watched));
        let outcome = attempt(&watched);
        match &outcome {
            Ok((_, Attempt { found: PluginEntry::Written(file), .. })) if installed => {
                rate_limit.count(Instant::now());
                tracing::warn!(file = %file.display(), times = rate_limit.total, "restored the plugin's entry, which \
                    another program had removed or changed");
            }
            Ok((true, _)) if installed => {
                rate_limit.count(Instant::now());
                tracing::warn!(
                    times = rate_limit.total,
                    "restored the plugin's binary, which another program had removed or changed"
                );
            }
            Ok(_) | Err(_) => report(&watched, &outcome, &mut reported),
        }
        let done = matches!(&outcome, Ok((_, attempt)) if attempt.found != PluginEntry::Nothing);
        installed |= done;
        if done && !kept {
            return;
        }
        let rescan = if is_watched { RESCAN } else { RESCAN_UNWATCHED };
        tokio::select! {
            _ = burst_end(notices.as_mut(), BURST) => {}
            () = sleep(rescan) => {}
        }
        let wait = rate_limit.wait(Instant::now());
        if !wait.is_zero() {
            tracing::warn!(
                times = rate_limit.total,
                "the plugin's entry was restored {FREE} times within {WINDOW:?}: another program keeps removing it \
                 from {}; meanwhile pods may start without waiting for their rules; next attempt in {wait:?}",
                watched.conf_dir.display()
            );
            sleep(wait).await;
        }
    }
}

/// Installs the plugin, then the entry, since an entry without the plugin prevents every pod from starting.
fn attempt(watched: &InstalledFiles) -> std::io::Result<(bool, Attempt)> {
    let copied = watched.plugin.copy_into(&watched.bin_dir)?;
    Ok((copied, install_entry(&watched.conf_dir, &watched.entry, &watched.plugin.cni_versions)?))
}

/// Logs an outcome if it differs from the previous one.
fn report(watched: &InstalledFiles, outcome: &std::io::Result<(bool, Attempt)>, reported: &mut Option<String>) {
    let folder = watched.conf_dir.display();
    let (sentences, bad) = match outcome {
        Err(e) => (vec![format!("cannot install the plugin: {e}")], true),
        Ok((_, Attempt { left_alone, found })) => {
            let refused =
                left_alone.iter().map(|(file, reason)| format!("{} is left unchanged: {reason}", file.display()));
            let mut sentences: Vec<String> = refused.collect();
            sentences.push(match found {
                PluginEntry::Nothing => {
                    format!("waiting for a network configuration in {folder} to which the plugin can be added")
                }
                PluginEntry::Present(file) | PluginEntry::Written(file) => {
                    format!("the plugin's entry is in {}", file.display())
                }
            });
            (sentences, !left_alone.is_empty())
        }
    };
    let text = sentences.join("; ");
    if reported.as_ref() == Some(&text) {
        return;
    }
    match bad {
        true => tracing::warn!("{text}"),
        false => tracing::info!("{text}"),
    }
    *reported = Some(text);
}

/// Watches both folders; true if both exist. Adding an existing watch has no effect.
fn add_watches(notices: &mut EventStream<Vec<u8>>, watched: &InstalledFiles) -> bool {
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVE | WatchMask::DELETE | WatchMask::DELETE_SELF;
    [&watched.conf_dir, &watched.bin_dir].into_iter().all(|folder| notices.watches().add(folder, mask).is_ok())
}
