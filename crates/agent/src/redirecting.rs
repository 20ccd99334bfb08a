//! Interfaces at whose ingress tc may redirect packets, past the chains of nftables there.

use std::collections::BTreeSet;
use std::io;

use nfnetlink::interface_name;

use crate::doctor::rtnetlink::Rtnetlink;

/// The names of the interfaces with a qdisc at their ingress, in the network namespace of the calling thread.
pub(crate) fn redirecting_interfaces() -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for index in Rtnetlink::open()?.links_with_ingress_qdisc()? {
        // One that is gone by now redirects nothing.
        names.extend(interface_name(index)?);
    }
    Ok(names)
}
