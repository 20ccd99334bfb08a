//! Environment variables of the runtime: the command, the container and the pod.

use std::collections::BTreeMap;
use std::ffi::OsString;

use crate::AttachmentKey;
use crate::plugin::{Code, Failure};

/// Names in Kubernetes are at most as long as a DNS name.
const NAME_BYTES: usize = 253;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Command {
    Add,
    Delete,
    Check,
    Gc,
    Status,
    Version,
}

/// The variables with the prefix `CNI_`.
pub(super) struct Environment(BTreeMap<String, OsString>);

/// The pod of a sandbox container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: Option<String>,
}

impl Environment {
    pub(super) fn of_process() -> Environment {
        let ours = |(name, value): (OsString, OsString)| Some((name.into_string().ok()?, value));
        Environment(std::env::vars_os().filter_map(ours).filter(|(name, _)| name.starts_with("CNI_")).collect())
    }

    pub(super) fn command(&self) -> Result<Command, Failure> {
        let Some(command) = self.get("CNI_COMMAND")? else {
            return Err(invalid(
                "CNI_COMMAND is not set: this program is a CNI plugin, which a container runtime runs",
            ));
        };
        match command {
            "ADD" => Ok(Command::Add),
            "DEL" => Ok(Command::Delete),
            "CHECK" => Ok(Command::Check),
            "GC" => Ok(Command::Gc),
            "STATUS" => Ok(Command::Status),
            "VERSION" => Ok(Command::Version),
            other => {
                Err(invalid(format!("invalid CNI_COMMAND {other:?}: expected ADD, DEL, CHECK, GC, STATUS or VERSION")))
            }
        }
    }

    /// CNI_CONTAINERID and CNI_IFNAME.
    pub(super) fn attachment_id(&self) -> Result<AttachmentKey, Failure> {
        AttachmentKey::new(self.required("CNI_CONTAINERID")?, self.required("CNI_IFNAME")?)
            .map_err(|error| invalid("CNI_CONTAINERID or CNI_IFNAME is invalid").because(error))
    }

    /// CNI_NETNS.
    pub(super) fn sandbox(&self) -> Result<&str, Failure> {
        self.required("CNI_NETNS")
    }

    /// The pod in CNI_ARGS; `None` if the container is not from Kubernetes.
    pub(super) fn pod(&self) -> Result<Option<Pod>, Failure> {
        let mut arguments = BTreeMap::new();
        for pair in self.get("CNI_ARGS")?.unwrap_or("").split(';').filter(|pair| !pair.is_empty()) {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(invalid(format!("invalid entry {pair:?} in CNI_ARGS: expected KEY=VALUE")));
            };
            if arguments.insert(key, value).is_some() {
                return Err(invalid(format!("duplicate {key} in CNI_ARGS")));
            }
        }
        let value = |key: &str| arguments.get(key).copied().filter(|value| !value.is_empty());
        let Some(name) = value("K8S_POD_NAME") else { return Ok(None) };
        let Some(namespace) = value("K8S_POD_NAMESPACE") else {
            return Err(invalid("missing K8S_POD_NAMESPACE in CNI_ARGS with K8S_POD_NAME"));
        };
        for (key, name) in [("K8S_POD_NAME", name), ("K8S_POD_NAMESPACE", namespace)] {
            if !is_name(name) {
                return Err(invalid(format!("invalid {key}={name} in CNI_ARGS: expected a Kubernetes name")));
            }
        }
        let uid = value("K8S_POD_UID").map(String::from);
        Ok(Some(Pod { namespace: namespace.into(), name: name.into(), uid }))
    }

    fn required(&self, variable: &str) -> Result<&str, Failure> {
        self.get(variable)?.ok_or_else(|| invalid(format!("{variable} is not set")))
    }

    /// The value, unless it is missing or empty.
    fn get(&self, variable: &str) -> Result<Option<&str>, Failure> {
        let Some(value) = self.0.get(variable) else { return Ok(None) };
        let text = value.to_str().ok_or_else(|| invalid(format!("{variable} is not UTF-8")))?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }
}

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(Code::Environment, message)
}

fn is_name(text: &str) -> bool {
    text.len() <= NAME_BYTES
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(arguments: &str) -> Environment {
        Environment(BTreeMap::from([("CNI_ARGS".into(), arguments.into())]))
    }

    #[test]
    fn a_pod_is_named_as_runtimes_do() {
        let arguments = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=api-0;K8S_POD_INFRA_CONTAINER_ID=4f1c;\
                         K8S_POD_UID=7d2c";
        let pod = Pod { namespace: "shop".into(), name: "api-0".into(), uid: Some("7d2c".into()) };
        assert_eq!(environment(arguments).pod(), Ok(Some(pod.clone())));
        let without_uid = environment("K8S_POD_NAME=api-0;K8S_POD_NAMESPACE=shop;K8S_POD_UID=;").pod();
        assert_eq!(without_uid, Ok(Some(Pod { uid: None, ..pod })));
    }

    #[test]
    fn sandbox_without_pod_name_is_not_a_pod() {
        for arguments in ["", "IgnoreUnknown=1", "K8S_POD_NAMESPACE=shop", "K8S_POD_NAME=;A=b"] {
            assert_eq!(environment(arguments).pod(), Ok(None), "{arguments}");
        }
    }

    #[test]
    fn incomplete_or_ambiguous_pod_name_is_refused() {
        let doubtful = [
            "K8S_POD_NAME=api-0",
            "K8S_POD_NAME=api-0;K8S_POD_NAMESPACE=",
            "K8S_POD_NAME=api-0;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=api-1",
            "K8S_POD_NAME=api-0;K8S_POD_NAMESPACE=shop;nonsense",
            "K8S_POD_NAME=../api;K8S_POD_NAMESPACE=shop",
            "K8S_POD_NAME=api-0;K8S_POD_NAMESPACE=Shop",
        ];
        for arguments in doubtful {
            assert_eq!(environment(arguments).pod().unwrap_err().code, Code::Environment, "{arguments}");
        }
    }
}
