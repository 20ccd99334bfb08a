//! Looks up pods that start on this node and that the watch has not delivered yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster::ApiClient;
use pacing::Backoff;
use policy::{Object, ObjectName};
use tokio::sync::mpsc;

use crate::event_loop::Event;

/// Backoff after a response without the pod; doubles. The watch may be faster.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// A pod lookup.
#[derive(Debug, Clone)]
pub(crate) struct PodRequest {
    pub(crate) pod: ObjectName,
    pub(crate) uid: Option<Arc<str>>,
    /// Deadline of the last ADD that waits for the pod.
    pub(crate) deadline: Instant,
}

/// Looks up each pod until it is found or its deadline passes. Each lookup is a task; there are at most as many as
/// pending ADDs.
pub(crate) async fn run(connection: ApiClient, mut wanted: mpsc::Receiver<PodRequest>, events: mpsc::Sender<Event>) {
    while let Some(wanted) = wanted.recv().await {
        tokio::spawn(find(connection.clone(), wanted, events.clone()));
    }
}

async fn find(connection: ApiClient, wanted: PodRequest, events: mpsc::Sender<Event>) {
    let mut backoff = Backoff::new(FIRST_WAIT, LONGEST_WAIT);
    while Instant::now() < wanted.deadline {
        let found = cluster::look_up_pod(&connection, &wanted.pod).await;
        let is_it = matches!(&found, Ok(Some(object)) if is_wanted(object, &wanted));
        let result = match found {
            Ok(Some(object)) => Ok(object),
            Ok(None) => Err("the API server does not have the pod (404)".into()),
            Err(reason) => Err(reason),
        };
        if events.send(Event::PodLookup(wanted.pod.clone(), result)).await.is_err() || is_it {
            return;
        }
        tokio::time::sleep(backoff.wait()).await;
    }
}

fn is_wanted(object: &Object, wanted: &PodRequest) -> bool {
    match object {
        Object::Pod(pod) => wanted.uid.as_ref().is_none_or(|uid| pod.is_called(uid)),
        Object::Namespace(_) | Object::Policy(_) | Object::Node(_) | Object::ClusterPolicy(_) => false,
    }
}
