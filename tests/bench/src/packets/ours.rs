//! Our rules: the translation of a generated cluster with adjustable sizes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use policy::{Attachment, AttachmentId, Change, ClusterState, Kind, Layout, ObjectName, Translation, lower, translate};
use serde_json::{Value, json};

use super::place::{CLIENT, CLIENT_INTERFACE, FIRST_LOCAL, NODE, SERVER, SERVER_INTERFACE};
use super::traffic::PORT;

/// The agent's default group.
const LOG_GROUP: u16 = 9470;

/// Pods of the node that share its many local addresses, as on a real node (the API server's limit is 110 by default).
const PODS_WITH_ADDRESSES: u32 = 100;

const FIRST_PEER: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
const FIRST_OTHER: Ipv4Addr = Ipv4Addr::new(10, 160, 0, 0);
/// Addresses in the local range, above the many local ones.
const FIRST_PROGRAMMED: Ipv4Addr = Ipv4Addr::new(10, 65, 0, 0);
const FIRST_BLOCK: Ipv4Addr = Ipv4Addr::new(172, 16, 0, 0);

/// Distance between the first addresses of two blocks of 32: none are adjacent.
const BLOCK_STEP: u32 = 64;
const BLOCK_PREFIX: u32 = 27;

/// Distance between two ports, and between two ranges of [`RANGE_LENGTH`]: none are adjacent.
const PORT_STEP: u32 = 2;
const RANGE_STEP: u32 = 10;
const RANGE_LENGTH: u32 = 5;

/// A cluster, by the axes along which the cost could grow. The measured flow is allowed by the policy in the middle, at
/// the port, range and block in the middle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cluster {
    /// Policies that select the receiving pod, each for another peer and port.
    pub(crate) policies: u32,
    /// Addresses of isolated pods of the node, beside the sender's.
    pub(crate) local_addresses: u32,
    /// Peers and ports that the policy in the middle allows.
    pub(crate) peer_addresses: u32,
    pub(crate) ports: u32,
    pub(crate) ranges: u32,
    pub(crate) blocks: u32,
    /// Further pods of the node, each selected by its own policy. If there are any, they receive.
    pub(crate) programs: u32,
    /// ClusterNetworkPolicies of five rules, before the policies. They pass the measured flow, by the last rule of the
    /// one in the middle.
    pub(crate) cluster_policies: u32,
    pub(crate) check_sources: bool,
}

impl Cluster {
    pub(crate) const SMALLEST: Cluster = Cluster {
        policies: 1,
        local_addresses: 10,
        peer_addresses: 100,
        ports: 1,
        ranges: 0,
        blocks: 0,
        programs: 0,
        cluster_policies: 0,
        check_sources: true,
    };

    /// The rules of the cluster for the node, as a table of that name.
    pub(crate) fn ruleset(&self, table: &str) -> nft::Ruleset {
        self.translation(table).ruleset.in_first_generation()
    }

    /// The rules of the cluster at the interfaces of the node's pods.
    pub(super) fn edge(&self, table: &str) -> Option<nft::Ruleset> {
        self.translation(table).edge
    }

    fn translation(&self, table: &str) -> Translation {
        let layout = Layout::for_table(table).expect("a name").logging_to(Some(LOG_GROUP));
        translate(&self.state(), NODE, &layout.checking_sources(self.check_sources))
    }

    fn state(&self) -> ClusterState {
        let mut state = ClusterState::new();
        let mut set = |kind: Kind, objects: Vec<Value>| {
            let objects = objects.iter().map(|object| lower(kind, object).expect("objects with names"));
            state.apply(Change::Replace(kind, objects.collect()));
        };
        set(Kind::Namespace, vec![json!({"metadata": {"name": "shop"}})]);
        set(Kind::Pod, self.pods());
        let policies = (0..self.policies).map(|number| self.policy(number));
        set(Kind::NetworkPolicy, policies.chain((0..self.programs).map(own_policy)).collect());
        let cluster_policies = (0..self.cluster_policies).map(|number| self.cluster_policy(number));
        set(Kind::ClusterNetworkPolicy, cluster_policies.collect());
        for attachment in self.attachments() {
            state.attach(attachment);
        }
        state
    }

