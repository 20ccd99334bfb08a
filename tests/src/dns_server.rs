//! A small DNS server, and a client that asks one.
//!
//! Both run on sockets that were made in a lab's namespaces, so that questions and answers pass the nodes between.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use simple_dns::rdata::{A, AAAA, CNAME, RData, TXT};
use simple_dns::{CLASS, CharacterString, Name, Packet, PacketFlag, Question, ResourceRecord, TYPE};
use socket2::{Domain, Protocol, Socket, Type};

use kit::lab::Lab;

/// The port of DNS.
const PORT: u16 = 53;

/// Bytes of the longest answer over UDP, the default of many resolvers (EDNS).
const MOST_DATAGRAM_BYTES: usize = 4096;

/// How long a client waits, on a busy machine.
const WAIT: Duration = Duration::from_secs(10);

/// A record of a name.
#[derive(Debug, Clone)]
pub enum Record {
    Address(IpAddr),
    Alias(String),
    Text(Vec<u8>),
}

/// A name's records, with one time to live in seconds.
type Zone = BTreeMap<String, (u32, Vec<Record>)>;

/// Serves until the process ends.
#[derive(Debug, Clone)]
pub struct DnsServer {
    zone: Arc<Mutex<Zone>>,
    pub address: IpAddr,
}

impl DnsServer {
    /// Serves at port 53 of the address, in the namespace that has it.
    ///
    /// # Panics
    /// If the port is in use.
    pub fn start(lab: &Lab, address: IpAddr) -> DnsServer {
        lab.in_namespace_of(address, || DnsServer::serve(address))
    }

    /// As [`DnsServer::start`], in the namespace of a node that has the address.
    ///
    /// # Panics
    /// If the port is in use.
    pub fn start_on_node(lab: &Lab, node: &str, address: IpAddr) -> DnsServer {
        lab.node_exec(node, || DnsServer::serve(address))
    }

    fn serve(address: IpAddr) -> DnsServer {
        let socket = UdpSocket::bind((address, PORT)).expect("the port of DNS");
        let listener = multipath_socket(address).expect("a socket of Multipath TCP");
        listener.set_reuse_address(true).expect("an option");
        listener.bind(&SocketAddr::new(address, PORT).into()).expect("the port of DNS");
        listener.listen(128).expect("a listener");
        let listener = TcpListener::from(listener);
        let server = DnsServer { zone: Arc::default(), address };
        let zone = server.zone.clone();
        std::thread::spawn(move || {
            // A client may reset a connection before it is accepted.
            for connection in listener.incoming().flatten() {
                let zone = zone.clone();
                std::thread::spawn(move || answer_all(connection, &zone));
            }
        });
        let zone = server.zone.clone();
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut question) {
                let zone = zone.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(answer) = answer(&question[..length], &zone, MOST_DATAGRAM_BYTES) {
                    socket.send_to(&answer, client).expect("a route to the client");
                }
            }
        });
        server
    }

    /// A connection of Multipath TCP from the address to this server.
    ///
    /// # Panics
    /// If the kernel has no Multipath TCP, or the server does not answer.
    pub fn connect_multipath_from(&self, lab: &Lab, client: IpAddr) -> TcpStream {
        let socket = lab.in_namespace_of(client, || multipath_socket(client)).expect("a socket of Multipath TCP");
        socket.set_read_timeout(Some(WAIT)).expect("a timeout");
        socket.connect(&SocketAddr::new(self.address, PORT).into()).expect("a connection");
        socket.into()
    }

    /// Replaces the records of a name.
    pub fn set(&self, name: &str, ttl: u32, records: Vec<Record>) {
        self.zone.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned(), (ttl, records));
    }

    /// Asks this server from the address, and waits for its answer.
    ///
    /// # Panics
    /// If there is none.
    pub fn ask_from(&self, lab: &Lab, client: IpAddr, name: &str) {
        let socket = lab.in_namespace_of(client, || UdpSocket::bind((client, 0)).expect("a port"));
        assert!(!self.truncates(&socket, name), "an answer of at most {MOST_DATAGRAM_BYTES} bytes");
    }

    /// As a client that asks again over TCP, since the answer over UDP is truncated. All questions are sent at once, over
    /// one connection.
    ///
    /// # Panics
    /// If an answer is not truncated, or missing over TCP.
    pub fn ask_over_tcp_from(&self, lab: &Lab, client: IpAddr, names: &[&str]) {
        let socket = lab.in_namespace_of(client, || UdpSocket::bind((client, 0)).expect("a port"));
        for name in names {
            assert!(self.truncates(&socket, name), "{name}");
        }
        ask_on(&mut self.connect_from(lab, client), names);
    }

    /// Opens a connection for questions from the address.
    ///
    /// # Panics
    /// If the server does not accept it.
    pub fn connect_from(&self, lab: &Lab, client: IpAddr) -> TcpStream {
        let server = SocketAddr::from((self.address, PORT));
        let connect = || TcpStream::connect_timeout(&server, WAIT).expect("a route to the server");
        let connection = lab.in_namespace_of(client, connect);
        connection.set_read_timeout(Some(WAIT)).expect("a timeout");
        connection
    }

    /// Asks from the socket. Returns whether the answer is truncated.
    fn truncates(&self, socket: &UdpSocket, name: &str) -> bool {
        socket.set_read_timeout(Some(WAIT)).expect("a timeout");
        socket.connect(SocketAddr::from((self.address, PORT))).expect("a route to the server");
        socket.send(&question(name)).expect("a route to the server");
        let mut answer = [0; MOST_DATAGRAM_BYTES];
        let length = socket.recv(&mut answer).expect("an answer");
        Packet::parse(&answer[..length]).expect("an answer").has_flags(PacketFlag::TRUNCATION)
    }
}

