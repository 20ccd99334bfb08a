//! Checks whether tc filters may redirect packets of pods before the nftables chains at the pods' interfaces run.

use std::collections::BTreeSet;

use cni::AttachmentRecord;

use super::finding::{Check, Finding, list};
use crate::tc_redirects::redirecting_interfaces;

/// Interfaces with an ingress qdisc, in the network namespace of the calling thread.
pub(super) fn gather() -> Result<BTreeSet<String>, String> {
    redirecting_interfaces().map_err(|e| e.to_string())
}

pub(super) fn finding(
    redirecting: &Result<BTreeSet<String>, String>,
    attachments: &[AttachmentRecord],
) -> Option<Finding> {
    let redirecting = match redirecting {
        Ok(interfaces) => interfaces,
        Err(error) => {
            let finding = format!("cannot list the qdiscs of the node's interfaces: {error}");
            return Some(Finding::warning(Check::TcIngress, finding, "run this on the node, in its network namespace"));
        }
    };
    let of_pods: BTreeSet<&str> = attachments.iter().filter_map(|a| a.host_interface.as_deref()).collect();
    let found: Vec<&str> = of_pods.into_iter().filter(|name| redirecting.contains(*name)).collect();
    (!found.is_empty()).then(|| {
        Finding::note(
            Check::TcIngress,
            format!(
                "{} of pods have a qdisc at their ingress (tc), whose filters may redirect packets past the check of \
                 source addresses there",
                list(&found)
            ),
            "nothing to do for limited egress bandwidth: the agent checks these interfaces at the prerouting hooks, too; \
             what a filter redirects to an interface that leaves the node is not checked",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interface_of_pod_with_ingress_qdisc_is_noted() {
        let id = cni::AttachmentKey::new("c1", "eth0").unwrap();
        let attachment =
            AttachmentRecord { host_interface: Some("veth1".into()), ..AttachmentRecord::new(id, "shop", "web") };
        let about = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            finding(&Ok(names), std::slice::from_ref(&attachment))
        };
        assert!(about(&["eth0"]).is_none(), "no pod is behind it");
        let found = about(&["eth0", "veth1"]).unwrap().to_string();
        assert!(found.contains("veth1 of pods have a qdisc") && !found.contains("eth0"), "{found}");
        assert!(finding(&Err("refused".into()), &[]).is_some());
    }
}
