//! Delivery target: the URL of the aggregator and the credentials of the agent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use feed::Access;
use feed::client::with_causes;
use http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Deadline of one call.
const CALL: Duration = Duration::from_secs(30);

/// URL prefix for a host name with one address per aggregator, as of a headless Service. Thanos uses the same prefix.
const EACH_ADDRESS: &str = "dns+";

/// URL of the aggregator, and the credentials of the agent.
#[derive(Debug, Clone)]
pub struct DeliveryTarget {
    url: String,
    uri: Uri,
    /// Whether each address of the host is a separate aggregator.
    is_each_address: bool,
    access: Access,
    /// PEM files of certificate and key.
    certificate: Option<(PathBuf, PathBuf)>,
}

/// Invalid URL of an aggregator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryTargetError {
    #[error(
        "invalid URL '{}': expected https://HOST:PORT, dns+https://HOST:PORT for an aggregator at each address of the host, \
         or http:// for tests", .0.escape_debug()
    )]
    Url(String),
    #[error("a bearer token or certificate would be sent without TLS: expected https://HOST:PORT")]
    Plain,
}

impl DeliveryTarget {
    /// # Errors
    /// If the URL is invalid, or credentials would be sent without TLS.
    pub fn new(
        url: &str,
        access: Access,
        certificate: Option<(PathBuf, PathBuf)>,
    ) -> Result<DeliveryTarget, DeliveryTargetError> {
        let invalid = || DeliveryTargetError::Url(url.to_owned());
        let (is_each_address, plain_url) = match url.strip_prefix(EACH_ADDRESS) {
            Some(rest) => (true, rest),
            None => (false, url),
        };
        let uri: Uri = plain_url.parse().map_err(|_| invalid())?;
        let has_user = uri.authority().is_none_or(|authority| authority.as_str().contains('@'));
        let is_secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            Some(_) | None => return Err(invalid()),
        };
        if has_user || !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            return Err(invalid());
        }
        if !is_secure && (access.token_file.is_some() || certificate.is_some()) {
            return Err(DeliveryTargetError::Plain);
        }
        Ok(DeliveryTarget { url: plain_url.to_owned(), uri, is_each_address, access, certificate })
    }

    pub(crate) fn is_each_address(&self) -> bool {
        self.is_each_address
    }

    /// Host, in the form that the resolver expects, and port.
    pub(crate) fn host_and_port(&self) -> (&str, u16) {
        let default = if self.is_secure() { 443 } else { 80 };
        (self.host().trim_matches(['[', ']']), self.uri.port_u16().unwrap_or(default))
    }

    fn host(&self) -> &str {
        self.uri.host().unwrap_or_default()
    }

    fn is_secure(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }
}

/// One aggregator of a target.
#[derive(Debug, Clone)]
pub(crate) struct Server {
    target: Arc<DeliveryTarget>,
    /// `None` if any address of the host can be used.
    address: Option<SocketAddr>,
}

impl Server {
    pub(crate) fn new(target: Arc<DeliveryTarget>, address: Option<SocketAddr>) -> Server {
        Server { target, address }
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Text form for messages.
    pub(crate) fn name(&self) -> String {
        match self.address {
            Some(address) => format!("{} at {address}", self.target.url),
            None => self.target.url.clone(),
        }
    }

    /// Connects with the current content of the certificate files.
    pub(crate) async fn channel(&self) -> Result<Channel, String> {
        let target = &self.target;
        feed::install_tls_provider();
        let dialled = match self.address {
            Some(address) if target.is_secure() => format!("https://{address}"),
            Some(address) => format!("http://{address}"),
            None => target.url.clone(),
        };
        let mut endpoint = Endpoint::from_shared(dialled)
            .map_err(|error| error.to_string())?
            .origin(target.uri.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL)
            .tcp_keepalive(Some(CALL));
        if target.is_secure() {
            let read = async |path: &PathBuf| {
                tokio::fs::read(path).await.map_err(|error| format!("cannot read {}: {error}", path.display()))
            };
            // The certificate is valid for the host name of the URL, not for its addresses.
            let mut tls = ClientTlsConfig::new().domain_name(target.host());
            tls = match &target.access.ca_file {
                Some(path) => tls.ca_certificate(Certificate::from_pem(read(path).await?)),
                None => tls.with_native_roots(),
            };
            if let Some((certificate, key)) = &target.certificate {
                tls = tls.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| with_causes(&error))?;
        }
        endpoint.connect().await.map_err(|error| format!("cannot connect: {}", with_causes(&error)))
    }

    pub(crate) async fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, String> {
        let value = self.target.access.authorization().await.map_err(|error| error.to_string())?;
        let value = value.map(|value| MetadataValue::try_from(value.as_bytes()));
        let mut value = value.transpose().map_err(|error| error.to_string())?;
        if let Some(value) = &mut value {
            value.set_sensitive(true);
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_is_a_url_that_shows_no_secrets() {
        let with_token = || Access { token_file: Some("/token".into()), ca_file: None };
        assert!(DeliveryTarget::new("https://flows.ringfence:9475", with_token(), None).is_ok());
        assert!(DeliveryTarget::new("dns+https://flows.ringfence:9475", with_token(), None).is_ok());
        assert!(DeliveryTarget::new("http://127.0.0.1:9475", Access::default(), None).is_ok());
        let bad_urls = [
            "flows:9475",
            "ftp://flows",
            "https://user@flows",
            "https://flows/path",
            "https://flows?x=y",
            "",
            "dns+flows:1",
        ];
        for bad in bad_urls {
            let refused = DeliveryTarget::new(bad, Access::default(), None).unwrap_err();
            assert_eq!(refused, DeliveryTargetError::Url(bad.to_owned()));
        }
        for bad in ["http://flows", "dns+http://flows"] {
            assert_eq!(DeliveryTarget::new(bad, with_token(), None).unwrap_err(), DeliveryTargetError::Plain);
        }
    }

    #[test]
    fn resolver_gets_host_and_port_of_the_url() {
        let of = |url: &str| {
            let target = DeliveryTarget::new(url, Access::default(), None).unwrap();
            let (host, port) = target.host_and_port();
            (host.to_owned(), port, target.is_each_address())
        };
        assert_eq!(of("dns+https://flows.ringfence:9475"), ("flows.ringfence".into(), 9475, true));
        assert_eq!(of("https://flows"), ("flows".into(), 443, false));
        assert_eq!(of("dns+http://[::1]"), ("::1".into(), 80, true));
    }
}
