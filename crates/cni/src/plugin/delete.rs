//! DEL: removes the attachment of a deleted pod. It always succeeds, needs no agent, and does what is still possible.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::plugin::agent::notify;
use crate::plugin::config::Config;
use crate::plugin::environment::Environment;
use crate::plugin::prev_result::PrevResult;
use crate::plugin::{Failure, link_down, neighbours, print_error};
use crate::protocol::Request;
use crate::{AttachmentKey, AttachmentRecord, isolation, store};

pub(super) fn delete(environment: &Environment, config: Result<Config, Failure>) {
    let config = config.unwrap_or_else(|failure| {
        print_error(format_args!("{failure}; DEL continues with the defaults"));
        Config::of_defaults()
    });
    match environment.attachment_id() {
        Ok(id) => {
            let reported = config.prev_result.as_deref().and_then(|result| PrevResult::parse(result).ok());
            remove(&config, &id, &reported.map(|result| result.addresses).unwrap_or_default());
        }
        // No ADD with this input can have succeeded.
        Err(failure) => print_error(format_args!("{failure}; there is nothing to remove")),
    }
}

/// Removes an attachment; returns whether nothing is left. `reported` has its addresses from another source, which are used
/// only if the attachment's file cannot be read, since another pod may own them by now.
pub(super) fn remove(config: &Config, id: &AttachmentKey, reported: &[IpAddr]) -> bool {
    let folder = &config.state_dir;
    let others = OtherAttachments::read(config, id);
    let (addresses, host_interface) = match store::read(folder, id) {
        Ok(Some(attachment)) => {
            set_down(&attachment, &others);
            (attachment.all_addresses(), attachment.host_interface)
        }
        Ok(None) => (Vec::new(), None),
        Err(error) => {
            print_error(format_args!("cannot read attachment {} in {}: {error}", id, folder.display()));
            (reported.to_vec(), None)
        }
    };
    let removed = store::remove(folder, id)
        .map_err(|error| format!("cannot remove attachment {id} from {}: {error}", folder.display()));
    let released = release(others, addresses.clone(), host_interface);
    let complaints = [removed.map(|_| ()), released].into_iter().filter_map(Result::err).collect::<Vec<_>>();
    for complaint in &complaints {
        print_error(format_args!("{complaint}"));
    }
    notify(&config.agent_socket, &Request::Delete(id.clone()));
    // The rules judged them as packets to this pod; an isolated pod that claims an address, too, must not receive them.
    if let Err(error) = neighbours::drop_waiting(&addresses) {
        print_error(format_args!("cannot drop packets that wait for the addresses of attachment {id}: {error}"));
    }
    complaints.is_empty()
}

/// The attachments of all other pods, or why they cannot be read.
struct OtherAttachments(Result<Vec<AttachmentRecord>, String>);

impl OtherAttachments {
    fn read(config: &Config, id: &AttachmentKey) -> OtherAttachments {
        let folder = &config.state_dir;
        let all = store::read_all(folder).map_err(|error| format!("cannot read {}: {error}", folder.display()));
        OtherAttachments(all.map(|all| all.attachments.into_iter().filter(|other| other.id != *id).collect()))
    }
}

fn has_interface(others: &[AttachmentRecord], name: &str) -> bool {
    others.iter().any(|other| other.host_interface.as_deref() == Some(name))
}

/// The interface's rules are removed with the attachment, but the interface may stay for some time.
fn set_down(attachment: &AttachmentRecord, others: &OtherAttachments) {
    let Some(name) = &attachment.host_interface else { return };
    let is_free = others.0.as_ref().is_ok_and(|others| !has_interface(others, name));
    if is_free && let Err(error) = link_down::set_down(name, attachment.host_interface_index) {
        print_error(format_args!("cannot set {name} of attachment {} down: {error}", attachment.id));
    }
}

/// Removes addresses and interface from the isolation tables, unless another pod owns them now.
fn release(others: OtherAttachments, mut addresses: Vec<IpAddr>, host_interface: Option<String>) -> Result<(), String> {
    if addresses.is_empty() && host_interface.is_none() {
        return Ok(());
    }
    let OtherAttachments(others) = others;
    let others = others?;
    let of_others: BTreeSet<IpAddr> = others.iter().flat_map(AttachmentRecord::all_addresses).collect();
    addresses.retain(|address| !of_others.contains(address));
    let host_interface = host_interface.filter(|name| !has_interface(&others, name));
    isolation::remove_deleted(&addresses, host_interface.as_deref())
        .map_err(|error| format!("addresses {addresses:?} may stay isolated: {error}"))
}
