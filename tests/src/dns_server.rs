//! A small DNS server, and a client that asks one.
//!
//! Both run on sockets that were made in a lab's namespaces, so that questions and answers pass the nodes between.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use simple_dns::rdata::{A, AAAA, CNAME, RData};
use simple_dns::{CLASS, Name, Packet, Question, ResourceRecord, TYPE};

use crate::lab::Lab;

/// The port of DNS.
const PORT: u16 = 53;

/// How long a client waits, on a busy machine.
const WAIT: Duration = Duration::from_secs(10);

/// A record of a name.
#[derive(Debug, Clone)]
pub enum Record {
    Address(IpAddr),
    Alias(String),
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
        let socket = lab.in_namespace_of(address, || UdpSocket::bind((address, PORT)).expect("the port of DNS"));
        DnsServer::serve(socket, address)
    }

    /// As [`DnsServer::start`], in the namespace of a node that has the address.
    ///
    /// # Panics
    /// If the port is in use.
    pub fn start_on_node(lab: &Lab, node: &str, address: IpAddr) -> DnsServer {
        let socket = lab.node_exec(node, || UdpSocket::bind((address, PORT)).expect("the port of DNS"));
        DnsServer::serve(socket, address)
    }

    fn serve(socket: UdpSocket, address: IpAddr) -> DnsServer {
        let server = DnsServer { zone: Arc::default(), address };
        let zone = server.zone.clone();
        std::thread::spawn(move || {
            let mut question = [0; 512];
            while let Ok((length, client)) = socket.recv_from(&mut question) {
                let zone = zone.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(answer) = answer(&question[..length], &zone) {
                    socket.send_to(&answer, client).expect("a route to the client");
                }
            }
        });
        server
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
        socket.set_read_timeout(Some(WAIT)).expect("a timeout");
        socket.connect(SocketAddr::from((self.address, PORT))).expect("a route to the server");
        let mut query = Packet::new_query(7);
        let name = Name::new(name).expect("a name");
        query.questions.push(Question::new(name, TYPE::A.into(), CLASS::IN.into(), false));
        socket.send(&query.build_bytes_vec().expect("a question")).expect("a route to the server");
        socket.recv(&mut [0; 4096]).expect("an answer");
    }
}

/// The records of the name in the question, and of its aliases.
fn answer(question: &[u8], zone: &Zone) -> Option<Vec<u8>> {
    let packet = Packet::parse(question).ok()?;
    let asked = packet.questions.first()?.clone();
    let mut reply = Packet::new_reply(packet.id());
    reply.questions.push(asked.clone());
    reply.answers = records(&asked.qname.to_string(), zone);
    reply.build_bytes_vec_compressed().ok()
}

fn records(name: &str, zone: &Zone) -> Vec<ResourceRecord<'static>> {
    let Some((ttl, of_name)) = zone.get(&name.to_ascii_lowercase()) else { return vec![] };
    let mut found = Vec::new();
    for record in of_name {
        let data = match record {
            Record::Address(IpAddr::V4(v4)) => RData::A(A { address: (*v4).into() }),
            Record::Address(IpAddr::V6(v6)) => RData::AAAA(AAAA { address: (*v6).into() }),
            Record::Alias(target) => RData::CNAME(CNAME(Name::new_unchecked(target).into_owned())),
        };
        found.push(ResourceRecord::new(Name::new_unchecked(name).into_owned(), CLASS::IN, *ttl, data));
        if let Record::Alias(target) = record {
            found.extend(records(target, zone));
        }
    }
    found
}
