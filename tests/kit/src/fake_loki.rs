//! A fake log receiver: Loki's push request and those of OTLP/HTTP for logs and metrics, validated strictly, with the
//! failures of servers and of the networks before them; and Loki's query of a time range.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use flate2::read::GzDecoder;
use jiff::fmt::rfc2822::DateTimePrinter;
use jiff::{SignedDuration, Timestamp};
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::{Value, json};

use crate::http::{Head, Server, read_head};

const BETWEEN: Duration = Duration::from_millis(2);

/// Loki's defaults.
const MOST_LABELS: usize = 15;
const MOST_LINE_BYTES: usize = 256 << 10;
const MOST_BODY_BYTES: usize = 4 << 20;
const MOST_METADATA: usize = 128;
/// `max_entries_limit_per_query`
const MOST_QUERIED: i128 = 5_000;
const MOST_METADATA_BYTES: usize = 64 << 10;

/// A stored line.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredLine {
    pub labels: BTreeMap<String, String>,
    /// Nanoseconds since 1970.
    pub time: i128,
    pub line: String,
    pub metadata: BTreeMap<String, String>,
}

impl StoredLine {
    /// # Panics
    /// If the line is invalid JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.line).expect("lines are JSON")
    }
}

/// A fault of the receiver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Answers with this status, and stores nothing.
    Refuse { status: u16, retry_after: Option<RetryAfter> },
    /// Resets the connection within the request.
    ResetHalfWay,
    /// Stores the lines, and resets the connection instead of answering.
    StoreAndReset,
    /// Answers after this delay.
    Slow(Duration),
    /// Reads requests, and does not answer while the fault lasts.
    Silent,
}

/// A `Retry-After` header, in both forms of RFC 9110.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryAfter {
    Seconds(u32),
    /// The date of this many seconds after the response. Dates have no fractions of a second: the wait is up to a second shorter.
    Date(u32),
}

impl RetryAfter {
    fn header(self) -> io::Result<String> {
        match self {
            RetryAfter::Seconds(seconds) => Ok(seconds.to_string()),
            RetryAfter::Date(seconds) => {
                let date = Timestamp::now() + SignedDuration::from_secs(seconds.into());
                DateTimePrinter::new().timestamp_to_rfc9110_string(&date).map_err(io::Error::other)
            }
        }
    }
}

/// Point of a cumulative sum.
#[derive(Debug, Clone, Copy)]
struct SumPoint {
    /// Nanoseconds since 1970.
    time: u64,
    value: u64,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// The required value of `Authorization`.
    authorization: Option<String>,
    tenant: Option<String>,
    /// Equal labels, times and lines are stored once, as Loki does.
    stored: BTreeSet<StoredLine>,
    repeated: usize,
    logs: Vec<Value>,
    /// Last point of each cumulative sum, by attributes and start.
    sums: BTreeMap<(String, u64), SumPoint>,
    /// Number of log records that the next request of logs loses to `partialSuccess`.
    rejections: usize,
    arrivals: Vec<Instant>,
    statuses: BTreeMap<u16, usize>,
    complaints: Vec<String>,
}

/// The receiver. It stops on drop.
pub struct FakeLoki {
    state: Arc<Mutex<State>>,
    server: Server,
}

impl FakeLoki {
    pub fn start() -> FakeLoki {
        let state: Arc<Mutex<State>> = Arc::default();
        let shared = state.clone();
        FakeLoki { state, server: Server::start(move |stream| serve(stream, &shared)) }
    }

    /// The URL for `--loki-url` and `--otlp-endpoint`.
    pub fn url(&self) -> String {
        format!("http://{}", self.server.address())
    }

    /// Starts to answer 401 to requests with another value of `Authorization`.
    pub fn demand_authorization(&self, value: &str) {
        self.lock().authorization = Some(value.into());
    }

    /// Starts to answer 401 to requests without this tenant.
    pub fn demand_tenant(&self, tenant: &str) {
        self.lock().tenant = Some(tenant.into());
    }

