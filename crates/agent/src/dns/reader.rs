//! The thread that receives copied DNS answers.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::{LogEvent, LogRecord, PacketHead, PacketLog, PacketLogError, TcpSegment};
use policy::PAUSED_SECONDS;
use tokio::sync::mpsc;

use super::answer::{DnsAnswer, answer};
use super::stream::{LONGEST_IDLE, ResolverSegment, StreamKey, Streams};
use crate::event_loop::Event;
use crate::metrics::Metrics;
use crate::metrics::labels::AnswerOutcome;

/// The longest wait for an answer, after which a closed queue is noticed; also the pause after an error.
const WAIT: Duration = Duration::from_secs(1);

/// Limit of answers in one event. Further ones wait in the socket's buffer; the kernel counts those that do not fit.
const MOST_IN_EVENT: usize = 64;

/// The longest time between two reads of the log after which streams are kept. Together with [`LONGEST_IDLE`] it is shorter
/// than the pause of the kernel's copies.
const LONGEST_LAG: Duration = Duration::from_secs(5);
const _: () = assert!(LONGEST_LAG.as_secs() + LONGEST_IDLE.as_secs() < PAUSED_SECONDS as u64);

/// A DNS answer on its way to a pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiedAnswer {
    pub(crate) resolver: IpAddr,
    pub(crate) answer: DnsAnswer,
    /// When the agent received it.
    pub(crate) at: Instant,
}

pub(crate) struct AnswerReader {
    log: PacketLog,
    events: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
    streams: Streams,
    /// Time of the last read of the log.
    last: Instant,
}

impl AnswerReader {
    pub(crate) fn new(log: PacketLog, events: mpsc::Sender<Event>, metrics: Arc<Metrics>) -> AnswerReader {
        AnswerReader { log, events, metrics, streams: Streams::default(), last: Instant::now() }
    }

    /// Runs until the queue of events is closed.
    pub(crate) fn run(mut self) {
        while !self.events.is_closed() {
            let mut answers = Vec::new();
            let mut wait = WAIT;
            while answers.len() < MOST_IN_EVENT {
                let logged = self.log.next(wait);
                self.clear_after_pause();
                match logged {
                    Ok(None) => break,
                    Ok(Some(LogEvent::Packet(packet))) => self.read(&packet, &mut answers),
                    Ok(Some(LogEvent::Lost { messages })) => self.count_lost(messages.unwrap_or(0)),
                    Err(PacketLogError::Decode(error)) => {
                        self.count_lost(1);
                        tracing::debug!("cannot decode a copied DNS answer (NFLOG): {error}");
                    }
                    Err(error) => {
                        self.streams.clear();
                        tracing::warn!("cannot receive copied DNS answers (NFLOG): {error}");
                        std::thread::sleep(WAIT);
                        break;
                    }
                }
                // Answers that are already queued share an event with the first one.
                wait = Duration::ZERO;
            }
            if !answers.is_empty() && self.events.blocking_send(Event::DnsAnswers(answers)).is_err() {
                return;
            }
        }
    }

    /// Removes all streams if the log was not read for so long that the kernel may have paused and resumed copying.
    fn clear_after_pause(&mut self) {
        let now = Instant::now();
        if now.saturating_duration_since(self.last) > LONGEST_LAG {
            self.streams.clear();
        }
        self.last = now;
    }

    /// Counts lost copies and removes all streams: a lost copy may have been the start of a connection.
    fn count_lost(&mut self, messages: u64) {
        self.streams.clear();
        self.metrics.dns_answer(AnswerOutcome::Lost, messages);
    }

    /// Adds the answers with addresses that the packet completes.
    fn read(&mut self, packet: &LogRecord, answers: &mut Vec<CopiedAnswer>) {
        let Some(head) = packet.content else { return };
        let at = self.last;
        let mut add = |message: &[u8]| match answer(message) {
            Some(answer) => answers.push(CopiedAnswer { resolver: head.source, answer, at }),
            None => self.metrics.dns_answer(AnswerOutcome::WithoutAddresses, 1),
        };
        if let Some(payload) = PacketHead::udp_payload(packet.ether_type, &packet.bytes) {
            add(payload);
        } else if let Some((key, segment)) = segment(packet) {
            let assembled = self.streams.push(key, segment, at);
            assembled.messages.iter().for_each(|message| add(message));
            if let Some(reason) = assembled.ignored {
                self.metrics.ignore_dns_segment(reason);
            }
        }
    }
}

/// A segment and its connection; `None` for other packets.
fn segment(packet: &LogRecord) -> Option<(StreamKey, ResolverSegment<'_>)> {
    let head = packet.content?;
    let (from, to) = head.ports?;
    let TcpSegment { sequence, fin, syn, rst, ack, payload, is_whole } =
        PacketHead::tcp_segment(packet.ether_type, &packet.bytes)?;
    let (pod, resolver) = (SocketAddr::new(head.destination, to), SocketAddr::new(head.source, from));
    let segment = ResolverSegment { sequence, starts: syn && ack, ends: fin, resets: rst, payload, is_whole };
    Some((StreamKey { pod, resolver }, segment))
}
