//! CHECK: is a pod as it was added, and are its policies in force?

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
        .map_err(|error| not_in_force().because(format!("{id} in {folder} cannot be read: {error}")))?
        .ok_or_else(|| not_in_force().because(format!("there is no {id} in {folder}")))?;
    if (&attachment.namespace, &attachment.pod) != (&namespace, &name) {
        let other = format!("{}/{}", attachment.namespace, attachment.pod);
        return Err(not_in_force().because(format!("{id} in {folder} is pod {other}")));
    }
    let set = |addresses: &[IpAddr]| addresses.iter().copied().collect::<BTreeSet<_>>();
    if set(&attachment.addresses) != set(&addresses) {
        let difference = format!("prevResult has {addresses:?} and {id} in {folder} has {:?}", attachment.addresses);
        return Err(not_in_force().because(difference));
    }
    match ask_until(&config.agent_socket, |_| Request::Check(id.clone()), deadline) {
        Ok(Response::Enforced) => Ok(()),
        Ok(Response::Isolated { reason }) => {
            Err(not_in_force().because(format!("everything from and to it is denied: {reason}")))
        }
        Ok(Response::Failed { reason }) => Err(not_in_force().because(reason)),
        Ok(Response::Ok) => Err(not_in_force().because("the agent answered something else than it was asked")),
        Err(error) => {
            let message = format!("it is not known whether the policies of pod {namespace}/{name} are in force");
            Err(Failure::new(Code::TryAgainLater, message).because(error))
        }
    }
}
