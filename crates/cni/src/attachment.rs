//! What one CNI ADD reported: which pod has which addresses, and where it is connected.

use std::net::{IpAddr, Ipv6Addr};

use serde::{Deserialize, Serialize};

/// The version of the form in which attachments are written. Fields may be added to a version; whatever changes what
/// a field means is another version.
pub const VERSION: u32 = 1;

/// So that a file's name fits into the 255 bytes that file systems give it. Runtimes use 64.
const CONTAINER_ID_BYTES: usize = 200;

/// The kernel's `IFNAMSIZ`, less the zero at the end.
const INTERFACE_BYTES: usize = 15;

/// Between the two parts of an attachment's name. No container ID has it.
const SEPARATOR: char = '@';

/// Which attachment: the container, and the interface in it. Both keep to the grammar of the CNI specification, so
/// that they can be part of a file's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "IdFields", into = "IdFields")]
pub struct AttachmentId {
    container_id: String,
    interface: String,
}

/// Why something names no attachment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error(
        "{0:?} is no container ID: it has to begin with a letter or digit, go on with letters, digits, '_', '.' and \
         '-', and be no longer than {CONTAINER_ID_BYTES} bytes"
    )]
    ContainerId(String),
    #[error(
        "{0:?} is no interface name: it has to have 1 to {INTERFACE_BYTES} bytes, without '/', ':', blanks or control \
         characters, and be neither '.' nor '..'"
    )]
    Interface(String),
}

impl AttachmentId {
    /// # Errors
    /// If one of the two is not what the specification allows.
    pub fn new(container_id: impl Into<String>, interface: impl Into<String>) -> Result<AttachmentId, IdError> {
        let (container_id, interface) = (container_id.into(), interface.into());
        if !is_container_id(&container_id) {
            Err(IdError::ContainerId(container_id))
        } else if !is_interface(&interface) {
            Err(IdError::Interface(interface))
        } else {
            Ok(AttachmentId { container_id, interface })
        }
    }

    pub fn container_id(&self) -> &str {
        &self.container_id
    }

    /// The name of the interface in the pod.
    pub fn interface(&self) -> &str {
        &self.interface
    }
}

/// `CONTAINER@INTERFACE`, which is also how its file is called.
impl std::fmt::Display for AttachmentId {
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

/// What one CNI ADD reported.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct Attachment {
    pub id: AttachmentId,
    /// The network namespace of the pod, as a path (CNI_NETNS).
    pub sandbox: String,
    /// The `name` of the CNI network.
    pub network: String,
    /// Of Kubernetes.
    pub namespace: String,
    pub pod: String,
    pub uid: Option<String>,
    /// The pod's addresses on this interface.
    pub addresses: Vec<IpAddr>,
    /// The host's end of the pod's veth, where it is known.
    pub host_interface: Option<String>,
    /// The bridge that `host_interface` is a port of.
    pub bridge: Option<String>,
    /// The index of `host_interface`, which it keeps when it is renamed. Plugins before 0.2 do not report it.
    pub host_interface_index: Option<u32>,
    /// The hardware address of the pod's interface, where it is known, such as `02:00:5e:10:00:01`.
    pub hardware_address: Option<String>,
    /// The link-local addresses of the pod's interface, as far as they are known.
    pub link_local: Vec<Ipv6Addr>,
    /// When, by CLOCK_BOOTTIME: of several attachments that claim an address, the newest has it.
    pub added_nanos: u64,
}

/// Why a text is no attachment, although it is JSON with an attachment's fields.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("it is of version {0}, and this program reads version {VERSION}")]
    Version(u32),
    #[error(transparent)]
    Id(#[from] IdError),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct IdFields {
    container_id: String,
    interface: String,
}

impl TryFrom<IdFields> for AttachmentId {
    type Error = IdError;

    fn try_from(IdFields { container_id, interface }: IdFields) -> Result<AttachmentId, IdError> {
        AttachmentId::new(container_id, interface)
    }
}

impl From<AttachmentId> for IdFields {
    fn from(AttachmentId { container_id, interface }: AttachmentId) -> IdFields {
        IdFields { container_id, interface }
    }
}

/// An attachment as it is written.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Fields {
    version: u32,
    container_id: String,
    interface: String,
    sandbox: String,
    network: String,
    namespace: String,
    pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    uid: Option<String>,
    addresses: Vec<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_interface: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bridge: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_interface_index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hardware_address: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    link_local: Vec<Ipv6Addr>,
    added_nanos: u64,
}

impl TryFrom<Fields> for Attachment {
    type Error = FormatError;

