//! Access to a server: the CA certificates that it is verified with, and the bearer token that is sent to it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::HeaderValue;
use reqwest::redirect;
use tokio::io::AsyncReadExt;

/// Size limit of a token file or a bundle of CA certificates.
const FILE_BYTES: u64 = 1 << 20;

/// CA certificates and bearer token for a server. Default: neither.
#[derive(Debug, Clone, Default)]
pub struct Access {
    /// Sent as `Authorization: Bearer`. Read again for each request, since tokens are replaced in place.
    pub token_file: Option<PathBuf>,
    /// PEM. Only these CA certificates are trusted; without the file, those of the system.
    pub ca_file: Option<PathBuf>,
}

/// Why a request could not be given its credentials or its trust.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// A file is missing or unreadable.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The token or CA file.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// No token and no bundle of CA certificates is this long.
    #[error("{path} is larger than {FILE_BYTES} bytes")]
    TooLong {
        /// The token or CA file.
        path: PathBuf,
    },
    /// The value would not be a valid `Authorization` header (RFC 6750).
    #[error("invalid token file {path}: expected one line of printable characters")]
    Token {
        /// The token file.
        path: PathBuf,
    },
    /// The file has no user and password for HTTP basic authentication (RFC 7617).
    #[error("invalid file {path}: expected one line USER:PASSWORD")]
    Basic {
        /// The file with the user and the password.
        path: PathBuf,
    },
    /// A PEM block of the file is not a certificate.
    #[error("invalid certificate file {path}: {source}")]
    Certificates {
        /// The CA file.
        path: PathBuf,
        /// Error of the TLS backend.
        source: reqwest::Error,
    },
    /// Without a certificate, no server could be verified.
    #[error("no certificates in {path}")]
    NoCertificates {
        /// The CA file.
        path: PathBuf,
    },
    /// The TLS backend refused the configuration, such as an empty store of the system.
    #[error("cannot create an HTTP client: {0}")]
    Client(#[source] reqwest::Error),
}

/// Installs `ring` as the TLS provider of the process: reqwest is built without one and panics if none is installed. An
/// installed provider is kept.
pub fn install_tls_provider() {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // An error means that another thread has installed the same provider.
        drop(rustls::crypto::ring::default_provider().install_default());
    }
}

impl Access {
    /// An HTTP client for the lifetime of the process. It follows no redirects, which would send the token to another
    /// server, and uses no proxy, since servers are in the cluster.
    ///
    /// `read_timeout` is that of a response, and the interval of TCP keepalives.
    ///
    /// # Errors
    /// If the CA certificates cannot be read, or if a URL is `https`, no file is given and the system has none.
    pub async fn client(
        &self,
        is_https: bool,
        connect: Duration,
        read_timeout: Duration,
    ) -> Result<reqwest::Client, AccessError> {
        let certificates = self.ca_certificates().await?;
        self.client_with(certificates.as_deref(), is_https, connect, read_timeout)
    }

    /// Reads the file of CA certificates.
    pub(crate) async fn ca_certificates(&self) -> Result<Option<Vec<u8>>, AccessError> {
        match &self.ca_file {
            Some(path) => read(path).await.map(Some),
            None => Ok(None),
        }
    }

    /// As [`Access::client`], with the contents of the file of CA certificates.
    pub(crate) fn client_with(
        &self,
        ca_certificates: Option<&[u8]>,
        is_https: bool,
        connect: Duration,
        read_timeout: Duration,
    ) -> Result<reqwest::Client, AccessError> {
        install_tls_provider();
        let builder = reqwest::Client::builder()
            .no_proxy()
            .redirect(redirect::Policy::none())
            .connect_timeout(connect)
            .read_timeout(read_timeout)
            .tcp_keepalive(read_timeout)
            .user_agent(concat!("ringfence/", env!("CARGO_PKG_VERSION")));
        let builder = match (&self.ca_file, ca_certificates, is_https) {
            (Some(path), Some(pem), _) => builder.tls_certs_only(certificates(path, pem)?),
            (_, _, true) => builder,
            // Without `https`, the system's CA certificates are not needed, and an empty system store must not be an
            // error.
            (_, _, false) => builder.tls_certs_only([]),
        };
        builder.build().map_err(AccessError::Client)
    }

