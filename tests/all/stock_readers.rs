use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;

use context::mmdb::{DatabaseType, Description, Value, read::Database, write, write_as};
use feed::Position;
use kit::provider_process::run;
use serde_json::{Value as Json, json};
use tempfile::NamedTempFile;

type Table = BTreeMap<IpAddr, Record>;

#[derive(Clone, PartialEq, Eq, Hash)]
struct Record {
    workload: &'static str,
    replica: u32,
    labels: Vec<(&'static str, &'static str)>,
}

/// A list of texts, one of which other records share.
const HOSTED: [&str; 3] = ["kube-system/kube-proxy", "frontend", "größe/x"];

fn record(workload: &'static str, replica: u32) -> Record {
    let labels = match workload {
        "frontend" => vec![("app.kubernetes.io/name", "frontend"), ("tier", "web")],
        _ => vec![],
    };
    Record { workload, replica, labels }
}

impl Record {
    fn value(&self) -> Value<'_> {
        let mut pairs = vec![
            ("workload", Value::text(self.workload)),
            ("namespace", Value::text("größe")),
            ("internet_exposed", Value::Bool(self.workload == "frontend")),
            ("control_plane", Value::Bool(false)),
            ("num", Value::Uint32(self.replica)),
        ];
        if self.workload == "kafka-0" {
            pairs.push(("host_workloads", Value::Array(HOSTED.iter().map(|name| Value::text(*name)).collect())));
        }
        if !self.labels.is_empty() {
            pairs.push(("labels", Value::Map(self.labels.iter().map(|(k, v)| (*k, Value::text(*v))).collect())));
        }
        Value::Map(pairs)
    }

    fn json(&self) -> Json {
        let mut json = json!({
            "workload": self.workload,
            "namespace": "größe",
            "internet_exposed": self.workload == "frontend",
            "control_plane": false,
            "num": self.replica,
        });
        if self.workload == "kafka-0" {
            json["host_workloads"] = json!(HOSTED);
        }
        if !self.labels.is_empty() {
            json["labels"] = self.labels.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
        }
        json
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Pods of both families, some of them with adjacent addresses, and enough for pointers of three bytes.
fn table() -> Table {
    let notable = [
        "10.0.0.4",
        "10.0.0.5",
        "100.64.0.1",
        "192.168.255.255",
        "255.255.255.255",
        "0.0.0.0",
        "fd00::1",
        "fd00::2",
        "2001:db8::ffff",
    ];
    let mut table: Table = notable.into_iter().map(|text| (address(text), record("frontend", 256))).collect();
    table.insert(address("fd00::2"), record("kafka-0", u32::MAX));
    table.extend((0..2_000).map(|n| (Ipv4Addr::from_bits(0xac10_0000 + n).into(), record("frontend", n))));
    table
}

fn absent() -> [IpAddr; 8] {
    ["10.0.0.3", "10.0.0.6", "0.0.0.1", "255.255.255.254", "fd00::", "fd00::3", "2001:db8::fffe", "ffff::"].map(address)
}

fn description() -> Description {
    let position = Position { epoch: 1_700_000_000_123 << 10, seq: 42 };
    Description { position, version: "id-0123456789abcdef".into() }
}

fn file_of(table: &Table) -> NamedTempFile {
    let entries = table.iter().map(|(address, record)| (*address, record));
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), write(entries, &description(), Record::value).unwrap()).unwrap();
    file
}

/// Queries for every reader: each notable address, a sample of the many, and addresses without a record.
fn asked(table: &Table) -> Vec<(IpAddr, Option<Json>)> {
    let present = table.iter().enumerate().filter(|(i, _)| i % 250 < 12).map(|(_, entry)| *entry.0);
    present.chain(absent()).map(|address| (address, table.get(&address).map(Record::json))).collect()
}

#[test]
fn the_rust_crate_reads_what_was_written() {
    let table = table();
    let file = std::fs::read(file_of(&table).path()).unwrap();
    let database = Database::open(file).unwrap();
    for (address, record) in asked(&table) {
        assert_eq!(database.lookup::<Json>(address).unwrap(), record, "{address}");
    }
}

