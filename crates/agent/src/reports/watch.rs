//! The thread that receives logged packets, reads the kernel's counters and queues drop events.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use nfnetlink::{Kernel, LogEvent, PacketLog, PacketLogError, RequestError};
use nft::{Name, Table};
use policy::{Cause, Judgement, counting_chains, flow_tables};
use tokio::sync::mpsc;

use super::packet_group::{DropEvent, PacketGroup};
use super::recorded_flows::RecordedFlows;
use super::totals::{CounterTotals, CounterValue};
use super::unrecorded_flows::UnrecordedFlows;
use super::{NAMED_PER_READ, READ_INTERVAL};
use crate::metrics::Metrics;

pub(crate) struct Watch {
    log: Option<PacketLog>,
    kernel: Kernel,
    /// The tables of families `inet` (with the flow tables), `bridge` and `netdev`.
    tables: [Table; 3],
    events: mpsc::Sender<DropEvent>,
    metrics: Arc<Metrics>,
    totals: CounterTotals,
    recorded: RecordedFlows,
    unrecorded: UnrecordedFlows,
    /// Packets already reported.
    handed_on: u64,
    /// First packets that may still be reported before the next read.
    room: usize,
    /// Counters of policies have grown since the flow tables were read.
    grown: bool,
    /// Error of the last read.
    trouble: Option<String>,
}

impl Watch {
    /// Counts what the kernel has counted so far as reported.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read.
    pub(crate) fn start(
        log: Option<PacketLog>,
        tables: [Table; 3],
        events: mpsc::Sender<DropEvent>,
        metrics: Arc<Metrics>,
    ) -> anyhow::Result<Watch> {
        let mut kernel = Kernel::open()?;
        let totals = CounterTotals::from(&counters(&mut kernel, &tables)?);
        let mut recorded = RecordedFlows::default();
        recorded.adopt(flows(&mut kernel, &tables[0])?, Instant::now());
        Ok(Watch {
            log,
            kernel,
            tables,
            events,
            metrics,
            totals,
            recorded,
            unrecorded: UnrecordedFlows::default(),
            handed_on: 0,
            room: NAMED_PER_READ,
            grown: false,
            trouble: None,
        })
    }

    /// Runs until the receiver of events is closed.
    pub(crate) fn run(mut self) {
        while !self.events.is_closed() {
            self.listen(Instant::now() + READ_INTERVAL);
            let trouble = self.read().err().map(|error| error.to_string());
            if let Some(trouble) = trouble.as_ref().filter(|trouble| self.trouble.as_ref() != Some(trouble)) {
                tracing::warn!("cannot read the counters of denied packets; retrying: {trouble}");
            }
            self.trouble = trouble;
        }
    }

    /// Receives logged packets until the deadline.
    fn listen(&mut self, until: Instant) {
        self.room = NAMED_PER_READ;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.events.is_closed() {
                return;
            }
            let Some(log) = &mut self.log else { return std::thread::sleep(left) };
            match log.next(left) {
                Ok(None) => return,
                Ok(Some(LogEvent::Packet(packet))) => {
                    if let Some(event) = DropEvent::of_record(&packet, Timestamp::now()) {
                        self.record_packet(&event);
                    }
                }
                Ok(Some(LogEvent::Lost { messages })) => self.metrics.drops.lost(messages.unwrap_or(0)),
                Err(PacketLogError::Decode(error)) => {
                    self.metrics.drops.lost(1);
                    tracing::debug!("cannot decode a logged packet (NFLOG): {error}");
                }
                Err(error) => {
                    tracing::warn!(
                        "cannot receive logged packets (NFLOG); denied packets are reported some seconds late: {error}"
                    );
                    return std::thread::sleep(left);
                }
            }
        }
    }

    fn record_packet(&mut self, DropEvent { at: _, group, first, count: _ }: &DropEvent) {
        let (now, room) = (Instant::now(), self.room.min(self.events.capacity()) > 0);
        let event = match group.is_recorded() {
            true if !group.is_whole() => None,
            true => self.recorded.logged(group, *first, now, room),
            false => self.unrecorded.logged(group, *first, now, room),
        };
        if let Some(event) = event {
            self.room -= 1;
            self.hand_on(event);
        }
    }

    fn read(&mut self) -> Result<(), RequestError> {
        let readings = counters(&mut self.kernel, &self.tables)?;
        self.grown |= self.totals.record(&readings).keys().any(|(_, cause)| cause.direction().is_some());
        let now = Instant::now();
        if self.grown {
            self.recorded.read(flows(&mut self.kernel, &self.tables[0])?, now);
            self.grown = false;
        }
        self.recorded.expire(now);
        self.unrecorded.expire(now);
        let room = NAMED_PER_READ.min(self.events.capacity());
        let mut events = self.unrecorded.report(room);
        events.extend(self.recorded.report(room - events.len()));
        events.into_iter().for_each(|event| self.hand_on(event));
        self.publish(now);
        Ok(())
    }

    /// The queue has room: this thread is its only sender.
    fn hand_on(&mut self, event: DropEvent) {
        let count = event.count;
        match self.events.try_send(event) {
            Ok(()) => self.handed_on += count,
            Err(error) => tracing::debug!("a denied packet was not reported: {error}"),
        }
    }

    fn publish(&self, now: Instant) {
        let drops = &self.metrics.drops;
        for (_, judgement, cause) in counting_chains() {
            drops.set(judgement, cause, self.totals.sum((judgement, cause)));
        }
        // The flow tables were read after the counters, so `handed_on` may be larger.
        drops.set_unnamed(self.totals.sum_of_all().saturating_sub(self.handed_on));
        drops.read_at(now);
    }
}

/// Counters of the chains that deny; a missing chain has none.
fn counters(kernel: &mut Kernel, tables: &[Table; 3]) -> Result<Vec<CounterValue>, RequestError> {
    let chains: Vec<(Name, Judgement, Cause)> = counting_chains().collect();
    let names: Vec<Name> = chains.iter().map(|(name, ..)| name.clone()).collect();
    let mut readings = Vec::new();
    for table in tables {
        let counted = kernel.chain_counters(table, &names)?;
        let of_chain = |(chain, judgement, cause): &(Name, Judgement, Cause)| {
            let packets = counted.get(chain)?.packets;
            Some(CounterValue { table: table.clone(), chain: chain.clone(), kind: (*judgement, *cause), packets })
        };
        readings.extend(chains.iter().filter_map(of_chain));
    }
    Ok(readings)
}

/// The flows of all tables of denied flows.
fn flows(kernel: &mut Kernel, table: &Table) -> Result<Vec<(PacketGroup, u64)>, RequestError> {
    let mut found = Vec::new();
    for of_flows in flow_tables() {
        let records = kernel.flow_records(table, &of_flows.set)?;
        found.extend(records.iter().map(|record| (PacketGroup::of_record(&of_flows, record), record.packets)));
    }
    Ok(found)
}
