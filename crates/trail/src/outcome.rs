//! Maps the HTTP response of a receiver to the outcome of a batch.

use std::time::Duration;

use jiff::Timestamp;

/// Upper bound of `Retry-After`: a receiver cannot delay the retry further.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Bytes of a response body that error messages quote.
const SHOWN_BYTES: usize = 300;

/// Outcome of sending a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeliveryOutcome {
    Delivered,
    /// The batch stays queued and is retried. `after` is the wait that the receiver requested.
    Retry {
        after: Option<Duration>,
        why: String,
    },
    /// The receiver will never accept this batch.
    Refused {
        why: String,
    },
}

impl DeliveryOutcome {
    /// Outcome of a response with this status, `Retry-After` header and body.
    ///
    /// Refusals of the sender (401, 403, 407), of the path (404, 405) and temporary ones (408, 425, 429) do not depend
    /// on the batch, and the next batch would be refused as well: the batch is retried.
    pub fn of_answer(status: u16, retry_after: Option<&str>, body: &[u8], now: Timestamp) -> DeliveryOutcome {
        let why = || {
            let body = String::from_utf8_lossy(&body[..body.len().min(SHOWN_BYTES)]);
            let body = body.trim();
            if body.is_empty() {
                format!("status {status}")
            } else {
                format!("status {status}: {}", body.escape_debug())
            }
        };
        match status {
            200..=299 => DeliveryOutcome::Delivered,
            401 | 403 | 404 | 405 | 407 | 408 | 425 | 429 => {
                DeliveryOutcome::Retry { after: wait(retry_after, now), why: why() }
            }
            400..=499 => DeliveryOutcome::Refused { why: why() },
            // Redirects are not followed: they would send credentials to another host.
            _ => DeliveryOutcome::Retry { after: wait(retry_after, now), why: why() },
        }
    }
}

/// Seconds, or a date (RFC 9110).
fn wait(retry_after: Option<&str>, now: Timestamp) -> Option<Duration> {
    let text = retry_after?.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
            Duration::try_from(date.duration_since(now)).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(status: u16, retry_after: Option<&str>) -> DeliveryOutcome {
        DeliveryOutcome::of_answer(
            status,
            retry_after,
            b"entry too far behind\n",
            "2026-05-04T12:00:00Z".parse().unwrap(),
        )
    }

    fn seconds(outcome: DeliveryOutcome) -> Option<u64> {
        match outcome {
            DeliveryOutcome::Retry { after, .. } => after.map(|after| after.as_secs()),
            DeliveryOutcome::Delivered | DeliveryOutcome::Refused { .. } => panic!("{outcome:?}"),
        }
    }

    #[test]
    fn answers_decide_what_becomes_of_batch() {
        for status in [200, 204] {
            assert_eq!(outcome(status, None), DeliveryOutcome::Delivered);
        }
        for status in [301, 401, 403, 404, 408, 429, 500, 502, 503, 504, 599] {
            assert_eq!(seconds(outcome(status, None)), None, "{status}");
        }
        for status in [400, 409, 413, 415, 422] {
            let why = format!("status {status}: entry too far behind");
            assert_eq!(outcome(status, None), DeliveryOutcome::Refused { why });
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        assert_eq!(seconds(outcome(429, Some(" 7 "))), Some(7));
        assert_eq!(seconds(outcome(503, Some("Mon, 04 May 2026 12:00:09 GMT"))), Some(9));
        assert_eq!(seconds(outcome(503, Some("Mon, 04 May 2026 11:00:00 GMT"))), Some(0));
        assert_eq!(seconds(outcome(503, Some("86400"))), Some(300));
        assert_eq!(seconds(outcome(503, Some("soon"))), None);
    }
}
