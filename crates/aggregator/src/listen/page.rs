//! Positions at which a client resumes reading records: the token of the next page, and the ID of an event.

use std::fmt;
use std::str::FromStr;

use flow::{EdgePlace, WINDOW_SECONDS};
use jiff::{SignedDuration, Timestamp};

/// Position of a reader: the next record is in this window after the place, or in a later window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) window: Timestamp,
    /// `None` before the first record of the window.
    pub(super) after: Option<EdgePlace>,
}

/// The text is not a page token or event ID of this server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("invalid page or event ID: expected one that this server has sent")]
pub(super) struct InvalidPage;

impl Page {
    pub(super) fn at(window: Timestamp) -> Page {
        Page { window, after: None }
    }

    /// Position after the end of this window.
    pub(super) fn behind(window: Timestamp) -> Page {
        Page::at(window.checked_add(SignedDuration::from_secs(WINDOW_SECONDS)).unwrap_or(Timestamp::MAX))
    }
}

/// Formats the start of the window in seconds since 1970, and the place.
impl fmt::Display for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Page { window, after } = self;
        match after {
            None => write!(f, "{}", window.as_second()),
            Some(place) => write!(f, "{}-{place}", window.as_second()),
        }
    }
}

impl FromStr for Page {
    type Err = InvalidPage;

    fn from_str(text: &str) -> Result<Page, InvalidPage> {
        let (seconds, place) = match text.split_once('-') {
            Some((seconds, place)) => (seconds, Some(place.parse().map_err(|_| InvalidPage)?)),
            None => (text, None),
        };
        let is_number = !seconds.is_empty() && seconds.bytes().all(|byte| byte.is_ascii_digit());
        let seconds: Option<i64> = seconds.parse().ok();
        let seconds = seconds.filter(|seconds| is_number && *seconds % WINDOW_SECONDS == 0);
        let window = seconds.and_then(|seconds| Timestamp::from_second(seconds).ok()).ok_or(InvalidPage)?;
        Ok(Page { window, after: place })
    }
}

/// Token of a page: its position, and the start of the process that issued it. A process that started later may lack
/// records of the page's windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageToken {
    /// Milliseconds since 1970.
    pub(super) started: i64,
    pub(super) page: Page,
}

impl fmt::Display for PageToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.started, self.page)
    }
}

impl FromStr for PageToken {
    type Err = InvalidPage;

    fn from_str(text: &str) -> Result<PageToken, InvalidPage> {
        let (started, page) = text.split_once('.').ok_or(InvalidPage)?;
        Ok(PageToken { started: started.parse().map_err(|_| InvalidPage)?, page: page.parse()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_reads_back_and_others_are_refused() {
        let place: EdgePlace = "7673af80b319dbebdf9fabf0856017cd".parse().unwrap();
        let window = Timestamp::from_second(1_777_896_000).unwrap();
        for page in [Page::at(window), Page { window, after: Some(place) }, Page::behind(window)] {
            assert_eq!(page.to_string().parse(), Ok(page));
            let token = PageToken { started: 1_777_896_000_123, page };
            assert_eq!(token.to_string().parse(), Ok(token));
            assert_eq!(page.to_string().parse::<PageToken>(), Err(InvalidPage), "no process");
        }
        assert_eq!(Page::behind(window).to_string(), "1777896015");
        for bad in ["", "-", "1", "+15", "15-", "15-7673", "99999999999999999999", "9999999999999990"] {
            assert_eq!(bad.parse::<Page>(), Err(InvalidPage), "{bad}");
        }
    }
}
