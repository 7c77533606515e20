//! A ring entry: the buffers of one request, shared with the kernel.
//!
//! Problem of memory: the kernel writes into an entry's buffers as long as it holds the entry. Rule:
//! buffers are reached through the raw pointers that the kernel was given, only between a completion
//! and the next submission; they are freed only when the kernel has given the entry back with an
//! error, and leaked otherwise.

#![allow(
    unsafe_code,
    reason = "the ring shares memory with the kernel; each block says why it is sound"
)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use steadfs_vfs::Segment;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::reply::Answer;
use crate::reply::ReplyBuf;
use crate::request::RawRequest;
use crate::session::Session;
use crate::transport::cut_write;
use crate::wire::{self, InHeader, OutHeader, ReadIn, UringCmdReq, UringReqHeader, WriteIn};

pub(super) type Ring = IoUring<squeue::Entry128, cqueue::Entry>;

/// Payload bytes beyond which an entry counts as large: it then holds memory worth giving back.
pub(super) const SMALL: usize = 64 << 10;

/// One request's buffers, known to the kernel.
pub(super) struct Entry {
    header: NonNull<UringReqHeader>,
    /// A mapping of its own.
    payload: NonNull<[u8]>,
    /// The two above, as the kernel reads them when the entry is registered.
    iov: Box<[libc::iovec; 2]>,
    /// The kernel holds the entry.
    held: bool,
    /// A request came with the registration and is not served yet.
    pub(super) arrived: bool,
    /// Payload bytes of the last reply.
    pub(super) used: usize,
    /// Payload bytes that may have memory behind them.
    pub(super) touched: usize,
    /// Counted among the large ones.
    pub(super) large: bool,
}

