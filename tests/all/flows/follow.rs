//! `ringfence flows --follow`, and `follow=true` of the API: records are sent when their windows close.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Stdio};
use std::sync::mpsc::{Receiver, channel};

use jiff::Timestamp;
use kit::agent_process::{ProgramExit, WITHIN, ended, until};
use serde_json::Value;
use tests::fake_clock::FakeClock;

use super::filters::{admits, window_end};
use super::verb::flows;
use super::{PORT, WINDOW_SECONDS, exchange, serve, start, start_with_clock, sum};
use crate::drops::{DB, OTHER, OUTSIDE, WEB, stage};
use crate::stage::Stage;

/// Limit of concurrent subscribers.
const FOLLOWERS: usize = 16;

/// A running `ringfence flows --follow`, which is killed on drop.
struct Follower {
    process: Child,
    lines: Receiver<String>,
}

impl Follower {
    fn start(stage: &Stage, arguments: &[&str]) -> Follower {
        let mut command = flows(stage, arguments);
        let mut process = command.arg("--follow").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).all(|line| sender.send(line).is_ok()));
        Follower { process, lines }
    }

    #[track_caller]
    fn next(&self) -> String {
        self.lines.recv_timeout(WITHIN).expect("a line")
    }

    #[track_caller]
    fn next_record(&self) -> Value {
        serde_json::from_str(&self.next()).unwrap()
    }

    #[track_caller]
    fn until_ended(&mut self) -> ProgramExit {
        let status = until("the follower ends", || self.process.try_wait().unwrap());
        let mut stderr = String::new();
        self.process.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        ProgramExit { code: status.code(), stdout: self.lines.try_iter().collect(), stderr }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("a follower does not end: {error}");
        }
    }
}

/// Follows through the API. Returns the status of the response, and a reader of its body.
fn subscribe(stage: &Stage) -> (u16, BufReader<UnixStream>) {
    let mut stream = UnixStream::connect(stage.run_dir().join("agent.sock")).unwrap();
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    // An HTTP/1.0 response is not chunked.
    stream.write_all(b"GET /v1/flows?follow=true HTTP/1.0\r\nhost: ringfence\r\n\r\n").unwrap();
    let mut answer = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert!(answer.read_line(&mut head).unwrap() > 0, "{head}");
    }
    (head.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

#[test]
fn followed_records_come_as_windows_close() {
    let stage = stage();
    let agent = start(&stage);
    serve(&stage, DB[0], PORT);
    serve(&stage, OTHER[0], 80);
    let json = |filter: &[&str]| Follower::start(&stage, &[filter, &["--output", "json"]].concat());
    let mut all = json(&[]);
    let filters: [&[(&str, &str)]; 3] =
        [&[("namespace", "shop"), ("peer", "world")], &[("workload", "shop/web")], &[("peer", "shop/db")]];
    let filtered = filters.map(|filter| {
        let flags: Vec<String> = filter.iter().map(|(field, value)| format!("--{field}={value}")).collect();
        (filter, json(&flags.iter().map(String::as_str).collect::<Vec<&str>>()))
    });
    let text = Follower::start(&stage, &["--workload", "shop/web", "--peer", "shop/db"]);
    let nobody = Follower::start(&stage, &["--namespace", "nobody"]);
    let mut unread = {
        let mut command = flows(&stage, &["--follow"]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        command.stdout(writer).stderr(Stdio::piped()).spawn().unwrap()
    };
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    exchange(&stage, OUTSIDE[0], OTHER[0], 80, 10);

    let mut records = Vec::new();
    while sum(&records, "/connections/started") < 2 {
        let record = all.next_record();
        assert!(window_end(&record) <= Timestamp::now(), "of a window that is still open: {record:#}");
        records.push(record);
    }
    assert!(records.is_sorted_by_key(window_end), "{records:#?}");
    for (filter, follower) in &filtered {
        let expected: Vec<&Value> = records.iter().filter(|record| admits(filter, record)).collect();
        assert!(!expected.is_empty() && expected.len() < records.len(), "{filter:?}: {records:#?}");
        for record in expected {
            assert_eq!(follower.next_record(), *record, "{filter:?}");
        }
    }
    let line = text.next();
    let words = ["shop/web -> shop/db", "5432/tcp", "allowed", "kB sent", "ingress: shop/db spec.ingress[0]"];
    assert!(words.iter().all(|word| line.contains(word)), "{line}");
    assert_eq!(nobody.lines.try_iter().count(), 0);
    let status = until("the follower without a reader ends", || unread.try_wait().unwrap());
    assert_eq!(status.code(), Some(0), "{:?}", unread.wait_with_output());

    let (status, log) = agent.stop();
    assert_eq!(status.code(), Some(0), "{log}");
    let last = all.until_ended();
    assert_eq!(last.code, Some(2), "{last:?}");
    assert!(last.stderr.contains("the agent"), "{last:?}");
}

#[test]
fn seventeenth_follower_is_refused() {
    let stage = stage();
    let mut agent = start(&stage);
    let mut followers: Vec<_> = (0..FOLLOWERS).map(|_| subscribe(&stage)).collect();
    assert!(followers.iter().all(|(status, _)| *status == 200));
    assert_eq!(subscribe(&stage).0, 503);
    let refused = ended(flows(&stage, &[]).arg("--follow"));
    assert_eq!(refused.code, Some(2));
    assert!(refused.stderr.contains("too many subscribers; try again later"), "{}", refused.stderr);
    assert_eq!(ended(&mut flows(&stage, &[])).code, Some(0), "queries do not count towards the limit of subscribers");
    drop(followers.pop());
    // The agent notices the closed connection a moment later, although there is nothing to send.
    let last = agent.until("a subscription is free", |_| Some(subscribe(&stage)).filter(|(status, _)| *status == 200));
    assert_eq!(subscribe(&stage).0, 503);
    drop(last);
}

#[test]
fn killed_agent_ends_its_followers_with_an_error() {
    let (stage, clock) = (stage(), FakeClock::new());
    let agent = start_with_clock(&stage, &clock);
    serve(&stage, DB[0], PORT);
    exchange(&stage, WEB[0], DB[0], PORT, 1000);
    let mut follower = Follower::start(&stage, &[]);
    clock.set(WINDOW_SECONDS);
    follower.next();
    drop(agent);
    let last = follower.until_ended();
    assert_eq!(last.code, Some(2), "{last:?}");
    assert!(last.stderr.contains("the agent"), "{last:?}");
}