    pub fn fail(&self, fault: Fault) {
        self.lock().fault = Some(fault);
    }

    pub fn heal(&self) {
        self.lock().fault = None;
    }

    /// Rejects the first records of the next request of OTLP logs, and stores the others.
    pub fn reject_logs(&self, records: usize) {
        self.lock().rejections = records;
    }

    /// Stored lines, ordered by labels and time.
    pub fn lines(&self) -> Vec<StoredLine> {
        self.lock().stored.iter().cloned().collect()
    }

    /// Moves all stored lines back in time.
    pub fn age(&self, by: SignedDuration) {
        let mut state = self.lock();
        let stored = std::mem::take(&mut state.stored);
        state.stored = stored.into_iter().map(|line| StoredLine { time: line.time - by.as_nanos(), ..line }).collect();
    }

    /// Lines that were sent more than once.
    pub fn repeated(&self) -> usize {
        self.lock().repeated
    }

    /// Log records of OTLP, in the order of their arrival.
    pub fn logs(&self) -> Vec<Value> {
        self.lock().logs.clone()
    }

    /// Last values of the sums in OTLP metrics, by attributes. A sum that began anew is added to its earlier ones.
    pub fn sums(&self) -> BTreeMap<String, u64> {
        let mut sums: BTreeMap<String, u64> = BTreeMap::new();
        for ((attributes, _), point) in &self.lock().sums {
            *sums.entry(attributes.clone()).or_default() += point.value;
        }
        sums
    }

    /// Requests so far, answered or not.
    pub fn requests(&self) -> usize {
        self.lock().arrivals.len()
    }

    /// Times at which the requests arrived, answered or not.
    pub fn arrivals(&self) -> Vec<Instant> {
        self.lock().arrivals.clone()
    }

    /// The number of responses by status.
    pub fn statuses(&self) -> BTreeMap<u16, usize> {
        self.lock().statuses.clone()
    }

    /// Violations of the protocol.
    pub fn complaints(&self) -> Vec<String> {
        self.lock().complaints.clone()
    }

