//! Several requests at a time from one task, through io_uring.
//!
//! A ring belongs to one task at a time, from the submission of a batch to the end of its last
//! request. So completions arrive in the task that waits for them, and no other task is woken.
#![expect(
    unsafe_code,
    reason = "the kernel reads and writes memory that the compiler does not see it use"
)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::OnceLock;

use io_uring::register::Restriction;
use io_uring::{Builder, IoUring, cqueue, opcode, squeue, types};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use steadfs_rt::{Mutex, Rank};

use super::busy_poll::BusyPoll;
use super::engine::SPARE_RINGS;
use super::jobs::{Job, JobSource};
use super::transfer::{MAX_PIECES, Target};
use crate::{Bio, Buf, Done, IoError, Op};

/// Most requests of a ring at a time.
pub(super) const RING_ENTRIES: usize = 64;

/// Rings that a contained process made before it lost the right to make any.
struct PreparedRings {
    free: Mutex<Vec<IoUring>>,
    /// Why there are none.
    refusal: Option<String>,
}

static PREPARED: OnceLock<PreparedRings> = OnceLock::new();

/// Rings of a contained process: as many for its device as are kept otherwise, and as many once the device was reopened.
/// More batches at a time are run by single system calls. At most an eighth as many as the process may have descriptors.
const PREPARED_RINGS: usize = 2 * SPARE_RINGS;

/// Makes the rings that this process uses from now on, and no others. They can transfer data of registered files and
/// nothing else, even for an attacker in the process: not open a file, not make a socket.
pub fn prepare_rings() {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let most = usize::try_from(descriptors / 8).unwrap_or(usize::MAX);
    let wanted = PREPARED_RINGS.min(most);
    let mut free = Vec::new();
    let mut refusal = None;
    while free.len() < wanted && refusal.is_none() {
        match restricted() {
            Ok(ring) => free.push(ring),
            Err(why) => refusal = Some(why),
        }
    }
    let prepared = PreparedRings {
        free: Mutex::new(Rank::Leaf, free),
        refusal,
    };
    assert!(PREPARED.set(prepared).is_ok(), "rings are prepared once");
}

/// Whether a ring that is dropped could not be made again.
pub(super) fn are_prepared() -> bool {
    PREPARED.get().is_some()
}

/// Codes of io_uring_register(2), linux/io_uring.h.
const REGISTER_FILES: u8 = 2;
const UNREGISTER_FILES: u8 = 3;

/// A ring that transfers data of registered files and does nothing else (Linux 5.10).
fn restricted() -> Result<IoUring, String> {
    let ring = made(IoUring::builder().setup_r_disabled())?;
    let fixed = squeue::Flags::FIXED_FILE.bits();
    let operations = [
        opcode::Read::CODE,
        opcode::Write::CODE,
        opcode::Readv::CODE,
        opcode::Writev::CODE,
    ];
    let mut restrictions: Vec<Restriction> = operations.map(Restriction::sqe_op).into();
    restrictions.extend([
        Restriction::sqe_flags_required(fixed),
        Restriction::register_op(REGISTER_FILES),
        Restriction::register_op(UNREGISTER_FILES),
    ]);
    let submitter = ring.submitter();
    submitter
        .register_restrictions(&mut restrictions)
        .and_then(|()| submitter.register_enable_rings())
        .map_err(|error| format!("the kernel does not restrict rings ({error})"))?;
    Ok(ring)
}

/// A new ring, or the kernel's refusal.
fn made(builder: &mut Builder<squeue::Entry, cqueue::Entry>) -> Result<IoUring, String> {
    let entries = RING_ENTRIES as u32;
    let plain = builder.clone();
    // Completions are collected by the task that waits for them, so it need not be interrupted. Kernels before 5.19 do not
    // have this flag.
    let ring = builder
        .setup_coop_taskrun()
        .build(entries)
        .or_else(|_| plain.build(entries))
        .map_err(|error| refusal(&error))?;
    match ring.params().is_feature_rw_cur_pos() {
        true => Ok(ring),
        false => Err("the kernel's io_uring is older than Linux 5.6".to_owned()),
    }
}

/// A ring for this process.
fn any() -> Result<IoUring, String> {
    let Some(prepared) = PREPARED.get() else {
        return made(&mut IoUring::builder());
    };
    let ring = prepared.free.lock().pop();
    ring.ok_or_else(|| {
        let all_used = || "all prepared rings are in use".to_owned();
        prepared.refusal.clone().unwrap_or_else(all_used)
    })
}

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
        let ring = any()?;
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    /// What an attacker tries with a ring of the device. SAFETY of the entries: none is executed.
    fn refused(ring: &mut IoUring, entry: &squeue::Entry) -> bool {
        // SAFETY: the kernel refuses the entry before it reads the memory that it points to.
        unsafe { ring.submission().push(entry) }.unwrap();
        ring.submit_and_wait(1).unwrap();
        let answer = ring.completion().next().unwrap();
        answer.result() == -Errno::ACCESS.raw_os_error()
    }

    #[test]
    fn a_restricted_ring_transfers_data_of_its_file_and_nothing_else() {
        let Ok(mut ring) = restricted() else {
            return; // The kernel has no io_uring.
        };
        let file = tempfile::tempfile().unwrap();
        ring.submitter()
            .register_files(&[file.as_raw_fd()])
            .unwrap();
        let (fd, path) = (types::Fd(file.as_fd().as_raw_fd()), c"/etc/passwd".as_ptr());
        let mut byte = [7_u8];
        let at = byte.as_mut_ptr();
        let attempts = [
            opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), path).build(),
            opcode::Socket::new(libc::AF_UNIX, libc::SOCK_STREAM, 0).build(),
            opcode::Connect::new(fd, at.cast(), 1).build(),
            opcode::UnlinkAt::new(types::Fd(libc::AT_FDCWD), path).build(),
            opcode::Statx::new(types::Fd(libc::AT_FDCWD), path, at.cast()).build(),
            opcode::SetXattr::new(path, at.cast(), path, 1).build(),
            opcode::Close::new(fd).build(),
            opcode::Nop::new().build(),
            // Not the registered file.
            opcode::Read::new(fd, at, 1).build(),
        ];
        for (n, attempt) in attempts.iter().enumerate() {
            assert!(refused(&mut ring, attempt), "attempt {n}");
        }
        let submitter = ring.submitter();
        assert!(
            submitter
                .register_probe(&mut io_uring::Probe::new())
                .is_err()
        );
        assert!(submitter.register_restrictions(&mut []).is_err());
        let write = opcode::Write::new(types::Fixed(0), at, 1).build();
        assert!(!refused(&mut ring, &write));
        assert_eq!(file.metadata().unwrap().len(), 1);
    }
}
