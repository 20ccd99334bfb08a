//! Decodes a DNS answer: the name in its question, and the addresses at the end of the name's chain of aliases.
//!
//! The bytes may be from an attacker. An answer is used as a whole or not at all, and only records of
//! the name and of its aliases count, so that additional records of a resolver allow nothing.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use simple_dns::rdata::RData;
use simple_dns::{CLASS, Name, Packet, PacketFlag, RCODE};

/// Length of the header in bytes (RFC 1035, section 4.1.1).
const HEADER_BYTES: usize = 12;

/// Limit of the records of a message in all sections: more than fit into a datagram of 4 KiB. The parser reserves memory
/// by the counts in the header, which have 16 bits each.
const MOST_RECORDS: u32 = 512;

/// Limit of aliases followed in one answer, the same as in common resolvers.
const MOST_ALIASES: usize = 16;

/// The addresses of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DnsAnswer {
    /// In lower case, without a final dot.
    pub name: Arc<str>,
    /// Each address with its time to live in seconds: the shortest one in the chain of aliases.
    pub addresses: Vec<(IpAddr, u32)>,
}

/// The addresses of the name in the question; `None` if the message is not an answer, has no addresses, or cannot be decoded.
pub fn answer(message: &[u8]) -> Option<DnsAnswer> {
    let counts = message.get(4..HEADER_BYTES)?.chunks_exact(2);
    let records: u32 = counts.map(|count| u32::from(count[0]) << 8 | u32::from(count[1])).sum();
    if records > MOST_RECORDS {
        return None;
    }
    let packet = Packet::parse(message).ok()?;
    if !packet.has_flags(PacketFlag::RESPONSE) || packet.rcode() != RCODE::NoError {
        return None;
    }
    let [question] = &packet.questions[..] else { return None };
    let name = text(&question.qname)?;
    let mut aliases: BTreeMap<String, (String, u32)> = BTreeMap::new();
    let mut addresses: BTreeMap<String, Vec<(IpAddr, u32)>> = BTreeMap::new();
    for record in packet.answers.iter().filter(|record| record.class == CLASS::IN) {
        let Some(owner) = text(&record.name) else { continue };
        let address = match &record.rdata {
            RData::A(a) => IpAddr::from(Ipv4Addr::from(a.address)),
            RData::AAAA(aaaa) => IpAddr::from(Ipv6Addr::from(aaaa.address)),
            RData::CNAME(alias) => {
                if let Some(target) = text(&alias.0) {
                    aliases.insert(owner, (target, seconds(record.ttl)));
                }
                continue;
            }
            _ => continue,
        };
        addresses.entry(owner).or_default().push((address, seconds(record.ttl)));
    }
    let (mut end, mut shortest) = (&name, u32::MAX);
    for _ in 0..MOST_ALIASES {
        let Some((target, ttl)) = aliases.get(end) else { break };
        (end, shortest) = (target, shortest.min(*ttl));
    }
    let found = addresses.get(end)?.iter().map(|(address, ttl)| (*address, shortest.min(*ttl))).collect();
    Some(DnsAnswer { name: name.as_str().into(), addresses: found })
}

/// The name in lower case; `None` if a label has a byte that a name in a policy cannot have. Labels of DNS names may
/// have any byte, even a dot.
fn text(name: &Name<'_>) -> Option<String> {
    let is_plain = |label: &[u8]| label.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte));
    let mut labels = Vec::new();
    for label in name.as_bytes() {
        if label.is_empty() || !is_plain(label) {
            return None;
        }
        labels.push(String::from_utf8_lossy(label).to_ascii_lowercase());
    }
    Some(labels.join("."))
}

