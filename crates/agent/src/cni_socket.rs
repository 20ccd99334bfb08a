//! The agent's socket for the CNI plugin: one request and one response per connection, a line each.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::protocol::{LINE_BYTES, Request, Response};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::{timeout, timeout_at};

use crate::attachments::{lower, lower_id};
use crate::earlier_flows::FlowDeletions;
use crate::event_loop::{Call, Event};
use crate::gate::{MOST_WAITING, Outcome, PendingAdd};
use crate::isolation_release::all_addresses;

/// Bound on open connections: all waiting ADDs, and some for DEL, CHECK and STATUS. Further ones wait in the kernel's
/// backlog until the plugin's deadline; none is refused, since only root can connect.
pub(crate) const CONNECTIONS: usize = MOST_WAITING + 64;

/// Timeout of receiving a request. A plugin sends it at once; if the plugin is suspended meanwhile, the runtime retries.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

/// Upper bound on the timeout of an ADD.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// Margin before the plugin's deadline, so that the response arrives.
const MARGIN: Duration = Duration::from_millis(100);

/// Delay after a failed accept; a lack of descriptors or memory is temporary.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Serves requests until the event loop ends.
pub(crate) async fn serve(listener: UnixListener, events: mpsc::Sender<Event>) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let deletions = FlowDeletions::start();
    loop {
        let slot = slots.clone().acquire_owned().await?;
        match listener.accept().await {
            Ok((stream, _)) => {
                let (events, deletions) = (events.clone(), deletions.clone());
                tokio::spawn(async move {
                    if let Err(error) = answer(stream, events, deletions).await {
                        tracing::warn!("cannot answer a request of the CNI plugin: {error}");
                    }
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!("cannot accept a connection of the CNI plugin: {error}");
                tokio::time::sleep(ACCEPT_AGAIN).await;
            }
        }
    }
}

async fn answer(stream: UnixStream, events: mpsc::Sender<Event>, deletions: FlowDeletions) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    timeout(REQUEST_TIMEOUT, (&mut stream).take(LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)).await??;
    let response = match Request::from_line(&line) {
        Ok(request) => enqueue_request(request, &events, &deletions).await,
        Err(error) => Some(Response::Failed { reason: format!("invalid request of the CNI plugin: {error}") }),
    };
    if let Some(response) = response {
        stream.write_all(&response.to_line()?).await?;
    }
    Ok(())
}

/// `None` if the agent is stopping, or the deadline has passed: the connection is then closed without a response, and the
/// plugin retries until its own deadline, also with the next agent.
async fn enqueue_request(
    request: Request,
    events: &mpsc::Sender<Event>,
    deletions: &FlowDeletions,
) -> Option<Response> {
    let mut started = None;
    let (call, answer) = match request {
        Request::Add { attachment, timeout_millis } => {
            let (reply, answer) = oneshot::channel();
            let now = Instant::now();
            let wait = Duration::from_millis(timeout_millis).saturating_sub(MARGIN).min(LONGEST_WAIT);
            let attachment = lower(&attachment);
            started = Some((all_addresses(&attachment).collect(), now + wait + MARGIN / 2));
            let waiting = PendingAdd { attachment, since: now, deadline: now + wait, reply, unknown: None };
            (Call::Add(Box::new(waiting)), answer)
        }
        Request::Delete(id) => {
            // A DEL does not wait for the commit: until then the rules of the addresses stay in force.
            events.send(Event::Cni(Call::Delete(lower_id(&id), Instant::now()))).await.ok()?;
            return Some(Response::Ok);
        }
        Request::Check(id) => {
            let (reply, answer) = oneshot::channel();
            (Call::Check(lower_id(&id), reply), answer)
        }
        Request::Status => {
            let (reply, answer) = oneshot::channel();
            events.send(Event::Cni(Call::Status(reply))).await.ok()?;
            return Some(match answer.await.ok()? {
                None => Response::Ok,
                Some(reason) => Response::Failed { reason },
            });
        }
    };
    events.send(Event::Cni(call)).await.ok()?;
    let outcome = answer.await.ok()?;
    if !matches!(outcome, Outcome::Failed(_))
        && let Some((addresses, deadline)) = started
    {
        // The rules of the pod are in force: later flows are those that they allow.
        match timeout_at(deadline.into(), deletions.delete(addresses)).await {
            Ok(Ok(())) => {}
            Ok(Err(reason)) => {
                let reason = format!("flows of an earlier pod with the address may be open: {reason}; retry the ADD");
                return Some(Response::Failed { reason });
            }
            // If the plugin starts the pod isolated, the flows are deleted before its isolation ends; a later deletion
            // would cut flows of the pod itself.
            Err(_elapsed) => {
                tracing::warn!("an ADD has timed out: listing the entries of conntrack takes long");
                return None;
            }
        }
    }
    Some(match outcome {
        Outcome::Enforced => Response::Enforced,
        Outcome::Isolated(reason) => Response::Isolated { reason },
        Outcome::Failed(reason) => Response::Failed { reason },
    })
}
