//! The agent as a process on a node of a lab, fed a generated cluster by the fake API server: the base of the sections
//! that measure the whole agent.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nfnetlink::{Kernel, repair};
use nft::Name;
use nix::unistd::Pid;
use policy::{ClusterState, DEFAULT_MARK_MASK, DENIED_PREFIX, FORWARD_CHAIN, Layout, translate};
use tempfile::TempDir;

use super::commits::Commits;
use super::machine;
use generator::cluster::{Cluster, NODE};
use kit::agent_process::{AgentProcess, without_variables};
use kit::fake_api::FakeApi;
use kit::lab::{Lab, LabSpec, NodeSpec};

/// Deadline with a large margin for the largest cluster and the slowest agent.
const WITHIN: Duration = Duration::from_secs(600);

/// A process that uses no processor time for so long is idle. The kernel counts it in steps of 10 ms.
const IDLE: Duration = Duration::from_millis(500);

/// Flag of a table that a living process owns.
const NFT_TABLE_F_OWNER: u32 = 2;

const TABLE: &str = "ringfence";

pub(super) struct Stage {
    lab: Lab,
    folder: TempDir,
    program: PathBuf,
}

impl Stage {
    pub(super) fn new(program: &Path) -> Stage {
        let node = NodeSpec { name: NODE.into(), ..NodeSpec::default() };
        let lab = Lab::new(&LabSpec { nodes: vec![node], outside: vec![] });
        Stage { lab, folder: TempDir::new().expect("a folder"), program: program.into() }
    }

    /// An API server on the node's loopback.
    pub(super) fn serve(&self, cluster: Cluster) -> FakeApi {
        let api = self.lab.node_exec(NODE, FakeApi::start);
        api.set_cluster(cluster);
        api
    }

    /// Starts to record the commits on the node.
    pub(super) fn commits(&self) -> Commits {
        self.lab.node_exec(NODE, Commits::watch)
    }

    /// Starts an agent without waiting.
    pub(super) fn start(&self, api: &FakeApi) -> Agent<'_> {
        let mut command = Command::new(&self.program);
        without_variables(&mut command);
        command.args(["agent", "--node-name", NODE, "--run-dir"]).arg(self.folder.path().join("run"));
        command.arg("--kubeconfig").arg(api.kubeconfig());
        Agent(AgentProcess::start(&self.lab, NODE, command))
    }

    /// The number of operations between the kernel's table and that of the state: 0 if it is correct, `None` if the
    /// table is missing.
    pub(super) fn operations_missing(&self, state: &ClusterState) -> Option<usize> {
        let name = || Name::new(TABLE).expect("a name");
        let table = nft::Table::inet(name());
        let read = || Kernel::open().expect("nf_tables").read(&table).expect("the table is readable");
        let observed = self.lab.node_exec(NODE, read)?;
        let mark = observed.accepted_mark(FORWARD_CHAIN, DEFAULT_MARK_MASK)?;
        let layout = Layout::new(name(), DEFAULT_MARK_MASK).expect("a mask");
        let generation = layout.generation_at(mark)?;
        let layout =
            layout.protected(observed.flags & NFT_TABLE_F_OWNER != 0).logging_to(observed.log_group(DENIED_PREFIX));
        let wanted = translate(state, NODE, &layout).ruleset.stamp(generation);
        Some(repair(Some(&observed), &wanted).len())
    }
}

pub(super) struct Agent<'stage>(pub(super) AgentProcess<'stage>);

impl Agent<'_> {
    /// Waits until the rules are in force.
    pub(super) fn until_ready(&mut self) {
        self.0.until_within(WITHIN, "it is ready", |agent| {
            agent.try_get("/readyz").ok().filter(|answer| answer.status == 200).map(drop)
        });
    }

    /// Waits until the agent's process is idle.
    pub(super) fn until_idle(&self) {
        let deadline = Instant::now() + WITHIN;
        let (mut used, mut since) = (self.processor_time(), Instant::now());
        while since.elapsed() < IDLE {
            assert!(Instant::now() < deadline, "the agent does not come to rest");
            thread::sleep(Duration::from_millis(20));
            let now = self.processor_time();
            if now != used {
                (used, since) = (now, Instant::now());
            }
        }
    }

    pub(super) fn processor_time(&self) -> Duration {
        machine::processor_time(self.pid())
    }

    pub(super) fn memory(&self) -> machine::Memory {
        machine::memory(self.pid())
    }

    pub(super) fn reset_peak(&self) {
        machine::reset_peak(self.pid());
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.0.id().cast_signed())
    }
}

/// Maximum number of events that wait in the server: enough to keep the agent busy, and few enough to fit into memory.
const MOST_UNSENT: usize = 2_000;

/// Applies this many random events as fast as the agent reads them.
pub(super) fn feed(api: &FakeApi, events: usize) {
    const AT_ONCE: usize = 200;
    let mut left = events;
    while left > 0 {
        let now = left.min(AT_ONCE);
        api.happen(|cluster| ((0..now).map(|_| cluster.next_event()).collect(), ()));
        left -= now;
        while api.unsent() > MOST_UNSENT {
            thread::sleep(Duration::from_millis(1));
        }
    }
    until_sent(api);
}

/// Restores the initial number of objects.
pub(super) fn restore_size(api: &FakeApi) {
    api.happen(|cluster| (cluster.restore_size(), ()));
    until_sent(api);
}

pub(super) fn until_sent(api: &FakeApi) {
    while api.unsent() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
}

/// The size of a cluster, as short as the labels of the curves.
pub(super) fn thousands(pods: usize) -> String {
    if pods.is_multiple_of(1_000) { format!("{}k", pods / 1_000) } else { pods.to_string() }
}
