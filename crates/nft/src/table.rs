//! Tables: name and family.

use std::fmt;

use crate::Name;

/// The families of tables in the language.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// Routed IPv4 and IPv6 packets.
    Inet,
    /// Frames that a bridge receives or forwards.
    Bridge,
    /// Frames received by one network interface, before the rest of the network stack.
    Netdev,
}

impl TableFamily {
    /// Every family that a table can have.
    pub const ALL: [TableFamily; 3] = [TableFamily::Inet, TableFamily::Bridge, TableFamily::Netdev];

    /// The keyword of the family in nft's grammar.
    pub fn as_str(self) -> &'static str {
        match self {
            TableFamily::Inet => "inet",
            TableFamily::Bridge => "bridge",
            TableFamily::Netdev => "netdev",
        }
    }
}

/// Identifies a table. Prints as in nft's commands: `inet filter`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    /// Decides which hooks and fields the rules have.
    pub family: TableFamily,
    /// Unique within the family and the network namespace.
    pub name: Name,
}

impl Table {
    /// A table of routed packets.
    pub fn inet(name: Name) -> Table {
        Table { family: TableFamily::Inet, name }
    }

    /// A table of frames on bridges.
    pub fn bridge(name: Name) -> Table {
        Table { family: TableFamily::Bridge, name }
    }

    /// A table of frames received by interfaces.
    pub fn netdev(name: Name) -> Table {
        Table { family: TableFamily::Netdev, name }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.as_str(), self.name)
    }
}
