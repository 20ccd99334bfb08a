//! Why a list or a watch failed, and the message for the cluster's administrator.

use std::error::Error;
use std::time::Duration;

use kube::core::Status;

use crate::Resource;

/// The RBAC verb of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verb {
    List,
    Watch,
    Get,
    Create,
    Update,
    Delete,
}

impl Verb {
    pub(super) fn name(self) -> &'static str {
        match self {
            Verb::List => "list",
            Verb::Watch => "watch",
            Verb::Get => "get",
            Verb::Create => "create",
            Verb::Update => "update",
            Verb::Delete => "delete",
        }
    }

    /// The permission to grant if it is missing.
    fn remedy(self) -> &'static str {
        match self {
            Verb::List | Verb::Watch => {
                "grant the service account 'list' and 'watch' on it in a ClusterRole, and 'get' on pods"
            }
            Verb::Get | Verb::Create | Verb::Update | Verb::Delete => "grant it to the service account in a role",
        }
    }
}

/// Why a request failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server has expired our resource version (410 Gone).
    Expired,
    /// The address of the server or the credentials are missing or invalid.
    NoWay(String),
    /// The server returned an error.
    Refused(Verb, Box<Status>),
    /// No response, or one that ended early.
    Unreachable(String),
    /// Timed out: no bytes for longer than a live server would be silent.
    Silent(Verb, Duration),
    /// The response is not valid for an API server.
    Unreadable(Verb, String),
    /// A response exceeds the size limit.
    TooLarge(Verb, usize),
    /// There are more objects than the limit.
    TooMany(usize),
    /// The server ended a watch right after it began.
    EndedAtOnce,
    /// The server ended a streaming list before its bookmark.
    StreamUnfinished,
}

/// When to fall back from a failed streaming list to paged lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StreamFallback {
    AtOnce,
    AfterRepeats,
    Never,
}

impl Failure {
    pub(crate) fn of(verb: Verb, error: kube::Error) -> Failure {
        match error {
            kube::Error::Api(status) => Failure::of_status(verb, status),
            kube::Error::SerdeError(e) => Failure::Unreadable(verb, e.to_string()),
            kube::Error::FromUtf8(e) => Failure::Unreadable(verb, e.to_string()),
            kube::Error::Service(e) => Failure::Unreachable(causes(&*e)),
            other => Failure::Unreachable(causes(&other)),
        }
    }

    /// For a failed request and for an ERROR event, which both carry a `Status`.
    pub(super) fn of_status(verb: Verb, status: Box<Status>) -> Failure {
        if status.code == 410 || status.reason == "Expired" || status.reason == "Gone" {
            Failure::Expired
        } else {
            Failure::Refused(verb, status)
        }
    }

    /// When this failure of a streaming list leads to paged lists. As in client-go's reflector every failure does,
    /// except those that paged lists would share and those that are retried first.
    pub(super) fn stream_fallback(&self) -> StreamFallback {
        match self {
            Failure::NoWay(_) | Failure::TooMany(_) => StreamFallback::Never,
            // The message names the missing verb, and paged lists need 'watch' as well.
            Failure::Refused(_, status) if matches!(status.code, 401 | 403) => StreamFallback::Never,
            Failure::Refused(_, status) if status.code == 429 => StreamFallback::AfterRepeats,
            Failure::Expired | Failure::Unreachable(_) | Failure::Silent(..) | Failure::StreamUnfinished => {
                StreamFallback::AfterRepeats
            }
            // 422: the feature is off. 500: etcd lacks RequestWatchProgress (before 3.4.25 and 3.5.8). 400, 404 and
            // 405: servers and proxies without support for streaming lists.
            Failure::Refused(..) | Failure::Unreadable(..) | Failure::TooLarge(..) | Failure::EndedAtOnce => {
                StreamFallback::AtOnce
            }
        }
    }

    /// Whether the server does not have the object or, for a list or watch, does not serve the kind (404).
    pub(crate) fn means_none(&self) -> bool {
        matches!(self, Failure::Refused(_, status) if status.code == 404)
    }

    /// Whether the resource version may be the cause, so that retrying with it may never succeed. False if the server
    /// is overloaded or denies access: relists by every agent of a cluster would make that worse.
    pub(super) fn may_lie_in_version(&self) -> bool {
        match self {
            Failure::Refused(_, status) => !matches!(status.code, 401 | 403 | 408 | 429 | 502 | 503 | 504),
            Failure::Unreadable(..) | Failure::TooLarge(..) | Failure::EndedAtOnce => true,
            Failure::Expired
            | Failure::TooMany(_)
            | Failure::NoWay(_)
            | Failure::Unreachable(_)
            | Failure::Silent(..)
            | Failure::StreamUnfinished => false,
        }
    }