#[test]
fn mmdblookup_reads_what_was_written() {
    for table in [Table::new(), table()] {
        let file = file_of(&table);
        for (address, record) in asked(&table) {
            assert_eq!(mmdblookup(file.path(), address), record, "{address}");
        }
    }
}

fn mmdblookup(file: &Path, address: IpAddr) -> Option<Json> {
    let output = Command::new("mmdblookup")
        .arg("--file")
        .arg(file)
        .args(["--ip", &address.to_string()])
        .output()
        .expect("mmdblookup, of the Debian package mmdb-bin");
    let said = String::from_utf8(output.stdout).unwrap();
    if output.status.success() {
        return Some(printed(&said));
    }
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("Could not find an entry"), "{address}: {complaint}");
    None
}

/// mmdblookup prints one value per line, followed by its type, without commas or escapes.
fn printed(text: &str) -> Json {
    let mut json = String::new();
    let mut within = vec![];
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let is_key = line.starts_with('"') && line.ends_with(':');
        let is_item = within.last() == Some(&"[") && line != "]";
        if is_key && !json.ends_with('{') || is_item && !json.ends_with('[') {
            json.push(',');
        }
        match line {
            "{" | "[" => within.push(line),
            "}" | "]" => drop(within.pop()),
            _ => {}
        }
        let value = line.rsplit_once(" <").filter(|(_, kind)| kind.ends_with('>')).map_or(line, |(value, _)| value);
        json.push_str(value);
    }
    serde_json::from_str(&json).unwrap_or_else(|e| panic!("{e}: {json} of {text}"))
}

/// Looks up the addresses from its input, with and without the C extension. (Debian's version cannot list a table.)
const SCRIPT: &str = r#"
import json, sys
import maxminddb

asked = json.load(sys.stdin)
answers = []
for mode in (maxminddb.MODE_MMAP_EXT, maxminddb.MODE_FILE):
    with maxminddb.open_database(sys.argv[1], mode) as reader:
        found = {address: reader.get(address) for address in asked}
        answers.append({"found": found, "metadata": vars(reader.metadata()) if mode == maxminddb.MODE_FILE else None})
json.dump(answers, sys.stdout)
"#;

#[test]
fn python_reads_what_was_written() {
    for table in [Table::new(), table()] {
        let file = file_of(&table);
        let asked = asked(&table);
        let [extension, pure] = &python(file.path(), &asked)[..] else { panic!("two readers") };
        for answers in [extension, pure] {
            for (address, record) in &asked {
                assert_eq!(answers["found"][address.to_string()], record.clone().unwrap_or(Json::Null), "{address}");
            }
        }
        assert_eq!(pure["metadata"]["database_type"], "Workload-Identity");
        assert_eq!(pure["metadata"]["build_epoch"], 1_700_000_000);
    }
}

#[test]
fn stock_readers_open_databases_of_numbers() {
    let numbers: BTreeMap<IpAddr, u32> = table().iter().map(|(address, record)| (*address, record.replica)).collect();
    let value = |number: &u32| Value::Map(vec![("num", Value::Uint32(*number))]);
    let entries = numbers.iter().map(|(address, number)| (*address, number));
    let bytes = write_as(DatabaseType::Numbers, entries, &description(), value).unwrap();
    assert_eq!(Database::open(&bytes).unwrap().database_type(), DatabaseType::Numbers);
    let file = NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let record = |address: &IpAddr| numbers.get(address).map(|number| json!({"num": number}));
    let asked: Vec<(IpAddr, Option<Json>)> =
        numbers.keys().step_by(250).copied().chain(absent()).map(|address| (address, record(&address))).collect();
    for (address, record) in &asked {
        assert_eq!(mmdblookup(file.path(), *address), *record, "{address}");
    }
    for answers in python(file.path(), &asked) {
        for (address, record) in &asked {
            assert_eq!(answers["found"][address.to_string()], record.clone().unwrap_or(Json::Null), "{address}");
        }
    }
}

#[test]
fn all_readers_agree_on_a_built_file() {
    let records = read_built(SHOP);
    assert!(records.keys().any(IpAddr::is_ipv4) && records.keys().any(IpAddr::is_ipv6));
}

