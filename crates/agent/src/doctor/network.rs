//! Checks whether packets of pods pass the forward hook, where the rules are.
//!
//! Packets between two ports of a bridge pass it only if the bridge calls the IP hooks (br_netfilter); otherwise
//! policies are silently unenforced.

use std::collections::BTreeSet;
use std::path::Path;

use cni::AttachmentRecord;

use super::finding::{Check, Finding, list};
use super::sysctl::Sysctls;
use super::{bridge_macvlan, services};
use crate::rtnetlink::{Link, Rtnetlink, UnicastFilter};

const IP_FORWARD: &str = "net/ipv4/ip_forward";
const IP6_FORWARD: &str = "net/ipv6/conf/all/forwarding";
const CALL_IPTABLES: &str = "net/bridge/bridge-nf-call-iptables";
const CALL_IP6TABLES: &str = "net/bridge/bridge-nf-call-ip6tables";
const FILTER_VLAN: &str = "net/bridge/bridge-nf-filter-vlan-tagged";
const RP_FILTER_ALL: &str = "net/ipv4/conf/all/rp_filter";

#[derive(Debug, Clone)]
pub(crate) struct NetworkFacts {
    pub(crate) sysctls: Sysctls,
    pub(crate) links: Result<Vec<Link>, String>,
    pub(crate) unicast_filters: Result<Vec<UnicastFilter>, String>,
    /// Interfaces with a global IPv6 address.
    pub(crate) with_ipv6: BTreeSet<String>,
    /// Interfaces of default routes.
    pub(crate) uplinks: BTreeSet<String>,
    /// Attachments reported by the CNI plugin.
    pub(crate) attachments: Vec<AttachmentRecord>,
    /// Number of IPVS services; `None` if the kernel has no IPVS.
    pub(crate) ipvs_services: Result<Option<usize>, String>,
}

/// Gathers facts about the network namespace of the calling thread.
pub(super) fn gather(root: &Path, attachments: Vec<AttachmentRecord>) -> NetworkFacts {
    let links = Rtnetlink::open().and_then(|mut socket| socket.links()).map_err(|e| e.to_string());
    let bridges = links.iter().flatten().filter(|link| link.kind == "bridge").map(|link| link.index);
    let unicast_filters = Rtnetlink::open().and_then(|mut socket| socket.unicast_filters(bridges));
    let unicast_filters = unicast_filters.map_err(|e| e.to_string());
    let per_link: Vec<String> = links.iter().flatten().map(|link| rp_filter_of(&link.name)).collect();
    let names = [IP_FORWARD, IP6_FORWARD, CALL_IPTABLES, CALL_IP6TABLES, FILTER_VLAN, RP_FILTER_ALL];
    let sysctls = Sysctls::read(root, names.into_iter().chain(per_link.iter().map(String::as_str)));
    // The file is missing if the kernel has no IPv6; then no interface has an IPv6 address.
    let addresses = std::fs::read_to_string(root.join("proc/thread-self/net/if_inet6"));
    let with_ipv6 = addresses.map_or_else(|_| BTreeSet::new(), |text| interfaces_with_global_address(&text));
    let read = |file: &str| std::fs::read_to_string(root.join("proc/thread-self/net").join(file)).ok();
    let uplinks = uplinks(read("route").as_deref(), read("ipv6_route").as_deref());
    let ipvs_services = services::gather(root);
    NetworkFacts { sysctls, links, unicast_filters, with_ipv6, uplinks, attachments, ipvs_services }
}

/// The interfaces of default routes. They lead to no pod, even if they look like it: the uplink of a node in a
/// container is one end of a veth pair, like the host side of a pod's interface. An unreadable table has none.
fn uplinks(ipv4: Option<&str>, ipv6: Option<&str>) -> BTreeSet<String> {
    // `route`: interface, destination, gateway, flags, counters, metric, mask, in hexadecimal.
    let v4 = ipv4.into_iter().flat_map(str::lines).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000")).then(|| fields[0].to_owned())
    });
    // `ipv6_route`: destination, its length, source, its length, gateway, metric, counters, flags, interface.
    let v6 = ipv6.into_iter().flat_map(str::lines).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_default = fields.first()?.bytes().all(|b| b == b'0') && fields.get(1) == Some(&"00");
        // Unreachable default routes are those of the loopback interface.
        fields.get(9).filter(|name| is_default && **name != "lo").map(|name| (*name).to_owned())
    });
    v4.chain(v6).collect()
}

