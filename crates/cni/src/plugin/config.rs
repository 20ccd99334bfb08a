//! The plugin's entry in the CNI network configuration.

use std::path::PathBuf;
use std::time::Duration;

use serde::Deserialize;
use serde_json::error::Category;
use serde_json::value::RawValue;

use crate::AttachmentKey;
use crate::plugin::{Code, Failure, version};

const AGENT_SOCKET: &str = "/run/ringfence/cni.sock";
const STATE_DIR: &str = "/run/ringfence/cni";
const TIMEOUT_SECONDS: u64 = 10;

/// The kubelet's timeout for a pod sandbox is four minutes; a longer wait would end without our error message.
const TIMEOUT_SECONDS_MOST: u64 = 300;

/// Action for a pod whose rules are not in force at the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnTimeout {
    /// ADD fails; the runtime retries.
    Fail,
    /// The pod starts and all its traffic is denied.
    Isolate,
}

/// Setting of the transmit checksum offload of pod interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChecksumOffload {
    /// Left as the previous plugins set it.
    Unchanged,
    Off,
}

/// The validated configuration, with defaults.
#[derive(Debug)]
pub(super) struct Config {
    pub(super) cni_version: &'static str,
    pub(super) network: String,
    pub(super) agent_socket: PathBuf,
    pub(super) state_dir: PathBuf,
    pub(super) timeout: Duration,
    pub(super) on_timeout: OnTimeout,
    pub(super) checksum_offload: ChecksumOffload,
    /// The original bytes of `prevResult`.
    pub(super) prev_result: Option<Box<RawValue>>,
    pub(super) valid_attachments: ValidAttachments,
}

/// Attachments that GC must keep.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ValidAttachments {
    NotGiven,
    These(Vec<AttachmentKey>),
}

/// The fields that the plugin reads. Runtimes and users add other keys.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConfigFields {
    cni_version: Option<String>,
    name: Option<String>,
    agent_socket: Option<PathBuf>,
    state_dir: Option<PathBuf>,
    timeout_seconds: Option<u64>,
    on_timeout: Option<String>,
    tx_checksum_offload: Option<String>,
    prev_result: Option<Box<RawValue>>,
    #[serde(rename = "cni.dev/valid-attachments", default, deserialize_with = "deserialize_present")]
    valid_attachments: Option<Option<Vec<ValidAttachment>>>,
}

#[derive(Deserialize)]
struct ValidAttachment {
    #[serde(rename = "containerID")]
    container_id: String,
    ifname: String,
}

/// Distinguishes `null`, which is how libcni encodes an empty list, from a missing key.
fn deserialize_present<'de, D, T>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: Deserialize<'de>,
{
    Deserialize::deserialize(deserializer).map(Some)
}

impl Config {
    pub(super) fn parse(input: &[u8]) -> Result<Config, Failure> {
        let fields: ConfigFields = serde_json::from_slice(input).map_err(|error| match error.classify() {
            Category::Data => Failure::new(Code::Configuration, "the configuration is invalid").because(error),
            Category::Io | Category::Syntax | Category::Eof => {
                Failure::new(Code::Decoding, "the configuration is not valid JSON").because(error)
            }
        })?;
        let asked = fields.cni_version.unwrap_or_default();
        let Some(cni_version) = version::supported(&asked) else {
            let supported = version::SUPPORTED.join(", ");
            return Err(Failure::new(Code::IncompatibleVersion, format!("cniVersion {asked:?} is not supported"))
                .because(format!("ringfence-cni supports {supported}")));
        };
        let Some(network) = fields.name.filter(|name| !name.is_empty()) else {
            return Err(invalid("missing name in the configuration"));
        };
        let on_timeout = match fields.on_timeout.as_deref() {
            None | Some("fail") => OnTimeout::Fail,
            Some("isolate") => OnTimeout::Isolate,
            Some(other) => {
                return Err(invalid(format!("invalid onTimeout {other:?}: expected \"fail\" or \"isolate\"")));
            }
        };
        let checksum_offload = match fields.tx_checksum_offload.as_deref() {
            None | Some("on") => ChecksumOffload::Unchanged,
            Some("off") => ChecksumOffload::Off,
            Some(other) => {
                return Err(invalid(format!("invalid txChecksumOffload {other:?}: expected \"on\" or \"off\"")));
            }
        };
        let seconds = fields.timeout_seconds.unwrap_or(TIMEOUT_SECONDS);
        if !(1..=TIMEOUT_SECONDS_MOST).contains(&seconds) {
            return Err(invalid(format!("invalid timeoutSeconds {seconds}: expected 1 to {TIMEOUT_SECONDS_MOST}")));
        }
        let valid_attachments = match fields.valid_attachments {
            None => ValidAttachments::NotGiven,
            Some(None) => ValidAttachments::These(Vec::new()),
            Some(Some(list)) => {
                let id = |ValidAttachment { container_id, ifname }| AttachmentKey::new(container_id, ifname);
                let ids: Result<_, _> = list.into_iter().map(id).collect();
                ValidAttachments::These(ids.map_err(|error| {
                    invalid("cni.dev/valid-attachments has an invalid entry; nothing is removed").because(error)
                })?)
            }
        };
        Ok(Config {
            cni_version,
            network,
            agent_socket: absolute("agentSocket", fields.agent_socket, AGENT_SOCKET)?,
            state_dir: absolute("stateDir", fields.state_dir, STATE_DIR)?,
            timeout: Duration::from_secs(seconds),
            on_timeout,
            checksum_offload,
            prev_result: fields.prev_result,
            valid_attachments,
        })
    }

