use super::*;

fn names() -> CertificateNames {
    CertificateNames::new("ringfence-context", "ringfence", &["2001:db8:0::1".to_owned(), "context.example".to_owned()])
}

fn at(days: u32) -> SystemTime {
    SystemTime::UNIX_EPOCH + DAY.saturating_mul(20_000 + days)
}

fn stored(plan: &Plan) -> StoredCertificates {
    StoredCertificates {
        authority: Some(plan.authority.clone()),
        serving: Some(plan.serving.clone()),
        scraper: Some(plan.scraper.clone()),
    }
}

fn planned(stored: &StoredCertificates, days: u32) -> Plan {
    plan(stored, &names(), at(days)).unwrap()
}

/// A client that trusts the bundle accepts the leaf.
#[track_caller]
fn assert_verifies(plan: &Plan, bundle: &str, days: u32) {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
    let mut roots = rustls::RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        roots.add(ca.unwrap()).unwrap();
    }
    let since_1970 = at(days).duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let (now, roots) = (UnixTime::since_unix_epoch(since_1970), std::sync::Arc::new(roots));
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let leaf = |pair: &KeyedCertificate| CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
    let servers = rustls::client::WebPkiServerVerifier::builder_with_provider(roots.clone(), provider.clone());
    let servers = servers.build().unwrap();
    for host in ["ringfence-context.ringfence", "ringfence-context.ringfence.svc", "127.0.0.1", "2001:db8::1"] {
        let name = ServerName::try_from(host).unwrap();
        let verified = rustls::client::danger::ServerCertVerifier::verify_server_cert(
            &*servers,
            &leaf(&plan.serving),
            &[],
            &name,
            &[],
            now,
        );
        assert!(verified.is_ok(), "{host}: {verified:?}");
    }
    let clients = rustls::server::WebPkiClientVerifier::builder_with_provider(roots, provider).build().unwrap();
    assert!(clients.verify_client_cert(&leaf(&plan.scraper), &[], now).is_ok());
    assert!(clients.verify_client_cert(&leaf(&plan.serving), &[], now).is_err(), "it is for servers only");
}

#[test]
fn certificates_are_issued_once_and_verify() {
    let first = planned(&StoredCertificates::default(), 0);
    assert_eq!(first.issued.len(), 3, "{:?}", first.issued);
    assert_verifies(&first, &first.authority.bundle(), 0);
    let again = planned(&stored(&first), 1);
    assert_eq!((again.issued.clone(), stored(&again)), (vec![], stored(&first)));
}

#[test]
fn leaf_certificates_are_renewed_before_they_expire() {
    let first = planned(&StoredCertificates::default(), 0);
    assert_eq!(planned(&stored(&first), 59).issued, Vec::<String>::new());
    let renewed = planned(&stored(&first), 61);
    assert_eq!((renewed.issued.len(), &renewed.authority), (2, &first.authority));
    assert!(renewed.issued.iter().all(|why| why.contains("before it expires")), "{:?}", renewed.issued);
    // Clients that still have the old bundle accept it.
    assert_verifies(&renewed, &first.authority.bundle(), 61);
}

#[test]
fn renewed_ca_is_trusted_before_it_signs() {
    let mut plan = planned(&StoredCertificates::default(), 0);
    let mut bundles = vec![plan.authority.bundle()];
    let mut authorities = BTreeSet::from([plan.authority.current.certificate.clone()]);
    // Ten years and more, a run every ten days.
    for days in (10..4_000).step_by(10) {
        plan = planned(&stored(&plan), days);
        // A client with the bundle of the previous run still verifies new certificates.
        assert_verifies(&plan, bundles.last().unwrap(), days);
        assert_verifies(&plan, &plan.authority.bundle(), days);
        bundles.push(plan.authority.bundle());
        authorities.insert(plan.authority.current.certificate.clone());
    }
    assert_eq!(authorities.len(), 2);
    assert_eq!(plan.authority.previous, None, "an expired CA leaves the bundle");
}

#[test]
fn unusable_certificates_are_replaced() {
    let first = planned(&StoredCertificates::default(), 0);
    let other = planned(&StoredCertificates::default(), 0);
    let mut mixed = stored(&first);
    mixed.serving = Some(KeyedCertificate { key: other.serving.key.clone(), ..first.serving.clone() });
    mixed.scraper = Some(other.scraper.clone());
    let plan = planned(&mixed, 0);
    assert!(plan.issued[0].contains("key is not that of the certificate"), "{:?}", plan.issued);
    assert!(plan.issued[1].contains("signed by another CA"), "{:?}", plan.issued);
    assert_verifies(&plan, &first.authority.bundle(), 0);

    let mut damaged = stored(&first);
    damaged.authority.as_mut().unwrap().current.key = "no key".to_owned();
    let plan = planned(&damaged, 0);
    assert_eq!(plan.issued.len(), 3, "{:?}", plan.issued);
    assert_verifies(&plan, &plan.authority.bundle(), 0);
}

#[test]
fn other_names_replace_the_serving_certificate() {
    let first = planned(&StoredCertificates::default(), 0);
    let names = CertificateNames::new("ringfence-context", "elsewhere", &[]);
    let moved = plan(&stored(&first), &names, at(0)).unwrap();
    assert_eq!(moved.issued, ["serving certificate: the stored one has other names"]);
}
