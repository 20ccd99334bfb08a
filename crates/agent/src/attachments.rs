//! Converts the CNI plugin's attachments into those of the cluster state.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nfnetlink::interface_name;
use nft::InterfaceName;
use policy::{Attachment, AttachmentId, ObjectName};

pub(crate) fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("cni")
}

/// Contents of the attachment folder.
#[derive(Debug, Default)]
pub(crate) struct AttachmentFolder {
    pub(crate) attachments: Vec<Attachment>,
    /// Known attachments whose files exist but are no longer readable.
    pub(crate) unreadable: BTreeSet<AttachmentId>,
    /// Files that cannot be read or parsed. Each may belong to an attached pod that the agent does not know.
    pub(crate) problems: Vec<String>,
    /// Pods whose source addresses are not checked, and why.
    pub(crate) unchecked: Vec<String>,
}

/// Reads the folder. A missing folder is empty: no plugin has run since the node started.
///
/// # Errors
/// If the folder cannot be listed.
pub(crate) fn read(folder: &Path) -> Result<AttachmentFolder, String> {
    let stored = cni::store::read_all(folder)
        .map_err(|e| format!("cannot read the attachments of the CNI plugin in {}: {e}", folder.display()))?;
    let problem = |(path, why): (PathBuf, String)| {
        format!("invalid attachment file {}: {why}; remove the file if no pod needs it", path.display())
    };
    Ok(AttachmentFolder {
        attachments: stored.attachments.iter().map(lower).collect(),
        unreadable: BTreeSet::new(),
        problems: stored.unreadable.into_iter().map(problem).collect(),
        unchecked: stored.attachments.iter().filter_map(unchecked).collect(),
    })
}

/// Reads the folder again, and which of the `known` attachments have a file that is no longer readable.
///
/// # Errors
/// If the folder cannot be listed.
pub(crate) fn reread<'a>(
    folder: &Path,
    known: impl Iterator<Item = &'a AttachmentId>,
) -> Result<AttachmentFolder, String> {
    let mut contents = read(folder)?;
    let listed: BTreeSet<&AttachmentId> = contents.attachments.iter().map(|attachment| &attachment.id).collect();
    let missing = known.filter(|id| !listed.contains(id));
    contents.unreadable = missing.filter(|id| read_one(folder, id).is_err()).cloned().collect();
    Ok(contents)
}

/// Checks that the folder has this attachment: the next resync would remove one without a file, while its pod runs.
///
/// # Errors
/// If its file does not exist, differs or cannot be read.
pub(crate) fn confirm(folder: &Path, attachment: &Attachment) -> Result<(), String> {
    match read_one(folder, &attachment.id)? {
        Some(stored) if stored == *attachment => Ok(()),
        Some(_) | None => Err(format!(
            "attachment file not found in {}: the pod was deleted meanwhile, or the plugin's stateDir is not this folder \
             of the agent's --run-dir",
            folder.display()
        )),
    }
}

/// Reads one attachment from the folder; `None` if it does not exist.
///
/// # Errors
/// If the file exists and cannot be read.
pub(crate) fn read_one(folder: &Path, id: &AttachmentId) -> Result<Option<Attachment>, String> {
    let named = cni::AttachmentKey::new(&*id.container, &*id.interface).map_err(|e| e.to_string())?;
    let stored = cni::store::read(folder, &named);
    let stored = stored.map_err(|e| format!("cannot read attachment {id} in {}: {e}", folder.display()))?;
    Ok(stored.as_ref().map(lower))
}

pub(crate) fn lower(attachment: &cni::AttachmentRecord) -> Attachment {
    Attachment {
        id: lower_id(&attachment.id),
        pod: ObjectName::new(&attachment.namespace, &attachment.pod),
        uid: attachment.uid.as_deref().map(Arc::from),
        addresses: attachment.addresses.iter().map(std::net::IpAddr::to_canonical).collect(),
        // Rules cannot check an interface whose name they cannot express; `unchecked` reports it.
        host_interface: present_name(attachment).and_then(|name| name.parse().ok()),
        bridged: attachment.bridge.is_some(),
        input_interface: input_interface(attachment),
        hardware_address: attachment.hardware_address.as_deref().and_then(|address| address.parse().ok()),
        link_local: attachment.link_local.clone(),
        since: attachment.added_nanos,
    }
}

