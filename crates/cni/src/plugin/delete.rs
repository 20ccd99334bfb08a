//! DEL: a pod is gone. It always succeeds, needs no agent, and does what can still be done.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::plugin::agent::tell;
use crate::plugin::config::Config;
use crate::plugin::environment::Environment;
use crate::plugin::prev_result::PrevResult;
use crate::plugin::{Failure, link_down, say};
use crate::protocol::Request;
use crate::{Attachment, AttachmentId, isolation, store};

pub(super) fn delete(environment: &Environment, config: Result<Config, Failure>) {
    let config = config.unwrap_or_else(|failure| {
        say(format_args!("{failure}; DEL continues with the defaults"));
        Config::of_defaults()
    });
    match environment.attachment_id() {
        Ok(id) => {
            let told = config.prev_result.as_deref().and_then(|result| PrevResult::parse(result).ok());
            remove(&config, &id, &told.map(|result| result.addresses).unwrap_or_default());
        }
        // No ADD of it can have succeeded.
        Err(failure) => say(format_args!("{failure}; there is nothing to remove")),
    }
}

/// Removes all that there is of an attachment, and tells whether nothing is left. `told` are its addresses as far as
/// they are known otherwise: they count only if there is a file that cannot be read, since another pod may have them
/// by now.
pub(super) fn remove(config: &Config, id: &AttachmentId, told: &[IpAddr]) -> bool {
    let folder = &config.state_dir;
    let (addresses, host_interface) = match store::read(folder, id) {
        Ok(Some(attachment)) => {
            set_down(config, &attachment);
            (attachment.all_addresses(), attachment.host_interface)
        }
        Ok(None) => (Vec::new(), None),
        Err(error) => {
            say(format_args!("cannot read attachment {} in {}: {error}", id, folder.display()));
            (told.to_vec(), None)
        }
    };
    let removed = store::remove(folder, id)
        .map_err(|error| format!("cannot remove attachment {id} from {}: {error}", folder.display()));
    let released = release(config, addresses, host_interface);
    let complaints = [removed.map(|_| ()), released].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    for complaint in &complaints {
        say(format_args!("{complaint}"));
    }
    tell(&config.agent_socket, &Request::Delete(id.clone()));
    complaints.is_empty()
}

/// The rules of the interface go with the attachment, and the interface may stay for some time.
fn set_down(config: &Config, attachment: &Attachment) {
    let Some(name) = &attachment.host_interface else { return };
    let is_of_other = |other: &Attachment| other.id != attachment.id && other.host_interface.as_ref() == Some(name);
    let is_free = store::read_all(&config.state_dir).is_ok_and(|others| !others.attachments.iter().any(is_of_other));
    if is_free && let Err(error) = link_down::set_down(name, attachment.host_interface_index) {
        say(format_args!("cannot set {name} of attachment {} down: {error}", attachment.id));
    }
}

/// Removes addresses and interface from the isolation tables, unless another pod has them now.
fn release(config: &Config, mut addresses: Vec<IpAddr>, host_interface: Option<String>) -> Result<(), String> {
    if addresses.is_empty() && host_interface.is_none() {
        return Ok(());
    }
    let others = store::read_all(&config.state_dir)
        .map_err(|error| format!("cannot read {}: {error}", config.state_dir.display()))?;
    let of_others: BTreeSet<IpAddr> = others.attachments.iter().flat_map(Attachment::all_addresses).collect();
    addresses.retain(|address| !of_others.contains(address));
    let host_interface = host_interface
        .filter(|name| !others.attachments.iter().any(|other| other.host_interface.as_ref() == Some(name)));
    isolation::remove_deleted(&addresses, host_interface.as_deref())
        .map_err(|error| format!("addresses {addresses:?} may stay isolated: {error}"))
}
