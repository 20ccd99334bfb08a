//! The page: its embedded files, the queries that it reads, and the checks against other sites in the same browser.
//!
//! The page only reads: all routes are GET but what-if, whose body is compared and forgotten. Names in records are
//! chosen by others, so the Content-Security-Policy admits no inline script, no markup from strings (Trusted Types) and
//! no other origin.

mod assets;

use std::net::IpAddr;

use axum::Router;
use axum::extract::{Path, Request};
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, HOST, HeaderName, HeaderValue, IF_NONE_MATCH,
    REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::listen::{Sources, queries, refuse};
use assets::{Asset, INDEX};

/// First segment of the paths of the page's files.
pub(crate) const SEGMENT: &str = "ui";

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of every response.
const HEADERS: [(HeaderName, &str); 6] = [
    (CONTENT_SECURITY_POLICY, POLICY),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (X_FRAME_OPTIONS, "DENY"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const FETCH_DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// Routes of the page. On a loopback address (`is_local`) clients are not authenticated, so requests have to name this
/// host: a site whose DNS name is rebound to the loopback address names itself.
pub(crate) fn routes(sources: Sources, is_local: bool) -> Router {
    let routes = Router::new()
        .route("/", get(index))
        .route("/ui/{file}", get(file))
        .merge(queries())
        .fallback(async || refuse(StatusCode::NOT_FOUND, "resource not found"))
        .method_not_allowed_fallback(async || refuse(StatusCode::METHOD_NOT_ALLOWED, "method not allowed"))
        .layer(from_fn(refuse_other_sites));
    let routes = match is_local {
        true => routes.layer(from_fn(refuse_other_hosts)),
        false => routes,
    };
    routes.layer(from_fn(add_headers)).with_state(sources)
}

async fn index(headers: HeaderMap) -> Response {
    respond(&INDEX, &headers)
}

async fn file(Path(name): Path<String>, headers: HeaderMap) -> Response {
    match assets::named(&name) {
        Some(asset) => respond(asset, &headers),
        None => refuse(StatusCode::NOT_FOUND, "resource not found"),
    }
}

/// The browser keeps files, and asks each time whether they have changed: an update of the aggregator takes effect with
/// the next load.
fn respond(asset: &Asset, headers: &HeaderMap) -> Response {
    let tag = asset.tag();
    let cached = headers.get(IF_NONE_MATCH).and_then(|value| value.to_str().ok());
    let is_cached = cached.is_some_and(|tags| tags.split(',').any(|cached| cached.trim() == tag));
    let caching = [(ETAG, tag), (CACHE_CONTROL, "no-cache".to_owned())];
    match is_cached {
        true => (StatusCode::NOT_MODIFIED, caching).into_response(),
        false => (caching, [(CONTENT_TYPE, asset.content_type)], asset.body).into_response(),
    }
}

async fn add_headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    for (name, value) in HEADERS {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Protection against DNS rebinding.
async fn refuse_other_hosts(request: Request, next: Next) -> Response {
    match names_loopback(&request) {
        true => next.run(request).await,
        false => refuse(StatusCode::MISDIRECTED_REQUEST, "the page is served to localhost and loopback addresses"),
    }
}

fn names_loopback(request: &Request) -> bool {
    let header = request.headers().get(HOST).and_then(|value| value.to_str().ok());
    let authority = match request.uri().authority() {
        // HTTP/2
        Some(authority) => Some(authority.clone()),
        None => header.and_then(|text| text.parse().ok()),
    };
    authority.is_some_and(|authority: Authority| is_loopback_name(authority.host()))
}

/// Whether a host names this machine: no DNS name but `localhost`.
fn is_loopback_name(host: &str) -> bool {
    let address = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || address.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Refuses requests that a browser makes for another site, except links to the page. Such a site cannot read responses,
/// but it could use up the limit of concurrent queries.
async fn refuse_other_sites(request: Request, next: Next) -> Response {
    match is_of_other_site(&request) {
        true => refuse(StatusCode::FORBIDDEN, "requests of other sites are refused"),
        false => next.run(request).await,
    }
}

fn is_of_other_site(request: &Request) -> bool {
    let header = |name: HeaderName| request.headers().get(name).and_then(|value| value.to_str().ok());
    let is_own = header(FETCH_SITE).is_none_or(|site| matches!(site, "same-origin" | "none"));
    let is_link = header(FETCH_DESTINATION) == Some("document") && request.uri().path() == "/";
    !is_own && !is_link
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_names_are_known() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.0.0.2", "[::1]"] {
            assert!(is_loopback_name(host), "{host}");
        }
        for host in ["localhost.example", "127.0.0.1.example", "example", "10.0.0.1", "[::2]", "0.0.0.0", ""] {
            assert!(!is_loopback_name(host), "{host}");
        }
    }
}
