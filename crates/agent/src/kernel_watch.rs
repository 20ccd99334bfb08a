//! Sends the kernel's notifications of foreign commits to the event loop.

use std::time::Duration;

use nfnetlink::{Notification, Notifications};
use tokio::sync::mpsc;

use crate::event_loop::Event;

/// Timeout after which the thread checks whether the agent still runs.
const LOOK: Duration = Duration::from_secs(60);

/// Backoff after an error, so that a persistent one causes no busy loop. The resync covers the gap.
const AFTER_ERROR: Duration = Duration::from_secs(5);

/// Blocks until the receiver is closed.
pub(crate) fn run(mut notifications: Notifications, events: &mpsc::Sender<Event>) {
    while !events.is_closed() {
        let notification = match notifications.next(LOOK) {
            Ok(None) => continue,
            Ok(Some(notification)) => notification,
            Err(error) => {
                tracing::warn!(
                    "netlink notifications failed; commits of other programs may go unnoticed until the next resync: \
                     {error}"
                );
                std::thread::sleep(AFTER_ERROR);
                Notification::Lost
            }
        };
        if events.blocking_send(Event::Kernel(notification)).is_err() {
            return;
        }
    }
}
