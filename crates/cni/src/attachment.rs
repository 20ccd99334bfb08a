//! The attachment of a pod, as reported by its CNI ADD: the pod's addresses, and where it is connected.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// Version of the file format. Adding a field does not need a new version; changing the meaning of a field does.
pub const VERSION: u32 = 1;

/// Keeps file names within the 255 bytes of common file systems. Runtimes use 64.
const CONTAINER_ID_BYTES: usize = 200;

/// The kernel's `IFNAMSIZ`, without the terminating zero.
const INTERFACE_BYTES: usize = 15;

/// Separator of the two parts of an attachment's name. Container IDs cannot contain it.
const SEPARATOR: char = '@';

/// Identifies an attachment by its container and the interface in it. Both follow the grammar of the CNI specification,
/// so that they are safe in a file name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "IdFields", into = "IdFields")]
pub struct AttachmentKey {
    container_id: String,
    interface: String,
}

/// Why an attachment ID is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error(
        "invalid container ID {0:?}: expected a letter or digit, followed by letters, digits, '_', '.' and '-', of at \
         most {CONTAINER_ID_BYTES} bytes"
    )]
    ContainerId(String),
    #[error(
        "invalid interface name {0:?}: expected 1 to {INTERFACE_BYTES} bytes without '/', ':', blanks or control \
         characters, and neither '.' nor '..'"
    )]
    Interface(String),
}

impl AttachmentKey {
    /// # Errors
    /// If the specification does not allow one of the two.
    pub fn new(container_id: impl Into<String>, interface: impl Into<String>) -> Result<AttachmentKey, IdError> {
        let (container_id, interface) = (container_id.into(), interface.into());
        if !is_container_id(&container_id) {
            Err(IdError::ContainerId(container_id))
        } else if !is_interface(&interface) {
            Err(IdError::Interface(interface))
        } else {
            Ok(AttachmentKey { container_id, interface })
        }
    }

    pub fn container_id(&self) -> &str {
        &self.container_id
    }

    /// Name of the interface in the pod.
    pub fn interface(&self) -> &str {
        &self.interface
    }
}

/// `CONTAINER@INTERFACE`, also the stem of the file name.
impl std::fmt::Display for AttachmentKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{SEPARATOR}{}", self.container_id, self.interface)
    }
}

/// CNI specification, "Parameters": CNI_CONTAINERID.
fn is_container_id(text: &str) -> bool {
    text.len() <= CONTAINER_ID_BYTES
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// CNI specification, "Parameters": CNI_IFNAME; and the kernel's `dev_valid_name`.
pub(crate) fn is_interface(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= INTERFACE_BYTES
        && !matches!(text, "." | "..")
        && !text.chars().any(|c| matches!(c, '/' | ':') || c.is_whitespace() || c.is_control())
}

/// The attachment of a pod, as reported by its CNI ADD. The version is the first field, so that a reader rejects an
/// unsupported version before it parses fields that it does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AttachmentRecord {
    pub version: FormatVersion,
    #[serde(flatten)]
    pub id: AttachmentKey,
    /// The network namespace of the pod, as a path (CNI_NETNS).
    pub sandbox: String,
    /// The `name` of the CNI network.
    pub network: String,
    /// Namespace of the pod in Kubernetes.
    pub namespace: String,
    pub pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// The pod's addresses on this interface.
    pub addresses: Vec<IpAddr>,
    /// Host side of the pod's veth, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_interface: Option<String>,
    /// Bridge of which `host_interface` is a port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    /// Index of `host_interface`, which survives a rename. Plugins before 0.2 do not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_interface_index: Option<u32>,
    /// Input interface of the pod's packets at the forward hook: `host_interface`, or its bridge. `None` if the plugin
    /// cannot determine it (VLANs on the bridge, another kind of master), and from earlier plugins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_interface: Option<String>,
    /// Hardware address of the pod's interface, if known, such as `02:00:5e:10:00:01`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hardware_address: Option<String>,
    /// Known link-local addresses of the pod's interface.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub link_local: Vec<Ipv6Addr>,
    /// Why the plugin could not read the link-local addresses; `None` if `link_local` is complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_local_error: Option<String>,
    /// Time of the ADD by CLOCK_BOOTTIME: if several attachments claim an address, the newest owns it.
    pub added_nanos: u64,
}

impl AttachmentRecord {
    /// An attachment without addresses and interfaces, which the caller adds.
    pub fn new(id: AttachmentKey, namespace: impl Into<String>, pod: impl Into<String>) -> AttachmentRecord {
        AttachmentRecord {
            version: FormatVersion,
            id,
            sandbox: String::new(),
            network: String::new(),
            namespace: namespace.into(),
            pod: pod.into(),
            uid: None,
            addresses: Vec::new(),
            host_interface: None,
            bridge: None,
            host_interface_index: None,
            input_interface: None,
            hardware_address: None,
            link_local: Vec::new(),
            link_local_error: None,
            added_nanos: 0,
        }
    }
}

impl AttachmentRecord {
    /// The pod's addresses and its link-local ones.
    pub fn all_addresses(&self) -> Vec<IpAddr> {
        self.addresses.iter().copied().chain(self.link_local.iter().copied().map(IpAddr::V6)).collect()
    }
}

/// [`VERSION`], the only version that this program reads and writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct FormatVersion;

