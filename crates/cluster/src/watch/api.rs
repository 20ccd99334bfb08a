//! The requests to the API server: a page of a list, a streaming list, a watch from a resource version, a document.

use std::io;

use futures::TryStreamExt as _;
use futures::io::{AsyncBufRead, AsyncReadExt as _};
use http_body_util::{BodyExt as _, Limited};
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::client::Body;
use kube::core::response::StatusDetails;
use kube::core::{Request, Status};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::failure::{Failure, Verb};
use super::lines::WatchLines;
use crate::{ApiClient, Resource};

/// The objects to list or watch.
#[derive(Debug, Clone)]
pub(super) struct ObjectQuery {
    pub(super) resource: Resource,
    /// Label selector; `None` for all objects.
    pub(super) labels: Option<String>,
}

/// Limit of the size of a page. Five hundred pods, of tens of kilobytes each, are a tenth of it.
const PAGE_BYTES: usize = 256 << 20;

/// Reads a page of at most `limit` objects, from the beginning or from a continue token, into `text`, whose memory is
/// reused for all pages of a list.
pub(super) async fn page(
    connection: &ApiClient,
    asked: &ObjectQuery,
    limit: Option<u32>,
    next: Option<String>,
    text: &mut Vec<u8>,
) -> Result<(), Failure> {
    text.clear();
    let label_selector = asked.labels.clone();
    let field_selector = asked.resource.field_selector();
    let params = ListParams { limit, continue_token: next, label_selector, field_selector, ..ListParams::default() };
    let patience = connection.timing.answer;
    let client = connection.client().await?;
    let read = async {
        let request = request(asked.resource).list(&params).map_err(kube::Error::BuildRequest)?;
        read_to_limit(&client, request, PAGE_BYTES, text).await
    };
    match timeout(patience, read).await {
        Err(_) => Err(Failure::Silent(Verb::List, patience)),
        Ok(Err(e)) => Err(Failure::of(Verb::List, e)),
        Ok(Ok(bytes)) if bytes > PAGE_BYTES => Err(Failure::TooLarge(Verb::List, PAGE_BYTES)),
        Ok(Ok(_)) => Ok(()),
    }
}

/// Limit of the size of a discovery document. That of hundreds of API groups is a twentieth of it.
const DOCUMENT_BYTES: usize = 4 << 20;

/// Reads a document that is not a list of objects, such as `/apis`.
pub(super) async fn document<T: DeserializeOwned>(client: &Client, path: &str) -> Result<T, Failure> {
    let request = http::Request::get(path).body(Vec::new());
    let request = request.map_err(|e| Failure::NoWay(e.to_string()))?;
    let mut text = Vec::new();
    let read = read_to_limit(client, request, DOCUMENT_BYTES, &mut text).await;
    match read.map_err(|e| Failure::of(Verb::Get, e))? {
        bytes if bytes > DOCUMENT_BYTES => Err(Failure::TooLarge(Verb::Get, DOCUMENT_BYTES)),
        _ => serde_json::from_slice(&text).map_err(|e| Failure::Unreadable(Verb::Get, e.to_string())),
    }
}

/// Where a watch starts.
#[derive(Debug, Clone, Copy)]
pub(super) enum Start<'a> {
    /// All existing objects, at least as recent as now, followed by a bookmark.
    List,
    /// Events after this resource version.
    Version(&'a str),
}

/// Opens a watch.
pub(super) async fn watch(
    connection: &ApiClient,
    asked: &ObjectQuery,
    start: Start<'_>,
) -> Result<WatchLines, Failure> {
    let (send_initial_events, version) = match start {
        Start::List => (true, ""),
        Start::Version(version) => (false, version),
    };
    let seconds = u32::try_from(connection.timing.watch.as_secs()).unwrap_or(u32::MAX);
    let label_selector = asked.labels.clone();
    let timeout_seconds = Some(seconds);
    let params = WatchParams {
        timeout: timeout_seconds,
        bookmarks: true,
        send_initial_events,
        label_selector,
        field_selector: asked.resource.field_selector(),
    };
    let patience = connection.timing.answer;
    let client = connection.client().await?;
    let open = async {
        let request = request(asked.resource).watch(&params, version).map_err(kube::Error::BuildRequest)?;
        send(&client, request).await
    };
    match timeout(patience, open).await {
        Err(_) => Err(Failure::Silent(Verb::Watch, patience)),
        Ok(Err(e)) => Err(Failure::of(Verb::Watch, e)),
        Ok(Ok(body)) => Ok(WatchLines::new(body)),
    }
}

/// Limit of the bytes read of an error body; a `Status` has a few hundred.
const ERROR_BYTES: usize = 64 << 10;

/// Appends the body of a successful response to `text`, and returns its length; one that exceeds the limit is read to the
/// first byte beyond it.
async fn read_to_limit(
    client: &Client,
    request: http::Request<Vec<u8>>,
    limit: usize,
    text: &mut Vec<u8>,
) -> Result<usize, kube::Error> {
    let body = send(client, request).await?;
    body.take(limit as u64 + 1).read_to_end(text).await.map_err(kube::Error::ReadEvents)
}

/// Sends the request and returns the body of a successful response. kube's `request_stream` loses the `Retry-After`
/// header, which API priority and fairness sends with plain text instead of a `Status`.
async fn send(
    client: &Client,
    request: http::Request<Vec<u8>>,
) -> Result<impl AsyncBufRead + Send + use<>, kube::Error> {
    let response = client.send(request.map(Body::from)).await?;
    let code = response.status();
    if !code.is_client_error() && !code.is_server_error() {
        return Ok(response.into_body().into_data_stream().map_err(io::Error::other).into_async_read());
    }
    let retry_after = response.headers().get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok());
    let retry_after = retry_after.and_then(|seconds| seconds.trim().parse::<u32>().ok()).unwrap_or(0);
    let body = Limited::new(response.into_body(), ERROR_BYTES).collect().await;
    let body = body.map_err(|e| kube::Error::ReadEvents(io::Error::other(e)))?.to_bytes();
    let mut status = serde_json::from_slice::<Status>(&body)
        .unwrap_or_else(|_| Status::failure(String::from_utf8_lossy(&body).trim(), ""));
    // Missing if a proxy or a filter of the API server responds.
    if status.code == 0 {
        status.code = code.as_u16();
    }
    let details = status.details.get_or_insert_with(|| StatusDetails {
        name: String::new(),
        group: String::new(),
        kind: String::new(),
        uid: String::new(),
        causes: vec![],
        retry_after_seconds: 0,
    });
    details.retry_after_seconds = details.retry_after_seconds.max(retry_after);
    Err(kube::Error::Api(status.boxed()))
}

fn request(resource: Resource) -> Request {
    Request::new(resource.objects_path())
}
