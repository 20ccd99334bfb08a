use std::collections::BTreeMap;

use serde_json::Value;
use sse::{ParsedEvent, Parser};

use super::*;
use crate::testing::{begin, push, window};

fn follower(aggregate: &Arc<Aggregate>, next: Page) -> Follower {
    Follower {
        aggregate: aggregate.clone(),
        joins: Arc::new(Semaphore::new(JOINS)),
        filters: Arc::new(FlowFilters::default()),
        next,
        restarted: None,
    }
}

/// An output that sends a heartbeat as soon as no event is due.
fn output(events: mpsc::Sender<Bytes>) -> Output {
    Output { events, stall: STALL, heartbeat: Duration::ZERO }
}

/// Events that a follower sends before its first heartbeat.
async fn sent(follower: Follower) -> Vec<ParsedEvent> {
    let (events, mut queue) = mpsc::channel(QUEUED_EVENTS);
    let running = tokio::spawn(follower.run(output(events)));
    let (mut parser, mut parsed) = (Parser::new(), Vec::new());
    while let Some(event) = queue.recv().await {
        if event == sse::STILL_HERE {
            break;
        }
        parser.push(&event, &mut parsed).unwrap();
    }
    running.abort();
    parsed
}

fn data(event: &ParsedEvent) -> Value {
    serde_json::from_slice(&event.data).unwrap()
}

/// Connections of the events' records, by window and port, and how often each was there.
fn connections(events: &[ParsedEvent]) -> BTreeMap<(String, u64), Vec<u64>> {
    let mut found: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for event in events.iter().filter(|event| event.event == FLOWS) {
        for record in data(event)["records"].as_array().unwrap() {
            let key = (record["window"].as_str().unwrap().to_owned(), record["port"].as_u64().unwrap());
            found.entry(key).or_default().push(record["connections"]["started"].as_u64().unwrap());
        }
    }
    found
}

fn later(seconds: i64) -> Timestamp {
    begin() + SignedDuration::from_secs(seconds)
}

#[tokio::test]
async fn stream_has_settled_windows_only() {
    let aggregate = Arc::new(Aggregate::new(1 << 20));
    push(&aggregate, 1, &[(0, 80, 1), (1, 80, 2), (2, 80, 4)], later(40));
    aggregate.advance_watermark(later(60));
    let events = sent(follower(&aggregate, Page::at(begin()))).await;
    let names: Vec<&str> = events.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(names, [OPEN, FLOWS, FLOWS]);
    let ids: Vec<&str> = events.iter().map(|event| event.id.as_str()).collect();
    assert_eq!(ids, ["2026-05-04T11:59:45Z", "2026-05-04T12:00:00Z", "2026-05-04T12:00:15Z"]);
    assert_eq!(connections(&events).into_values().flatten().sum::<u64>(), 3);
}

#[tokio::test]
async fn resumed_stream_has_each_record_once() {
    let aggregate = Arc::new(Aggregate::new(64 << 20));
    // Some 900 kB a window: two events.
    let records: Vec<(i64, u16, u64)> =
        (0..3).flat_map(|window| (1..=1_200).map(move |port| (window, port, u64::from(port)))).collect();
    push(&aggregate, 1, &records, later(40));
    aggregate.advance_watermark(later(75));
    let whole = sent(follower(&aggregate, Page::at(begin()))).await;
    assert_eq!(connections(&whole).len(), 3_600);
    assert!(whole.iter().filter(|event| data(event)["more"] == true).count() >= 3, "{}", whole.len());
    for cut in 0..whole.len() {
        let next = read_id(&whole[cut].id).unwrap();
        let rest = sent(follower(&aggregate, next)).await;
        let all: Vec<ParsedEvent> = whole[..=cut].iter().chain(&rest).cloned().collect();
        let found = connections(&all);
        assert!(found.values().all(|times| times.len() == 1), "cut behind event {cut}: a record twice");
        assert_eq!(found, connections(&whole), "cut behind event {cut}");
    }
}