    fn pods(&self) -> Vec<Value> {
        let mut pods = vec![pod("client", "caller", NODE, CLIENT), pod("server", "server", NODE, SERVER)];
        let local = |number: u32| pod(&local_name(number), "server", NODE, local_address(number));
        pods.extend((0..self.local_pods()).map(local));
        let peer = |number: u32| pod(&format!("peer-{number}"), "caller", "node-b", after(FIRST_PEER, number));
        pods.extend((0..self.peer_addresses - 1).map(peer));
        let other = |number: u32| {
            let role = format!("other-{number}");
            pod(&role, &role, "node-b", after(FIRST_OTHER, number))
        };
        pods.extend((0..self.policies.max(self.cluster_policies)).map(other));
        let programmed = |number: u32| {
            let role = format!("program-{number}");
            pod(&role, &role, NODE, programmed_address(number))
        };
        pods.extend((0..self.programs).map(programmed));
        pods
    }

    fn local_pods(&self) -> u32 {
        PODS_WITH_ADDRESSES.min(self.local_addresses - 1)
    }

    /// Attachments as the CNI plugin reports them: the two pods, and those of the many addresses, whose interfaces do
    /// not have to exist.
    fn attachments(&self) -> Vec<Attachment> {
        let attachment = |pod: &str, interface: &str, addresses: Vec<Ipv4Addr>| Attachment {
            id: AttachmentId { container: pod.into(), interface: "eth0".into() },
            pod: ObjectName::new("shop", pod),
            uid: None,
            addresses: addresses.into_iter().map(Into::into).collect(),
            host_interface: Some(interface.parse().expect("a short name")),
            bridged: false,
            input_interface: None,
            hardware_address: None,
            link_local: vec![],
            since: 1,
        };
        let mut attachments = vec![
            attachment("client", CLIENT_INTERFACE, vec![CLIENT]),
            attachment("server", SERVER_INTERFACE, vec![SERVER]),
        ];
        let pods = self.local_pods();
        attachments.extend((0..pods).map(|number| {
            let own = (number..self.local_addresses - 1).step_by(pods as usize).map(local_address);
            attachment(&local_name(number), &format!("veth-{number}"), own.collect())
        }));
        let programmed = |number: u32| {
            let own = vec![programmed_address(number)];
            attachment(&format!("program-{number}"), &format!("veth-p{number}"), own)
        };
        attachments.extend((0..self.programs).map(programmed));
        attachments
    }

