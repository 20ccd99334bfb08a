//! Counts connection tracking entries, clears the marks that they carry, and deletes them.

use std::io;

use crate::decode::{
    DecodeError, FlowCount, FlowIdentity, ListedFlow, decode_flow_count, decode_listed_flows, decode_marked_flows,
};
use crate::message::{CTNETLINK, Writer};
use crate::request::{Kernel, RequestError};

/// `IPCTNL_MSG_CT_NEW` and `IPCTNL_MSG_CT_GET`
const NEW_ENTRY: u16 = CTNETLINK;
pub(crate) const GET_ENTRIES: u16 = CTNETLINK | 1;
/// `IPCTNL_MSG_CT_DELETE`
const DELETE_ENTRY: u16 = CTNETLINK | 2;
/// `IPCTNL_MSG_CT_GET_STATS`
const GET_STATISTICS: u16 = CTNETLINK | 5;
/// `CTA_*`
const ORIGINAL: u16 = 1;
const MARK: u16 = 8;
const ZONE: u16 = 18;
const MARK_MASK: u16 = 21;

/// Why entries could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum ChangeFlowsError {
    /// No socket of `NETLINK_NETFILTER`.
    #[error("cannot open a conntrack netlink socket: {0}")]
    Open(io::Error),
    /// The dump (`IPCTNL_MSG_CT_GET`) failed; the entries before are changed.
    #[error("cannot list conntrack entries: {0}")]
    List(RequestError),
    /// The marks of the entries before are cleared.
    #[error("cannot clear the mark of a conntrack entry: {0}")]
    ClearMark(RequestError),
    /// The entries before are deleted.
    #[error("cannot delete a conntrack entry: {0}")]
    Delete(RequestError),
}

/// Why entries could not be counted.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// No socket of `NETLINK_NETFILTER`.
    #[error("cannot open a conntrack netlink socket: {0}")]
    Open(io::Error),
    /// The kernel refused `IPCTNL_MSG_CT_GET_STATS`.
    #[error("conntrack netlink does not answer (CONFIG_NF_CT_NETLINK): {0}")]
    Request(#[from] RequestError),
}

/// Counts the entries of the calling thread's network namespace. If this succeeds, marks can be cleared too.
pub fn count_flows() -> Result<FlowCount, CountError> {
    let mut kernel = Kernel::socket().map_err(CountError::Open)?;
    let sequence = kernel.reserve_sequences(1);
    let request = Writer::new(GET_STATISTICS, 0, sequence, 0).finish();
    let mut count = None;
    kernel.request(&request, sequence, |datagram| {
        count = decode_flow_count(datagram)?;
        Ok(())
    })?;
    count.ok_or(CountError::Request(RequestError::Silent))
}

/// Sets the bits of `mask` to 0 in the mark of every entry of the calling thread's network namespace that has any of
/// them, unless they equal `keep`. Returns the number of cleared entries.
///
/// Entries are cleared during the dump, so memory does not grow with their number. The kernel dumps no entry twice, but
/// may omit one that is created during the dump.
pub fn clear_marks(mask: u32, keep: u32) -> Result<usize, ChangeFlowsError> {
    change_flows(decode_marked_flows, ChangeFlowsError::ClearMark, |flow, sequence| {
        let bits = flow.mark & mask;
        let request = || start(NEW_ENTRY, &flow.identity, sequence).put_number(MARK, 0).put_number(MARK_MASK, mask);
        (bits != 0 && bits != keep).then(request)
    })
}

/// Deletes every entry of the calling thread's network namespace, in any zone, for which the function returns `true`.
/// Returns the number of deleted entries.
///
/// As with [`clear_marks`], memory does not grow with the number of entries, and one that is created during the dump may be
/// omitted.
pub fn delete_flows(is_deleted: impl Fn(&ListedFlow) -> bool) -> Result<usize, ChangeFlowsError> {
    change_flows(decode_listed_flows, ChangeFlowsError::Delete, |flow, sequence| {
        is_deleted(flow).then(|| start(DELETE_ENTRY, &flow.identity, sequence))
    })
}

/// Sends a request, with the given sequence number, for each entry for which there is one. Returns the number of those that
/// still existed.
fn change_flows<T>(
    decode: fn(&[u8]) -> Result<Vec<T>, DecodeError>,
    refused: fn(RequestError) -> ChangeFlowsError,
    request: impl Fn(&T, u32) -> Option<Writer>,
) -> Result<usize, ChangeFlowsError> {
    let mut listing = Kernel::socket().map_err(ChangeFlowsError::Open)?;
    let mut changing = Kernel::socket().map_err(ChangeFlowsError::Open)?;
    let (mut changed, mut failure) = (0, None);
    // AF_UNSPEC: both families.
    let listed = listing.dump(
        GET_ENTRIES,
        0,
        |w| w,
        |datagram| {
            for flow in decode(datagram)? {
                if failure.is_some() {
                    continue;
                }
                let sequence = changing.reserve_sequences(1);
                let Some(request) = request(&flow, sequence) else { continue };
                match changing.request(&request.finish(), sequence, |_| Ok(())) {
                    Ok(()) => changed += 1,
                    Err(RequestError::Refused(e)) if e.raw_os_error() == Some(libc::ENOENT) => {}
                    Err(e) => failure = Some(e),
                }
            }
            Ok::<(), DecodeError>(())
        },
    );
    match (failure, listed) {
        (Some(e), _) => Err(refused(e)),
        (None, Err(e)) => Err(ChangeFlowsError::List(e)),
        (None, Ok(())) => Ok(changed),
    }
}

/// A request about the entry.
fn start(kind: u16, flow: &FlowIdentity, sequence: u32) -> Writer {
    let request = Writer::new(kind, libc::NLM_F_ACK, sequence, flow.family).put_nested(ORIGINAL, &flow.original);
    match &flow.zone {
        Some(zone) => request.put(ZONE, zone),
        None => request,
    }
}
