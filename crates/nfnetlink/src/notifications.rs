//! Receives notifications of foreign nf_tables commits.
//!
//! The kernel sends a notification of every change of a commit and then of the commit itself, with the program that
//! committed (`nft_commit_notify`, `nf_tables_gen_notify`). A socket filter drops the notifications of our own commits
//! inside the kernel, so that a large commit of ours cannot overrun the buffer.

use std::io;
use std::time::{Duration, Instant};

use nft::Table;

use crate::decode::{ChangeRecord, DecodeError, decode_changes};
use crate::message::family_number;
use crate::request::Kernel;
use crate::sys::{Buffer, Socket, SocketOption};

/// `NFNLGRP_NFTABLES`
const GROUP: i32 = libc::NFNLGRP_NFTABLES;

/// Bytes of notifications that the socket can queue. The kernel puts some 4,000 bytes of them in a datagram and
/// accounts for twice that; a commit of 30,000 elements fits. A larger one causes [`Notification::Lost`], and so a
/// resync.
const WAITING: i32 = 4 << 20;

/// Bytes of one datagram; the kernel fills at most 8 KiB (`NLMSG_GOODSIZE`).
const DATAGRAM: usize = 64 << 10;

/// Receives notifications of foreign commits in the network namespace in which it was opened. Intended for a dedicated
/// thread.
pub struct Notifications {
    socket: Socket,
    datagram: Buffer,
    tables: Vec<Table>,
    /// A change notified since the last commit was in one of the tables.
    touches: bool,
}

/// A foreign commit, or a loss of notifications.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// Another socket has committed.
    Foreign(Foreign),
    /// Notifications were lost (ENOBUFS): there may have been any number of commits.
    Lost,
}

/// A commit of another socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The kernel generation after the commit.
    pub generation: u32,
    /// The name of the thread that committed, at most 15 bytes; for the main thread, that of the program.
    pub program: String,
    /// The id of that thread in the initial PID namespace; for the main thread, that of the process.
    pub process: u32,
    /// The commit changed one of the watched tables.
    pub touches: bool,
}

/// Why notifications cannot be received.
#[derive(Debug, thiserror::Error)]
pub enum NotificationError {
    /// Not a loss of notifications (`ENOBUFS`), which is itself a notification.
    #[error("the netlink socket for notifications of commits failed: {0}")]
    Io(#[from] io::Error),
    /// The notifications of one datagram are lost; later ones are not.
    #[error("cannot decode a netlink notification of a commit: {0}")]
    Decode(#[from] DecodeError),
}

impl Notifications {
    /// Subscribes with a second socket in the calling thread's network namespace, which has to be that of `kernel`:
    /// commits of `kernel` are left out, and commits that change one of the tables are marked. Only later commits are
    /// notified.
    pub fn open(kernel: &Kernel, tables: &[Table]) -> Result<Notifications, NotificationError> {
        let socket = Socket::open()?;
        socket.set(SocketOption::ReceiveBuffer(WAITING))?;
        socket.ignore_author(kernel.port())?;
        socket.set(SocketOption::Group(GROUP))?;
        Ok(Notifications { socket, datagram: Buffer::of_length(DATAGRAM), tables: tables.to_vec(), touches: false })
    }

    /// Waits for the next notification; `None` on timeout.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Notification>, NotificationError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.next_queued() {
                Ok(Some(notification)) => return Ok(Some(notification)),
                Ok(None) => {}
                Err(NotificationError::Io(e)) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    self.catch_up()?;
                    return Ok(Some(Notification::Lost));
                }
                Err(e) => return Err(e),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if !self.socket.wait(left)? && left.is_zero() {
                return Ok(None);
            }
        }
    }

    /// Reads queued notifications up to the end of the first commit.
    fn next_queued(&mut self) -> Result<Option<Notification>, NotificationError> {
        while let Some(datagram) = self.socket.receive(&mut self.datagram)? {
            // The end of a commit has a separate datagram (`nf_tables_gen_notify`), so no other change follows it
            // there.
            for change in decode_changes(datagram)? {
                match change {
                    ChangeRecord::Table { family, name } => {
                        let is = |t: &Table| family_number(t.family) == family && t.name.as_str() == name;
                        self.touches |= self.tables.iter().any(is);
                    }
                    ChangeRecord::Commit { generation, process, program } => {
                        let touches = std::mem::take(&mut self.touches);
                        return Ok(Some(Notification::Foreign(Foreign { generation, program, process, touches })));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Reads the notifications queued before the overrun. Until the queue is empty the kernel keeps dropping
    /// notifications without reporting it again (`netlink_overrun`); a later loss is reported as another overrun.
    fn catch_up(&mut self) -> Result<(), NotificationError> {
        self.touches = false;
        loop {
            match self.socket.receive(&mut self.datagram) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(()),
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
}