fn rp_filter_of(interface: &str) -> String {
    format!("net/ipv4/conf/{interface}/rp_filter")
}

/// Reads `if_inet6`: address, index, prefix, scope, flags and name on each line.
fn interfaces_with_global_address(text: &str) -> BTreeSet<String> {
    let named = text.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (*fields.get(3)? == "00").then(|| fields.get(5).map(|name| (*name).to_owned()))?
    });
    named.collect()
}

pub(super) fn findings(facts: &NetworkFacts) -> Vec<Finding> {
    let unreadable = facts.sysctls.unreadable.iter().map(|what| {
        Finding::warning(Check::Unreadable, format!("cannot read a sysctl: {what}"), "run this as root, on the node")
    });
    let mut findings: Vec<Finding> = unreadable.collect();
    match &facts.links {
        Ok(links) => {
            let side = PodSide::of(facts, links);
            findings.extend(forwarding(facts, &side));
            findings.extend(bridges(facts, &side, links));
            findings.extend(bridge_macvlan::findings(&side.bridges_of_pods(), links, &facts.unicast_filters));
            findings.extend(sources(facts, &side));
            findings.extend(strict(facts, &side, links));
            findings.extend(services::findings(&facts.ipvs_services, links));
        }
        Err(error) => findings.push(Finding::error(
            Check::Links,
            format!("cannot list the interfaces of the node, so bridges are not checked: {error}"),
            "run this on the node, in its network namespace",
        )),
    }
    findings
}

/// Interfaces that connect pods to the node.
struct PodSide<'a> {
    bridges: Vec<PodBridge<'a>>,
    /// Interfaces that lead to a pod and are not bridge ports.
    routed: Vec<&'a Link>,
}

struct PodBridge<'a> {
    link: &'a Link,
    /// The CNI plugin has reported a pod on the bridge.
    reported: bool,
    /// The CNI plugin has reported every pod on the bridge.
    all_reported: bool,
    ipv6: bool,
}

impl PodBridge<'_> {
    fn is_of_pods(&self) -> bool {
        self.reported || !is_of_other_software(&self.link.name)
    }
}

impl<'a> PodSide<'a> {
    fn of(facts: &NetworkFacts, links: &'a [Link]) -> PodSide<'a> {
        let is_reported = |name: &str| facts.attachments.iter().any(|a| a.host_interface.as_deref() == Some(name));
        let leads_to_pod = |link: &Link| {
            let is_pod_like = link.kind == "veth" && link.leads_elsewhere && !facts.uplinks.contains(&link.name);
            is_pod_like || is_reported(&link.name)
        };
        let bridges = links.iter().filter(|link| link.kind == "bridge").filter_map(|bridge| {
            let ports: Vec<&Link> =
                links.iter().filter(|link| link.master == Some(bridge.index) && leads_to_pod(link)).collect();
            let on_it = |a: &&AttachmentRecord| {
                a.bridge.as_deref() == Some(&*bridge.name)
                    || ports.iter().any(|port| a.host_interface.as_deref() == Some(&*port.name))
            };
            let mut attached = facts.attachments.iter().filter(on_it).peekable();
            let reported = attached.peek().is_some();
            let ipv6 = attached.flat_map(|a| &a.addresses).any(|address| address.is_ipv6())
                || facts.with_ipv6.contains(&bridge.name);
            let all_reported = ports.iter().all(|port| is_reported(&port.name));
            (reported || !ports.is_empty()).then_some(PodBridge { link: bridge, reported, all_reported, ipv6 })
        });
        let routed = links.iter().filter(|link| link.master.is_none() && leads_to_pod(link));
        PodSide { bridges: bridges.collect(), routed: routed.collect() }
    }

    fn is_empty(&self) -> bool {
        self.bridges.is_empty() && self.routed.is_empty()
    }

    /// Without bridges that, by their name, belong to other software.
    fn bridges_of_pods(&self) -> Vec<&'a Link> {
        let of_pods = self.bridges.iter().filter(|bridge| bridge.is_of_pods());
        of_pods.map(|bridge| bridge.link).collect()
    }

