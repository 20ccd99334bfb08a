//! The socket on which the CNI plugin asks: a line in, a line out, one question a connection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cni::protocol::{LINE_BYTES, Request, Response};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::time::timeout;

use crate::attachments::{lower, lower_id};
use crate::gate::{MOST_WAITING, Outcome, Waiting};
use crate::state_loop::{Call, Event};

/// Connections that are open at once: as many as ADDs may wait, and some for DEL, CHECK and STATUS. Further ones wait in
/// the kernel's queue, up to the plugin's own deadline: only root can connect, and none of them is to be turned away.
pub(crate) const CONNECTIONS: usize = MOST_WAITING + 64;

/// A plugin sends its question at once; one that does not is stopped in the middle, and its runtime asks again.
const PATIENCE: Duration = Duration::from_secs(5);

/// No ADD waits longer, whatever it asks for.
const LONGEST_WAIT: Duration = Duration::from_secs(300);

/// The agent answers so long before the plugin gives up, so that the answer arrives.
const MARGIN: Duration = Duration::from_millis(100);

/// Wait after an accept that failed, for want of descriptors or memory: both come back.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// Answers until the loop has ended.
pub(crate) async fn serve(listener: UnixListener, events: mpsc::Sender<Event>) -> anyhow::Result<()> {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let slot = slots.clone().acquire_owned().await?;
        match listener.accept().await {
            Ok((stream, _)) => {
                let events = events.clone();
                tokio::spawn(async move {
                    if let Err(error) = answer(stream, events).await {
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

async fn answer(stream: UnixStream, events: mpsc::Sender<Event>) -> anyhow::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut line = Vec::new();
    timeout(PATIENCE, (&mut stream).take(LINE_BYTES as u64 + 1).read_until(b'\n', &mut line)).await??;
    let response = match Request::from_line(&line) {
        Ok(request) => ask(request, &events).await,
        Err(error) => Some(Response::Failed { reason: format!("invalid request of the CNI plugin: {error}") }),
    };
    if let Some(response) = response {
        stream.write_all(&response.to_line()?).await?;
    }
    Ok(())
}

/// None when the agent is stopping: then the connection is closed without an answer, and the plugin asks the next
/// agent.
async fn ask(request: Request, events: &mpsc::Sender<Event>) -> Option<Response> {
    let (call, answer) = match request {
        Request::Add { attachment, timeout_millis } => {
            let (reply, answer) = oneshot::channel();
            let now = Instant::now();
            let patience = Duration::from_millis(timeout_millis).saturating_sub(MARGIN).min(LONGEST_WAIT);
            let attachment = lower(&attachment);
            let waiting = Waiting { attachment, since: now, deadline: now + patience, reply, unknown: None };
            (Call::Add(Box::new(waiting)), answer)
        }
        Request::Delete(id) => {
            // Nobody has to wait for the commit: until then the addresses stay as they were policed.
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
    Some(match answer.await.ok()? {
        Outcome::Enforced => Response::Enforced,
        Outcome::Isolated(reason) => Response::Isolated { reason },
        Outcome::Failed(reason) => Response::Failed { reason },
    })
}
