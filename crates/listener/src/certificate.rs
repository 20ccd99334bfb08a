//! Decodes the parts of an X.509 certificate that identify a client and limit its validity.

use std::time::{Duration, SystemTime};

use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// The verified certificate of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// `None` if the subject has no common name, several, or one that is not text.
    pub common_name: Option<String>,
    pub organizations: Vec<String>,
    pub not_after: SystemTime,
}

impl PeerCertificate {
    /// `None` if the certificate cannot be decoded.
    pub fn of_der(der: &[u8]) -> Option<PeerCertificate> {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let subject = certificate.subject();
        let mut names = subject.iter_common_name();
        let common_name = match (names.next(), names.next()) {
            (Some(name), None) => name.as_str().ok().map(str::to_owned),
            (None, _) | (Some(_), Some(_)) => None,
        };
        let organizations = subject.iter_organization().filter_map(|name| name.as_str().ok().map(str::to_owned));
        Some(PeerCertificate {
            common_name: common_name.filter(|name| !name.is_empty()),
            organizations: organizations.filter(|name| !name.is_empty()).collect(),
            not_after: not_after(&certificate),
        })
    }
}

/// When the first certificate of a chain expires; `None` if one cannot be decoded.
pub(crate) fn expiry_of_chain<'a>(chain: impl IntoIterator<Item = &'a [u8]>) -> Option<SystemTime> {
    let expiries = chain.into_iter().map(|der| {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        Some(not_after(&certificate))
    });
    expiries.collect::<Option<Vec<_>>>()?.into_iter().min()
}

/// A date before 1970 counts as 1970: the certificate has expired either way.
fn not_after(certificate: &X509Certificate) -> SystemTime {
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or(0);
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};

    use super::*;

    fn certificate(subject: &[(DnType, &str)]) -> PeerCertificate {
        let mut params = CertificateParams::new(vec!["client.example".into()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        for (kind, value) in subject {
            params.distinguished_name.push(kind.clone(), *value);
        }
        params.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let signed = params.self_signed(&KeyPair::generate().unwrap()).unwrap();
        PeerCertificate::of_der(signed.der()).unwrap()
    }

    #[test]
    fn peer_certificate_names_user_and_groups() {
        let peer = certificate(&[(DnType::CommonName, "scraper"), (DnType::OrganizationName, "monitoring")]);
        assert_eq!((peer.common_name.as_deref(), &*peer.organizations), (Some("scraper"), &["monitoring".into()][..]));
        assert_eq!(peer.not_after, SystemTime::UNIX_EPOCH + Duration::from_secs(1_893_456_000));
    }

    #[test]
    fn peer_certificate_may_lack_common_name() {
        assert_eq!(certificate(&[(DnType::OrganizationName, "monitoring")]).common_name, None);
        assert_eq!(certificate(&[(DnType::CommonName, "")]).common_name, None);
        assert_eq!(PeerCertificate::of_der(b"no certificate"), None);
    }
}