    /// The input interfaces of packets from pods.
    fn interfaces(&self) -> impl Iterator<Item = &'a Link> {
        self.bridges.iter().map(|bridge| bridge.link).chain(self.routed.iter().copied())
    }
}

fn forwarding(facts: &NetworkFacts, side: &PodSide) -> Vec<Finding> {
    let on = |name: &str| facts.sysctls.get(name).is_some_and(|value| value > 0);
    let mut findings = Vec::new();
    if on(IP_FORWARD) {
        findings.push(Finding::ok(Check::IpForward, "the node forwards IPv4"));
    } else if side.is_empty() {
        findings.push(Finding::note(
            Check::IpForward,
            "the node does not forward IPv4; it has no pods yet",
            "set net.ipv4.ip_forward to 1 if the network plugin does not set it",
        ));
    } else {
        findings.push(Finding::warning(
            Check::IpForward,
            "the node does not forward IPv4: its pods cannot reach addresses beyond their bridge",
            "set net.ipv4.ip_forward to 1",
        ));
    }
    let pods_have_ipv6 = facts.attachments.iter().flat_map(|a| &a.addresses).any(|address| address.is_ipv6())
        || side.bridges.iter().any(|bridge| bridge.ipv6);
    if pods_have_ipv6 {
        findings.push(match on(IP6_FORWARD) {
            true => Finding::ok(Check::Ip6Forward, "the node forwards IPv6"),
            false => Finding::warning(
                Check::Ip6Forward,
                "pods have IPv6 addresses, but the node does not forward IPv6: they cannot reach addresses beyond \
                 their bridge",
                "set net.ipv6.conf.all.forwarding to 1",
            ),
        });
    }
    findings
}

fn bridges(facts: &NetworkFacts, side: &PodSide, links: &[Link]) -> Vec<Finding> {
    if side.bridges.is_empty() {
        return vec![Finding::ok(Check::BridgeNfCall, "no bridge has ports of pods")];
    }
    let (ours, others): (Vec<&PodBridge>, Vec<&PodBridge>) =
        side.bridges.iter().partition(|bridge| bridge.is_of_pods());
    let mut findings = Vec::new();
    if !ours.is_empty() && facts.sysctls.get(CALL_IPTABLES).is_none() {
        findings.push(Finding::error(
            Check::BridgeNetfilter,
            format!(
                "br_netfilter is not loaded, so policies between pods of one bridge ({}) are not enforced",
                names(&ours)
            ),
            "load the module br_netfilter, now and at boot (/etc/modules-load.d), and set \
             net.bridge.bridge-nf-call-iptables and net.bridge.bridge-nf-call-ip6tables to 1",
        ));
    } else {
        findings.extend(ours.iter().flat_map(|bridge| calls(facts, bridge)));
    }
    findings.extend(others.iter().filter(|bridge| !passes(facts, bridge.link).0).map(|bridge| {
        Finding::note(
            Check::BridgeNfCall,
            format!(
                "bridge {0} does not pass packets to iptables hooks (bridge-nf-call-iptables); by its name, it does \
                 not belong to Kubernetes",
                bridge.link.name
            ),
            "if it has pods, set net.bridge.bridge-nf-call-iptables and net.bridge.bridge-nf-call-ip6tables to 1",
        )
    }));
    findings.extend(ours.iter().filter_map(|bridge| metadata_tunnels(facts, bridge, links)));
    let tagged_pass = facts.sysctls.get(FILTER_VLAN) == Some(0);
    let filtering: Vec<&PodBridge> = ours.iter().copied().filter(|bridge| bridge.link.filters_vlans).collect();
    if !filtering.is_empty() && tagged_pass {
        findings.push(Finding::error(
            Check::BridgeVlan,
            format!(
                "policies are not enforced between pods and tagged ports of bridge {}, which filters VLANs \
                 (vlan_filtering): frames with a VLAN tag bypass the rules",
                names(&filtering)
            ),
            "set net.bridge.bridge-nf-filter-vlan-tagged to 1",
        ));
    }
    if ours.iter().any(|bridge| !bridge.all_reported) && tagged_pass {
        findings.push(Finding::warning(
            Check::BridgeVlan,
            "a bridge has pods that the CNI plugin has not reported: their VLAN-tagged frames bypass the rules and \
             reach the other pods of the bridge, and sending a tag with VLAN ID 0 needs only CAP_NET_RAW",
            "run ringfence install-cni and restart these pods, or set net.bridge.bridge-nf-filter-vlan-tagged to 1",
        ));
    }
    findings
}

