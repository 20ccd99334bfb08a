//! Selects the NFLOG group that the agent binds. A group has one listener; groups of other programs are left alone.

use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::bail;
use nfnetlink::{Kernel, PacketLog, PacketLogError};
use nft::Table;
use policy::{COPIED_ANSWER_BYTES, DENIED_PREFIX, DnsCopy, LOGGED_BYTES};

/// Number of consecutive groups tried. Few programs of a node use NFLOG at all.
const GROUPS: u16 = 16;

/// The groups for one kind of packets.
pub(crate) struct LogGroups {
    /// The argument that chooses one.
    flag: &'static str,
    /// The first group tried.
    first: u16,
    /// Bytes copied of a packet.
    bytes: u32,
    /// The begin of the rules' log prefix.
    prefix: &'static str,
    /// The kernel's action on the packets, for messages.
    action: &'static str,
}

/// The groups of denied packets.
pub(crate) const DENIED_PACKETS: LogGroups =
    LogGroups { flag: "--nflog-group", first: 9470, bytes: LOGGED_BYTES, prefix: DENIED_PREFIX, action: "logs them" };

/// The groups of DNS answers.
pub(crate) const DNS_ANSWERS: LogGroups = LogGroups {
    flag: "--dns-nflog-group",
    first: DENIED_PACKETS.first + GROUPS,
    bytes: COPIED_ANSWER_BYTES,
    prefix: DnsCopy::Answer.prefix(),
    action: "copies them",
};

/// How long the previous agent, which just ended, may still hold the group of our table, and the interval between
/// retries.
const PREDECESSOR_ENDS: Duration = Duration::from_secs(2);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

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
pub(crate) struct LogGroup {
    /// `None` if packets are not reported.
    pub(crate) log: Option<(u16, PacketLog)>,
    /// The group, or why there is none.
    pub(crate) words: String,
}

impl GroupChoice {
    /// The group for a rendered ruleset, where nothing is bound.
    pub(crate) fn group(self, of: &LogGroups) -> Option<u16> {
        match self {
            GroupChoice::Auto => Some(of.first),
            GroupChoice::Off => None,
            GroupChoice::Group(group) => Some(group),
        }
    }

    /// Binds a group in this network namespace. The table shows the group of a previous agent.
    pub(crate) fn open(self, table: &Table, of: &LogGroups) -> anyhow::Result<LogGroup> {
        let flag = of.flag;
        match self {
            GroupChoice::Off => Ok(LogGroup { log: None, words: format!("off ({flag} off)") }),
            GroupChoice::Group(group) => match of.open_patiently(group) {
                Ok(log) => Ok(of.on(group, log)),
                Err(error @ PacketLogError::Taken { .. }) => bail!(
                    "{flag} {group}: {error}; find its process (the port id is often the process id; \
                     /proc/net/netfilter/nfnetlink_log lists all groups), or choose another group, auto or off"
                ),
                Err(error) => Ok(without(&error)),
            },
            GroupChoice::Auto => {
                let before = Kernel::open()?.read(table)?.and_then(|observed| observed.log_group(of.prefix));
                let ours = before.filter(|group| of.candidates().any(|candidate| candidate == *group));
                if let Some(group) = ours
                    && let Ok(log) = of.open_patiently(group)
                {
                    return Ok(of.on(group, log));
                }
                Ok(of.first_free())
            }
        }
    }
}

impl LogGroups {
    fn candidates(&self) -> impl Iterator<Item = u16> {
        (self.first..).take(usize::from(GROUPS))
    }

    fn first_free(&self) -> LogGroup {
        for group in self.candidates() {
            match PacketLog::open(group, self.bytes) {
                Ok(log) => return self.on(group, log),
                Err(PacketLogError::Taken { .. }) => {}
                Err(error) => return without(&error),
            }
        }
        let (first, last) = (self.first, self.first + GROUPS - 1);
        LogGroup { log: None, words: format!("off: all NFLOG groups from {first} to {last} are in use") }
    }

    fn on(&self, group: u16, log: PacketLog) -> LogGroup {
        LogGroup { log: Some((group, log)), words: format!("on: the kernel {} to NFLOG group {group}", self.action) }
    }

    /// The socket of a killed agent may stay open for a moment.
    fn open_patiently(&self, group: u16) -> Result<PacketLog, PacketLogError> {
        let deadline = Instant::now() + PREDECESSOR_ENDS;
        loop {
            match PacketLog::open(group, self.bytes) {
                Err(PacketLogError::Taken { .. }) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
                outcome => return outcome,
            }
        }
    }
}

fn without(error: &PacketLogError) -> LogGroup {
    LogGroup { log: None, words: format!("off: {error}") }
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
