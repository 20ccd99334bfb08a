//! Limits of concurrently received batches, in total and per sender, so that a slow sender delays only itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use access::Principal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Limit of concurrently received batches. Each needs at most 2 MiB until it is decoded; further batches wait.
const MOST_PUSHES: usize = 32;

/// Limit per sender. Agents that share a certificate are one sender.
const MOST_OF_SENDER: usize = MOST_PUSHES / 2;

/// The user, and the node if the token is bound to one.
type Sender = (String, Option<String>);

/// Issues permits to receive a batch.
#[derive(Debug, Clone)]
pub(super) struct Pushes {
    all: Arc<Semaphore>,
    /// Senders with batches in progress or waiting.
    senders: Arc<Mutex<HashMap<Sender, Arc<Semaphore>>>>,
}

/// Permit to receive a batch, released on drop.
#[derive(Debug)]
pub(super) struct PushPermit {
    _all: Option<OwnedSemaphorePermit>,
    _share: Option<Share>,
}

/// A sender's use of the limit per sender: a permit, or the wait for one.
#[derive(Debug)]
struct Share {
    senders: Arc<Mutex<HashMap<Sender, Arc<Semaphore>>>>,
    sender: Sender,
    share: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Pushes {
    pub(super) fn new() -> Pushes {
        Pushes { all: Arc::new(Semaphore::new(MOST_PUSHES)), senders: Arc::default() }
    }

    /// Waits until a batch of the sender may be received. A sender at its limit does not occupy a permit of others.
    pub(super) async fn acquire(&self, sender: Option<&Principal>) -> PushPermit {
        let share = match sender {
            Some(sender) => Some(self.share(sender).await),
            None => None,
        };
        PushPermit { _all: self.all.clone().acquire_owned().await.ok(), _share: share }
    }

    async fn share(&self, sender: &Principal) -> Share {
        let sender = (sender.user.clone(), sender.node.clone());
        let share = {
            let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
            let share = senders.entry(sender.clone()).or_insert_with(|| Arc::new(Semaphore::new(MOST_OF_SENDER)));
            share.clone()
        };
        let mut waiting = Share { senders: self.senders.clone(), sender, share, permit: None };
        waiting.permit = waiting.share.clone().acquire_owned().await.ok();
        waiting
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut senders = self.senders.lock().unwrap_or_else(PoisonError::into_inner);
        self.permit = None;
        // Only the map and this value reference the semaphore: the sender has no other batch.
        if Arc::strong_count(&self.share) <= 2 {
            senders.remove(&self.sender);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn agent(node: &str) -> Principal {
        let user = "system:serviceaccount:ringfence:ringfence".to_owned();
        Principal { user, groups: vec![], node: Some(node.to_owned()) }
    }

    #[tokio::test]
    async fn one_sender_leaves_room_for_others() {
        let pushes = Pushes::new();
        let (slow, other) = (agent("n1"), agent("n2"));
        let mut held = Vec::new();
        for _ in 0..MOST_OF_SENDER {
            held.push(pushes.acquire(Some(&slow)).now_or_never().unwrap());
        }
        // The sender waits for its own batches.
        let mut waiting = Box::pin(pushes.acquire(Some(&slow)));
        assert!(waiting.as_mut().now_or_never().is_none());
        let others = pushes.acquire(Some(&other)).now_or_never().unwrap();
        held.pop();
        held.push(waiting.await);
        // Without authentication there is no limit per sender.
        while let Some(permit) = pushes.acquire(None).now_or_never() {
            held.push(permit);
        }
        assert_eq!(held.len() + 1, MOST_PUSHES);
        assert_eq!(pushes.senders.lock().unwrap().len(), 2);
        drop((held, others));
        assert_eq!(pushes.senders.lock().unwrap().len(), 0, "senders without batches are removed");
        assert_eq!(pushes.all.available_permits(), MOST_PUSHES);
    }

    #[tokio::test]
    async fn sender_that_disconnects_while_waiting_is_removed() {
        let pushes = Pushes::new();
        let held: Vec<_> = (0..MOST_PUSHES).map(|_| pushes.acquire(None).now_or_never().unwrap()).collect();
        assert!(pushes.acquire(Some(&agent("n1"))).now_or_never().is_none());
        assert_eq!(pushes.senders.lock().unwrap().len(), 0);
        drop(held);
    }
}