/// Whether IPv4 and IPv6 packets between ports of the bridge traverse the hooks. The global sysctl or that of the bridge
/// suffices.
fn passes(facts: &NetworkFacts, bridge: &Link) -> (bool, bool) {
    let on = |name: &str| facts.sysctls.get(name).is_some_and(|value| value > 0);
    (on(CALL_IPTABLES) || bridge.calls_iptables, on(CALL_IP6TABLES) || bridge.calls_ip6tables)
}

fn calls(facts: &NetworkFacts, bridge: &PodBridge) -> Vec<Finding> {
    let name = &bridge.link.name;
    let has_ipv6 = facts.sysctls.get(IP6_FORWARD).is_some();
    let silent = |family: &str| format!("policies between pods of bridge {name} are not enforced for {family}");
    let mut findings = Vec::new();
    let (ipv4, ipv6) = passes(facts, bridge.link);
    if !ipv4 {
        let finding =
            format!("{}: the bridge does not pass packets to the hooks (bridge-nf-call-iptables)", silent("IPv4"));
        findings.push(Finding::error(Check::BridgeNfCall, finding, "set net.bridge.bridge-nf-call-iptables to 1"));
    }
    if !ipv6 && has_ipv6 {
        let advice = "set net.bridge.bridge-nf-call-ip6tables to 1";
        findings.push(match bridge.ipv6 {
            true => {
                let finding = format!(
                    "{}: the bridge does not pass packets to the hooks (bridge-nf-call-ip6tables)",
                    silent("IPv6")
                );
                Finding::error(Check::BridgeNfCall, finding, advice)
            }
            false => {
                let finding = format!("{}, if they have IPv6 addresses", silent("IPv6"));
                Finding::warning(Check::BridgeNfCall, finding, advice)
            }
        });
    }
    if findings.is_empty() {
        findings.push(Finding::ok(
            Check::BridgeNfCall,
            format!("traffic between pods of bridge {name} traverses the rules"),
        ));
    }
    findings
}

/// The rules between ports of a bridge recognise a packet that the hooks of IP have seen by its route. A packet from a
/// tunnel in collect-metadata mode has one (`metadata_dst`) before any hook.
fn metadata_tunnels(facts: &NetworkFacts, bridge: &PodBridge, links: &[Link]) -> Option<Finding> {
    let (ipv4, ipv6) = passes(facts, bridge.link);
    let has_ipv6 = facts.sysctls.get(IP6_FORWARD).is_some();
    if ipv4 && (ipv6 || !has_ipv6) {
        return None;
    }
    let is_port = |link: &&Link| link.master == Some(bridge.link.index) && link.collects_metadata;
    let tunnels: Vec<&str> = links.iter().filter(is_port).map(|link| &*link.name).collect();
    (!tunnels.is_empty()).then(|| {
        let finding = format!(
            "isolated pods of bridge {} receive what its tunnels in collect-metadata mode (external) receive ({}), whatever \
             their policies: the bridge does not pass packets to the hooks (bridge-nf-call-iptables)",
            bridge.link.name,
            list(&tunnels)
        );
        let advice = "set net.bridge.bridge-nf-call-iptables and net.bridge.bridge-nf-call-ip6tables to 1";
        Finding::error(Check::BridgeNfCall, finding, advice)
    })
}

/// Name prefixes of bridges that other software creates.
const OTHER_BRIDGES: &[&str] = &["docker", "virbr", "lxcbr", "lxdbr", "incusbr", "podman", "cni-podman", "nerdctl"];

fn is_of_other_software(bridge: &str) -> bool {
    let is_network_of_docker =
        bridge.strip_prefix("br-").is_some_and(|id| id.len() == 12 && id.bytes().all(|b| b.is_ascii_hexdigit()));
    is_network_of_docker || OTHER_BRIDGES.iter().any(|prefix| bridge.starts_with(prefix))
}

