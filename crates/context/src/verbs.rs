//! What each verb does.

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

/// For verbs that wait for one thing at a time.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()
}
