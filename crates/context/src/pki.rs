//! The provider's own certificates: a CA, a serving certificate, and a client certificate for scraping.
//!
//! [`plan`] decides and issues, without I/O. A CA is renewed long before it expires and stays in the bundle until then:
//! the certificates that it signed stay valid, and clients trust the new CA before it signs anything.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

const DAY: Duration = Duration::from_secs(86_400);

const CA_LIFETIME: Duration = DAY.saturating_mul(3_650);
/// More than the lifetime of a leaf certificate.
const CA_RENEWAL: Duration = DAY.saturating_mul(365);
const LIFETIME: Duration = DAY.saturating_mul(90);
const RENEWAL: Duration = DAY.saturating_mul(30);

/// Tolerance for clocks that are behind.
const BACKDATED: Duration = Duration::from_secs(3_600);

/// A certificate and its key, in PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeyedCertificate {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// The signing CA, and the previous one while it is valid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Authority {
    pub(crate) current: KeyedCertificate,
    pub(crate) previous: Option<String>,
}

/// The certificates stored in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct StoredCertificates {
    pub(crate) authority: Option<Authority>,
    pub(crate) serving: Option<KeyedCertificate>,
    pub(crate) scraper: Option<KeyedCertificate>,
}

/// Subjects of the certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CertificateNames {
    /// Host names and addresses of the serving certificate.
    pub(crate) hosts: BTreeSet<String>,
    /// The user of the client certificate.
    pub(crate) scraper: String,
}

