//! Tables: a name in a family.

use std::fmt;

use crate::Name;

/// The families of tables that the language knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableFamily {
    /// IPv4 and IPv6 packets that are routed.
    Inet,
    /// Frames that a bridge takes in or passes on.
    Bridge,
    /// Frames as they enter one network interface, before anything else in the network stack.
    Netdev,
}

impl TableFamily {
    pub const ALL: [TableFamily; 3] = [TableFamily::Inet, TableFamily::Bridge, TableFamily::Netdev];

    pub fn word(self) -> &'static str {
        match self {
            TableFamily::Inet => "inet",
            TableFamily::Bridge => "bridge",
            TableFamily::Netdev => "netdev",
        }
    }
}

/// What a table is known by. Prints as nft's commands name it: `inet ringfence`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Table {
    pub family: TableFamily,
    pub name: Name,
}

impl Table {
    pub fn inet(name: Name) -> Table {
        Table { family: TableFamily::Inet, name }
    }

    pub fn bridge(name: Name) -> Table {
        Table { family: TableFamily::Bridge, name }
    }

    pub fn netdev(name: Name) -> Table {
        Table { family: TableFamily::Netdev, name }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.family.word(), self.name)
    }
}
