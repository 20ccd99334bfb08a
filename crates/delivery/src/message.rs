//! Messages of `ringfence.flows.v1.FlowCollector`.
//!
//! A record is sent in its JSON form (docs/flows.md), which is the only definition of its fields. A receiver older than
//! the agent ignores unknown fields.

use std::sync::Arc;

use flow::{BatchHead, FlowKey, FlowRecord, RecordBatch};

/// Name of the service.
pub const SERVICE: &str = "ringfence.flows.v1.FlowCollector";

/// Limit of the record bytes of one call, without the rest of the message: a few hundred records, decoded in
/// milliseconds.
pub const BATCH_BYTES: usize = 1 << 20;

/// Limit of the number of records of one call; fewer if they are large.
pub const BATCH_RECORDS: usize = 2_048;

/// The JSON form of a record with a hundred members at each end is smaller than 32 KiB.
pub const LARGEST_RECORD: usize = 64 << 10;

/// Records of one agent. Field numbers are those of the protocol.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct PushRequest {
    #[prost(string, tag = "1")]
    pub node: String,
    /// Epoch of the agent's process; increases with every start.
    #[prost(uint64, tag = "2")]
    pub epoch: u64,
    /// Sequence number of the first record; records count from 1 in each epoch.
    #[prost(uint64, tag = "3")]
    pub first: u64,
    /// Sequence number of the oldest record that the agent can still send.
    #[prost(uint64, tag = "4")]
    pub oldest: u64,
    /// Sequence number of the newest record of the agent.
    #[prost(uint64, tag = "5")]
    pub newest: u64,
    /// Records in JSON form.
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub records: Vec<Vec<u8>>,
    /// Version of the agent; informational.
    #[prost(string, tag = "7")]
    pub version: String,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PushReceipt {
    /// Sequence number of the last record received in this epoch; 0 if there was none. The agent resumes with the next
    /// one.
    #[prost(uint64, tag = "1")]
    pub acknowledged: u64,
}

/// Invalid record.
#[derive(Debug, thiserror::Error)]
pub enum UndecodableRecord {
    #[error("it is larger than {LARGEST_RECORD} bytes")]
    TooLarge,
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    #[error("it is of node '{}'", .0.escape_debug())]
    OtherNode(Arc<str>),
    #[error("a name in it is longer than {LONGEST_NAME} bytes")]
    LongName,
}

impl PushRequest {
    /// Builds a call with as many records of the batch as fit, and at least one.
    ///
    /// # Errors
    /// If a record cannot be serialized as JSON.
    pub fn new(node: &str, epoch: u64, batch: &RecordBatch) -> Result<PushRequest, serde_json::Error> {
        let mut records = Vec::new();
        let mut bytes = 0;
        for record in &batch.records {
            let text = serde_json::to_vec(&**record)?;
            bytes += text.len();
            if bytes > BATCH_BYTES && !records.is_empty() {
                break;
            }
            records.push(text);
        }
        Ok(PushRequest {
            node: node.to_owned(),
            epoch,
            first: batch.first,
            oldest: batch.oldest,
            newest: batch.newest,
            records,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        })
    }

    pub fn head(&self) -> BatchHead {
        BatchHead {
            node: self.node.as_str().into(),
            epoch: self.epoch,
            first: self.first,
            oldest: self.oldest,
            newest: self.newest,
            count: self.records.len() as u64,
        }
    }
}

/// Limit of a name in the key of a record, in bytes: names of Kubernetes objects have at most 253, services the name of a
/// namespace and a label. Responses about many records repeat these names.
const LONGEST_NAME: usize = 512;

fn has_long_name(key: &FlowKey) -> bool {
    let policies = key.policies().flat_map(|hit| [&hit.namespace, &hit.name]);
    key.source.names().chain(key.destination.names()).chain(policies).any(|name| name.len() > LONGEST_NAME)
}

/// Decodes a record of a node.
///
/// # Errors
/// If the record is invalid, has a name that no object can have, or names another node.
pub fn decode_record(text: &[u8], node: &str) -> Result<FlowRecord, UndecodableRecord> {
    if text.len() > LARGEST_RECORD {
        return Err(UndecodableRecord::TooLarge);
    }
    let record: FlowRecord = serde_json::from_slice(text)?;
    if *record.node != *node {
        return Err(UndecodableRecord::OtherNode(record.node));
    }
    if has_long_name(&record.key) {
        return Err(UndecodableRecord::LongName);
    }
    Ok(record)
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    /// Encoded by hand in the protocol buffers' format: tag = number << 3 | wire type.
    #[test]
    fn messages_have_these_bytes() {
        let request = PushRequest {
            node: "n1".into(),
            epoch: 300,
            first: 2,
            oldest: 1,
            newest: 3,
            records: vec![b"{}".to_vec(), b"[]".to_vec()],
            version: "v".into(),
        };
        let bytes = b"\x0a\x02n1\x10\xac\x02\x18\x02\x20\x01\x28\x03\x32\x02{}\x32\x02[]\x3a\x01v";
        assert_eq!(request.encode_to_vec(), bytes);
        assert_eq!(PushRequest::decode(&bytes[..]).unwrap(), request);
        assert_eq!(PushReceipt { acknowledged: 3 }.encode_to_vec(), b"\x08\x03");
    }

    #[test]
    fn records_of_other_nodes_are_refused() {
        let text = r#"{"window":"2026-05-04T12:00:00Z","node":"n2","source":{"kind":"world"},"destination":{"kind":"world"},
            "protocol":6,"verdict":"allowed",
            "egress":{"verdict":"not-a-pod","enforcedHere":false,"enforced":[],"pending":[]},
            "ingress":{"verdict":"not-a-pod","enforcedHere":false,"enforced":[],"pending":[]},
            "sources":{"addresses":[],"pods":[],"nodes":[],"labels":[],"identities":[],"truncated":false},
            "destinations":{"addresses":[],"pods":[],"nodes":[],"labels":[],"identities":[],"truncated":false},
            "connections":{"started":1,"ended":0,"live":0,"lost":0},"unknownVolume":0,"deniedPackets":0,
            "first":"2026-05-04T12:00:00Z","last":"2026-05-04T12:00:00Z"}"#;
        assert_eq!(&*decode_record(text.as_bytes(), "n2").unwrap().node, "n2");
        assert_eq!(decode_record(text.as_bytes(), "n1").unwrap_err().to_string(), "it is of node 'n2'");
        let name = "n".repeat(LONGEST_NAME + 1);
        let long = text.replacen(r#"{"kind":"world"}"#, &format!(r#"{{"kind":"node","name":"{name}"}}"#), 1);
        assert!(matches!(decode_record(long.as_bytes(), "n2"), Err(UndecodableRecord::LongName)));
        let large = vec![b' '; LARGEST_RECORD + 1];
        assert!(matches!(decode_record(&large, "n2"), Err(UndecodableRecord::TooLarge)));
    }
}
