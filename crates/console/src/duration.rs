//! Durations on the command line, as in `90s`, `30m`, `12h` or `7d`.

use std::time::Duration;

/// # Errors
/// If the text is not a positive whole number with one of the four units.
pub fn duration(text: &str) -> Result<Duration, String> {
    let split = text.len().saturating_sub(1);
    let seconds = match text.split_at_checked(split) {
        Some((number, "s")) => Some((number, 1)),
        Some((number, "m")) => Some((number, 60)),
        Some((number, "h")) => Some((number, 3600)),
        Some((number, "d")) => Some((number, 86_400)),
        Some(_) | None => None,
    };
    let whole = seconds.filter(|(number, _)| number.bytes().all(|b| b.is_ascii_digit()));
    match whole.and_then(|(number, unit)| number.parse::<u64>().ok()?.checked_mul(unit)) {
        // Maximum of a hundred years, so that adding it to a time cannot overflow.
        Some(seconds @ 1..=3_153_600_000) => Ok(Duration::from_secs(seconds)),
        Some(_) | None => Err("expected a number of seconds, minutes, hours or days, as in 90s, 30m, 12h or 7d".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        for (text, seconds) in [("1s", 1), ("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "s", "0s", "90", "-1s", "+1s", "1.5h", "1h30m", "1 h", "1S", "99999999999d", "1é"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
