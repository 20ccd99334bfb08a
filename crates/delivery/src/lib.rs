//! Delivery of flow records from agents to aggregators: gRPC messages, the agent's senders, and the receiver.
//!
//! One unary call carries a batch of records and is answered with the last received record ([`flow::Inbox`]). There is
//! no stream: windows close every 15 s, each call is authenticated separately, and a failed call is retried. The
//! agent's ring buffers the records while the aggregator is unavailable.

mod delivery;
mod endpoint;
mod figures;
mod message;
mod receiver;
mod sender;
mod target;

pub use delivery::Delivery;
pub use endpoint::{GrpcEndpoint, GrpcEndpointError};
pub use figures::{DeliveryFigures, DeliveryView};
pub use message::{
    BATCH_BYTES, BATCH_RECORDS, LARGEST_RECORD, PushReceipt, PushRequest, SERVICE, UndecodableRecord, decode_record,
};
pub use receiver::{PATH, receive};
pub use sender::LONGEST_RETRY;
pub use target::{DeliveryTarget, DeliveryTargetError};
