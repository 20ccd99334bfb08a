//! Implementation of the verbs.

mod build;
mod ids;
mod init_tls;
mod lookup;
mod serve;
mod verdict;

use std::io;

pub(crate) use build::build;
pub(crate) use ids::ids;
pub(crate) use init_tls::init_tls;
pub(crate) use lookup::lookup;
pub(crate) use serve::serve;
pub(crate) use verdict::verdict;

/// A single-threaded runtime, for verbs with one operation at a time.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
