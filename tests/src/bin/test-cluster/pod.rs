//! The program that runs in the pods of `make test-cluster`: servers, clients, and senders that send from their first
//! instruction. Arguments are parsed by hand, so that nothing delays the first packet.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// Timeout of a client. A denied packet gets no answer.
const ANSWER_WITHIN: Duration = Duration::from_millis(1500);
/// Timeout of a server for the request of a TCP client.
const REQUEST_WITHIN: Duration = Duration::from_millis(200);
/// Interval of the datagrams of a sender.
const SEND_EVERY: Duration = Duration::from_millis(1);
/// Prefix of a sender's messages: `send GROUP/POD`.
const SEND: &str = "send ";
/// Requests from a server how many packets of a group arrived: `count GROUP`.
const COUNT: &str = "count ";

/// Printed by `probe` for a target that answered.
pub(crate) const ANSWERED: &str = "answered";

/// Runs `pod serve NAME PORT...`, `pod get tcp|udp ADDRESS:PORT [REQUEST]`, `pod probe tcp|udp/ADDRESS:PORT...` or
/// `pod send GROUP SECONDS ADDRESS:PORT...`.
pub(crate) fn run(arguments: &[String]) -> anyhow::Result<ExitCode> {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["send", group, seconds, targets @ ..] => send(group, seconds, targets),
        ["serve", name, ports @ ..] if !ports.is_empty() => serve(name, ports),
        ["get", protocol, target] => get(protocol, target, "get"),
        ["get", protocol, target, request] => get(protocol, target, request),
        ["probe", targets @ ..] => probe(targets),
        _ => bail!("invalid arguments: expected serve, get, probe or send, got {words:?}"),
    }
}

/// Sends datagrams to all targets, and tries a TCP connection with every 100 of them; 0 seconds means forever.
fn send(group: &str, seconds: &str, targets: &[&str]) -> anyhow::Result<ExitCode> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).context("cannot bind a UDP socket")?;
    let pod = std::env::var("HOSTNAME").unwrap_or_else(|_| "unknown".to_owned());
    let message = format!("{SEND}{group}/{pod}");
    let targets = targets.iter().map(|target| address(target)).collect::<anyhow::Result<Vec<_>>>()?;
    let seconds: u64 = seconds.parse().with_context(|| format!("invalid number of seconds '{seconds}'"))?;
    for target in targets.clone() {
        let message = message.clone();
        thread::spawn(move || {
            loop {
                // Most senders are denied, so the connection usually fails.
                if let Ok(mut stream) = TcpStream::connect_timeout(&target, Duration::from_millis(300))
                    && let Err(error) = stream.write_all(message.as_bytes())
                {
                    eprintln!("cannot write to {target}: {error}");
                }
                thread::sleep(SEND_EVERY * 100);
            }
        });
    }
    let begun = Instant::now();
    while seconds == 0 || begun.elapsed() < Duration::from_secs(seconds) {
        for target in &targets {
            // Fails while the interface is down, after an ICMP error, and if an output rule rejects.
            if let Err(error) = socket.send_to(message.as_bytes(), target)
                && error.kind() == ErrorKind::InvalidInput
            {
                bail!("cannot send to {target}: {error}");
            }
        }
        thread::sleep(SEND_EVERY);
    }
    Ok(ExitCode::SUCCESS)
}

/// IPv4 addresses are mapped to IPv6, so that one socket serves both families.
fn address(text: &str) -> anyhow::Result<SocketAddr> {
    let address: SocketAddr = text.parse().with_context(|| format!("invalid address '{text}'"))?;
    Ok(match address {
        SocketAddr::V4(v4) => SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port()),
        SocketAddr::V6(_) => address,
    })
}

/// Packets that arrived from senders, by group.
#[derive(Default)]
struct Arrivals {
    packets: u64,
    pods: BTreeSet<String>,
}

static ARRIVALS: Mutex<BTreeMap<String, Arrivals>> = Mutex::new(BTreeMap::new());