    /// The defaults: DEL does what it can with them when the configuration is invalid.
    pub(super) fn of_defaults() -> Config {
        Config {
            cni_version: version::NEWEST,
            network: String::new(),
            agent_socket: AGENT_SOCKET.into(),
            state_dir: STATE_DIR.into(),
            timeout: Duration::from_secs(TIMEOUT_SECONDS),
            on_timeout: OnTimeout::Fail,
            checksum_offload: ChecksumOffload::Unchanged,
            prev_result: None,
            valid_attachments: ValidAttachments::NotGiven,
        }
    }

    /// GC and STATUS need a minimum CNI version.
    pub(super) fn require_gc_and_status(&self, command: &str) -> Result<(), Failure> {
        if self.cni_version >= version::WITH_GC_AND_STATUS {
            return Ok(());
        }
        let message = format!("{command} needs cniVersion {} or later", version::WITH_GC_AND_STATUS);
        Err(Failure::new(Code::IncompatibleVersion, message)
            .because(format!("the configuration has {}", self.cni_version)))
    }

    /// The result of the previous plugin.
    pub(super) fn require_prev_result(&self) -> Result<&RawValue, Failure> {
        self.prev_result.as_deref().ok_or_else(|| {
            invalid("missing prevResult")
                .because("ringfence-cni is a chained plugin: add it after the plugin that assigns the pod's addresses")
        })
    }
}

fn absolute(key: &str, path: Option<PathBuf>, default: &str) -> Result<PathBuf, Failure> {
    let path = path.unwrap_or_else(|| default.into());
    if path.is_absolute() {
        Ok(path)
    } else {
        Err(invalid(format!("invalid {key} {path:?}: expected an absolute path")))
    }
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::Configuration, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config, Failure> {
        Config::parse(text.as_bytes())
    }

    fn with(more: &str) -> Result<Config, Failure> {
        parse(&format!(r#"{{"cniVersion":"1.1.0","name":"pods","type":"ringfence-cni"{more}}}"#))
    }

    #[test]
    fn config_has_defaults_and_ignores_unknown_fields() {
        let config = with(r#","capabilities":{"portMappings":true},"args":{"a":[1]},"whatever":7"#).unwrap();
        assert_eq!(config.agent_socket.to_str(), Some("/run/ringfence/cni.sock"));
        assert_eq!(config.state_dir.to_str(), Some("/run/ringfence/cni"));
        assert_eq!((config.timeout, config.on_timeout), (Duration::from_secs(10), OnTimeout::Fail));
        assert_eq!(config.checksum_offload, ChecksumOffload::Unchanged);
        assert_eq!(config.valid_attachments, ValidAttachments::NotGiven);
        assert!(config.prev_result.is_none());
    }

    #[test]
    fn the_previous_result_keeps_its_bytes() {
        let result = r#"{ "z":1.0e0, "a": 12345678901234567890123, "z":2,"u":"\u00e9" }"#;
        let config = with(&format!(r#","prevResult": {result} "#)).unwrap();
        assert_eq!(config.prev_result.unwrap().get(), result);
    }

    #[test]
    fn null_valid_attachments_are_empty_list() {
        let kept = |more| with(more).unwrap().valid_attachments;
        assert_eq!(kept(r#","cni.dev/valid-attachments":null"#), ValidAttachments::These(vec![]));
        let id = AttachmentKey::new("4f1c", "eth0").unwrap();
        let list = r#","cni.dev/valid-attachments":[{"containerID":"4f1c","ifname":"eth0"}]"#;
        assert_eq!(kept(list), ValidAttachments::These(vec![id]));
    }

    #[test]
    fn invalid_config_is_refused_with_cni_code() {
        let code = |result: Result<Config, Failure>| result.unwrap_err().code;
        assert_eq!(code(parse("")), Code::Decoding);
        assert_eq!(code(parse("{")), Code::Decoding);
        assert_eq!(code(parse("[]")), Code::Configuration);
        assert_eq!(code(parse(r#"{"name":"pods"}"#)), Code::IncompatibleVersion);
        assert_eq!(code(parse(r#"{"cniVersion":"0.2.0","name":"pods"}"#)), Code::IncompatibleVersion);
        assert_eq!(code(parse(r#"{"cniVersion":"1.1.0"}"#)), Code::Configuration);
        for more in [
            r#","timeoutSeconds":0"#,
            r#","timeoutSeconds":301"#,
            r#","timeoutSeconds":-1"#,
            r#","timeoutSeconds":"10""#,
            r#","onTimeout":"allow""#,
            r#","onTimeout":true"#,
            r#","txChecksumOffload":"of""#,
            r#","txChecksumOffload":false"#,
            r#","agentSocket":"cni.sock""#,
            r#","stateDir":"""#,
            r#","cni.dev/valid-attachments":[{"containerID":"/","ifname":"eth0"}]"#,
            r#","cni.dev/valid-attachments":{}"#,
        ] {
            assert_eq!(code(with(more)), Code::Configuration, "{more}");
        }
    }
}
