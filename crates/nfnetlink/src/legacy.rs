//! Rules of iptables-legacy, which nf_tables does not list: the kernel copies a table to user space through socket
//! options (`IPT_SO_GET_INFO` and `IPT_SO_GET_ENTRIES` of `uapi/linux/netfilter_ipv4/ip_tables.h`, and those for IPv6).

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};

use crate::decode::written_by_connmark;
use crate::hooks::MarkWriter;
use crate::sys::read_socket_option;

const GET_INFO: i32 = 64;
const GET_ENTRIES: i32 = 65;

/// `XT_TABLE_MAXNAMELEN`
const TABLE_NAME: usize = 32;
/// `struct ipt_getinfo`: the name, the hooks, five offsets each of chains and of underflows, the number of entries,
/// their size.
const INFO: usize = TABLE_NAME + 4 + 20 + 20 + 4 + 4;
/// `struct ipt_get_entries` up to the entries, which are aligned as their counters.
const ENTRIES_HEAD: usize = 40;
/// Limit of the size of a table. A rule has some 200 bytes, so the backend itself cannot handle larger tables in
/// practice.
const MOST_BYTES: usize = 256 << 20;
/// Attempts to read a table while other processes change it.
const ATTEMPTS: u32 = 10;

/// `NF_INET_*`, in numeric order.
const HOOKS: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// The program that manages a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LegacyTables {
    /// `iptables-legacy`
    Ip,
    /// `ip6tables-legacy`
    Ip6,
}

impl LegacyTables {
    /// IPv4 first.
    pub const BOTH: [LegacyTables; 2] = [LegacyTables::Ip, LegacyTables::Ip6];

    fn program(self) -> &'static str {
        match self {
            LegacyTables::Ip => "iptables-legacy",
            LegacyTables::Ip6 => "ip6tables-legacy",
        }
    }

    fn level(self) -> i32 {
        match self {
            LegacyTables::Ip => libc::SOL_IP,
            LegacyTables::Ip6 => libc::SOL_IPV6,
        }
    }

    /// Offset of `target_offset` in `struct ipt_entry` or `struct ip6t_entry`; `next_offset` follows.
    fn target_offset_at(self) -> usize {
        match self {
            LegacyTables::Ip => 88,
            LegacyTables::Ip6 => 140,
        }
    }

    /// A UDP socket, since any socket of the family works; a raw one would require CAP_NET_RAW.
    fn socket(self) -> io::Result<UdpSocket> {
        match self {
            LegacyTables::Ip => UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)),
            LegacyTables::Ip6 => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)),
        }
    }
}

/// The rules of a legacy table of the calling thread's network namespace that set the connection mark. The table must
/// exist already: otherwise the kernel would create it.
///
/// # Errors
/// If the table cannot be read (without CAP_NET_ADMIN), or its layout is unknown.
pub fn legacy_mark_writers(family: LegacyTables, table: &str) -> io::Result<Vec<MarkWriter>> {
    let socket = family.socket()?;
    let mut name = [0; TABLE_NAME];
    let room = name.get_mut(..table.len()).filter(|_| table.len() < TABLE_NAME).ok_or_else(malformed)?;
    room.copy_from_slice(table.as_bytes());
    for _ in 0..ATTEMPTS {
        let mut info = [0; INFO];
        info[..TABLE_NAME].copy_from_slice(&name);
        read_socket_option(&socket, family.level(), GET_INFO, &mut info)?;
        let size = number(&info, INFO - 4)? as usize;
        if size > MOST_BYTES {
            return Err(io::Error::other(format!("table {table} has more than {MOST_BYTES} bytes")));
        }
        let mut entries = vec![0; ENTRIES_HEAD + size];
        entries[..TABLE_NAME].copy_from_slice(&name);
        entries[TABLE_NAME..TABLE_NAME + 4].copy_from_slice(&(size as u32).to_ne_bytes());
        match read_socket_option(&socket, family.level(), GET_ENTRIES, &mut entries) {
            Ok(()) => return mark_writers(family, table, &info, &entries[ENTRIES_HEAD..]),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::other(format!("table {table} changed during each of {ATTEMPTS} attempts to read it")))
}

fn mark_writers(family: LegacyTables, table: &str, info: &[u8], entries: &[u8]) -> io::Result<Vec<MarkWriter>> {
    let hooks = number(info, TABLE_NAME)?;
    let mut base_chains = Vec::new();
    for (place, hook) in HOOKS.into_iter().enumerate().filter(|(place, _)| hooks & (1 << place) != 0) {
        base_chains.push((number(info, TABLE_NAME + 4 + 4 * place)? as usize, hook));
    }
    let (mut found, mut at, mut chain) = (Vec::new(), 0, String::new());
    while let Some(entry) = entries.get(at..).filter(|rest| !rest.is_empty()) {
        if let Some((_, hook)) = base_chains.iter().find(|(start, _)| *start == at) {
            chain = (*hook).to_owned();
        }
        let target_at = short(entry, family.target_offset_at())?;
        let next = short(entry, family.target_offset_at() + 2)?;
        // `struct xt_entry_target`: size, name, revision, data.
        let target = entry.get(target_at..next).filter(|target| target.len() >= 32).ok_or_else(malformed)?;
        match &*text(&target[2..31]) {
            // An ERROR target begins a user-defined chain, and ends the table.
            "ERROR" => chain = text(&target[32..]),
            "CONNMARK" => {
                let bits = written_by_connmark(Some(target[31].into()), &target[32..]);
                let (table, chain) = (table.to_owned(), chain.clone());
                found.extend((bits != 0).then(|| MarkWriter { family: family.program(), table, chain, bits }));
            }
            _ => {}
        }
        at += next;
    }
    Ok(found)
}

fn number(bytes: &[u8], at: usize) -> io::Result<u32> {
    let bytes = bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u32::from_ne_bytes).ok_or_else(malformed)
}

fn short(bytes: &[u8], at: usize) -> io::Result<usize> {
    let bytes = bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok());
    bytes.map(|bytes| u16::from_ne_bytes(bytes).into()).ok_or_else(malformed)
}

/// The text up to its NUL.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "unknown layout of the legacy table")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_that_is_cut_is_an_error() {
        let mut entry = vec![0; 112 + 32 + 16];
        entry[88..90].copy_from_slice(&112u16.to_ne_bytes());
        entry[90..92].copy_from_slice(&160u16.to_ne_bytes());
        entry[114..122].copy_from_slice(b"CONNMARK");
        entry[112 + 31] = 1;
        // Sets all bits.
        entry[112 + 32 + 4..112 + 32 + 8].copy_from_slice(&u32::MAX.to_ne_bytes());
        let mut info = vec![0; INFO];
        info[TABLE_NAME..TABLE_NAME + 4].copy_from_slice(&0b100u32.to_ne_bytes());
        let found = mark_writers(LegacyTables::Ip, "mangle", &info, &entry).unwrap();
        let (family, table, chain) = ("iptables-legacy", "mangle".to_owned(), "FORWARD".to_owned());
        assert_eq!(found, [MarkWriter { family, table, chain, bits: u32::MAX }]);
        for length in 1..entry.len() {
            assert!(mark_writers(LegacyTables::Ip, "mangle", &info, &entry[..length]).is_err(), "{length} bytes");
        }
    }
}
