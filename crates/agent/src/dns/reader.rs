//! The thread that receives copied DNS answers.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nfnetlink::{Logged, LoggedPacket, PacketHead, PacketLog, PacketLogError};
use tokio::sync::mpsc;

use super::answer::{Answer, answer};
use crate::metrics::Metrics;
use crate::metrics::labels::AnswerOutcome;
use crate::reconciler::Event;

/// The longest wait for an answer, after which a closed queue is noticed; also the pause after an error.
const WAIT: Duration = Duration::from_secs(1);

/// Answers in one event. More of them wait in the socket, which then loses and counts answers.
const MOST_IN_EVENT: usize = 64;

/// A DNS answer on its way to a pod of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopiedAnswer {
    pub(crate) resolver: IpAddr,
    pub(crate) answer: Answer,
    /// When the agent received it.
    pub(crate) at: Instant,
}

pub(crate) struct Reader {
    log: PacketLog,
    events: mpsc::Sender<Event>,
    metrics: Arc<Metrics>,
}

impl Reader {
    pub(crate) fn new(log: PacketLog, events: mpsc::Sender<Event>, metrics: Arc<Metrics>) -> Reader {
        Reader { log, events, metrics }
    }

    /// Runs until the queue of events is closed.
    pub(crate) fn run(mut self) {
        while !self.events.is_closed() {
            let mut answers = Vec::new();
            let mut wait = WAIT;
            while answers.len() < MOST_IN_EVENT {
                match self.log.next(wait) {
                    Ok(None) => break,
                    Ok(Some(Logged::Packet(packet))) => match copied(&packet) {
                        Some(answer) => answers.push(answer),
                        None => self.metrics.dns_answer(AnswerOutcome::WithoutAddresses, 1),
                    },
                    Ok(Some(Logged::Lost { messages })) => {
                        self.metrics.dns_answer(AnswerOutcome::Lost, messages.unwrap_or(0));
                    }
                    Err(PacketLogError::Decode(error)) => {
                        self.metrics.dns_answer(AnswerOutcome::Lost, 1);
                        tracing::debug!("cannot decode a copied DNS answer (NFLOG): {error}");
                    }
                    Err(error) => {
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
}

/// `None` if the packet is not an answer with addresses.
fn copied(packet: &LoggedPacket) -> Option<CopiedAnswer> {
    let at = Instant::now();
    let payload = PacketHead::udp_payload(packet.ether_type, &packet.bytes)?;
    Some(CopiedAnswer { resolver: packet.content?.source, answer: answer(payload)?, at })
}
