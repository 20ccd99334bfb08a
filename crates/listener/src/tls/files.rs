//! Certificate, key and client CA in files, reloaded when they change.
//!
//! The kubelet updates a mounted Secret by exchanging a symbolic link, so that certificate and key are read at slightly
//! different moments: an invalid pair counts as an error only if the next reading finds the same.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use tokio::sync::watch;

use crate::Protocols;
use crate::certificate::expiry_of_chain;

/// Maximum size of a file; larger files are not certificates.
const FILE_BYTES: u64 = 1 << 20;

/// Interval at which the files are read.
const REREAD: Duration = Duration::from_secs(1);

/// The configuration for the next handshake.
pub type ConfigReceiver = watch::Receiver<Arc<ServerConfig>>;

/// PEM files, as in a Secret of the type kubernetes.io/tls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub certificate: PathBuf,
    pub key: PathBuf,
    /// The CA certificates of clients. A client may present no certificate; one that it presents has to be valid.
    pub client_ca: Option<PathBuf>,
    /// Versions of HTTP that are negotiated (ALPN): those that the connections are served with.
    pub protocols: Protocols,
}

/// The certificate in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsStatus {
    /// When it, or a certificate of its chain, expires.
    pub expires: SystemTime,
    /// Error of the current files, if they cannot be used. The certificate that was loaded before stays in use.
    pub failure: Option<String>,
    /// Number of pairs that were loaded after the first.
    pub reloads: u64,
    /// Number of changed pairs that could not be loaded.
    pub failures: u64,
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum TlsError {
    #[error("cannot read {}: {reason}", path.display())]
    Read { path: PathBuf, reason: String },
    #[error("{} is larger than {FILE_BYTES} bytes", path.display())]
    TooLarge { path: PathBuf },
    #[error("{}: expected PEM with {expected}: {reason}", path.display())]
    Pem { path: PathBuf, expected: &'static str, reason: String },
    #[error("{} does not contain a usable certificate", path.display())]
    NoCertificate { path: PathBuf },
    #[error("the certificate {} and the key {} cannot be used: {reason}", certificate.display(), key.display())]
    Pair { certificate: PathBuf, key: PathBuf, reason: String },
    #[error("the certificate {} has expired", path.display())]
    Expired { path: PathBuf },
    #[error("{}: cannot use the client CA certificates: {reason}", path.display())]
    ClientCa { path: PathBuf, reason: String },
}

/// The bytes of all files at one moment.
#[derive(Clone, PartialEq, Eq)]
struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

struct LoadedConfig {
    config: Arc<ServerConfig>,
    expires: SystemTime,
}

impl TlsFiles {
    /// Loads the files. An expired certificate is loaded, since the port then still answers probes.
    ///
    /// # Errors
    /// If a file cannot be read, or certificate and key cannot be used.
    pub fn load(self) -> Result<(ConfigReceiver, watch::Receiver<TlsStatus>, Reloader), TlsError> {
        let contents = self.read()?;
        let loaded = self.decode(&contents)?;
        let status = TlsStatus { expires: loaded.expires, failure: None, reloads: 0, failures: 0 };
        let (config, configs) = watch::channel(loaded.config);
        let (status, statuses) = watch::channel(status);
        let reloader = Reloader { files: self, in_use: contents, suspect: None, config, status };
        Ok((configs, statuses, reloader))
    }

    fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents {
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
            client_ca: self.client_ca.as_deref().map(read).transpose()?,
        })
    }

    fn decode(&self, contents: &Contents) -> Result<LoadedConfig, TlsError> {
        let chain = certificates(&self.certificate, &contents.certificate)?;
        let no_certificate = || TlsError::NoCertificate { path: self.certificate.clone() };
        let expires = expiry_of_chain(chain.iter().map(AsRef::as_ref)).ok_or_else(no_certificate)?;
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| TlsError::Pem {
            path: self.key.clone(),
            expected: "a private key",
            reason: error.to_string(),
        })?;
        let pair = |error: rustls::Error| TlsError::Pair {
            certificate: self.certificate.clone(),
            key: self.key.clone(),
            reason: error.to_string(),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(pair)?;
        let builder = match (&self.client_ca, &contents.client_ca) {
            (Some(path), Some(pem)) => {
                let unusable = |reason: String| TlsError::ClientCa { path: path.clone(), reason };
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path, pem)? {
                    roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.allow_unauthenticated().build().map_err(|error| unusable(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
            (Some(_) | None, _) => builder.with_no_client_auth(),
        };
        let mut config = builder.with_single_cert(chain, key).map_err(pair)?;
        config.alpn_protocols = match self.protocols {
            Protocols::Http1 => vec![b"http/1.1".to_vec()],
            Protocols::Http1AndHttp2 => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
        };
        // A resumed session would skip the verification of the client's certificate.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(LoadedConfig { config: Arc::new(config), expires })
    }
}

/// Reloads the files when they change. Without it the first pair stays in use.
pub struct Reloader {
    files: TlsFiles,
    in_use: Contents,
    /// An error of the last reading, not reported yet.
    suspect: Option<TlsError>,
    config: watch::Sender<Arc<ServerConfig>>,
    status: watch::Sender<TlsStatus>,
}

impl Reloader {
    /// Runs until all receivers of the configuration are dropped.
    pub async fn run(mut self) {
        while !self.config.is_closed() {
            tokio::time::sleep(REREAD).await;
            // Small local files; a hanging file system must not hold up the listener.
            let (files, in_use) = (self.files.clone(), self.in_use.clone());
            let read = tokio::task::spawn_blocking(move || files.reread(&in_use)).await;
            match read {
                Ok(read) => self.apply(read),
                Err(panic) => tracing::error!("cannot read the TLS files: {panic}"),
            }
        }
    }

    fn apply(&mut self, read: Result<Option<(Contents, LoadedConfig)>, TlsError>) {
        match read {
            Ok(None) => self.recovered(),
            Ok(Some((contents, loaded))) => {
                self.recovered();
                self.in_use = contents;
                self.config.send_replace(loaded.config);
                self.status.send_modify(|status| {
                    status.expires = loaded.expires;
                    status.reloads += 1;
                });
                tracing::info!(certificate = %self.files.certificate.display(), "TLS certificate reloaded");
            }
            Err(error) => {
                let message = error.to_string();
                let is_confirmed = self.suspect.replace(error).is_some_and(|before| before.to_string() == message);
                let is_known = self.status.borrow().failure.as_ref() == Some(&message);
                if is_confirmed && !is_known {
                    tracing::error!("{message}; the previous certificate stays in use");
                    self.status.send_modify(|status| {
                        status.failure = Some(message);
                        status.failures += 1;
                    });
                }
            }
        }
    }

    fn recovered(&mut self) {
        self.suspect = None;
        self.status.send_if_modified(|status| status.failure.take().is_some());
    }
}

impl TlsFiles {
    /// Reads the files; `None` if they are equal to the pair in use.
    fn reread(&self, in_use: &Contents) -> Result<Option<(Contents, LoadedConfig)>, TlsError> {
        let contents = self.read()?;
        if contents == *in_use {
            return Ok(None);
        }
        let loaded = self.decode(&contents)?;
        if loaded.expires <= SystemTime::now() {
            return Err(TlsError::Expired { path: self.certificate.clone() });
        }
        Ok(Some((contents, loaded)))
    }
}

fn certificates(path: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let invalid = |error: rustls::pki_types::pem::Error| TlsError::Pem {
        path: path.to_owned(),
        expected: "certificates",
        reason: error.to_string(),
    };
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(invalid)?;
    if certificates.is_empty() { Err(TlsError::NoCertificate { path: path.to_owned() }) } else { Ok(certificates) }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let failed = |error: std::io::Error| TlsError::Read { path: path.to_owned(), reason: error.to_string() };
    let mut bytes = vec![];
    let file = std::fs::File::open(path).map_err(failed)?;
    file.take(FILE_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES { Err(TlsError::TooLarge { path: path.to_owned() }) } else { Ok(bytes) }
}
