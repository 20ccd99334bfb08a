//! The learned addresses in the run directory, for the next start of the agent: pods ask for a name again only when their
//! answer has expired.
//!
//! Times are those of the clock since boot, which no program can set, so a reboot forgets the names, also where the folder
//! outlives it. A file that is missing or damaged only means that names have to be learned again.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use super::{LearnedTable, Lifetimes, NameMatch};

const FILE: &str = "learned-names.json";
const NEW: &str = "learned-names.json.new";

/// Shortest interval between two writes.
pub(crate) const SAVES_APART: Duration = Duration::from_secs(1);

/// The kernel's name of the time from one boot to the next.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SavedTable {
    boot_id: String,
    addresses: Vec<SavedAddress>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SavedAddress {
    name: Arc<str>,
    address: IpAddr,
    /// By CLOCK_BOOTTIME.
    expires_at_millis: u64,
}

/// Time since boot, by CLOCK_BOOTTIME.
fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

#[derive(Debug)]
pub(crate) struct SavedNames {
    folder: PathBuf,
}

impl SavedNames {
    pub(crate) fn in_folder(folder: &Path) -> SavedNames {
        SavedNames { folder: folder.to_owned() }
    }

    /// Files in the folder that belong to the agent.
    pub(crate) fn files(folder: &Path) -> [PathBuf; 2] {
        [FILE, NEW].map(|name| folder.join(name))
    }

    pub(crate) fn write(&self, table: &LearnedTable, now: Instant) -> std::io::Result<()> {
        let since_boot = since_boot();
        let saved = |(name, address, until): (&Arc<str>, IpAddr, Instant)| {
            let expires = since_boot + until.saturating_duration_since(now);
            let expires_at_millis = u64::try_from(expires.as_millis()).unwrap_or(u64::MAX);
            SavedAddress { name: name.clone(), address, expires_at_millis }
        };
        let saved = SavedTable { boot_id: boot_id()?, addresses: table.iter().map(saved).collect() };
        let new = self.folder.join(NEW);
        std::fs::write(&new, serde_json::to_vec(&saved)?)?;
        std::fs::rename(&new, self.folder.join(FILE))
    }

    /// The addresses of this boot that have not expired; none lives longer than one that is learned now.
    pub(crate) fn read(&self, lifetimes: Lifetimes, now: Instant) -> LearnedTable {
        let mut table = LearnedTable::default();
        let text = match std::fs::read(self.folder.join(FILE)) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return table,
            Err(error) => {
                tracing::warn!("cannot read the learned domain names; they are learned again: {error}");
                return table;
            }
        };
        let saved: SavedTable = match serde_json::from_slice(&text) {
            Ok(saved) => saved,
            Err(error) => {
                tracing::warn!("the file {FILE} of learned domain names is damaged; they are learned again: {error}");
                return table;
            }
        };
        if boot_id().is_ok_and(|boot_id| boot_id == saved.boot_id) {
            let since_boot = since_boot();
            for SavedAddress { name, address, expires_at_millis } in saved.addresses {
                let left = Duration::from_millis(expires_at_millis).saturating_sub(since_boot);
                if !left.is_zero() {
                    table.learn(&name, address, now + left.min(lifetimes.longest), NameMatch::InFull);
                }
            }
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_addresses_are_read_until_they_expire() {
        let (folder, now) = (tempfile::tempdir().unwrap(), Instant::now());
        let saved = SavedNames::in_folder(folder.path());
        let lifetimes = Lifetimes { shortest: Duration::ZERO, longest: Duration::from_secs(3600) };
        assert_eq!(saved.read(lifetimes, now).addresses(), 0);
        let mut table = LearnedTable::default();
        let address = |last| IpAddr::from([192, 0, 2, last]);
        let hours = |hours: u64| now + Duration::from_secs(hours * 3600);
        for (name, last, until) in
            [("a.b", 1, hours(1)), ("a.b", 2, hours(9)), ("c.d", 3, now)].map(|(n, l, u)| (Arc::from(n), l, u))
        {
            table.learn(&name, address(last), until, NameMatch::InFull);
        }
        saved.write(&table, now).unwrap();
        let read = saved.read(lifetimes, now);
        let addresses: Vec<IpAddr> = read.iter().map(|(_, address, _)| address).collect();
        assert_eq!(addresses, [address(1), address(2)]);
        assert!(read.iter().all(|(_, _, until)| until <= hours(1)));
        let file = folder.path().join(FILE);
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::write(&file, text.replace(&boot_id().unwrap(), "another boot")).unwrap();
        assert_eq!(saved.read(lifetimes, now).addresses(), 0);
        std::fs::write(&file, "[{").unwrap();
        assert_eq!(saved.read(lifetimes, now).addresses(), 0);
    }
}
