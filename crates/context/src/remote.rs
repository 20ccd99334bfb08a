//! Pods of other clusters: remote sets of their addresses, for the policies of this cluster.
//!
//! Each cluster is watched for pods with a name label ([`config`]); their addresses are counted per set ([`offers`]),
//! within limits ([`limits`]), and published as the feed `remote-sets` (`table`), by one task (`publisher`). The last
//! state is kept while a cluster is unreachable, also across restarts of this process ([`state`]).

mod calico;
mod cluster;
pub mod config;
pub mod limits;
pub mod offers;
pub mod pattern;
mod publisher;
mod report;
pub mod state;
mod table;

pub(crate) use calico::{Export, ExportInput, Exporter, Failures};
pub(crate) use policy::remote::wire::FEED;
pub(crate) use publisher::{Outlet, RemotePublisher, RemoteSettings};
pub(crate) use report::RemoteReport;