#[tokio::test]
async fn windows_that_left_are_announced() {
    let aggregate = Arc::new(Aggregate::new(1 << 20));
    push(&aggregate, 1, &[(0, 80, 1), (1, 80, 2), (2, 80, 4)], later(40));
    aggregate.advance_watermark(later(75));
    aggregate.expire(later(3_600 + 30 + 15));
    let events = sent(follower(&aggregate, Page::at(begin()))).await;
    let names: Vec<&str> = events.iter().map(|event| event.event.as_str()).collect();
    assert_eq!(names, [OPEN, GAP, FLOWS]);
    let gap = data(&events[1]);
    assert_eq!((&gap["from"], &gap["until"]), (&window(0).to_string().into(), &window(2).to_string().into()));
    assert_eq!(connections(&events).into_values().flatten().sum::<u64>(), 4);
    // A reader that resumes after the event lacks no record.
    let events = sent(follower(&aggregate, Page::at(window(2)))).await;
    assert!(events.iter().all(|event| event.event != GAP));
}

#[tokio::test]
async fn reader_from_before_the_start_gets_a_gap() {
    let aggregate = Arc::new(Aggregate::new(1 << 20));
    aggregate.advance_watermark(later(75));
    let mut follower = follower(&aggregate, Page::at(begin()));
    follower.restarted = Some(later(50));
    let events = sent(follower).await;
    let [_, gap] = &*events else { panic!("{events:?}") };
    assert_eq!((gap.event.as_str(), gap.id.as_str()), (GAP, "2026-05-04T11:59:45Z"));
    assert_eq!(data(gap)["until"], "2026-05-04T12:00:45Z");
}

#[tokio::test]
async fn stream_follows_a_clock_that_is_set_back() {
    let aggregate = Arc::new(Aggregate::new(1 << 20));
    aggregate.advance_watermark(later(86_400));
    let (events, mut queue) = mpsc::channel(QUEUED_EVENTS);
    let running = tokio::spawn(follower(&aggregate, Page::at(begin())).run(output(events)));
    let (mut parser, mut parsed) = (Parser::new(), Vec::new());
    // The stream has sent all settled windows, and waits.
    while queue.recv().await.unwrap() != sse::STILL_HERE {}
    push(&aggregate, 1, &[(2, 80, 1), (3, 80, 2)], later(60));
    aggregate.advance_watermark(later(60));
    while connections(&parsed).len() < 2 {
        let event = queue.recv().await.unwrap();
        if event != sse::STILL_HERE {
            parser.push(&event, &mut parsed).unwrap();
        }
        aggregate.advance_watermark(later(90));
    }
    running.abort();
    let gap = data(&parsed[0]);
    assert_eq!((parsed[0].event.as_str(), &gap["from"]), (GAP, &window(2).to_string().into()));
}

#[tokio::test]
async fn reader_that_stalls_is_cut_off() {
    let aggregate = Arc::new(Aggregate::new(1 << 20));
    push(&aggregate, 1, &[(0, 80, 1), (1, 80, 2), (2, 80, 4)], later(40));
    aggregate.advance_watermark(later(75));
    let (events, queue) = mpsc::channel(QUEUED_EVENTS);
    let output = Output { stall: Duration::from_millis(20), ..output(events) };
    let ended = follower(&aggregate, Page::at(begin())).run(output).await;
    assert_eq!(ended, StreamEnd::Stalled);
    // Events that were queued before the stall remain readable.
    assert_eq!(queue.len(), QUEUED_EVENTS);
}

#[tokio::test]
async fn heartbeat_comes_although_empty_windows_settle() {
    let aggregate = Arc::new(Aggregate::new(1 << 20));
    let (events, mut queue) = mpsc::channel(QUEUED_EVENTS);
    let output = Output { heartbeat: Duration::from_millis(60), ..output(events) };
    let running = tokio::spawn(follower(&aggregate, Page::at(begin())).run(output));
    let mut settling = tokio::time::interval(Duration::from_millis(10));
    let mut has_heartbeat = false;
    for number in 0..500 {
        tokio::select! {
            event = queue.recv() => has_heartbeat |= event == Some(sse::STILL_HERE),
            _ = settling.tick() => aggregate.advance_watermark(later(15 * number)),
        }
        if has_heartbeat {
            break;
        }
    }
    running.abort();
    assert!(has_heartbeat);
}

#[test]
fn ids_read_back_to_where_they_go_on() {
    let place = "7673af80b319dbebdf9fabf0856017cd".parse().unwrap();
    for next in [Page::at(begin()), Page { window: begin(), after: Some(place) }] {
        assert_eq!(read_id(&id(next)).unwrap(), next);
    }
    assert_eq!(read_id("12:34").unwrap_err().code, axum::http::StatusCode::BAD_REQUEST);
}