    /// The delay that the server requests.
    pub(super) fn retry_after(&self) -> Duration {
        let seconds = match self {
            Failure::Refused(_, status) => status.details.as_ref().map_or(0, |details| details.retry_after_seconds),
            _ => 0,
        };
        Duration::from_secs(seconds.into())
    }

    /// The problem and its remedy, as a sentence that follows the name of the watch.
    pub(crate) fn explain(&self, resource: Resource) -> String {
        let plural = resource.plural;
        match self {
            Failure::Expired => format!("the list of {plural} expired (410 Gone) while it was read; relisting"),
            Failure::Refused(verb, status) => match status.code {
                401 => format!(
                    "unauthorized: the API server rejected the credentials (401); check the service account token or \
                     the kubeconfig{}",
                    said(status)
                ),
                403 => format!(
                    "forbidden: the RBAC verb '{}' on {plural}{} is missing; {}{}",
                    verb.name(),
                    group_of(resource),
                    verb.remedy(),
                    said(status)
                ),
                404 => format!(
                    "not found: the API server, or a proxy before it, does not serve {plural}{} (404)",
                    group_of(resource)
                ),
                0 => format!("the API server refused to {} {plural}{}", verb.name(), said(status)),
                code => format!("the API server returned {code} to {} {plural}{}", verb.name(), said(status)),
            },
            Failure::NoWay(why) => format!("invalid connection to the API server: {why}"),
            Failure::Unreachable(why) => format!("cannot connect to the API server: {why}"),
            Failure::Silent(verb, after) => {
                format!(
                    "the request to {} {plural} timed out: no answer from the API server for {after:?}",
                    verb.name()
                )
            }
            Failure::Unreadable(verb, why) => {
                format!("cannot decode the response to {} {plural}: {why}", verb.name())
            }
            Failure::TooLarge(verb, limit) => {
                format!("the response to {} {plural} is larger than {} MiB", verb.name(), limit >> 20)
            }
            Failure::TooMany(most) => format!(
                "there are more than {most} {plural} with the label; the last known ones are kept until there are fewer"
            ),
            Failure::EndedAtOnce => format!("the API server closes each watch of {plural} immediately"),
            Failure::StreamUnfinished => format!("the API server ended the list of {plural} before it was complete"),
        }
    }
}

fn group_of(resource: Resource) -> String {
    if resource.group.is_empty() { String::new() } else { format!(" in the API group {}", resource.group) }
}

/// The server's own message, truncated to fit a log line.
fn said(status: &Status) -> String {
    const SAID_CHARS: usize = 300;
    let words: Vec<&str> = status.message.split_whitespace().collect();
    let message = words.join(" ");
    if message.is_empty() {
        String::new()
    } else {
        format!("; message: {}", message.chars().take(SAID_CHARS).collect::<String>())
    }
}

/// An error with its causes, without duplicates: most of kube's and hyper's messages repeat the one below.
pub(super) fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Watchable;
    use policy::{Kind, Object};

    fn refused(code: u16, message: &str) -> Failure {
        Failure::of_status(Verb::Watch, Status::failure(message, "").with_code(code).boxed())
    }

    #[test]
    fn forbidden_names_the_verb_and_the_group() {
        let text = refused(403, "User \"x\" cannot").explain(Object::resource(Kind::NetworkPolicy));
        assert!(text.contains("verb 'watch' on networkpolicies in the API group networking.k8s.io"), "{text}");
        assert!(text.ends_with("message: User \"x\" cannot"), "{text}");
    }

    #[test]
    fn gone_code_or_expired_reason_means_expired() {
        assert!(matches!(refused(410, ""), Failure::Expired));
        let by_reason = Status::failure("too old resource version", "Expired").boxed();
        assert!(matches!(Failure::of_status(Verb::Watch, by_reason), Failure::Expired));
    }

    #[test]
    fn stream_fallback_follows_the_status_code() {
        for (code, fallback) in [
            (400, StreamFallback::AtOnce),
            (401, StreamFallback::Never),
            (403, StreamFallback::Never),
            (404, StreamFallback::AtOnce),
            (422, StreamFallback::AtOnce),
            (429, StreamFallback::AfterRepeats),
            (500, StreamFallback::AtOnce),
            (503, StreamFallback::AtOnce),
            (504, StreamFallback::AtOnce),
        ] {
            assert_eq!(refused(code, "").stream_fallback(), fallback, "{code}");
        }
        assert_eq!(Failure::StreamUnfinished.stream_fallback(), StreamFallback::AfterRepeats);
    }

    #[test]
    fn html_error_page_is_shortened_to_one_line() {
        let text = refused(502, &"<html>\n ".repeat(10_000)).explain(Object::resource(Kind::Pod));
        assert!(text.len() < 500 && !text.contains('\n'), "{text}");
    }
}