/// A control plane node, another node, an API server elsewhere, and an Ingress.
const SHARED_ADDRESSES: &str = "
{apiVersion: v1, kind: Node, metadata: {name: node-a}, status: {addresses: [{type: InternalIP, address: 192.0.2.1}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-b}, status: {addresses: [{type: InternalIP, address: '2001:db8::2'}]}}
---
apiVersion: v1
kind: Pod
metadata:
  name: kube-apiserver-node-a
  namespace: kube-system
  labels: {component: kube-apiserver}
  annotations: {kubernetes.io/config.mirror: hash}
  ownerReferences: [{kind: Node, name: node-a, controller: true}]
spec: {nodeName: node-a, hostNetwork: true, containers: [{name: main}]}
status: {phase: Running, podIP: 192.0.2.1}
---
apiVersion: v1
kind: Pod
metadata: {name: etcd, namespace: kube-system}
spec: {nodeName: node-b, hostNetwork: true, containers: [{name: main}]}
status: {phase: Running, podIP: '2001:db8::2'}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: kubernetes, namespace: default}
addressType: IPv4
endpoints: [{addresses: [192.0.2.1, 198.51.100.1]}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front, namespace: shop}
status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}
";

#[test]
fn all_read_records_of_addresses_without_pod() {
    let folder = tempfile::TempDir::new().unwrap();
    std::fs::write(folder.path().join("all.yaml"), SHARED_ADDRESSES).unwrap();
    let records = read_built(folder.path().to_str().unwrap());
    let said: Vec<String> = records
        .iter()
        .map(|(address, record)| {
            let hosted = record["host_workloads"].as_array().map_or(0, Vec::len);
            format!("{address} {} {} {} {hosted}", record["workload"], record["state"], record["role"])
        })
        .collect();
    let expected = [
        "192.0.2.1 \"kube-apiserver\" \"kube-apiserver\" \"control-plane\" 1",
        "198.51.100.1 \"kube-apiserver\" \"kube-apiserver\" \"control-plane\" 0",
        "203.0.113.9 \"ingress\" \"ingress\" \"internet-exposed\" 0",
        "2001:db8::2 \"node-b\" \"host\" \"control-plane\" 1",
    ];
    assert_eq!(said, expected);
}

#[test]
fn stock_readers_find_ranges_where_no_address_is() {
    let out = tempfile::TempDir::new().unwrap();
    let flags =
        ["--world-records", "--world-except", "10.0.0.0/8,fd00::/8", "--health-cidr", "35.191.0.0/16,2001:db8:1::/64"];
    let (file, latest) = build(SHOP, out.path(), &flags);
    let plain = tempfile::TempDir::new().unwrap();
    let (_, without) = build(SHOP, plain.path(), &[]);
    assert_eq!(latest["count"], without["count"], "ranges are no addresses");
    assert_ne!(latest["version"], without["version"]);
    let asked: Vec<(IpAddr, Option<(&str, u64)>)> = [
        ("10.1.0.2", Some(("web", 5_273_870))),
        ("fd00:1::2", Some(("web", 5_273_870))),
        ("10.1.0.99", None),
        ("fd00:1::99", None),
        ("203.0.113.5", Some(("world", 2))),
        ("0.0.0.0", Some(("world", 2))),
        ("255.255.255.255", Some(("world", 2))),
        ("2606:4700::1111", Some(("world", 2))),
        ("35.191.3.4", Some(("health", 4))),
        ("35.192.0.0", Some(("world", 2))),
        ("2001:db8:1::7", Some(("health", 4))),
    ]
    .map(|(text, found)| (address(text), found))
    .into();
    let said = |record: &Json| Some((record["workload"].as_str()?.to_owned(), record["num"].as_u64()?));
    let database = Database::open(std::fs::read(&file).unwrap()).unwrap();
    database.verify().unwrap();
    let answers = python(&file, &asked.iter().map(|(address, _)| (*address, None)).collect::<Vec<_>>());
    for (address, found) in asked {
        let found = found.map(|(workload, num)| (workload.to_owned(), num));
        assert_eq!(database.lookup::<Json>(address).unwrap().as_ref().and_then(said), found, "{address}");
        assert_eq!(mmdblookup(&file, address).as_ref().and_then(said), found, "{address}");
        for answers in &answers {
            assert_eq!(said(&answers["found"][address.to_string()]), found, "{address}");
        }
    }
    let database = Database::open(std::fs::read(&file).unwrap()).unwrap();
    let pieces = database.entries::<Json>().unwrap().map(|entry| entry.unwrap());
    let workloads = pieces.filter(|(_, record)| record["state"].is_null()).count();
    assert_eq!(latest["count"], workloads, "every address is listed once among the pieces of ranges");
}

