//! How many bytes of a packet have to be private ([`nft::Match::PrivateBytes`]) so that nothing changes between the check
//! and the delivery which anybody judges.
//!
//! A pod that may configure its network (`CAP_NET_ADMIN`) can send packets whose headers are in pages that it maps: what
//! it splices into a tunnel of its own comes out there, and a tc filter redirects it. Most paths of the kernel copy a header
//! before they look at it, but one at a time and late.
//!
//! More than the headers is not asked for. TCP shares its payload with the copy that it keeps to send it again, and what is
//! shared so has to be copied first (`skb_clone_writable`).

use nft::Family;

/// For IPv4 without options, first what packets other than the shortest have: the ports of any protocol (8 bytes), and the
/// flags of TCP (RFC 9293, section 3.1: the fourteenth byte), also in a second fragment that begins behind 8 bytes.
pub(super) const OF_TRANSPORT_V4: [u16; 2] = [20 + 14, 20 + 8];
/// The same for IPv6.
pub(super) const OF_TCP_V6: u16 = 40 + 14;
pub(super) const OF_UDP_V6: u16 = 40 + 8;
/// RFC 826, for IPv4 on Ethernet.
pub(super) const ARP_PACKET: u16 = 28;

/// An error with the header of the packet that it quotes and 8 bytes of that (RFC 792), without which conntrack finds no
/// ports; the same without these, which is enough for protocols without ports; the header itself.
const OF_OTHERS_V4: [u16; 3] = [20 + 8 + 20 + 8, 20 + 8 + 20, 20];
/// The same; the target of a neighbour, which is behind the type of what follows an extension header of 8 bytes.
const OF_OTHERS_V6: [u16; 5] = [40 + 8 + 40 + 8, 40 + 8 + 40, 40 + 8 + 16, OF_UDP_V6, 40];

/// For what is not plain TCP or UDP, the longest first. A packet has room for some of them; nobody reads what is behind the
/// longest of these.
pub(super) fn of_others() -> impl Iterator<Item = (Family, u16)> {
    let v4 = OF_OTHERS_V4.map(|bytes| (Family::V4, bytes));
    v4.into_iter().chain(OF_OTHERS_V6.map(|bytes| (Family::V6, bytes)))
}

#[cfg(test)]
mod tests {
    use nft::{InterfaceName, Match, Rule, Ruleset};

    use crate::{Attachment, AttachmentId, ClusterState, EdgeHook, Layout, ObjectName, translate};

    /// The tables that check a pod on a bridge.
    fn tables(hook: EdgeHook) -> Vec<Ruleset> {
        let mut state = ClusterState::new();
        state.attach(Attachment {
            id: AttachmentId { container: "c".into(), interface: "eth0".into() },
            pod: ObjectName::new("shop", "web"),
            uid: None,
            addresses: ["10.0.0.1", "fd00::1"].map(|address| address.parse().unwrap()).into(),
            host_interface: Some(InterfaceName::new("veth0").unwrap()),
            bridged: true,
            input_interface: None,
            hardware_address: None,
            link_local: vec!["fe80::1".parse().unwrap()],
            since: 1,
        });
        let translation = translate(&state, "node-a", &Layout::for_table("ringfence").unwrap().with_edge_hook(hook));
        let tables = match hook {
            EdgeHook::Ingress => vec![translation.edge],
            EdgeHook::Prerouting => vec![Some(translation.ruleset), translation.bridge],
        };
        tables.into_iter().map(|table| table.expect("a table")).collect()
    }

    fn rules<'a>(table: &'a Ruleset, prefix: &str) -> Vec<&'a Rule> {
        let chains = table.chains.iter().filter(|(name, _)| name.as_str().starts_with(prefix));
        chains.flat_map(|(_, chain)| &chain.rules).collect()
    }

    fn is_private(condition: &Match) -> bool {
        matches!(condition, Match::PrivateBytes(_))
    }

    #[test]
    fn sources_are_read_after_they_are_private() {
        for table in [EdgeHook::Ingress, EdgeHook::Prerouting].into_iter().flat_map(tables) {
            let rules = rules(&table, "pod/");
            let ladder = rules.iter().rposition(|rule| rule.actions.is_empty()).expect("rules without a verdict");
            for rule in &rules[..ladder] {
                let reads = rule.matches.iter().position(|condition| matches!(condition, Match::SourceIs(_)));
                let before = &rule.matches[..reads.unwrap_or(0)];
                assert!(reads.is_none() || before.iter().any(is_private), "{rule}");
            }
            assert!(rules[ladder..].iter().any(|rule| matches!(rule.matches[..], [Match::SourceIs(_), ..])));
        }
    }

    /// What nftables looks up before the first rule of a base chain is from before the copy.
    #[test]
    fn rules_avoid_values_parsed_before_copy() {
        for table in [EdgeHook::Ingress, EdgeHook::Prerouting].into_iter().flat_map(tables) {
            for rule in ["pod/", "icmp/", "neighbours/"].into_iter().flat_map(|prefix| rules(&table, prefix)) {
                let text = rule.to_string();
                let found_before = ["meta l4proto", "icmp type", "icmpv6 type", "igmp type", "@th", "th dport"];
                assert!(found_before.iter().all(|words| !text.contains(words)), "{text}");
            }
        }
    }
}
