//! Commits operations in one transaction and accounts for every answer.

use std::fmt;
use std::io;

use nft::Operation;

use crate::decode::{KernelReply, decode_replies};
use crate::encode::{Batch, encode};
use crate::message::{Attributes, GENERAL, HEADER, Messages};
use crate::request::{Kernel, LARGEST_BATCH};

/// Limit of refusals kept per transaction: one mistake in a ruleset often causes thousands of errors.
const KEPT_REFUSALS: usize = 16;
/// The errno of a batch whose generation is stale (`nfnetlink_rcv_batch`). System calls never return it, so libc does
/// not define it.
const ERESTART: i32 = 85;

/// A committed transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommitReceipt {
    /// The kernel generation after the commit. If the operations changed nothing (an empty chain flushed, an existing
    /// element added) the kernel keeps the old generation, and the next commit fails with [`CommitError::Moved`].
    pub generation: u32,
}

/// Why a transaction was not committed.
#[derive(Debug, thiserror::Error)]
pub enum CommitError {
    /// The kernel refused the transaction and changed nothing.
    #[error("{}", Refusals(.refusals, *.more))]
    Refused {
        /// At least one.
        refusals: Vec<Refusal>,
        /// Number of further refusals that were not kept.
        more: usize,
    },
    /// Nothing was changed: another process committed since the generation was read.
    #[error("the kernel's ruleset changed since it was read (ERESTART)")]
    Moved,
    /// Nothing was sent.
    #[error("the transaction has more than {LARGEST_BATCH} bytes")]
    TooBig,
    /// Most likely nothing was sent; the caller has to read the table to be sure.
    #[error("cannot send the transaction: {0}")]
    Io(#[source] io::Error),
    /// The transaction may have been committed; the caller has to read the table to be sure.
    #[error("the kernel neither acknowledged nor refused the transaction: {0}")]
    Unclear(String),
}

/// One error that the kernel reported.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The operation, narrowed to one element if the kernel reported which; `None` if it refused the transaction as a
    /// whole.
    pub operation: Option<Operation>,
    /// Positive, as in errno(3); such as 12 (`ENOMEM`) or 16 (`EBUSY`).
    pub errno: i32,
    /// The meaning of the errno, and the kernel's extended ACK message.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.operation {
            Some(operation) => write!(f, "the kernel refused `{operation}`: {}", self.reason),
            None => write!(f, "the kernel refused the transaction as a whole: {}", self.reason),
        }
    }
}

struct Refusals<'a>(&'a [Refusal], usize);

impl fmt::Display for Refusals<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, refusal) in self.0.iter().enumerate() {
            let lead = if i == 0 { "" } else { "; " };
            write!(f, "{lead}{refusal}")?;
        }
        match self.1 {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

impl Kernel {
    /// Commits the operations in one transaction if the kernel generation is still the expected one; 0 skips that
    /// check. An empty list of operations commits nothing.
    ///
    /// After [`CommitError::Io`] and [`CommitError::Unclear`] the caller has to read the table to know its contents.
    pub fn commit(&mut self, operations: &[Operation], expected_generation: u32) -> Result<CommitReceipt, CommitError> {
        let first = self.reserve_sequences(1);
        let Ok(batch) = encode(operations, expected_generation, first) else { return Err(CommitError::TooBig) };
        if batch.parts.is_empty() {
            return Ok(CommitReceipt { generation: expected_generation });
        }
        self.reserve_sequences(batch.parts.len() as u32 + 1);
        self.socket.send(batch.buffer.bytes()).map_err(CommitError::Io)?;
        self.match_acknowledgements(operations, &batch)?;
        Ok(CommitReceipt { generation: next_generation(expected_generation) })
    }

    /// Reads every reply to the batch. All of them are queued already, since the kernel processes the batch inside
    /// `sendmsg`.
    fn match_acknowledgements(&mut self, operations: &[Operation], batch: &Batch) -> Result<(), CommitError> {
        let unclear = |e: &dyn fmt::Display| CommitError::Unclear(e.to_string());
        let (mut acknowledged, mut overflowed, mut moved) = (false, false, false);
        let (mut refusals, mut more) = (Vec::new(), 0);
        loop {
            let datagram = match self.socket.receive(&mut self.replies) {
                Ok(Some(datagram)) => datagram,
                Ok(None) => break,
                // Replies were dropped because the receive buffer was full; the socket reports this once.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    overflowed = true;
                    continue;
                }
                Err(e) => return Err(unclear(&e)),
            };
            for reply in decode_replies(datagram).map_err(|e| unclear(&e))? {
                let place = reply.sequence.wrapping_sub(batch.first_sequence) as usize;
                match reply.errno {
                    // A stale reply to an earlier request.
                    _ if place > batch.parts.len() + 1 => {}
                    0 => acknowledged |= place == batch.parts.len(),
                    ERESTART if place == 0 => moved = true,
                    _ if refusals.len() < KEPT_REFUSALS => refusals.push(refusal(operations, batch, place, &reply)),
                    _ => more += 1,
                }
            }
        }
        match (moved, refusals.is_empty(), acknowledged) {
            (true, ..) => Err(CommitError::Moved),
            (false, false, _) => Err(CommitError::Refused { refusals, more }),
            (false, true, true) => Ok(()),
            (false, true, false) if overflowed => Err(unclear(&"the receive buffer overflowed (ENOBUFS)")),
            (false, true, false) => Err(unclear(&"the kernel sent no answer")),
        }
    }
}

