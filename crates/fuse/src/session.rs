//! The life of one mount: INIT, admission to the volume, closing.
//!
//! A request runs to its end on the thread that received it, unless it has to be queued for a slot. The volume is
//! closed exactly once: by DESTROY (block-device mounts, before the kernel's umount returns), or when the connection is
//! gone ([`Session::close_volume`], called by [`Mounted::wait`](crate::Mounted::wait)).
//!
//! A panic while serving ends the program `steadfs` before it gets here (`cli/src/fatal.rs`). In another program it
//! stops the session and the volume: this request and all later ones are answered EIO, and the volume writes nothing
//! more. Its structures are in an unknown state; the device holds what a power cut at that moment would leave. The
//! result of closing reports it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::Errno;
use steadfs_rt::Event;
use steadfs_vfs::{FileSystem, FsError, LookupCounts, is_control_inode};

use crate::MountError;
use crate::admission::{Admission, Class, watch_interrupted};
pub use crate::call::SessionConfig;
use crate::call::Volume;
use crate::host;
use crate::interrupt::{Interrupts, is_dying};
use crate::ops;
use crate::reply::{Answer, NodeIds, ReplyBuf};
use crate::request::{DecodeError, Op, RawRequest, Request};
use crate::stats::Stats;
use crate::waiting::WaitSources;
use crate::wire::{self, init};

/// The result of INIT.
#[derive(Clone, Copy, Debug)]
pub struct Negotiated {
    /// The kernel's minor version.
    pub minor: u32,
    /// Whether requests will come through io_uring.
    pub uring: bool,
    /// Whether the kernel sends requests again that a server had taken.
    pub resends: bool,
}

/// State of one mount, shared by its service threads.
pub struct Session {
    pub(crate) volume: Volume,
    pub(crate) admission: Arc<Admission>,
    pub(crate) interrupts: Arc<Interrupts>,
    /// Result of INIT; the mounting thread waits for it.
    negotiated: Event<Result<Negotiated, MountError>>,
    /// Requests inside the volume.
    inside: AtomicUsize,
    /// No further request may enter the volume.
    closing: AtomicBool,
    /// A service thread panicked inside the volume.
    broken: AtomicBool,
    /// Result of closing the volume.
    closed: OnceLock<Result<(), FsError>>,
}

fn broken() -> FsError {
    FsError::Stopped(steadfs_rt::PANICKED.to_owned())
}

/// Counts a request inside the volume.
struct Inside<'a>(&'a AtomicUsize);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Session {
    /// A session before INIT.
    pub fn new(fs: Arc<dyn FileSystem>, config: SessionConfig) -> Self {
        let admission = Arc::new(Admission::new(config.threads, is_dying));
        let interrupts = Arc::new(Interrupts::new());
        config.stats.set_sources(WaitSources {
            admission: Arc::clone(&admission),
            interrupts: Arc::clone(&interrupts),
            ids: NodeIds::new(fs.root()),
        });
        Self {
            admission,
            interrupts,
            volume: Volume::new(fs, config),
            negotiated: Event::new(),
            inside: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            broken: AtomicBool::new(false),
            closed: OnceLock::new(),
        }
    }

    /// A reply buffer for a service thread.
    pub fn reply_buf(&self) -> ReplyBuf {
        ReplyBuf {
            served: self.interrupts.register_thread(),
            ..ReplyBuf::default()
        }
    }

    /// The request's admission class; `None` if it needs no slot.
    pub(crate) fn class(&self, raw: &RawRequest<'_>) -> Option<Class> {
        Class::of(raw, |node| {
            is_control_inode(self.volume.translate.ids.ino(node))
        })
    }

    /// Counters.
    pub fn stats(&self) -> &Stats {
        &self.volume.config.stats
    }

    /// Waits for the end of INIT.
    pub fn wait_negotiated(&self) -> Result<Negotiated, MountError> {
        self.negotiated.wait()
    }

    /// Whether requests come through io_uring.
    pub(crate) fn uses_uring(&self) -> bool {
        matches!(self.negotiated.get(), Some(Ok(negotiated)) if negotiated.uring)
    }

    /// Ends the wait for INIT: the connection is gone.
    pub fn give_up(&self, error: MountError) {
        if self.negotiated.get().is_none() {
            self.negotiated.set(Err(error));
        }
    }