/// Answers every request with its name, and counts the packets of senders.
fn serve(name: &str, ports: &[&str]) -> anyhow::Result<ExitCode> {
    let mut threads = Vec::new();
    for port in ports {
        let port: u16 = port.parse().with_context(|| format!("invalid port '{port}'"))?;
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).context("cannot listen")?;
        let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port)).context("cannot bind a UDP socket")?;
        let for_tcp = name.to_owned();
        threads.push(thread::spawn(move || serve_tcp(&listener, &for_tcp)));
        let for_udp = name.to_owned();
        threads.push(thread::spawn(move || serve_udp(&socket, &for_udp)));
    }
    for thread in threads {
        thread.join().expect("no server thread panics")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Serves connections one at a time: the backlog of the listener bounds them.
fn serve_tcp(listener: &TcpListener, name: &str) -> anyhow::Result<()> {
    loop {
        let (mut stream, _) = listener.accept().context("cannot accept")?;
        stream.set_read_timeout(Some(REQUEST_WITHIN))?;
        let mut request = [0; 256];
        let length = match stream.read(&mut request) {
            Ok(length) => length,
            // The client has closed, or sends nothing.
            Err(_) => continue,
        };
        if let Some(answer) = answer(&request[..length], name)
            && let Err(error) = stream.write_all(answer.as_bytes())
        {
            eprintln!("cannot answer: {error}");
        }
    }
}

fn serve_udp(socket: &UdpSocket, name: &str) -> anyhow::Result<()> {
    let mut request = [0; 256];
    loop {
        let (length, client) = match socket.recv_from(&mut request) {
            Ok(received) => received,
            // An ICMP error caused by an earlier answer.
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
            Err(error) => return Err(error).context("cannot receive"),
        };
        if let Some(answer) = answer(&request[..length], name)
            && let Err(error) = socket.send_to(answer.as_bytes(), client)
        {
            eprintln!("cannot answer {client}: {error}");
        }
    }
}

/// Senders get no answer.
fn answer(request: &[u8], name: &str) -> Option<String> {
    let request = String::from_utf8_lossy(request);
    let mut arrivals = ARRIVALS.lock().expect("no holder of the lock panics");
    if let Some(sender) = request.strip_prefix(SEND) {
        let (group, pod) = sender.split_once('/')?;
        let counted = arrivals.entry(group.to_owned()).or_default();
        counted.packets += 1;
        counted.pods.insert(pod.to_owned());
        return None;
    }
    let Some(group) = request.strip_prefix(COUNT) else { return Some(name.to_owned()) };
    let (packets, pods) = arrivals.get(group).map_or((0, 0), |counted| (counted.packets, counted.pods.len()));
    Some(format!("{packets} {pods}"))
}

/// Prints the answer to one request; exit status 1 if there is none.
fn get(protocol: &str, target: &str, request: &str) -> anyhow::Result<ExitCode> {
    match exchange(protocol, target, request)? {
        Ok(answer) => {
            println!("{answer}");
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => {
            println!("no answer: {error}");
            Ok(ExitCode::FAILURE)
        }
    }
}

/// Sends a request to every target at once and prints a line for each: `TARGET answered` or `TARGET no answer: ERROR`.
fn probe(targets: &[&str]) -> anyhow::Result<ExitCode> {
    let lines = thread::scope(|scope| {
        let probes: Vec<_> = targets.iter().map(|target| scope.spawn(|| probe_target(target))).collect();
        probes.into_iter().map(|probe| probe.join().expect("no probe panics")).collect::<anyhow::Result<Vec<_>>>()
    })?;
    println!("{}", lines.join("\n"));
    Ok(ExitCode::SUCCESS)
}

fn probe_target(target: &str) -> anyhow::Result<String> {
    let (protocol, address) =
        target.split_once('/').with_context(|| format!("invalid target '{target}': expected PROTOCOL/ADDRESS:PORT"))?;
    Ok(match exchange(protocol, address, "get")? {
        Ok(_) => format!("{target} {ANSWERED}"),
        Err(error) => format!("{target} no answer: {error}"),
    })
}

/// The answer to one request; the inner error is the reason if there is none.
fn exchange(protocol: &str, target: &str, request: &str) -> anyhow::Result<std::io::Result<String>> {
    let target = address(target)?;
    Ok(match protocol {
        "tcp" => get_tcp(target, request),
        "udp" => get_udp(target, request),
        _ => bail!("invalid protocol '{protocol}': expected tcp or udp"),
    })
}

fn get_tcp(target: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&target, ANSWER_WITHIN)?;
    stream.set_read_timeout(Some(ANSWER_WITHIN))?;
    stream.write_all(request.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    if answer.is_empty() { Err(ErrorKind::UnexpectedEof.into()) } else { Ok(answer) }
}

/// A datagram may be lost during a commit, so the request is sent three times.
fn get_udp(target: SocketAddr, request: &str) -> std::io::Result<String> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0))?;
    socket.set_read_timeout(Some(ANSWER_WITHIN / 3))?;
    socket.connect(target)?;
    let mut answer = [0; 256];
    let mut last = ErrorKind::TimedOut.into();
    for _ in 0..3 {
        match socket.send(request.as_bytes()).and_then(|_| socket.recv(&mut answer)) {
            Ok(length) => return Ok(String::from_utf8_lossy(&answer[..length]).into_owned()),
            Err(error) => last = error,
        }
    }
    Err(last)
}
