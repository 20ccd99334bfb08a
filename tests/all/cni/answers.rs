use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cni::protocol::{Request, Response};
use kit::agent_process::{WITHIN, until};
use kit::cni_runtime::{FakeAgent, PluginFailure, Reply};
use serde_json::json;

use super::{Place, Pod};

const TRY_AGAIN_LATER: u64 = 11;

#[track_caller]
fn assert_not_started(place: &Place, failed: &PluginFailure, reason: &str) {
    assert_eq!((failed.plugin.as_str(), failed.code), ("ringfence-cni", TRY_AGAIN_LATER), "{failed:?}");
    assert_eq!(failed.message, "the policies of pod shop/api-0 are not in force");
    assert!(failed.details.contains(reason), "{failed:?}");
    assert_eq!(failed.cni_version, "1.0.0");
    assert_eq!(place.attachments(), []);
}

fn answer(response: Response) -> impl FnMut(&Request) -> Reply + Send + 'static {
    move |request| match request {
        Request::Add { .. } => Reply::Answer(response.clone()),
        _ => Reply::Answer(Response::Ok),
    }
}

fn reason(text: &str) -> String {
    text.into()
}

#[test]
fn a_pod_waits_until_the_agent_answers() {
    let place = Place::new();
    let (asked, is_asked) = channel();
    let (go, may_answer) = channel::<()>();
    let _agent = FakeAgent::start(&place.socket(), move |_| {
        asked.send(()).unwrap();
        may_answer.recv_timeout(WITHIN).unwrap();
        Reply::enforced()
    });
    let runtime = place.ptp_runtime(json!({}));
    let pod = Pod::new("api-0");
    std::thread::scope(|scope| {
        let add = scope.spawn(|| runtime.add(&pod.container));
        is_asked.recv_timeout(WITHIN).unwrap();
        assert_eq!(place.attachments().len(), 1, "it is kept before the agent is asked");
        assert!(!add.is_finished());
        go.send(()).unwrap();
        add.join().unwrap().unwrap();
    });
}

#[test]
fn add_without_agent_fails_retriable_and_leaves_nothing() {
    let place = Place::new();
    let pod = Pod::new("api-0");
    let begin = Instant::now();
    let failed = place.ptp_runtime(json!({"timeoutSeconds": 1})).add(&pod.container).unwrap_err();
    assert!(begin.elapsed() >= Duration::from_millis(900), "{:?}", begin.elapsed());
    assert_not_started(&place, &failed, "cannot connect to the agent at");
    // A user who has deleted Ringfence may see only the pod's events.
    assert!(failed.details.contains("kubectl apply -f deploy/uninstall.yaml"), "{failed:?}");
    let runtime = place.ptp_runtime(json!({}));
    runtime.delete(&pod.container).unwrap();
    let _agent = FakeAgent::enforcing(&place.socket());
    runtime.add(&pod.container).unwrap();
}

#[test]
fn plugin_retries_late_or_disconnecting_agent() {
    let place = Place::new();
    let runtime = place.ptp_runtime(json!({}));
    let pod = Pod::new("api-0");
    std::thread::scope(|scope| {
        let add = scope.spawn(|| runtime.add(&pod.container));
        until("the plugin asks", || Some(()).filter(|()| !place.attachments().is_empty()));
        let mut times = 0;
        let agent = FakeAgent::start(&place.socket(), move |_| {
            times += 1;
            match times {
                1 => Reply::Bytes(Vec::new()),
                2 => Reply::close(),
                _ => Reply::enforced(),
            }
        });
        add.join().unwrap().unwrap();
        assert_eq!(agent.requests().len(), 3);
    });
}

#[test]
fn an_agent_that_restarts_is_asked_again() {
    let place = Place::new();
    let runtime = place.ptp_runtime(json!({}));
    let pod = Pod::new("api-0");
    std::thread::scope(|scope| {
        let (asked, is_asked) = channel();
        let first = FakeAgent::start(&place.socket(), move |_| {
            asked.send(()).unwrap();
            Reply::Silence
        });
        let add = scope.spawn(|| runtime.add(&pod.container));
        is_asked.recv_timeout(WITHIN).unwrap();
        drop(first);
        let _second = FakeAgent::enforcing(&place.socket());
        add.join().unwrap().unwrap();
    });
}

#[test]
fn add_times_out_when_agent_is_silent() {
    let place = Place::new();
    let _agent = FakeAgent::start(&place.socket(), |_| Reply::Silence);
    let begin = Instant::now();
    let failed = place.ptp_runtime(json!({"timeoutSeconds": 1})).add(&Pod::new("api-0").container).unwrap_err();
    // Much less than the default of ten seconds.
    assert!((Duration::from_secs(1)..Duration::from_secs(8)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    assert_not_started(&place, &failed, ": timed out");
}

#[test]
fn add_fails_retriable_when_agent_cannot_enforce() {
    for response in [
        Response::Failed { reason: reason("the kernel refused") },
        Response::Isolated { reason: reason("the kernel refused") },
    ] {
        let place = Place::new();
        let agent = FakeAgent::start(&place.socket(), answer(response));
        let pod = Pod::new("api-0");
        let failed = place.ptp_runtime(json!({})).add(&pod.container).unwrap_err();
        assert_not_started(&place, &failed, "the kernel refused");
        assert_eq!(agent.requests().last(), Some(&Request::Delete(pod.id())), "the agent is to forget it");
    }
}

#[test]
fn add_fails_on_invalid_agent_response() {
    let answers: [(&[u8], &str); 4] = [
        (b"{\"version\":1,\"result\":\"ok\"}\n", "unexpected response of the agent"),
        (b"{\"version\":2,\"result\":\"enforced\"}\n", "unsupported protocol version 2"),
        (b"{\"version\":1,\"result\":\"maybe\"}\n", "cannot decode the line"),
        (b"enforced\n", "cannot decode the line"),
    ];
    for (bytes, why) in answers {
        let place = Place::new();
        let _agent = FakeAgent::start(&place.socket(), move |_| Reply::Bytes(bytes.to_vec()));
        let failed = place.ptp_runtime(json!({"timeoutSeconds": 1})).add(&Pod::new("api-0").container).unwrap_err();
        assert_not_started(&place, &failed, why);
    }
}
