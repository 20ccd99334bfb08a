//! The kernel's bytecode as plain values: only the expressions that rules of the language compile to.
//!
//! Numbers are those of the kernel's `uapi/linux/netfilter/nf_tables.h`.

use nft::Family;

/// A register number as netlink encodes it.
///
/// The register file has 64 bytes. An offset that is a multiple of 16 bytes has the number of the 128-bit register that
/// starts there (1 to 4), any other multiple of 4 the number of the 32-bit register (8 to 23). The kernel reports them
/// the same way (`nft_dump_register`), so equal offsets have equal numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(pub u32);

impl Register {
    /// The verdict register.
    pub const VERDICT: Register = Register(0);
    /// The first register of the file.
    pub const FIRST: Register = Register(1);

    /// The register that starts `word` 32-bit words into the file.
    pub fn at_word(word: u32) -> Register {
        if word.is_multiple_of(4) { Register(1 + word / 4) } else { Register(8 + word) }
    }
}

/// `enum nft_meta_keys`, restricted to the keys that the language uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetaKey {
    /// `meta protocol`: the EtherType after VLAN tags, 2 bytes in network order.
    Protocol,
    /// `iifname`, 16 bytes padded with NULs.
    InInterfaceName,
    /// `oifname`, 16 bytes padded with NULs.
    OutInterfaceName,
    /// `iiftype` (`ARPHRD_*`), 2 bytes in host order.
    InInterfaceType,
    /// `meta rtclassid`: the realm of the packet's route, 4 bytes in host order.
    RouteRealm,
    /// `meta nfproto` (`NFPROTO_*`), 1 byte.
    Nfproto,
    /// `meta l4proto`: the IP protocol number, 1 byte.
    L4proto,
    /// `meta pkttype` (`PACKET_*`), 1 byte.
    PacketType,
    /// `meta priority`: `skb->priority`, 4 bytes in host order. The only key that rules write.
    Priority,
}

impl MetaKey {
    /// Every key that the decoder accepts.
    pub const ALL: [MetaKey; 9] = [
        MetaKey::Protocol,
        MetaKey::Priority,
        MetaKey::InInterfaceName,
        MetaKey::OutInterfaceName,
        MetaKey::InInterfaceType,
        MetaKey::RouteRealm,
        MetaKey::Nfproto,
        MetaKey::L4proto,
        MetaKey::PacketType,
    ];

    /// `NFT_META_*`
    pub fn number(self) -> u32 {
        match self {
            MetaKey::Protocol => 1,
            MetaKey::Priority => 2,
            MetaKey::InInterfaceName => 6,
            MetaKey::OutInterfaceName => 7,
            MetaKey::InInterfaceType => 8,
            MetaKey::RouteRealm => 13,
            MetaKey::Nfproto => 15,
            MetaKey::L4proto => 16,
            MetaKey::PacketType => 19,
        }
    }
}

/// `enum nft_ct_keys`, restricted to the keys that the language uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtKey {
    /// `ct state`, 4 bytes in host order: one bit for each state.
    State,
    /// `ct direction` (`IP_CT_DIR_*`), 1 byte.
    Direction,
    /// `ct status` (`IPS_*`), 4 bytes in host order.
    Status,
    /// `ct mark`, 4 bytes in host order. The only key that rules write.
    Mark,
    /// `ct … proto-src`: a port, 2 bytes in network order. Needs a direction.
    ProtoSource,
    /// `ct … ip saddr`, 4 bytes. Needs a direction.
    SourceIp,
    /// `ct … ip6 saddr`, 16 bytes. Needs a direction.
    SourceIp6,
}

impl CtKey {
    /// Every key that the decoder accepts.
    pub const ALL: [CtKey; 7] = [
        CtKey::State,
        CtKey::Direction,
        CtKey::Status,
        CtKey::Mark,
        CtKey::ProtoSource,
        CtKey::SourceIp,
        CtKey::SourceIp6,
    ];

    /// `NFT_CT_*`
    pub fn number(self) -> u32 {
        match self {
            CtKey::State => 0,
            CtKey::Direction => 1,
            CtKey::Status => 2,
            CtKey::Mark => 3,
            CtKey::ProtoSource => 11,
            CtKey::SourceIp => 19,
            CtKey::SourceIp6 => 21,
        }
    }
}

