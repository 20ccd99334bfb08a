//! Checks whether the traffic of Services passes the forward hook, where the rules are.
//!
//! IPVS receives packets for a Service in the input hook and forwards them from the output hook, so that policies do
//! not apply. kube-proxy in IPVS mode and the service proxy of kube-router use it.

use std::io::ErrorKind;
use std::path::Path;

use super::finding::{Check, Finding, list};
use crate::rtnetlink::Link;

/// The IPVS services in the network namespace of the calling thread.
const IP_VS: &str = "proc/thread-self/net/ip_vs";

/// Interfaces that hold the Service addresses of IPVS, and the programs that create them.
const DUMMY_INTERFACES: [(&str, &str); 2] =
    [("kube-ipvs0", "kube-proxy in IPVS mode"), ("kube-dummy-if", "the service proxy of kube-router")];

/// Number of IPVS services; `None` if the kernel has no IPVS.
pub(super) fn gather(root: &Path) -> Result<Option<usize>, String> {
    let path = root.join(IP_VS);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(count_services(&text))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

/// Service lines begin with the protocol; lines of their backends begin with an arrow.
fn count_services(text: &str) -> usize {
    let is_service = |line: &&str| ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|sort| line.starts_with(sort));
    text.lines().filter(is_service).count()
}

/// An error if IPVS has any services, even without pods as backends: the kernel's list does not show which backends are
/// pods. Also an error if there is a dummy interface of IPVS.
pub(super) fn findings(services: &Result<Option<usize>, String>, links: &[Link]) -> Vec<Finding> {
    let dummy = DUMMY_INTERFACES.iter().find(|(name, _)| links.iter().any(|link| link.name == *name));
    let count = match services {
        Ok(count) => count.unwrap_or(0),
        Err(error) => {
            let finding = format!("cannot determine whether IPVS forwards the traffic of Services: {error}");
            return vec![Finding::warning(Check::ServiceProxy, finding, "run this as root, on the node")];
        }
    };
    let mut reasons: Vec<String> = dummy.iter().map(|(name, of)| format!("interface {name} of {of}")).collect();
    if count > 0 {
        reasons.push(format!("{count} services in /proc/net/ip_vs"));
    }
    if reasons.is_empty() {
        return vec![Finding::ok(Check::ServiceProxy, "IPVS is not in use")];
    }
    vec![Finding::error(
        Check::ServiceProxy,
        format!(
            "IPVS forwards the traffic of Services ({}): it bypasses the forward hook, so no policy is enforced on it",
            list(&reasons)
        ),
        "run kube-proxy in mode nftables or iptables (kube-router: without --run-service-proxy), and restart the node \
         or remove the IPVS configuration (kube-proxy --cleanup)",
    )]
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity;
    use super::*;

    const SERVICES: &str = "\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr
  -> C0000201:192B      Masq    1      0          0
UDP  0A60000A:0035 rr persistent 10800
FWM  00000001 rr
";

    fn severity(services: Result<Option<usize>, String>, interface: Option<&str>) -> FindingSeverity {
        let links: Vec<Link> = interface.iter().map(|name| Link { name: (*name).into(), ..Link::default() }).collect();
        findings(&services, &links)[0].severity
    }

    #[test]
    fn services_of_ipvs_are_counted_without_their_backends() {
        assert_eq!(count_services(SERVICES), 3);
        assert_eq!(count_services(SERVICES.split_inclusive('\n').take(3).collect::<String>().as_str()), 0);
    }

    #[test]
    fn ipvs_services_or_interface_are_error() {
        assert_eq!(severity(Ok(None), None), FindingSeverity::Ok);
        assert_eq!(severity(Ok(Some(0)), Some("eth0")), FindingSeverity::Ok);
        assert_eq!(severity(Ok(Some(1)), None), FindingSeverity::Error);
        assert_eq!(severity(Ok(None), Some("kube-ipvs0")), FindingSeverity::Error);
        assert_eq!(severity(Ok(Some(0)), Some("kube-dummy-if")), FindingSeverity::Error);
        assert_eq!(severity(Err("no".into()), None), FindingSeverity::Warning);
    }

    #[test]
    fn service_list_is_read_below_the_root() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(gather(root.path()), Ok(None));
        std::fs::create_dir_all(root.path().join("proc/thread-self/net")).unwrap();
        std::fs::write(root.path().join(IP_VS), SERVICES).unwrap();
        assert_eq!(gather(root.path()), Ok(Some(3)));
    }
}
