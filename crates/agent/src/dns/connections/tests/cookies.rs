//! A pod that forges its segments, against a model of a resolver whose kernel sends SYN cookies.

use super::*;

/// A resolver whose kernel sends SYN cookies, the network, and the agent that sees all segments at the node.
struct Cookies {
    connections: DnsConnections,
    now: Instant,
    /// Segments on their way from the node to the resolver.
    to_resolver: Vec<(Instant, TcpSegment<'static>)>,
    /// Segments on their way from the resolver to the node, with their payload.
    to_node: Vec<(Instant, TcpSegment<'static>, Vec<u8>)>,
    connection: Option<Server>,
}

/// The resolver's end of a connection.
struct Server {
    /// Sequence number of the first byte, and of the first that is not sent yet.
    first: u32,
    sent: u32,
    /// It has sent a FIN, and keeps the connection until that is acknowledged.
    is_closing: bool,
}

/// The resolver's bytes on each connection. A message that is read from the middle has another length.
fn answers() -> Vec<u8> {
    framed(&vec![[0, 1].repeat(6); 8])
}

/// The cookie of a SYN, less the pod's sequence number.
const SECRET: u32 = 1000;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Both numbers are shifted by as much, so that the cookie is right. The acknowledgement may be of more.
    PodSends {
        flag: Flag,
        shift: u8,
        more: u8,
        arrives: bool,
    },
    ResolverSends {
        length: u8,
        fin: bool,
        arrives: bool,
    },
    /// A segment that was late.
    ArrivesAtResolver(usize),
    ArrivesAtNode(usize),
    Wait {
        deciseconds: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Flag {
    Syn,
    Ack,
    Rst,
}

fn step() -> impl Strategy<Value = Step> {
    let flag = prop_oneof![3 => Just(Flag::Syn), 5 => Just(Flag::Ack), 2 => Just(Flag::Rst)];
    let shift = || prop_oneof![4 => Just(0_u8), 1 => (0_u8..6).prop_map(|half| 2 * half)];
    let more = prop_oneof![2 => Just(0_u8), 2 => 1_u8..24];
    let arrives = || prop::bool::weighted(0.85);
    let length = (1_u8..12).prop_map(|half| 2 * half);
    prop_oneof![
        10 => (flag, shift(), more, arrives())
            .prop_map(|(flag, shift, more, arrives)| Step::PodSends { flag, shift, more, arrives }),
        6 => (length, prop::bool::weighted(0.1), arrives())
            .prop_map(|(length, fin, arrives)| Step::ResolverSends { length, fin, arrives }),
        2 => (0_usize..3).prop_map(Step::ArrivesAtResolver),
        2 => (0_usize..3).prop_map(Step::ArrivesAtNode),
        1 => (1_u8..120).prop_map(|deciseconds| Step::Wait { deciseconds }),
    ]
}

impl Cookies {
    fn take(&mut self, step: Step) -> Vec<Vec<u8>> {
        match step {
            Step::PodSends { flag, shift, more, arrives } => {
                let (shift, more) = (u32::from(shift), u32::from(more));
                let segment = TcpSegment {
                    sequence: if flag == Flag::Syn { shift } else { 1 + shift },
                    acknowledged: (flag != Flag::Syn).then_some(SECRET + 1 + shift + more),
                    syn: flag == Flag::Syn,
                    rst: flag == Flag::Rst,
                    ..data(0, &[])
                };
                drop(self.connections.pod_sends(key(1), segment, at(self.now)));
                self.to_resolver.push((self.now, segment));
                if arrives { self.arrives_at_resolver(self.to_resolver.len() - 1) } else { vec![] }
            }
            Step::ResolverSends { length, fin, arrives } => {
                let Some(server) = &mut self.connection else { return vec![] };
                let bytes = answers();
                let from = server.sent.wrapping_sub(server.first) as usize;
                let to = if server.is_closing { from } else { (from + usize::from(length)).min(bytes.len()) };
                server.is_closing |= fin;
                let segment = TcpSegment { fin: server.is_closing, ..data(server.sent, &[]) };
                server.sent = server.first.wrapping_add(to as u32);
                self.to_node.push((self.now, segment, bytes[from..to].to_vec()));
                if arrives { self.arrives_at_node(self.to_node.len() - 1) } else { vec![] }
            }
            Step::ArrivesAtResolver(place) if place < self.to_resolver.len() => self.arrives_at_resolver(place),
            Step::ArrivesAtNode(place) if place < self.to_node.len() => self.arrives_at_node(place),
            Step::ArrivesAtResolver(_) | Step::ArrivesAtNode(_) => vec![],
            Step::Wait { deciseconds } => {
                self.now += Duration::from_millis(100) * u32::from(deciseconds);
                let is_under_way = |sent: Instant| self.now - sent < QUARANTINE;
                self.to_resolver.retain(|(sent, _)| is_under_way(*sent));
                self.to_node.retain(|(sent, ..)| is_under_way(*sent));
                vec![]
            }
        }
    }

    /// The messages that the agent reads in the resolver's answer, if there is one and it is not late.
    fn arrives_at_resolver(&mut self, place: usize) -> Vec<Vec<u8>> {
        let (_, segment) = self.to_resolver.remove(place);
        let before = self.to_node.len();
        self.resolver_receives(segment);
        if self.to_node.len() > before && segment.sequence % 4 != 3 { self.arrives_at_node(before) } else { vec![] }
    }

    fn arrives_at_node(&mut self, place: usize) -> Vec<Vec<u8>> {
        let (_, segment, payload) = self.to_node.remove(place);
        let segment = TcpSegment { payload: &payload, ..segment };
        self.connections.resolver_sends(key(1), segment, at(self.now)).messages
    }

    /// As the kernel does with `net.ipv4.tcp_syncookies=2`.
    fn resolver_receives(&mut self, segment: TcpSegment<'static>) {
        match (&self.connection, segment.acknowledged) {
            (Some(_), _) if segment.rst => self.connection = None,
            (Some(server), Some(to)) if server.is_closing && to == server.sent + 1 => self.connection = None,
            // It answers a SYN, and what is out of its window, with an acknowledgement.
            (Some(server), _) => {
                let challenge = data(server.sent, &[]);
                self.to_node.push((self.now, challenge, vec![]));
            }
            (None, None) => {
                let cookie = TcpSegment {
                    acknowledged: Some(segment.sequence.wrapping_add(1)),
                    ..syn_ack(SECRET.wrapping_add(segment.sequence))
                };
                self.to_node.push((self.now, cookie, vec![]));
            }
            (None, Some(to)) => {
                let is_cookie = to.wrapping_sub(1).wrapping_sub(segment.sequence.wrapping_sub(1)) == SECRET;
                if is_cookie && !segment.rst {
                    self.connection = Some(Server { first: to, sent: to, is_closing: false });
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// The pod sends any segments, which arrive in any order.
    #[test]
    fn only_whole_answers_are_read_despite_cookies(steps in prop::collection::vec(step(), 0..60)) {
        let now = Instant::now();
        let mut scene = Cookies {
            connections: DnsConnections::new(now), now, to_resolver: vec![], to_node: vec![], connection: None,
        };
        for step in steps {
            for message in scene.take(step) {
                prop_assert_eq!(message, [0, 1].repeat(6));
            }
        }
    }
}
