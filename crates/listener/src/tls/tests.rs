use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Instant, SystemTime};

use axum::Extension;
use axum::routing::get;
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;
use crate::Protocols;

/// Timeout of handshakes in tests of other limits.
const LONG: Duration = Duration::from_secs(600);

/// Timeout of awaited events.
const WITHIN: Duration = Duration::from_secs(60);

/// Polling interval.
const POLL: Duration = Duration::from_millis(20);

struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

struct PemPair {
    certificate: String,
    key: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, name: &str, usage: ExtendedKeyUsagePurpose, year: i32) -> PemPair {
        let mut params = CertificateParams::new(vec!["localhost".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![usage];
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        PemPair { certificate, key: key.serialize_pem() }
    }

    fn server(&self, name: &str) -> PemPair {
        self.issue(name, ExtendedKeyUsagePurpose::ServerAuth, 2100)
    }

    fn client(&self, name: &str, year: i32) -> PemPair {
        self.issue(name, ExtendedKeyUsagePurpose::ClientAuth, year)
    }
}

/// Writes the files of a pair as the kubelet does: into a separate folder, with a symbolic link that is switched
/// atomically.
fn mount(folder: &Path, version: &str, pair: &PemPair) {
    let data = folder.join(version);
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("tls.crt"), &pair.certificate).unwrap();
    std::fs::write(data.join("tls.key"), &pair.key).unwrap();
    let link = folder.join("new");
    std::os::unix::fs::symlink(&data, &link).unwrap();
    std::fs::rename(link, folder.join("data")).unwrap();
}

struct Served {
    folder: TempDir,
    address: SocketAddr,
    refused: Arc<Mutex<BTreeMap<RefusalReason, usize>>>,
    status: watch::Receiver<TlsStatus>,
    trusted: String,
}

impl Served {
    async fn start(server: &Authority, clients: &Authority, handshakes: HandshakeLimits) -> Served {
        let folder = TempDir::new().unwrap();
        mount(folder.path(), "first", &server.server("first"));
        let client_ca = folder.path().join("clients.pem");
        std::fs::write(&client_ca, &clients.pem).unwrap();
        let data = folder.path().join("data");
        let files = TlsFiles {
            certificate: data.join("tls.crt"),
            key: data.join("tls.key"),
            client_ca: Some(client_ca),
            protocols: Protocols::Http1,
        };
        let (config, status, reloader) = files.load().unwrap();
        tokio::spawn(reloader.run());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let refused: Arc<Mutex<BTreeMap<RefusalReason, usize>>> = Arc::default();
        let counts = refused.clone();
        let count: Arc<dyn Fn(RefusalReason) + Send + Sync> = Arc::new(move |why| {
            *counts.lock().unwrap().entry(why).or_default() += 1;
        });
        let name = async |peer: Option<Extension<Arc<PeerCertificate>>>| {
            peer.and_then(|Extension(peer)| peer.common_name.clone()).unwrap_or_else(|| "no certificate".into())
        };
        let limits =
            ListenerLimits { connections: 64, request_head: LONG, lifetime: None, protocols: Protocols::Http1 };
        let routes = Router::new().route("/", get(name));
        tokio::spawn(serve(listener, routes, (limits, handshakes), config, count));
        Served { folder, address, refused, status, trusted: server.pem.clone() }
    }

    async fn connect(&self, client: Option<&PemPair>) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.trusted.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let config = match client {
            Some(pair) => {
                let certificate = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
                config.with_client_auth_cert(vec![certificate], key).unwrap()
            }
            None => config.with_no_client_auth(),
        };
        let stream = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    fn count(&self, why: RefusalReason) -> usize {
        self.refused.lock().unwrap().get(&why).copied().unwrap_or(0)
    }

    async fn until(&self, what: &str, mut condition: impl FnMut(&TlsStatus) -> bool) {
        let deadline = Instant::now() + WITHIN;
        while !condition(&self.status.borrow().clone()) {
            assert!(Instant::now() < deadline, "{what}: {:?}", self.status.borrow());
            tokio::time::sleep(POLL).await;
        }
    }
}

fn handshakes(count: usize, duration: Duration) -> HandshakeLimits {
    HandshakeLimits { count, duration }
}

#[test]
fn handshakes_are_part_of_the_connections() {
    for (connections, count) in [(768, 192), (16_384, 1_024), (16, 4), (1, 1)] {
        assert_eq!(HandshakeLimits::of_connections(connections), handshakes(count, HANDSHAKE), "{connections}");
    }
}

/// Sends a request on a connection that stays open.
async fn request(stream: &mut TlsStream<TcpStream>) -> std::io::Result<String> {
    stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await?;
    let mut answer = String::new();
    let mut buffer = [0; 1024];
    while !answer.contains("\r\n\r\n") {
        match timeout(WITHIN, stream.read(&mut buffer)).await.expect("an answer")? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => answer.push_str(std::str::from_utf8(&buffer[..n]).unwrap()),
        }
    }
    Ok(answer.split_once("\r\n\r\n").unwrap().1.to_owned())
}

/// The subject of the certificate that the server presented.
fn served_by(stream: &TlsStream<TcpStream>) -> String {
    let chain = stream.get_ref().1.peer_certificates().unwrap();
    PeerCertificate::of_der(&chain[0]).unwrap().common_name.unwrap()
}

