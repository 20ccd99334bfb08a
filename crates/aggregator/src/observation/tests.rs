use clap::Parser;
use flow::FlowFilters;
use insight::LedgerEdge;

use super::*;
use crate::export::ExportArguments;
use crate::testing::{push_from, window};

#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    observation: ObservationArguments,
    #[command(flatten)]
    export: ExportArguments,
}

fn arguments(more: &[&str]) -> Arguments {
    Arguments::try_parse_from(["test", "--edges", "on"].iter().chain(more)).unwrap()
}

fn sums(observation: &Observation) -> Vec<(Option<u16>, u64)> {
    let sum = |edge: &LedgerEdge| (edge.observed.port, edge.observed.connections);
    observation.core().ledger.edges().map(sum).collect()
}

/// The numbers of events that wait and that were raised.
fn events(observation: &Observation) -> (usize, usize) {
    let core = observation.core();
    (core.ledger.pending().len(), core.ledger.recent().len())
}

#[test]
fn records_are_added_once_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = arguments(&["--state-dir", folder.path().to_str().unwrap()]);
    let open = |aggregate: &Aggregate| Observation::open(&arguments.observation, None, aggregate, window(0)).unwrap();
    let aggregate = Aggregate::new(1 << 20);
    let observation = open(&aggregate);
    push_from("n1", &aggregate, 1, &[(0, 5432, 3)], window(3));
    push_from("n1", &aggregate, 2, &[(1, 5432, 2), (1, 80, 1)], window(3));
    observation.observe(&aggregate, window(1), window(3));
    assert_eq!(sums(&observation), [(Some(5432), 3)]);
    observation.save();
    // Records added after the last save are lost with the process, and read again.
    observation.observe(&aggregate, window(2), window(4));
    assert_eq!(sums(&observation), [(Some(80), 1), (Some(5432), 5)]);
    drop(observation);
    let aggregate = Aggregate::new(1 << 20);
    let observation = open(&aggregate);
    assert_eq!(sums(&observation), [(Some(5432), 3)]);
    push_from("n1", &aggregate, 1, &[(0, 5432, 3)], window(4));
    push_from("n1", &aggregate, 2, &[(1, 5432, 2), (1, 80, 1)], window(4));
    observation.observe(&aggregate, window(2), window(4));
    assert_eq!(sums(&observation), [(Some(80), 1), (Some(5432), 5)]);
    // A record of a window that was added is late, and counts once.
    push_from("n1", &aggregate, 4, &[(1, 80, 4)], window(5));
    observation.observe(&aggregate, window(3), window(5));
    observation.observe(&aggregate, window(4), window(6));
    assert_eq!(sums(&observation), [(Some(80), 5), (Some(5432), 5)]);
    let read = |at| aggregate.read(at, &FlowFilters::default());
    let stored: u64 =
        [window(0), window(1)].into_iter().flat_map(read).map(|joined| joined.record.connections.started).sum();
    assert_eq!(stored, 10);
}

#[test]
fn damaged_state_is_reported_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("edges.json"), "{").unwrap();
    let arguments = arguments(&["--state-dir", folder.path().to_str().unwrap()]);
    let aggregate = Aggregate::new(1 << 20);
    let observation = Observation::open(&arguments.observation, None, &aggregate, window(0)).unwrap();
    assert!(observation.problems()[0].contains("damaged"), "{:?}", observation.problems());
    let busy = Observation::open(&arguments.observation, None, &aggregate, window(0)).err().unwrap();
    assert!(format!("{busy:#}").contains("another process"), "{busy:#}");
    observation.save();
    drop(observation);
    let again = Observation::open(&arguments.observation, None, &aggregate, window(0)).unwrap();
    assert_eq!(again.problems(), Vec::<String>::new());
}

/// The lines of first-seen events in the export after a start, a new edge, a crash before the event was confirmed, and
/// another start.
#[tokio::test]
async fn event_is_exported_once_and_survives_a_crash() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let arguments = arguments(&[
        "--state-dir",
        &path("state"),
        "--edge-learning",
        "1s",
        "--export-file",
        &path("lines.json"),
        "--spool-dir",
        &path("spool"),
    ]);
    let aggregate = Aggregate::new(1 << 20);
    let observation = Observation::open(&arguments.observation, None, &aggregate, window(0)).unwrap();
    push_from("n1", &aggregate, 1, &[(1, 5432, 3)], window(3));
    observation.observe(&aggregate, window(2), window(3));
    observation.save();
    drop(observation);
    let aggregate = Aggregate::new(1 << 20);
    let observation = Arc::new(Observation::open(&arguments.observation, None, &aggregate, window(0)).unwrap());
    let exports = Arc::new(Exports::open(&arguments.export, &aggregate, window(3)).await.unwrap());
    let run = |observation: Arc<Observation>| {
        let (aggregate, exports) = (Arc::new(Aggregate::new(1 << 20)), exports.clone());
        async move {
            let (end, ends) = oneshot::channel();
            drop(end);
            observation.run(aggregate, exports, ends).await;
        }
    };
    run(observation.clone()).await;
    run(observation.clone()).await;
    assert_eq!(events(&observation), (0, 1));
    drop(observation);
    let restored = Observation::open(&arguments.observation, None, &aggregate, window(0)).unwrap();
    assert_eq!(events(&restored), (0, 1));
    let (end, ends) = oneshot::channel();
    drop(end);
    exports.run(Arc::new(Aggregate::new(1 << 20)), ends).await;
    let lines = loop {
        match std::fs::read_to_string(path("lines.json")) {
            Ok(text) if !text.is_empty() => break text,
            Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    let lines: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let [line] = &*lines else { panic!("{lines:?}") };
    assert_eq!((line["firstSeen"].as_bool(), line["connections"]["started"].as_u64()), (Some(true), Some(0)));
}
