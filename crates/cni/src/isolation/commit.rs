//! One batch to the kernel, and what it answers.

use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

use super::encode::Batch;

/// The kernel answers before `send` returns. A batch that waits for another one is sent by then, too.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Why the table is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    #[error("cannot {what} the kernel's nf_tables: {errno}")]
    Socket { what: &'static str, errno: Errno },
    #[error("the kernel refused '{operation}' for table inet {table}: {errno}", table = super::TABLE)]
    Refused { operation: &'static str, errno: Errno },
    #[error("the kernel's answer is not understood")]
    Answer,
}

pub(super) fn commit(batch: &Batch) -> Result<(), IsolationError> {
    let failed = |what| move |errno| IsolationError::Socket { what, errno };
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))
        .map_err(failed("reach"))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WITHIN)).map_err(failed("reach"))?;
    let sent = send(&socket, &batch.bytes, SendFlags::empty()).map_err(failed("write to"))?;
    if sent != batch.bytes.len() {
        return Err(IsolationError::Answer);
    }
    // A refusal of any message, or of the whole, is delivered before the last message is acknowledged (kernel:
    // net/netfilter/nfnetlink.c, nfnetlink_rcv_batch).
    let mut answer = [0; 256];
    loop {
        let (_, length) = recv(&socket, &mut answer[..], RecvFlags::TRUNC).map_err(failed("read from"))?;
        let (number, code) = acknowledgement(&answer[..length.min(answer.len())]).ok_or(IsolationError::Answer)?;
        let operation = *batch.operations.get(number).ok_or(IsolationError::Answer)?;
        if code != 0 {
            let errno = Errno::from_raw_os_error(code.checked_neg().ok_or(IsolationError::Answer)?);
            return Err(IsolationError::Refused { operation, errno });
        }
        if number == batch.acknowledged() {
            return Ok(());
        }
    }
}

/// The number of the message that is acknowledged, and the error or 0 (`struct nlmsghdr`, `struct nlmsgerr`).
fn acknowledgement(answer: &[u8]) -> Option<(usize, i32)> {
    const NLMSG_ERROR: u16 = 2;
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let number = u32::from_ne_bytes(answer.get(8..12)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some((usize::try_from(number).ok()?, code))
}
