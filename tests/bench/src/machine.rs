//! The machine of the measurement: its description, and the processor affinity of threads.

use std::fs;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};

/// The description needed for a comparison with other machines.
pub(super) fn describe() -> String {
    let processor = read("/proc/cpuinfo");
    let model = processor.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    format!(
        "{} x {}, Linux {}",
        processors().len(),
        model.map_or("unknown processor", |(_, name)| name.trim()),
        read("/proc/sys/kernel/osrelease").trim(),
    )
}

/// Load average of the last minute (proc_loadavg(5)).
pub(super) fn load() -> f64 {
    read("/proc/loadavg").split_whitespace().next().and_then(|load| load.parse().ok()).expect("proc_loadavg(5)")
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The processors that this process may use.
fn processors() -> Vec<usize> {
    let allowed = sched_getaffinity(Pid::from_raw(std::process::id().cast_signed())).expect("a process of ours");
    (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu) == Ok(true)).collect()
}

/// Processor affinity: the sender of a flood has its own processor, as if the packets arrived from a wire; everything
/// else uses the others. With one processor all share it.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    Flood,
    Others,
}

/// Pins this thread, and threads and processes that it starts later, to its processors.
pub(super) fn stay(place: Place) {
    let all = processors();
    let Some((first, rest)) = all.split_first().filter(|(_, rest)| !rest.is_empty()) else { return };
    let mine = match place {
        Place::Flood => std::slice::from_ref(first),
        Place::Others => rest,
    };
    let mut set = CpuSet::new();
    for cpu in mine {
        set.set(*cpu).expect("it was in a set");
    }
    sched_setaffinity(Pid::from_raw(0), &set).expect("processors that this process may use");
}

/// Processor time of the process in user and kernel mode (`utime` and `stime` of proc_pid_stat(5)).
pub(super) fn processor_time(process: Pid) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("a process that runs");
    // The program's name, in brackets, may contain anything.
    let (_, after) = stat.rsplit_once(')').expect("proc_pid_stat(5)");
    let field = |number: usize| after.split_whitespace().nth(number - 3).and_then(|text| text.parse::<u32>().ok());
    let ticks = field(14).zip(field(15)).map(|(user, system)| user + system).expect("proc_pid_stat(5)");
    let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten().expect("sysconf(3)");
    Duration::from_secs(ticks.into()) / u32::try_from(per_second).expect("100")
}

/// Resident set of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) resident_bytes: u64,
    /// The maximum so far.
    pub(super) peak_bytes: u64,
}

/// `VmRSS` and `VmHWM` of proc_pid_status(5).
pub(super) fn memory(process: Pid) -> Memory {
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("a process that runs");
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("proc_pid_status(5)");
        let kibibytes: u64 = line.trim().trim_end_matches(" kB").parse().expect("proc_pid_status(5)");
        kibibytes << 10
    };
    Memory { resident_bytes: field("VmRSS:"), peak_bytes: field("VmHWM:") }
}

/// Resets the peak of the resident set (`clear_refs` of proc_pid_clear_refs(5)).
pub(super) fn reset_peak(process: Pid) {
    fs::write(format!("/proc/{process}/clear_refs"), "5").expect("a process of ours");
}
