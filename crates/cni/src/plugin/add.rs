//! ADD: lets a pod start once its rules are in force. At the deadline it fails, or isolates the pod (`onTimeout`).

use std::time::{Duration, Instant};

use crate::isolation::HostPort;
use crate::plugin::agent::{ask_until, notify};
use crate::plugin::config::{ChecksumOffload, Config, OnTimeout};
use crate::plugin::environment::{Environment, Pod};
use crate::plugin::host_interface::{self, HostInterface};
use crate::plugin::pod_interface::{self, PodInterface};
use crate::plugin::prev_result::PrevResult;
use crate::plugin::{Code, Failure, print_error};
use crate::plugin::{bridge_learning, checksum_offload, neighbours};
use crate::protocol::{Request, Response};
use crate::{AttachmentRecord, isolation, store};

const UNKNOWN_INTERFACE: &str = "prevResult has no host-side interface, as with macvlan and ipvlan; use onTimeout: \
    fail";

/// Handles ADD. Returns the previous result unchanged.
pub(super) fn add(environment: &Environment, config: &Config) -> Result<Vec<u8>, Failure> {
    let deadline = Instant::now() + config.timeout;
    let id = environment.attachment_id()?;
    let sandbox = environment.sandbox()?;
    let prev_result = config.require_prev_result()?;
    let result = || prev_result.get().as_bytes().to_vec();
    let Some(pod) = environment.pod()? else {
        return Ok(result());
    };
    let Pod { namespace, name: pod, uid } = pod;
    match config.checksum_offload {
        ChecksumOffload::Unchanged => {}
        ChecksumOffload::Off => checksum_offload::switch_off(sandbox, id.interface()).map_err(|error| {
            let message = format!("cannot switch off the transmit checksum offload of pod {namespace}/{pod}");
            Failure::new(Code::Io, message).because(error)
        })?,
    }
    let PrevResult { addresses, host_interfaces } = PrevResult::parse(prev_result)?;
    let HostInterface { name: host_interface, index: host_interface_index, bridge, input: input_interface } =
        host_interface::find(&host_interfaces, sandbox, id.interface());
    if let Some(bridge) = &bridge
        && let Err(error) = bridge_learning::restrict(bridge)
    {
        print_error(format_args!(
            "bridge {bridge} may learn from frames to reserved addresses (no_linklocal_learn): {error}"
        ));
    }
    let PodInterface { hardware_address, link_local } = pod_interface::read(sandbox, id.interface());
    let (link_local, link_local_error) = match link_local {
        Ok(addresses) => (addresses, None),
        Err(error) => {
            print_error(format_args!("cannot read the link-local addresses of pod {namespace}/{pod}: {error}"));
            (Vec::new(), Some(error))
        }
    };
    let attachment = AttachmentRecord {
        sandbox: sandbox.into(),
        network: config.network.clone(),
        uid,
        addresses,
        host_interface,
        bridge,
        host_interface_index,
        input_interface,
        hardware_address,
        link_local,
        link_local_error,
        added_nanos: nanos_since_boot(),
        ..AttachmentRecord::new(id, namespace, pod)
    };
    // Before the request to the agent: if that agent stops after its response, the next one finds the attachment.
    store::write(&config.state_dir, &attachment).map_err(|error| {
        let message = format!("cannot write the attachment file to {}", config.state_dir.display());
        Failure::new(Code::Io, message).because(error)
    })?;
    let protected = protect(config, &attachment, deadline).and_then(|()| {
        neighbours::drop_waiting(&attachment.all_addresses())
            .map_err(|error| format!("packets from before its policies may wait for its addresses: {error}"))
    });
    let Err(reason) = protected else {
        return Ok(result());
    };
    abandon(config, &attachment);
    let message = format!("the policies of pod {}/{} are not in force", attachment.namespace, attachment.pod);
    Err(Failure::new(Code::TryAgainLater, message).because(reason))
}

/// Waits until the pod may start; the error is the reason why it may not.
fn protect(config: &Config, attachment: &AttachmentRecord, deadline: Instant) -> Result<(), String> {
    let AttachmentRecord { namespace, pod, .. } = attachment;
    let request = |left: Duration| {
        // A tenth is reserved for transmission: the agent must respond before our deadline.
        let millis = u64::try_from((left * 9 / 10).as_millis()).unwrap_or(u64::MAX);
        Request::Add { attachment: attachment.clone(), timeout_millis: millis }
    };
    let isolate = config.on_timeout == OnTimeout::Isolate;
    let reason = match ask_until(&config.agent_socket, request, deadline) {
        Ok(Response::Enforced) => return Ok(()),
        Ok(Response::Isolated { reason }) if isolate && attachment.host_interface.is_some() => {
            print_error(format_args!(
                "pod {namespace}/{pod} starts isolated by the agent, with all traffic denied: {reason}"
            ));
            return Ok(());
        }
        Ok(Response::Isolated { reason } | Response::Failed { reason }) => reason,
        Ok(Response::Ok) => "unexpected response of the agent".into(),
        Err(error) => error.to_string(),
    };
    if !isolate {
        return Err(reason);
    }
    // Packets of such a pod may bypass the hooks of this node (macvlan, ipvlan, SR-IOV).
    let Some(host_interface) = &attachment.host_interface else {
        return Err(format!("{reason}; and the pod cannot be isolated: {UNKNOWN_INTERFACE}"));
    };
    let port = HostPort { interface: host_interface, is_bridged: attachment.bridge.is_some() };
    isolation::add(&attachment.all_addresses(), Some(port))
        .map_err(|error| format!("{reason}; and the pod cannot be isolated: {error}"))?;
    print_error(format_args!(
        "pod {namespace}/{pod} starts isolated in table {}, with all traffic denied until the agent adopts it: \
         {reason}",
        isolation::TABLE
    ));
    Ok(())
}

/// Removes the attachment of a pod that does not start.
fn abandon(config: &Config, attachment: &AttachmentRecord) {
    if let Err(error) = store::remove(&config.state_dir, &attachment.id) {
        print_error(format_args!("cannot remove {} from {}: {error}", attachment.id, config.state_dir.display()));
    }
    notify(&config.agent_socket, &Request::Delete(attachment.id.clone()));
}

fn nanos_since_boot() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let now = Duration::try_from(now).expect("the time since boot is not negative");
    u64::try_from(now.as_nanos()).expect("a machine is up for less than 500 years")
}
