//! The governance of a workload, published beside its edges: whether it is governed, by which policies, and its lines
//! for addresses of no pod.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use nft::Family;

use super::{EdgeWorkload, PairPorts};
use crate::edges::classes::{Class, Classes};
use crate::edges::declared_lines::DeclaredLine;
use crate::edges::ports::FlowPorts;
use crate::edges::terms::{ClassTerms, OtherEnd, PolicyTerms};
use crate::edges::vocabulary::NodeIndex;
use crate::peers::block_ranges;
use crate::{Block, Direction, DomainPattern, ObjectName, Tier};

/// The name of a ClusterNetworkPolicy in its tier.
type TieredName = (Tier, Arc<str>);

/// The governance of a workload with pods. Lines are generated on demand, since they are many times more numerous.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::edges) struct Governance {
    pub(in crate::edges) name: ObjectName,
    /// By direction, as the fields below: some policy isolates pods of the workload, or has rules for them.
    governed: [bool; 2],
    /// The NetworkPolicies that isolate pods, sorted by name. Workloads with the same policies share them.
    by: [Arc<[ObjectName]>; 2],
    /// The ClusterNetworkPolicies with rules for pods. Workloads with the same policies share them.
    cluster_policies: [Arc<[TieredName]>; 2],
    outside: Arc<[DeclaredLine]>,
}

impl Governance {
    /// `None` for a workload without pods.
    pub(in crate::edges) fn of(workload: &EdgeWorkload, classes: &Classes, nodes: &NodeIndex) -> Option<Governance> {
        let outside: Vec<DeclaredLine> =
            Direction::BOTH.into_iter().flat_map(|d| lines_outside(workload, d, classes, nodes)).collect();
        workload.nature.exists().then(|| Governance {
            name: workload.name.clone(),
            governed: Direction::BOTH.map(|direction| workload.nature.governed(direction)),
            by: Direction::BOTH.map(|direction| governing(workload, direction, classes, |terms| &terms.by)),
            cluster_policies: Direction::BOTH
                .map(|direction| governing(workload, direction, classes, |terms| &terms.cluster_policies)),
            // All empty lists share one allocation.
            outside: if outside.is_empty() { Arc::default() } else { outside.into() },
        })
    }

    pub(in crate::edges) fn lines(&self) -> impl Iterator<Item = DeclaredLine> + '_ {
        let of_direction = move |direction: Direction| {
            let at = direction as usize;
            let line = move |policy: &ObjectName| DeclaredLine::Governs {
                policy: policy.clone(),
                direction,
                workload: self.name.clone(),
            };
            let governed = self.governed[at].then(|| governed(direction, &self.name));
            let of_cluster = move |(tier, policy): &(Tier, Arc<str>)| DeclaredLine::ClusterGoverns {
                tier: *tier,
                policy: policy.clone(),
                direction,
                workload: self.name.clone(),
            };
            let cluster_policies = self.cluster_policies[at].iter().map(of_cluster);
            governed.into_iter().chain(self.by[at].iter().map(line)).chain(cluster_policies)
        };
        Direction::BOTH.into_iter().flat_map(of_direction).chain(self.outside.iter().cloned())
    }
}

/// The policies of some pod of the workload, without duplicates; `of` returns those of its terms.
fn governing<T: Clone + Ord>(
    workload: &EdgeWorkload,
    direction: Direction,
    classes: &Classes,
    of: impl Fn(&ClassTerms) -> &Arc<[T]>,
) -> Arc<[T]> {
    let mut terms = workload.classes.iter().filter_map(|class| classes.slots[*class].terms(direction));
    let Some(first) = terms.next() else { return Arc::default() };
    let others: Vec<_> = terms.filter(|terms| of(terms) != of(first)).collect();
    if others.is_empty() {
        return of(first).clone();
    }
    let all: BTreeSet<&T> = others.into_iter().chain([first]).flat_map(|terms| of(terms).iter()).collect();
    all.into_iter().cloned().collect()
}

