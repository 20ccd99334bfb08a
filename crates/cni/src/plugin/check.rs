//! CHECK: verifies the attachment of a pod, and that its policies are in force.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Instant;

use crate::plugin::agent::ask_until;
use crate::plugin::config::Config;
use crate::plugin::environment::{Environment, Pod};
use crate::plugin::prev_result::PrevResult;
use crate::plugin::{Code, Failure};
use crate::protocol::{Request, Response};
use crate::store;

pub(super) fn check(environment: &Environment, config: &Config) -> Result<(), Failure> {
    let deadline = Instant::now() + config.timeout;
    let id = environment.attachment_id()?;
    environment.sandbox()?;
    let prev_result = config.require_prev_result()?;
    let Some(Pod { namespace, name, .. }) = environment.pod()? else {
        return Ok(());
    };
    let addresses = PrevResult::parse(prev_result)?.addresses;
    let not_in_force =
        || Failure::new(Code::NotInForce, format!("the policies of pod {namespace}/{name} are not in force"));
    let folder = config.state_dir.display();
    let attachment = store::read(&config.state_dir, &id)
        .map_err(|error| not_in_force().because(format!("cannot read attachment {id} in {folder}: {error}")))?
        .ok_or_else(|| not_in_force().because(format!("attachment {id} not found in {folder}")))?;
    if (&attachment.namespace, &attachment.pod) != (&namespace, &name) {
        let other = format!("{}/{}", attachment.namespace, attachment.pod);
        return Err(not_in_force().because(format!("attachment {id} in {folder} belongs to pod {other}")));
    }
    let set = |addresses: &[IpAddr]| addresses.iter().copied().collect::<BTreeSet<_>>();
    if set(&attachment.addresses) != set(&addresses) {
        let difference = format!(
            "address mismatch: prevResult has {addresses:?}, attachment {id} in {folder} has {:?}",
            attachment.addresses
        );
        return Err(not_in_force().because(difference));
    }
    match ask_until(&config.agent_socket, |_| Request::Check(id.clone()), deadline) {
        Ok(Response::Enforced) => Ok(()),
        Ok(Response::Isolated { reason }) => {
            Err(not_in_force().because(format!("the pod is isolated, with all traffic denied: {reason}")))
        }
        Ok(Response::Failed { reason }) => Err(not_in_force().because(reason)),
        Ok(Response::Ok) => Err(not_in_force().because("unexpected response of the agent")),
        Err(error) => {
            let message = format!("cannot determine whether the policies of pod {namespace}/{name} are in force");
            Err(Failure::new(Code::TryAgainLater, message).because(error))
        }
    }
}
