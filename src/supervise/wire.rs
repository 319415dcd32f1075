//! What wrapper and guardian tell each other: JSON frames, each after its length, over a Unix stream socket.
//!
//! Both ends never block in it: a half may be frozen at any moment, and the other must still reach its deadline. So
//! reads and writes go through buffers, and a frame counts only once it is whole.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, send, sendmsg,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ChildEnded, Deadlines, EndReason, StartSpec};

/// Both halves are the same file, so they differ only if it was replaced between start and re-exec.
pub(super) const VERSION: u32 = 1;

/// Longer than any argument list the kernel accepts, written as JSON numbers.
const MAX_FRAME_BYTES: usize = 64 << 20;

/// From the wrapper to the guardian.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToGuardian {
    /// Start the command; its standard input comes along as a file descriptor.
    Start(Box<StartFrame>),
    /// Moves the deadlines, in either direction.
    Extend { id: u64, deadlines: Deadlines },
    /// Send this signal to the child's process group.
    Forward { signal: i32 },
    /// End everything: TERM now, KILL after the grace.
    End { grace: Duration },
}

/// What the guardian needs to start the command.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StartFrame {
    pub program: OsString,
    pub argv0: OsString,
    pub args: Vec<OsString>,
    pub env: Vec<(OsString, OsString)>,
    pub deadlines: Deadlines,
    pub kill_grace: Duration,
}

impl From<StartSpec> for StartFrame {
    fn from(spec: StartSpec) -> Self {
        let StartSpec {
            program,
            argv0,
            args,
            env,
            deadlines,
            kill_grace,
        } = spec;
        Self {
            program: program.into_os_string(),
            argv0,
            args,
            env,
            deadlines,
            kill_grace,
        }
    }
}

/// From the guardian to the wrapper.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum ToWrapper {
    /// The guardian is in its own session and ready.
    Hello { version: u32 },
    /// The child runs, or is about to replace the shim; its process group has the same number.
    Started { pid: i32 },
    /// The command came too late or could not be forked; nothing runs.
    NotStarted { too_late: bool, message: String },
    /// The answer to `Extend`; refused once the end has begun because of a deadline.
    Extended { id: u64, accepted: bool },
    /// TERM has been sent.
    Ending { reason: Option<EndReason> },
    /// Nothing is left, or what is left can't be killed. The last frame.
    Ended(ChildEnded),
}

/// One end of the socket.
#[derive(Debug)]
pub(super) struct Channel {
    socket: OwnedFd,
    inbound: Vec<u8>,
    outbound: VecDeque<u8>,
    /// Rides on the first byte sent from now on.
    outbound_fd: Option<OwnedFd>,
    received_fds: VecDeque<OwnedFd>,
    closed: bool,
}

