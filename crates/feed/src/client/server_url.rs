//! URLs of servers on a command line.

use std::net::IpAddr;

use super::Url;

/// Parses the base URL of a server.
///
/// # Errors
/// If it is not an http or https URL with a host.
pub fn parse_server_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|e| format!("{e}"))?;
    match url.scheme() {
        "http" | "https" if url.has_host() => Ok(url),
        _ => Err("expected an http or https URL, as in https://ringfence-context.ringfence:9471".into()),
    }
}

/// Whether requests to the server cross a network unencrypted.
pub fn is_exposed(url: &Url) -> bool {
    let host = url.host_str().unwrap_or("").trim_start_matches('[').trim_end_matches(']');
    let is_loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    url.scheme() == "http" && !is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_http_over_a_network_is_exposed() {
        for (text, exposed) in [
            ("http://ringfence-context.ringfence:9471", true),
            ("http://192.0.2.1:9471", true),
            ("http://127.0.0.1:9471", false),
            ("http://[::1]:9471", false),
            ("http://localhost:9471", false),
            ("https://192.0.2.1:9471", false),
        ] {
            assert_eq!(is_exposed(&parse_server_url(text).unwrap()), exposed, "{text}");
        }
    }

    #[test]
    fn server_url_requires_http_or_https() {
        for text in ["http://127.0.0.1:9471", "https://context.ringfence.svc/base"] {
            assert!(parse_server_url(text).is_ok(), "{text}");
        }
        for text in ["", "127.0.0.1:9471", "file:///x", "http://", "context"] {
            assert!(parse_server_url(text).is_err(), "{text}");
        }
    }
}
