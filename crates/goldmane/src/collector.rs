//! Bodies for the collector of a Goldmane: [`FlowUpdate`] messages, each behind its length, as files of protocol buffers
//! hold them.
//!
//! The collector answers each message with a receipt, in order, so that the number of receipts says where to resume.

use prost::{DecodeError, Message};

use crate::message::{Flow, FlowUpdate};

/// Path of the method, a stream in both directions.
pub const CONNECT: &str = "/goldmane.FlowCollector/Connect";

/// Windows that a Goldmane keeps, in seconds. It sends a receipt for an older flow and discards it.
pub const KEPT_SECONDS: i64 = 3_600;

/// Messages of one body.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpdateBatch {
    /// Number of messages.
    pub updates: u64,
    pub body: Vec<u8>,
}

/// Encodes flows in their order. A body has at most `most_bytes`, or one message.
pub fn encode_updates(flows: Vec<Flow>, most_bytes: usize) -> Vec<UpdateBatch> {
    let mut batches = Vec::new();
    let mut batch = UpdateBatch::default();
    for flow in flows {
        let message = FlowUpdate { flow: Some(flow) }.encode_length_delimited_to_vec();
        if batch.updates > 0 && batch.body.len() + message.len() > most_bytes {
            batches.push(std::mem::take(&mut batch));
        }
        batch.updates += 1;
        batch.body.extend_from_slice(&message);
    }
    if batch.updates > 0 {
        batches.push(batch);
    }
    batches
}

/// Decodes the messages of a body.
///
/// # Errors
/// If the body is damaged.
pub fn decode_updates(mut body: &[u8]) -> Result<Vec<FlowUpdate>, DecodeError> {
    let mut updates = Vec::new();
    while !body.is_empty() {
        updates.push(FlowUpdate::decode_length_delimited(&mut body)?);
    }
    Ok(updates)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(bytes_in: i64) -> Flow {
        Flow { bytes_in, ..Flow::default() }
    }

    #[test]
    fn bodies_have_bounded_messages_in_order() {
        let flows: Vec<Flow> = (0..10).map(flow).collect();
        // A flow without bytes is 3 bytes long, and each of the others 5.
        let batches = encode_updates(flows.clone(), 13);
        assert_eq!(batches.iter().map(|batch| batch.updates).collect::<Vec<_>>(), [3, 2, 2, 2, 1]);
        assert_eq!(batches[0].body, b"\x02\x0a\x00\x04\x0a\x02\x40\x01\x04\x0a\x02\x40\x02");
        let decoded = batches.iter().flat_map(|batch| decode_updates(&batch.body).unwrap());
        assert_eq!(decoded.filter_map(|update| update.flow).collect::<Vec<_>>(), flows);
        assert_eq!(encode_updates(flows, 1).len(), 10, "a message is never split");
        assert_eq!(encode_updates(Vec::new(), 1), []);
        assert!(decode_updates(&batches[0].body[..12]).is_err());
    }
}