    fn try_from(fields: Fields) -> Result<Attachment, FormatError> {
        let Fields { version, container_id, interface, sandbox, network, namespace, pod, .. } = fields;
        if version != VERSION {
            return Err(FormatError::Version(version));
        }
        let id = AttachmentId::new(container_id, interface)?;
        let Fields { uid, addresses, host_interface, bridge, added_nanos, .. } = fields;
        let Fields { host_interface_index, hardware_address, link_local, .. } = fields;
        Ok(Attachment {
            id,
            sandbox,
            network,
            namespace,
            pod,
            uid,
            addresses,
            host_interface,
            bridge,
            host_interface_index,
            hardware_address,
            link_local,
            added_nanos,
        })
    }
}

impl From<Attachment> for Fields {
    fn from(attachment: Attachment) -> Fields {
        let Attachment { id, sandbox, network, namespace, pod, uid, addresses, host_interface, bridge, .. } =
            attachment;
        let (host_interface_index, hardware_address) = (attachment.host_interface_index, attachment.hardware_address);
        let (link_local, added_nanos) = (attachment.link_local, attachment.added_nanos);
        let AttachmentId { container_id, interface } = id;
        Fields {
            version: VERSION,
            container_id,
            interface,
            sandbox,
            network,
            namespace,
            pod,
            uid,
            addresses,
            host_interface,
            bridge,
            host_interface_index,
            hardware_address,
            link_local,
            added_nanos,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Attachment {
        Attachment {
            id: AttachmentId::new("4f1c", "eth0").unwrap(),
            sandbox: "/run/netns/pod".into(),
            network: "pods".into(),
            namespace: "shop".into(),
            pod: "api-0".into(),
            uid: Some("7d2c0b6e-0d0c-4b8e-9a53-3f6c4a1e2f10".into()),
            addresses: vec!["10.1.0.7".parse().unwrap(), "fd00:1::7".parse().unwrap()],
            host_interface: Some("veth1a2b".into()),
            bridge: Some("cni0".into()),
            host_interface_index: Some(7),
            hardware_address: Some("02:00:5e:10:00:01".into()),
            link_local: vec!["fe80::5eff:fe10:1".parse().unwrap()],
            added_nanos: 1_234_567_890_123,
        }
    }

    pub(crate) const EXAMPLE: &str = r#"{"version":1,"containerId":"4f1c","interface":"eth0","sandbox":"/run/netns/pod","network":"pods","namespace":"shop","pod":"api-0","uid":"7d2c0b6e-0d0c-4b8e-9a53-3f6c4a1e2f10","addresses":["10.1.0.7","fd00:1::7"],"hostInterface":"veth1a2b","bridge":"cni0","hostInterfaceIndex":7,"hardwareAddress":"02:00:5e:10:00:01","linkLocal":["fe80::5eff:fe10:1"],"addedNanos":1234567890123}"#;

    const SHORTEST: &str = r#"{"version":1,"containerId":"4f1c","interface":"eth0","sandbox":"/n","network":"pods","namespace":"shop","pod":"api-0","addresses":[],"addedNanos":0}"#;

    #[test]
    fn an_attachment_is_written_like_this() {
        assert_eq!(serde_json::to_string(&example()).unwrap(), EXAMPLE);
        assert_eq!(serde_json::from_str::<Attachment>(EXAMPLE).unwrap(), example());
        let shortest: Attachment = serde_json::from_str(SHORTEST).unwrap();
        assert_eq!(serde_json::to_string(&shortest).unwrap(), SHORTEST);
    }

    #[test]
    fn fields_that_a_later_program_adds_are_passed_over_but_not_another_version() {
        let later = EXAMPLE.replace(r#""pod":"#, r#""mood":"good","pod":"#);
        assert_eq!(serde_json::from_str::<Attachment>(&later).unwrap(), example());
        let other = EXAMPLE.replace(r#""version":1"#, r#""version":2"#);
        let refusal = serde_json::from_str::<Attachment>(&other).unwrap_err().to_string();
        assert!(refusal.contains("version 2"), "{refusal}");
    }

    #[test]
    fn what_becomes_a_file_name_keeps_to_the_grammar() {
        let long = "x".repeat(CONTAINER_ID_BYTES + 1);
        for bad in ["", ".a", "-a", "a/b", "a b", "../etc", "a@b", "ä", "a\0", &long] {
            assert_eq!(AttachmentId::new(bad, "eth0"), Err(IdError::ContainerId(bad.into())));
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "a\nb", "a\u{7f}", "sixteen-bytes-xx"] {
            assert_eq!(AttachmentId::new("a", bad), Err(IdError::Interface(bad.into())));
        }
        for (container, interface) in [("a", "eth0"), ("4F_c.-", "a@b"), ("0", "fifteen-bytes-x"), ("0..", "...")] {
            assert_eq!(
                AttachmentId::new(container, interface).unwrap().to_string(),
                format!("{container}@{interface}")
            );
        }
    }
}
