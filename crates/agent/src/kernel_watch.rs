//! Carries the kernel's announcements of other programs' commits to the loop.

use std::time::Duration;

use nfnetlink::{Notification, Notifications};
use tokio::sync::mpsc;

use crate::state_loop::Event;

/// How often it looks whether the agent still runs.
const LOOK: Duration = Duration::from_secs(60);

/// Wait after an error, so that one that stays is no busy loop. Until then the ticks compare.
const AFTER_ERROR: Duration = Duration::from_secs(5);

/// Blocks until nobody listens any more.
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