    /// Serves a request. If the answer is [`Answer::Done`], `out` holds the reply's body.
    pub fn serve(&self, raw: RawRequest<'_>, out: &mut ReplyBuf) -> Answer {
        out.clear();
        let opcode = raw.header.opcode;
        self.stats().count(opcode);
        self.interrupts.begin(&out.served, &raw.header);
        let answer = match Request::decode(raw) {
            Ok(request) => self.answer(&request, out),
            Err(DecodeError::Unknown(_)) => Answer::Error(Errno::NOSYS),
            Err(error) => {
                tracing::error!(opcode = raw.header.opcode, %error, "malformed request");
                Answer::Error(Errno::IO)
            }
        };
        self.interrupts.end(&out.served);
        if matches!(answer, Answer::Error(_)) {
            self.stats().count_error();
        }
        answer
    }

    fn answer(&self, request: &Request<'_>, out: &mut ReplyBuf) -> Answer {
        match request.op {
            Op::Init(arg) => self.init(&arg, out),
            Op::Destroy => {
                // The kernel ignores an error of DESTROY; `Mounted::wait` returns it.
                if let Err(error) = self.close_volume() {
                    tracing::error!(%error, "cannot close the volume");
                }
                Answer::Done
            }
            Op::Interrupt { unique } => {
                self.interrupt(unique);
                Answer::Silent
            }
            // Opens and closes need no messages: files have no state between open and close, the page cache stays
            // valid, and after one ENOSYS the kernel stops sending these. Without CREATE the kernel makes a file with
            // MKNOD, under the directory's lock as before, and neither opens nor releases it. Only a volume with files
            // whose open may fail receives OPEN, and one that keeps such state RELEASE and FLUSH, too.
            Op::Open(_) | Op::Release { .. } if self.volume.fs.checks_opens() => {
                self.enter(request, out)
            }
            Op::Open(_) | Op::Release { .. } | Op::Flush if self.volume.fs.tracks_files() => {
                self.enter(request, out)
            }
            // Else the kernel would cache listings of encrypted directories.
            Op::Opendir if self.volume.fs.has_encryption() => self.enter(request, out),
            Op::Open(_) | Op::Opendir | Op::Create | Op::Flush | Op::Unsupported => {
                Answer::Error(Errno::NOSYS)
            }
            Op::Release { .. } | Op::Releasedir => Answer::Done,
            _ => self.enter(request, out),
        }
    }

    fn interrupt(&self, unique: u64) {
        self.interrupts
            .interrupt(unique, || self.admission.interrupt(unique));
        watch_interrupted(&self.admission);
    }

    /// To be called after a request was queued: its INTERRUPT may have come before that.
    pub(crate) fn was_queued(&self, unique: u64) {
        if self.interrupts.forget_early(unique) {
            self.interrupt(unique);
        }
    }

    /// Calls the volume if it is open; stops it after a panic.
    fn enter(&self, request: &Request<'_>, out: &mut ReplyBuf) -> Answer {
        self.inside.fetch_add(1, Ordering::SeqCst);
        let inside = Inside(&self.inside);
        let silent = matches!(request.op, Op::Forget { .. } | Op::BatchForget(_));
        if self.closing.load(Ordering::SeqCst) || self.broken.load(Ordering::Relaxed) {
            return if silent {
                Answer::Silent
            } else {
                Answer::Error(Errno::IO)
            };
        }
        let answer = catch_unwind(AssertUnwindSafe(|| {
            ops::dispatch(&self.volume, request, out)
        }));
        drop(inside);
        match answer {
            Ok(answer) => answer,
            Err(_) => {
                self.broken.store(true, Ordering::Relaxed);
                self.volume.fs.panicked();
                tracing::error!(
                    op = wire::op_name(request.header.opcode),
                    "internal error: an assertion failed; the volume is stopped"
                );
                if silent {
                    Answer::Silent
                } else {
                    Answer::Error(Errno::IO)
                }
            }
        }
    }

    /// Closes the volume, once: waits for the requests inside it, then writes everything. Later callers wait and get
    /// the same result.
    pub fn close_volume(&self) -> Result<(), FsError> {
        self.closed
            .get_or_init(|| {
                self.closing.store(true, Ordering::SeqCst);
                while self.inside.load(Ordering::SeqCst) > 0 {
                    steadfs_rt::sleep(Duration::from_millis(1));
                }
                if let Some(recorder) = self.volume.recorder() {
                    recorder.end();
                }
                let result = match self.broken.load(Ordering::Relaxed) {
                    true => Err(broken()),
                    false => catch_unwind(AssertUnwindSafe(|| self.volume.fs.unmount()))
                        .unwrap_or_else(|_| Err(broken())),
                };
                if self.volume.recorder().is_some() {
                    // From now on the volume may be used, and changed, by others.
                    host::set_standby("");
                }
                if let Some(file) = &self.volume.close_result {
                    file.record(&result);
                }
                result
            })
            .clone()
    }

