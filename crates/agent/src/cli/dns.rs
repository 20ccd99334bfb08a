//! Arguments of `ringfence agent` on domain names in cluster policies.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;

use crate::dns::{DEFAULT_PODS, DEFAULT_RESOLVER, Lifetimes, ResolverPods, Resolvers};

#[derive(Debug, Args)]
#[command(next_help_heading = "Domain names in cluster policies")]
pub(crate) struct DnsArguments {
    /// Address or range of trusted DNS resolvers, beside the pods of --dns-pods. Repeatable, or separated by
    /// commas.
    #[arg(long, env = "RINGFENCE_DNS_RESOLVER", value_name = "ADDRESS", value_delimiter = ',', value_parser = range,
        default_value = DEFAULT_RESOLVER)]
    dns_resolver: Vec<IpNet>,

    /// Pods that are trusted DNS resolvers: those of a namespace with a label. Repeatable, or separated by commas.
    #[arg(long, env = "RINGFENCE_DNS_PODS", value_name = "NAMESPACE/LABEL=VALUE", value_delimiter = ',',
        default_value = DEFAULT_PODS)]
    dns_pods: Vec<ResolverPods>,

    /// Shortest lifetime of an address learned from an answer, whatever its TTL; as in 90s or 30m.
    #[arg(long, env = "RINGFENCE_DNS_SHORTEST_TTL", value_name = "DURATION", value_parser = console::duration,
        default_value = "60s")]
    dns_shortest_ttl: Duration,

    /// Longest lifetime of an address learned from an answer, whatever its TTL.
    #[arg(long, env = "RINGFENCE_DNS_LONGEST_TTL", value_name = "DURATION", value_parser = console::duration,
        default_value = "1d")]
    dns_longest_ttl: Duration,

    /// Cluster domain. Only names in it may have addresses of pods and nodes.
    #[arg(long, env = "RINGFENCE_CLUSTER_DOMAIN", value_name = "DOMAIN", default_value = "cluster.local")]
    cluster_domain: String,
}

impl DnsArguments {
    pub(crate) fn resolvers(&self) -> Resolvers {
        Resolvers { addresses: self.dns_resolver.clone(), pods: self.dns_pods.clone() }
    }

    pub(crate) fn lifetimes(&self) -> Lifetimes {
        Lifetimes { shortest: self.dns_shortest_ttl, longest: self.dns_longest_ttl }
    }

    /// The cluster domain in lower case, without leading and trailing dots.
    pub(crate) fn cluster_domain(&self) -> Arc<str> {
        self.cluster_domain.trim_matches('.').to_ascii_lowercase().into()
    }
}

/// Parses an address or a range.
fn range(text: &str) -> Result<IpNet, &'static str> {
    let address = || text.parse::<IpAddr>().map(IpNet::from);
    text.parse().or_else(|_| address()).map_err(|_| "expected an address or a range, as in 10.96.0.10 or 10.0.0.0/28")
}