/// Reports interfaces for which neither the kernel nor an attachment restricts source addresses. Reverse-path filtering
/// separates pods of different interfaces, but not those of one bridge.
fn sources(facts: &NetworkFacts, side: &PodSide) -> Option<Finding> {
    if side.is_empty() {
        return None;
    }
    let reported = |link: &Link| facts.attachments.iter().any(|a| a.host_interface.as_deref() == Some(&*link.name));
    let bridges = side.bridges.iter().filter(|bridge| !bridge.reported && !is_of_other_software(&bridge.link.name));
    let bridges = bridges.map(|bridge| bridge.link);
    let routed = side.routed.iter().copied().filter(|link| rp_filter(facts, link) == 0 && !reported(link));
    let open: Vec<&str> = bridges.chain(routed).map(|link| &*link.name).collect();
    Some(match open.is_empty() {
        true => Finding::ok(Check::RpFilter, "IPv4 source addresses are checked on all interfaces of pods"),
        false => Finding::note(
            Check::RpFilter,
            format!(
                "source addresses of packets from {} are not checked: a pod with CAP_NET_RAW can bypass its egress \
                 policies with a forged source address",
                list(&open)
            ),
            match facts.attachments.is_empty() {
                true => "install the CNI plugin (ringfence install-cni), which reports the interfaces of pods",
                false => {
                    "restart the pods behind them: they started before the CNI plugin was installed, which reports the \
                     interfaces of pods as they start"
                }
            },
        ),
    })
}

/// Strict reverse-path filtering on uplinks drops packets on asymmetric routes.
fn strict(facts: &NetworkFacts, side: &PodSide, links: &[Link]) -> Option<Finding> {
    let of_pods: BTreeSet<&str> = side.interfaces().map(|link| &*link.name).collect();
    let uplinks: Vec<&str> = links
        .iter()
        .filter(|link| link.name != "lo" && link.master.is_none() && !of_pods.contains(&*link.name))
        .filter(|link| rp_filter(facts, link) == 1)
        .map(|link| &*link.name)
        .collect();
    (!uplinks.is_empty()).then(|| {
        Finding::note(
            Check::RpFilter,
            format!(
                "reverse-path filtering is strict (rp_filter=1) on {}: packets whose reply would leave through \
                 another interface are dropped before any policy is evaluated",
                list(&uplinks)
            ),
            "if allowed flows do not arrive on a node with several uplinks or overlays, set rp_filter of these \
             interfaces to 2",
        )
    })
}

/// The larger of the two values applies (the kernel's ip-sysctl.rst).
fn rp_filter(facts: &NetworkFacts, link: &Link) -> i64 {
    let value = |name: &str| facts.sysctls.get(name).unwrap_or(0);
    value(RP_FILTER_ALL).max(value(&rp_filter_of(&link.name)))
}

fn names(bridges: &[&PodBridge]) -> String {
    let names: Vec<&str> = bridges.iter().map(|bridge| &*bridge.link.name).collect();
    list(&names)
}

#[cfg(test)]
mod tests {
    use cni::AttachmentKey;

    use super::super::finding::FindingSeverity::{self, Error, Note, Ok as Fine, Warning};
    use super::*;

    fn link(name: &str, index: u32, kind: &str) -> Link {
        Link { name: name.into(), index, kind: kind.into(), ..Link::default() }
    }

    fn pod_port(name: &str, index: u32, master: Option<u32>) -> Link {
        Link { master, leads_elsewhere: true, ..link(name, index, "veth") }
    }

    fn attachment(addresses: &[&str], host_interface: Option<&str>, bridge: Option<&str>) -> AttachmentRecord {
        AttachmentRecord {
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            host_interface: host_interface.map(Into::into),
            bridge: bridge.map(Into::into),
            ..AttachmentRecord::new(AttachmentKey::new("c1", "eth0").unwrap(), "shop", "web")
        }
    }

    /// A node with one pod on a bridge and correct settings.
    fn bridged() -> NetworkFacts {
        NetworkFacts {
            sysctls: [(IP_FORWARD, 1), (IP6_FORWARD, 1), (CALL_IPTABLES, 1), (CALL_IP6TABLES, 1)].into(),
            links: Ok(vec![
                link("lo", 1, ""),
                link("eth0", 2, ""),
                link("cni0", 3, "bridge"),
                pod_port("veth1", 4, Some(3)),
            ]),
            unicast_filters: Ok(vec![]),
            with_ipv6: BTreeSet::new(),
            uplinks: BTreeSet::new(),
            attachments: vec![attachment(&["10.1.0.2"], Some("veth1"), Some("cni0"))],
            ipvs_services: Ok(None),
        }
    }