/// The certificates to store, and a description of each newly issued one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) authority: Authority,
    pub(crate) serving: KeyedCertificate,
    pub(crate) scraper: KeyedCertificate,
    pub(crate) issued: Vec<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PkiError {
    #[error("cannot issue a certificate: {0}")]
    Issue(#[from] rcgen::Error),
}

impl Authority {
    /// The CA certificates that clients should trust.
    pub(crate) fn bundle(&self) -> String {
        format!("{}{}", self.current.certificate, self.previous.as_deref().unwrap_or(""))
    }
}

impl CertificateNames {
    pub(crate) fn new(service: &str, namespace: &str, more: &[String]) -> CertificateNames {
        let of_service = ["", ".NS", ".NS.svc", ".NS.svc.cluster.local"]
            .map(|suffix| format!("{service}{suffix}").replace("NS", namespace));
        let local = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        // Addresses are normalized, so that they match those in a certificate.
        let more = more.iter().map(|name| name.parse().map_or_else(|_| name.clone(), |ip: IpAddr| ip.to_string()));
        CertificateNames {
            hosts: of_service.into_iter().chain(local).chain(more).collect(),
            scraper: format!("{service}-metrics"),
        }
    }
}

/// The type of a leaf certificate.
enum Leaf<'a> {
    Serving(&'a BTreeSet<String>),
    Scraper(&'a str),
}

/// Decides which certificates stay, and issues the others.
pub(crate) fn plan(stored: &StoredCertificates, names: &CertificateNames, now: SystemTime) -> Result<Plan, PkiError> {
    let mut issued = vec![];
    // Certificates that are due when the CA is renewed are signed by the CA that clients already trust.
    let (authority, signer) = match stored.authority.as_ref().filter(|authority| can_sign(&authority.current, now)) {
        Some(authority) if remaining(&authority.current.certificate, now) > Some(CA_RENEWAL) => {
            let previous = authority.previous.clone().filter(|pem| remaining(pem, now).is_some());
            (Authority { previous, ..authority.clone() }, authority.current.clone())
        }
        Some(authority) => {
            issued.push("CA certificate: renewed before it expires".to_owned());
            let previous = Some(authority.current.certificate.clone());
            (Authority { current: new_authority(now)?, previous }, authority.current.clone())
        }
        None => {
            let why = if stored.authority.is_some() { "the stored one cannot be used" } else { "there was none" };
            issued.push(format!("CA certificate: {why}"));
            let current = new_authority(now)?;
            (Authority { current: current.clone(), previous: None }, current)
        }
    };
    let mut keep_or_issue = |what: &str, stored: Option<&KeyedCertificate>, leaf: &Leaf| {
        match stored.map(|stored| why_replace(stored, &authority, leaf, now)) {
            Some(None) => Ok(stored.cloned()),
            Some(Some(why)) => {
                issued.push(format!("{what}: {why}"));
                Ok(None)
            }
            None => {
                issued.push(format!("{what}: there was none"));
                Ok(None)
            }
        }
        .and_then(|kept: Option<KeyedCertificate>| kept.map_or_else(|| issue(&signer, leaf, now), Ok))
    };
    let serving = keep_or_issue("serving certificate", stored.serving.as_ref(), &Leaf::Serving(&names.hosts))?;
    let scraper = keep_or_issue("client certificate", stored.scraper.as_ref(), &Leaf::Scraper(&names.scraper))?;
    Ok(Plan { authority, serving, scraper, issued })
}

fn new_authority(now: SystemTime) -> Result<KeyedCertificate, PkiError> {
    let mut params = params(now, CA_LIFETIME);
    // CAs have distinct names, so that chains are built with the right one.
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    params.distinguished_name.push(DnType::CommonName, format!("ringfence-context-ca@{}", since_1970.as_secs()));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate()?;
    Ok(KeyedCertificate { certificate: params.self_signed(&key)?.pem(), key: key.serialize_pem() })
}

fn issue(signer: &KeyedCertificate, leaf: &Leaf, now: SystemTime) -> Result<KeyedCertificate, PkiError> {
    let mut params = match leaf {
        Leaf::Serving(hosts) => {
            let mut params = CertificateParams::new(hosts.iter().cloned().collect::<Vec<_>>())?;
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            params
        }
        Leaf::Scraper(_) => {
            let mut params = CertificateParams::new(vec![])?;
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            params
        }
    };
    let CertificateParams { not_before, not_after, .. } = self::params(now, LIFETIME);
    (params.not_before, params.not_after) = (not_before, not_after);
    params.distinguished_name = DistinguishedName::new();
    let name = match leaf {
        Leaf::Serving(_) => "ringfence-context",
        Leaf::Scraper(user) => user,
    };
    params.distinguished_name.push(DnType::CommonName, name);
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    let issuer = Issuer::from_ca_cert_pem(&signer.certificate, KeyPair::from_pem(&signer.key)?)?;
    let key = KeyPair::generate()?;
    Ok(KeyedCertificate { certificate: params.signed_by(&key, &issuer)?.pem(), key: key.serialize_pem() })
}

fn params(now: SystemTime, lifetime: Duration) -> CertificateParams {
    let mut params = CertificateParams::default();
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + since_1970.saturating_sub(BACKDATED);
    params.not_after = epoch + since_1970 + lifetime;
    params.distinguished_name = DistinguishedName::new();
    params
}

/// Reason to replace a stored certificate; `None` if it can stay.
fn why_replace(stored: &KeyedCertificate, authority: &Authority, leaf: &Leaf, now: SystemTime) -> Option<String> {
    let unusable = || Some("the stored one cannot be used".to_owned());
    let Some(pem) = pem(&stored.certificate) else { return unusable() };
    let Ok(certificate) = pem.parse_x509() else { return unusable() };
    if !has_key(&certificate, &stored.key) {
        return Some("the stored key is not that of the certificate".to_owned());
    }
    let is_signed = |ca: &str| {
        let Some(ca) = self::pem(ca) else { return false };
        ca.parse_x509().is_ok_and(|ca| certificate.verify_signature(Some(ca.public_key())).is_ok())
    };
    let authorities = [Some(&authority.current.certificate), authority.previous.as_ref()];
    if !authorities.into_iter().flatten().any(|ca| is_signed(ca)) {
        return Some("the stored one was signed by another CA".to_owned());
    }
    let names_fit = match leaf {
        Leaf::Serving(hosts) => hosts_of(&certificate) == **hosts,
        Leaf::Scraper(user) => {
            certificate.subject().iter_common_name().filter_map(|name| name.as_str().ok()).eq([*user])
        }
    };
    if !names_fit {
        return Some("the stored one has other names".to_owned());
    }
    match remaining(&stored.certificate, now) {
        Some(remaining) if remaining > RENEWAL => None,
        Some(_) => Some("renewed before it expires".to_owned()),
        None => Some("the stored one has expired".to_owned()),
    }
}

/// Whether the CA is valid and its key is present.
fn can_sign(authority: &KeyedCertificate, now: SystemTime) -> bool {
    let Some(pem) = pem(&authority.certificate) else { return false };
    let Ok(certificate) = pem.parse_x509() else { return false };
    certificate.is_ca() && has_key(&certificate, &authority.key) && remaining(&authority.certificate, now).is_some()
}

fn has_key(certificate: &X509Certificate, key: &str) -> bool {
    KeyPair::from_pem(key).is_ok_and(|key| key.public_key_raw() == &*certificate.public_key().subject_public_key.data)
}

fn hosts_of(certificate: &X509Certificate) -> BTreeSet<String> {
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return BTreeSet::new() };
    let host = |name: &GeneralName| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(octets) => {
            let ip = <[u8; 4]>::try_from(*octets).map(IpAddr::from);
            ip.or_else(|_| <[u8; 16]>::try_from(*octets).map(IpAddr::from)).ok().map(|ip| ip.to_string())
        }
        _ => None,
    };
    names.value.general_names.iter().filter_map(host).collect()
}

/// Remaining validity of the certificate; `None` if it is not valid.
fn remaining(certificate: &str, now: SystemTime) -> Option<Duration> {
    let pem = pem(certificate)?;
    let not_after = pem.parse_x509().ok()?.validity().not_after.timestamp();
    let since_1970 = now.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    Duration::from_secs(u64::try_from(not_after).ok()?).checked_sub(since_1970).filter(|left| !left.is_zero())
}

fn pem(text: &str) -> Option<Pem> {
    x509_parser::pem::parse_x509_pem(text.as_bytes()).ok().map(|(_, pem)| pem)
}

#[cfg(test)]
mod tests;
