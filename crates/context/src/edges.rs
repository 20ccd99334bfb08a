//! Declared edges as text: the lines that consumers read, the list with its version and its deltas, and the verdict of
//! a list on a flow. docs/declared-edges.md shows the forms by example.
//!
//! Which flows are declared is decided in [`policy::Edges`], not here.

mod allowlist;
mod delta;
mod statement;
mod text;
mod verdict;

pub use allowlist::{Allowlist, AllowlistDelta, text_of};
pub use delta::EdgeDelta;
pub(crate) use statement::remote_set;
pub use statement::{NotALine, NotAList, Statement, StatementEnd, StatementPorts, parse, parse_line};
pub use text::{Form, HEADER, MOST_PORTS_OF_A_RANGE, texts};
pub use verdict::{EdgeVerdict, NotAsked, Party, PortQuery, RemotePods, mentions, mentions_remote, verdict};