impl Entry {
    pub(super) fn new(payload: usize) -> std::io::Result<Self> {
        // SAFETY: a fresh private mapping at an address of the kernel's choice; unmapped in `drop`.
        let mapping = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                payload,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE | MapFlags::NORESERVE,
            )
        }?;
        let payload = NonNull::slice_from_raw_parts(
            NonNull::new(mapping.cast()).ok_or(Errno::NOMEM)?,
            payload,
        );
        let header = NonNull::from(Box::leak(Box::new(UringReqHeader::new_zeroed())));
        let iov = Box::new([
            libc::iovec {
                iov_base: header.as_ptr().cast(),
                iov_len: size_of::<UringReqHeader>(),
            },
            libc::iovec {
                iov_base: payload.as_ptr().cast(),
                iov_len: payload.len(),
            },
        ]);
        Ok(Self {
            header,
            payload,
            iov,
            held: false,
            arrived: false,
            used: 0,
            touched: 0,
            large: false,
        })
    }

    /// Gives back the memory behind the payload's end, which the last reply does not use.
    pub(super) fn release_large(&mut self) {
        assert!(!self.held && self.used <= SMALL, "the payload is in use");
        let rest = &mut self.payload_mut()[SMALL..];
        // SAFETY: whole pages (the mapping and SMALL are page-aligned) of a private mapping that
        // only this entry uses; they read as zeros afterwards, and nothing relies on their content.
        let advised = unsafe {
            rustix::mm::madvise(rest.as_mut_ptr().cast(), rest.len(), Advice::LinuxDontNeed)
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "a payload keeps its memory");
        }
        self.touched = SMALL;
        self.large = false;
    }

    /// The header buffer; only while the kernel does not hold the entry.
    fn header(&self) -> &UringReqHeader {
        assert!(!self.held, "the kernel may write the entry");
        // SAFETY: the pointer is from `Box::leak`, freed only in `drop`; the kernel writes there
        // only while `held`.
        unsafe { self.header.as_ref() }
    }

    fn header_mut(&mut self) -> &mut UringReqHeader {
        assert!(!self.held, "the kernel may write the entry");
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { self.header.as_mut() }
    }

    fn payload(&self) -> &[u8] {
        assert!(!self.held, "the kernel may write the entry");
        // SAFETY: as for the header.
        unsafe { self.payload.as_ref() }
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        assert!(!self.held, "the kernel may write the entry");
        // SAFETY: as for the header.
        unsafe { self.payload.as_mut() }
    }

    pub(super) fn in_header(&self) -> InHeader {
        match InHeader::read_from_prefix(&self.header().in_out) {
            Ok((header, _)) => header,
            Err(_) => unreachable!("128 bytes hold a head of 40"),
        }
    }

    /// Whether the request came with so much that copying it takes longer than its caller's move to
    /// another CPU would.
    pub(super) fn carries_much(&self) -> bool {
        self.header().ent.payload_sz as usize > SMALL
    }

    /// Whether the reply may be so long. Its caller is at work meanwhile: it finds memory for what its own
    /// read-ahead asks for next, and hands out what it has.
    pub(super) fn fetches_much(&self) -> bool {
        let header = self.header();
        self.in_header().opcode == wire::opcode::READ
            && ReadIn::read_from_prefix(&header.op_in)
                .is_ok_and(|(arg, _)| arg.size as usize > SMALL)
    }

    pub(super) fn submit_register(
        &mut self,
        ring: &mut Ring,
        device: &OwnedFd,
        qid: u16,
    ) -> std::io::Result<()> {
        let command = UringCmdReq {
            qid,
            ..UringCmdReq::default()
        };
        let mut sqe = build(device, wire::URING_CMD_REGISTER, &command);
        let (addr, len) = (self.iov.as_ptr() as u64, self.iov.len() as u32);
        const { assert!(size_of::<squeue::Entry128>() == 128) };
        // SAFETY: `Entry128` is the kernel's submission entry (`repr(C)`, 128 bytes), whose bytes 16
        // to 24 are the address and 24 to 28 the length; the crate offers no other way to set the
        // latter. Any value is valid there.
        let bytes = unsafe { &mut *std::ptr::from_mut(&mut sqe).cast::<[u8; 128]>() };
        bytes[16..24].copy_from_slice(&addr.to_ne_bytes());
        bytes[24..28].copy_from_slice(&len.to_ne_bytes());
        self.push(ring, sqe)
    }

    pub(super) fn submit_commit(
        &mut self,
        ring: &mut Ring,
        device: &OwnedFd,
        qid: u16,
    ) -> std::io::Result<()> {
        let command = UringCmdReq {
            commit_id: self.header().ent.commit_id,
            qid,
            ..UringCmdReq::default()
        };
        let sqe = build(device, wire::URING_CMD_COMMIT_AND_FETCH, &command);
        self.push(ring, sqe)
    }

    /// Queues the submission; [`Entry::wait`] hands it over.
    fn push(&mut self, ring: &mut Ring, sqe: squeue::Entry128) -> std::io::Result<()> {
        self.held = true;
        // SAFETY: the buffers behind the entry stay allocated as long as the kernel may use them
        // (see `drop`), and the descriptor is the pool's, which outlives the ring.
        unsafe { ring.submission().push(&sqe) }
            .map_err(|_| std::io::Error::other("the submission queue is full"))
    }

    /// Hands over what was queued and waits for the entry to come back: with a request, or with the
    /// error that ended it.
    pub(super) fn wait(&mut self, ring: &mut Ring) -> std::io::Result<Result<(), Errno>> {
        if std::mem::take(&mut self.arrived) {
            return Ok(Ok(()));
        }
        loop {
            match ring.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if let Some(result) = self.take(ring) {
                return Ok(result);
            }
        }
    }

    /// The entry, if it has come back.
    pub(super) fn take(&mut self, ring: &mut Ring) -> Option<Result<(), Errno>> {
        let completion = ring.completion().next()?;
        self.held = false;
        Some(match completion.result() {
            0.. => Ok(()),
            negative => Err(Errno::from_raw_os_error(-negative)),
        })
    }

    /// The request in the buffers.
    pub(super) fn request(&self) -> RawRequest<'_> {
        let header = self.header();
        let payload_len = (header.ent.payload_sz as usize).min(self.payload().len());
        RawRequest {
            header: self.in_header(),
            op: &header.op_in,
            payload: &self.payload()[..payload_len],
        }
    }

    /// Cuts the request, which has to wait, if it is a long write that may be cut; whether it was.
    pub(super) fn cut_write(&mut self) -> bool {
        let head = self.in_header();
        if head.opcode != wire::opcode::WRITE || head.total_extlen != 0 {
            return false;
        }
        let header = self.header_mut();
        let Ok((write, _)) = WriteIn::mut_from_prefix(&mut header.op_in) else {
            return false;
        };
        let cut = cut_write(write);
        // The payload was no longer than this field states.
        header.ent.payload_sz = (header.ent.payload_sz as usize).saturating_sub(cut) as u32;
        if cut > 0 {
            self.used = 0;
        }
        cut > 0
    }

    /// There is memory behind the request's payload.
    pub(super) fn note_payload(&mut self) {
        let came = self.request().payload.len();
        self.touched = self.touched.max(came);
    }

    /// Serves the request in the buffers and puts the reply there.
    pub(super) fn serve(&mut self, session: &Session, out: &mut ReplyBuf) {
        self.note_payload();
        let error = match session.serve(self.request(), out) {
            Answer::Done | Answer::Silent => 0,
            Answer::Error(errno) => {
                out.clear();
                -errno.raw_os_error()
            }
        };
        self.reply(out, error);
    }

    /// Puts a reply into the buffers.
    pub(super) fn reply(&mut self, out: &mut ReplyBuf, error: i32) {
        let (mut error, unique) = (error, self.in_header().unique);
        let len = out.len();
        if len > self.payload().len() {
            tracing::error!(len, "a reply is larger than the request allows");
            out.clear();
            error = -Errno::IO.raw_os_error();
        }
        copy_reply(out, self.payload_mut());
        self.used = out.len();
        self.touched = self.touched.max(self.used);
        // Replies are at most as long as the payload, which is at most 1 MiB.
        let payload_sz = out.len() as u32;
        let head = OutHeader {
            len: size_of::<OutHeader>() as u32 + payload_sz,
            error,
            unique,
        };
        let header = self.header_mut();
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(head.as_bytes());
        header.ent.payload_sz = payload_sz;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.held {
            // The kernel may still write here: leak.
            return;
        }
        // SAFETY: the first is from `Box::leak`, the second from `mmap_anonymous` in `new`; the
        // kernel has given the entry back with an error and will not use them again.
        let unmapped = unsafe {
            drop(Box::from_raw(self.header.as_ptr()));
            rustix::mm::munmap(self.payload.as_ptr().cast(), self.payload.len())
        };
        debug_assert!(unmapped.is_ok(), "the mapping was ours");
    }
}

fn build(device: &OwnedFd, operation: u32, command: &UringCmdReq) -> squeue::Entry128 {
    let mut bytes = [0; 80];
    bytes[..size_of::<UringCmdReq>()].copy_from_slice(command.as_bytes());
    opcode::UringCmd80::new(types::Fd(device.as_raw_fd()), operation)
        .cmd(bytes)
        .build()
}

/// Puts a reply's pieces one after the other.
fn copy_reply(out: &ReplyBuf, payload: &mut [u8]) {
    let (head, mut rest) = payload.split_at_mut(out.bytes.len());
    head.copy_from_slice(&out.bytes);
    for segment in out.data.segments() {
        let part;
        match segment {
            Segment::Bytes(owner, range) => {
                (part, rest) = rest.split_at_mut(range.len());
                part.copy_from_slice(&(**owner).as_ref()[range.clone()]);
            }
            Segment::Zeros(len) => {
                (part, rest) = rest.split_at_mut(*len);
                part.fill(0);
            }
        }
    }
}
