//! Sends the records of the node's ring to the aggregator.

use std::sync::Arc;

use delivery::{Delivery, DeliveryTarget};
use jiff::Timestamp;

use super::store::FlowStore;

/// Starts a task that sends the records of closed windows. It reads the ring, which is its buffer, and nobody waits for it.
pub(crate) fn start_delivery(node: &str, target: DeliveryTarget, store: &Arc<FlowStore>) {
    // Microseconds since 1970: greater at every start, as far as the clock goes forward.
    let epoch = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0);
    let delivery = Delivery::new(node.to_owned(), epoch, target);
    store.set_delivery(delivery.figures());
    let (closed, store) = (store.closed(), store.clone());
    tokio::spawn(delivery.run(closed, move |sequence, most| store.batch_from(sequence, most)));
}
