//! Lines between a workload and addresses of no pod.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use nft::Family;

use super::FlowPorts;
use super::classes::{Class, Classes};
use super::line::Line;
use super::pairs::Pair;
use super::workloads::Workload;
use crate::{Block, Direction};

/// Empty for a workload that is not governed in the direction, which is allowed everything.
pub(super) fn lines(workload: &Workload, direction: Direction, classes: &Classes) -> Vec<Line> {
    let mut lines = Vec::new();
    if !workload.nature.governed(direction) {
        return lines;
    }
    for family in Family::BOTH {
        let own = || {
            let classes = workload.classes.iter().map(|class| &classes.slots[*class]);
            classes.filter(|class| class.key.family == family)
        };
        let named = own().filter_map(|class| class.terms(direction)).flat_map(|terms| terms.blocks.keys());
        let whole = whole(family);
        let blocks: BTreeSet<&Block> = named.filter(|block| Family::of(block.cidr.addr()) == family).collect();
        let with_all = Pair::of(own().map(|class| anyone(class, direction).union(&with(class, direction, &whole))));
        let mut add = |block: &Block, told: [(bool, FlowPorts); 2]| {
            let said = told.into_iter().filter(|(_, ports)| !ports.is_none());
            lines.extend(said.map(|(partial, ports)| line(workload, direction, block, partial, ports)));
        };
        add(&whole, with_all.beyond(&Pair::nothing()));
        for block in blocks.into_iter().filter(|block| **block != whole) {
            let pair = Pair::of(own().map(|class| with(class, direction, block)));
            add(block, pair.beyond(&with_all));
        }
    }
    lines
}

fn anyone(class: &Class, direction: Direction) -> FlowPorts {
    class.terms(direction).map_or_else(FlowPorts::everything, |terms| terms.any.clone())
}

fn with(class: &Class, direction: Direction, block: &Block) -> FlowPorts {
    let ports = class.terms(direction).and_then(|terms| terms.blocks.get(block));
    ports.cloned().unwrap_or_else(FlowPorts::none)
}

fn line(workload: &Workload, direction: Direction, block: &Block, partial: bool, ports: FlowPorts) -> Line {
    let (name, block) = (workload.name.clone(), block.clone());
    match direction {
        Direction::Egress => Line::ToBlock { source: name, block, ports, partial },
        Direction::Ingress => Line::FromBlock { block, destination: name, ports, partial },
    }
}

/// Every address of the family.
fn whole(family: Family) -> Block {
    let first = match family {
        Family::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Family::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let all = IpNet::new(first, 0);
    Block { cidr: all.expect("no length is less than 0"), except: vec![] }
}