impl Channel {
    /// Takes a connected socket; sets it to non-blocking.
    pub fn new(socket: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&socket, true)?;
        Ok(Self {
            socket,
            inbound: Vec::new(),
            outbound: VecDeque::new(),
            outbound_fd: None,
            received_fds: VecDeque::new(),
            closed: false,
        })
    }

    /// Queues a frame and sends what the socket takes.
    pub fn send(&mut self, message: &impl Serialize) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        let length = u32::try_from(body.len()).map_err(io::Error::other)?;
        if body.len() > MAX_FRAME_BYTES {
            return Err(io::Error::other(
                "the command line and environment are too long",
            ));
        }
        self.outbound.extend(length.to_be_bytes());
        self.outbound.extend(body);
        self.flush();
        Ok(())
    }

    /// Queues a frame with a file descriptor. One at a time: the frames before it must have left.
    pub fn send_with_fd(&mut self, message: &impl Serialize, fd: OwnedFd) -> io::Result<()> {
        if !self.outbound.is_empty() || self.outbound_fd.is_some() {
            return Err(io::Error::other("frames are still on their way"));
        }
        self.outbound_fd = Some(fd);
        self.send(message)
    }

    /// Sends what the socket takes now.
    pub fn flush(&mut self) {
        if self.closed {
            self.outbound.clear();
        }
        while !self.outbound.is_empty() {
            let sent = match &self.outbound_fd {
                Some(fd) => send_fd(self.socket.as_fd(), self.outbound.as_slices().0, fd),
                None => send(
                    &self.socket,
                    self.outbound.as_slices().0,
                    SendFlags::NOSIGNAL,
                ),
            };
            match sent {
                Ok(count) => {
                    self.outbound_fd = None;
                    self.outbound.drain(..count);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                // The other end is gone. What it sent before can still be read.
                Err(_) => self.outbound.clear(),
            }
        }
    }

    /// True if frames wait for the socket to take them.
    pub fn wants_to_write(&self) -> bool {
        !self.outbound.is_empty()
    }

    /// True once the other end is gone and everything it sent has been read in.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Reads in everything the socket has.
    pub fn fill(&mut self) {
        let mut chunk = [0_u8; 16 << 10];
        while !self.closed && self.inbound.len() <= MAX_FRAME_BYTES {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let read = recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut chunk)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            );
            match read.map(|read| read.bytes) {
                Ok(0) => self.closed = true,
                Ok(count) => {
                    self.inbound.extend_from_slice(&chunk[..count]);
                    for message in ancillary.drain() {
                        if let RecvAncillaryMessage::ScmRights(fds) = message {
                            self.received_fds.extend(fds);
                        }
                    }
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR) => {}
                Err(_) => self.closed = true,
            }
        }
    }

    /// The next whole frame. What can't be understood closes the channel, as if the other end were gone.
    pub fn next<M: DeserializeOwned>(&mut self) -> Option<M> {
        let header: [u8; 4] = self.inbound.get(..4)?.try_into().ok()?;
        let length = usize::try_from(u32::from_be_bytes(header)).unwrap_or(usize::MAX);
        if length > MAX_FRAME_BYTES {
            self.closed = true;
            self.inbound.clear();
            return None;
        }
        let frame = self.inbound.get(4..4 + length)?;
        let message = serde_json::from_slice(frame);
        self.inbound.drain(..4 + length);
        if message.is_err() {
            self.closed = true;
            self.inbound.clear();
        }
        message.ok()
    }

    /// The oldest file descriptor received and not yet taken.
    pub fn take_fd(&mut self) -> Option<OwnedFd> {
        self.received_fds.pop_front()
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn send_fd(socket: BorrowedFd<'_>, bytes: &[u8], fd: &OwnedFd) -> rustix::io::Result<usize> {
    let fds = [fd.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ancillary.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn pair() -> (Channel, Channel) {
        let (left, right) = UnixStream::pair().unwrap();
        (
            Channel::new(left.into()).unwrap(),
            Channel::new(right.into()).unwrap(),
        )
    }

    #[test]
    fn frames_larger_than_the_socket_buffer_arrive_whole_and_in_order() {
        let (mut left, mut right) = pair();
        let long = "x".repeat(3 << 20);
        left.send_with_fd(
            &long,
            rustix::fs::open("/", rustix::fs::OFlags::RDONLY, 0.into()).unwrap(),
        )
        .unwrap();
        left.send(&"second").unwrap();
        let mut seen: Vec<String> = Vec::new();
        while seen.len() < 2 {
            left.flush();
            right.fill();
            seen.extend(right.next::<String>());
        }
        assert_eq!(seen, [long, "second".to_owned()]);
        assert!(right.take_fd().is_some());
        assert!(right.take_fd().is_none());
    }

    #[test]
    fn what_was_sent_before_the_end_is_read_and_then_the_end_is_seen() {
        let (mut left, mut right) = pair();
        left.send(&1_u8).unwrap();
        drop(left);
        right.fill();
        assert_eq!(right.next::<u8>(), Some(1));
        assert!(right.is_closed());
        right.send(&2_u8).unwrap();
        assert!(!right.wants_to_write());
    }

    #[test]
    fn a_frame_that_is_not_understood_closes_the_channel() {
        let (mut left, mut right) = pair();
        left.send(&"text").unwrap();
        right.fill();
        assert_eq!(right.next::<u8>(), None);
        assert!(right.is_closed());
    }
}
