//! Asks the aggregator of flow records, as any client does.

use std::time::Duration;

use anyhow::{Context, bail};
use feed::Access;
use feed::client::Url;
use flow::ClusterRecord;
use serde::Deserialize;

use super::ApiError;
use super::client::target;

const CONNECT: Duration = Duration::from_secs(10);

/// Between two parts of an answer.
const SILENCE: Duration = Duration::from_secs(60);

/// Far above any record, far below what would hurt.
const LARGEST_LINE_BYTES: usize = 1 << 20;

/// An aggregator, and how to show who asks.
#[derive(Debug, Clone)]
pub(crate) struct FlowServer {
    pub(crate) url: Url,
    pub(crate) access: Access,
}

/// What of the aggregator's coverage people read.
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
        serde_json::from_slice(&text).context("cannot decode the response; use the program of the aggregator's release")
    }

    /// Hands each record to `each`, until there are no more or it returns false.
    pub(crate) async fn flows(
        &self,
        filters: &[(&'static str, String)],
        mut each: impl FnMut(ClusterRecord) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        self.get("/v1/flows", filters, |line| {
            let record = serde_json::from_slice(line);
            each(record.context("cannot decode a record; use the program of the aggregator's release")?)
        })
        .await
    }

    /// Reads an answer line by line.
    async fn get(
        &self,
        route: &str,
        parameters: &[(&'static str, String)],
        mut each: impl FnMut(&[u8]) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let parameters: Vec<(&str, Option<&str>)> =
            parameters.iter().map(|(field, text)| (*field, Some(text.as_str()))).collect();
        let url = self.url.join(&target(route, &parameters))?;
        let client = self.access.client(url.scheme() == "https", CONNECT, SILENCE).await?;
        let mut request = client.get(url);
        if let Some(value) = self.access.authorization().await? {
            request = request.header("authorization", value);
        }
        let failed = || format!("cannot ask the aggregator at {}", self.url);
        let mut response = request.send().await.with_context(failed)?;
        let status = response.status();
        let mut unread = Vec::new();
        while let Some(part) = response.chunk().await.with_context(failed)? {
            unread.extend_from_slice(&part);
            let mut read = 0;
            while let Some(length) =
                unread[read..].iter().position(|byte| *byte == b'\n').filter(|_| status.is_success())
            {
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
        if !status.is_success() {
            match serde_json::from_slice::<ApiError>(&unread) {
                Ok(error) => bail!("{}", error.error),
                Err(_) => bail!("the aggregator answered {status}: {}", String::from_utf8_lossy(&unread).trim_end()),
            }
        }
        if !unread.is_empty() {
            each(&unread)?;
        }
        Ok(())
    }
}
