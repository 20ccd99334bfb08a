//! Configuration of the other clusters, and of what is accepted from them: the file of `--remote-clusters`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cluster::ClusterAccess;
use policy::remote::LabelPrefix;
use policy::{ObjectName, plain};
use serde::Deserialize;

use super::limits::{Amounts, ClusterLimits};
use super::pattern::NamePattern;

/// Size limit of the file: ten times that of hundreds of clusters.
const FILE_BYTES: u64 = 1 << 20;

/// Limit of clusters: each has two watches or more.
const MOST_CLUSTERS: usize = 256;

/// Limit of labels and object names (RFC 1123 label).
const LONGEST_NAME: usize = 63;

/// A cluster to watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    pub name: Arc<str>,
    pub way: ClusterAccess,
    /// Not empty, unique.
    pub prefixes: Vec<LabelPrefix>,
    pub rules: Rules,
}

/// Rules for the pods of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rules {
    /// `None` accepts everything.
    pub accept: Option<Vec<SetPattern>>,
    /// Pods on the host network offer their node's address.
    pub host_network: bool,
    pub limits: ClusterLimits,
}

/// Accepted sets: an omitted field matches any value.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SetPattern {
    namespace: Option<NamePattern>,
    name: Option<NamePattern>,
}

impl Rules {
    /// Whether the set is accepted. Its name is untrusted: pod owners in the other cluster choose it.
    pub fn accepts(&self, set: &ObjectName) -> bool {
        let fits =
            |pattern: &Option<NamePattern>, name: &str| pattern.as_ref().is_none_or(|pattern| pattern.matches(name));
        let by = |accepted: &SetPattern| fits(&accepted.namespace, &set.namespace) && fits(&accepted.name, &set.name);
        self.accept.as_ref().is_none_or(|accept| accept.iter().any(by))
    }
}

/// Error that makes the file unusable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("cannot read {path}: {reason}")]
    Read { path: PathBuf, reason: String },
    #[error("{path}: {reason}")]
    NotUnderstood { path: PathBuf, reason: String },
}

/// Reads the file.
///
/// # Errors
/// If it cannot be read, or anything in it is invalid: a partially valid file is rejected.
pub fn read_clusters(path: &Path) -> Result<Vec<ClusterConfig>, ConfigError> {
    let failed = |e: std::io::Error| ConfigError::Read { path: path.to_owned(), reason: e.to_string() };
    if std::fs::metadata(path).map_err(failed)?.len() > FILE_BYTES {
        return Err(ConfigError::Read {
            path: path.to_owned(),
            reason: format!("the file is larger than {FILE_BYTES} bytes"),
        });
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    parse_clusters(&text).map_err(|reason| ConfigError::NotUnderstood { path: path.to_owned(), reason })
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct File {
    clusters: Vec<ClusterEntry>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClusterEntry {
    name: String,
    kubeconfig: Option<PathBuf>,
    url: Option<String>,
    ca_file: Option<PathBuf>,
    token_file: Option<PathBuf>,
    label_prefixes: Option<Vec<String>>,
    accept: Option<Vec<SetPattern>>,
    #[serde(default)]
    host_network: bool,
    #[serde(default)]
    limits: LimitsEntry,
}

/// Omitted fields have defaults.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LimitsEntry {
    sets: Option<i64>,
    addresses: Option<i64>,
    label_bytes: Option<i64>,
}

/// Parses the text of the file.
///
/// # Errors
/// The error, on one line.
pub fn parse_clusters(text: &str) -> Result<Vec<ClusterConfig>, String> {
    let file: File = serde_saphyr::from_str(text).map_err(|e| first_line(&e.to_string()))?;
    if file.clusters.len() > MOST_CLUSTERS {
        return Err(format!("too many clusters: at most {MOST_CLUSTERS}"));
    }
    let mut names = BTreeSet::new();
    let mut clusters = Vec::new();
    for entry in file.clusters {
        let name = entry.name.clone();
        if !is_cluster_name(&name) {
            return Err(format!(
                "invalid cluster name '{}': expected up to {LONGEST_NAME} lower-case letters, digits and '-', \
                 with a letter or digit at both ends",
                plain(&name)
            ));
        }
        if !names.insert(name.clone()) {
            return Err(format!("duplicate cluster name {name}"));
        }
        clusters.push(entry.cluster().map_err(|reason| format!("cluster {name}: {reason}"))?);
    }
    Ok(clusters)
}

/// The parser's further lines show the source, which the first line locates.
fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or("invalid file").to_owned()
}

impl ClusterEntry {
    fn cluster(self) -> Result<ClusterConfig, String> {
        let ClusterEntry { name, kubeconfig, url, ca_file, token_file, label_prefixes, accept, host_network, limits } =
            self;
        let way = match (kubeconfig, url, ca_file, token_file) {
            (Some(path), None, None, None) => ClusterAccess::Kubeconfig(path),
            (None, Some(url), ca_file, Some(token_file)) => {
                is_safe(&url, ca_file.is_some())?;
                ClusterAccess::Url { url, ca_file, token_file }
            }
            (Some(_), ..) => return Err("kubeconfig excludes url, caFile and tokenFile; choose one of the two".into()),
            (None, Some(_), _, None) => return Err("url without credentials; add a tokenFile".into()),
            (None, None, ..) => return Err("missing kubeconfig, or url with caFile and tokenFile".into()),
        };
        let prefixes = match label_prefixes {
            None => LabelPrefix::defaults(),
            Some(texts) => {
                let parsed: Result<Vec<LabelPrefix>, _> = texts.iter().map(|text| text.parse()).collect();
                parsed.map_err(|e: policy::remote::NotALabelPrefix| e.to_string())?
            }
        };
        if prefixes.is_empty() {
            return Err("labelPrefixes is empty; omit it for the default prefixes".into());
        }
        if prefixes.iter().collect::<BTreeSet<_>>().len() < prefixes.len() {
            return Err("labelPrefixes has a duplicate".into());
        }
        if accept.as_ref().is_some_and(Vec::is_empty) {
            return Err("accept is empty, which accepts nothing; omit it to accept everything".into());
        }
        let rules = Rules { accept, host_network, limits: limits.limits()? };
        Ok(ClusterConfig { name: name.into(), way, prefixes, rules })
    }
}

impl LimitsEntry {
    fn limits(self) -> Result<ClusterLimits, String> {
        let LimitsEntry { sets, addresses, label_bytes } = self;
        let (ClusterLimits(default), ClusterLimits(max)) = (ClusterLimits::default(), ClusterLimits::MAX);
        let limit = |name: &str, value: Option<i64>, default: usize, max: usize| {
            let Some(value) = value else { return Ok(default) };
            let within = usize::try_from(value).ok().filter(|value| (1..=max).contains(value));
            within.ok_or_else(|| format!("invalid limits.{name} {value}: expected 1 to {max}"))
        };
        Ok(ClusterLimits(Amounts {
            sets: limit("sets", sets, default.sets, max.sets)?,
            addresses: limit("addresses", addresses, default.addresses, max.addresses)?,
            label_bytes: limit("labelBytes", label_bytes, default.label_bytes, max.label_bytes)?,
        }))
    }
}

fn is_cluster_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let ends = !text.starts_with('-') && !text.ends_with('-');
    !text.is_empty() && text.len() <= LONGEST_NAME && text.bytes().all(inner) && ends
}

