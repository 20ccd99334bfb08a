//! Assembles DNS messages from the TCP segments of a resolver (RFC 7766: a message follows its length in two bytes).

use std::time::{Duration, Instant};

use super::connections::{Assembly, IgnoreReason};

/// A stream without segments is removed after this time, and one in which a message is incomplete or not acknowledged
/// for as long. Resolvers keep idle connections for some seconds, and their kernel keeps one that the other end does
/// not answer for longer than this.
pub(super) const LONGEST_IDLE: Duration = Duration::from_secs(15);

/// Bytes of a message that is decoded. 256 addresses of IPv6, their signatures and aliases take half of it.
pub const MOST_MESSAGE_BYTES: usize = 16 << 10;

/// Bytes of a stream that wait for an earlier segment, and the segments that have them. Segments are rarely reordered
/// within a node.
pub(super) const MOST_WAITING_BYTES: usize = 32 << 10;
pub(super) const MOST_WAITING_SEGMENTS: usize = 16;

/// The resolver's bytes on one connection.
#[derive(Debug)]
pub(super) struct Stream {
    /// Sequence number of its first byte.
    first: u32,
    /// Sequence number of the next byte.
    next: u32,
    /// Sequence number after its last byte, once known.
    end: Option<u32>,
    /// Sequence number up to which the pod has acknowledged; `None` before the end of the handshake.
    acknowledged: Option<u32>,
    /// Payloads after a gap, each with its sequence number.
    waiting: Vec<(u32, Vec<u8>)>,
    /// The begin of the message whose end has not arrived, with its length.
    message: Vec<u8>,
    /// Bytes that are left of a message that is too long.
    skipped: usize,
    /// When all that had arrived was acknowledged and complete.
    settled: Instant,
}

/// Bytes from a sequence number to another; negative if the other one is before it (RFC 9293, section 3.4).
fn distance(from: u32, to: u32) -> i32 {
    to.wrapping_sub(from).cast_signed()
}

impl Stream {
    pub(super) fn new(first: u32, now: Instant) -> Stream {
        Stream {
            first,
            next: first,
            end: None,
            acknowledged: None,
            waiting: vec![],
            message: vec![],
            skipped: 0,
            settled: now,
        }
    }

    pub(super) fn is_idle(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.settled) >= LONGEST_IDLE
    }

    /// Whether a SYN-ACK with this sequence number after it is the one that began the stream, sent again.
    pub(super) fn is_start(&self, first: u32) -> bool {
        self.first == first && self.next == first
    }

    /// Whether the pod may repeat its SYN.
    pub(super) fn is_opening(&self) -> bool {
        self.acknowledged.is_none()
    }

    pub(super) fn settled(&self) -> Instant {
        self.settled
    }

    pub(super) fn is_finished(&self) -> bool {
        self.end == Some(self.next)
    }

    /// Notes the time if all that has arrived is acknowledged and complete.
    pub(super) fn settle(&mut self, now: Instant) {
        let is_complete = self.message.is_empty() && self.waiting.is_empty() && self.skipped == 0;
        if is_complete && self.acknowledged == Some(self.next) {
            self.settled = now;
        }
    }

    /// The pod acknowledges what is before the sequence number. Returns whether it can have received that, and has not
    /// acknowledged more before: otherwise it belongs to another connection.
    pub(super) fn acknowledge(&mut self, to: u32) -> bool {
        let is_possible = distance(self.acknowledged.unwrap_or(self.first), to) >= 0 && distance(to, self.next) >= 0;
        if is_possible {
            self.acknowledged = Some(to);
        }
        is_possible
    }

    /// The resolver sends nothing from the sequence number on.
    pub(super) fn end_at(&mut self, end: u32) {
        self.end = Some(end);
    }

    /// Returns why the stream cannot be continued.
    pub(super) fn push(&mut self, sequence: u32, payload: &[u8], assembled: &mut Assembly) -> Result<(), IgnoreReason> {
        if payload.is_empty() {
            return Ok(());
        }
        if distance(self.first, sequence) < 0 {
            return Err(IgnoreReason::Mismatch);
        }
        if distance(self.next, sequence) > 0 {
            let waiting: usize = self.waiting.iter().map(|(_, payload)| payload.len()).sum();
            if waiting + payload.len() > MOST_WAITING_BYTES || self.waiting.len() >= MOST_WAITING_SEGMENTS {
                return Err(IgnoreReason::Gap);
            }
            self.waiting.push((sequence, payload.to_vec()));
            return Ok(());
        }
        self.advance(sequence, payload, assembled);
        while let Some(place) = self.waiting.iter().position(|(sequence, _)| distance(self.next, *sequence) <= 0) {
            let (sequence, payload) = self.waiting.swap_remove(place);
            self.advance(sequence, &payload, assembled);
        }
        Ok(())
    }

    /// Reads what is new in a payload that begins at the next byte or before it.
    fn advance(&mut self, sequence: u32, payload: &[u8], assembled: &mut Assembly) {
        let known = distance(self.next, sequence).unsigned_abs() as usize;
        let Some(new) = payload.get(known..) else { return };
        self.next = self.next.wrapping_add(new.len() as u32);
        self.read(new, assembled);
    }

    fn read(&mut self, mut bytes: &[u8], assembled: &mut Assembly) {
        while !bytes.is_empty() {
            if self.skipped > 0 {
                let skipped = self.skipped.min(bytes.len());
                self.skipped -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let length = |message: &[u8]| match message {
                [high, low, ..] => Some(usize::from(u16::from_be_bytes([*high, *low]))),
                [] | [_] => None,
            };
            let wanted = 2 + length(&self.message).unwrap_or(0);
            let (taken, rest) = bytes.split_at((wanted - self.message.len()).min(bytes.len()));
            self.message.extend(taken);
            bytes = rest;
            match length(&self.message) {
                Some(length) if length > MOST_MESSAGE_BYTES => {
                    assembled.ignored = Some(IgnoreReason::TooLong);
                    (self.message, self.skipped) = (vec![], length);
                }
                Some(length) if self.message.len() == 2 + length => {
                    assembled.messages.push(self.message.split_off(2));
                    self.message.clear();
                }
                Some(_) | None => {}
            }
        }
    }

    #[cfg(test)]
    pub(super) fn has_bounded_memory(&self) -> bool {
        let waiting: usize = self.waiting.iter().map(|(_, bytes)| bytes.len()).sum();
        waiting <= MOST_WAITING_BYTES && self.message.len() <= 2 + MOST_MESSAGE_BYTES
    }
}
