//! Streaming lists that fail where paged lists would succeed.

use std::time::{Duration, Instant};

use cluster::RequestTiming;
use kit::fake_api::{FailingStreams, FakeApi, NO_WATCH_PROGRESS, Request, StreamFailure, Verb};
use policy::Kind;

use super::{InformerReader, impatient, pod, small_cluster};

fn streams(api: &FakeApi) -> usize {
    let is_stream = |r: &&Request| r.kind == Kind::Pod.into() && r.has("sendInitialEvents", "true");
    api.requests().iter().filter(is_stream).count()
}

/// Whether a source completes its initial sync, has no problem in the end, and follows changes.
async fn check_sync(failure: StreamFailure, requests: Option<usize>) -> FakeApi {
    println!("{failure:?} {requests:?}");
    let api = small_cluster();
    api.faults(|f| f.failing_streams = Some(FailingStreams { failure, requests }));
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), impatient()).await;
    known.until_synced().await;
    known.until_pods(&["web"]).await;
    api.until_watched().await;
    known.until_well().await;
    api.set(Kind::Pod, pod("db"));
    known.until_pods(&["db", "web"]).await;
    api
}

#[tokio::test]
async fn failed_first_stream_falls_back_to_pages() {
    let overloaded = [400, 500, 503, 504].map(|code| StreamFailure::Status(code, "not now"));
    for failure in overloaded.into_iter().chain([NO_WATCH_PROGRESS]) {
        for requests in [Some(1), None] {
            let api = check_sync(failure.clone(), requests).await;
            assert_eq!((streams(&api), api.count(Verb::List, Kind::Pod)), (1, 1));
        }
    }
}

#[tokio::test]
async fn repeatedly_failing_streams_fall_back_to_pages() {
    for failure in [StreamFailure::Busy { seconds: 1 }, StreamFailure::Ends, StreamFailure::Breaks] {
        let api = check_sync(failure.clone(), Some(1)).await;
        assert_eq!((streams(&api), api.count(Verb::List, Kind::Pod)), (2, 0), "{failure:?} once");
        let api = check_sync(failure.clone(), None).await;
        assert_eq!((streams(&api), api.count(Verb::List, Kind::Pod)), (3, 1), "{failure:?} always");
    }
}

#[tokio::test]
async fn streaming_is_tried_again_after_the_interval() {
    let api = small_cluster();
    api.faults(|f| f.failing_streams = Some(FailingStreams { failure: NO_WATCH_PROGRESS, requests: Some(1) }));
    let timing = RequestTiming { streaming_retry: Duration::from_millis(100), ..impatient() };
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), timing).await;
    known.until_synced().await;
    let began = Instant::now();
    while streams(&api) < 2 {
        assert!(began.elapsed() < kit::fake_api::DEADLINE, "no other streaming list: {:#?}", api.requests());
        api.until_watched().await;
        let lists = known.lists_of_pods();
        api.set(Kind::Namespace, serde_json::json!({"metadata": {"name": "later"}}));
        api.compact();
        api.cut_connections();
        known.until("another list", |known| known.lists_of_pods() > lists).await;
    }
    known.until_well().await;
}

#[tokio::test]
async fn retry_after_header_delays_the_next_request() {
    let api = small_cluster();
    let failure = StreamFailure::Busy { seconds: 1 };
    api.faults(|f| f.failing_streams = Some(FailingStreams { failure, requests: Some(1) }));
    let timing = RequestTiming { backoff_last: Duration::from_secs(2), ..impatient() };
    let began = Instant::now();
    let mut known: InformerReader = InformerReader::of(&api.kubeconfig(), timing).await;
    known.until_problem("the API server returned 429 to watch pods; message: Too many requests").await;
    known.until_synced().await;
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
}
