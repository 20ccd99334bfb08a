//! Trusted DNS resolvers.
//!
//! A pod chooses the resolver that it queries, and a resolver under its control could allow it any address. So addresses
//! are learned only from answers of the cluster's DNS pods, or of configured addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use policy::ClusterState;

/// The address at which NodeLocal DNSCache listens on every node. It is link-local, so no other host answers from it.
pub(crate) const DEFAULT_RESOLVER: &str = "169.254.20.10";

/// The label of the pods of the Service `kube-dns`; CoreDNS has the same.
pub(crate) const DEFAULT_PODS: &str = "kube-system/k8s-app=kube-dns";

/// The pods of a namespace with a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ResolverPods {
    namespace: String,
    key: String,
    value: String,
}

impl FromStr for ResolverPods {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<ResolverPods, &'static str> {
        let parts = text.split_once('/').and_then(|(namespace, label)| Some((namespace, label.rsplit_once('=')?)));
        match parts {
            Some((namespace, (key, value))) if ![namespace, key, value].contains(&"") => {
                Ok(ResolverPods { namespace: namespace.into(), key: key.into(), value: value.into() })
            }
            Some(_) | None => Err("expected NAMESPACE/LABEL=VALUE, as in kube-system/k8s-app=kube-dns"),
        }
    }
}

impl fmt::Display for ResolverPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ResolverPods { namespace, key, value } = self;
        write!(f, "{namespace}/{key}={value}")
    }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Resolvers {
    pub(crate) addresses: Vec<IpNet>,
    pub(crate) pods: Vec<ResolverPods>,
}

impl Resolvers {
    pub(crate) fn trusts(&self, state: &ClusterState, resolver: IpAddr) -> bool {
        if self.addresses.iter().any(|range| range.contains(&resolver)) {
            return true;
        }
        let Some(pod) = state.owner(resolver).filter(|pod| !pod.unreadable) else { return false };
        let has_label = |of: &ResolverPods| pod.labels.get(&of.key).is_some_and(|value| **value == *of.value);
        self.pods.iter().any(|of| *pod.name.namespace == *of.namespace && has_label(of))
    }
}

#[cfg(test)]
mod tests {
    use policy::{Change, Kind, lower};
    use serde_json::json;

    use super::*;

    #[test]
    fn pods_of_dns_and_configured_addresses_are_trusted() {
        let mut state = ClusterState::new();
        let pods = [
            ("kube-system", "kube-dns", "10.0.0.1"),
            ("kube-system", "web", "10.0.0.2"),
            ("a", "kube-dns", "10.0.0.3"),
        ];
        for (namespace, app, address) in pods {
            let pod = json!({
                "metadata": {"namespace": namespace, "name": app, "labels": {"k8s-app": app}},
                "spec": {"nodeName": "node-a"}, "status": {"phase": "Running", "podIP": address},
            });
            state.apply(Change::Set(lower(Kind::Pod, &pod).unwrap()));
        }
        let resolvers = Resolvers {
            addresses: vec!["169.254.20.10/32".parse().unwrap()],
            pods: vec![DEFAULT_PODS.parse().unwrap()],
        };
        let trusted = |address: &str| resolvers.trusts(&state, address.parse().unwrap());
        assert!(trusted("10.0.0.1") && trusted(DEFAULT_RESOLVER));
        assert!(!["10.0.0.2", "10.0.0.3", "10.0.0.4", "192.0.2.53"].map(trusted).contains(&true));
    }

    #[test]
    fn pods_are_written_as_they_are_read() {
        for text in [DEFAULT_PODS, "dns/app.kubernetes.io/name=coredns"] {
            assert_eq!(text.parse::<ResolverPods>().unwrap().to_string(), text);
        }
        for bad in ["", "kube-dns", "/a=b", "n/=b", "n/a=", "n/a"] {
            assert!(bad.parse::<ResolverPods>().is_err(), "{bad}");
        }
    }
}
