//! Memory of this process.

/// Resident memory in bytes; `None` if it cannot be read (proc(5), `/proc/self/statm`: pages, the second number).
pub(super) fn resident_bytes() -> Option<usize> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: usize = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_in_memory() {
        assert!(resident_bytes().unwrap() > 1 << 20);
    }
}
