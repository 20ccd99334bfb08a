//! Packets whose headers are in memory that their sender still modifies.
#![allow(unsafe_code)]

use std::io::{self, PipeReader, PipeWriter};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The tunnel through which the packets return to their sender, and its port.
const TUNNEL: &str = "shared0";
const PORT: u16 = 4789;
/// Bytes in front of a packet: the header of VXLAN (RFC 7348), and of Ethernet with a tag.
const VXLAN: [u8; 8] = [8, 0, 0, 0, 0, 0, 1, 0];
const ETHERNET_WITH_TAG: usize = 18;

#[repr(align(4096))]
struct Page([AtomicU64; 512]);

/// The two alternating contents of a packet from the byte `at` on.
#[derive(Debug, Clone)]
pub struct Change {
    pub at: usize,
    pub values: [[u8; 8]; 2],
}

/// Creates a tunnel in this thread's network namespace whose packets leave through `eth0` unchanged.
///
/// # Panics
/// If it cannot be created. Needs root, VXLAN and tc.
pub fn make_returning_tunnel() {
    let port = PORT.to_string();
    let commands: [(&str, &[&str]); 5] = [
        ("ip", &["link", "set", "lo", "up"]),
        (
            "ip",
            &["link", "add", TUNNEL, "type", "vxlan", "id", "1", "dstport", &port, "local", "127.0.0.1", "dev", "lo"],
        ),
        ("ip", &["link", "set", TUNNEL, "up"]),
        ("tc", &["qdisc", "add", "dev", TUNNEL, "ingress"]),
        (
            "tc",
            &[
                "filter", "add", "dev", TUNNEL, "parent", "ffff:", "protocol", "all", "u32", "match", "u32", "0", "0",
                "action", "mirred", "egress", "redirect", "dev", "eth0",
            ],
        ),
    ];
    for (program, words) in commands {
        let output = Command::new(program).args(words).output().expect("iproute2");
        assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    }
    // GRO would copy the headers.
    kit::frame::switch_receive_offload_off(TUNNEL);
}

/// Sends the packet `count` times through the tunnel, with a VLAN tag of ID 0, which keeps the kernel from copying the
/// packet's headers. Meanwhile the bytes of `change` alternate in the memory that all the packets share.
///
/// # Panics
/// If it cannot be sent.
pub fn send_changing(to: [u8; 6], from: [u8; 6], packet: &[u8], change: &Change, count: usize) {
    let kind: [u8; 2] = if packet[0] >> 4 == 4 { [0x08, 0] } else { [0x86, 0xdd] };
    let bytes = [&VXLAN[..], &to, &from, &[0x81, 0, 0, 0], &kind, packet].concat();
    // Aligned, so that the changing bytes are written atomically.
    let changing = VXLAN.len() + ETHERNET_WITH_TAG + change.at;
    let start = changing.next_multiple_of(8) - changing;
    let page = Box::new(Page([const { AtomicU64::new(0) }; 512]));
    let padded = [&vec![0; start][..], &bytes].concat();
    assert!(padded.len() <= 4096 - 8, "a packet of one page");
    for (word, chunk) in page.0.iter().zip(padded.chunks(8)) {
        let mut value = [0; 8];
        value[..chunk.len()].copy_from_slice(chunk);
        word.store(u64::from_ne_bytes(value), Ordering::Relaxed);
    }
    let word = &page.0[(start + changing) / 8];
    let values = change.values.map(u64::from_ne_bytes);
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.connect(("127.0.0.1", PORT)).expect("the tunnel's port");
    let (reader, writer) = io::pipe().expect("a pipe");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for value in values {
                    word.store(value, Ordering::Relaxed);
                    (0..30).for_each(|_| std::hint::spin_loop());
                }
            }
        });
        for _ in 0..count {
            splice(&page, start, bytes.len(), &reader, &writer, &socket);
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Sends a part of the page as a datagram, without a copy.
fn splice(page: &Page, start: usize, length: usize, reader: &PipeReader, writer: &PipeWriter, socket: &UdpSocket) {
    // SAFETY: the part is within the page, as the caller has asserted of all of it.
    let base = unsafe { page.0.as_ptr().cast::<u8>().add(start) };
    let part = libc::iovec { iov_base: base.cast_mut().cast(), iov_len: length };
    // SAFETY: vmsplice reads one iovec, which outlives the call, and takes references to the page that it names; the
    // page consists of atomics, and the kernel keeps it as long as it is referenced (vmsplice(2)).
    let taken = unsafe { libc::vmsplice(writer.as_raw_fd(), &raw const part, 1, 0) };
    assert_eq!(usize::try_from(taken), Ok(length), "vmsplice: {}", io::Error::last_os_error());
    let (none, from, to) = (std::ptr::null_mut(), reader.as_raw_fd(), socket.as_raw_fd());
    // SAFETY: splice takes two descriptors that are open, and no offsets.
    let sent = unsafe { libc::splice(from, none, to, none, length, 0) };
    assert_eq!(usize::try_from(sent), Ok(length), "splice: {}", io::Error::last_os_error());
}
