//! Finds interfaces at whose ingress tc may redirect packets, bypassing the nftables chains there.

use std::collections::BTreeSet;
use std::io;

use nfnetlink::interface_name;

use crate::rtnetlink::Rtnetlink;

/// Names of the interfaces with an ingress qdisc, in the network namespace of the calling thread.
pub(crate) fn redirecting_interfaces() -> io::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for index in Rtnetlink::open()?.links_with_ingress_qdisc()? {
        // An interface that was removed meanwhile redirects nothing.
        names.extend(interface_name(index)?);
    }
    Ok(names)
}
