//! Named network namespaces: created, entered, removed.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::ifaddrs::getifaddrs;
use nix::net::if_::InterfaceFlags;
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Where `ip netns` stores the names.
const DIRECTORY: &str = "/run/netns";

/// Prefix of the namespaces of all labs.
const MARK: &str = "ringfence-lab";

/// Name prefix of a lab's namespaces: the process ID and the lab's number.
pub(super) fn prefix(lab: u32) -> String {
    format!("{MARK}-{}-{lab}-", std::process::id())
}

/// A named namespace, removed on drop.
#[derive(Debug)]
pub(super) struct Namespace {
    name: String,
    handle: File,
}

impl Namespace {
    pub(super) fn create_all(names: &[String]) -> Vec<Namespace> {
        // `ip netns add` prepares the directory of names, which fails if two of them run at once.
        static ADDING: Mutex<()> = Mutex::new(());
        let adding = ADDING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let commands: Vec<String> = names.iter().map(|name| format!("netns add {name}")).collect();
        ip(&commands);
        drop(adding);
        let open = |name: &String| {
            let handle = File::open(format!("{DIRECTORY}/{name}")).expect("a namespace that was just made");
            Namespace { name: name.clone(), handle }
        };
        names.iter().map(open).collect()
    }

    pub(super) fn path(&self) -> String {
        format!("{DIRECTORY}/{}", self.name)
    }

    /// Moves only this thread into the namespace.
    pub(super) fn enter(&self) {
        setns(&self.handle, CloneFlags::CLONE_NEWNET).expect("entering a namespace (the tests run as root)");
    }

    /// Runs `work` on a thread in the namespace.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        in_thread(|| {
            self.enter();
            work()
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove(std::slice::from_ref(&self.name));
    }
}

/// Runs `work` on a new thread, whose namespace it may change.
pub(super) fn in_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| match scope.spawn(work).join() {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Runs commands of `ip` in the namespace of this thread.
pub(super) fn ip(commands: &[String]) {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        // Ctrl-C is for whoever built the lab, who may want to remove it in order.
        .process_group(0)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("iproute2 is installed");
    let mut input = child.stdin.take().expect("its input is a pipe");
    // If `ip` failed, it has closed its input; the error is in its output.
    if let Err(error) = input.write_all((commands.join("\n") + "\n").as_bytes()) {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "writing to ip");
    }
    drop(input);
    let output = child.wait_with_output().expect("ip ends");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip refused: {complaint}\n{}", commands.join("\n"));
}

/// Enables forwarding in this thread's namespace, and disables reverse path filtering.
pub(super) fn forward() {
    for (key, value) in [
        ("ipv4/conf/all/forwarding", "1"),
        ("ipv6/conf/all/forwarding", "1"),
        ("ipv4/conf/all/rp_filter", "0"),
        ("ipv4/conf/default/rp_filter", "0"),
    ] {
        fs::write(format!("/proc/sys/net/{key}"), value).unwrap_or_else(|error| panic!("setting {key}: {error}"));
    }
}

/// Raises the conntrack timeout of idle UDP flows in this thread's namespace from 30 seconds to an hour, so that a test
/// on a busy machine does not outlast them.
pub(super) fn keep_idle_flows() {
    for key in ["nf_conntrack_udp_timeout", "nf_conntrack_udp_timeout_stream"] {
        match fs::write(format!("/proc/sys/net/netfilter/{key}"), "3600") {
            Ok(()) => {}
            // The module is loaded with the first rule that needs it.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => panic!("setting {key}: {error}"),
        }
    }
}

/// Waits until every interface of this thread's namespace has its carrier. The kernel detects it in the background and
/// drops packets until then.
pub(super) fn await_carriers() {
    await_until("every interface to have its carrier", || {
        let interfaces = getifaddrs().expect("the interfaces of a namespace");
        interfaces.into_iter().all(|interface| interface.flags.contains(InterfaceFlags::IFF_RUNNING))
    });
}

/// Waits until this thread's namespace has local routes to these addresses. For IPv6 the kernel adds them in the
/// background.
pub(super) fn await_local_routes(addresses: &[IpAddr]) {
    const LOCAL: u32 = 0x8000_0000;
    let wanted: Vec<String> = addresses
        .iter()
        .filter_map(|address| match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(address) => Some(format!("{:032x}", address.to_bits())),
        })
        .collect();
    await_until("every address to be local", || {
        let routes = fs::read_to_string("/proc/thread-self/net/ipv6_route").expect("the routes of a namespace");
        let local: HashSet<&str> = routes
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split_whitespace().collect();
                let flags = u32::from_str_radix(fields.get(8)?, 16).ok()?;
                (flags & LOCAL != 0).then(|| fields[0])
            })
            .collect();
        wanted.iter().all(|address| local.contains(address.as_str()))
    });
}

fn await_until(what: &str, holds: impl Fn() -> bool) {
    const AT_MOST: Duration = Duration::from_secs(10);
    const BETWEEN: Duration = Duration::from_millis(1);
    let deadline = Instant::now() + AT_MOST;
    while !holds() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        thread::sleep(BETWEEN);
    }
}

/// Removes the namespaces of labs whose process has ended.
pub(super) fn remove_leftovers() {
    let orphans: Vec<String> =
        names().into_iter().filter(|name| process_of(name).is_some_and(|pid| !lives(pid))).collect();
    remove(&orphans);
}

/// Removes every namespace with this prefix.
pub(super) fn remove_with(prefix: &str) {
    let wanted: Vec<String> = names().into_iter().filter(|name| name.starts_with(prefix)).collect();
    remove(&wanted);
}

fn names() -> Vec<String> {
    match fs::read_dir(DIRECTORY) {
        Ok(entries) => entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect(),
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => panic!("{DIRECTORY}: {error}"),
    }
}

fn process_of(name: &str) -> Option<Pid> {
    let pid = name.strip_prefix(MARK)?.strip_prefix('-')?.split('-').next()?;
    pid.parse().ok().map(Pid::from_raw)
}

fn lives(pid: Pid) -> bool {
    kill(pid, None) != Err(Errno::ESRCH)
}

/// Another process may be removing the same leftovers, so a missing namespace is accepted.
fn remove(names: &[String]) {
    for name in names {
        let path = format!("{DIRECTORY}/{name}");
        match nix::mount::umount2(path.as_str(), nix::mount::MntFlags::MNT_DETACH) {
            Ok(()) | Err(Errno::EINVAL | Errno::ENOENT) => {}
            Err(error) => eprintln!("{path} stays mounted: {error}"),
        }
        match fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => eprintln!("{path} stays: {error}"),
        }
    }
}
