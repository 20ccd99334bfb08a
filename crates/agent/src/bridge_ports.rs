//! Lists the ports of bridges. Another program may attach a pod's interface to a bridge after the CNI plugin has
//! reported the interface.

use std::collections::BTreeSet;
use std::io;

use crate::rtnetlink::{Link, Rtnetlink};

/// Names of the interfaces that are ports of bridges, in the network namespace of the calling thread.
pub(crate) fn bridge_ports() -> io::Result<BTreeSet<String>> {
    Ok(ports_among(&Rtnetlink::open()?.links()?))
}

fn ports_among(links: &[Link]) -> BTreeSet<String> {
    let bridges: BTreeSet<u32> = links.iter().filter(|link| link.kind == "bridge").map(|link| link.index).collect();
    let is_port = |link: &&Link| link.master.is_some_and(|master| bridges.contains(&master));
    links.iter().filter(is_port).map(|link| link.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ports_of_bridges_are_listed() {
        let link = |name: &str, index, kind: &str, master| Link {
            name: name.into(),
            index,
            kind: kind.into(),
            master,
            ..Link::default()
        };
        let links = [
            link("cni0", 2, "bridge", None),
            link("vrf0", 3, "vrf", None),
            link("veth1", 4, "veth", Some(2)),
            link("veth2", 5, "veth", Some(3)),
            link("veth3", 6, "veth", None),
        ];
        assert_eq!(ports_among(&links), BTreeSet::from(["veth1".to_owned()]));
    }
}
