//! Receives the packets that rules log to one group (`nfnetlink_log`).
//!
//! A group is bound to one socket in one network namespace, until the socket is closed. Only the requested group is
//! ever bound; foreign groups are not touched.
//!
//! Numbers are those of `uapi/linux/netfilter/nfnetlink_log.h`.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use crate::decode::{DecodeError, LogRecord, decode_logged, decode_replies};
use crate::message::{ULOG, Writer};
use crate::sys::{Buffer, Socket, SocketOption, interface_name};

/// `NFULNL_MSG_CONFIG`
const CONFIGURE: u16 = ULOG | 1;

/// `NFULA_CFG_*`
const COMMAND: u16 = 1;
const MODE: u16 = 2;
const ROOM: u16 = 3;
const THRESHOLD: u16 = 5;
const FLAGS: u16 = 6;

/// `NFULNL_CFG_CMD_BIND`
const BIND: u8 = 1;
/// `NFULNL_COPY_PACKET`
const COPY_PACKET: u8 = 2;
/// `NFULNL_CFG_F_SEQ`
const NUMBERED: u16 = 1;
/// `NFULNL_CFG_F_CONNTRACK`: messages include the packet's conntrack entry. Requires
/// `CONFIG_NETFILTER_NETLINK_GLUE_CT`, which distributions set.
const WITH_CONNECTION: u16 = 4;

/// Every packet is sent at once. The rules that log packets limit their rate.
const PACKETS_PER_MESSAGE: u32 = 1;

/// Bytes that the kernel allocates for a message before it knows its length; it allocates more if necessary
/// (`nfulnl_alloc_skb`). All of them count against the receive buffer, and the default is a page.
const MESSAGE_ROOM: u32 = 512;

/// Bytes of messages that the socket can queue. The kernel doubles this and accounts for some 830 bytes per packet of
/// which 128 are copied, so 10,000 packets fit: eight seconds of a dozen rules that log 100 packets per second each.
const WAITING: i32 = 4 << 20;

/// Bytes of one datagram: less than 64 KiB of a packet (`NFULNL_COPY_RANGE_MAX`), and some hundred bytes of other
/// attributes.
const DATAGRAM: usize = 72 << 10;

/// Lists the port id bound to each group, in the reader's network namespace (`seq_show` in `nfnetlink_log.c`).
const GROUPS: &str = "/proc/thread-self/net/netfilter/nfnetlink_log";

/// Sequence number of the socket's only request; the kernel sends packets with 0.
const SEQUENCE: u32 = 1;

/// A socket bound to one group. Intended for a dedicated thread in the network namespace in which it was opened:
/// interface indexes are resolved there.
pub struct PacketLog {
    socket: Socket,
    datagram: Buffer,
    /// The expected sequence number of the group's next message.
    expected: u32,
    /// Decoded packets not yet returned. Refilled only when empty, except with packets logged between the bind request
    /// and its reply, whose number `WAITING` limits.
    decoded: VecDeque<LogEvent>,
    shows_connections: bool,
}

/// A logged packet, or a loss of packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// In the order of the kernel's sequence numbers.
    Packet(Box<LogRecord>),
    /// Logged packets were lost because the receive buffer was full.
    Lost {
        /// Number of packets lost before the packet returned next. `None` when the overrun is reported: the number is
        /// only known, and returned, once a later packet arrives. So the sum of these numbers counts each packet once.
        messages: Option<u64>,
    },
}

