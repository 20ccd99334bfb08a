//! The connection to the API server of another cluster.
//!
//! The credentials are files that are replaced while the process runs: tokens expire, certificates are renewed. They
//! are read before every request, about once a minute, and the client is recreated when their contents change. kube
//! rereads only token files, on a timer, and not those that end with a line break.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kube::config::{AuthInfo, Cluster, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::json;
use tokio::sync::Mutex;

use super::{ApiClient, Clients, RequestTiming, reason};

/// The address and credentials of another cluster's API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAccess {
    /// The current context of a kubeconfig file.
    Kubeconfig(PathBuf),
    /// A URL with the certificates of its CA (PEM), and a bearer token.
    Url { url: String, ca_file: Option<PathBuf>, token_file: PathBuf },
}

/// Watch timeout. Devices between two clusters may drop a connection silently, and this is how long that can go
/// unnoticed.
const WATCH: Duration = Duration::from_secs(60);

/// Limit of the size of a credential file.
const FILE_BYTES: u64 = 1 << 20;

/// Creates a connection that reads its files before each request. Nothing is read yet, so files may be created later.
pub fn connect_to(way: ClusterAccess) -> ApiClient {
    let timing = RequestTiming { watch: WATCH, ..RequestTiming::default() };
    ApiClient { clients: Clients::Reread(Arc::new(Reread { way, made: Mutex::default() })), timing }
}

/// A client, and the hash of the files from which it was created.
pub(super) struct Reread {
    way: ClusterAccess,
    made: Mutex<Option<(u64, Client)>>,
}

impl Reread {
    /// The error names the invalid file and the reason.
    pub(super) async fn client(&self) -> Result<Client, String> {
        let mut made = self.made.lock().await;
        let (kubeconfig, print) = read(&self.way)?;
        if let Some((of, client)) = made.as_ref().filter(|(of, _)| *of == print) {
            debug_assert_eq!(*of, print);
            return Ok(client.clone());
        }
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let config = config.map_err(|e| format!("{}: {}", self.way.names(), reason(&e)))?;
        let client = super::client(config).map_err(|e| format!("{}: {e}", self.way.names()))?;
        *made = Some((print, client.clone()));
        Ok(client)
    }
}

impl ClusterAccess {
    fn names(&self) -> String {
        match self {
            ClusterAccess::Kubeconfig(path) => format!("kubeconfig {}", path.display()),
            ClusterAccess::Url { url, .. } => url.clone(),
        }
    }
}

/// The current contents of the files, with the token inlined, and a hash that changes with any of them.
fn read(way: &ClusterAccess) -> Result<(Kubeconfig, u64), String> {
    let mut print = DefaultHasher::new();
    let mut kubeconfig = match way {
        ClusterAccess::Kubeconfig(path) => {
            bytes(path)?.hash(&mut print);
            Kubeconfig::read_from(path).map_err(|e| format!("kubeconfig {}: {}", path.display(), reason(&e)))?
        }
        ClusterAccess::Url { url, ca_file, token_file } => {
            let cluster = json!({"server": url, "certificate-authority": ca_file});
            let text = json!({
                "current-context": "it",
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "it", "user": {"tokenFile": token_file}}],
            });
            serde_json::from_value(text).map_err(|e| format!("{url}: {e}"))?
        }
    };
    for cluster in kubeconfig.clusters.iter().filter_map(|named| named.cluster.as_ref()) {
        let Cluster { certificate_authority, .. } = cluster;
        hash_all([certificate_authority], &mut print);
    }
    for user in kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut()) {
        let AuthInfo { client_certificate, client_key, .. } = user;
        hash_all([client_certificate, client_key], &mut print);
        if let Some(path) = user.token_file.take_if(|_| user.token.is_none()) {
            let token = token(Path::new(&path))?;
            token.hash(&mut print);
            user.token = Some(token.into());
        }
    }
    Ok((kubeconfig, print.finish()))
}

/// kube reports unreadable files itself when it reads them.
fn hash_all<const N: usize>(paths: [&Option<String>; N], print: &mut DefaultHasher) {
    for path in paths.into_iter().flatten() {
        bytes(Path::new(path)).ok().hash(print);
    }
}

fn token(path: &Path) -> Result<String, String> {
    let none = || format!("invalid token file {}: expected one line of printable characters", path.display());
    let text = String::from_utf8(bytes(path)?).map_err(|_| none())?;
    let token = text.trim();
    match !token.is_empty() && token.bytes().all(|b| b.is_ascii_graphic()) {
        true => Ok(token.to_owned()),
        false => Err(none()),
    }
}

fn bytes(path: &Path) -> Result<Vec<u8>, String> {
    let failed = |e: std::io::Error| format!("cannot read {}: {e}", path.display());
    let length = fs::metadata(path).map_err(failed)?.len();
    if length > FILE_BYTES {
        return Err(format!("{} is larger than {FILE_BYTES} bytes", path.display()));
    }
    fs::read(path).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_of(way: &ClusterAccess) -> Result<u64, String> {
        read(way).map(|(_, print)| print)
    }

    #[test]
    fn fingerprint_changes_with_any_credential_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let way = ClusterAccess::Url {
            url: "https://east:6443".into(),
            ca_file: Some(path("ca")),
            token_file: path("token"),
        };
        assert!(made_of(&way).unwrap_err().starts_with("cannot read "));
        let mut seen = vec![];
        for (name, text) in [("token", "one"), ("ca", "first"), ("ca", "second"), ("token", "two")] {
            fs::write(path(name), text).unwrap();
            let print = made_of(&way).unwrap();
            assert!(!seen.contains(&print), "{name} {text}");
            seen.push(print);
        }
        assert_eq!(made_of(&way).unwrap(), seen[3]);

        let text = "current-context: a\ncontexts: [{name: a, context: {cluster: a, user: a}}]\n\
                    clusters: [{name: a, cluster: {server: 'https://east:6443'}}]\n\
                    users: [{name: a, user: {tokenFile: token}}]\n";
        fs::write(path("kubeconfig"), text).unwrap();
        let way = ClusterAccess::Kubeconfig(path("kubeconfig"));
        let before = made_of(&way).unwrap();
        fs::write(path("token"), "three").unwrap();
        assert_ne!(made_of(&way).unwrap(), before);
    }

    #[test]
    fn token_file_must_be_one_printable_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        fs::write(&path, "secret\n").unwrap();
        assert_eq!(token(&path).as_deref(), Ok("secret"));
        for text in ["", "\n", "two words", "two\nlines", "\u{e4}"] {
            fs::write(&path, text).unwrap();
            assert!(token(&path).unwrap_err().contains("expected one line of printable characters"), "{text:?}");
        }
    }

    #[tokio::test]
    async fn client_is_rebuilt_only_for_changed_files() {
        let folder = tempfile::tempdir().unwrap();
        let token_file = folder.path().join("token");
        let files = |ca_file| Reread {
            way: ClusterAccess::Url { url: "http://127.0.0.1:1".into(), ca_file, token_file: token_file.clone() },
            made: Mutex::default(),
        };
        let reread = files(None);
        assert!(reread.client().await.is_err());
        let mut prints = vec![];
        for token in ["one", "one", "two"] {
            fs::write(&token_file, token).unwrap();
            assert!(reread.client().await.is_ok());
            prints.push(reread.made.lock().await.as_ref().unwrap().0);
        }
        assert!(prints[0] == prints[1] && prints[1] != prints[2]);
        let missing = files(Some(folder.path().join("ca")));
        let error = missing.client().await.err().unwrap();
        assert!(error.contains("/ca") || error.contains("certificate"), "{error}");
    }
}