#[test]
fn world_records_change_no_verdict_of_unknown_addresses() {
    let verdict = |flags: &[&str], asked: [&str; 3]| {
        let out = tempfile::TempDir::new().unwrap();
        build(SHOP, out.path(), flags);
        let ended = run([&["verdict"], &asked[..], &["--from", out.path().to_str().unwrap()]].concat());
        (ended.code, ended.stdout)
    };
    for asked in
        [["203.0.113.5", "shop/web", "8080"], ["203.0.113.5", "data/db", "5432"], ["shop/web", "8.8.8.8", "53"]]
    {
        assert_eq!(verdict(&["--world-records"], asked), verdict(&[], asked), "{asked:?}");
    }
}

const SHOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/shop");

/// Runs `build` on a folder of manifests. Returns the identity database and its entry of `latest.json`.
fn build(manifests: &str, out: &Path, flags: &[&str]) -> (PathBuf, Json) {
    let words = ["build", "--manifests", manifests, "--out", out.to_str().unwrap()];
    let built = run([&words[..], flags].concat());
    assert_eq!(built.code, Some(0), "{built:?}");
    let folder = out.join("identity");
    let latest: Json = serde_json::from_slice(&std::fs::read(folder.join("latest.json")).unwrap()).unwrap();
    (folder.join(latest["objects"][0]["object"].as_str().unwrap()), latest)
}

/// The records that `build` makes of a folder of manifests, which every reader reads alike.
fn read_built(manifests: &str) -> BTreeMap<IpAddr, Json> {
    let out = tempfile::TempDir::new().unwrap();
    let (file, latest) = build(manifests, out.path(), &[]);
    let bytes = std::fs::read(&file).unwrap();
    let database = Database::open(&bytes).unwrap();
    let entries = database.entries().unwrap().map(|entry| entry.unwrap());
    let records: BTreeMap<IpAddr, Json> = entries.map(|(network, record)| (network.addr(), record)).collect();
    assert_eq!(latest["count"], records.len());
    let nobody = ["10.1.0.99", "203.0.113.1", "fd00:1::99", "::"].map(|text| (address(text), None));
    let asked: Vec<(IpAddr, Option<Json>)> =
        records.clone().into_iter().map(|(address, record)| (address, Some(record))).chain(nobody).collect();
    for (address, record) in &asked {
        assert_eq!(database.lookup::<Json>(*address).unwrap(), *record, "{address}");
        assert_eq!(mmdblookup(&file, *address), *record, "{address}");
    }
    for answers in python(&file, &asked) {
        for (address, record) in &asked {
            assert_eq!(answers["found"][address.to_string()], record.clone().unwrap_or(Json::Null), "{address}");
        }
    }
    records
}

fn python(file: &Path, asked: &[(IpAddr, Option<Json>)]) -> Vec<Json> {
    let input = NamedTempFile::new().unwrap();
    let addresses: Vec<String> = asked.iter().map(|(address, _)| address.to_string()).collect();
    std::fs::write(input.path(), serde_json::to_vec(&addresses).unwrap()).unwrap();
    // Debian's Python: another one earlier in PATH does not find Debian's packages.
    let output = Command::new("/usr/bin/python3")
        .args(["-c", SCRIPT])
        .arg(file)
        .stdin(input.reopen().unwrap())
        .output()
        .expect("python3, with the Debian package python3-maxminddb");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}