fn governed(direction: Direction, workload: &ObjectName) -> DeclaredLine {
    match direction {
        Direction::Egress => DeclaredLine::EgressGoverned(workload.clone()),
        Direction::Ingress => DeclaredLine::IngressGoverned(workload.clone()),
    }
}

/// The lines between the workload and addresses of no pod. Empty for a workload that is not governed in the direction,
/// which is allowed everything.
fn lines_outside(
    workload: &EdgeWorkload,
    direction: Direction,
    classes: &Classes,
    nodes: &NodeIndex,
) -> Vec<DeclaredLine> {
    let mut lines = Vec::new();
    if !workload.nature.governed(direction) {
        return lines;
    }
    for family in Family::BOTH {
        let own: Vec<&Class> = {
            let classes = workload.classes.iter().map(|class| &classes.slots[*class]);
            classes.filter(|class| class.key.family == family).collect()
        };
        let names_addresses = |class: &&Class| class.terms(direction).is_some_and(|terms| terms.names_addresses());
        let blocks = match own.iter().any(names_addresses) {
            true => disjoint_blocks(&own, direction, family, nodes),
            false => overlapping_blocks(&own, direction, family),
        };
        for (block, by_partiality) in blocks {
            let said = by_partiality.into_iter().filter(|(_, ports)| !ports.is_none());
            lines.extend(said.map(|(partial, ports)| line_of_block(workload, direction, &block, partial, ports)));
        }
    }
    if direction == Direction::Egress {
        lines.extend(lines_of_names(workload, classes, nodes));
    }
    lines
}

fn lines_of_names(workload: &EdgeWorkload, classes: &Classes, nodes: &NodeIndex) -> Vec<DeclaredLine> {
    let of_class = |class: &u32| {
        let class = &classes.slots[*class];
        let all_outside = OtherEnd::Outside { addresses: &whole(class.key.family), nodes };
        class.terms(Direction::Egress).map(|terms| terms.allowed_to_names(all_outside))
    };
    let allowed: Vec<BTreeMap<DomainPattern, FlowPorts>> =
        workload.classes.iter().map(|class| of_class(class).unwrap_or_default()).collect();
    let names: BTreeSet<&DomainPattern> = allowed.iter().flat_map(BTreeMap::keys).collect();
    let lines_of = |name: &DomainPattern| {
        let ports = PairPorts::of(allowed.iter().map(|of| of.get(name).cloned().unwrap_or_else(FlowPorts::none)));
        let said = ports.beyond(&PairPorts::nothing()).into_iter().filter(|(_, ports)| !ports.is_none());
        let line = |(partial, ports)| DeclaredLine::ToName {
            source: workload.name.clone(),
            name: name.clone(),
            ports,
            partial,
        };
        said.map(line).collect::<Vec<DeclaredLine>>()
    };
    names.into_iter().flat_map(lines_of).collect()
}

/// Blocks with the ports of their lines, and whether each is partial.
type Blocks = Vec<(Block, [(bool, FlowPorts); 2])>;

/// The blocks of NetworkPolicies, which only allow. Rules of cluster policies decide about no address of these
/// classes, so without a NetworkPolicy everything is allowed.
fn overlapping_blocks(own: &[&Class], direction: Direction, family: Family) -> Blocks {
    let policies = |class: &&Class| class.terms(direction).and_then(|terms| terms.policies.clone());
    let policies: Vec<Option<PolicyTerms>> = own.iter().map(policies).collect();
    let with = |terms: &Option<PolicyTerms>, block: &Block| {
        let ports = terms.as_ref().and_then(|terms| terms.blocks.get(block));
        ports.cloned().unwrap_or_else(FlowPorts::none)
    };
    let anyone =
        |terms: &Option<PolicyTerms>| terms.as_ref().map_or_else(FlowPorts::everything, |terms| terms.any.clone());
    let whole = Block { cidr: whole(family), except: vec![] };
    let named = policies.iter().flatten().flat_map(|terms| terms.blocks.keys());
    let named: BTreeSet<&Block> = named.filter(|block| Family::of(block.cidr.addr()) == family).collect();
    let with_all = PairPorts::of(policies.iter().map(|terms| anyone(terms).union(&with(terms, &whole))));
    let mut blocks = vec![(whole.clone(), with_all.beyond(&PairPorts::nothing()))];
    for block in named.into_iter().filter(|block| **block != whole) {
        let pair = PairPorts::of(policies.iter().map(|terms| with(terms, block)));
        blocks.push((block.clone(), pair.beyond(&with_all)));
    }
    blocks
}

