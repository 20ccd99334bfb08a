//! Counts connection tracking entries, clears the marks that they carry, and deletes them.

use std::io;

use crate::decode::{
    DecodeError, FlowCount, FlowIdentity, MarkedFlow, decode_flow_count, decode_flow_identities, decode_marked_flows,
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

/// Why marks could not be cleared.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// No socket of `NETLINK_NETFILTER`.
    #[error("cannot open a conntrack netlink socket: {0}")]
    Open(io::Error),
    /// The dump (`IPCTNL_MSG_CT_GET`) failed; the marks of the entries before are cleared.
    #[error("cannot list conntrack entries: {0}")]
    List(RequestError),
    /// The marks of the entries before are cleared.
    #[error("cannot clear the mark of a conntrack entry: {0}")]
    Clear(RequestError),
}

/// Why entries could not be deleted.
#[derive(Debug, thiserror::Error)]
pub enum DeleteFlowsError {
    /// No socket of `NETLINK_NETFILTER`.
    #[error("cannot open a conntrack netlink socket: {0}")]
    Open(io::Error),
    /// The dump (`IPCTNL_MSG_CT_GET`) failed; the entries before are deleted.
    #[error("cannot list conntrack entries: {0}")]
    List(RequestError),
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
pub fn clear_marks(mask: u32, keep: u32) -> Result<usize, MarkError> {
    let mut listing = Kernel::socket().map_err(MarkError::Open)?;
    let mut clearing = Kernel::socket().map_err(MarkError::Open)?;
    let (mut cleared, mut failure) = (0, None);
    // AF_UNSPEC: both families.
    let listed = listing.dump(
        GET_ENTRIES,
        0,
        |w| w,
        |datagram| {
            for flow in decode_marked_flows(datagram)? {
                let bits = flow.mark & mask;
                if bits == 0 || bits == keep || failure.is_some() {
                    continue;
                }
                match clear(&mut clearing, &flow, mask) {
                    Ok(true) => cleared += 1,
                    Ok(false) => {}
                    Err(e) => failure = Some(e),
                }
            }
            Ok::<(), DecodeError>(())
        },
    );
    match (failure, listed) {
        (Some(e), _) => Err(MarkError::Clear(e)),
        (None, Err(e)) => Err(MarkError::List(e)),
        (None, Ok(())) => Ok(cleared),
    }
}

/// Deletes every entry of the calling thread's network namespace, in any zone, for which the function returns `true`.
/// Returns the number of deleted entries.
///
/// As with [`clear_marks`], memory does not grow with the number of entries, and one that is created during the dump may be
/// omitted.
pub fn delete_flows(is_deleted: impl Fn(&FlowIdentity) -> bool) -> Result<usize, DeleteFlowsError> {
    let mut listing = Kernel::socket().map_err(DeleteFlowsError::Open)?;
    let mut deleting = Kernel::socket().map_err(DeleteFlowsError::Open)?;
    let (mut deleted, mut failure) = (0, None);
    let listed = listing.dump(
        GET_ENTRIES,
        0,
        |w| w,
        |datagram| {
            for flow in decode_flow_identities(datagram)? {
                if failure.is_some() || !is_deleted(&flow) {
                    continue;
                }
                match delete(&mut deleting, &flow) {
                    Ok(true) => deleted += 1,
                    Ok(false) => {}
                    Err(e) => failure = Some(e),
                }
            }
            Ok::<(), DecodeError>(())
        },
    );
    match (failure, listed) {
        (Some(e), _) => Err(DeleteFlowsError::Delete(e)),
        (None, Err(e)) => Err(DeleteFlowsError::List(e)),
        (None, Ok(())) => Ok(deleted),
    }
}

/// Returns whether the entry still existed.
fn delete(kernel: &mut Kernel, flow: &FlowIdentity) -> Result<bool, RequestError> {
    let sequence = kernel.reserve_sequences(1);
    let request =
        Writer::new(DELETE_ENTRY, libc::NLM_F_ACK, sequence, flow.family).put_nested(ORIGINAL, &flow.original);
    let request = match &flow.zone {
        Some(zone) => request.put(ZONE, zone),
        None => request,
    };
    existed(kernel.request(&request.finish(), sequence, |_| Ok(())))
}

fn existed(answer: Result<(), RequestError>) -> Result<bool, RequestError> {
    match answer {
        Ok(()) => Ok(true),
        Err(RequestError::Refused(e)) if e.raw_os_error() == Some(libc::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Returns whether the entry still existed.
fn clear(kernel: &mut Kernel, flow: &MarkedFlow, mask: u32) -> Result<bool, RequestError> {
    let sequence = kernel.reserve_sequences(1);
    let mut request =
        Writer::new(NEW_ENTRY, libc::NLM_F_ACK, sequence, flow.family).put_nested(ORIGINAL, &flow.original);
    if let Some(zone) = &flow.zone {
        request = request.put(ZONE, zone);
    }
    let request = request.put_number(MARK, 0).put_number(MARK_MASK, mask).finish();
    existed(kernel.request(&request, sequence, |_| Ok(())))
}
