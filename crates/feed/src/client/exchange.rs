//! The HTTP requests of a follower to one server, and the checks of its responses.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};

use super::{ConnectionLoss, FeedSource};
use crate::sse::{ParsedEvent, Parser};
use crate::{Head, Position};

/// Limit of the response body that is quoted in an error.
const SAYS_BYTES: usize = 256;
const EVENT_STREAM: &str = "text/event-stream";

pub(super) struct Exchange<'a> {
    pub(super) http: &'a Client,
    pub(super) source: &'a FeedSource,
    pub(super) url: &'a Url,
}

impl Exchange<'_> {
    /// Opens the stream, resuming after the position if there is one.
    pub(super) async fn open_stream(&self, behind: Option<Position>) -> Result<BodyStream, ConnectionLoss> {
        let url = self.resource("deltas");
        let mut request = self.http.get(url.clone()).header(ACCEPT, EVENT_STREAM).header(ACCEPT_ENCODING, "identity");
        if let Some(position) = behind {
            request = request.header("last-event-id", position.to_string());
        }
        let response = self.answer(&url, request).await?;
        let is_stream = response
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .is_some_and(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == EVENT_STREAM));
        if is_stream {
            Ok(BodyStream { url, response, parser: Parser::new(), parsed: VecDeque::new() })
        } else {
            Err(ConnectionLoss::NoStream { url })
        }
    }

    pub(super) async fn download(&self) -> Result<(Head, Bytes), ConnectionLoss> {
        let url = self.resource("download");
        let mut response = self.answer(&url, self.http.get(url.clone())).await?;
        let limit = self.source.baseline_bytes;
        let too_long = |bytes: u64| if bytes > limit { Err(ConnectionLoss::BaselineTooLong { limit }) } else { Ok(()) };
        let announced = response.content_length().unwrap_or(0);
        too_long(announced)?;
        let mut baseline = BytesMut::new();
        while let Some(chunk) = response.chunk().await.map_err(|e| ConnectionLoss::transport(&url, e))? {
            too_long(baseline.len() as u64 + chunk.len() as u64)?;
            baseline.extend_from_slice(&chunk);
        }
        let headers = response.headers();
        let head = Head::of_download(|name| headers.get(name).and_then(|value| value.to_str().ok()), &baseline)?;
        Ok((head, baseline.freeze()))
    }

    async fn answer(&self, url: &Url, request: RequestBuilder) -> Result<Response, ConnectionLoss> {
        let request = match self.source.access.authorization().await? {
            Some(value) => request.header(AUTHORIZATION, value),
            None => request,
        };
        let mut response = request.send().await.map_err(|e| ConnectionLoss::transport(url, e))?;
        if response.status() == StatusCode::OK {
            return Ok(response);
        }
        // The body explains the error; without it, the status code is reported alone.
        let body = response.chunk().await.ok().flatten().unwrap_or_else(Bytes::new);
        let says: String = String::from_utf8_lossy(&body[..body.len().min(SAYS_BYTES)])
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        Err(ConnectionLoss::Refused { url: url.clone(), status: response.status(), says: says.trim().to_owned() })
    }

    fn resource(&self, name: &str) -> Url {
        let mut url = self.url.clone();
        match url.path_segments_mut() {
            Ok(mut segments) => drop(segments.pop_if_empty().push(&self.source.feed).push(name)),
            Err(()) => unreachable!("every http URL has a path"),
        }
        if let Some(form) = &self.source.form {
            url.query_pairs_mut().append_pair("form", form);
        }
        url
    }
}

pub(super) struct BodyStream {
    url: Url,
    response: Response,
    parser: Parser,
    parsed: VecDeque<ParsedEvent>,
}

impl BodyStream {
    pub(super) async fn next(&mut self) -> Result<ParsedEvent, ConnectionLoss> {
        loop {
            if let Some(event) = self.parsed.pop_front() {
                return Ok(event);
            }
            let chunk = self.response.chunk().await;
            match chunk.map_err(|e| ConnectionLoss::transport(&self.url, e))? {
                Some(bytes) => {
                    let mut events = vec![];
                    self.parser.push(&bytes, &mut events)?;
                    self.parsed.extend(events);
                }
                None => return Err(ConnectionLoss::Ended { url: self.url.clone() }),
            }
        }
    }
}
