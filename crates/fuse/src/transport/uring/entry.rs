//! A ring entry: the buffers of one request, shared with the kernel.
//!
//! Problem: the kernel may write to an entry's buffers while it owns the entry. Rule: buffers are accessed through the
//! raw pointers that were registered, only between a completion and the next submission. They are freed only if the
//! kernel has returned the entry with an error, and leaked otherwise.

#![allow(
    unsafe_code,
    reason = "the ring shares memory with the kernel; each block says why it is sound"
)]

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;

use io_uring::{opcode, squeue, types};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use steadfs_vfs::Segment;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::ring::Ring;
use crate::reply::Answer;
use crate::reply::ReplyBuf;
use crate::request::RawRequest;
use crate::session::Session;
use crate::transport::cut_write;
use crate::wire::{self, InHeader, OutHeader, ReadIn, UringCmdReq, UringReqHeader, WriteIn};

/// Payload bytes above which an entry counts as large: its memory is then worth releasing.
pub(super) const SMALL_PAYLOAD_BYTES: usize = 64 << 10;

/// One request's buffers, registered with the kernel.
pub(super) struct Entry {
    header: NonNull<UringReqHeader>,
    /// A mapping of its own.
    payload: NonNull<[u8]>,
    /// The two above, as the kernel reads them when the entry is registered.
    iov: Box<[libc::iovec; 2]>,
    /// The kernel owns the entry.
    with_kernel: bool,
    /// A request arrived with the registration and is not served yet.
    pub(super) arrived: bool,
    /// Payload bytes of the last reply.
    pub(super) used: usize,
    /// Payload bytes that may be backed by memory.
    pub(super) touched: usize,
    /// Counted among the large entries.
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
            with_kernel: false,
            arrived: false,
            used: 0,
            touched: 0,
            large: false,
        })
    }

    /// Releases the memory after the first [`SMALL_PAYLOAD_BYTES`] of the payload, which the last reply does not use.
    pub(super) fn release_large(&mut self) {
        assert!(
            !self.with_kernel && self.used <= SMALL_PAYLOAD_BYTES,
            "the payload is in use"
        );
        let rest = &mut self.payload_mut()[SMALL_PAYLOAD_BYTES..];
        // SAFETY: whole pages (the mapping and SMALL_PAYLOAD_BYTES are page-aligned) of a private mapping that
        // only this entry uses; they read as zeros afterwards, and nothing relies on their content.
        let advised = unsafe {
            rustix::mm::madvise(rest.as_mut_ptr().cast(), rest.len(), Advice::LinuxDontNeed)
        };
        if let Err(error) = advised {
            tracing::debug!(%error, "cannot release the memory of a ring entry");
        }
        self.touched = SMALL_PAYLOAD_BYTES;
        self.large = false;
    }

    /// The header buffer; only while the kernel does not own the entry.
    fn header(&self) -> &UringReqHeader {
        assert!(!self.with_kernel, "the kernel owns the entry");
        // SAFETY: the pointer is from `Box::leak`, freed only in `drop`; the kernel writes there
        // only while `with_kernel`.
        unsafe { self.header.as_ref() }
    }

    fn header_mut(&mut self) -> &mut UringReqHeader {
        assert!(!self.with_kernel, "the kernel owns the entry");
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { self.header.as_mut() }
    }

    fn payload(&self) -> &[u8] {
        assert!(!self.with_kernel, "the kernel owns the entry");
        // SAFETY: as for the header.
        unsafe { self.payload.as_ref() }
    }

    fn payload_mut(&mut self) -> &mut [u8] {
        assert!(!self.with_kernel, "the kernel owns the entry");
        // SAFETY: as for the header.
        unsafe { self.payload.as_mut() }
    }

    pub(super) fn in_header(&self) -> InHeader {
        match InHeader::read_from_prefix(&self.header().in_out) {
            Ok((header, _)) => header,
            Err(_) => unreachable!("128 bytes hold a header of 40"),
        }
    }

    /// Whether copying the request's payload takes longer than migrating its caller to another CPU.
    pub(super) fn has_large_payload(&self) -> bool {
        self.header().ent.payload_sz as usize > SMALL_PAYLOAD_BYTES
    }

    /// Whether copying the reply may take that long. The caller runs meanwhile: it allocates memory for its next
    /// read-ahead and copies out the pages it has.
    pub(super) fn has_large_reply(&self) -> bool {
        let header = self.header();
        self.in_header().opcode == wire::opcode::READ
            && ReadIn::read_from_prefix(&header.op_in)
                .is_ok_and(|(arg, _)| arg.size as usize > SMALL_PAYLOAD_BYTES)
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

    /// Queues the submission; [`Entry::wait`] submits it.
    fn push(&mut self, ring: &mut Ring, sqe: squeue::Entry128) -> std::io::Result<()> {
        self.with_kernel = true;
        // SAFETY: the buffers behind the entry stay allocated as long as the kernel may use them
        // (see `drop`), and the descriptor is the pool's, which outlives the ring.
        unsafe { ring.submission().push(&sqe) }
            .map_err(|_| std::io::Error::other("the submission queue is full"))
    }

    /// Submits what is queued and waits until the kernel returns the entry: with a request, or with the error that
    /// ended it.
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
            if let Some(result) = self.reap(ring) {
                return Ok(result);
            }
        }
    }

    /// Returns the entry's completion if there is one.
    pub(super) fn reap(&mut self, ring: &mut Ring) -> Option<Result<(), Errno>> {
        let completion = ring.completion().next()?;
        self.with_kernel = false;
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

    /// Cuts the queued request if it is a long write that may be cut; returns whether it was.
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
        // The payload was not longer than this field states.
        header.ent.payload_sz = (header.ent.payload_sz as usize).saturating_sub(cut) as u32;
        if cut > 0 {
            self.used = 0;
        }
        cut > 0
    }

    /// Records that the request's payload is backed by memory.
    pub(super) fn count_payload(&mut self) {
        let len = self.request().payload.len();
        self.touched = self.touched.max(len);
    }

    /// Serves the request in the buffers and writes the reply there.
    pub(super) fn serve(&mut self, session: &Session, out: &mut ReplyBuf) {
        self.count_payload();
        let error = match session.serve(self.request(), out) {
            Answer::Done | Answer::Silent => 0,
            Answer::Error(errno) => {
                out.clear();
                -errno.raw_os_error()
            }
        };
        self.reply(out, error);
    }

    /// Writes a reply to the buffers.
    pub(super) fn reply(&mut self, out: &mut ReplyBuf, error: i32) {
        let (mut error, unique) = (error, self.in_header().unique);
        let len = out.len();
        if len > self.payload().len() {
            tracing::error!(len, "reply is longer than the request allows");
            out.clear();
            error = -Errno::IO.raw_os_error();
        }
        copy_reply(out, self.payload_mut());
        self.used = out.len();
        self.touched = self.touched.max(self.used);
        // Replies are at most as long as the payload, which is at most 1 MiB.
        let payload_sz = out.len() as u32;
        let out_header = OutHeader {
            len: size_of::<OutHeader>() as u32 + payload_sz,
            error,
            unique,
        };
        let header = self.header_mut();
        header.in_out[..size_of::<OutHeader>()].copy_from_slice(out_header.as_bytes());
        header.ent.payload_sz = payload_sz;
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.with_kernel {
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

/// Copies a reply's segments into the payload, one after the other.
fn copy_reply(out: &ReplyBuf, payload: &mut [u8]) {
    let (first, mut rest) = payload.split_at_mut(out.bytes.len());
    first.copy_from_slice(&out.bytes);
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