/// The unsupported version of a document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unsupported version {0}: expected {VERSION}")]
pub struct UnsupportedVersion(u32);

impl TryFrom<u32> for FormatVersion {
    type Error = UnsupportedVersion;

    fn try_from(version: u32) -> Result<FormatVersion, UnsupportedVersion> {
        if version == VERSION { Ok(FormatVersion) } else { Err(UnsupportedVersion(version)) }
    }
}

impl From<FormatVersion> for u32 {
    fn from(FormatVersion: FormatVersion) -> u32 {
        VERSION
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdFields {
    container_id: String,
    interface: String,
}

impl TryFrom<IdFields> for AttachmentKey {
    type Error = IdError;

    fn try_from(IdFields { container_id, interface }: IdFields) -> Result<AttachmentKey, IdError> {
        AttachmentKey::new(container_id, interface)
    }
}

impl From<AttachmentKey> for IdFields {
    fn from(AttachmentKey { container_id, interface }: AttachmentKey) -> IdFields {
        IdFields { container_id, interface }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> AttachmentRecord {
        let id = AttachmentKey::new("4f1c", "eth0").unwrap();
        AttachmentRecord {
            sandbox: "/run/netns/pod".into(),
            network: "pods".into(),
            uid: Some("7d2c0b6e-0d0c-4b8e-9a53-3f6c4a1e2f10".into()),
            addresses: vec!["10.1.0.7".parse().unwrap(), "fd00:1::7".parse().unwrap()],
            host_interface: Some("veth1a2b".into()),
            bridge: Some("cni0".into()),
            host_interface_index: Some(7),
            input_interface: Some("cni0".into()),
            hardware_address: Some("02:00:5e:10:00:01".into()),
            link_local: vec!["fe80::5eff:fe10:1".parse().unwrap()],
            added_nanos: 1_234_567_890_123,
            ..AttachmentRecord::new(id, "shop", "api-0")
        }
    }

    pub(crate) const EXAMPLE: &str = r#"{"version":1,"containerId":"4f1c","interface":"eth0","sandbox":"/run/netns/pod","network":"pods","namespace":"shop","pod":"api-0","uid":"7d2c0b6e-0d0c-4b8e-9a53-3f6c4a1e2f10","addresses":["10.1.0.7","fd00:1::7"],"hostInterface":"veth1a2b","bridge":"cni0","hostInterfaceIndex":7,"inputInterface":"cni0","hardwareAddress":"02:00:5e:10:00:01","linkLocal":["fe80::5eff:fe10:1"],"addedNanos":1234567890123}"#;

    const SHORTEST: &str = r#"{"version":1,"containerId":"4f1c","interface":"eth0","sandbox":"/n","network":"pods","namespace":"shop","pod":"api-0","addresses":[],"addedNanos":0}"#;

    #[test]
    fn an_attachment_is_written_like_this() {
        assert_eq!(serde_json::to_string(&example()).unwrap(), EXAMPLE);
        assert_eq!(serde_json::from_str::<AttachmentRecord>(EXAMPLE).unwrap(), example());
        let shortest: AttachmentRecord = serde_json::from_str(SHORTEST).unwrap();
        assert_eq!(serde_json::to_string(&shortest).unwrap(), SHORTEST);
    }

    #[test]
    fn attachment_ignores_unknown_fields_but_refuses_other_version() {
        let later = EXAMPLE.replace(r#""pod":"#, r#""mood":"good","pod":"#);
        assert_eq!(serde_json::from_str::<AttachmentRecord>(&later).unwrap(), example());
        let other = EXAMPLE.replace(r#""version":1"#, r#""version":2"#);
        let refusal = serde_json::from_str::<AttachmentRecord>(&other).unwrap_err().to_string();
        assert!(refusal.contains("unsupported version 2"), "{refusal}");
        let renamed_field = other.replace(r#""pod":"api-0""#, r#""pod":{}"#);
        let refusal = serde_json::from_str::<AttachmentRecord>(&renamed_field).unwrap_err().to_string();
        assert!(refusal.contains("unsupported version 2"), "{refusal}");
    }

    #[test]
    fn unreadable_link_local_addresses_are_recorded() {
        let attachment = AttachmentRecord { link_local_error: Some("permission denied".into()), ..example() };
        let text = serde_json::to_string(&attachment).unwrap();
        assert!(text.contains(r#""linkLocalError":"permission denied""#), "{text}");
        assert_eq!(serde_json::from_str::<AttachmentRecord>(&text).unwrap(), attachment);
    }

    #[test]
    fn attachment_id_refuses_invalid_container_or_interface() {
        let long = "x".repeat(CONTAINER_ID_BYTES + 1);
        for bad in ["", ".a", "-a", "a/b", "a b", "../etc", "a@b", "ä", "a\0", &long] {
            assert_eq!(AttachmentKey::new(bad, "eth0"), Err(IdError::ContainerId(bad.into())));
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "a\nb", "a\u{7f}", "sixteen-bytes-xx"] {
            assert_eq!(AttachmentKey::new("a", bad), Err(IdError::Interface(bad.into())));
        }
        for (container, interface) in [("a", "eth0"), ("4F_c.-", "a@b"), ("0", "fifteen-bytes-x"), ("0..", "...")] {
            assert_eq!(
                AttachmentKey::new(container, interface).unwrap().to_string(),
                format!("{container}@{interface}")
            );
        }
    }
}
