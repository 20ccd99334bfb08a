//! Named network namespaces: made, entered, removed.

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

/// Where `ip netns` keeps the names.
const DIRECTORY: &str = "/run/netns";

/// What the names of all labs begin with.
const MARK: &str = "ringfence-lab";

/// The part before the name of a namespace: which process it belongs to, and which of its labs.
pub(super) fn prefix(lab: u32) -> String {
    format!("{MARK}-{}-{lab}-", std::process::id())
}

/// A named namespace, removed when this is dropped.
#[derive(Debug)]
pub(super) struct Namespace {
    name: String,
    handle: File,
}

impl Namespace {
    pub(super) fn create_all(names: &[String]) -> Vec<Namespace> {
        // `ip netns add` prepares the directory of names, and two of them at once disagree about it.
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

    /// Moves this thread, and no other, into the namespace.
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

/// Runs `work` on a thread of its own, whose namespace it may change.
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
        // Ctrl-C is for whoever built the lab, who may want to take it down in order.
        .process_group(0)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("iproute2 is installed");
    let mut input = child.stdin.take().expect("its input is a pipe");
    // A program that gave up has closed its input; what it said stands in its output.
    if let Err(error) = input.write_all((commands.join("\n") + "\n").as_bytes()) {
        assert_eq!(error.kind(), ErrorKind::BrokenPipe, "writing to ip");
    }
    drop(input);
    let output = child.wait_with_output().expect("ip ends");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip refused: {complaint}\n{}", commands.join("\n"));
}

/// Makes the namespace of this thread forward, and judge no packet by the way it came.
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

/// Lets the connection tracking of this thread's namespace remember idle UDP flows for an hour instead of 30 seconds, so
/// that a test on a busy machine does not outlast them.
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

/// Waits until every interface of this thread's namespace has its carrier. Until the kernel has noticed it, which it
/// does in the background, it drops what is sent.
pub(super) fn await_carriers() {
    await_until("every interface to have its carrier", || {
        let interfaces = getifaddrs().expect("the interfaces of a namespace");
        interfaces.into_iter().all(|interface| interface.flags.contains(InterfaceFlags::IFF_RUNNING))
    });
}

/// Waits until this thread's namespace takes packets to these addresses for its own, which for IPv6 the kernel
/// arranges in the background.
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
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        thread::sleep(BETWEEN);
    }
}

/// Removes the namespaces of labs whose process is gone.
pub(super) fn remove_leftovers() {
    let orphans: Vec<String> =
        names().into_iter().filter(|name| process_of(name).is_some_and(|pid| !lives(pid))).collect();
    remove(&orphans);
}

/// Removes every namespace whose name begins so.
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

/// Another process may be removing the same leftovers: what is gone already is no error.
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
