use std::io::Read;
use std::sync::Arc;

use flate2::read::GzDecoder;
use flow::{EndpointKind, FlowRecord, Network, Volume};

use super::*;
use crate::testing::{pod, record, trail_of, window};

fn decoded(body: &MetricBody) -> Value {
    let mut text = String::new();
    GzDecoder::new(&*body.body).read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn points(sums: &mut FlowBytes, now: Timestamp) -> Vec<Value> {
    let body = sums.encode("east", now).unwrap().expect("points");
    let points = decoded(&body)["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["sum"]["dataPoints"].clone();
    let points = points.as_array().unwrap().clone();
    assert_eq!(points.len() as u64, body.points);
    points
}

fn bytes(point: &Value) -> u64 {
    point["asInt"].as_str().unwrap().parse().unwrap()
}

/// A line between two workloads with these bytes.
fn line(number: i64, server: &str, sent: u64, received: u64) -> TrailRecord {
    let mut record = record("n1", number, &["n1"], &[], 1);
    Arc::make_mut(&mut record.key).destination = pod("data", server);
    let volume = |bytes| (bytes > 0).then_some(Volume { packets: 1, bytes });
    let record = FlowRecord { sent: volume(sent), received: volume(received), ..record };
    trail_of(vec![record]).remove(0)
}

#[test]
fn sums_have_attributes_of_ebpf_instrumentation() {
    let mut sums = FlowBytes::new(10, window(0));
    assert_eq!(sums.encode("east", window(1)).unwrap(), None, "no points without bytes");
    sums.add(&line(1, "db", 300, 4_000), window(3));
    let body = decoded(&sums.encode("east", window(4)).unwrap().unwrap());
    let string = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
    let port = json!({"key": "server.port", "value": {"intValue": "5432"}});
    let ends = |source: (&str, &str), destination: (&str, &str)| -> Vec<Value> {
        let end = |side: &str, (namespace, name): (&str, &str)| {
            [
                string(&format!("ringfence.{side}.kind"), "pod"),
                string(&format!("{side}.name"), &format!("{namespace}/{name}")),
                string(&format!("k8s.{side}.namespace"), namespace),
                string(&format!("k8s.{side}.owner.name"), name),
            ]
        };
        [end("src", source), end("dst", destination)].concat()
    };
    let of = |ends: Vec<Value>, direction: &str, bytes: &str| {
        let mut attributes = ends;
        attributes.extend([string("transport", "tcp"), port.clone(), string("direction", direction)]);
        json!({
            "attributes": attributes,
            "startTimeUnixNano": "1777896000000000000",
            "timeUnixNano": "1777896060000000000",
            "asInt": bytes,
        })
    };
    let (web, db) = (("shop", "web"), ("data", "db"));
    let metric = json!({
        "name": "ringfence.network.flow.bytes",
        "description": "Bytes of connections, by workloads",
        "unit": "By",
        "sum": {
            "aggregationTemporality": 2,
            "isMonotonic": true,
            "dataPoints": [of(ends(web, db), "request", "300"), of(ends(db, web), "response", "4000")],
        },
    });
    let resource = [string("service.name", "ringfence-flows"), string("k8s.cluster.name", "east")];
    let scope = json!({"name": "ringfence.flows", "version": env!("CARGO_PKG_VERSION")});
    assert_eq!(
        body,
        json!({"resourceMetrics": [{
            "resource": {"attributes": resource},
            "scopeMetrics": [{"scope": scope, "metrics": [metric]}],
        }]})
    );
}

#[test]
fn sums_are_bytes_of_all_records_within_bound() {
    let (mut sums, mut total) = (FlowBytes::new(7, window(0)), 0);
    for number in 1..40 {
        for server in 0..number {
            sums.add(&line(number, &format!("db-{server}"), 10 + server as u64, 1_000), window(number));
            total += 1_010 + server as u64;
        }
        let points = points(&mut sums, window(number));
        assert!(points.len() <= 8, "seven series and the overflow series");
        assert_eq!(points.iter().map(bytes).sum::<u64>(), total, "window {number}");
    }
    let points = points(&mut sums, window(40));
    assert_eq!(points.len(), 8);
    let other = json!([{"key": "otel.metric.overflow", "value": {"boolValue": true}}]);
    assert_eq!(points[7]["attributes"], other);
}

#[test]
fn series_do_not_distinguish_pods_or_identities() {
    let mut sums = FlowBytes::new(10, window(0));
    let mut other = line(1, "db", 100, 0);
    Arc::make_mut(&mut other.joined.record.key).source.service = Some("shop/identity".into());
    sums.add(&line(1, "db", 100, 0), window(1));
    sums.add(&other, window(1));
    let mut outside = line(1, "db", 7, 0);
    let world = &mut Arc::make_mut(&mut outside.joined.record.key).source;
    (world.kind, world.namespace, world.name) = (EndpointKind::World, None, None);
    world.network = Some(Network::Public);
    sums.add(&outside, window(1));
    let points = points(&mut sums, window(2));
    assert_eq!(points.iter().map(bytes).collect::<Vec<_>>(), [200, 7]);
    let names: Vec<&Value> = points[1]["attributes"].as_array().unwrap().iter().map(|a| &a["key"]).collect();
    assert!(names.iter().all(|name| !name.as_str().unwrap().starts_with("k8s.src")), "{names:?}");
}

#[test]
fn times_increase_if_clock_is_set_back() {
    let mut sums = FlowBytes::new(10, window(0));
    let mut last = window(0).as_nanosecond();
    for now in [5, 5, 1, 6] {
        sums.add(&line(1, "db", 1, 0), window(now));
        let time = points(&mut sums, window(now))[0]["timeUnixNano"].as_str().unwrap().parse::<i128>().unwrap();
        assert!(time > last, "{time} after {last}");
        last = time;
    }
}

#[test]
fn new_series_replaces_expired_idle_series() {
    let mut sums = FlowBytes::new(1, window(0));
    sums.add(&line(1, "db", 100, 0), window(1));
    points(&mut sums, window(1));
    sums.expire(window(2));
    sums.add(&line(2, "cache", 5, 0), window(2));
    assert_eq!(points(&mut sums, window(2)).iter().map(bytes).collect::<Vec<_>>(), [100, 5], "no free series");
    // A series without bytes expires after 240 windows, which are an hour.
    sums.expire(window(241));
    sums.add(&line(241, "cache", 7, 0), window(241));
    let points = points(&mut sums, window(241));
    assert_eq!(points.iter().map(bytes).collect::<Vec<_>>(), [7, 5]);
    assert_eq!(points[0]["startTimeUnixNano"], window(2).as_nanosecond().to_string(), "after the last points");
}
