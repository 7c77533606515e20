//! Several requests at a time from one task, through io_uring.
//!
//! A ring belongs to one task at a time, from the submission of a batch to the end of its last
//! request. So completions arrive in the task that waits for them, and no other task is woken.
#![expect(
    unsafe_code,
    reason = "the kernel reads and writes memory that the compiler does not see it use"
)]

use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use super::busy_poll::BusyPoll;
use super::jobs::{Job, JobSource};
use super::transfer::{MAX_PIECES, Target};
use crate::{Bio, Buf, Done, IoError, Op};

/// Most requests of a ring at a time.
pub(super) const RING_ENTRIES: usize = 64;

/// A ring with the file registered as its number 0.
pub(super) struct Ring {
    ring: IoUring,
    slots: Vec<Option<InFlight>>,
    free: Vec<usize>,
}

/// A request in flight in the kernel. Its memory does not move until the kernel has completed it.
struct InFlight {
    bio: Bio,
    done: Done,
    /// The array that a vectored request points to.
    _pieces: Vec<Iovec>,
}

/// `struct iovec` (POSIX <sys/uio.h>).
#[repr(C)]
struct Iovec {
    start: *mut u8,
    len: usize,
}

// SAFETY: the pointers are those of the buffers of the bio beside them, which may change threads, and only
// the kernel dereferences them.
unsafe impl Send for InFlight {}

impl Ring {
    /// A ring for `file`, or the kernel's refusal.
    pub(super) fn new(file: BorrowedFd<'_>) -> Result<Self, String> {
        let entries = RING_ENTRIES as u32;
        // Completions are collected by the task that waits for them, so it need not be interrupted.
        // Kernels before 5.19 do not have this flag.
        let ring = IoUring::builder()
            .setup_coop_taskrun()
            .build(entries)
            .or_else(|_| IoUring::new(entries))
            .map_err(|error| refusal(&error))?;
        if !ring.params().is_feature_rw_cur_pos() {
            return Err("the kernel's io_uring is older than Linux 5.6".to_owned());
        }
        ring.submitter()
            .register_files(&[file.as_raw_fd()])
            .map_err(|error| format!("the kernel does not register the file ({error})"))?;
        Ok(Self {
            ring,
            slots: (0..RING_ENTRIES).map(|_| None).collect(),
            free: (0..RING_ENTRIES).collect(),
        })
    }

    /// Runs `jobs`, and further ones from `source` while slots are free, until all have ended. With `poll` the
    /// task busy-polls before it sleeps.
    pub(super) fn run(
        &mut self,
        target: &Target,
        jobs: Vec<Job>,
        source: &mut dyn JobSource,
        poll: Option<&BusyPoll>,
    ) {
        let mut jobs = jobs.into_iter();
        loop {
            let slow = self.fill(target, &mut jobs);
            if !slow.is_empty() {
                // They block this task; the others are in flight meanwhile.
                if self.in_flight() > 0 {
                    self.enter(0);
                }
                for (mut bio, done) in slow {
                    let result = target.run(&mut bio);
                    source.returned();
                    done(bio, result);
                }
            }
            if self.in_flight() > 0 {
                match poll {
                    Some(poll) => self.enter_polling(poll),
                    None => self.enter(1),
                }
                source.returned();
                self.reap(target);
            }
            if jobs.len() == 0 {
                jobs = source.more(self.free.len()).into_iter();
                if jobs.len() == 0 && self.in_flight() == 0 {
                    return;
                }
            }
        }
    }

    fn in_flight(&self) -> usize {
        RING_ENTRIES - self.free.len()
    }

    /// Puts jobs into the submission queue while slots are free; returns those that the ring cannot take.
    fn fill(&mut self, target: &Target, jobs: &mut std::vec::IntoIter<Job>) -> Vec<Job> {
        let mut slow = Vec::new();
        while !self.free.is_empty() {
            let Some((bio, done)) = jobs.next() else {
                break;
            };
            if fits_ring(target, &bio) {
                self.push(target, bio, done);
            } else {
                slow.push((bio, done));
            }
        }
        slow
    }

    fn push(&mut self, target: &Target, mut bio: Bio, done: Done) {
        let slot = self.free.pop().expect("a slot is free");
        let at = target.start + bio.offset;
        let (entry, pieces) = prepare(&mut bio, at);
        let entry = entry.user_data(slot as u64);
        self.slots[slot] = Some(InFlight {
            bio,
            done,
            _pieces: pieces,
        });
        // SAFETY: the entry points to buffers and pieces that the slot's `InFlight` owns. It is taken
        // from the slot only after the kernel's completion (or never, see `drop`). Both are on the
        // heap: moving the `InFlight` does not move them.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the submission queue has an entry for each slot");
    }

