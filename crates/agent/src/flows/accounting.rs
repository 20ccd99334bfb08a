//! The conntrack sysctls that flow records need: counters of packets and bytes, and timestamps of entries.
//!
//! They apply to the whole node until it reboots. Their values before the agent set them are stored in the run
//! directory, which also ends with the boot, until `ringfence uninstall` or an agent with `--flows off` restores them.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Name of the file in the run directory with the former values, and its name while it is being written.
pub(crate) const FILE: &str = "conntrack-settings.json";
pub(crate) const NEW: &str = "conntrack-settings.json.new";

/// Whether the kernel sends events of entries: never at 0, always at 1, and while a program listens at 2, its default.
/// The agent does not change it: only an administrator sets it to 0.
pub(crate) const EVENTS: &str = "net/netfilter/nf_conntrack_events";

/// The value that both settings need.
const ON: u32 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum ConntrackSetting {
    #[serde(rename = "nf_conntrack_acct")]
    Counters,
    #[serde(rename = "nf_conntrack_timestamp")]
    Timestamps,
}

impl ConntrackSetting {
    pub(crate) const ALL: [ConntrackSetting; 2] = [ConntrackSetting::Counters, ConntrackSetting::Timestamps];

    /// Path below `/proc/sys`. The kernel shows the network namespace of the thread that reads or writes.
    pub(crate) fn path(self) -> &'static str {
        match self {
            ConntrackSetting::Counters => "net/netfilter/nf_conntrack_acct",
            ConntrackSetting::Timestamps => "net/netfilter/nf_conntrack_timestamp",
        }
    }
}

/// The name for `sysctl`.
impl fmt::Display for ConntrackSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ConntrackSetting::Counters => "net.netfilter.nf_conntrack_acct",
            ConntrackSetting::Timestamps => "net.netfilter.nf_conntrack_timestamp",
        })
    }
}

/// The values before the agent set them to [`ON`], without settings that it did not change.
type FormerValues = BTreeMap<ConntrackSetting, u32>;

/// The settings in the network namespace of the calling thread.
#[derive(Debug, Clone)]
pub(crate) struct ConntrackSettings {
    /// `/` except in tests.
    root: PathBuf,
    run_dir: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum AccountingError {
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("cannot write {}: {error}", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("{} is damaged ({error}): set the settings by hand and remove the file", path.display())]
    Damaged { path: PathBuf, error: serde_json::Error },
    #[error("cannot restore {}", .0.join(" and "))]
    Restore(Vec<String>),
}

impl ConntrackSettings {
    pub(crate) fn of_node(run_dir: &Path) -> ConntrackSettings {
        ConntrackSettings { root: "/".into(), run_dir: run_dir.to_owned() }
    }

    /// Switches both settings on. Returns why volumes and times of connections are unknown, with advice: a sentence for
    /// each setting that is still off.
    pub(crate) fn enable(&self) -> Vec<String> {
        let mut former = match self.former() {
            Ok(former) => former,
            Err(error) => return self.missing(&error),
        };
        let off = ConntrackSetting::ALL.into_iter().filter_map(|setting| self.enable_one(setting, &mut former).err());
        off.chain(self.unannounced()).collect()
    }

    /// Whether entries have timestamps of their creation.
    pub(crate) fn has_times(&self) -> bool {
        matches!(self.value(ConntrackSetting::Timestamps), Ok(ON))
    }

    /// The settings that are off.
    pub(crate) fn off(&self) -> Vec<ConntrackSetting> {
        ConntrackSetting::ALL.into_iter().filter(|setting| !matches!(self.value(*setting), Ok(ON))).collect()
    }

    /// Switches settings on again that another program has switched off since [`ConntrackSettings::enable`], if the agent had
    /// switched them on. Returns a sentence for each setting that was on at the start and is off, and one if the kernel
    /// sends no end events of connections.
    pub(crate) fn renew(&self, off_at_start: &[ConntrackSetting]) -> Vec<String> {
        // Without the file of former values the agent has changed no setting, and `advice` has a sentence for each.
        let ours = self.former().unwrap_or_default();
        let mut problems = Vec::new();
        for setting in self.off().into_iter().filter(|setting| !off_at_start.contains(setting)) {
            match ours.contains_key(&setting).then(|| self.set(setting, ON)) {
                Some(Ok(())) => tracing::warn!(
                    "another program switched off {setting}; it is on again, and connections that were made meanwhile are not \
                     recorded completely"
                ),
                Some(Err(error)) => problems.push(advice(setting, &error.to_string())),
                None => problems.push(advice(setting, "another program switched it off")),
            }
        }
        problems.extend(self.unannounced());
        problems
    }

