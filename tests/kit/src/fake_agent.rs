//! Fake agents for tests of the aggregator: the real sender and ring, with records that a test makes.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use delivery::{Delivery, DeliveryFigures, DeliveryTarget};
use feed::Access;
use flow::{
    Connections, EndSample, Endpoint, EndpointKind, FlowKey, FlowRecord, FlowVerdict, Ring, SideTrace, TraceVerdict,
    Volume,
};
use jiff::Timestamp;
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::agent_process::until;

/// An agent without a kernel.
pub struct Agent {
    node: String,
    pub ring: Arc<Mutex<Ring>>,
    /// Number of records that closed windows have.
    pub closed: watch::Sender<u64>,
    figures: DeliveryFigures,
    /// Stops the sender when it is dropped.
    _runtime: Runtime,
}

impl Agent {
    /// # Panics
    /// If no thread can be started.
    pub fn start(node: &str, epoch: u64, target: DeliveryTarget) -> Agent {
        Agent::start_with_ring(node, epoch, target, Ring::default())
    }

    /// As [`Agent::start`], with a ring of another size.
    ///
    /// # Panics
    /// If no thread can be started.
    pub fn start_with_ring(node: &str, epoch: u64, target: DeliveryTarget, ring: Ring) -> Agent {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let ring = Arc::new(Mutex::new(ring));
        let (closed, changes) = watch::channel(0);
        let delivery = Delivery::new(node.to_owned(), epoch, target);
        let figures = delivery.figures();
        let read = ring.clone();
        runtime.spawn(delivery.run(changes, move |sequence, most| read.lock().unwrap().batch_from(sequence, most)));
        Agent { node: node.to_owned(), ring, closed, figures, _runtime: runtime }
    }

    /// Closes a window with records of connections from `shop/web` on `n1` to pods on `n2`.
    pub fn close(&self, connections: &[u64]) {
        let records = connections.iter().enumerate();
        self.push(records.map(|(number, started)| record(&self.node, &format!("db-{number}"), *started)));
    }

    /// Closes a window with these records.
    ///
    /// # Panics
    /// If another thread panicked while it pushed records.
    pub fn push(&self, records: impl IntoIterator<Item = FlowRecord>) {
        let mut ring = self.ring.lock().unwrap();
        ring.push(records.into_iter().map(Arc::new));
        self.closed.send_replace(ring.counts().pushed);
    }

    /// Records that left the ring before the aggregator had them.
    pub fn dropped(&self) -> u64 {
        self.figures.view().dropped
    }

    /// # Panics
    /// If the aggregator does not acknowledge all records in time.
    pub fn until_acknowledged(&self) {
        let newest = self.ring.lock().unwrap().counts().pushed;
        until("all records are acknowledged", || {
            let view = self.figures.view();
            (view.acknowledged == newest && view.failure.is_none()).then_some(())
        });
    }

    /// Waits until delivery fails with all of these words.
    ///
    /// # Panics
    /// If it does not fail in time.
    pub fn until_failed(&self, words: &[&str]) {
        until(&format!("delivery fails with {words:?}"), || {
            let why = self.figures.view().failure?;
            words.iter().all(|word| why.contains(word)).then_some(())
        });
    }
}

/// A record of the current window: TCP connections from `shop/web` on `n1` to port 5432 of a pod on `n2`.
///
/// # Panics
/// If the clock is beyond the year 9999.
pub fn record(node: &str, destination: &str, started: u64) -> FlowRecord {
    let now = Timestamp::now().as_second();
    let window = Timestamp::from_second(now - now % 15).unwrap();
    let pod = |name: &str| Endpoint {
        kind: EndpointKind::Pod,
        namespace: Some("shop".into()),
        name: Some(name.into()),
        service: Some("shop".into()),
        cluster: None,
        network: None,
    };
    let side = |enforced_here| SideTrace {
        verdict: TraceVerdict::NotIsolated,
        enforced_here,
        enforced: vec![],
        pending: vec![],
        passed_by: vec![],
    };
    let sample = |node: &str| Arc::new(EndSample { nodes: [node.into()].into(), ..EndSample::default() });
    FlowRecord {
        window,
        node: node.into(),
        key: Arc::new(FlowKey {
            source: pod("web"),
            destination: pod(destination),
            protocol: 6,
            port: Some(5432),
            icmp_type: None,
            service: None,
            verdict: FlowVerdict::Allowed,
            drop_cause: None,
            egress: side(node == "n1"),
            ingress: side(node == "n2"),
        }),
        sources: sample("n1"),
        destinations: sample("n2"),
        connections: Connections { started, ended: started, live: 0, lost: 0 },
        sent: Some(Volume { packets: started, bytes: started * 100 }),
        received: Some(Volume { packets: started, bytes: started * 1_000 }),
        unknown_volume: 0,
        denied_packets: 0,
        generation: None,
        first: window,
        last: window,
    }
}

/// Delivery without TLS.
///
/// # Panics
/// If no client can be created.
pub fn plain(address: SocketAddr) -> DeliveryTarget {
    DeliveryTarget::new(&format!("http://{address}"), Access::default(), None).unwrap()
}