/// `enum nft_payload_bases`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Base {
    /// Ethernet header: `@ll` in nft's grammar.
    Link,
    /// IP or ARP header: `@nh`.
    Network,
    /// Header after the IP header and its extension headers: `@th`.
    Transport,
}

impl Base {
    /// Every base that the decoder accepts; `inner` is not among them.
    pub const ALL: [Base; 3] = [Base::Link, Base::Network, Base::Transport];

    /// `NFT_PAYLOAD_*_HEADER`
    pub fn number(self) -> u32 {
        match self {
            Base::Link => 0,
            Base::Network => 1,
            Base::Transport => 2,
        }
    }
}

/// `enum nft_cmp_ops`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<=` of the bytes as a number in network order.
    AtMost,
    /// `>=` of the bytes as a number in network order.
    AtLeast,
}

impl Compare {
    /// Every operator that the decoder accepts.
    pub const ALL: [Compare; 4] = [Compare::Equal, Compare::NotEqual, Compare::AtMost, Compare::AtLeast];

    /// `NFT_CMP_*`
    pub fn number(self) -> u32 {
        match self {
            Compare::Equal => 0,
            Compare::NotEqual => 1,
            Compare::AtMost => 3,
            Compare::AtLeast => 5,
        }
    }
}

/// The verdict of a rule or of an element of a verdict map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VerdictCode {
    /// `NF_ACCEPT`, 1.
    Accept,
    /// `NF_DROP`, 0.
    Drop,
    /// `NFT_GOTO` to the chain of this name.
    Goto(Box<str>),
    /// `NFT_JUMP` to the chain of this name.
    Jump(Box<str>),
    /// A verdict that the language lacks: return, continue, queue.
    Foreign(u32),
}

impl VerdictCode {
    /// `NFT_JUMP`.
    pub const JUMP: i32 = -3;
    /// `NFT_GOTO`.
    pub const GOTO: i32 = -4;

    /// The code as netlink encodes it. Negative codes are defined by nf_tables, the others by netfilter's hooks.
    pub fn code(&self) -> u32 {
        match self {
            VerdictCode::Drop => 0,
            VerdictCode::Accept => 1,
            VerdictCode::Jump(_) => VerdictCode::JUMP as u32,
            VerdictCode::Goto(_) => VerdictCode::GOTO as u32,
            VerdictCode::Foreign(code) => *code,
        }
    }
}

impl From<&nft::Verdict> for VerdictCode {
    fn from(verdict: &nft::Verdict) -> VerdictCode {
        match verdict {
            nft::Verdict::Accept => VerdictCode::Accept,
            nft::Verdict::Drop => VerdictCode::Drop,
            nft::Verdict::Goto(chain) => VerdictCode::Goto(chain.as_str().into()),
            nft::Verdict::Jump(chain) => VerdictCode::Jump(chain.as_str().into()),
        }
    }
}

