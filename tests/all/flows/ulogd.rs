//! ulogd2 of netfilter.org next to the agent: it logs the end and the volume of every connection.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use kit::agent_process::until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::stage::{NODE, Stage};

/// Receive buffer of ulogd: some hundred events. The kernel redelivers end events for which there was no room, also to
/// the agent.
const RECEIVE_BUFFER: usize = 256 << 10;

pub(super) struct Ulogd {
    process: Child,
    folder: TempDir,
}

impl Ulogd {
    /// Starts ulogd in the node's namespace; `None` if it is not installed.
    pub(super) fn start(stage: &Stage) -> Option<Ulogd> {
        let folder = TempDir::new().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        let configuration = format!(
            "[global]\nlogfile=\"{}\"\nloglevel=3\n\
             stack=ct:NFCT,ip:IP2STR,print:PRINTFLOW,file:LOGEMU\n\
             [ct]\nevent_mask=0x00000004\nhash_enable=0\nreliable=1\n\
             netlink_socket_buffer_size={RECEIVE_BUFFER}\nnetlink_socket_buffer_maxsize={}\n\
             [file]\nfile=\"{}\"\nsync=1\n",
            path("log"),
            // ulogd requires its buffer size to be less than this maximum.
            2 * RECEIVE_BUFFER,
            path("connections"),
        );
        std::fs::write(folder.path().join("ulogd.conf"), configuration).expect("a folder of ours");
        let mut command = Command::new("ulogd");
        command.args(["--configfile", &path("ulogd.conf")]).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("PATH", "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin");
        let process = match stage.lab.node_exec(NODE, || command.spawn()) {
            Ok(process) => process,
            Err(error) if error.kind() == ErrorKind::NotFound => return None,
            Err(error) => panic!("ulogd: {error}"),
        };
        let ulogd = Ulogd { process, folder };
        until("ulogd listens", || {
            // The multicast group of destroy events only (NFNLGRP_CONNTRACK_DESTROY).
            let sockets = std::fs::read_to_string(format!("/proc/{}/net/netlink", ulogd.process.id())).ok()?;
            sockets.lines().any(|line| line.split_whitespace().nth(3) == Some("00000004")).then_some(())
        });
        Some(ulogd)
    }

    fn output(&self) -> PathBuf {
        self.folder.path().join("connections")
    }

    /// The packets and bytes of both directions, once ulogd has logged this many connections.
    #[track_caller]
    pub(super) fn until_ended(&self, connections: u64) -> [[u64; 2]; 2] {
        let connections = connections as usize;
        let ended = until("ulogd has logged every connection", || {
            let ended = parse(&std::fs::read_to_string(self.output()).ok()?);
            (ended.len() >= connections).then_some(ended)
        });
        assert_eq!(ended.len(), connections);
        let add = |sum: [[u64; 2]; 2], volume: &[[u64; 2]; 2]| {
            [0, 1].map(|direction| [0, 1].map(|figure| sum[direction][figure] + volume[direction][figure]))
        };
        ended.values().fold([[0; 2]; 2], add)
    }
}

/// Volumes of each connection, by its addresses and ports. The kernel redelivers an event to all listeners if one of
/// them had no room for it, so a connection may have several lines.
fn parse(text: &str) -> HashMap<String, [[u64; 2]; 2]> {
    let mut ended = HashMap::new();
    // The last line may be incomplete.
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    for line in complete.lines().filter(|line| line.contains("PROTO=TCP") && line.contains("DPT=15432")) {
        let (_, flow) = line.split_once("ORIG: ").unwrap_or_else(|| panic!("{line}"));
        let (original, reply) = flow.split_once("REPLY: ").unwrap_or_else(|| panic!("{line}"));
        let figures = |direction: &str| {
            ["PKTS=", "BYTES="].map(|name| {
                let rest = direction.split_once(name).unwrap_or_else(|| panic!("{line}")).1;
                let digits = rest.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
                digits.parse::<u64>().unwrap_or_else(|_| panic!("{line}"))
            })
        };
        let (tuple, _) = original.split_once("PKTS=").unwrap_or_else(|| panic!("{line}"));
        ended.insert(tuple.to_owned(), [figures(original), figures(reply)]);
    }
    ended
}

impl Drop for Ulogd {
    fn drop(&mut self) {
        // Both fail only if the process has already ended.
        let pid = Pid::from_raw(self.process.id().cast_signed());
        if let Err(error) = kill(pid, Signal::SIGTERM).map_err(std::io::Error::from).and_then(|()| self.process.wait())
        {
            eprintln!("ulogd does not end: {error}");
        }
    }
}
