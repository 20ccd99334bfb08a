//! Certificates for tests, and a client that uses them.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use feed::client::with_causes;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
};

/// Timeout of a whole request.
const PATIENCE: Duration = Duration::from_secs(30);

/// A CA for tests.
pub struct TestCa {
    pub pem: String,
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate with its key, in PEM.
#[derive(Debug, Clone)]
pub struct TestCertificate {
    pub certificate: String,
    pub key: String,
}

/// Whether a certificate is valid today.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Validity {
    Valid,
    Expired,
}

impl TestCa {
    /// # Panics
    /// If it cannot be created.
    pub fn new(name: &str) -> TestCa {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name, &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        TestCa { pem, issuer: Issuer::new(params, key) }
    }

    /// Issues a certificate for a server on the loopback.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn server(&self, validity: Validity) -> TestCertificate {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("names");
        params.distinguished_name = named("server", &[]);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.signed(params, validity)
    }

    /// Issues a certificate for a client.
    ///
    /// # Panics
    /// If it cannot be created.
    pub fn client(&self, user: &str, groups: &[&str], validity: Validity) -> TestCertificate {
        let mut params = CertificateParams::default();
        params.distinguished_name = named(user, groups);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.signed(params, validity)
    }

    fn signed(&self, mut params: CertificateParams, validity: Validity) -> TestCertificate {
        let expiry = match validity {
            Validity::Valid => 2100,
            Validity::Expired => 2021,
        };
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(expiry, 1, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        TestCertificate { certificate, key: key.serialize_pem() }
    }
}

fn named(user: &str, groups: &[&str]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, user);
    for group in groups {
        name.push(DnType::OrganizationName, *group);
    }
    name
}

/// Writes `tls.crt` and `tls.key` below `folder/data` as the kubelet mounts a Secret: an atomic change of a symbolic
/// link.
///
/// # Panics
/// If they cannot be written.
pub fn mount(folder: &Path, version: &str, pair: &TestCertificate) {
    let data = folder.join(version);
    let write = || {
        std::fs::create_dir(&data)?;
        std::fs::write(data.join("tls.crt"), &pair.certificate)?;
        std::fs::write(data.join("tls.key"), &pair.key)?;
        std::os::unix::fs::symlink(&data, folder.join("new"))?;
        std::fs::rename(folder.join("new"), folder.join("data"))
    };
    write().expect("a folder of ours");
}

/// The command line flags for the pair of [`mount`].
pub fn mounted(folder: &Path) -> Vec<String> {
    let path = |name: &str| folder.join("data").join(name).display().to_string();
    vec!["--tls-cert".into(), path("tls.crt"), "--tls-key".into(), path("tls.key")]
}

/// The status and the body of a response.
pub type HttpsAnswer = (u16, String);

/// A client that trusts one CA.
#[derive(Clone, Default)]
pub struct HttpsClient {
    pub ca: String,
    pub token: Option<String>,
    pub certificate: Option<TestCertificate>,
}

impl HttpsClient {
    pub fn new(ca: &TestCa) -> HttpsClient {
        HttpsClient { ca: ca.pem.clone(), ..HttpsClient::default() }
    }

    pub fn with_token(&self, token: &str) -> HttpsClient {
        HttpsClient { token: Some(token.to_owned()), ..self.clone() }
    }

    pub fn with_certificate(&self, certificate: TestCertificate) -> HttpsClient {
        HttpsClient { certificate: Some(certificate), ..self.clone() }
    }

    /// Sends a GET request to a server on the loopback.
    ///
    /// # Errors
    /// If the request fails; with all causes.
    ///
    /// # Panics
    /// If the client cannot be created.
    pub fn get(&self, address: SocketAddr, path: &str) -> Result<HttpsAnswer, String> {
        feed::install_tls_provider();
        let ca = reqwest::Certificate::from_pem_bundle(self.ca.as_bytes()).expect("CA certificates");
        let mut builder = reqwest::Client::builder().no_proxy().tls_certs_only(ca).timeout(PATIENCE);
        if let Some(pair) = &self.certificate {
            let pem = format!("{}{}", pair.certificate, pair.key);
            builder = builder.identity(reqwest::Identity::from_pem(pem.as_bytes()).expect("a certificate and its key"));
        }
        let client = builder.build().expect("a client");
        let mut request = client.get(format!("https://{address}{path}"));
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let answer = request.send().await.map_err(|error| with_causes(&error))?;
            let status = answer.status().as_u16();
            Ok((status, answer.text().await.map_err(|error| with_causes(&error))?))
        })
    }

    /// The status of a response.
    ///
    /// # Panics
    /// If the request fails.
    #[track_caller]
    pub fn status(&self, address: SocketAddr, path: &str) -> u16 {
        self.get(address, path).unwrap_or_else(|error| panic!("{path}: {error}")).0
    }

    /// Writes CA and token to files, for programs.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn files(&self, folder: &Path) -> (PathBuf, PathBuf) {
        let (ca, token) = (folder.join("ca.crt"), folder.join("token"));
        std::fs::write(&ca, &self.ca).expect("a folder of ours");
        std::fs::write(&token, self.token.as_deref().unwrap_or("none")).expect("a folder of ours");
        (ca, token)
    }
}