/// Asks for the names on the connection, all at once, and waits for the answers.
///
/// # Panics
/// If one is missing.
pub fn ask_on(connection: &mut TcpStream, names: &[&str]) {
    let questions: Vec<u8> = names.iter().flat_map(|name| framed(&question(name))).collect();
    connection.write_all(&questions).expect("a connection");
    for name in names {
        assert!(receive(connection).is_some(), "no answer for {name}");
    }
}

/// An answer that says the name has the address, to the question that clients of this module ask.
pub fn answer_with(name: &str, address: IpAddr) -> Vec<u8> {
    let zone = Zone::from([(name.to_owned(), (300, vec![Record::Address(address)]))]);
    answer(&question(name), &zone, MOST_DATAGRAM_BYTES).expect("an answer")
}

/// A question for addresses of the name.
pub fn question(name: &str) -> Vec<u8> {
    let mut query = Packet::new_query(7);
    let name = Name::new(name).expect("a name");
    query.questions.push(Question::new(name, TYPE::A.into(), CLASS::IN.into(), false));
    query.build_bytes_vec().expect("a question")
}

/// A socket of the address's family. A listener accepts TCP, too; it is the default of servers in Go from 1.24 on.
fn multipath_socket(address: IpAddr) -> io::Result<Socket> {
    let domain = Domain::for_address(SocketAddr::new(address, 0));
    Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP))
}

/// The message after its length (RFC 7766).
pub fn framed(message: &[u8]) -> Vec<u8> {
    let length = u16::try_from(message.len()).expect("a message of less than 64 KiB");
    [&length.to_be_bytes(), message].concat()
}

fn receive(connection: &mut TcpStream) -> Option<Vec<u8>> {
    let mut length = [0; 2];
    connection.read_exact(&mut length).ok()?;
    let mut message = vec![0; u16::from_be_bytes(length).into()];
    connection.read_exact(&mut message).ok()?;
    Some(message)
}

/// Answers until the client closes the connection.
fn answer_all(mut connection: TcpStream, zone: &Mutex<Zone>) {
    while let Some(question) = receive(&mut connection) {
        let zone = zone.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(answer) = answer(&question, &zone, u16::MAX.into()) else { return };
        if connection.write_all(&framed(&answer)).is_err() {
            return;
        }
    }
}

/// The records of the name in the question, and of its aliases; truncated to none if they are too long.
fn answer(question: &[u8], zone: &Zone, most_bytes: usize) -> Option<Vec<u8>> {
    let packet = Packet::parse(question).ok()?;
    let asked = packet.questions.first()?.clone();
    let mut reply = Packet::new_reply(packet.id());
    reply.questions.push(asked.clone());
    reply.answers = records(&asked.qname.to_string(), zone);
    let whole = reply.build_bytes_vec_compressed().ok()?;
    if whole.len() <= most_bytes {
        return Some(whole);
    }
    reply.answers.clear();
    reply.set_flags(PacketFlag::TRUNCATION);
    reply.build_bytes_vec_compressed().ok()
}

fn records(name: &str, zone: &Zone) -> Vec<ResourceRecord<'static>> {
    let Some((ttl, of_name)) = zone.get(&name.to_ascii_lowercase()) else { return vec![] };
    let mut found = Vec::new();
    for record in of_name {
        let data = match record {
            Record::Address(IpAddr::V4(v4)) => RData::A(A { address: (*v4).into() }),
            Record::Address(IpAddr::V6(v6)) => RData::AAAA(AAAA { address: (*v6).into() }),
            Record::Text(text) => {
                let text = CharacterString::new(text).expect("at most 255 bytes");
                RData::TXT(TXT::new().with_char_string(text.into_owned()))
            }
            Record::Alias(target) => RData::CNAME(CNAME(Name::new_unchecked(target).into_owned())),
        };
        found.push(ResourceRecord::new(Name::new_unchecked(name).into_owned(), CLASS::IN, *ttl, data));
        if let Record::Alias(target) = record {
            found.extend(records(target, zone));
        }
    }
    found
}
