//! Filters with several values per field.

use jiff::{SignedDuration, Timestamp};

use super::{FilterError, FlowFilter};
use crate::{FlowRecord, WINDOW_SECONDS};

/// Limit of the combinations of values in one query: each record is compared with all of them.
const MOST_COMBINATIONS: usize = 256;

/// Conditions on records: values of one field are alternatives, and the conditions on all fields must match.
///
/// ```
/// use flow::FlowFilters;
///
/// let now = "2026-05-04T12:00:00Z".parse()?;
/// let filters = FlowFilters::parse([("verdict", "denied"), ("verdict", "would-deny"), ("port", "5432")], now)?;
/// assert_eq!(filters.combinations(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowFilters {
    /// One filter per combination of values; a record matches if one of them matches. Never empty.
    combinations: Vec<FlowFilter>,
}

impl Default for FlowFilters {
    fn default() -> FlowFilters {
        FlowFilters { combinations: vec![FlowFilter::default()] }
    }
}

impl FlowFilters {
    /// Parses fields by name ([`FlowFilter::FIELDS`]); a field with alternatives is repeated. Durations are relative to
    /// `now`.
    ///
    /// # Errors
    /// If a field is unknown, its text cannot be parsed, or there are too many combinations.
    pub fn parse<'a>(
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
        now: Timestamp,
    ) -> Result<FlowFilters, FilterError> {
        let mut fields: Vec<(&str, Vec<&str>)> = Vec::new();
        for (field, text) in given {
            match fields.iter_mut().find(|(known, _)| *known == field) {
                Some((_, texts)) => texts.push(text),
                None => fields.push((field, vec![text])),
            }
        }
        let mut combinations = vec![FlowFilter::default()];
        for (field, texts) in fields {
            if combinations.len().saturating_mul(texts.len()) > MOST_COMBINATIONS {
                return Err(FilterError::TooManyCombinations { most: MOST_COMBINATIONS });
            }
            let mut extended = Vec::with_capacity(combinations.len() * texts.len());
            for text in texts {
                for combination in &combinations {
                    let mut combination = combination.clone();
                    combination.set(field, text, now)?;
                    extended.push(combination);
                }
            }
            combinations = extended;
        }
        Ok(FlowFilters { combinations })
    }

    pub fn admits(&self, record: &FlowRecord) -> bool {
        self.combinations.iter().any(|filter| filter.admits(record))
    }

    /// Number of combinations of values.
    pub fn combinations(&self) -> usize {
        self.combinations.len()
    }

    /// Records of windows that end at or before this time never match.
    pub fn since(&self) -> Option<Timestamp> {
        self.combinations.iter().map(|filter| filter.since).min().flatten()
    }

    /// Records of windows that begin at or after this time never match.
    pub fn until(&self) -> Option<Timestamp> {
        let untils: Option<Vec<Timestamp>> = self.combinations.iter().map(|filter| filter.until).collect();
        untils?.into_iter().max()
    }

    /// Whether a window may have matching records.
    pub fn admits_window(&self, begin: Timestamp) -> bool {
        let end = begin.checked_add(SignedDuration::from_secs(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX);
        self.since().is_none_or(|since| end > since) && self.until().is_none_or(|until| begin < until)
    }

    /// These filters with one more condition.
    ///
    /// # Errors
    /// If the field is unknown or already has a condition, or its text cannot be parsed.
    pub fn and(&self, field: &str, text: &str, now: Timestamp) -> Result<FlowFilters, FilterError> {
        let mut combinations = self.combinations.clone();
        for combination in &mut combinations {
            combination.set(field, text, now)?;
        }
        Ok(FlowFilters { combinations })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::subsequence;

    use super::*;
    use crate::testing::{at, records};

    fn admits_any(record: &FlowRecord, field: &str, texts: &[&str]) -> bool {
        texts.is_empty()
            || texts.iter().any(|text| {
                let mut filter = FlowFilter::default();
                filter.set(field, text, at(0)).unwrap();
                filter.admits(record)
            })
    }

    proptest! {
        #[test]
        fn values_are_alternatives_and_fields_conditions(
            records in records(),
            verdicts in subsequence(vec!["allowed", "would-deny", "denied"], 0..3),
            ports in subsequence(vec!["80", "443"], 0..3),
            protocols in subsequence(vec!["tcp", "udp", "icmp"], 0..3),
        ) {
            let fields = [("verdict", &verdicts), ("port", &ports), ("protocol", &protocols)];
            let given = fields.iter().flat_map(|(field, texts)| texts.iter().map(|text| (*field, *text)));
            let filters = FlowFilters::parse(given, at(0)).unwrap();
            for record in &records {
                let expected = fields.iter().all(|(field, texts)| admits_any(record, field, texts));
                prop_assert_eq!(filters.admits(record), expected);
            }
        }
    }

    #[test]
    fn combinations_are_bounded() {
        let ports: Vec<String> = (0..257).map(|port| port.to_string()).collect();
        let refused = FlowFilters::parse(ports.iter().map(|port| ("port", port.as_str())), at(0)).unwrap_err();
        assert_eq!(refused.to_string(), "too many combinations of filter values: expected at most 256");
    }

    #[test]
    fn earliest_alternative_bounds_the_windows() {
        let filters = FlowFilters::parse([("since", "10m"), ("since", "1h")], at(0)).unwrap();
        assert_eq!(filters.since(), Some(at(-3_600_000)));
        assert_eq!(FlowFilters::default().since(), None);
    }

    #[test]
    fn latest_alternative_ends_the_windows() {
        let until = |texts: &[&str]| FlowFilters::parse(texts.iter().map(|text| ("until", *text)), at(0)).unwrap();
        assert_eq!(until(&["10m", "1h"]).until(), Some(at(-600_000)));
        assert_eq!(FlowFilters::default().until(), None);
        let filters = until(&["15s"]);
        assert!(filters.admits_window(at(-30_000)) && !filters.admits_window(at(-15_000)));
    }

    proptest! {
        #[test]
        fn windows_without_admitted_records_are_skipped(
            records in records(),
            since in 0i64..90,
            until in 0i64..90,
        ) {
            let texts = [("since", format!("{since}s")), ("until", format!("{until}s"))];
            let given = texts.iter().map(|(field, text)| (*field, text.as_str()));
            let filters = FlowFilters::parse(given, at(75_000)).unwrap();
            for record in &records {
                prop_assert_eq!(filters.admits(record), filters.admits_window(record.window));
            }
        }
    }
}
