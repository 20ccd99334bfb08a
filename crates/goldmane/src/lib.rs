//! Goldmane's API: messages, conversion of flow records to flows, filters, lists, hints, statistics, and flows for the
//! collector of another Goldmane.
//!
//! Everything here is a function of values; the aggregator serves it. As in Goldmane, each reporting side of a
//! connection has a separate flow, so sums are only correct per reporter.

pub mod collector;
mod convert;
mod filter;
mod hints;
mod list;
pub mod message;
mod statistics;

pub use convert::{convert, flow_id};
pub use filter::{Filters, RequestError};
pub use hints::Hints;
pub use list::{FlowList, MOST_FLOWS, MOST_KEYS, Sorting};
pub use statistics::StatisticsQuery;

/// Names of the services.
pub const FLOWS: &str = "goldmane.Flows";
pub const STATISTICS: &str = "goldmane.Statistics";

/// Service to which Calico's agents send flows. The aggregator calls it as a client and does not serve it.
pub const FLOW_COLLECTOR: &str = "goldmane.FlowCollector";

/// Requested page of a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Page {
    /// Page number, from 0.
    pub number: usize,
    /// Items per page; 0 for all.
    pub size: usize,
}

impl Page {
    /// # Errors
    /// If a number is negative.
    pub fn parse(number: i64, size: i64) -> Result<Page, RequestError> {
        let parse = |number: i64| usize::try_from(number).map_err(|_| RequestError::Page);
        Ok(Page { number: parse(number)?, size: parse(size)? })
    }

    /// Returns the items of the page, and the metadata of the whole list.
    pub(crate) fn of<T>(self, items: Vec<T>) -> (Vec<T>, message::ListMetadata) {
        let count = items.len();
        let pages = match (count, self.size) {
            (0, _) => 0,
            (_, 0) => 1,
            (count, size) => count.div_ceil(size),
        };
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        let meta = message::ListMetadata { total_pages: number(pages), total_results: number(count) };
        let size = if self.size == 0 { usize::MAX } else { self.size };
        let first = if self.size == 0 { 0 } else { self.number.saturating_mul(self.size) };
        (items.into_iter().skip(first).take(size).collect(), meta)
    }
}

/// Range of window begins, in seconds since 1970. In requests a negative bound is relative to now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeRange {
    /// Inclusive.
    pub start: i64,
    /// Exclusive.
    pub end: i64,
}

impl TimeRange {
    /// Resolves a range: a start of 0 is the oldest window, an end of 0 is now.
    ///
    /// # Errors
    /// If the range is empty.
    pub fn parse(start: i64, end: i64, now: i64) -> Result<TimeRange, RequestError> {
        let start = if start == 0 { i64::MIN } else { absolute(start, now) };
        let end = absolute(end, now);
        if start >= end { Err(RequestError::Range { start, end }) } else { Ok(TimeRange { start, end }) }
    }

    pub fn has(self, window: jiff::Timestamp) -> bool {
        (self.start..self.end).contains(&window.as_second())
    }
}

/// Converts a time of a request to seconds since 1970: 0 is now, and negative times are relative to now.
pub fn absolute(time: i64, now: i64) -> i64 {
    if time > 0 { time } else { now.saturating_add(time) }
}

#[cfg(test)]
mod tests;
