//! Flows with messages in both directions, and the count of dropped packets.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use nix::libc::linger;
use nix::sys::socket::{setsockopt, sockopt};
use serde_json::Value;

use crate::agent_process::{WITHIN, until};
use crate::kernel_table::nft;
use crate::lab::Lab;
use crate::netdev_backlog::lost_packets;

/// Silence after which a message has not arrived, once its packet was counted as dropped.
const SILENCE: Duration = Duration::from_millis(50);

/// After this time a message may have been lost.
const LOST: Duration = Duration::from_secs(1);

const MESSAGE_BYTES: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    ToServer,
    ToClient,
}

impl Way {
    pub const BOTH: [Way; 2] = [Way::ToServer, Way::ToClient];
}

enum Socket {
    Tcp(TcpStream),
    Udp(UdpSocket),
}

impl Socket {
    fn address(&self) -> SocketAddr {
        let bound = match self {
            Socket::Tcp(stream) => stream.local_addr(),
            Socket::Udp(socket) => socket.local_addr(),
        };
        bound.expect("a bound socket")
    }

    fn send(&self, message: [u8; MESSAGE_BYTES]) {
        match self {
            Socket::Tcp(stream) => (&mut &*stream).write_all(&message).expect("room in the send buffer"),
            Socket::Udp(socket) => assert_eq!(socket.send(&message).expect("a datagram leaves"), MESSAGE_BYTES),
        }
    }

    fn receive(&self, at_most: Duration) -> Option<[u8; MESSAGE_BYTES]> {
        let mut message = [0; MESSAGE_BYTES];
        let received = match self {
            Socket::Tcp(stream) => {
                stream.set_read_timeout(Some(at_most)).expect("a timeout");
                (&mut &*stream).read_exact(&mut message)
            }
            Socket::Udp(socket) => {
                socket.set_read_timeout(Some(at_most)).expect("a timeout");
                receive(socket, &mut message)
            }
        };
        match received {
            Ok(()) => Some(message),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
            Err(e) => panic!("receiving: {e}"),
        }
    }
}

/// A receive with a timeout is not restarted automatically after the process was stopped for a moment (signal(7)).
fn receive(socket: &UdpSocket, message: &mut [u8]) -> std::io::Result<()> {
    loop {
        match socket.recv(message) {
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            received => return received.map(|_| ()),
        }
    }
}

/// Both ends of a flow. Every message is unique.
pub struct Flow {
    client: Socket,
    server: Socket,
    sent: u64,
}

fn address(text: &str, port: u16) -> SocketAddr {
    SocketAddr::new(text.parse::<IpAddr>().expect("an address"), port)
}

impl Flow {
    pub fn tcp(lab: &Lab, client: &str, server: &str) -> Flow {
        Flow::try_tcp(lab, client, server, WITHIN).expect("a connection")
    }

    /// `None` if the handshake is not completed in the given time.
    pub fn try_tcp(lab: &Lab, client: &str, server: &str, at_most: Duration) -> Option<Flow> {
        let listener = listener(lab, address(server, 0));
        let to = listener.local_addr().expect("a bound socket");
        connect(lab, client, to, &listener, at_most)
    }

    /// With destination NAT: the client connects to `front`.
    pub fn tcp_over(lab: &Lab, client: &str, front: SocketAddr, server: &TcpListener) -> Flow {
        connect(lab, client, front, server, WITHIN).expect("a connection")
    }

    pub fn udp(lab: &Lab, client: &str, server: &str) -> Flow {
        let server = socket(lab, address(server, 0));
        let to = server.local_addr().expect("a bound socket");
        Flow::udp_over(lab, client, to, server)
    }

    /// With destination NAT: the client sends to `front`.
    pub fn udp_over(lab: &Lab, client: &str, front: SocketAddr, server: UdpSocket) -> Flow {
        let client = socket(lab, address(client, 0));
        client.connect(front).expect("a connected socket");
        server.connect(client.local_addr().expect("a bound socket")).expect("a connected socket");
        let mut flow = Flow { client: Socket::Udp(client), server: Socket::Udp(server), sent: 0 };
        flow.assert_alive(Way::ToServer);
        flow
    }