#[tokio::test]
async fn idle_handshakes_do_not_stop_other_clients() {
    let ca = Authority::new("ca");
    let served = Served::start(&ca, &ca, handshakes(4, LONG)).await;
    let mut idle = vec![];
    for _ in 0..20 {
        idle.push(TcpStream::connect(served.address).await.unwrap());
    }
    let mut stream = served.connect(None).await.unwrap();
    assert_eq!(request(&mut stream).await.unwrap(), "no certificate");
    served.until("handshakes are evicted", |_| served.count(RefusalReason::HandshakeEvicted) >= 16).await;
    assert_eq!(served.count(RefusalReason::TooManyConnections), 0);
}

#[tokio::test]
async fn handshake_times_out_when_the_peer_is_silent() {
    let ca = Authority::new("ca");
    let served = Served::start(&ca, &ca, handshakes(4, Duration::from_millis(100))).await;
    let mut idle = TcpStream::connect(served.address).await.unwrap();
    let mut rest = vec![];
    timeout(WITHIN, idle.read_to_end(&mut rest)).await.expect("the server closes it").unwrap();
    served.until("it is counted", |_| served.count(RefusalReason::HandshakeTimedOut) == 1).await;
}

#[tokio::test]
async fn request_carries_the_verified_client_certificate() {
    let (ca, clients) = (Authority::new("ca"), Authority::new("clients"));
    let served = Served::start(&ca, &clients, handshakes(4, LONG)).await;
    let mut stream = served.connect(Some(&clients.client("scraper", 2100))).await.unwrap();
    assert_eq!(request(&mut stream).await.unwrap(), "scraper");
    for (refused, pair) in [&ca.client("scraper", 2100), &clients.client("scraper", 2021), &clients.server("scraper")]
        .into_iter()
        .enumerate()
    {
        // With TLS 1.3 the client sees the refusal at its next read.
        let answered = match served.connect(Some(pair)).await {
            Ok(mut stream) => request(&mut stream).await,
            Err(error) => Err(error),
        };
        assert!(answered.is_err(), "{answered:?}");
        served.until("it is counted", |_| served.count(RefusalReason::HandshakeFailed) == refused + 1).await;
    }
}

#[tokio::test]
async fn certificate_is_reloaded_while_connections_stay_open() {
    let ca = Authority::new("ca");
    let served = Served::start(&ca, &ca, handshakes(4, LONG)).await;
    let mut before = served.connect(None).await.unwrap();
    assert_eq!(
        (request(&mut before).await.unwrap().as_str(), served_by(&before).as_str()),
        ("no certificate", "first")
    );
    mount(served.folder.path(), "second", &ca.server("second"));
    served.until("the second pair is in use", |status| status.reloads == 1).await;
    assert_eq!(served_by(&served.connect(None).await.unwrap()), "second");
    assert_eq!(request(&mut before).await.unwrap(), "no certificate", "a connection is not ended by a reload");
}

#[tokio::test]
async fn unusable_new_pair_keeps_the_old_one() {
    let ca = Authority::new("ca");
    let served = Served::start(&ca, &ca, handshakes(4, LONG)).await;
    let (one, other) = (ca.server("one"), ca.server("other"));
    let expired = ca.issue("expired", ExtendedKeyUsagePurpose::ServerAuth, 2021);
    let mixed = PemPair { certificate: one.certificate.clone(), key: other.key };
    let garbage = PemPair { certificate: "no PEM".into(), key: one.key.clone() };
    for (version, pair, reason) in
        [("mixed", mixed, "cannot be used"), ("expired", expired, "has expired"), ("garbage", garbage, "usable")]
    {
        mount(served.folder.path(), version, &pair);
        let fails = |status: &TlsStatus| status.failure.as_ref().is_some_and(|failure| failure.contains(reason));
        served.until(version, fails).await;
        assert_eq!(served_by(&served.connect(None).await.unwrap()), "first", "{version}");
    }
    assert_eq!(served.status.borrow().failures, 3);
    mount(served.folder.path(), "good", &one);
    served.until("a good pair is used again", |status| status.failure.is_none() && status.reloads == 1).await;
    assert_eq!(served_by(&served.connect(None).await.unwrap()), "one");
    assert!(served.status.borrow().expires > SystemTime::now());
}

#[test]
fn unusable_files_are_named_at_the_start() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name);
    let files =
        TlsFiles { certificate: path("tls.crt"), key: path("tls.key"), client_ca: None, protocols: Protocols::Http1 };
    let error = |files: &TlsFiles| files.clone().load().err().map(|error| error.to_string()).unwrap();
    assert!(error(&files).contains("tls.crt: No such file"), "{}", error(&files));
    let ca = Authority::new("ca");
    let pair = ca.server("server");
    std::fs::write(path("tls.crt"), &pair.certificate).unwrap();
    std::fs::write(path("tls.key"), &ca.server("other").key).unwrap();
    assert!(error(&files).contains("tls.key cannot be used"), "{}", error(&files));
    std::fs::write(path("tls.key"), &pair.key).unwrap();
    std::fs::write(path("clients.pem"), "").unwrap();
    let with_clients = TlsFiles { client_ca: Some(path("clients.pem")), ..files.clone() };
    assert!(error(&with_clients).contains("clients.pem does not contain"), "{}", error(&with_clients));
    assert!(files.load().is_ok());
}
