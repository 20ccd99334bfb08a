//! Packets that a busy machine drops before any rule sees them.
//!
//! Every processor has one backlog of received packets for all network namespaces (net.core.netdev_max_backlog). While
//! a test floods it, packets of every other test may be dropped.

/// Packets that full backlogs have dropped since the machine started, in any namespace.
///
/// # Panics
/// If the kernel does not list them.
pub fn lost_packets() -> u64 {
    let text = std::fs::read_to_string("/proc/net/softnet_stat").expect("a file of the kernel");
    let dropped = |line: &str| line.split_whitespace().nth(1).and_then(|word| u64::from_str_radix(word, 16).ok());
    text.lines().map(|line| dropped(line).expect("a hexadecimal number")).sum()
}