    /// The sum of a numeric field over all lines, such as `/connections/started`.
    pub fn sum(&self, pointer: &str) -> u64 {
        self.lock().stored.iter().filter_map(|line| line.json().pointer(pointer).and_then(Value::as_u64)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl Drop for FakeLoki {
    fn drop(&mut self) {
        // Ends the fault, so that requests without a response do not delay the end.
        self.heal();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves requests one at a time.
fn serve(stream: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(head) = read_head(&mut reader)? {
        let length = head.body_length()?;
        let fault = {
            let mut state = lock(state);
            state.arrivals.push(Instant::now());
            state.fault.clone()
        };
        if fault == Some(Fault::ResetHalfWay) {
            reader.read_exact(&mut vec![0; length / 2])?;
            return reset(stream);
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let (status, retry_after, text) = match fault {
            Some(Fault::Refuse { status, retry_after }) => (status, retry_after, "the receiver is broken\n".to_owned()),
            Some(Fault::Silent) => {
                while lock(state).fault == Some(Fault::Silent) {
                    std::thread::sleep(BETWEEN);
                }
                return Ok(());
            }
            Some(Fault::StoreAndReset) => {
                record_push(&mut lock(state), &head, &body);
                return reset(stream);
            }
            Some(Fault::Slow(time)) => {
                std::thread::sleep(time);
                let (status, text) = record_push(&mut lock(state), &head, &body);
                (status, None, text)
            }
            Some(Fault::ResetHalfWay) | None => {
                let (status, text) = record_push(&mut lock(state), &head, &body);
                (status, None, text)
            }
        };
        *lock(state).statuses.entry(status).or_default() += 1;
        let retry_after = match retry_after {
            Some(retry_after) => format!("retry-after: {}\r\n", retry_after.header()?),
            None => String::new(),
        };
        write!(&stream, "HTTP/1.1 {status} Fake\r\n{retry_after}content-length: {}\r\n\r\n{text}", text.len())?;
    }
    Ok(())
}

fn reset(stream: TcpStream) -> io::Result<()> {
    setsockopt(&stream, sockopt::Linger, &nix::libc::linger { l_onoff: 1, l_linger: 0 })?;
    stream.shutdown(std::net::Shutdown::Read)?;
    drop(stream);
    Ok(())
}

/// The status and the text of the response.
fn record_push(state: &mut State, head: &Head, body: &[u8]) -> (u16, String) {
    let is_known = state.authorization.as_deref().is_none_or(|value| head.header("authorization") == value)
        && state.tenant.as_deref().is_none_or(|tenant| head.header("x-scope-orgid") == tenant);
    if !is_known {
        return (401, "no credentials provided\n".into());
    }
    if (head.method.as_str(), head.path.as_str()) == ("GET", "/loki/api/v1/query_range") {
        return match query_range(state, head) {
            Ok(answer) => (200, answer.to_string()),
            Err(complaint) => {
                state.complaints.push(complaint.clone());
                (400, format!("{complaint}\n"))
            }
        };
    }
    let taken = match (head.method.as_str(), head.path.as_str()) {
        ("POST", "/loki/api/v1/push") => read_body(head, body).and_then(|push| store(state, &push)).map(|()| 204),
        ("POST", "/v1/logs") => {
            return match read_body(head, body).and_then(|logs| store_logs(state, &logs)) {
                Ok(0) => (200, "{\"partialSuccess\":{}}".into()),
                // A 64-bit integer is a text in JSON.
                Ok(rejected) => {
                    let why = "a log record is too old";
                    let partial = json!({"rejectedLogRecords": rejected.to_string(), "errorMessage": why});
                    (200, json!({"partialSuccess": partial}).to_string())
                }
                Err(complaint) => {
                    state.complaints.push(complaint.clone());
                    (400, format!("{complaint}\n"))
                }
            };
        }
        ("POST", "/v1/metrics") => read_body(head, body).and_then(|metrics| store_sums(state, &metrics)).map(|()| 200),
        (method, path) => Err(format!("{method} {path}")),
    };
    match taken {
        Ok(status) => (status, String::new()),
        Err(complaint) => {
            state.complaints.push(complaint.clone());
            (400, format!("{complaint}\n"))
        }
    }
}

/// Stored lines of a time range, the oldest first: a stream selector, and a filter of alternatives by metadata.
fn query_range(state: &State, head: &Head) -> Result<Value, String> {
    let given = |name: &str| head.query.get(name).ok_or_else(|| format!("no {name}"));
    let number = |name: &str| given(name)?.parse::<i128>().map_err(|_| format!("{name} is no number"));
    let (start, end, limit) = (number("start")?, number("end")?, number("limit")?);
    if given("direction")? != "forward" || start >= end || !(1..=MOST_QUERIED).contains(&limit) {
        return Err(format!("{:?}", head.query));
    }
    let query = decoded(given("query")?)?;
    let (selector, filter) = query.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or("no selector")?;
    let matchers: Vec<Matcher> = selector.split(',').map(matcher).collect::<Result<_, _>>()?;
    let alternatives: Vec<Matcher> = match filter.strip_prefix(" | ") {
        Some(filter) => filter.split(" or ").map(matcher).collect::<Result<_, _>>()?,
        None if filter.is_empty() => vec![],
        None => return Err(format!("filter {filter}")),
    };
    let admits = |line: &&StoredLine| {
        (start..end).contains(&line.time)
            && matchers.iter().all(|matcher| matcher.admits(&line.labels))
            && (alternatives.is_empty() || alternatives.iter().any(|matcher| matcher.admits(&line.metadata)))
    };
    let mut lines: Vec<&StoredLine> = state.stored.iter().filter(admits).collect();
    lines.sort_by_key(|line| line.time);
    let mut streams: BTreeMap<&BTreeMap<String, String>, Vec<Value>> = BTreeMap::new();
    for line in lines.into_iter().take(limit as usize) {
        streams.entry(&line.labels).or_default().push(json!([line.time.to_string(), line.line]));
    }
    let result: Vec<Value> =
        streams.into_iter().map(|(stream, values)| json!({"stream": stream, "values": values})).collect();
    Ok(json!({"status": "success", "data": {"resultType": "streams", "result": result}}))
}

/// Decodes percent-encoding (RFC 3986).
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        rest = more;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.ok_or_else(|| format!("percent-encoding of {text}"))?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| format!("percent-encoding of {text}"))
}

struct Matcher {
    name: String,
    is_equal: bool,
    value: String,
}

impl Matcher {
    fn admits(&self, values: &BTreeMap<String, String>) -> bool {
        (values.get(&self.name) == Some(&self.value)) == self.is_equal
    }
}

fn matcher(text: &str) -> Result<Matcher, String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("matcher {text}"))?;
    let (name, is_equal) = name.strip_suffix('!').map_or((name, true), |name| (name, false));
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).filter(|value| !value.contains('"'));
    match value.filter(|_| is_name(name)) {
        Some(value) => Ok(Matcher { name: name.into(), is_equal, value: value.into() }),
        None => Err(format!("matcher {text}")),
    }
}

fn read_body(head: &Head, body: &[u8]) -> Result<Value, String> {
    if (head.header("content-type"), head.header("content-encoding")) != ("application/json", "gzip") {
        return Err(format!("{:?}", head.headers));
    }
    let mut text = Vec::new();
    let limit = MOST_BODY_BYTES as u64 + 1;
    GzDecoder::new(body).take(limit).read_to_end(&mut text).map_err(|error| format!("gzip: {error}"))?;
    if text.len() > MOST_BODY_BYTES {
        return Err("the body is too large".into());
    }
    serde_json::from_slice(&text).map_err(|error| format!("JSON: {error}"))
}

fn is_name(name: &str) -> bool {
    let is_letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    name.bytes().next().is_some_and(is_letter) && name.bytes().all(|b| is_letter(b) || b.is_ascii_digit())
}

fn texts(value: &Value, what: &str) -> Result<BTreeMap<String, String>, String> {
    let fields = value.as_object().ok_or_else(|| format!("{what} are no object: {value}"))?;
    let pair = |(name, value): (&String, &Value)| match value.as_str() {
        Some(text) if is_name(name) && !text.is_empty() => Ok((name.clone(), text.to_owned())),
        Some(_) | None => Err(format!("{what} {name}={value}")),
    };
    fields.iter().map(pair).collect()
}

/// Stores all lines of a push, or none.
fn store(state: &mut State, push: &Value) -> Result<(), String> {
    let streams = push["streams"].as_array().ok_or("no streams")?;
    let mut lines = Vec::new();
    for stream in streams {
        let labels = texts(&stream["stream"], "labels")?;
        if labels.is_empty() || labels.len() > MOST_LABELS {
            return Err(format!("{} labels", labels.len()));
        }
        let mut last = 0;
        for entry in stream["values"].as_array().ok_or("no values")? {
            let entry = entry.as_array().filter(|entry| entry.len() == 3).ok_or("an entry has three fields")?;
            let time = entry[0].as_str().ok_or("the time is no text")?;
            let nanoseconds: i128 = time.parse().map_err(|_| format!("time {time}"))?;
            if time.len() != 19 || nanoseconds < last {
                return Err(format!("time {time} after {last}"));
            }
            last = nanoseconds;
            let line = entry[1].as_str().filter(|line| line.len() <= MOST_LINE_BYTES && !line.contains('\n'));
            let metadata = texts(&entry[2], "metadata")?;
            let bytes: usize = metadata.iter().map(|(name, value)| name.len() + value.len()).sum();
            if metadata.len() > MOST_METADATA || bytes > MOST_METADATA_BYTES {
                return Err(format!("{} metadata of {bytes} bytes", metadata.len()));
            }
            let line = line.ok_or("the line is too long")?.to_owned();
            lines.push(StoredLine { labels: labels.clone(), time: nanoseconds, line, metadata });
        }
    }
    if lines.is_empty() {
        return Err("an empty push".into());
    }
    for line in lines {
        state.repeated += usize::from(!state.stored.insert(line));
    }
    Ok(())
}

/// Whether a value is a list of OTLP's attributes.
fn are_attributes(attributes: &Value) -> bool {
    let is_integer = |value: &Value| value.as_str().is_some_and(|text| text.parse::<i64>().is_ok());
    let is_attribute = |attribute: &Value| {
        let value = attribute["value"].as_object().filter(|value| value.len() == 1);
        attribute["key"].is_string()
            && value.and_then(|value| value.iter().next()).is_some_and(|(kind, value)| match kind.as_str() {
                "stringValue" => value.is_string(),
                "intValue" => is_integer(value),
                "boolValue" => value.is_boolean(),
                "arrayValue" => value["values"].is_array(),
                _ => false,
            })
    };
    attributes.as_array().is_some_and(|attributes| attributes.iter().all(is_attribute))
}

/// Stores the points of monotonic, cumulative sums of bytes.
fn store_sums(state: &mut State, metrics: &Value) -> Result<(), String> {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().ok_or_else(|| format!("no {name}"));
    for resource in list(metrics, "resourceMetrics")? {
        if !are_attributes(&resource["resource"]["attributes"]) {
            return Err(format!("resource {}", resource["resource"]));
        }
        for scope in list(&resource, "scopeMetrics")? {
            for metric in list(&scope, "metrics")? {
                let sum = &metric["sum"];
                let cumulative = 2;
                if metric["unit"] != "By" || sum["aggregationTemporality"] != cumulative || sum["isMonotonic"] != true {
                    return Err(format!("metric {metric}"));
                }
                for point in list(sum, "dataPoints")? {
                    store_point(state, &point)?;
                }
            }
        }
    }
    Ok(())
}

fn store_point(state: &mut State, point: &Value) -> Result<(), String> {
    let number = |name: &str| {
        let number = point[name].as_str().and_then(|text| text.parse::<u64>().ok());
        number.ok_or_else(|| format!("{name} of {point}"))
    };
    let (start, time, value) = (number("startTimeUnixNano")?, number("timeUnixNano")?, number("asInt")?);
    if start >= time || !are_attributes(&point["attributes"]) {
        return Err(format!("point {point}"));
    }
    let key = (point["attributes"].to_string(), start);
    // A repeated point is equal to the one before.
    let is_next =
        |last: &SumPoint| (last.time < time && last.value <= value) || (last.time, last.value) == (time, value);
    if let Some(last) = state.sums.get(&key).filter(|last| !is_next(last)) {
        return Err(format!("point {point} after {last:?}"));
    }
    state.sums.insert(key, SumPoint { time, value });
    Ok(())
}

/// Stores log records. Returns the number of rejected ones.
fn store_logs(state: &mut State, logs: &Value) -> Result<usize, String> {
    let mut records = Vec::new();
    for resource in logs["resourceLogs"].as_array().ok_or("no resourceLogs")? {
        let name = resource.pointer("/resource/attributes/0/key").and_then(Value::as_str);
        if name != Some("service.name") {
            return Err(format!("resource {}", resource["resource"]));
        }
        for scope in resource["scopeLogs"].as_array().ok_or("no scopeLogs")? {
            records.extend(scope["logRecords"].as_array().ok_or("no logRecords")?.iter().cloned());
        }
    }
    for record in &records {
        let time = record["timeUnixNano"].as_str().and_then(|time| time.parse::<u64>().ok());
        let is_body = record["body"]["stringValue"].is_string();
        if time.is_none() || !is_body || !are_attributes(&record["attributes"]) {
            return Err(format!("log record {record}"));
        }
    }
    let rejected = std::mem::take(&mut state.rejections).min(records.len());
    state.logs.extend(records.into_iter().skip(rejected));
    Ok(rejected)
}
