//! Sends a batch to the kernel and reads its response.

use std::io;

use netlink::{Acknowledgement, MalformedNetlink, Messages, NetlinkProtocol, Socket};
use rustix::io::Errno;

use super::encode::Batch;

/// Why the isolation tables could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum IsolationError {
    #[error("cannot {what} the kernel's nf_tables: {error}")]
    Socket { what: &'static str, error: io::Error },
    #[error("the kernel refused '{operation}' for table {table}: {error}", table = super::TABLE)]
    Refused { operation: &'static str, error: io::Error },
    #[error("cannot decode the kernel's netlink response: {0}")]
    Decode(#[from] MalformedNetlink),
    #[error("unexpected netlink response of the kernel")]
    Unexpected,
}

pub(super) fn commit(batch: &Batch) -> Result<(), IsolationError> {
    let socket = open(&batch.bytes)?;
    // Errors of any message, or of the batch, are delivered before the acknowledgement of the last message (kernel:
    // net/netfilter/nfnetlink.c, nfnetlink_rcv_batch).
    loop {
        let answer = acknowledgement(&receive(&socket)?)?.ok_or(IsolationError::Unexpected)?;
        let number = usize::try_from(answer.sequence).map_err(|_| IsolationError::Unexpected)?;
        let operation = *batch.operations.get(number).ok_or(IsolationError::Unexpected)?;
        answer.result().map_err(|error| IsolationError::Refused { operation, error })?;
        if number == batch.acknowledged() {
            return Ok(());
        }
    }
}

/// Whether the queried object exists.
pub(super) fn is_there(request: &[u8]) -> Result<bool, IsolationError> {
    match acknowledgement(&receive(&open(request)?)?)? {
        None => Ok(true),
        Some(answer) if answer.errno == Errno::NOENT.raw_os_error() => Ok(false),
        Some(answer) => {
            answer.result().map_err(|error| IsolationError::Refused { operation: "list", error })?;
            Err(IsolationError::Unexpected)
        }
    }
}

/// Opens a socket and sends the bytes.
fn open(bytes: &[u8]) -> Result<Socket, IsolationError> {
    let failed = |what| move |error| IsolationError::Socket { what, error };
    let socket = Socket::open(NetlinkProtocol::Netfilter).map_err(failed("reach"))?;
    socket.send(bytes).map_err(failed("write to"))?;
    Ok(socket)
}

fn receive(socket: &Socket) -> Result<Vec<u8>, IsolationError> {
    socket.receive().map_err(|error| IsolationError::Socket { what: "read from", error })
}

/// The acknowledgement in the first message, if it is one.
fn acknowledgement(answer: &[u8]) -> Result<Option<Acknowledgement>, IsolationError> {
    let message = Messages::new(answer).next().ok_or(IsolationError::Unexpected)??;
    Ok(message.acknowledgement()?)
}