/// Why packets of the group cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum PacketLogError {
    /// A group has one subscriber in each network namespace.
    #[error("NFLOG group {group} is in use{}", user(*by))]
    Taken {
        /// The requested group of nfnetlink_log.
        group: u16,
        /// The port id of the socket that has bound the group, usually its process id. `None` if the kernel does not
        /// report it.
        by: Option<u32>,
    },
    /// `EPERM` of `SO_RCVBUFFORCE`, which precedes the request to bind the group.
    #[error("receiving logged packets needs CAP_NET_ADMIN")]
    NotPermitted,
    /// The kernel does not know the subsystem, or cannot load `nfnetlink_log`.
    #[error("this kernel does not support NFLOG (CONFIG_NETFILTER_NETLINK_LOG): {0}")]
    Unavailable(io::Error),
    /// Any other error of the socket; a new one has to be opened.
    #[error("the NFLOG netlink socket failed: {0}")]
    Io(#[from] io::Error),
    /// This message is lost; later ones are not.
    #[error("cannot decode a logged packet (NFLOG): {0}")]
    Decode(#[from] DecodeError),
    /// No acknowledgement of the request to bind the group.
    #[error("the kernel did not answer the request for NFLOG group {0}")]
    Silent(u16),
}

fn user(by: Option<u32>) -> String {
    by.map_or(String::new(), |port| format!(" by the netlink socket with port id {port}"))
}

impl PacketLog {
    /// Binds the group in the calling thread's network namespace. At most `snap_bytes` of each packet are copied,
    /// starting at the network header; the rule may limit this further. 0 copies the whole packet.
    pub fn open(group: u16, snap_bytes: u32) -> Result<PacketLog, PacketLogError> {
        let socket = Socket::open().map_err(|e| match e.raw_os_error() {
            Some(libc::EPROTONOSUPPORT | libc::EAFNOSUPPORT) => PacketLogError::Unavailable(e),
            _ => PacketLogError::Io(e),
        })?;
        // Both this option and binding a group require CAP_NET_ADMIN, but for the group EPERM means that it is already
        // bound.
        socket.set(SocketOption::ReceiveBuffer(WAITING)).map_err(|e| match e.raw_os_error() {
            Some(libc::EPERM) => PacketLogError::NotPermitted,
            _ => PacketLogError::Io(e),
        })?;
        let mut log = PacketLog {
            socket,
            datagram: Buffer::of_length(DATAGRAM),
            expected: 0,
            decoded: VecDeque::new(),
            shows_connections: false,
        };
        for flags in [NUMBERED | WITH_CONNECTION, NUMBERED] {
            log.socket.send(&request(group, snap_bytes, flags))?;
            match log.answer()? {
                Some(0) => {
                    log.shows_connections = flags & WITH_CONNECTION != 0;
                    return Ok(log);
                }
                // The kernel checks flags before it binds the group (`nfulnl_recv_config`).
                Some(libc::EOPNOTSUPP) if flags & WITH_CONNECTION != 0 => {}
                Some(errno) => return Err(refusal(group, errno)),
                None => break,
            }
        }
        Err(PacketLogError::Silent(group))
    }

    /// Whether packets include the conntrack entry of their flow (`CONFIG_NETFILTER_NETLINK_GLUE_CT`).
    pub fn shows_connections(&self) -> bool {
        self.shows_connections
    }

    /// The port id of the socket, by which the kernel identifies the owner of the group.
    pub fn port(&self) -> u32 {
        self.socket.port()
    }

    /// Waits for the next packet or loss; `None` on timeout.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<LogEvent>, PacketLogError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(logged) = self.decoded.pop_front() {
                return Ok(Some(logged));
            }
            match self.socket.receive(&mut self.datagram) {
                Ok(Some(datagram)) => {
                    let packets = decode_logged(datagram)?;
                    self.enqueue(packets)?;
                    continue;
                }
                Ok(None) => {}
                // Packets queued before the overrun can still be read.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Ok(Some(LogEvent::Lost { messages: None }));
                }
                Err(e) => return Err(e.into()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.socket.wait(left)? && left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// The errno of the reply to the request, which is queued once the request was sent. Packets that were logged
    /// before the reply are kept.
    fn answer(&mut self) -> Result<Option<i32>, PacketLogError> {
        while let Some(datagram) = self.socket.receive(&mut self.datagram)? {
            let reply = decode_replies(datagram)?.into_iter().find(|reply| reply.sequence == SEQUENCE);
            if let Some(reply) = reply {
                return Ok(Some(reply.errno));
            }
            let packets = decode_logged(datagram)?;
            self.enqueue(packets)?;
        }
        Ok(None)
    }

    fn enqueue(&mut self, records: Vec<LogRecord<u32>>) -> io::Result<()> {
        for record in records {
            if let Some(sequence) = record.sequence {
                let missing = missing(&mut self.expected, sequence);
                self.decoded.extend(missing.map(|messages| LogEvent::Lost { messages: Some(messages) }));
            }
            self.decoded.push_back(LogEvent::Packet(Box::new(record.resolve(interface_name)?)));
        }
        Ok(())
    }
}

/// The number of messages missing before this sequence number, if any.
fn missing(expected: &mut u32, sequence: u32) -> Option<u64> {
    let missing = sequence.wrapping_sub(*expected);
    *expected = sequence.wrapping_add(1);
    (missing != 0).then_some(missing.into())
}

fn request(group: u16, snap_bytes: u32, flags: u16) -> Vec<u8> {
    // `struct nfulnl_msg_config_mode`: range, mode, padding.
    let [a, b, c, d] = snap_bytes.to_be_bytes();
    Writer::with_resource(CONFIGURE, libc::NLM_F_ACK, SEQUENCE, 0, group)
        .put(COMMAND, &[BIND])
        .put(MODE, &[a, b, c, d, COPY_PACKET, 0])
        .put_number(ROOM, MESSAGE_ROOM)
        .put_number(THRESHOLD, PACKETS_PER_MESSAGE)
        .put(FLAGS, &flags.to_be_bytes())
        .finish()
}

/// Maps the errno of a bind request (`nfulnl_recv_config`, `instance_create`, `nfnetlink_rcv_msg`).
fn refusal(group: u16, errno: i32) -> PacketLogError {
    let error = io::Error::from_raw_os_error(errno);
    match errno {
        libc::EPERM | libc::EEXIST | libc::EBUSY => {
            // The errno says that the group is bound; the port id comes from procfs and may be missing.
            let by = std::fs::read_to_string(GROUPS).ok().and_then(|groups| port_of(&groups, group));
            PacketLogError::Taken { group, by }
        }
        // nfnetlink returns EINVAL for an unregistered subsystem.
        libc::EINVAL | libc::EOPNOTSUPP => PacketLogError::Unavailable(error),
        _ => PacketLogError::Io(error),
    }
}

/// The port id bound to the group: each line begins with group and port id.
fn port_of(groups: &str, group: u16) -> Option<u32> {
    groups.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let found: u16 = words.next()?.parse().ok()?;
        let port = words.next()?.parse().ok()?;
        (found == group).then_some(port)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_binds_one_group_and_no_family() {
        let expected = [
            64, 0, 0, 0, 0x01, 0x04, 5, 0, 1, 0, 0, 0, 0, 0, 0, 0, // header: request, acknowledge
            0, 0, 0x24, 0xfe, // unspecified family, group 9470
            5, 0, 1, 0, 1, 0, 0, 0, // bind
            10, 0, 2, 0, 0, 0, 0, 128, 2, 0, 0, 0, // copy 128 bytes
            8, 0, 3, 0, 0, 0, 2, 0, // room
            8, 0, 5, 0, 0, 0, 0, 1, // threshold
            6, 0, 6, 0, 0, 5, 0, 0, // numbered, with the conntrack entry
        ];
        if cfg!(target_endian = "little") {
            assert_eq!(request(9470, 128, NUMBERED | WITH_CONNECTION), expected);
        }
    }

    #[test]
    fn numbers_that_are_left_out_are_missing_messages() {
        let mut expected = 0;
        let counts = [0, 1, 5, 6, u32::MAX, 0, 2].map(|sequence| missing(&mut expected, sequence));
        assert_eq!(counts, [None, None, Some(3), None, Some(u64::from(u32::MAX) - 7), None, Some(1)]);
        assert_eq!(expected, 3);
    }

    #[test]
    fn log_group_owner_is_read_from_proc_list() {
        let groups = "    5   4242     0 2   128    100  1\n 9470 4037712301     0 2 65531    100  1\n";
        assert_eq!([5, 9470, 6].map(|group| port_of(groups, group)), [Some(4242), Some(4_037_712_301), None]);
        for odd in ["", "\n", "9470", "9470 x", "x 1", "99999 1"] {
            assert_eq!(port_of(odd, 9470), None, "{odd}");
        }
    }

    #[test]
    fn kernel_errors_map_to_distinct_log_errors() {
        assert!(matches!(refusal(9470, libc::EPERM), PacketLogError::Taken { group: 9470, .. }));
        assert!(matches!(refusal(9470, libc::EINVAL), PacketLogError::Unavailable(_)));
        assert!(matches!(refusal(9470, libc::ENOMEM), PacketLogError::Io(_)));
        let taken = PacketLogError::Taken { group: 9470, by: Some(7) };
        assert_eq!(taken.to_string(), "NFLOG group 9470 is in use by the netlink socket with port id 7");
        assert_eq!(PacketLogError::Taken { group: 9470, by: None }.to_string(), "NFLOG group 9470 is in use");
    }
}