    /// A node with a pod behind a routed veth.
    fn routed() -> NetworkFacts {
        let links = vec![link("lo", 1, ""), link("eth0", 2, ""), pod_port("cali1", 4, None)];
        let sysctls = [(IP_FORWARD, 1), ("net/ipv4/conf/cali1/rp_filter", 1)].into();
        NetworkFacts {
            sysctls,
            links: Ok(links),
            unicast_filters: Ok(vec![]),
            with_ipv6: BTreeSet::new(),
            uplinks: BTreeSet::new(),
            attachments: vec![],
            ipvs_services: Ok(None),
        }
    }

    /// Findings that are not OK.
    fn wrong(facts: &NetworkFacts) -> Vec<(Check, FindingSeverity)> {
        findings(facts).iter().map(|f| (f.id, f.severity)).filter(|(_, s)| *s != Fine).collect()
    }

    #[test]
    fn nodes_with_the_right_settings_have_nothing_wrong() {
        assert_eq!(wrong(&bridged()), []);
        assert_eq!(wrong(&routed()), []);
    }

    #[test]
    fn bridge_without_nf_call_is_error_per_family() {
        let with = |sysctls: Sysctls| NetworkFacts { sysctls, ..bridged() };
        let neither = with([(IP_FORWARD, 1), (IP6_FORWARD, 1), (CALL_IPTABLES, 0), (CALL_IP6TABLES, 0)].into());
        assert_eq!(wrong(&neither), [(Check::BridgeNfCall, Error), (Check::BridgeNfCall, Warning)]);
        let dual_stack = NetworkFacts {
            attachments: vec![attachment(&["10.1.0.2", "fd00::2"], Some("veth1"), None)],
            ..with([(IP_FORWARD, 1), (IP6_FORWARD, 1), (CALL_IPTABLES, 1), (CALL_IP6TABLES, 0)].into())
        };
        assert_eq!(wrong(&dual_stack), [(Check::BridgeNfCall, Error)]);
        let by_address = NetworkFacts { attachments: vec![], with_ipv6: ["cni0".into()].into(), ..dual_stack };
        assert_eq!(wrong(&by_address), [(Check::BridgeNfCall, Error), (Check::RpFilter, Note)]);
        let without_ipv6 = with([(IP_FORWARD, 1), (CALL_IPTABLES, 1), (CALL_IP6TABLES, 0)].into());
        assert_eq!(wrong(&without_ipv6), []);
    }

    #[test]
    fn bridge_nf_call_may_be_set_per_bridge() {
        let mut facts = bridged();
        facts.sysctls = [(IP_FORWARD, 1), (IP6_FORWARD, 1), (CALL_IPTABLES, 0), (CALL_IP6TABLES, 0)].into();
        let bridge = facts.links.as_mut().unwrap().iter_mut().find(|link| link.kind == "bridge").unwrap();
        (bridge.calls_iptables, bridge.calls_ip6tables) = (true, true);
        assert_eq!(wrong(&facts), []);
    }

    #[test]
    fn bridged_pods_without_br_netfilter_are_an_error() {
        let facts = NetworkFacts { sysctls: [(IP_FORWARD, 1), (IP6_FORWARD, 1)].into(), ..bridged() };
        assert_eq!(wrong(&facts), [(Check::BridgeNetfilter, Error)]);
        let no_pods = NetworkFacts { links: Ok(vec![link("cni0", 3, "bridge")]), attachments: vec![], ..facts };
        assert_eq!(wrong(&no_pods), []);
    }