    fn policy(&self, number: u32) -> Value {
        let (from, ports) = if number == self.policies / 2 { self.measured() } else { other_rule(number) };
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "metadata": {"namespace": "shop", "name": format!("policy-{number}")},
            "spec": {"podSelector": {"matchLabels": {"role": "server"}}, "ingress": [{"from": from, "ports": ports}]},
        })
    }

    /// Four rules about a pod and a port of its own, in which the actions alternate, and one that passes either that pod
    /// or the sender.
    fn cluster_policy(&self, number: u32) -> Value {
        let of =
            |role: &str| json!([{"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"role": role}}}}]);
        let other = of(&format!("other-{number}"));
        let port = |protocol: &str, first: u32| json!([{protocol: {"destinationPort": {"number": first + number}}}]);
        let passed = if number == self.cluster_policies / 2 { of("caller") } else { other.clone() };
        json!({
            "apiVersion": "policy.networking.k8s.io/v1alpha2",
            "metadata": {"name": format!("cluster-policy-{number}")},
            "spec": {
                "tier": "Admin",
                "priority": number,
                "subject": {"namespaces": {}},
                "ingress": [
                    {"action": "Accept", "from": other, "protocols": port("udp", 20_000)},
                    {"action": "Deny", "from": other, "protocols": port("udp", 30_000)},
                    {"action": "Pass", "from": other, "protocols": port("tcp", 20_000)},
                    {"action": "Deny", "from": other, "protocols": port("tcp", 30_000)},
                    {"action": "Pass", "from": passed},
                ],
            },
        })
    }

    /// Peers and ports of the policy that allows the measured flow.
    fn measured(&self) -> (Vec<Value>, Vec<Value>) {
        let first = |count: u32, step: u32| u32::from(PORT) - count / 2 * step;
        let exact =
            (0..self.ports).map(|i| json!({"protocol": "UDP", "port": first(self.ports, PORT_STEP) + i * PORT_STEP}));
        let ranges = (0..self.ranges).map(|i| {
            let from = first(self.ranges, RANGE_STEP) + i * RANGE_STEP;
            json!({"protocol": "UDP", "port": from, "endPort": from + RANGE_LENGTH - 1})
        });
        let ports = exact.chain(ranges).collect();
        let mut from = vec![json!({"podSelector": {"matchLabels": {"role": "caller"}}})];
        let block = |i| json!({"ipBlock": {"cidr": format!("{}/{BLOCK_PREFIX}", after(FIRST_BLOCK, i * BLOCK_STEP))}});
        from.extend((0..self.blocks).map(block));
        (from, ports)
    }

    /// Addresses of other nodes that the policy in the middle allows; from blocks if it has any.
    pub(super) fn remote_peers(&self) -> Vec<Ipv4Addr> {
        match self.blocks {
            0 => in_no_order((0..self.peer_addresses - 1).map(|i| after(FIRST_PEER, i)).collect()),
            blocks => in_no_order((0..blocks).map(|i| after(FIRST_BLOCK, i * BLOCK_STEP + i % 32)).collect()),
        }
    }

    /// The local addresses at which the server receives.
    pub(super) fn destinations(&self) -> Vec<Ipv4Addr> {
        match self.programs {
            0 => in_no_order((0..self.local_addresses - 1).map(local_address).collect()),
            programs => in_no_order((0..programs).map(programmed_address).collect()),
        }
    }
}

/// The policy of a pod with its own program. The policy in the middle allows everything that it allows.
fn own_policy(number: u32) -> Value {
    let role = format!("program-{number}");
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "metadata": {"namespace": "shop", "name": role},
        "spec": {
            "podSelector": {"matchLabels": {"role": role}},
            "ingress": [{
                "from": [{"podSelector": {"matchLabels": {"role": "caller"}}}],
                "ports": [{"protocol": "UDP", "port": PORT}],
            }],
        },
    })
}

/// Peers and ports of a policy that does not match the measured flow.
fn other_rule(number: u32) -> (Vec<Value>, Vec<Value>) {
    let from = json!({"podSelector": {"matchLabels": {"role": format!("other-{number}")}}});
    (vec![from], vec![json!({"protocol": "UDP", "port": 10_000 + number})])
}

fn pod(name: &str, role: &str, node: &str, address: Ipv4Addr) -> Value {
    json!({
        "metadata": {"namespace": "shop", "name": name, "labels": {"role": role}},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]},
    })
}

fn local_name(number: u32) -> Arc<str> {
    format!("local-{number}").into()
}

fn local_address(number: u32) -> Ipv4Addr {
    after(FIRST_LOCAL, number + 1)
}

fn programmed_address(number: u32) -> Ipv4Addr {
    after(FIRST_PROGRAMMED, number)
}

fn after(first: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from(first.to_bits() + number)
}

/// The same addresses, with neighbours far from each other, as in real traffic.
fn in_no_order(addresses: Vec<Ipv4Addr>) -> Vec<Ipv4Addr> {
    /// A prime, and so coprime with the counts here.
    const STRIDE: usize = 7919;
    let count = addresses.len();
    (0..count).map(|i| addresses[i * STRIDE % count]).collect()
}
