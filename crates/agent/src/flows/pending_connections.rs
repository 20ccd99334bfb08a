//! Known connections that are not attributed yet, sorted by start.
//!
//! A connection shorter than the interval between two listings becomes known when it ends, after others that began
//! later.

use flow::CountedFlow;
use jiff::Timestamp;

/// First report of a connection.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum FirstReport {
    /// By a NEW event or a listing at that time.
    Open { connection: CountedFlow, at: Timestamp },
    /// By its end event, at that time.
    Ended { connection: CountedFlow, at: Timestamp },
}

impl FirstReport {
    pub(super) fn connection(&self) -> &CountedFlow {
        let (FirstReport::Open { connection, at: _ } | FirstReport::Ended { connection, at: _ }) = self;
        connection
    }

    /// When the connection began. Without conntrack timestamps (`nf_conntrack_timestamp`) it is when it became known.
    pub(super) fn began(&self) -> Timestamp {
        let (FirstReport::Open { connection, at } | FirstReport::Ended { connection, at }) = self;
        connection.started.unwrap_or(*at)
    }
}

#[derive(Default)]
pub(super) struct Backlog {
    reported: Vec<FirstReport>,
}

impl Backlog {
    /// Reports of one connection must be added in their order.
    pub(super) fn push(&mut self, reported: FirstReport) {
        self.reported.push(reported);
    }

    pub(super) fn reports(&self) -> impl Iterator<Item = &FirstReport> {
        self.reported.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.reported.len()
    }

    /// Drains the connections that began before that time, the earliest first; all of them without a time.
    pub(super) fn take_before(&mut self, time: Option<Timestamp>) -> Vec<FirstReport> {
        // The sort is stable: reports of one connection have the same time.
        self.reported.sort_by_key(FirstReport::began);
        let count = time.map_or(self.reported.len(), |time| self.reported.partition_point(|r| r.began() < time));
        let later = self.reported.split_off(count);
        std::mem::replace(&mut self.reported, later)
    }
}

#[cfg(test)]
mod tests {
    use flow::{ConnectionId, Tuple};

    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    fn connection(id: u32, started: Option<i64>) -> CountedFlow {
        let address = "10.1.0.1".parse().unwrap();
        let tuple = Tuple {
            source: address,
            destination: address,
            protocol: 6,
            source_port: None,
            destination_port: None,
            icmp_type: None,
        };
        let id = ConnectionId { id, zone: 0, original: tuple };
        CountedFlow { id, reply: tuple, mark: 0, has_reply: false, volume: None, started: started.map(at) }
    }

    fn open(id: u32, started: Option<i64>, time: i64) -> FirstReport {
        FirstReport::Open { connection: connection(id, started), at: at(time) }
    }

    fn ended(id: u32, started: i64, time: i64) -> FirstReport {
        FirstReport::Ended { connection: connection(id, Some(started)), at: at(time) }
    }

    #[test]
    fn connections_leave_in_the_order_of_their_beginning() {
        let mut backlog = Backlog::default();
        let reports = [ended(1, 30, 40), open(2, Some(10), 50), ended(3, 20, 45), ended(2, 10, 60), open(4, None, 15)];
        reports.into_iter().for_each(|reported| backlog.push(reported));
        assert_eq!(backlog.take_before(Some(at(20))), [open(2, Some(10), 50), ended(2, 10, 60), open(4, None, 15)]);
        assert_eq!((backlog.take_before(Some(at(20))), backlog.len()), (vec![], 2));
        assert_eq!(backlog.take_before(None), [ended(3, 20, 45), ended(1, 30, 40)]);
    }
}
