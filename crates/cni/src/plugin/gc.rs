//! GC: removes stale attachments, as DEL does.

use crate::plugin::config::{Config, ValidAttachments};
use crate::plugin::delete;
use crate::plugin::{Code, Failure};
use crate::store;

/// A runtime lists the valid attachments of one network, so those of other networks are not touched.
pub(super) fn gc(config: &Config) -> Result<(), Failure> {
    config.require_gc_and_status("GC")?;
    let valid = match &config.valid_attachments {
        ValidAttachments::These(valid) => valid,
        ValidAttachments::NotGiven => {
            let message = "missing cni.dev/valid-attachments; nothing is removed";
            return Err(Failure::new(Code::Configuration, message));
        }
    };
    let folder = config.state_dir.display();
    let stored = store::read_all(&config.state_dir)
        .map_err(|error| Failure::new(Code::Io, format!("cannot read {folder}")).because(error))?;
    let mut left: Vec<String> =
        stored.unreadable.iter().map(|(path, reason)| format!("{}: {reason}", path.display())).collect();
    for attachment in stored.attachments {
        let is_stale = attachment.network == config.network && !valid.contains(&attachment.id);
        if is_stale && !delete::remove(config, &attachment.id, &[]) {
            left.push(format!("cannot remove attachment {} completely", attachment.id));
        }
    }
    if left.is_empty() {
        return Ok(());
    }
    Err(Failure::new(Code::Io, format!("some attachments in {folder} are invalid or cannot be removed"))
        .because(left.join("; ")))
}
