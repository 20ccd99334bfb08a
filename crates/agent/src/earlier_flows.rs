//! Deletes conntrack entries of earlier pods that had the addresses of a new one.
//!
//! Rules judge a flow by the end that opened it. For a flow that an earlier pod opened, that is the new pod, so that packets
//! of the other end pass as replies although the new pod is isolated for ingress.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

use nfnetlink::{ChangeFlowsError, ListedFlow, delete_flows};
use tokio::sync::{mpsc, oneshot};

/// Deletes the entries of which one of the addresses is an end, of pods that have opened no flow yet. Returns the number of
/// deleted entries. The next TCP segment of such a connection begins a flow without a SYN, which isolated pods neither send
/// nor receive.
///
/// Blocks while the kernel lists its entries.
pub(crate) fn delete_earlier_flows(addresses: &BTreeSet<IpAddr>) -> Result<usize, ChangeFlowsError> {
    let _one = LISTING.lock().unwrap_or_else(PoisonError::into_inner);
    delete_of(addresses)
}

fn delete_of(addresses: &BTreeSet<IpAddr>) -> Result<usize, ChangeFlowsError> {
    delete_flows(|flow| is_of(flow, addresses))
}

/// Each listing reads all entries of the kernel: one runs after the other. Whoever has this lock knows that none is running.
static LISTING: Mutex<()> = Mutex::new(());

/// Bound on queued requests; further requesters wait for room.
const MOST_QUEUED: usize = 64;

struct DeletionRequest {
    addresses: BTreeSet<IpAddr>,
    /// Closed once the requester has given up.
    reply: oneshot::Sender<Result<(), String>>,
}

/// Deletes entries for pods that start, in batches: a pod can fill the kernel's table, and a listing for each ADD would then
/// exceed the deadlines of the others.
#[derive(Clone)]
pub(crate) struct FlowDeletions {
    requests: mpsc::Sender<DeletionRequest>,
}

impl FlowDeletions {
    /// Spawns the task, which ends with the last clone.
    pub(crate) fn start() -> FlowDeletions {
        FlowDeletions::with(|addresses| delete_of(addresses).map_err(|e| e.to_string()))
    }

    fn with(delete: impl Fn(&BTreeSet<IpAddr>) -> Result<usize, String> + Send + Sync + 'static) -> FlowDeletions {
        let (requests, received) = mpsc::channel(MOST_QUEUED);
        tokio::spawn(serve(received, Arc::new(delete)));
        FlowDeletions { requests }
    }

    /// Deletes the entries of which one of the addresses is an end. If the future is dropped before the listing for it
    /// starts, none is deleted.
    pub(crate) async fn delete(&self, addresses: BTreeSet<IpAddr>) -> Result<(), String> {
        if addresses.is_empty() {
            return Ok(());
        }
        let stopping = || "the agent is stopping".to_string();
        let (reply, answer) = oneshot::channel();
        self.requests.send(DeletionRequest { addresses, reply }).await.map_err(|_| stopping())?;
        answer.await.map_err(|_| stopping())?
    }
}

async fn serve<D>(mut received: mpsc::Receiver<DeletionRequest>, delete: Arc<D>)
where
    D: Fn(&BTreeSet<IpAddr>) -> Result<usize, String> + Send + Sync + 'static,
{
    let mut batch = Vec::new();
    while received.recv_many(&mut batch, MOST_QUEUED).await > 0 {
        let (requests, delete) = (std::mem::take(&mut batch), delete.clone());
        let ended = tokio::task::spawn_blocking(move || delete_batch(requests, &*delete)).await;
        if let Err(error) = ended {
            // The requesters find their channels closed.
            tracing::warn!("deleting conntrack entries of earlier pods failed: {error}");
        }
    }
}

fn delete_batch(requests: Vec<DeletionRequest>, delete: &impl Fn(&BTreeSet<IpAddr>) -> Result<usize, String>) {
    let _one = LISTING.lock().unwrap_or_else(PoisonError::into_inner);
    let waiting: Vec<DeletionRequest> = requests.into_iter().filter(|request| !request.reply.is_closed()).collect();
    if waiting.is_empty() {
        return;
    }
    let addresses: BTreeSet<IpAddr> = waiting.iter().flat_map(|request| request.addresses.iter().copied()).collect();
    let deleted = delete(&addresses);
    if let Ok(entries @ 1..) = deleted {
        tracing::debug!(entries, "deleted conntrack entries of addresses that pods get again");
    }
    for request in waiting {
        // A requester that has given up meanwhile needs no answer.
        let _closed = request.reply.send(deleted.clone().map(|_| ()));
    }
}

fn is_of(flow: &ListedFlow, addresses: &BTreeSet<IpAddr>) -> bool {
    let [original, reply] = &flow.tuples;
    let ends = [original.source, original.destination, reply.source, reply.destination];
    ends.iter().any(|address| addresses.contains(address))
}

#[cfg(test)]
mod tests {
    use nfnetlink::{FlowIdentity, TrackedTuple};

    use super::*;

    fn of(address: &str) -> BTreeSet<IpAddr> {
        [address.parse().unwrap()].into()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn waiting_requests_share_a_listing_without_abandoned_ones() {
        let (listed, listings) = std::sync::mpsc::channel();
        let (release, released) = std::sync::mpsc::channel();
        let released = Mutex::new(released);
        let deletions = FlowDeletions::with(move |addresses| {
            listed.send(addresses.clone()).unwrap();
            released.lock().unwrap().recv().unwrap();
            Ok(0)
        });
        let request = |address: &str| {
            let (deletions, addresses) = (deletions.clone(), of(address));
            tokio::spawn(async move { deletions.delete(addresses).await })
        };
        let next = || tokio::task::block_in_place(|| listings.recv().unwrap());
        let first = request("10.0.0.1");
        assert_eq!(next(), of("10.0.0.1"));
        let others = ["10.0.0.2", "10.0.0.3", "10.0.0.4"].map(request);
        while deletions.requests.capacity() > MOST_QUEUED - others.len() {
            tokio::task::yield_now().await;
        }
        others[2].abort();
        while !others[2].is_finished() {
            tokio::task::yield_now().await;
        }
        release.send(()).unwrap();
        release.send(()).unwrap();
        assert_eq!(next(), &of("10.0.0.2") | &of("10.0.0.3"));
        assert_eq!(first.await.unwrap(), Ok(()));
    }

    #[test]
    fn each_end_counts() {
        let tuple = |source: &str, destination: &str| TrackedTuple {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            protocol: 17,
            source_port: Some(1024),
            destination_port: Some(80),
            icmp_type: None,
        };
        // A Service, and a masqueraded client.
        let tuples = [tuple("10.0.0.1", "10.96.0.1"), tuple("10.0.0.2", "192.0.2.1")];
        let flow = ListedFlow { identity: FlowIdentity { family: 2, original: vec![], zone: None }, tuples };
        let is_deleted = |address: &str| is_of(&flow, &[address.parse().unwrap()].into());
        for address in ["10.0.0.1", "10.96.0.1", "10.0.0.2", "192.0.2.1"] {
            assert!(is_deleted(address), "{address}");
        }
        assert!(!is_deleted("10.0.0.3"));
    }
}
