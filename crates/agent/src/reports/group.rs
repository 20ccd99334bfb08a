//! Selects the NFLOG group that the agent binds. A group has one listener; groups of other programs are left alone.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::bail;
use nfnetlink::{Kernel, PacketLog, PacketLogError};
use nft::Table;
use policy::LOGGED_BYTES;

/// The first group tried.
pub(crate) const FIRST_GROUP: u16 = 9470;

/// Number of consecutive groups tried. Few programs of a node use NFLOG at all.
const GROUPS: u16 = 16;

/// How long the previous agent, which just ended, may still hold the group of our table, and the interval between
/// retries.
const PREDECESSOR_ENDS: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Value of `--nflog-group`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupChoice {
    /// The group that the table already logs to, or the first free one.
    Auto,
    /// No packets are logged, and flows are not distinguished.
    Off,
    Group(u16),
}

/// Outcome of opening the group.
pub(crate) struct Reporting {
    /// `None` if packets are not reported.
    pub(crate) log: Option<(u16, PacketLog)>,
    /// The group, or why there is none.
    pub(crate) words: String,
}

impl GroupChoice {
    /// The group for a rendered ruleset, where nothing is bound.
    pub(crate) fn group(self) -> Option<u16> {
        match self {
            GroupChoice::Auto => Some(FIRST_GROUP),
            GroupChoice::Off => None,
            GroupChoice::Group(group) => Some(group),
        }
    }

    /// Binds a group in this network namespace. The table shows the group of a previous agent.
    pub(crate) fn open(self, table: &Table) -> anyhow::Result<Reporting> {
        match self {
            GroupChoice::Off => Ok(Reporting { log: None, words: "off (--nflog-group off)".into() }),
            GroupChoice::Group(group) => match open_patiently(group) {
                Ok(log) => Ok(on(group, log)),
                Err(error @ PacketLogError::Taken { .. }) => bail!(
                    "--nflog-group {group}: {error}; find its process (the port id is often the process id; \
                     /proc/net/netfilter/nfnetlink_log lists all groups), or choose another group, auto or off"
                ),
                Err(error) => Ok(without(&error)),
            },
            GroupChoice::Auto => {
                let before = Kernel::open()?.read(table)?.and_then(|observed| observed.log_group());
                let ours = before.filter(|group| candidates().any(|candidate| candidate == *group));
                if let Some(group) = ours
                    && let Ok(log) = open_patiently(group)
                {
                    return Ok(on(group, log));
                }
                Ok(first_free())
            }
        }
    }
}

fn candidates() -> impl Iterator<Item = u16> {
    (FIRST_GROUP..).take(usize::from(GROUPS))
}

fn first_free() -> Reporting {
    for group in candidates() {
        match PacketLog::open(group, LOGGED_BYTES) {
            Ok(log) => return on(group, log),
            Err(PacketLogError::Taken { .. }) => {}
            Err(error) => return without(&error),
        }
    }
    let last = FIRST_GROUP + GROUPS - 1;
    Reporting { log: None, words: format!("off: all NFLOG groups from {FIRST_GROUP} to {last} are in use") }
}

fn on(group: u16, log: PacketLog) -> Reporting {
    Reporting { log: Some((group, log)), words: format!("on: the kernel logs them to NFLOG group {group}") }
}

fn without(error: &PacketLogError) -> Reporting {
    Reporting { log: None, words: format!("off: {error}") }
}

/// The socket of a killed agent may stay open for a moment.
fn open_patiently(group: u16) -> Result<PacketLog, PacketLogError> {
    let deadline = Instant::now() + PREDECESSOR_ENDS;
    loop {
        match PacketLog::open(group, LOGGED_BYTES) {
            Err(PacketLogError::Taken { .. }) if Instant::now() < deadline => std::thread::sleep(LOOK_AGAIN),
            outcome => return outcome,
        }
    }
}

impl FromStr for GroupChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<GroupChoice, String> {
        match text {
            "auto" => Ok(GroupChoice::Auto),
            "off" => Ok(GroupChoice::Off),
            // Group 0 is used by the kernel's own log.
            number => match number.parse() {
                Ok(group @ 1..) => Ok(GroupChoice::Group(group)),
                Ok(0) | Err(_) => Err("must be auto, off, or 1 to 65535".into()),
            },
        }
    }
}

impl fmt::Display for GroupChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GroupChoice::Auto => f.write_str("auto"),
            GroupChoice::Off => f.write_str("off"),
            GroupChoice::Group(group) => group.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_read_as_it_is_written() {
        for choice in [GroupChoice::Auto, GroupChoice::Off, GroupChoice::Group(1), GroupChoice::Group(65_535)] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for bad in ["0", "-1", "65536", "on", ""] {
            assert!(bad.parse::<GroupChoice>().is_err(), "{bad}");
        }
    }
}