    /// Submits the pushed entries and waits until `want` requests are complete.
    fn enter(&mut self, want: usize) {
        loop {
            match self.ring.submit_and_wait(want) {
                Ok(_) => return,
                Err(error) => match Errno::from_io_error(&error) {
                    // A signal, or a temporary shortage of memory or completion entries.
                    Some(Errno::INTR | Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => {
                        if !self.ring.completion().is_empty() {
                            return;
                        }
                        steadfs_rt::yield_now();
                    }
                    _ => panic!("io_uring_enter fails on a valid ring: {error}"),
                },
            }
        }
    }

    /// Submits the pushed entries and waits until a request is complete, with busy polling before the sleep.
    fn enter_polling(&mut self, poll: &BusyPoll) {
        self.enter(0);
        poll.wait(|| !self.ring.completion().is_empty());
        if self.ring.completion().is_empty() {
            self.enter(1);
        }
    }

    fn reap(&mut self, target: &Target) {
        loop {
            let Some(answer) = self.ring.completion().next() else {
                return;
            };
            let slot = answer.user_data() as usize;
            let flight = self.slots[slot].take();
            let InFlight { mut bio, done, .. } = flight.expect("a request is answered once");
            self.free.push(slot);
            let result = completion_result(target, &mut bio, answer.result());
            done(bio, result);
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if self.in_flight() > 0 {
            // After a panic the kernel may still use the memory, so it is never freed.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
        // The kernel ends a ring asynchronously, but the file should be closed at once. If this fails, it is
        // closed later.
        let _ = self.ring.submitter().unregister_files();
    }
}

/// Whether the ring can take a bio without blocking at submission.
fn fits_ring(target: &Target, bio: &Bio) -> bool {
    bio.is_plain()
        && (1..=1 << 30).contains(&bio.len)
        && bio.bufs.len() <= MAX_PIECES
        && target.takes_as_is(bio)
}

/// The submission entry for a bio, and the pieces it points to.
fn prepare(bio: &mut Bio, at: u64) -> (squeue::Entry, Vec<Iovec>) {
    let file = types::Fixed(0);
    let reads = bio.op == Op::Read;
    let piece = |bytes: &mut [u8]| Iovec {
        start: bytes.as_mut_ptr(),
        len: bytes.len(),
    };
    // The kernel only reads from a write's pieces.
    let constant = |bytes: &[u8]| Iovec {
        start: bytes.as_ptr().cast_mut(),
        len: bytes.len(),
    };
    let pieces: Vec<Iovec> = match reads {
        true => bio
            .bufs
            .iter_mut()
            .map(|buf| piece(buf.make_mut()))
            .collect(),
        false => Buf::runs(&bio.bufs).into_iter().map(constant).collect(),
    };
    if let [Iovec { start, len }] = pieces[..] {
        // At most 1 GiB (`fits_ring`).
        let len = len as u32;
        let entry = match reads {
            true => opcode::Read::new(file, start, len).offset(at).build(),
            false => opcode::Write::new(file, start, len).offset(at).build(),
        };
        return (entry, pieces);
    }
    let (start, n) = (pieces.as_ptr().cast(), pieces.len() as u32);
    let entry = if reads {
        opcode::Readv::new(file, start, n).offset(at).build()
    } else {
        opcode::Writev::new(file, start, n).offset(at).build()
    };
    (entry, pieces)
}

/// The result of a completion, which is a byte count or a negative errno. A short transfer, or one that
/// could not be done without blocking, is repeated by a system call from the start; that does not change
/// the part that was transferred.
fn completion_result(target: &Target, bio: &mut Bio, answer: i32) -> Result<(), IoError> {
    match u64::try_from(answer) {
        Ok(moved) if moved == bio.len => Ok(()),
        Ok(_) => target.run(bio),
        Err(_) => match Errno::from_raw_os_error(-answer) {
            Errno::AGAIN | Errno::INTR => target.run(bio),
            errno => Err(IoError::of(bio, std::io::Error::from(errno).to_string())),
        },
    }
}

fn refusal(error: &std::io::Error) -> String {
    let sysctl = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    match sysctl.as_deref().map(str::trim) {
        Ok(level @ ("1" | "2")) => {
            format!("the kernel refuses it (kernel.io_uring_disabled={level})")
        }
        _ => format!("the kernel refuses it ({error})"),
    }
}