/// As `base_seq` in `nf_tables_commit`: a generation is never 0.
fn next_generation(generation: u32) -> u32 {
    generation.checked_add(1).unwrap_or(1)
}

fn refusal(operations: &[Operation], batch: &Batch, place: usize, reply: &KernelReply) -> Refusal {
    // Place 0 is the message that begins the batch; the kernel reports it when the transaction fails as a whole.
    let part = place.checked_sub(1).and_then(|p| batch.parts.get(p));
    let blamed = part.and_then(|p| operations.get(p.operation));
    let operation = blamed.map(|operation| match blamed_element(operation, batch, place, reply.offset) {
        Some(element) => one_element(operation, element),
        None => operation.clone(),
    });
    let text = io::Error::from_raw_os_error(reply.errno).to_string();
    let mut reason = match text.rsplit_once(" (os error") {
        Some((meaning, _)) => meaning.to_owned(),
        None => text,
    };
    if let Some(words) = &reply.words {
        reason.push_str(&format!(" ({words})"));
    }
    Refusal { operation, errno: reply.errno, reason }
}

/// The index of the element that the kernel refused. The reported offset points into the message that we sent; counting
/// the elements before that offset gives the index, where a range counts as two elements.
fn blamed_element(operation: &Operation, batch: &Batch, place: usize, offset: Option<u32>) -> Option<usize> {
    let (Operation::AddElements { elements, .. } | Operation::DeleteElements { elements, .. }) = operation else {
        return None;
    };
    let part = batch.parts.get(place.checked_sub(1)?)?;
    let bytes = batch.buffer.bytes().get(part.start..)?;
    let message = Messages::new(bytes).next()?.ok()?;
    let target = (offset? as usize).checked_sub(HEADER)?;
    // NFTA_SET_ELEM_LIST_ELEMENTS
    let list = Attributes::new(message.body.get(GENERAL..)?).find_map(|a| a.ok().filter(|a| a.kind == 3))?;
    let list_start = list.value.as_ptr().addr() - message.body.as_ptr().addr();
    let mut position = list_start;
    let mut before = 0;
    for attribute in list.nested() {
        let length = (4 + attribute.ok()?.value.len()).next_multiple_of(4);
        if target < position + length {
            break;
        }
        position += length;
        before += 1;
    }
    let mut stored = 0;
    (target >= list_start).then_some(())?;
    elements.iter().enumerate().skip(part.first_element).find_map(|(i, (key, element))| {
        stored += 1 + usize::from(crate::lower::lower_element(key, element).1.is_some());
        (before < stored).then_some(i)
    })
}

fn one_element(operation: &Operation, index: usize) -> Operation {
    let mut narrowed = operation.clone();
    match &mut narrowed {
        Operation::AddElements { elements, .. } | Operation::DeleteElements { elements, .. } => {
            *elements = elements.get(index).cloned().into_iter().collect();
        }
        Operation::AddTable { .. }
        | Operation::DeleteTable { .. }
        | Operation::AddChain { .. }
        | Operation::FlushChain { .. }
        | Operation::DeleteChain { .. }
        | Operation::AddRule { .. }
        | Operation::AddSet { .. }
        | Operation::DeleteSet { .. } => {}
    }
    narrowed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_generation_is_zero() {
        assert_eq!((next_generation(7), next_generation(u32::MAX)), (8, 1));
    }

    #[test]
    fn refusal_names_operation_and_reason() {
        let chain = Operation::DeleteTable { table: nft::Table::inet(nft::Name::new("t").unwrap()) };
        let refusal = Refusal { operation: Some(chain), errno: 2, reason: "No such thing".into() };
        let error = CommitError::Refused { refusals: vec![refusal], more: 3 };
        assert_eq!(error.to_string(), "the kernel refused `delete table inet t`: No such thing; and 3 more");
    }
}