    #[test]
    fn metadata_tunnel_without_hooks_is_separate_error() {
        let mut facts = bridged();
        let tunnel = Link { master: Some(3), collects_metadata: true, ..link("vxlan0", 5, "vxlan") };
        facts.links.as_mut().unwrap().push(tunnel);
        assert_eq!(wrong(&facts), []);
        let calls =
            |ipv4, ipv6| [(IP_FORWARD, 1), (IP6_FORWARD, 1), (CALL_IPTABLES, ipv4), (CALL_IP6TABLES, ipv6)].into();
        let errors = |facts: &NetworkFacts| {
            let about =
                |finding: &Finding| finding.finding.contains("collect-metadata mode (external) receive (vxlan0)");
            findings(facts).into_iter().filter(|f| f.severity == Error && about(f)).count()
        };
        for (ipv4, ipv6) in [(0, 0), (1, 0), (0, 1)] {
            facts.sysctls = calls(ipv4, ipv6);
            assert_eq!(errors(&facts), 1, "{ipv4} {ipv6}");
        }
        facts.links.as_mut().unwrap().last_mut().unwrap().collects_metadata = false;
        assert_eq!(errors(&facts), 0);
    }

    #[test]
    fn macvlan_on_pods_bridge_is_error() {
        let mut facts = bridged();
        facts.unicast_filters = Ok(vec![UnicastFilter { interface: 3, hardware: [2, 0, 0, 0, 0, 9] }]);
        assert_eq!(wrong(&facts), [(Check::BridgeMacvlan, Error)]);
        facts.attachments.clear();
        facts.links.as_mut().unwrap()[2].name = "docker0".into();
        assert_eq!(findings(&facts).iter().filter(|f| f.id == Check::BridgeMacvlan).count(), 0);
    }

    #[test]
    fn docker_bridge_is_note_unless_pod_attached() {
        let sysctls: Sysctls = [(IP_FORWARD, 1), (CALL_IPTABLES, 0)].into();
        let links = Ok(vec![link("br-0123456789ab", 3, "bridge"), pod_port("veth1", 4, Some(3))]);
        let reported = attachment(&["10.1.0.2"], Some("veth1"), None);
        let docker = NetworkFacts { sysctls, links, attachments: vec![], ..bridged() };
        assert_eq!(wrong(&docker), [(Check::BridgeNfCall, Note)]);
        assert_eq!(wrong(&NetworkFacts { attachments: vec![reported], ..docker }), [(Check::BridgeNfCall, Error)]);
        assert!(is_of_other_software("docker0") && is_of_other_software("virbr0"));
        assert!(!is_of_other_software("cni0") && !is_of_other_software("br-lan") && !is_of_other_software("cbr0"));
    }

    #[test]
    fn bridge_that_filters_vlans_is_error() {
        let mut facts = bridged();
        let bridge = facts.links.as_mut().unwrap().iter_mut().find(|link| link.kind == "bridge").unwrap();
        bridge.filters_vlans = true;
        let calls = [(IP_FORWARD, 1), (IP6_FORWARD, 1), (CALL_IPTABLES, 1), (CALL_IP6TABLES, 1)];
        let with = |filter| [calls[0], calls[1], calls[2], calls[3], (FILTER_VLAN, filter)].into();
        facts.sysctls = with(0);
        assert_eq!(wrong(&facts), [(Check::BridgeVlan, Error)]);
        facts.sysctls = with(1);
        assert_eq!(wrong(&facts), []);
    }

    #[test]
    fn unfiltered_vlan_frames_are_warning_without_bridge_rules() {
        let mut facts = bridged();
        facts.sysctls =
            [(IP_FORWARD, 1), (IP6_FORWARD, 1), (CALL_IPTABLES, 1), (CALL_IP6TABLES, 1), (FILTER_VLAN, 0)].into();
        assert_eq!(wrong(&facts), []);
        facts.attachments.clear();
        let vlan: Vec<_> = wrong(&facts).into_iter().filter(|(check, _)| *check == Check::BridgeVlan).collect();
        assert_eq!(vlan, [(Check::BridgeVlan, Warning)]);
    }

    #[test]
    fn disabled_forwarding_is_warning_on_nodes_with_pods() {
        let off = NetworkFacts { sysctls: [(RP_FILTER_ALL, 2)].into(), ..routed() };
        assert_eq!(wrong(&off), [(Check::IpForward, Warning)]);
        let no_pods = NetworkFacts { links: Ok(vec![link("lo", 1, "")]), ..off };
        assert_eq!(wrong(&no_pods), [(Check::IpForward, Note)]);
        let mut dual_stack = routed();
        dual_stack.attachments = vec![attachment(&["fd00::2"], Some("cali1"), None)];
        assert_eq!(wrong(&dual_stack), [(Check::Ip6Forward, Warning)]);
    }

