//! The folder of attachments that the CNI plugin keeps, as the state wants them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use policy::{Attachment, AttachmentId, ObjectName};

pub(crate) fn folder(run_dir: &Path) -> PathBuf {
    run_dir.join("cni")
}

/// What the folder says.
#[derive(Debug, Default)]
pub(crate) struct Attached {
    pub(crate) attachments: Vec<Attachment>,
    /// Files that say something that is not understood: pods may have been attached that are not known.
    pub(crate) problems: Vec<String>,
}

/// Reads the folder. One that is missing is empty: no plugin has run since the node started.
///
/// # Errors
/// If the folder cannot be listed.
pub(crate) fn read(folder: &Path) -> Result<Attached, String> {
    let stored = cni::store::read_all(folder)
        .map_err(|e| format!("the attachments of the CNI plugin in {} cannot be read: {e}", folder.display()))?;
    let tell = |(path, why): (PathBuf, String)| {
        format!(
            "{} is no attachment that this version understands: {why}; remove it if no pod needs it",
            path.display()
        )
    };
    Ok(Attached {
        attachments: stored.attachments.iter().map(lower).collect(),
        problems: stored.unreadable.into_iter().map(tell).collect(),
    })
}

/// What the folder says of one attachment now; none if it is not kept.
///
/// # Errors
/// If there is a file that cannot be read.
pub(crate) fn kept(folder: &Path, id: &AttachmentId) -> Result<Option<Attachment>, String> {
    let named = cni::AttachmentId::new(&*id.container, &*id.interface).map_err(|e| e.to_string())?;
    let stored = cni::store::read(folder, &named);
    let stored = stored.map_err(|e| format!("attachment {id} in {} cannot be read: {e}", folder.display()))?;
    Ok(stored.as_ref().map(lower))
}

pub(crate) fn lower(attachment: &cni::Attachment) -> Attachment {
    Attachment {
        id: lower_id(&attachment.id),
        pod: ObjectName::new(&attachment.namespace, &attachment.pod),
        uid: attachment.uid.as_deref().map(Arc::from),
        addresses: attachment.addresses.iter().map(std::net::IpAddr::to_canonical).collect(),
        // A name that rules cannot hold is none that they could check.
        host_interface: attachment.host_interface.as_deref().and_then(|name| name.parse().ok()),
        bridged: attachment.bridge.is_some(),
        since: attachment.added_nanos,
    }
}

pub(crate) fn lower_id(id: &cni::AttachmentId) -> AttachmentId {
    AttachmentId { container: id.container_id().into(), interface: id.interface().into() }
}
