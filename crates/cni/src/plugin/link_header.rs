//! `struct ifinfomsg`, the header of rtnetlink messages about interfaces (rtnetlink(7)).

/// Length of `struct ifinfomsg`.
pub(super) const LINK_HEADER: usize = 16;

/// The header for the interface of this index, which sets those of the `flags` that are in `mask`.
pub(super) fn link_header(index: u32, flags: u32, mask: u32) -> [u8; LINK_HEADER] {
    let mut header = [0; LINK_HEADER];
    // Before them are the family and the type of the interface.
    header[4..8].copy_from_slice(&index.to_ne_bytes());
    header[8..12].copy_from_slice(&flags.to_ne_bytes());
    header[12..16].copy_from_slice(&mask.to_ne_bytes());
    header
}
