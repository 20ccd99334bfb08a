//! How many bytes of a packet must be private ([`nft::Match::PrivateBytes`]) so that no judged byte changes between the
//! check and the delivery.
//!
//! A pod that may configure its network (`CAP_NET_ADMIN`) can send packets whose headers are in pages that it maps: it
//! splices them into its own tunnel, and a tc filter redirects the result. Most kernel paths copy a header before they
//! read it, but one at a time and late.
//!
//! Only the headers are copied. TCP shares its payload with the copy that it keeps for retransmission, and shared data
//! must be copied first (`skb_clone_writable`).

use nft::Family;

/// For IPv4 without options, the parts that only longer packets have first: the ports of any protocol (8 bytes), and
/// the flags of TCP (RFC 9293, section 3.1: the fourteenth byte), also in a second fragment at offset 8.
pub(super) const OF_TRANSPORT_V4: [u16; 2] = [20 + 14, 20 + 8];
/// The same for IPv6.
pub(super) const OF_TCP_V6: u16 = 40 + 14;
pub(super) const OF_UDP_V6: u16 = 40 + 8;
/// RFC 826, for IPv4 on Ethernet.
pub(super) const ARP_PACKET: u16 = 28;

/// An ICMP error with the quoted packet's header and 8 bytes of payload (RFC 792), without which conntrack finds no
/// ports; without these bytes, which suffices for protocols without ports; the header alone.
const OF_OTHERS_V4: [u16; 3] = [20 + 8 + 20 + 8, 20 + 8 + 20, 20];
/// The same for IPv6; a neighbour message with an option of 8 bytes, and its target; a router solicitation with such an
/// option.
const OF_OTHERS_V6: [u16; 7] = [40 + 8 + 40 + 8, 40 + 8 + 40, 40 + 8 + 16 + 8, 40 + 8 + 16, 40 + 8 + 8, OF_UDP_V6, 40];

/// For packets other than plain TCP and UDP, the longest first. A packet contains some of these lengths; bytes after
/// the longest are never read.
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
            EdgeHook::Prerouting => vec![Some(translation.ruleset.in_first_generation()), translation.bridge],
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

    /// Values that nftables parses before the first rule of a base chain were read before the copy.
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
