use std::time::Duration;

use kit::agent_process::{WITHIN, ended, run};
use kit::kernel_table::load_text;
use nfnetlink::{LogEvent, PacketLog};
use nix::sys::signal::Signal;

use super::{DB, OTHER, OUTSIDE, send_datagrams, stage, status, sum, until_reported};
use crate::stage::{NODE, Stage};

/// Another program of the node, which logs the packets to port 7.
struct Foreign(PacketLog);

impl Foreign {
    fn listen(stage: &Stage, group: u16) -> Foreign {
        stage.lab.node_exec(NODE, || {
            load_text(&format!(
                "table inet foreign {{ chain forward {{ type filter hook forward priority -10;\n\
                 udp dport 7 log prefix \"foreign\" group {group}\n}}\n}}\n"
            ));
            Foreign(PacketLog::open(group, 128).unwrap())
        })
    }

    /// The program gets its packets, and no others.
    #[track_caller]
    fn assert_undisturbed(&mut self, stage: &Stage) {
        send_datagrams(stage, OTHER[0], OUTSIDE[0], 7, 1);
        match self.0.next(WITHIN).unwrap() {
            Some(LogEvent::Packet(packet)) => assert_eq!(packet.prefix, "foreign"),
            other => panic!("{other:?}"),
        }
        assert_eq!(self.0.next(Duration::ZERO).unwrap(), None);
    }
}

#[test]
fn agent_skips_nflog_group_of_another_program() {
    let stage = stage();
    let mut foreign = Foreign::listen(&stage, 9470);
    let mut agent = stage.start_on_manifests();
    assert_eq!(status(&stage)["features"]["dropLogGroup"], 9471);
    assert!(stage.nft("list chain inet ringfence deny/ingress").contains("group 9471"));
    send_datagrams(&stage, OTHER[0], DB[0], 1000, 2);
    until_reported(&stage, &mut agent, "shop/db", "1000/udp", 2);
    foreign.assert_undisturbed(&stage);

    // The next agent uses the table's group, though another one is free by then, and changes nothing.
    drop(foreign);
    let generation = stage.kernel_generation();
    agent.signal(Signal::SIGKILL);
    agent.until_ended();
    let mut agent = stage.start_on_manifests();
    assert_eq!(status(&stage)["features"]["dropLogGroup"], 9471);
    send_datagrams(&stage, OTHER[0], DB[0], 1001, 2);
    until_reported(&stage, &mut agent, "shop/db", "1001/udp", 2);
    // Drop events of the previous agent are not reported again.
    send_datagrams(&stage, OTHER[0], DB[0], 1000, 3);
    assert_eq!(sum(&until_reported(&stage, &mut agent, "shop/db", "1000/udp", 3)), 3);
    let claimed = 1;
    assert!(stage.kernel_generation() <= generation + claimed, "the rules were there already");
}

#[test]
fn occupied_nflog_group_is_refused_naming_its_owner() {
    let stage = stage();
    let mut foreign = Foreign::listen(&stage, 5000);
    let mut command = stage.agent_on_manifests();
    command.args(["--nflog-group", "5000"]);
    let refused = stage.lab.node_exec(NODE, || ended(&mut command));
    assert_eq!(refused.code, Some(2));
    for words in ["--nflog-group 5000", "port id", "auto or off"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
    assert_eq!(stage.tables(), "table inet foreign\n");
    foreign.assert_undisturbed(&stage);
}

#[test]
fn agent_enforces_without_events_when_groups_are_exhausted() {
    let stage = stage();
    let _all: Vec<PacketLog> =
        stage.lab.node_exec(NODE, || (9470..9486).map(|group| PacketLog::open(group, 0).unwrap()).collect());
    let mut agent = stage.start_on_manifests();
    agent.until_logged(&["WARN", "log of denied packets: off: all NFLOG groups from 9470 to 9485 are in use"]);
    let features = &status(&stage)["features"];
    assert_eq!(features["dropLogGroup"], serde_json::Value::Null);
    assert!(features["dropLogReason"].as_str().unwrap().contains("are in use"), "{features}");
    send_datagrams(&stage, OTHER[0], DB[0], 1000, 1);
    agent.until("it is counted", |_| (status(&stage)["drops"]["denied"] == 1).then_some(()));
}

#[test]
fn nflog_off_counts_packets_without_events() {
    let stage = stage();
    let mut command = stage.agent_on_manifests();
    command.args(["--nflog-group", "off"]);
    let mut agent = stage.start(command);
    agent.until_ready();
    assert!(!stage.nft("list table inet ringfence").contains("log"));
    send_datagrams(&stage, OTHER[0], DB[0], 1000, 4);
    agent.until("they are counted", |_| {
        let status = status(&stage);
        let reason = status["features"]["dropLogReason"].as_str().unwrap().to_owned();
        assert!(reason.contains("--nflog-group off"), "{reason}");
        (status["drops"]["denied"] == 4 && status["drops"]["unnamed"] == 4).then_some(())
    });
    assert_eq!(super::drop_events(&stage, ""), Vec::<serde_json::Value>::new());
    let run_dir = stage.run_dir();
    for verb in [&["drops"][..], &["audit"], &["audit", "--suggest", "--namespace", "shop"]] {
        let said = run([verb, &["--run-dir", run_dir.to_str().unwrap()]].concat());
        let said = said.stdout + &said.stderr;
        assert!(
            said.contains("denied packets are not reported") && said.contains("--nflog-group off"),
            "{verb:?}: {said}"
        );
        assert!(said.contains("4 packets were denied and 0 would have been"), "{verb:?}: {said}");
    }
}
