//! The three questions to the API server: a page of a list, a watch that begins with the list, a watch from a version.

use futures::io::AsyncReadExt as _;
use kube::api::{ListParams, WatchParams};
use kube::core::Request;
use tokio::time::timeout;

use super::failure::{Failure, Verb};
use super::lines::Lines;
use crate::{Connection, Resource};

/// A page of a list in memory. Five hundred pods, of tens of kilobytes each, are a tenth of it.
const PAGE_BYTES: usize = 256 << 20;

/// Reads a page of at most `limit` objects, from the beginning or from where a page before ended, in place of what the
/// text was before: the pages of a list follow each other in the same memory.
pub(super) async fn page(
    connection: &Connection,
    resource: Resource,
    limit: Option<u32>,
    next: Option<String>,
    text: &mut Vec<u8>,
) -> Result<(), Failure> {
    text.clear();
    let params = ListParams { limit, continue_token: next, ..ListParams::default() };
    let patience = connection.timing.answer;
    let read = async {
        let request = request(resource).list(&params).map_err(kube::Error::BuildRequest)?;
        let body = connection.client.request_stream(request).await?;
        body.take(PAGE_BYTES as u64 + 1).read_to_end(text).await.map_err(kube::Error::ReadEvents)
    };
    match timeout(patience, read).await {
        Err(_) => Err(Failure::Silent(Verb::List, patience)),
        Ok(Err(e)) => Err(Failure::of(Verb::List, e)),
        Ok(Ok(bytes)) if bytes > PAGE_BYTES => Err(Failure::TooLarge(Verb::List, PAGE_BYTES)),
        Ok(Ok(_)) => Ok(()),
    }
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// With all objects there are, at least as new as now, and a mark behind the last of them.
    List,
    /// With what changed after this version.
    Version(&'a str),
}

/// Opens a watch.
pub(super) async fn watch(connection: &Connection, resource: Resource, start: Start<'_>) -> Result<Lines, Failure> {
    let (send_initial_events, version) = match start {
        Start::List => (true, ""),
        Start::Version(version) => (false, version),
    };
    let seconds = u32::try_from(connection.timing.watch.as_secs()).unwrap_or(u32::MAX);
    let params = WatchParams { timeout: Some(seconds), bookmarks: true, send_initial_events, ..WatchParams::default() };
    let patience = connection.timing.answer;
    let open = async {
        let request = request(resource).watch(&params, version).map_err(kube::Error::BuildRequest)?;
        connection.client.request_stream(request).await
    };
    match timeout(patience, open).await {
        Err(_) => Err(Failure::Silent(Verb::Watch, patience)),
        Ok(Err(e)) => Err(Failure::of(Verb::Watch, e)),
        Ok(Ok(body)) => Ok(Lines::new(body)),
    }
}

fn request(resource: Resource) -> Request {
    Request::new(format!("{}/{}", resource.path(), resource.plural))
}
