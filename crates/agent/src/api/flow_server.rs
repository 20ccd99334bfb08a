//! HTTP client for the aggregator of flow records.

use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use feed::Access;
use feed::client::{Response, StatusCode, Url, with_causes};
use flow::ClusterRecord;

use serde::Deserialize;

use super::ApiError;
use super::client::target;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Timeout between two parts of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Timeout of a response that the aggregator computes first.
const SLOW: Duration = Duration::from_secs(120);

/// Maximum size of a response in one object: 20,000 changed edges.
const LARGEST_BODY_BYTES: usize = 64 << 20;

/// Maximum size of a line of a response; records are far smaller.
const LARGEST_LINE_BYTES: usize = 1 << 20;

/// Records per page, which is about 2 MB.
const PAGE_RECORDS: usize = 2_000;

/// Maximum size of an error response; those of the aggregator are far smaller.
const LARGEST_ERROR_BYTES: usize = 64 << 10;

/// Context of an error in a whole response, whose fields another release has changed.
pub(super) const UNDECODABLE: &str = "cannot decode the response; use ringfence of the same release as the aggregator";

/// URL of an aggregator, and the client's credentials.
#[derive(Debug, Clone)]
pub(crate) struct FlowServer {
    pub(crate) url: Url,
    pub(crate) access: Access,
}

/// The part of the aggregator's coverage that the subcommands print.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerCoverage {
    pub(crate) kept_since: Option<String>,
    pub(crate) problems: Vec<String>,
}

impl FlowServer {
    pub(crate) async fn coverage(&self) -> anyhow::Result<ServerCoverage> {
        let mut text = Vec::new();
        self.get("/v1/flows/coverage", &[], |line| {
            text.extend_from_slice(line);
            Ok(true)
        })
        .await?;
        serde_json::from_slice(&text).context(UNDECODABLE)
    }