    /// The addresses of the client and of the server.
    pub fn addresses(&self) -> [IpAddr; 2] {
        self.socket_addresses().map(|address| address.ip())
    }

    /// The addresses and ports of the client and of the server.
    pub fn socket_addresses(&self) -> [SocketAddr; 2] {
        [&self.client, &self.server].map(Socket::address)
    }

    fn ends(&self, way: Way) -> (&Socket, &Socket) {
        match way {
            Way::ToServer => (&self.client, &self.server),
            Way::ToClient => (&self.server, &self.client),
        }
    }

    /// Closes a TCP connection with resets: neither end sends its unacknowledged data again.
    pub fn abort(self) {
        for end in [self.client, self.server] {
            let Socket::Tcp(stream) = end else { panic!("only connections are reset") };
            setsockopt(&stream, sockopt::Linger, &linger { l_onoff: 1, l_linger: 0 }).expect("a socket option");
        }
    }

    /// Sends a unique message.
    pub fn send(&mut self, way: Way) -> [u8; MESSAGE_BYTES] {
        self.sent += 1;
        let message = self.sent.to_be_bytes();
        self.ends(way).0.send(message);
        message
    }

    /// Asserts that a message arrives, perhaps after others. It is sent again only if the machine's backlog has dropped
    /// packets since.
    #[track_caller]
    pub fn assert_alive(&mut self, way: Way) {
        let mut lost = lost_packets();
        let message = self.send(way);
        let deadline = Instant::now() + WITHIN;
        loop {
            match self.ends(way).1.receive(LOST) {
                Some(received) if received == message => return,
                Some(_) => {}
                None => {
                    assert!(Instant::now() < deadline, "{way:?}: nothing arrives");
                    let lost_by_now = lost_packets();
                    if lost_by_now > lost {
                        self.ends(way).0.send(message);
                        lost = lost_by_now;
                    }
                }
            }
        }
    }

    /// Asserts that a message is dropped by the table, and does not arrive.
    #[track_caller]
    pub fn assert_dead(&mut self, lab: &Lab, node: &str, way: Way) {
        let before = dropped(lab, node);
        let message = self.send(way);
        until("a packet is dropped", || {
            let received = self.ends(way).1.receive(Duration::from_millis(1));
            assert_ne!(received, Some(message), "{way:?}: {message:?} arrives");
            (dropped(lab, node) > before).then_some(())
        });
        // An earlier message may have been sent twice.
        while let Some(received) = self.ends(way).1.receive(SILENCE) {
            assert_ne!(received, message, "{way:?}: {message:?} arrives");
        }
    }
}

pub fn listener(lab: &Lab, at: SocketAddr) -> TcpListener {
    lab.in_namespace_of(at.ip(), || TcpListener::bind(at)).expect("a listener")
}

pub fn socket(lab: &Lab, at: SocketAddr) -> UdpSocket {
    lab.in_namespace_of(at.ip(), || UdpSocket::bind(at)).expect("a socket")
}

fn connect(lab: &Lab, client: &str, to: SocketAddr, at: &TcpListener, at_most: Duration) -> Option<Flow> {
    let connected = lab.in_namespace_of(address(client, 0).ip(), || TcpStream::connect_timeout(&to, at_most));
    let client = match connected {
        Ok(stream) => stream,
        Err(e) if e.kind() == ErrorKind::TimedOut => return None,
        Err(e) => panic!("{to}: {e}"),
    };
    let (server, _) = at.accept().expect("the connection that was made");
    for end in [&client, &server] {
        end.set_nodelay(true).expect("an option");
    }
    Some(Flow { client: Socket::Tcp(client), server: Socket::Tcp(server), sent: 0 })
}

/// The packets that the table has dropped.
pub fn dropped(lab: &Lab, node: &str) -> u64 {
    fn packets(value: &Value) -> u64 {
        match value {
            Value::Object(fields) => {
                fields.get("packets").and_then(Value::as_u64).unwrap_or(0) + fields.values().map(packets).sum::<u64>()
            }
            Value::Array(values) => values.iter().map(packets).sum(),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
        }
    }
    packets(&serde_json::from_str(&lab.node_exec(node, || nft("-j list table inet ringfence"))).expect("JSON"))
}
