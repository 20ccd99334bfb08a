//! The one test binary.

// What the kernel shows after a netlink commit is what it shows after `nft -f` of the text.
mod netlink;
