//! Which group of nfnetlink_log the agent listens to. A group has one listener, and those of others are left alone.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::bail;
use nfnetlink::{Kernel, PacketLog, PacketLogError};
use nft::Table;
use policy::LOGGED_BYTES;

/// The group that is tried first.
pub(crate) const FIRST_GROUP: u16 = 9470;

/// Groups from the first on that are tried. A node has a few programs that listen at all.
const GROUPS: u16 = 16;

/// How long a group that our table logs to may still be held by the agent that just ended, and how often that is
/// looked at.
const PREDECESSOR_ENDS: Duration = Duration::from_secs(2);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// What is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupChoice {
    /// The group that the table logs to already, or the first of some that nobody has.
    Auto,
    /// No packets are logged, and no flows are told apart.
    Off,
    Group(u16),
}

/// What came of it.
pub(crate) struct Reporting {
    /// None where no packets are told of.
    pub(crate) log: Option<(u16, PacketLog)>,
    /// Which group it is, or why there is none.
    pub(crate) words: String,
}

impl GroupChoice {
    /// The group of rules that nobody listens to, as in a rendered ruleset.
    pub(crate) fn group(self) -> Option<u16> {
        match self {
            GroupChoice::Auto => Some(FIRST_GROUP),
            GroupChoice::Off => None,
            GroupChoice::Group(group) => Some(group),
        }
    }

    /// Binds a group in this network namespace. The table tells which group an agent had before.
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

/// The socket of an agent that was killed may live on for a moment.
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
            // Group 0 is where the kernel's own log goes.
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
