//! The one test binary.

// What the kernel shows after a netlink commit is what it shows after `nft -f` of the text.
mod netlink;
// Packets in the network-namespace lab go where its rules let them, and nowhere else.
mod lab;