/// Current name of the host side of the pod's interface; `None` if the interface is gone. Without a reported index it
/// is the reported name.
fn present_name(attachment: &cni::AttachmentRecord) -> Option<String> {
    let reported = attachment.host_interface.as_deref()?;
    let Some(index) = attachment.host_interface_index else { return Some(reported.into()) };
    match interface_name(index) {
        Ok(name) => name,
        Err(error) => {
            tracing::warn!("cannot read the name of interface {index} ({reported}): {error}");
            Some(reported.into())
        }
    }
}

/// Current name of the input interface of the pod's packets at the forward hook. For a routed pod this is the host
/// side, which may have been renamed.
fn input_interface(attachment: &cni::AttachmentRecord) -> Option<InterfaceName> {
    let reported = attachment.input_interface.as_ref()?;
    let name = match attachment.host_interface.as_ref() == Some(reported) {
        true => present_name(attachment)?,
        false => reported.clone(),
    };
    name.parse().ok()
}

/// Why the pod's source addresses are not checked, or only in part, although its interface is known.
pub(crate) fn unchecked(attachment: &cni::AttachmentRecord) -> Option<String> {
    let cni::AttachmentRecord { id, namespace, pod, .. } = attachment;
    let attached = format!("pod {namespace}/{pod} (attachment {}@{})", id.container_id(), id.interface());
    if let Err(error) = attachment.host_interface.as_deref()?.parse::<InterfaceName>() {
        return Some(format!("the source addresses of {attached} are not checked: {error}"));
    }
    let error = attachment.link_local_error.as_deref()?;
    Some(format!(
        "the link-local source addresses of {attached} are possibly not checked, since they could not be read: {error}"
    ))
}

pub(crate) fn lower_id(id: &cni::AttachmentKey) -> AttachmentId {
    AttachmentId { container: id.container_id().into(), interface: id.interface().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment() -> cni::AttachmentRecord {
        let id = cni::AttachmentKey::new("c1", "eth0").unwrap();
        cni::AttachmentRecord {
            addresses: vec!["10.1.0.5".parse().unwrap()],
            host_interface: Some("veth1234".into()),
            ..cni::AttachmentRecord::new(id, "shop", "web")
        }
    }

    #[test]
    fn unreadable_link_local_addresses_are_reported() {
        let attachment = cni::AttachmentRecord { link_local_error: Some("permission denied".into()), ..attachment() };
        let reported = unchecked(&attachment).unwrap();
        assert!(reported.contains("pod shop/web") && reported.ends_with("permission denied"), "{reported}");
    }

    #[test]
    fn input_interface_follows_the_host_interface() {
        let of = |reported: Option<&str>, index| {
            let input_interface = reported.map(str::to_owned);
            lower(&cni::AttachmentRecord { input_interface, host_interface_index: index, ..attachment() })
                .input_interface
        };
        let name = |text: &str| Some(InterfaceName::new(text).unwrap());
        assert_eq!(of(Some("veth1234"), None), name("veth1234"));
        assert_eq!(of(Some("veth1234"), Some(1)), name("lo"), "interface 1 is always lo");
        assert_eq!(of(Some("cni0"), Some(1)), name("cni0"));
        assert_eq!(of(None, Some(1)), None);
    }

    #[test]
    fn attachment_with_invalid_interface_name_is_reported() {
        let mut attachment = attachment();
        assert_eq!((unchecked(&attachment), lower(&attachment).host_interface.is_some()), (None, true));
        attachment.host_interface = Some("veth\"12".into());
        let text = unchecked(&attachment).unwrap();
        assert!(
            text.starts_with("the source addresses of pod shop/web (attachment c1@eth0) are not checked"),
            "{text}"
        );
        assert_eq!(lower(&attachment).host_interface, None);
        attachment.host_interface = None;
        assert_eq!(unchecked(&attachment), None);
    }
}
