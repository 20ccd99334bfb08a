//! Checks whether other interfaces are on top of a bridge of pods: macvlan, macvtap or ipvlan, as Multus, LXC and virtual
//! machines create them.
//!
//! A frame of such an interface enters the bridge as if the node had sent it (`br_dev_xmit`), and a frame to it leaves in
//! the bridge's input path (`rx_handler`). Neither passes the forward hook of the bridge or of IP, so policies do not
//! apply. The interface may be in another network namespace: then the bridge only shows its unicast filter. An ipvlan
//! interface, and macvlan in mode passthru, have no filter.

use super::finding::{Check, Finding, list};
use crate::rtnetlink::{Link, UnicastFilter};

/// Kinds that exchange frames with the bridge by its own device. A VLAN interface is another network on a bridge that does
/// not filter VLANs; on one that does, it is how a node has an address in the pods' VLAN.
const KINDS: [&str; 4] = ["macvlan", "macvtap", "ipvlan", "ipvtap"];

/// Names of the interfaces on top of the bridge, or their hardware address if they are in another namespace.
fn uppers(bridge: &Link, links: &[Link], filters: &[UnicastFilter]) -> Vec<String> {
    let on_it = |link: &&Link| link.lower == Some(bridge.index);
    let visible = links.iter().filter(on_it);
    let is_known = |filter: &UnicastFilter| {
        let known = visible.clone().chain([bridge]);
        known.filter_map(|link| link.hardware).any(|hardware| hardware == filter.hardware)
    };
    let hidden = filters.iter().filter(|filter| filter.interface == bridge.index && !is_known(filter));
    let named = visible
        .clone()
        .filter(|link| KINDS.contains(&&*link.kind))
        .map(|link| format!("{} ({})", link.name, link.kind));
    let addressed = hidden.map(|filter| {
        let bytes = filter.hardware.map(|byte| format!("{byte:02x}"));
        format!("hardware address {} in another network namespace", bytes.join(":"))
    });
    named.chain(addressed).collect()
}

/// Errors for interfaces on top of these bridges.
pub(super) fn findings(
    bridges: &[&Link],
    links: &[Link],
    filters: &Result<Vec<UnicastFilter>, String>,
) -> Vec<Finding> {
    if bridges.is_empty() {
        return vec![];
    }
    // A program with many filters must not hide the interfaces, so the answer is needed.
    let (filters, problem) = match filters {
        Ok(filters) => (&filters[..], None),
        Err(error) => {
            let finding = format!("cannot determine whether macvlan interfaces are on a bridge of pods: {error}");
            (&[][..], Some(Finding::error(Check::BridgeMacvlan, finding, "run this as root, on the node")))
        }
    };
    let on_bridge = |bridge: &&&Link| {
        let uppers = uppers(bridge, links, filters);
        let finding = format!(
            "macvlan, macvtap or ipvlan interfaces are on bridge {} ({}): no policy is enforced between them and the \
             pods of the bridge",
            bridge.name,
            list(&uppers)
        );
        let advice = "use another master than the pods' bridge for these interfaces (Multus: `master` of the \
                      NetworkAttachmentDefinition), or attach them as ports (plugin `bridge`)";
        (!uppers.is_empty()).then(|| Finding::error(Check::BridgeMacvlan, finding, advice))
    };
    let found: Vec<Finding> = bridges.iter().filter_map(|bridge| on_bridge(&bridge)).chain(problem).collect();
    if found.is_empty() {
        return vec![Finding::ok(Check::BridgeMacvlan, "no macvlan interface is on a bridge of pods")];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::super::finding::FindingSeverity;
    use super::*;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 2];

    fn on_bridge(upper: Option<Link>, filters: &[UnicastFilter]) -> (FindingSeverity, String) {
        let bridge =
            Link { name: "cni0".into(), index: 3, kind: "bridge".into(), hardware: Some(OWN), ..Link::default() };
        let links: Vec<Link> = [bridge.clone()].into_iter().chain(upper).collect();
        let finding = findings(&[&bridge], &links, &Ok(filters.to_vec())).remove(0);
        (finding.severity, finding.finding)
    }

    fn upper(kind: &str) -> Link {
        Link {
            name: "up0".into(),
            index: 9,
            kind: kind.into(),
            lower: Some(3),
            hardware: Some(OTHER),
            ..Link::default()
        }
    }

    #[test]
    fn interfaces_on_bridge_are_errors_but_vlans() {
        let filter = |interface| UnicastFilter { interface, hardware: OTHER };
        assert_eq!(on_bridge(None, &[]).0, FindingSeverity::Ok);
        assert_eq!(on_bridge(None, &[filter(4)]).0, FindingSeverity::Ok, "of another interface");
        assert_eq!(on_bridge(Some(upper("vlan")), &[filter(3)]).0, FindingSeverity::Ok);
        assert_eq!(on_bridge(None, &[UnicastFilter { interface: 3, hardware: OWN }]).0, FindingSeverity::Ok);
        for kind in KINDS {
            let (severity, text) = on_bridge(Some(upper(kind)), &[filter(3)]);
            assert_eq!(severity, FindingSeverity::Error);
            assert!(text.contains(&format!("on bridge cni0 (up0 ({kind})):")), "{text}");
        }
        let (severity, text) = on_bridge(None, &[filter(3)]);
        assert_eq!(severity, FindingSeverity::Error);
        assert!(text.contains("(hardware address 02:00:00:00:00:02 in another network namespace)"), "{text}");
    }

    #[test]
    fn unreadable_filters_are_errors_on_nodes_with_bridges() {
        let (bridge, error) = (Link::default(), Err("no".to_owned()));
        assert_eq!(findings(&[], &[], &error), vec![]);
        assert_eq!(findings(&[&bridge], &[], &error)[0].severity, FindingSeverity::Error);
    }
}