    /// Why the kernel sends no end events of connections.
    fn unannounced(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.root.join("proc/sys").join(EVENTS)).ok()?;
        (text.trim() == "0").then(|| {
            "net.netfilter.nf_conntrack_events is 0, so connections are only recorded if they last until a listing, every \
             15 s: run sysctl -w net.netfilter.nf_conntrack_events=2 on the node"
                .to_owned()
        })
    }

    /// Advice on each setting that stays off because its former value cannot be stored.
    fn missing(&self, error: &AccountingError) -> Vec<String> {
        let off = self.off().into_iter().map(|setting| advice(setting, &error.to_string()));
        off.chain(self.unannounced()).collect()
    }

    fn enable_one(&self, setting: ConntrackSetting, former: &mut FormerValues) -> Result<(), String> {
        let value = match self.value(setting) {
            Ok(ON) => return Ok(()),
            Ok(value) => value,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Err(format!("{setting} does not exist: load the module nf_conntrack, or use a kernel with it"));
            }
            Err(error) => return Err(advice(setting, &error.to_string())),
        };
        // A value that was stored at an earlier start is the one to restore.
        if let Entry::Vacant(entry) = former.entry(setting) {
            entry.insert(value);
            if let Err(error) = self.remember(former) {
                former.remove(&setting);
                return Err(advice(setting, &error.to_string()));
            }
        }
        let Err(error) = self.set(setting, ON) else { return Ok(()) };
        // Otherwise `restore` would reset a value that an operator sets later.
        former.remove(&setting);
        Err(match self.remember(former) {
            Ok(()) => advice(setting, &error.to_string()),
            Err(unremembered) => advice(setting, &format!("{error}; {unremembered}")),
        })
    }

    /// Restores the former values of settings that still have the agent's value, and forgets them. Returns what was
    /// restored.
    pub(crate) fn restore(&self) -> Result<Vec<String>, AccountingError> {
        let mut former = self.former()?;
        let (mut restored, mut failed) = (Vec::new(), Vec::new());
        for (setting, value) in former.clone() {
            match self.value(setting) {
                Ok(ON) => match self.set(setting, value) {
                    Ok(()) => restored.push(format!("{setting} = {value}")),
                    Err(error) => {
                        failed.push(format!("{setting} ({error}): run sysctl -w {setting}={value} on the node"));
                        continue;
                    }
                },
                // Another program has set it since, or the module was unloaded.
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    failed.push(format!("{setting} ({error})"));
                    continue;
                }
            }
            former.remove(&setting);
        }
        self.remember(&former)?;
        if failed.is_empty() { Ok(restored) } else { Err(AccountingError::Restore(failed)) }
    }

    /// Whether there are values to restore.
    pub(crate) fn is_remembered(&self) -> bool {
        self.file().symlink_metadata().is_ok()
    }

    fn file(&self) -> PathBuf {
        self.run_dir.join(FILE)
    }

    fn former(&self) -> Result<FormerValues, AccountingError> {
        let path = self.file();
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| AccountingError::Damaged { path, error }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(FormerValues::new()),
            Err(error) => Err(AccountingError::Read { path, error }),
        }
    }

    /// Replaces the file atomically; removes it if there are no values.
    fn remember(&self, former: &FormerValues) -> Result<(), AccountingError> {
        let path = self.file();
        let write = || -> io::Result<()> {
            if former.is_empty() {
                return match std::fs::remove_file(&path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
                    Ok(()) | Err(_) => Ok(()),
                };
            }
            let new = self.run_dir.join(NEW);
            let mut file = File::create(&new)?;
            file.write_all(&serde_json::to_vec(former)?)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().map_err(|error| AccountingError::Write { path: path.clone(), error })
    }

    fn setting_path(&self, setting: ConntrackSetting) -> PathBuf {
        self.root.join("proc/sys").join(setting.path())
    }

    fn value(&self, setting: ConntrackSetting) -> io::Result<u32> {
        let text = std::fs::read_to_string(self.setting_path(setting))?;
        text.trim().parse().map_err(|_| io::Error::other(format!("expected a number, got '{}'", text.trim())))
    }

    fn set(&self, setting: ConntrackSetting, value: u32) -> io::Result<()> {
        // The file is not created: except in tests the kernel provides it.
        let mut file = File::options().write(true).open(self.setting_path(setting))?;
        file.write_all(format!("{value}\n").as_bytes())
    }
}

fn advice(setting: ConntrackSetting, why: &str) -> String {
    format!("{setting} is off and cannot be set ({why}): run sysctl -w {setting}={ON} on the node")
}

#[cfg(test)]
mod tests;