/// Refuses to send a token to an unauthenticated server.
fn is_safe(url: &str, has_ca: bool) -> Result<(), String> {
    let parsed: reqwest::Url = url.parse().map_err(|e| format!("url '{}': {e}", plain(url)))?;
    let is_here = match parsed.host_str() {
        Some("localhost") => true,
        Some(host) => host.trim_matches(['[', ']']).parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()),
        None => return Err(format!("url '{}' has no host", plain(url))),
    };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("url must not contain a user name or password; use tokenFile".into());
    }
    match (parsed.scheme(), has_ca) {
        ("https", true) => Ok(()),
        ("https", false) => Err("missing caFile, with the CA certificates of the server".into()),
        ("http", false) if is_here => Ok(()),
        ("http", true) => Err("caFile has no effect with http://; remove it or use https://HOST:PORT".into()),
        ("http", false) => Err("http:// would send the token unencrypted; use https://HOST:PORT".into()),
        _ => Err(format!("invalid url '{}': expected https://HOST:PORT", plain(url))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_config_accepts_kubeconfig_or_url() {
        let clusters = parse_clusters(
            "clusters:\n\
             - name: east\n  kubeconfig: /etc/remote/east\n\
             - name: west-1\n  url: https://west.example:6443\n  caFile: /etc/remote/west.crt\n  \
             tokenFile: /etc/remote/west.token\n  labelPrefixes: [example.com]\n  hostNetwork: true\n  \
             accept:\n  - {namespace: shop, name: 'web-*'}\n  - namespace: 'team-*'\n",
        )
        .unwrap();
        assert_eq!(clusters[0].way, ClusterAccess::Kubeconfig("/etc/remote/east".into()));
        assert_eq!((&clusters[0].prefixes, &clusters[0].rules), (&LabelPrefix::defaults(), &Rules::default()));
        let west = &clusters[1];
        let (ca_file, token_file) = (Some("/etc/remote/west.crt".into()), "/etc/remote/west.token".into());
        assert_eq!(west.way, ClusterAccess::Url { url: "https://west.example:6443".into(), ca_file, token_file });
        assert!(west.rules.host_network && west.prefixes == ["example.com".parse().unwrap()]);
        for (namespace, name, accepts) in
            [("shop", "web-1", true), ("shop", "api", false), ("team-a", "api", true), ("team", "web-1", false)]
        {
            assert_eq!(west.rules.accepts(&ObjectName::new(namespace, name)), accepts, "{namespace} {name}");
            assert!(clusters[0].rules.accepts(&ObjectName::new(namespace, name)));
        }
    }

    #[test]
    fn limits_have_defaults_one_by_one() {
        let entry = |limits: &str| format!("clusters: [{{name: a, kubeconfig: k{limits}}}]");
        let limits = |text: &str| parse_clusters(&entry(text)).unwrap()[0].rules.limits;
        assert_eq!(limits(""), ClusterLimits::default());
        assert_eq!(limits(", limits: {}"), ClusterLimits::default());
        let ClusterLimits(default) = ClusterLimits::default();
        assert_eq!(limits(", limits: {addresses: 7}"), ClusterLimits(Amounts { addresses: 7, ..default }));
        let all = Amounts { sets: 1, addresses: 2, label_bytes: 3 };
        assert_eq!(limits(", limits: {sets: 1, addresses: 2, labelBytes: 3}"), ClusterLimits(all));
    }

    #[test]
    fn no_clusters_are_a_list_too() {
        assert_eq!(parse_clusters("clusters: []"), Ok(vec![]));
    }

    #[test]
    fn invalid_cluster_config_is_refused_with_reason() {
        let https = "url: 'https://a', caFile: c, tokenFile: t";
        for (entry, says) in [
            ("{name: a, kubeconfig: k, labelPrefix: x}".to_owned(), "labelPrefix"),
            ("{name: a}".into(), "missing kubeconfig, or url"),
            ("{name: a, url: 'https://a', caFile: c}".into(), "without credentials"),
            ("{name: a, url: 'https://a', tokenFile: t}".into(), "missing caFile"),
            (format!("{{name: a, kubeconfig: k, {https}}}"), "choose one of the two"),
            ("{name: a, kubeconfig: k, tokenFile: t}".into(), "choose one of the two"),
            ("{name: a, tokenFile: t}".into(), "missing kubeconfig, or url"),
            ("{name: a, url: 'http://east', tokenFile: t}".into(), "send the token unencrypted"),
            ("{name: a, url: 'ftp://east', tokenFile: t}".into(), "expected https"),
            (
                "{name: a, url: 'https://u:p@east', caFile: c, tokenFile: t}".into(),
                "must not contain a user name or password",
            ),
            ("{name: A, kubeconfig: k}".into(), "invalid cluster name 'A'"),
            ("{name: a/../b, kubeconfig: k}".into(), "invalid cluster name"),
            ("{kubeconfig: k}".into(), "name"),
            ("{name: a, kubeconfig: k, accept: []}".into(), "accept is empty"),
            ("{name: a, kubeconfig: k, accept: [{namespace: 'a b'}]}".into(), "invalid name pattern"),
            ("{name: a, kubeconfig: k, accept: [{pod: a}]}".into(), "pod"),
            ("{name: a, kubeconfig: k, labelPrefixes: []}".into(), "labelPrefixes is empty"),
            ("{name: a, kubeconfig: k, labelPrefixes: [a/b]}".into(), "invalid label prefix 'a/b'"),
            ("{name: a, kubeconfig: k, labelPrefixes: [a, a]}".into(), "duplicate"),
            ("{name: a, kubeconfig: k}, {name: a, kubeconfig: l}".into(), "duplicate cluster name a"),
            ("{name: a, kubeconfig: k, limits: {sets: 0}}".into(), "invalid limits.sets 0: expected 1 to 100000"),
            ("{name: a, kubeconfig: k, limits: {addresses: 1000001}}".into(), "expected 1 to 1000000"),
            ("{name: a, kubeconfig: k, limits: {labelBytes: -1}}".into(), "invalid limits.labelBytes -1: expected"),
            ("{name: a, kubeconfig: k, limits: {pods: 1}}".into(), "pods"),
        ] {
            let error = parse_clusters(&format!("clusters: [{entry}]")).unwrap_err();
            assert!(error.contains(says), "{entry}: {error}");
        }
        for entry in [
            r#"{name: "a\nb", kubeconfig: k}"#,
            r#"{name: a, kubeconfig: k, labelPrefixes: ["a\nb"]}"#,
            r#"{name: a, url: "no\nurl", tokenFile: t}"#,
            r#"{name: a, url: "data:\nx", tokenFile: t}"#,
            r#"{name: a, url: "ftp:\n//a", tokenFile: t}"#,
            r#"{name: a, "kube\nconfig": k}"#,
            r#"{name: a, kubeconfig: k, accept: [{"a\nb": c}]}"#,
        ] {
            let error = parse_clusters(&format!("clusters: [{entry}]")).unwrap_err();
            assert_eq!(error.lines().count(), 1, "{error:?}");
        }
        for text in ["", "7", "[]", "clusters:", "clusters: {}", "clusters: []\nmore: 1"] {
            assert!(parse_clusters(text).is_err(), "{text:?}");
        }
        let loopback = "clusters: [{name: a, url: 'http://127.0.0.1:8001', tokenFile: t}]";
        assert!(parse_clusters(loopback).is_ok());
    }
}
