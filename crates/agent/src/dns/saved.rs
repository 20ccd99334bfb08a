//! The learned addresses in the run directory, for the next start of the agent: pods ask for a name again only when their
//! answer has expired.
//!
//! The folder is usually in memory, so that a reboot forgets the names. A file that is missing or damaged only means that
//! names have to be learned again.

use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{LearnedTable, Lifetimes};

const FILE: &str = "learned-names.json";
const NEW: &str = "learned-names.json.new";

/// Shortest interval between two writes.
pub(crate) const SAVES_APART: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SavedAddress {
    name: Arc<str>,
    address: IpAddr,
    expires: Timestamp,
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
        let time = Timestamp::now();
        let saved = |(name, address, until): (&Arc<str>, IpAddr, Instant)| {
            let expires = time.checked_add(until.saturating_duration_since(now)).ok()?;
            Some(SavedAddress { name: name.clone(), address, expires })
        };
        let addresses: Vec<SavedAddress> = table.iter().filter_map(saved).collect();
        let new = self.folder.join(NEW);
        std::fs::write(&new, serde_json::to_vec(&addresses)?)?;
        std::fs::rename(&new, self.folder.join(FILE))
    }

    /// The addresses that have not expired. The wall clock may have been changed: none lives longer than one that is
    /// learned now.
    pub(crate) fn read(&self, lifetimes: Lifetimes, now: Instant) -> LearnedTable {
        let mut table = LearnedTable::default();
        let addresses: Vec<SavedAddress> = match std::fs::read(self.folder.join(FILE)) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!("the file {FILE} of learned domain names is damaged; they are learned again: {error}");
                vec![]
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => vec![],
            Err(error) => {
                tracing::warn!("cannot read the learned domain names; they are learned again: {error}");
                vec![]
            }
        };
        let time = Timestamp::now();
        for SavedAddress { name, address, expires } in addresses {
            if let Ok(left) = Duration::try_from(time.until(expires).unwrap_or_default())
                && !left.is_zero()
            {
                table.learn(&name, address, now + left.min(lifetimes.longest));
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
            table.learn(&name, address(last), until);
        }
        saved.write(&table, now).unwrap();
        let read = saved.read(lifetimes, now);
        let addresses: Vec<IpAddr> = read.iter().map(|(_, address, _)| address).collect();
        assert_eq!(addresses, [address(1), address(2)]);
        assert!(read.iter().all(|(_, _, until)| until <= hours(1)));
        std::fs::write(folder.path().join(FILE), "[{").unwrap();
        assert_eq!(saved.read(lifetimes, now).addresses(), 0);
    }
}