    /// Hands the volume over to a successor ([`FileSystem::hand_over`]). No request is in service.
    ///
    /// # Errors
    /// As [`FileSystem::hand_over`]; `Stopped`: the volume is closed.
    pub(crate) fn hand_over(&self) -> Result<LookupCounts, FsError> {
        if self.broken.load(Ordering::Relaxed) {
            return Err(broken());
        }
        if self.closed.get().is_some() {
            return Err(FsError::Stopped("unmounted".to_owned()));
        }
        let lookups = self.volume.fs.hand_over()?;
        if let Some(recorder) = self.volume.recorder() {
            recorder.end();
        }
        // Nothing is left to close.
        let _ = self.closed.set(Ok(()));
        Ok(lookups)
    }

    /// Continues a mount whose INIT another server has answered.
    pub(crate) fn succeed(&self, minor: u32, resends: bool) {
        self.negotiated.set(Ok(Negotiated {
            minor,
            uring: false,
            resends,
        }));
    }

    /// INIT: negotiates version and features.
    fn init(&self, arg: &wire::InitIn, out: &mut ReplyBuf) -> Answer {
        if self.negotiated.get().is_some() {
            return Answer::Error(Errno::IO);
        }
        if arg.major > wire::MAJOR {
            // The kernel sends INIT again with the version in this reply.
            out.put(&wire::InitOut {
                major: wire::MAJOR,
                minor: wire::MINOR,
                ..wire::InitOut::default()
            });
            return Answer::Done;
        }
        match self.negotiate(arg) {
            Ok((reply, negotiated)) => {
                out.put(&reply);
                self.negotiated.set(Ok(negotiated));
                Answer::Done
            }
            Err(error) => {
                self.negotiated.set(Err(error));
                Answer::Error(Errno::PROTO)
            }
        }
    }

    fn negotiate(&self, arg: &wire::InitIn) -> Result<(wire::InitOut, Negotiated), MountError> {
        if arg.major < wire::MAJOR || arg.minor < wire::MINOR_MIN {
            return Err(MountError::OldKernel {
                major: arg.major,
                minor: arg.minor,
            });
        }
        let offered = u64::from(arg.flags) | (u64::from(arg.flags2) << 32);
        let needed = init::MAX_PAGES
            | init::NO_OPEN_SUPPORT
            | init::NO_OPENDIR_SUPPORT
            | init::HANDLE_KILLPRIV_V2
            | init::SETXATTR_EXT;
        if offered & needed != needed {
            return Err(MountError::MissingFeature {
                missing: needed & !offered,
            });
        }
        let negotiated = offered & self.supported();
        let uring = negotiated & init::OVER_IO_URING != 0;
        let max_pages = self.volume.config.max_pages();
        let reply = wire::InitOut {
            major: wire::MAJOR,
            minor: wire::MINOR.min(arg.minor),
            // The kernel takes the minimum of this and the backing device's setting; that is raised after the mount
            // (see `mount`).
            max_readahead: u32::MAX,
            // The low and the high half.
            flags: negotiated as u32,
            flags2: (negotiated >> 32) as u32,
            max_background: 128,
            congestion_threshold: 96,
            max_write: self.volume.config.max_request,
            time_gran: 1,
            max_pages: u16::try_from(max_pages).unwrap_or(u16::MAX),
            ..wire::InitOut::default()
        };
        let minor = arg.minor;
        let resends = negotiated & init::HAS_RESEND != 0;
        Ok((
            reply,
            Negotiated {
                minor,
                uring,
                resends,
            },
        ))
    }

    /// The features that are used. Left out on purpose: WRITEBACK_CACHE (its writes carry no owner, and the kernel
    /// drops pages that could not be written), AUTO_INVAL_DATA (it would drop a file's cached pages after each write of
    /// our own), ATOMIC_O_TRUNC (truncation comes as SETATTR), remote locks.
    fn supported(&self) -> u64 {
        let mut supported = init::ASYNC_READ
            | init::EXPORT_SUPPORT
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::IOCTL_DIR
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::NO_OPEN_SUPPORT
            | init::PARALLEL_DIROPS
            | init::ABORT_ERROR
            | init::MAX_PAGES
            | init::NO_OPENDIR_SUPPORT
            | init::HANDLE_KILLPRIV_V2
            | init::SETXATTR_EXT
            | init::INIT_EXT
            | init::CREATE_SUPP_GROUP
            | init::HAS_RESEND;
        // Targets of encrypted links depend on keys.
        if !self.volume.fs.has_encryption() {
            supported |= init::CACHE_SYMLINKS;
        }
        if self.volume.config.posix_acl {
            supported |= init::POSIX_ACL;
        }
        if self.volume.config.uring {
            supported |= init::OVER_IO_URING;
        }
        supported
    }
}
