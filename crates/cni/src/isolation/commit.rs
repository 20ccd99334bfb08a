//! Sends a batch to the kernel and reads its response.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with};

use super::encode::Batch;

/// The kernel's response is queued before `send` returns, even if the batch waited for another one.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Why the isolation tables could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    #[error("cannot {what} the kernel's nf_tables: {errno}")]
    Socket { what: &'static str, errno: Errno },
    #[error("the kernel refused '{operation}' for table {table}: {errno}", table = super::TABLE)]
    Refused { operation: &'static str, errno: Errno },
    #[error("cannot decode the kernel's netlink response")]
    Answer,
}

pub(super) fn commit(batch: &Batch) -> Result<(), IsolationError> {
    let socket = open(&batch.bytes)?;
    // Errors of any message, or of the batch, are delivered before the acknowledgement of the last message (kernel:
    // net/netfilter/nfnetlink.c, nfnetlink_rcv_batch).
    loop {
        let (number, code) = acknowledgement(&receive(&socket)?).ok_or(IsolationError::Answer)?;
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

/// Whether the queried object exists.
pub(super) fn is_there(question: &[u8]) -> Result<bool, IsolationError> {
    let answer = receive(&open(question)?)?;
    match acknowledgement(&answer) {
        None => Ok(true),
        Some((_, code)) if code == -Errno::NOENT.raw_os_error() => Ok(false),
        Some((_, code)) => {
            let errno = Errno::from_raw_os_error(code.checked_neg().ok_or(IsolationError::Answer)?);
            Err(IsolationError::Refused { operation: "list", errno })
        }
    }
}

/// Opens a socket and sends the bytes.
fn open(bytes: &[u8]) -> Result<OwnedFd, IsolationError> {
    let failed = |what| move |errno| IsolationError::Socket { what, errno };
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, Some(netlink::NETFILTER))
        .map_err(failed("reach"))?;
    set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER_WITHIN)).map_err(failed("reach"))?;
    let sent = send(&socket, bytes, SendFlags::empty()).map_err(failed("write to"))?;
    if sent == bytes.len() { Ok(socket) } else { Err(IsolationError::Answer) }
}

/// Receives a response. Only its beginning is needed.
fn receive(socket: &OwnedFd) -> Result<Vec<u8>, IsolationError> {
    let mut answer = vec![0; 256];
    let (length, _) = recv(socket, &mut answer[..], RecvFlags::empty())
        .map_err(|errno| IsolationError::Socket { what: "read from", errno })?;
    answer.truncate(length);
    Ok(answer)
}

/// The number of the acknowledged message, and its error or 0 (`struct nlmsghdr`, `struct nlmsgerr`).
fn acknowledgement(answer: &[u8]) -> Option<(usize, i32)> {
    const NLMSG_ERROR: u16 = 2;
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    let number = u32::from_ne_bytes(answer.get(8..12)?.try_into().ok()?);
    let code = i32::from_ne_bytes(answer.get(16..20)?.try_into().ok()?);
    (kind == NLMSG_ERROR).then_some((usize::try_from(number).ok()?, code))
}
