//! Reads the newest baselines from a provider, a store or a folder.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};
use bytes::Bytes;
use feed::{Access, Head};
use reqwest::StatusCode;
use reqwest::header::{AUTHORIZATION, HeaderMap};

use crate::cli::{DataSource, FromArguments};
use crate::store::{Latest, Store};

/// Timeout of a request to a provider.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Reads a part of a feed's baseline: `baseline`, or the name of another part.
pub(crate) async fn read(from: &FromArguments, feed: &str, part: &str) -> anyhow::Result<Bytes> {
    match &from.from {
        DataSource::Served(base) => from_provider(base, &from.access(), feed, part).await,
        DataSource::Store(url) => from_store(&Store::open(url)?, feed, part).await.with_context(|| url.0.to_string()),
        DataSource::Path(path) if path.is_dir() => {
            from_store(&Store::of_folder(path)?, feed, part).await.with_context(|| path.display().to_string())
        }
        DataSource::Path(path) => from_file(path),
    }
}

/// Reads the baseline of a feed that stores lack and some providers do not serve. `None` if the source does not have it.
pub(crate) async fn read_if_served(from: &FromArguments, feed: &str) -> anyhow::Result<Option<Bytes>> {
    match &from.from {
        DataSource::Served(base) => Ok(match answer_of(base, &from.access(), feed, "baseline").await? {
            ProviderResponse { status: StatusCode::NOT_FOUND, .. } => None,
            answer => Some(answer.into_download(base)?),
        }),
        DataSource::Store(_) | DataSource::Path(_) => Ok(None),
    }
}

fn from_file(path: &Path) -> anyhow::Result<Bytes> {
    std::fs::read(path).map(Bytes::from).with_context(|| path.display().to_string())
}

async fn from_store(store: &Store, feed: &str, part: &str) -> anyhow::Result<Bytes> {
    let Some(Latest { head, objects, .. }) = store.latest(feed).await? else {
        bail!("{feed}/latest.json not found; expected the output of 'serve --store' or 'build --out'");
    };
    let Some(stored) = objects.iter().find(|stored| stored.what == part) else {
        bail!("part '{part}' of {feed} not found");
    };
    let bytes = store.read(feed, &stored.object).await?;
    let is_table = objects.first().is_some_and(|first| first.what == part);
    if is_table && feed::Digest::of(&bytes) != head.sha256 {
        bail!("{} is damaged: SHA-256 mismatch with {feed}/latest.json", stored.object);
    }
    Ok(bytes)
}

async fn from_provider(base: &reqwest::Url, access: &Access, feed: &str, part: &str) -> anyhow::Result<Bytes> {
    answer_of(base, access, feed, part).await?.into_download(base)
}

/// Looks up an address at a past time at a provider, which parses the text of the time.
pub(crate) async fn lookup_past(from: &FromArguments, feed: &str, address: IpAddr, at: &str) -> anyhow::Result<Bytes> {
    let DataSource::Served(base) = &from.from else {
        bail!("--at needs a provider, which keeps the history: set --from to https://HOST:PORT");
    };
    let address = address.to_string();
    let query = [("ip", address.as_str()), ("at", at)];
    Ok(get(base, &from.access(), feed, "lookup", &query).await?.succeeded(base)?.bytes)
}

/// Response of a provider.
struct ProviderResponse {
    status: StatusCode,
    headers: HeaderMap,
    bytes: Bytes,
}

impl ProviderResponse {
    fn succeeded(self, base: &reqwest::Url) -> anyhow::Result<ProviderResponse> {
        if !self.status.is_success() {
            bail!("{base} returned {}: {}", self.status, String::from_utf8_lossy(&self.bytes).trim());
        }
        Ok(self)
    }

    fn into_download(self, base: &reqwest::Url) -> anyhow::Result<Bytes> {
        let ProviderResponse { headers, bytes, .. } = self.succeeded(base)?;
        Head::of_download(|name| headers.get(name).and_then(|value| value.to_str().ok()), &bytes)?;
        Ok(bytes)
    }
}

async fn answer_of(base: &reqwest::Url, access: &Access, feed: &str, part: &str) -> anyhow::Result<ProviderResponse> {
    let query: &[(&str, &str)] = if part == "baseline" { &[] } else { &[("part", part)] };
    get(base, access, feed, "download", query).await
}

/// Requests a resource of a feed.
async fn get(
    base: &reqwest::Url,
    access: &Access,
    feed: &str,
    resource: &str,
    query: &[(&str, &str)],
) -> anyhow::Result<ProviderResponse> {
    let is_https = base.scheme() == "https";
    let client = access.client(is_https, REQUEST_TIMEOUT, REQUEST_TIMEOUT).await?;
    let token = access.authorization().await?;
    if token.is_some() && !is_https && !is_loopback(base) {
        bail!("refusing to send a token to {base} without TLS; use an https:// URL");
    }
    let mut url = base.clone();
    match url.path_segments_mut() {
        Ok(mut segments) => segments.pop_if_empty().push(feed).push(resource),
        Err(()) => bail!("{base} has no host"),
    };
    if !query.is_empty() {
        url.query_pairs_mut().extend_pairs(query);
    }
    let unreached = || format!("cannot connect to {base}; choose another source with --from");
    let request = token.into_iter().fold(client.get(url), |request, token| request.header(AUTHORIZATION, token));
    let answer = request.send().await.with_context(unreached)?;
    let status = answer.status();
    let headers = answer.headers().clone();
    let bytes = answer.bytes().await.with_context(unreached)?;
    Ok(ProviderResponse { status, headers, bytes })
}

fn is_loopback(url: &reqwest::Url) -> bool {
    let host = url.host_str().unwrap_or("").trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}
