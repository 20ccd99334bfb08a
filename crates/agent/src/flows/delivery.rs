//! Sends the records of the node's ring to the aggregator.

use std::sync::Arc;

use delivery::{Delivery, DeliveryTarget};
use jiff::Timestamp;

use super::store::FlowStore;

/// Starts a task that sends the records of closed windows. Its buffer is the ring, so nothing waits for it.
pub(crate) fn start_delivery(node: &str, target: DeliveryTarget, store: &Arc<FlowStore>) {
    // Microseconds since 1970: it increases with every start unless the clock is set back.
    let epoch = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or(0);
    let delivery = Delivery::new(node.to_owned(), epoch, target);
    store.set_delivery(delivery.figures());
    let (closed, store) = (store.closed(), store.clone());
    tokio::spawn(delivery.run(closed, move |sequence, most| store.batch_from(sequence, most)));
}
