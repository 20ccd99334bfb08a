//! How many batches are received at once, in all and from one sender: a client that sends slowly delays only itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use access::Principal;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Batches that are received at once. Each takes at most 2 MiB until it is decoded; a further one waits.
const MOST_PUSHES: usize = 32;

/// Batches of one sender that are received at once. Agents that share a certificate are one sender.
const MOST_OF_SENDER: usize = MOST_PUSHES / 2;

/// The user, and the node where the token says which.
type Sender = (String, Option<String>);

/// Permits to send a batch.
#[derive(Debug, Clone)]
pub(super) struct Pushes {
    all: Arc<Semaphore>,
    /// Senders with batches under way or waiting.
    senders: Arc<Mutex<HashMap<Sender, Arc<Semaphore>>>>,
}

/// A batch may be received as long as this is kept.
#[derive(Debug)]
pub(super) struct PushPermit {
    _all: Option<OwnedSemaphorePermit>,
    _share: Option<Share>,
}

/// A sender that waits for its share, or has a part of it.
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

    /// Waits until a batch of the sender may be received. A sender that waits for its share takes nobody else's place.
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
        // The map and this are the last that know it.
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
        // It waits for its own batches.
        let mut waiting = Box::pin(pushes.acquire(Some(&slow)));
        assert!(waiting.as_mut().now_or_never().is_none());
        let others = pushes.acquire(Some(&other)).now_or_never().unwrap();
        held.pop();
        held.push(waiting.await);
        // Without authentication, all that is free may be had.
        while let Some(permit) = pushes.acquire(None).now_or_never() {
            held.push(permit);
        }
        assert_eq!(held.len() + 1, MOST_PUSHES);
        assert_eq!(pushes.senders.lock().unwrap().len(), 2);
        drop((held, others));
        assert_eq!(pushes.senders.lock().unwrap().len(), 0, "senders without batches are forgotten");
        assert_eq!(pushes.all.available_permits(), MOST_PUSHES);
    }

    #[tokio::test]
    async fn sender_that_gives_up_is_forgotten() {
        let pushes = Pushes::new();
        let held: Vec<_> = (0..MOST_PUSHES).map(|_| pushes.acquire(None).now_or_never().unwrap()).collect();
        assert!(pushes.acquire(Some(&agent("n1"))).now_or_never().is_none());
        assert_eq!(pushes.senders.lock().unwrap().len(), 0);
        drop(held);
    }
}
