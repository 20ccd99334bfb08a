use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Stdio};

use kit::agent_process::{ProgramExit, ringfence, run, until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::{DB, OTHER, OUTSIDE, WEB, lines, send_datagrams, stage, status, until_reported};
use crate::stage::Stage;

fn drops(stage: &Stage, arguments: &[&str]) -> ProgramExit {
    run([&["drops", "--run-dir", stage.run_dir().to_str().unwrap()], arguments].concat())
}

/// A running `ringfence drops --follow`.
struct Following {
    process: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Following {
    fn start(stage: &Stage, arguments: &[&str]) -> Following {
        let mut command = ringfence();
        command.args(["drops", "--follow", "-o", "json", "--run-dir"]).arg(stage.run_dir()).args(arguments);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Following { process, lines }
    }

    /// Blocks until the next event.
    fn next(&mut self) -> Value {
        serde_json::from_str(&self.lines.next().expect("a line").unwrap()).unwrap()
    }

    fn interrupt(mut self) {
        kill(Pid::from_raw(i32::try_from(self.process.id()).unwrap()), Signal::SIGINT).unwrap();
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn text_output_shows_names_and_closest_rule() {
    let stage = stage();
    let mut agent = stage.start_on_manifests();
    agent.until("it counts", |_| status(&stage)["drops"].is_object().then_some(()));
    let nothing = drops(&stage, &[]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
    assert!(nothing.stderr.contains("no matching packet was denied"), "{}", nothing.stderr);

    send_datagrams(&stage, OUTSIDE[0], DB[0], 53, 1);
    until_reported(&stage, &mut agent, "shop/db", "53/udp", 1);
    let shown = drops(&stage, &[]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    let mut shown_lines = shown.stdout.lines();
    let (time, rest) = shown_lines.next().unwrap().split_once("  ").unwrap();
    assert!(time.ends_with('Z') && time.contains('T'), "{time}");
    assert_eq!(rest, "denied  ingress  world (192.0.2.1) -> shop/db (10.1.0.2)  53/udp  x1  by shop/db");
    let closest = shown_lines.next().unwrap();
    assert!(
        closest.starts_with("    closest rule: shop/db spec.ingress[0]; it lacks the peer: 192.0.2.1"),
        "{closest}"
    );
    drop(agent);
    let gone = drops(&stage, &[]);
    assert_eq!(gone.code, Some(2));
    assert!(gone.stderr.contains("cannot connect to the agent"), "{}", gone.stderr);
}

#[test]
fn follow_streams_matching_events_until_stopped() {
    let stage = stage();
    let mut agent = stage.start_on_manifests();
    send_datagrams(&stage, WEB[0], DB[0], 53, 1);
    until_reported(&stage, &mut agent, "shop/db", "53/udp", 1);

    let mut all = Following::start(&stage, &[]);
    let mut of_other = Following::start(&stage, &["--pod", "shop/other", "--verdict", "denied"]);
    assert_eq!(all.next()["source"]["pod"], "shop/web");
    send_datagrams(&stage, WEB[0], DB[0], 54, 1);
    send_datagrams(&stage, OTHER[0], DB[0], 55, 1);
    assert_eq!(all.next()["traffic"], "54/udp");
    assert_eq!(all.next()["traffic"], "55/udp");
    assert_eq!(of_other.next()["traffic"], "55/udp");
    all.interrupt();
    of_other.interrupt();

    for (arguments, number) in [
        (vec!["--namespace", "shop"], 3),
        (vec!["--namespace", "ops"], 0),
        (vec!["--pod", "web"], 2),
        (vec!["--pod", "db", "--namespace", "shop"], 3),
        (vec!["--verdict", "would-deny"], 0),
    ] {
        let shown = drops(&stage, &[&arguments[..], &["-o", "json"]].concat());
        assert_eq!(lines(&shown.stdout).len(), number, "{arguments:?}: {}", shown.stdout);
    }

    // A subscriber is notified when the agent ends, and the verb exits quietly when its reader is gone.
    let mut following = Following::start(&stage, &[]);
    following.next();
    let mut unread = Following::start(&stage, &[]);
    unread.next();
    let Following { process: mut unread, lines } = unread;
    drop(lines);
    agent.until("the reader has ended", |_| {
        send_datagrams(&stage, OTHER[0], DB[0], 56, 1);
        unread.try_wait().unwrap().map(|status| assert_eq!(status.code(), Some(0)))
    });
    drop(agent);
    let ended = until("it ends", || following.process.try_wait().unwrap());
    assert_eq!(ended.code(), Some(2));
}

/// More than the limit of concurrent subscribers.
const ONE_AFTER_THE_OTHER: usize = 20;

#[test]
fn disconnected_readers_free_slots_without_new_events() {
    let stage = stage();
    let mut agent = stage.start_on_manifests();
    send_datagrams(&stage, WEB[0], DB[0], 53, 1);
    until_reported(&stage, &mut agent, "shop/db", "53/udp", 1);
    for _ in 0..ONE_AFTER_THE_OTHER {
        let mut following = Following::start(&stage, &[]);
        following.next();
        following.process.kill().and_then(|()| following.process.wait()).unwrap();
    }
    // The agent notices a closed connection a moment later.
    let mut reader = || {
        agent.until("there is room", |_| {
            let mut reader = Following::start(&stage, &[]);
            match reader.lines.next() {
                Some(line) => Some(line.map(|_| reader).unwrap()),
                None => reader.process.wait().map(|_| None).unwrap(),
            }
        })
    };
    let readers: Vec<Following> = (0..16).map(|_| reader()).collect();
    let refused = drops(&stage, &["--follow"]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("too many subscribers; try again later"), "{}", refused.stderr);
    let once = drops(&stage, &[]);
    assert_eq!((once.code, once.stderr.as_str()), (Some(0), ""), "what is kept is for everybody");
    readers.into_iter().for_each(Following::interrupt);
}
