//! Tells of commits that others make.
//!
//! The kernel announces every change of a commit and then the commit itself, with the program that made it
//! (`nft_commit_notify`, `nf_tables_gen_notify`). What our own socket commits is left out inside the kernel, so that a
//! large commit of ours cannot overrun the buffer.

use std::io;
use std::time::{Duration, Instant};

use nft::Table;

use crate::decode::{ChangeRecord, DecodeError, decode_changes};
use crate::message::family_number;
use crate::request::Kernel;
use crate::sys::{Buffer, Socket, SocketOption};

/// `NFNLGRP_NFTABLES`
const GROUP: i32 = libc::NFNLGRP_NFTABLES;

/// Bytes of announcements that may wait unread. The kernel puts some 4,000 bytes of them in a datagram and counts twice
/// that; a commit of 30,000 elements fits. A larger one is [`Notification::Lost`], which costs a comparison.
const WAITING: i32 = 4 << 20;

/// Bytes of one datagram; the kernel fills at most 8 KiB (`NLMSG_GOODSIZE`).
const DATAGRAM: usize = 64 << 10;

/// Announces foreign commits of the network namespace that it was opened in. Meant for a thread of its own.
pub struct Notifications {
    socket: Socket,
    datagram: Buffer,
    tables: Vec<Table>,
    /// A change that was announced since the last commit was in one of the tables.
    touches: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notification {
    /// Somebody else has committed.
    Foreign(Foreign),
    /// Announcements were lost: anything may have been committed until now.
    Lost,
}

/// A commit of somebody else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The generation of the ruleset that it made.
    pub generation: u32,
    /// The name of the thread that committed, of at most 15 bytes; that of a program's first thread is the program's.
    pub program: String,
    /// The number of that thread as the first process namespace counts, which is the process's for its first thread.
    pub process: u32,
    /// It changed something in one of the tables that were given.
    pub touches: bool,
}

/// Why there are no announcements.
#[derive(Debug, thiserror::Error)]
pub enum NotificationError {
    #[error("the netlink socket for notifications of commits failed: {0}")]
    Io(#[from] io::Error),
    #[error("cannot decode a netlink notification of a commit: {0}")]
    Decode(#[from] DecodeError),
}

impl Notifications {
    /// Opens a second socket in the calling thread's network namespace, which has to be the one of `kernel`: commits of
    /// `kernel` are left out, and those that change one of the tables are pointed out. What is committed from now on is
    /// told.
    pub fn open(kernel: &Kernel, tables: &[Table]) -> Result<Notifications, NotificationError> {
        let socket = Socket::open()?;
        socket.set(SocketOption::ReceiveBuffer(WAITING))?;
        socket.ignore_author(kernel.port())?;
        socket.set(SocketOption::Group(GROUP))?;
        Ok(Notifications { socket, datagram: Buffer::of_length(DATAGRAM), tables: tables.to_vec(), touches: false })
    }

    /// Waits for the next one; none if there was none for that time.
    pub fn next(&mut self, timeout: Duration) -> Result<Option<Notification>, NotificationError> {
        let deadline = Instant::now() + timeout;
        loop {
            match self.take() {
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

    /// What waits to be read, up to the end of the first commit.
    fn take(&mut self) -> Result<Option<Notification>, NotificationError> {
        while let Some(datagram) = self.socket.receive(&mut self.datagram)? {
            // The end of a commit is a datagram of its own (`nf_tables_gen_notify`), so nothing follows it in one.
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

    /// Reads what was kept of before the loss. Until all of it is read the kernel goes on dropping announcements, and
    /// does not say so again (`netlink_overrun`); so whatever is lost after this comes up as another loss.
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