    #[test]
    fn missing_rp_filter_is_note_until_interface_reported() {
        let open = NetworkFacts { sysctls: [(IP_FORWARD, 1)].into(), ..routed() };
        assert_eq!(wrong(&open), [(Check::RpFilter, Note)]);
        let reported = vec![attachment(&["10.1.0.2"], Some("cali1"), None)];
        assert_eq!(wrong(&NetworkFacts { attachments: reported, ..open.clone() }), []);
        let loose = NetworkFacts { sysctls: [(IP_FORWARD, 1), (RP_FILTER_ALL, 2)].into(), ..open };
        assert_eq!(wrong(&loose), []);
        assert_eq!(wrong(&NetworkFacts { attachments: vec![], ..bridged() }), [(Check::RpFilter, Note)]);
    }

    #[test]
    fn veth_uplink_is_not_a_pod() {
        let mut facts = routed();
        facts.sysctls = [(IP_FORWARD, 1)].into();
        facts.links.as_mut().unwrap()[1] = pod_port("eth0", 2, None);
        facts.attachments = vec![attachment(&["10.1.0.2"], Some("cali1"), None)];
        let about = |facts: &NetworkFacts| findings(facts).into_iter().find(|f| f.id == Check::RpFilter).unwrap();
        assert!(about(&facts).finding.contains("packets from eth0 are not checked"));
        assert!(about(&facts).advice.is_some_and(|advice| advice.starts_with("restart the pods")));
        facts.uplinks = ["eth0".to_owned()].into();
        assert_eq!(wrong(&facts), []);
    }

    #[test]
    fn uplinks_are_the_interfaces_of_default_routes() {
        let ipv4 = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n\
                    eth0\t00000000\t010012AC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n\
                    veth1\t0200010A\t00000000\t0005\t0\t0\t0\tFFFFFFFF\t0\t0\t0\n";
        let zeros = "0".repeat(32);
        let ipv6 = format!(
            "{zeros} 00 {zeros} 00 fd000000000000000000000000000001 00000400 00000001 00000000 00000003 wan0\n\
             {zeros} 00 {zeros} 00 {zeros} ffffffff 00000001 00000000 00200200 lo\n\
             fd000001000000000000000000000000 40 {zeros} 00 {zeros} 00000100 00000001 00000000 00000001 veth2\n"
        );
        assert_eq!(uplinks(Some(ipv4), Some(&ipv6)), ["eth0".to_owned(), "wan0".to_owned()].into());
        assert_eq!(uplinks(None, None), BTreeSet::new());
    }

    #[test]
    fn strict_reverse_path_filtering_of_uplinks_is_noted() {
        let mut facts = routed();
        facts.sysctls = [(IP_FORWARD, 1), (RP_FILTER_ALL, 1)].into();
        assert_eq!(wrong(&facts), [(Check::RpFilter, Note)]);
        assert!(findings(&facts).iter().any(|f| f.finding.contains("strict (rp_filter=1) on eth0:")));
    }

    #[test]
    fn unreadable_links_and_sysctls_are_reported() {
        let mut facts = routed();
        facts.sysctls.unreadable.push("x: permission denied".into());
        assert_eq!(wrong(&facts), [(Check::Unreadable, Warning)]);
        assert_eq!(wrong(&NetworkFacts { links: Err("no".into()), ..routed() }), [(Check::Links, Error)]);
    }

    #[test]
    fn if_inet6_yields_interfaces_with_global_address() {
        let text = "00000000000000000000000000000001 01 80 10 80       lo\n\
                    fd000001000000000000000000000001 03 40 00 80     cni0\n\
                    fe800000000000000000000000000001 02 40 20 80     eth0\n";
        assert_eq!(interfaces_with_global_address(text), ["cni0".to_owned()].into());
    }

    #[test]
    fn a_long_list_of_names_is_cut() {
        assert_eq!(list(&["a", "b"]), "a, b");
        assert_eq!(list(&["a", "b", "c", "d", "e", "f", "g"]), "a, b, c, d, e and 2 more");
    }
}
