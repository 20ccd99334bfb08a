//! How full connection tracking is.

use std::io;

use crate::message::{CTNETLINK, Messages, Writer};
use crate::request::{Kernel, RequestError};

/// `IPCTNL_MSG_CT_GET_STATS`
const GET_STATISTICS: u16 = CTNETLINK | 5;
/// `CTA_STATS_GLOBAL_*`
const ENTRIES: u16 = 1;
const MOST_ENTRIES: u16 = 2;

/// Entries of the calling thread's network namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConntrackUsage {
    pub entries: u32,
    /// `nf_conntrack_max`: packets that would need one more are dropped. None before Linux 4.18, which does not say.
    pub most: Option<u32>,
}

/// Why connection tracking cannot be asked.
#[derive(Debug, thiserror::Error)]
pub enum ConntrackError {
    #[error("no socket to connection tracking: {0}")]
    Open(io::Error),
    #[error("connection tracking does not answer (CONFIG_NF_CONNTRACK, CONFIG_NF_CT_NETLINK): {0}")]
    Request(#[from] RequestError),
}

/// Asks connection tracking how many entries there are, at the cost of one small request.
pub fn conntrack_usage() -> Result<ConntrackUsage, ConntrackError> {
    let mut kernel = Kernel::socket().map_err(ConntrackError::Open)?;
    let sequence = kernel.take_sequences(1);
    let request = Writer::new(GET_STATISTICS, 0, sequence, 0).finish();
    let (mut entries, mut most) = (None, None);
    kernel.ask(&request, sequence, |datagram| {
        for message in Messages(datagram) {
            let (_, attributes) = message?.general()?;
            for attribute in attributes {
                let attribute = attribute?;
                match attribute.kind {
                    ENTRIES => entries = Some(attribute.number()?),
                    MOST_ENTRIES => most = Some(attribute.number()?),
                    _ => {}
                }
            }
        }
        Ok(())
    })?;
    let entries = entries.ok_or(RequestError::Silent)?;
    Ok(ConntrackUsage { entries, most })
}
