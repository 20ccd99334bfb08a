//! Pods of other clusters: which addresses they offer under which names, for the policies of this one.
//!
//! Each cluster is watched for pods with the label of a name ([`config`]); what they offer is counted per set
//! ([`offers`]), within limits ([`limits`]), and published as the feed `remote-sets` (`table`), by one task (`publisher`). What is known stays while a cluster
//! cannot be reached, through restarts of this process as well ([`state`]).

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

pub(crate) use calico::{Export, Exporter, Failures, Snapshot};
pub(crate) use policy::remote::wire::FEED;
pub(crate) use publisher::{Outlet, Publisher, Settings};
pub(crate) use report::Report;