/// Addresses between the networks that policies name, with the ports that are the same for all of them.
struct Region {
    network: IpNet,
    /// Networks inside, without those inside of these.
    inner: Vec<Region>,
    allowed: PairPorts,
}

/// A partition of all addresses. Rules of cluster policies may deny a part of what others allow, so blocks that overlap
/// would declare flows that are denied.
fn disjoint_blocks(own: &[&Class], direction: Direction, family: Family, nodes: &NodeIndex) -> Blocks {
    let mut networks: BTreeSet<IpNet> = [whole(family)].into();
    for terms in own.iter().filter_map(|class| class.terms(direction)) {
        let of_policies = terms.policies.iter().flat_map(|terms| terms.blocks.keys());
        networks.extend(of_policies.flat_map(|block| block.except.iter().chain([&block.cidr])));
        networks.extend(terms.rules().flat_map(|rule| rule.networks()));
        let selectors = terms.rules().flat_map(|rule| rule.nodes());
        networks.extend(selectors.flat_map(|selector| nodes.addresses(selector)).map(IpNet::from));
    }
    let of_family = networks.into_iter().map(|network| network.trunc()).filter(|n| Family::of(n.addr()) == family);
    // The wider of two networks with the same first address sorts first.
    let sorted: BTreeSet<IpNet> = of_family.collect();
    let allowed = |network: &IpNet| {
        let of_class = |class: &&Class| match class.terms(direction) {
            Some(terms) => terms.allow(OtherEnd::Outside { addresses: network, nodes }),
            None => FlowPorts::everything(),
        };
        PairPorts::of(own.iter().map(of_class))
    };
    let mut open: Vec<Region> = Vec::new();
    for network in sorted {
        while open.len() > 1 && open.last().is_some_and(|region| !region.network.contains(&network)) {
            close(&mut open);
        }
        open.push(Region { network, inner: vec![], allowed: allowed(&network) });
    }
    while open.len() > 1 {
        close(&mut open);
    }
    let mut blocks = Blocks::new();
    open.into_iter().for_each(|region| region.write(&mut blocks));
    blocks
}

/// Adds the last region to the one around it. A region in which the same is allowed is no exception there.
fn close(open: &mut Vec<Region>) {
    let Some(region) = open.pop() else { return };
    if let Some(around) = open.last_mut() {
        match region.allowed == around.allowed {
            true => around.inner.extend(region.inner),
            false => around.inner.push(region),
        }
    }
}

impl Region {
    fn write(self, blocks: &mut Blocks) {
        let Region { network, inner, allowed } = self;
        let block = Block { cidr: network, except: inner.iter().map(|region| region.network).collect() };
        let is_empty = block_ranges(&[block.clone()].into(), Family::of(network.addr())).is_empty();
        if !is_empty && !allowed.is_nothing() {
            blocks.push((block, allowed.beyond(&PairPorts::nothing())));
        }
        inner.into_iter().for_each(|region| region.write(blocks));
    }
}

fn line_of_block(
    workload: &EdgeWorkload,
    direction: Direction,
    block: &Block,
    partial: bool,
    ports: FlowPorts,
) -> DeclaredLine {
    let (name, block) = (workload.name.clone(), block.clone());
    match direction {
        Direction::Egress => DeclaredLine::ToBlock { source: name, block, ports, partial },
        Direction::Ingress => DeclaredLine::FromBlock { block, destination: name, ports, partial },
    }
}

/// Every address of the family.
fn whole(family: Family) -> IpNet {
    let first = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    IpNet::new(first, 0).expect("no length is less than 0")
}
