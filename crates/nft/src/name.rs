//! Identifiers that the grammar of `nft` accepts without quotes.

use std::fmt;
use std::sync::Arc;

/// Longest name that is valid for chains, sets and tables alike: `NFT_NAME_MAXLEN` is 256 including the trailing NUL,
/// and nft 1.0.6 limits chain names to 128.
const LONGEST: usize = 127;

/// Single words that the scanner of nft 1.0.6 reserves. A name that contains one of `/ . - _` is never a keyword,
/// because the scanner prefers the longest match; so only plain words have to be refused.
const RESERVED: &[&str] = &[
    "accept",
    "add",
    "ah",
    "all",
    "and",
    "arp",
    "bridge",
    "bypass",
    "bytes",
    "cgroup",
    "chain",
    "chains",
    "comment",
    "comp",
    "constant",
    "continue",
    "count",
    "counter",
    "counters",
    "cpu",
    "create",
    "ct",
    "day",
    "dccp",
    "define",
    "delete",
    "describe",
    "destroy",
    "device",
    "devices",
    "dnat",
    "drop",
    "dst",
    "dup",
    "dynamic",
    "ecn",
    "element",
    "eq",
    "esp",
    "ether",
    "exists",
    "export",
    "fanout",
    "fib",
    "flags",
    "flow",
    "flowtable",
    "flowtables",
    "flush",
    "frag",
    "from",
    "fwd",
    "ge",
    "geneve",
    "goto",
    "gre",
    "gt",
    "handle",
    "hash",
    "hbh",
    "helper",
    "helpers",
    "hook",
    "hour",
    "icmp",
    "icmpv6",
    "id",
    "igmp",
    "iif",
    "iifname",
    "import",
    "in",
    "include",
    "index",
    "inet",
    "insert",
    "interval",
    "ip",
    "ip6",
    "ipsec",
    "jhash",
    "jump",
    "l4proto",
    "label",
    "le",
    "length",
    "level",
    "limit",
    "limits",
    "list",
    "log",
    "lshift",
    "lt",
    "map",
    "maps",
    "mark",
    "masquerade",
    "memory",
    "meta",
    "meter",
    "meters",
    "mh",
    "missing",
    "mod",
    "monitor",
    "name",
    "ne",
    "netdev",
    "nfproto",
    "not",
    "notrack",
    "numgen",
    "oif",
    "oifname",
    "on",
    "or",
    "osf",
    "packets",
    "performance",
    "persistent",
    "pkttype",
    "policy",
    "position",
    "priority",
    "protocol",
    "queue",
    "quota",
    "random",
    "redefine",
    "redirect",
    "reject",
    "rename",
    "replace",
    "reset",
    "return",
    "router",
    "rshift",
    "rt",
    "rule",
    "rules",
    "ruleset",
    "sctp",
    "secmark",
    "secmarks",
    "set",
    "sets",
    "size",
    "snaplen",
    "snat",
    "socket",
    "src",
    "state",
    "symhash",
    "synproxy",
    "synproxys",
    "table",
    "tables",
    "tcp",
    "th",
    "time",
    "timeout",
    "to",
    "tproxy",
    "type",
    "typeof",
    "udp",
    "udplite",
    "undefine",
    "update",
    "using",
    "vlan",
    "vmap",
    "vxlan",
    "xml",
    "xor",
    "xt",
    "zone",
];

/// The name of a table, chain, set or map. Cheap to clone.
///
/// A letter, then letters, digits and `/ . - _`; at most 127 bytes; not a keyword of nft's grammar.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// Why a text is not a valid [`Name`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Not even one byte.
    #[error("invalid name: it is empty")]
    Empty,
    /// nft 1.0.6 refuses the name of a chain of 128 bytes or more.
    #[error("invalid name '{0}': longer than {LONGEST} bytes")]
    TooLong(String),
    /// The scanner would split the name into several tokens, or read it as a number.
    #[error("invalid name '{0}': expected a letter, followed by letters, digits and / . - _")]
    Characters(String),
    /// The scanner would return the token of the keyword.
    #[error("invalid name '{0}': it is a keyword of nft")]
    Reserved(String),
}

impl Name {
    /// Accepts exactly the texts that satisfy the rules above.
    pub fn new(text: &str) -> Result<Name, NameError> {
        let mut bytes = text.bytes();
        let Some(first) = bytes.next() else { return Err(NameError::Empty) };
        if text.len() > LONGEST {
            return Err(NameError::TooLong(text.into()));
        }
        let ordinary = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'/' | b'.' | b'-' | b'_');
        if !first.is_ascii_alphabetic() || !bytes.all(ordinary) {
            return Err(NameError::Characters(text.into()));
        }
        if RESERVED.binary_search(&text).is_ok() {
            return Err(NameError::Reserved(text.into()));
        }
        Ok(Name(text.into()))
    }

    /// The name as nft prints it, without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::str::FromStr for Name {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Name, NameError> {
        Name::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_words_are_sorted() {
        assert!(RESERVED.is_sorted());
    }

    #[test]
    fn reserved_words_are_refused_as_names() {
        assert_eq!(Name::new("policy"), Err(NameError::Reserved("policy".into())));
        assert!(Name::new("policy/x").is_ok());
    }

    #[test]
    fn name_requires_leading_letter_and_allowed_characters() {
        for bad in ["", "1a", "/a", "a b", "a\"b", "é", &"a".repeat(128)] {
            assert!(Name::new(bad).is_err(), "{bad:?} was taken");
        }
        assert!(Name::new("ingress/shop/allow-web_v1.2").is_ok());
    }
}