    /// Passes each record to `each`, page by page, until the last one or until `each` returns false.
    pub(crate) async fn flows(
        &self,
        filters: &[(&'static str, String)],
        mut each: impl FnMut(ClusterRecord) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let mut parameters = filters.to_vec();
        parameters.push(("limit", PAGE_RECORDS.to_string()));
        loop {
            let (mut end, mut is_enough) = (None, false);
            self.get("/v1/flows", &parameters, |line| {
                if line.starts_with(PAGE_END) {
                    end = Some(serde_json::from_slice::<PageEnd>(line)?);
                    return Ok(true);
                }
                let record = serde_json::from_slice(line);
                let goes_on = each(
                    record.context("cannot decode a record; use ringfence of the same release as the aggregator")?,
                )?;
                is_enough = !goes_on;
                Ok(goes_on)
            })
            .await?;
            parameters.retain(|(name, _)| *name != "page");
            match end {
                _ if is_enough => return Ok(()),
                Some(PageEnd { next_page: Some(page) }) => parameters.push(("page", page)),
                Some(PageEnd { next_page: None }) => return Ok(()),
                None => bail!("the aggregator's response ended early"),
            }
        }
    }

    /// Reads a response of JSON in one object.
    pub(super) async fn read<T: serde::de::DeserializeOwned>(
        &self,
        route: &str,
        parameters: &[(&'static str, String)],
    ) -> anyhow::Result<T> {
        let response = self.open(route, parameters, (SLOW, None)).await?;
        self.decode(route, response).await
    }

    /// Sends a text, and reads a response of JSON in one object.
    pub(super) async fn post<T: serde::de::DeserializeOwned>(
        &self,
        route: &str,
        parameters: &[(&'static str, String)],
        body: &str,
    ) -> anyhow::Result<T> {
        let response = self.send(route, parameters, (SLOW, None), Some(body)).await?;
        self.decode(route, response).await
    }

    async fn decode<T: serde::de::DeserializeOwned>(&self, route: &str, mut response: Response) -> anyhow::Result<T> {
        let mut body = Vec::new();
        let broke_off = |error: &dyn std::error::Error| anyhow!(self.failure(route, error));
        while let Some(part) = response.chunk().await.map_err(|error| broke_off(&error.without_url()))? {
            body.extend_from_slice(&part);
            if body.len() > LARGEST_BODY_BYTES {
                bail!("the aggregator's response is too long");
            }
        }
        serde_json::from_slice(&body).context(UNDECODABLE)
    }

    /// Sends a request and returns the response, whose body is not read yet.
    ///
    /// # Errors
    /// If the aggregator cannot be reached, or refuses the request.
    pub(super) async fn open(
        &self,
        route: &str,
        parameters: &[(&'static str, String)],
        waiting: (Duration, Option<&str>),
    ) -> Result<Response, FlowServerError> {
        self.send(route, parameters, waiting, None).await
    }

    /// Sends a GET, or a POST with a body.
    async fn send(
        &self,
        route: &str,
        parameters: &[(&'static str, String)],
        (read_timeout, last_event_id): (Duration, Option<&str>),
        body: Option<&str>,
    ) -> Result<Response, FlowServerError> {
        let unreachable = |error: &dyn std::error::Error| FlowServerError::Unreachable(self.failure(route, error));
        let parameters: Vec<(&str, Option<&str>)> =
            parameters.iter().map(|(field, text)| (*field, Some(text.as_str()))).collect();
        let url = self.url.join(&target(route, &parameters)).map_err(|error| unreachable(&error))?;
        let client = self.access.client(url.scheme() == "https", CONNECT_TIMEOUT, read_timeout).await;
        let client = client.map_err(|error| unreachable(&error))?;
        let mut request = match body {
            None => client.get(url),
            Some(body) => client.post(url).header("content-type", "application/yaml").body(body.to_owned()),
        };
        if let Some(value) = self.access.authorization().await.map_err(|error| unreachable(&error))? {
            request = request.header("authorization", value);
        }
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id);
        }
        let mut response = request.send().await.map_err(|error| unreachable(&error.without_url()))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| unreachable(&error.without_url()))? {
            body.extend_from_slice(&part);
            if body.len() > LARGEST_ERROR_BYTES {
                break;
            }
        }
        let says = match serde_json::from_slice::<ApiError>(&body) {
            Ok(error) => error.error,
            Err(_) => format!("the aggregator answered {status}: {}", String::from_utf8_lossy(&body).trim_end()),
        };
        Err(FlowServerError::Refused { status, says })
    }

    /// Reads a response line by line.
    async fn get(
        &self,
        route: &str,
        parameters: &[(&'static str, String)],
        mut each: impl FnMut(&[u8]) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let mut response = self.open(route, parameters, (READ_TIMEOUT, None)).await?;
        let broke_off = |error: &dyn std::error::Error| anyhow!(self.failure(route, error));
        let mut unread = Vec::new();
        while let Some(part) = response.chunk().await.map_err(|error| broke_off(&error.without_url()))? {
            unread.extend_from_slice(&part);
            let mut read = 0;
            while let Some(length) = unread[read..].iter().position(|byte| *byte == b'\n') {
                if !each(&unread[read..read + length])? {
                    return Ok(());
                }
                read += length + 1;
            }
            unread.drain(..read);
            if unread.len() > LARGEST_LINE_BYTES {
                bail!("a line of the aggregator's response is too long");
            }
        }
        if !unread.is_empty() {
            each(&unread)?;
        }
        Ok(())
    }

    /// Error message with the server and the path. It omits the query, which may have hundreds of filters.
    fn failure(&self, route: &str, error: &dyn std::error::Error) -> String {
        let mut url = self.url.clone();
        url.set_path(route);
        url.set_query(None);
        format!("cannot query the aggregator at {url}: {}", with_causes(error))
    }
}

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FlowServerError {
    /// The request may be retried.
    #[error("{0}")]
    Unreachable(String),
    #[error("{says}")]
    Refused { status: StatusCode, says: String },
}

/// The last line of a page.
const PAGE_END: &[u8] = b"{\"nextPage\":";

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageEnd {
    next_page: Option<String>,
}
