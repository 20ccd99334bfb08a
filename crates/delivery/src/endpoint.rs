//! A gRPC server as its clients know it: the URL, the CA certificates that verify it, and the client's credentials.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use feed::Access;
use feed::client::with_causes;
use http::Uri;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Deadline of one call, and for streams that of the response headers.
const CALL: Duration = Duration::from_secs(30);

/// URL of a gRPC server, and the credentials of the client.
#[derive(Debug, Clone)]
pub struct GrpcEndpoint {
    url: String,
    uri: Uri,
    access: Access,
    /// PEM files of certificate and key.
    certificate: Option<(PathBuf, PathBuf)>,
}

/// Invalid URL of a gRPC server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrpcEndpointError {
    #[error("invalid URL '{}': expected https://HOST:PORT, or http:// for tests", .0.escape_debug())]
    Url(String),
    #[error("a bearer token or certificate would be sent without TLS: expected https://HOST:PORT")]
    Plain,
}

impl GrpcEndpoint {
    /// # Errors
    /// If the URL is invalid, or credentials would be sent without TLS.
    pub fn new(
        url: &str,
        access: Access,
        certificate: Option<(PathBuf, PathBuf)>,
    ) -> Result<GrpcEndpoint, GrpcEndpointError> {
        let invalid = || GrpcEndpointError::Url(url.to_owned());
        let uri: Uri = url.parse().map_err(|_| invalid())?;
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
            return Err(GrpcEndpointError::Plain);
        }
        Ok(GrpcEndpoint { url: url.to_owned(), uri, access, certificate })
    }

    pub fn url(&self) -> &str {
        &self.url
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

    /// Reads the files of CA certificates, client certificate and key.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub async fn check(&self) -> Result<(), String> {
        let is_secure = self.is_secure();
        let client = self.access.client(is_secure, CONNECT_TIMEOUT, CALL).await;
        client.map_err(|error| with_causes(&error))?;
        self.endpoint(None).await.map(drop)
    }

    /// Connects with the current content of the certificate files: to one address of the host, or to any without one.
    ///
    /// # Errors
    /// If a file cannot be used, or the connection fails.
    pub async fn channel(&self, address: Option<SocketAddr>) -> Result<Channel, String> {
        let endpoint = self.endpoint(address).await?;
        endpoint.connect().await.map_err(|error| format!("cannot connect: {}", with_causes(&error)))
    }

    async fn endpoint(&self, address: Option<SocketAddr>) -> Result<Endpoint, String> {
        feed::install_tls_provider();
        let dialled = match address {
            Some(address) if self.is_secure() => format!("https://{address}"),
            Some(address) => format!("http://{address}"),
            None => self.url.clone(),
        };
        let mut endpoint = Endpoint::from_shared(dialled)
            .map_err(|error| error.to_string())?
            .origin(self.uri.clone())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(CALL)
            .tcp_keepalive(Some(CALL));
        if self.is_secure() {
            let read = async |path: &PathBuf| {
                tokio::fs::read(path).await.map_err(|error| format!("cannot read {}: {error}", path.display()))
            };
            // The certificate is valid for the host name of the URL, not for its addresses.
            let mut tls = ClientTlsConfig::new().domain_name(self.host());
            tls = match &self.access.ca_file {
                Some(path) => tls.ca_certificate(Certificate::from_pem(read(path).await?)),
                None => tls.with_native_roots(),
            };
            if let Some((certificate, key)) = &self.certificate {
                tls = tls.identity(Identity::from_pem(read(certificate).await?, read(key).await?));
            }
            endpoint = endpoint.tls_config(tls).map_err(|error| with_causes(&error))?;
        }
        Ok(endpoint)
    }

    pub(crate) async fn authorization(&self) -> Result<Option<MetadataValue<Ascii>>, String> {
        let value = self.access.authorization().await.map_err(|error| error.to_string())?;
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

    #[tokio::test]
    async fn unusable_certificate_files_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let (missing, text) = (folder.path().join("missing"), folder.path().join("text"));
        std::fs::write(&text, "neither a certificate nor a key").unwrap();
        let check = async |ca: Option<&PathBuf>, pair: Option<&PathBuf>| {
            let access = Access { token_file: None, ca_file: ca.cloned() };
            let certificate = pair.map(|path| (path.clone(), path.clone()));
            GrpcEndpoint::new("https://goldmane:7443", access, certificate).unwrap().check().await
        };
        for (ca, pair) in [(Some(&missing), None), (Some(&text), None), (None, Some(&missing)), (None, Some(&text))] {
            assert!(check(ca, pair).await.is_err(), "{ca:?} {pair:?}");
        }
    }
}