    /// The value of the `Authorization` header, read from the file.
    ///
    /// # Errors
    /// If the file cannot be read, or contains no token.
    pub async fn authorization(&self) -> Result<Option<HeaderValue>, AccessError> {
        let Some(path) = &self.token_file else { return Ok(None) };
        let file = read(path).await?;
        let no_token = || AccessError::Token { path: path.clone() };
        let token = std::str::from_utf8(&file).map_err(|_| no_token())?.trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(no_token());
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).map_err(|_| no_token())?;
        value.set_sensitive(true);
        Ok(Some(value))
    }
}

/// Reads the user and the password of basic authentication from a file with one line `USER:PASSWORD`.
///
/// # Errors
/// If the file cannot be read, or has another form.
pub async fn read_basic_auth(path: &Path) -> Result<(String, String), AccessError> {
    let invalid = || AccessError::Basic { path: path.to_owned() };
    let text = String::from_utf8(read(path).await?).map_err(|_| invalid())?;
    match text.trim_end_matches(['\r', '\n']).split_once(':') {
        Some((user, password)) if !text.trim_end().contains('\n') => Ok((user.to_owned(), password.to_owned())),
        Some(_) | None => Err(invalid()),
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<reqwest::Certificate>, AccessError> {
    let certificates = reqwest::Certificate::from_pem_bundle(pem)
        .map_err(|source| AccessError::Certificates { path: path.to_owned(), source })?;
    if certificates.is_empty() { Err(AccessError::NoCertificates { path: path.to_owned() }) } else { Ok(certificates) }
}

async fn read(path: &Path) -> Result<Vec<u8>, AccessError> {
    let failed = |source| AccessError::Read { path: path.to_owned(), source };
    let mut bytes = vec![];
    let file = tokio::fs::File::open(path).await.map_err(failed)?;
    file.take(FILE_BYTES + 1).read_to_end(&mut bytes).await.map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(AccessError::TooLong { path: path.to_owned() });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn token_is_reread_from_file_per_request() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let access = Access { token_file: Some(path.clone()), ca_file: None };
        assert!(matches!(access.authorization().await, Err(AccessError::Read { .. })));
        for (text, header) in [("first\n", "Bearer first"), ("second", "Bearer second")] {
            std::fs::write(&path, text).unwrap();
            let value = access.authorization().await.unwrap().unwrap();
            assert_eq!(value, header);
            assert!(!format!("{value:?}").contains("first"), "not for logs");
        }
        for text in ["", "\n", "two words", "two\nlines", "\u{e4}"] {
            std::fs::write(&path, text).unwrap();
            assert!(matches!(access.authorization().await, Err(AccessError::Token { .. })), "{text:?}");
        }
        std::fs::write(&path, "x".repeat(FILE_BYTES as usize + 1)).unwrap();
        assert!(matches!(access.authorization().await, Err(AccessError::TooLong { .. })));
        assert!(Access::default().authorization().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn basic_auth_is_one_line_with_colon() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("basic");
        assert!(matches!(read_basic_auth(&path).await, Err(AccessError::Read { .. })));
        for text in ["ringfence:s:cret\n", "ringfence:s:cret\r\n", "ringfence:s:cret"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(read_basic_auth(&path).await.unwrap(), ("ringfence".to_owned(), "s:cret".to_owned()));
        }
        for text in ["", "ringfence\n", "one:1\ntwo:2\n"] {
            std::fs::write(&path, text).unwrap();
            let error = read_basic_auth(&path).await.unwrap_err();
            assert!(matches!(error, AccessError::Basic { .. }) && !error.to_string().contains("one:1"), "{error}");
        }
    }

    #[tokio::test]
    async fn https_has_a_provider_of_tls() {
        let client = Access::default().client(false, SECOND, SECOND).await.unwrap();
        // Nothing listens on the discard port of this host, and the request fails before the TLS handshake.
        let error = client.get("https://127.0.0.1:9/").send().await.unwrap_err();
        assert!(error.is_connect(), "{error:?}");
        install_tls_provider();
        assert!(rustls::crypto::CryptoProvider::get_default().is_some());
    }

    #[tokio::test]
    async fn a_file_without_certificates_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ca.pem");
        let access = Access { token_file: None, ca_file: Some(path.clone()) };
        assert!(matches!(access.client(true, SECOND, SECOND).await, Err(AccessError::Read { .. })));
        std::fs::write(&path, "nothing of that kind").unwrap();
        assert!(matches!(access.client(true, SECOND, SECOND).await, Err(AccessError::NoCertificates { .. })));
        std::fs::write(&path, "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").unwrap();
        let refused = access.client(true, SECOND, SECOND).await;
        assert!(refused.is_err(), "{refused:?}");
    }
}
