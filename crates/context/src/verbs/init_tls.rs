//! `ringfence-context init-tls`: keeps the provider's certificates in Secrets, and their CA in a ConfigMap.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use cluster::{CredentialKind, Credentials, CredentialsWriteError, StoredCredential};
use console::YES;
use pacing::Backoff;
use tokio::signal::unix::{SignalKind, signal};

use super::runtime;
use crate::cli::InitTlsArguments;
use crate::pki::{Authority, CertificateNames, KeyedCertificate, Plan, StoredCertificates, plan};

/// Value of the label `app.kubernetes.io/managed-by` of the written objects.
const MANAGER: &str = "ringfence-context-init-tls";

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The name that cert-manager and kube-controller-manager use.
const BUNDLE: &str = "ca.crt";
const PREVIOUS: &str = "previous.crt";

/// Attempts on write conflicts, before another process is given precedence.
const ATTEMPTS: usize = 5;

/// Interval of `--watch`.
const INTERVAL: Duration = Duration::from_secs(3_600);
const RETRY_FIRST: Duration = Duration::from_secs(5);
const RETRY_LAST: Duration = Duration::from_secs(300);

pub(crate) fn init_tls(arguments: InitTlsArguments) -> anyhow::Result<ExitCode> {
    console::log::start(&arguments.log);
    feed::install_tls_provider();
    runtime()?.block_on(run(arguments))
}

async fn run(arguments: InitTlsArguments) -> anyhow::Result<ExitCode> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let connection = cluster::connect(arguments.kubeconfig.as_deref()).await?;
    let objects = Objects::new(&arguments, connection)?;
    if !arguments.watch {
        objects.reconcile().await?;
        return Ok(YES);
    }
    let mut backoff = Backoff::new(RETRY_FIRST, RETRY_LAST);
    loop {
        let wait = match objects.reconcile().await {
            Ok(()) => {
                backoff.reset();
                INTERVAL
            }
            Err(error) => {
                tracing::error!("{error:#}; retrying with backoff");
                backoff.wait()
            }
        };
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            _ = terminate.recv() => return Ok(YES),
            _ = interrupt.recv() => return Ok(YES),
        }
    }
}

/// The objects of one provider.
struct Objects {
    credentials: Credentials,
    names: CertificateNames,
    service: String,
    namespace: String,
}

/// A write conflict with another process.
struct Overtaken;

impl Objects {
    fn new(arguments: &InitTlsArguments, connection: cluster::ApiClient) -> anyhow::Result<Objects> {
        let InitTlsArguments { namespace, service, name, kubeconfig: _, watch: _, log: _ } = arguments;
        Ok(Objects {
            credentials: Credentials::new(connection, namespace, MANAGER).map_err(anyhow::Error::msg)?,
            names: CertificateNames::new(service, namespace, name),
            service: service.clone(),
            namespace: namespace.clone(),
        })
    }

    /// Reads all objects, and writes those that are missing or due.
    async fn reconcile(&self) -> anyhow::Result<()> {
        for _ in 0..ATTEMPTS {
            if self.attempt().await?.is_ok() {
                return Ok(());
            }
        }
        bail!("another process keeps writing the objects of {}/{}", self.namespace, self.service)
    }

    async fn attempt(&self) -> anyhow::Result<Result<(), Overtaken>> {
        let secret = CredentialKind::TlsSecret;
        let name = |suffix: &str| format!("{}-{suffix}", self.service);
        let authority = self.read(secret, &name("ca")).await?;
        let serving = self.read(secret, &name("tls")).await?;
        let scraper = self.read(secret, &name("metrics")).await?;
        let bundle = self.read(CredentialKind::ConfigMap, &name("ca")).await?;
        let stored = StoredCertificates {
            authority: authority.as_ref().and_then(|object| {
                let previous = object.data.get(PREVIOUS).cloned();
                Some(Authority { current: keyed_certificate(object)?, previous })
            }),
            serving: serving.as_ref().and_then(keyed_certificate),
            scraper: scraper.as_ref().and_then(keyed_certificate),
        };
        let Plan { authority: ca, serving: of_server, scraper: of_scraper, issued } =
            plan(&stored, &self.names, SystemTime::now())?;
        let trusted = ca.bundle();
        let previous = ca.previous.iter().map(|pem| (PREVIOUS.to_owned(), pem.clone()));
        let leaf = |pair| data(pair).chain([(BUNDLE.to_owned(), trusted.clone())]).collect();
        // The CA first, from which the others can be reissued, and its certificate before those that it signs.
        for (kind, suffix, wanted, seen) in [
            (secret, "ca", data(&ca.current).chain(previous).collect(), &authority),
            (CredentialKind::ConfigMap, "ca", BTreeMap::from([(BUNDLE.to_owned(), trusted.clone())]), &bundle),
            (secret, "tls", leaf(&of_server), &serving),
            (secret, "metrics", leaf(&of_scraper), &scraper),
        ] {
            let wanted: BTreeMap<String, String> = wanted;
            if seen.as_ref().is_some_and(|seen| seen.data == wanted) {
                continue;
            }
            let name = name(suffix);
            match self.credentials.write(kind, &name, &wanted, seen.as_ref()).await {
                Ok(()) => tracing::info!(object = %format_args!("{}/{name}", self.namespace), ?kind, "written"),
                Err(CredentialsWriteError::Conflict) => return Ok(Err(Overtaken)),
                Err(CredentialsWriteError::Failed(why)) => bail!("cannot write {}/{name}: {why}", self.namespace),
            }
        }
        for what in issued {
            tracing::info!("issued a new {what}");
        }
        Ok(Ok(()))
    }

    /// Objects of other owners are never replaced.
    async fn read(&self, kind: CredentialKind, name: &str) -> anyhow::Result<Option<StoredCredential>> {
        let read = self.credentials.get(kind, name).await.map_err(anyhow::Error::msg);
        let object = read.with_context(|| format!("cannot read {}/{name}", self.namespace))?;
        if let Some(object) = &object
            && !object.is_ours
        {
            bail!(
                "{}/{name} exists without the label app.kubernetes.io/managed-by={MANAGER}; left unchanged: delete it, or \
                 do not run init-tls where another program manages the certificates",
                self.namespace
            );
        }
        Ok(object)
    }
}

fn keyed_certificate(object: &StoredCredential) -> Option<KeyedCertificate> {
    let text = |key: &str| object.data.get(key).cloned();
    Some(KeyedCertificate { certificate: text(CERTIFICATE)?, key: text(KEY)? })
}

fn data(pair: &KeyedCertificate) -> impl Iterator<Item = (String, String)> + use<> {
    [(CERTIFICATE.to_owned(), pair.certificate.clone()), (KEY.to_owned(), pair.key.clone())].into_iter()
}
