//! How agents send flow records to the aggregator: the gRPC messages, the agent's sender, and the receiving end.
//!
//! One unary call carries a batch of records and answers with the last record that was received ([`flow::Inbox`]). There is
//! no stream: windows close every 15 s, each call is authenticated by itself, and a call that fails is made again. The
//! records are those of the agent's ring, which is the buffer while the aggregator is away.

mod message;
mod receiver;
mod sender;

pub use message::{
    BATCH_BYTES, BATCH_RECORDS, LARGEST_RECORD, PushReceipt, PushRequest, SERVICE, UndecodableRecord, decode_record,
};
pub use receiver::{PATH, receive};
pub use sender::{Delivery, DeliveryFigures, DeliveryTarget, DeliveryTargetError, DeliveryView};