/// One expression. Constants have the byte order of the register: addresses and ports network order, marks and states
/// host order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// Loads a property of the packet (`nft_meta`).
    Meta {
        /// `NFTA_META_KEY`
        key: MetaKey,
        /// `NFTA_META_DREG`
        to: Register,
    },
    /// Loads a constant.
    Immediate {
        /// `NFTA_IMMEDIATE_DREG`
        to: Register,
        /// As many bytes as the register then holds.
        data: Vec<u8>,
    },
    /// Writes a property of the packet (`nft_meta`).
    MetaSet {
        /// `NFTA_META_KEY`
        key: MetaKey,
        /// `NFTA_META_SREG`
        from: Register,
    },
    /// Loads a property of the conntrack entry (`nft_ct`); ends the rule for a packet without one.
    Ct {
        /// `NFTA_CT_KEY`
        key: CtKey,
        /// 0 original, 1 reply; `None` for keys without direction.
        direction: Option<u8>,
        /// `NFTA_CT_DREG`
        to: Register,
    },
    /// Writes a property of the conntrack entry (`nft_ct`).
    CtSet {
        /// `NFTA_CT_KEY`
        key: CtKey,
        /// `NFTA_CT_SREG`
        from: Register,
    },
    /// Loads bytes of the packet (`nft_payload`); ends the rule if the packet is too short.
    Payload {
        /// Header from which the offset counts.
        base: Base,
        /// In bytes.
        offset: u32,
        /// In bytes.
        length: u32,
        /// `NFTA_PAYLOAD_DREG`
        to: Register,
    },
    /// Writes the register into the packet without checksum correction.
    PayloadSet {
        /// Header from which the offset counts.
        base: Base,
        /// In bytes.
        offset: u32,
        /// In bytes.
        length: u32,
        /// `NFTA_PAYLOAD_SREG`
        from: Register,
    },
    /// One byte of an IPv6 extension header (`nft_exthdr`).
    HeaderByte {
        /// Protocol number of the extension header (`NFTA_EXTHDR_TYPE`).
        kind: u8,
        /// In bytes from the start of the extension header.
        offset: u32,
        /// `NFTA_EXTHDR_DREG`
        to: Register,
    },
    /// Whether the packet has the IPv4 option or the IPv6 extension header (`nft_exthdr`, flag `present`).
    HeaderPresent {
        /// Decides between IPv4 options and IPv6 extension headers (`NFTA_EXTHDR_OP`).
        family: Family,
        /// Option type or protocol number (`NFTA_EXTHDR_TYPE`).
        kind: u8,
        /// Gets 1 or 0, 1 byte.
        to: Register,
    },
    /// Ends the rule unless the comparison holds (`nft_cmp`).
    Cmp {
        /// `NFTA_CMP_OP`
        operator: Compare,
        /// `NFTA_CMP_SREG`
        from: Register,
        /// Constant of the width of the register's value.
        data: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`
    Bitwise {
        /// `NFTA_BITWISE_SREG`
        from: Register,
        /// `NFTA_BITWISE_DREG`
        to: Register,
        /// As long as the value.
        mask: Vec<u8>,
        /// As long as the mask.
        xor: Vec<u8>,
    },
    /// Ends the rule unless the set contains the key (`nft_lookup`).
    Lookup {
        /// Name of a set or map of the same table.
        set: String,
        /// First register of the key; concatenated fields follow at multiples of 4 bytes.
        from: Register,
        /// The register for the data of a map.
        to: Option<Register>,
        /// Continues the rule if the set does not contain the key (`NFT_LOOKUP_F_INV`).
        inverted: bool,
    },
    /// `immediate` with a verdict, which ends the evaluation of the chain.
    Verdict(VerdictCode),
    /// The counted packets and bytes are not part of the value.
    Counter,
    /// A token bucket of the rule, shared by all its packets.
    Limit(LimitExpression),
    /// Updates the element of a dynamic set, which has a counter and a limit (`NFT_DYNSET_OP_UPDATE`).
    Record {
        /// Name of a dynamic set of the same table.
        set: String,
        /// First register of the key.
        from: Register,
        /// Token bucket of each element.
        limit: LimitExpression,
    },
    /// Logs to a group of nfnetlink_log.
    Log {
        /// `NFTA_LOG_PREFIX`, at most 127 bytes.
        prefix: String,
        /// `NFTA_LOG_GROUP`
        group: u16,
        /// Number of bytes to copy to the subscriber (`NFTA_LOG_SNAPLEN`).
        snap_bytes: u32,
    },
}

/// `nft_limit` of packets; continues the rule below the rate, or above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitExpression {
    /// `NFTA_LIMIT_RATE`: packets in each period.
    pub packets: u64,
    /// `NFTA_LIMIT_UNIT`: 1 or 60.
    pub per_seconds: u64,
    /// `NFTA_LIMIT_BURST`: size of the bucket in packets.
    pub burst: u32,
    /// `NFT_LIMIT_F_INV`
    pub over: bool,
}

impl From<&nft::Limit> for LimitExpression {
    fn from(limit: &nft::Limit) -> LimitExpression {
        LimitExpression {
            packets: limit.packets,
            per_seconds: limit.per.seconds(),
            burst: limit.burst,
            over: limit.over,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_have_the_numbers_that_the_kernel_reports() {
        let numbers: Vec<u32> = (0..6).map(|w| Register::at_word(w).0).collect();
        assert_eq!(numbers, [1, 9, 10, 11, 2, 13]);
    }
}
