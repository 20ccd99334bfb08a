//! Delivery target: the URL of the aggregator and the credentials of the agent.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use feed::Access;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;

use crate::endpoint::{GrpcEndpoint, GrpcEndpointError};

/// URL prefix for a host name with one address per aggregator, as of a headless Service. Thanos uses the same prefix.
const EACH_ADDRESS: &str = "dns+";

/// URL of the aggregator, and the credentials of the agent.
#[derive(Debug, Clone)]
pub struct DeliveryTarget {
    endpoint: GrpcEndpoint,
    /// Whether each address of the host is a separate aggregator.
    is_each_address: bool,
}

/// Invalid URL of an aggregator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryTargetError {
    #[error(
        "invalid URL '{}': expected https://HOST:PORT, dns+https://HOST:PORT for an aggregator at each address of the host, \
         or http:// for tests", .0.escape_debug()
    )]
    Url(String),
    #[error("{0}")]
    Plain(GrpcEndpointError),
}

impl DeliveryTarget {
    /// # Errors
    /// If the URL is invalid, or credentials would be sent without TLS.
    pub fn new(
        url: &str,
        access: Access,
        certificate: Option<(PathBuf, PathBuf)>,
    ) -> Result<DeliveryTarget, DeliveryTargetError> {
        let (is_each_address, plain_url) = match url.strip_prefix(EACH_ADDRESS) {
            Some(rest) => (true, rest),
            None => (false, url),
        };
        let endpoint = GrpcEndpoint::new(plain_url, access, certificate).map_err(|error| match error {
            GrpcEndpointError::Url(_) => DeliveryTargetError::Url(url.to_owned()),
            GrpcEndpointError::Plain => DeliveryTargetError::Plain(error),
        })?;
        Ok(DeliveryTarget { endpoint, is_each_address })
    }

    pub(crate) fn is_each_address(&self) -> bool {
        self.is_each_address
    }

    /// Host, in the form that the resolver expects, and port.
    pub(crate) fn host_and_port(&self) -> (&str, u16) {
        self.endpoint.host_and_port()
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
        let url = self.target.endpoint.url();
        match self.address {
            Some(address) => format!("{url} at {address}"),
            None => url.to_owned(),
        }
    }

    /// Connects with the current content of the certificate files.
    pub(crate) async fn channel(&self) -> Result<Channel, String> {
        self.target.endpoint.channel(self.address).await
    }

    pub(crate) async fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, String> {
        self.target.endpoint.authorization().await
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
            let refused = DeliveryTarget::new(bad, with_token(), None).unwrap_err();
            assert_eq!(refused, DeliveryTargetError::Plain(GrpcEndpointError::Plain));
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
