//! How agents send flow records to aggregators: the gRPC messages, the agent's senders, and the receiving end.
//!
//! One unary call carries a batch of records and answers with the last record that was received ([`flow::Inbox`]). There is
//! no stream: windows close every 15 s, each call is authenticated by itself, and a call that fails is made again. The
//! records are those of the agent's ring, which is the buffer while the aggregator is away.

mod delivery;
mod figures;
mod message;
mod receiver;
mod sender;
mod target;

pub use delivery::Delivery;
pub use figures::{DeliveryFigures, DeliveryView};
pub use message::{
    BATCH_BYTES, BATCH_RECORDS, LARGEST_RECORD, PushReceipt, PushRequest, SERVICE, UndecodableRecord, decode_record,
};
pub use receiver::{PATH, receive};
pub use sender::LONGEST_RETRY;
pub use target::{DeliveryTarget, DeliveryTargetError};
