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
    Protocol,
    InInterfaceName,
    OutInterfaceName,
    InInterfaceType,
    Nfproto,
    L4proto,
    PacketType,
    Priority,
}

impl MetaKey {
    pub const ALL: [MetaKey; 8] = [
        MetaKey::Protocol,
        MetaKey::Priority,
        MetaKey::InInterfaceName,
        MetaKey::OutInterfaceName,
        MetaKey::InInterfaceType,
        MetaKey::Nfproto,
        MetaKey::L4proto,
        MetaKey::PacketType,
    ];

    pub fn number(self) -> u32 {
        match self {
            MetaKey::Protocol => 1,
            MetaKey::Priority => 2,
            MetaKey::InInterfaceName => 6,
            MetaKey::OutInterfaceName => 7,
            MetaKey::InInterfaceType => 8,
            MetaKey::Nfproto => 15,
            MetaKey::L4proto => 16,
            MetaKey::PacketType => 19,
        }
    }
}

/// `enum nft_ct_keys`, restricted to the keys that the language uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CtKey {
    State,
    Direction,
    Status,
    Mark,
    ProtoSource,
    SourceIp,
    SourceIp6,
}

impl CtKey {
    pub const ALL: [CtKey; 7] = [
        CtKey::State,
        CtKey::Direction,
        CtKey::Status,
        CtKey::Mark,
        CtKey::ProtoSource,
        CtKey::SourceIp,
        CtKey::SourceIp6,
    ];

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
    Link,
    Network,
    Transport,
}

impl Base {
    pub const ALL: [Base; 3] = [Base::Link, Base::Network, Base::Transport];

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
    Equal,
    NotEqual,
    AtMost,
    AtLeast,
}

impl Compare {
    pub const ALL: [Compare; 4] = [Compare::Equal, Compare::NotEqual, Compare::AtMost, Compare::AtLeast];

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
pub enum Verdict {
    Accept,
    Drop,
    Goto(Box<str>),
    Jump(Box<str>),
    /// A verdict that the language lacks: return, continue, queue.
    Foreign(u32),
}

impl Verdict {
    /// `NFT_JUMP`.
    pub const JUMP: i32 = -3;
    /// `NFT_GOTO`.
    pub const GOTO: i32 = -4;

    /// The code as netlink encodes it. Negative codes are defined by nf_tables, the others by netfilter's hooks.
    pub fn code(&self) -> u32 {
        match self {
            Verdict::Drop => 0,
            Verdict::Accept => 1,
            Verdict::Jump(_) => Verdict::JUMP as u32,
            Verdict::Goto(_) => Verdict::GOTO as u32,
            Verdict::Foreign(code) => *code,
        }
    }
}

impl From<&nft::Verdict> for Verdict {
    fn from(verdict: &nft::Verdict) -> Verdict {
        match verdict {
            nft::Verdict::Accept => Verdict::Accept,
            nft::Verdict::Drop => Verdict::Drop,
            nft::Verdict::Goto(chain) => Verdict::Goto(chain.as_str().into()),
            nft::Verdict::Jump(chain) => Verdict::Jump(chain.as_str().into()),
        }
    }
}

/// One expression. Constants have the byte order of the register: addresses and ports network order, marks and states
/// host order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    Meta {
        key: MetaKey,
        to: Register,
    },
    /// Loads a constant.
    Immediate {
        to: Register,
        data: Vec<u8>,
    },
    MetaSet {
        key: MetaKey,
        from: Register,
    },
    Ct {
        key: CtKey,
        /// 0 original, 1 reply; `None` for keys without direction.
        direction: Option<u8>,
        to: Register,
    },
    CtSet {
        key: CtKey,
        from: Register,
    },
    Payload {
        base: Base,
        offset: u32,
        length: u32,
        to: Register,
    },
    /// Writes the register into the packet without checksum correction.
    PayloadSet {
        base: Base,
        offset: u32,
        length: u32,
        from: Register,
    },
    /// One byte of an IPv6 extension header (`nft_exthdr`).
    HeaderByte {
        kind: u8,
        offset: u32,
        to: Register,
    },
    /// Whether the packet has the IPv4 option or the IPv6 extension header (`nft_exthdr`, flag `present`).
    HeaderPresent {
        family: Family,
        kind: u8,
        to: Register,
    },
    Cmp {
        operator: Compare,
        from: Register,
        data: Vec<u8>,
    },
    /// `to = (from & mask) ^ xor`
    Bitwise {
        from: Register,
        to: Register,
        mask: Vec<u8>,
        xor: Vec<u8>,
    },
    Lookup {
        set: String,
        from: Register,
        /// The register for the data of a map.
        to: Option<Register>,
        /// Continues the rule if the set does not contain the key (`NFT_LOOKUP_F_INV`).
        inverted: bool,
    },
    Verdict(Verdict),
    /// The counted packets and bytes are not part of the value.
    Counter,
    Limit(Limit),
    /// Updates the element of a dynamic set, which has a counter and a limit (`NFT_DYNSET_OP_UPDATE`).
    Record {
        set: String,
        from: Register,
        limit: Limit,
    },
    /// Logs to a group of nfnetlink_log.
    Log {
        prefix: String,
        group: u16,
        snap_bytes: u32,
    },
}

/// `nft_limit` of packets; continues the rule below the rate, or above it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub packets: u64,
    pub per_seconds: u64,
    pub burst: u32,
    /// `NFT_LIMIT_F_INV`
    pub over: bool,
}

impl From<&nft::Limit> for Limit {
    fn from(limit: &nft::Limit) -> Limit {
        Limit { packets: limit.packets, per_seconds: limit.per.seconds(), burst: limit.burst, over: limit.over }
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