/// RFC 2181, section 8: a time to live has 31 bits, and one with the highest bit set counts as zero.
fn seconds(ttl: u32) -> u32 {
    if ttl > i32::MAX as u32 { 0 } else { ttl }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use simple_dns::rdata::{A, AAAA, CNAME};
    use simple_dns::{Question, ResourceRecord, TYPE};

    use super::*;

    fn record(name: &'static str, ttl: u32, rdata: RData<'static>) -> ResourceRecord<'static> {
        ResourceRecord::new(Name::new_unchecked(name), CLASS::IN, ttl, rdata)
    }

    fn a(name: &'static str, ttl: u32, address: [u8; 4]) -> ResourceRecord<'static> {
        record(name, ttl, RData::A(A { address: u32::from_be_bytes(address) }))
    }

    fn alias(name: &'static str, ttl: u32, target: &'static str) -> ResourceRecord<'static> {
        record(name, ttl, RData::CNAME(CNAME(Name::new_unchecked(target))))
    }

    fn message(question: &'static str, answers: Vec<ResourceRecord<'static>>) -> Vec<u8> {
        let mut packet = Packet::new_reply(7);
        packet.questions.push(Question::new(Name::new_unchecked(question), TYPE::A.into(), CLASS::IN.into(), false));
        packet.answers = answers;
        packet.build_bytes_vec_compressed().unwrap()
    }

    fn learned(question: &'static str, answers: Vec<ResourceRecord<'static>>) -> Vec<(String, u32)> {
        let answer = answer(&message(question, answers));
        answer.map_or(vec![], |answer| answer.addresses.iter().map(|(a, ttl)| (a.to_string(), *ttl)).collect())
    }

    #[test]
    fn answer_has_addresses_at_end_of_alias_chain() {
        let answers = vec![
            alias("WWW.Example.org", 60, "edge.example.net"),
            a("edge.example.net", 300, [192, 0, 2, 1]),
            a("EDGE.example.NET", 20, [192, 0, 2, 2]),
            record("edge.example.net", 90, RData::AAAA(AAAA { address: 1 << 125 })),
            a("other.example.net", 300, [192, 0, 2, 3]),
        ];
        let expected = [("192.0.2.1", 60), ("192.0.2.2", 20), ("2000::", 60)].map(|(a, ttl)| (a.to_owned(), ttl));
        assert_eq!(learned("www.example.ORG", answers), expected);
        let found = answer(&message("A.B", vec![a("a.b", 1, [192, 0, 2, 1])])).unwrap();
        assert_eq!(&*found.name, "a.b");
    }

    #[test]
    fn records_of_other_names_are_ignored() {
        assert_eq!(learned("asked.example", vec![a("www.example.org", 300, [192, 0, 2, 1])]), []);
        assert_eq!(
            learned("a.b", vec![alias("a.b", 5, "b.c"), alias("b.c", 5, "a.b"), a("c.d", 5, [192, 0, 2, 1])]),
            []
        );
        // A label with a dot in it is not two labels.
        let mut spoofed = message("wwwxexample.org", vec![a("wwwxexample.org", 60, [192, 0, 2, 1])]);
        let dot = spoofed.iter().position(|byte| *byte == b'x').unwrap();
        spoofed[dot] = b'.';
        assert_eq!(answer(&spoofed), None);
    }

    #[test]
    fn queries_failures_and_multiple_questions_are_ignored() {
        let whole = message("a.b", vec![a("a.b", 5, [192, 0, 2, 1])]);
        assert!(answer(&whole).is_some());
        for (place, value) in [(2, 0), (3, 3), (5, 2), (6, 0xff), (10, 0xff)] {
            let mut changed = whole.clone();
            changed[place] = value;
            assert_eq!(answer(&changed), None, "byte {place}");
        }
        assert!((0..whole.len()).all(|length| answer(&whole[..length]).is_none()));
    }

    #[test]
    fn ttl_of_more_than_31_bits_is_zero() {
        let ttl = |ttl| learned("a.b", vec![a("a.b", ttl, [192, 0, 2, 1])])[0].1;
        assert_eq!([0, i32::MAX as u32, 1 << 31, u32::MAX].map(ttl), [0, i32::MAX as u32, 0, 0]);
    }

    proptest! {
        #[test]
        fn decoder_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600), edits in prop::collection::vec((any::<usize>(), any::<u8>()), 0..8)) {
            drop(answer(&bytes));
            let mut whole = message("www.a.b", vec![alias("www.a.b", 5, "a.b"), a("a.b", 5, [192, 0, 2, 1])]);
            for (place, value) in edits {
                let length = whole.len();
                whole[place % length] = value;
            }
            drop(answer(&whole));
        }
    }
}
