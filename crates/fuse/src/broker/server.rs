//! The broker's end of the socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use super::codec::{Reply, Request};
use super::commands::Commands;
use super::succession::Succession;
use super::{ends_within, receive, send};
use crate::error::MountError;
use crate::host::{Answer, new_close_result};
use crate::mount::{MountHandle, MountOptions, Mounter};
use crate::record::new_file as new_record_file;
use steadfs_rt::groups::Hierarchy;

/// What a mount depends on that only the server knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeFacts {
    /// The volume cannot be written, or shall not be.
    pub read_only: bool,
    /// Of a block device that is to be mounted as `fuseblk`: the volume's block size in bytes.
    pub block_size: Option<u32>,
}

/// Opens the volume's device for writing for a server that has it open for reading, with or without a claim by O_EXCL. A
/// server that has not opened it itself gets what its mounter has opened. Returns at most two descriptors, or why it cannot
/// be done.
pub type Reopen = Box<dyn Fn(bool) -> Result<Vec<OwnedFd>, String> + Send>;

/// The files of the volume, of which a successor must open the same ones.
///
/// **Problem.** A file can be replaced or moved while it is mounted, as rsync and `mv` do, and the mount goes on with
/// the old one. A successor that opened whatever has the name now would continue the state of one volume on another.
pub trait VolumeFiles: Send {
    /// A server has opened the files with these ids: the first one before the mount is made, a successor before it
    /// reads one.
    ///
    /// # Errors
    /// They are not those that the first server has opened.
    fn confirm(&mut self, opened: &str) -> Result<(), String>;

    /// Whether a successor would open the same files now.
    ///
    /// # Errors
    /// Why it would not.
    fn check(&self) -> Result<(), String>;
}

/// Most descriptors of the connection that are kept for a server: more than it has threads. Its threads share the first
/// one if it gets no more.
pub(super) const DEVICES_MAX: usize = 256;
/// Attempts to mount: one over io_uring, and one through the device if that fails.
const MOUNTS_MAX: u32 = 2;
/// Longest reason that is sent, in characters.
const REASON_CHARS_MAX: usize = 2000;

/// Makes a mount for a server and its successors, and answers their questions.
pub struct Broker {
    socket: OwnedFd,
    commands: Arc<Commands>,
    mounter: Arc<dyn Mounter + Send + Sync>,
    hierarchy: Option<Hierarchy>,
    reopen: Reopen,
    /// `None`: no successor opens files.
    files: Option<Box<dyn VolumeFiles>>,
    /// How it is mounted, and the connection, which a server that has handed over leaves to its successor.
    mounted: Option<(MountOptions, OwnedFd)>,
    close_result: Option<OwnedFd>,
    /// The file of records, which the server writes and its successor reads; the broker does neither.
    record: Option<OwnedFd>,
    /// The server's descriptors of the connection: what it has taken is in service until they are closed.
    devices: Vec<OwnedFd>,
    /// Those of servers that have ended without handing over.
    left_devices: Vec<OwnedFd>,
    succession: Succession,
    /// The server has reported that the mount is usable.
    is_served: bool,
    /// A server has reported that. From then on programs rely on the mount, or have another one in its place: no server makes
    /// or ends one any more.
    was_usable: bool,
    /// Attempts to mount that are left.
    mounts_left: u32,
}

/// How a server has ended.
pub enum Ended {
    /// The mount has ended, or there was none; why the last attempt to mount failed.
    WithMount(Option<MountError>),
    /// It has handed over.
    HandedOver,
    /// It has not, but a successor can continue the mount.
    Unexpectedly,
    /// It was to continue the mount, and has not begun to.
    NotTakenOver,
}

impl Broker {
    /// Serves the process at the other end of `socket`, which may have the mount that `mounter` makes, and which carries out
    /// `commands`.
    pub fn new(
        socket: OwnedFd,
        commands: Arc<Commands>,
        mounter: Arc<dyn Mounter + Send + Sync>,
        reopen: Reopen,
    ) -> Self {
        let hierarchy = match mounter.sees_callers() {
            true => Hierarchy::find(),
            false => None,
        };
        Self {
            socket,
            commands,
            mounter,
            hierarchy,
            reopen,
            files: None,
            mounted: None,
            close_result: None,
            record: None,
            devices: Vec::new(),
            left_devices: Vec::new(),
            succession: Succession::new(),
            is_served: false,
            was_usable: false,
            mounts_left: MOUNTS_MAX,
        }
    }

    /// Successors must open the same files as the first server.
    #[must_use]
    pub fn with_files(mut self, files: impl VolumeFiles + 'static) -> Self {
        self.files = Some(Box::new(files));
        self
    }

    /// From now on serves the process at the other end of these sockets, a successor.
    pub fn serve_successor(&mut self, socket: OwnedFd, commands: OwnedFd) {
        self.socket = socket;
        self.commands.replace(commands);
        self.is_served = false;
        self.left_devices.append(&mut self.devices);
    }

    /// Whether a successor has anything to continue: the mount, or what a server has acknowledged and not written. An
    /// unmount does not wait until the server of an image has closed the volume, which may be killed then.
    #[must_use]
    pub fn is_worth_continuing(&self) -> bool {
        self.record.is_some() || self.is_connected()
    }

    /// The same after a pause, which ends early if nothing is left to continue. A record without a mount is worth an attempt
    /// at once only: others may use and change the volume after the unmount, and it must not be restored over that.
    #[must_use]
    pub fn is_worth_continuing_after(&self, pause: Duration) -> bool {
        match &self.mounted {
            Some((_, device)) => {
                !ends_within(device, pause) || (self.record.is_some() && pause.is_zero())
            }
            None => false,
        }
    }

    /// Whether the connection of the mount lives: an unmount ends it, and so does an abort.
    fn is_connected(&self) -> bool {
        let connection = self.mounted.as_ref();
        connection.is_some_and(|(_, device)| !ends_within(device, Duration::ZERO))
    }

    /// Serves until the server has ended. `options` says how to mount; `usable` is called once the mount is, with its handle if
    /// this process can unmount it, and must not wait for the server.
    pub fn run(
        &mut self,
        options: impl Fn(VolumeFacts) -> MountOptions,
        mut usable: impl FnMut(Option<MountHandle>),
    ) -> Ended {
        let mut failure = None;
        loop {
            let request = match receive(&self.socket) {
                Ok(Some((text, _))) => Request::decode(&text),
                Ok(None) => return self.ended(failure),
                Err(error) => {
                    tracing::error!(%error, "a message of the server cannot be received");
                    return self.ended(failure);
                }
            };
            let mut sent = Vec::new();
            let reply = match request {
                Some(Request::Mount(facts)) if self.may_mount() => {
                    self.mounts_left -= 1;
                    match self.mount(options(facts)) {
                        Ok(made) => sent.push(made),
                        Err(error) => failure = Some(error),
                    }
                    done(!sent.is_empty())
                }
                Some(Request::Usable) => {
                    failure = None;
                    self.is_served = true;
                    self.was_usable = true;
                    self.left_devices.clear();
                    self.succession.succeeded();
                    if let Some((how, _)) = &self.mounted {
                        self.mounter.is_usable(how);
                        usable(self.mounter.handle());
                    }
                    Reply::Done
                }
                Some(request) => self.answer(request, &mut sent),
                None => Reply::Failed,
            };
            let fds: Vec<BorrowedFd<'_>> = sent.iter().map(AsFd::as_fd).collect();
            if let Err(error) = send(&self.socket, &reply.encode(), &fds) {
                // The next receive(2) finds the end of the socket.
                tracing::debug!(%error, "cannot reply to the server");
            }
        }
    }

    fn answer(&mut self, request: Request, sent: &mut Vec<OwnedFd>) -> Reply {
        match request {
            Request::Question(_) if !self.mounter.sees_callers() => Reply::Answer(Answer::Unknown),
            Request::Question(question) => Reply::Answer(question.answer(self.hierarchy.as_ref())),
            Request::Device => {
                if self.devices.len() < DEVICES_MAX
                    && let Ok(device) = self.mounter.open_device()
                {
                    self.devices.extend(device.try_clone());
                    sent.push(device);
                }
                done(!sent.is_empty())
            }
            Request::CloseResult => keep(&mut self.close_result, sent),
            Request::Detach if !self.was_usable => {
                self.mounter.detach();
                self.mounted = None;
                self.devices.clear();
                Reply::Done
            }
            Request::Reopen { claim } => match (self.reopen)(claim) {
                Ok(fds) => {
                    *sent = fds;
                    Reply::Done
                }
                Err(why) => refused_or_done(Err(why)),
            },
            Request::Files(opened) if !self.is_served => {
                let files = self.files.as_mut();
                refused_or_done(files.map_or(Ok(()), |files| files.confirm(&opened)))
            }
            Request::Standby(text) => {
                self.succession.set_standby(text);
                Reply::Done
            }
            Request::Record => {
                sent.extend(self.record_file());
                done(!sent.is_empty())
            }
            Request::Upgrade if self.is_served => match self.same_files() {
                Ok(()) => self.succession.begin(&self.commands),
                Err(why) => refused_or_done(Err(why)),
            },
            Request::Progress(server) => self.succession.progress(server),
            Request::TakeOver if !self.is_served => self.take_over(sent),
            // No server of this program sends that.
            Request::Mount(_)
            | Request::Files(_)
            | Request::Usable
            | Request::Detach
            | Request::Upgrade
            | Request::TakeOver => Reply::Failed,
        }
    }

    /// Whether a successor would open the files of this server.
    fn same_files(&self) -> Result<(), String> {
        self.files.as_ref().map_or(Ok(()), |files| files.check())
    }

    /// Whether a successor can continue the mount of a server that has ended without handing over.
    fn can_continue(&self) -> bool {
        if !self.succession.inherit() {
            return false;
        }
        let same = self.same_files();
        if let Err(why) = &same {
            tracing::error!(why, "the server has ended, and this mount with it");
        }
        same.is_ok()
    }

    fn may_mount(&self) -> bool {
        self.mounted.is_none() && !self.was_usable && self.mounts_left > 0
    }

    /// Mounts; returns the connection for the server.
    fn mount(&mut self, how: MountOptions) -> Result<OwnedFd, MountError> {
        let made = self.mounter.mount(&how)?;
        match made.try_clone() {
            Ok(kept) => {
                self.mounted = Some((how, kept));
                Ok(made)
            }
            Err(error) => {
                self.mounter.detach();
                Err(MountError::Device(error.to_string()))
            }
        }
    }

    /// Gives a successor the connection and the legacy.
    fn take_over(&mut self, sent: &mut Vec<OwnedFd>) -> Reply {
        let (Some((how, device)), Some(legacy)) = (&self.mounted, self.succession.legacy()) else {
            return Reply::Failed;
        };
        let claimed = how.block_device.is_some();
        let Ok(device) = device.try_clone() else {
            return Reply::Failed;
        };
        sent.extend([device, legacy]);
        if self.record.is_some() {
            let Some(record) = self.record_file() else {
                sent.clear();
                return Reply::Failed;
            };
            sent.push(record);
        }
        Reply::Answer(Answer::Is(claimed))
    }

    /// The file of records, made when a server first asks for it.
    fn record_file(&mut self) -> Option<OwnedFd> {
        if self.record.is_none() {
            self.record = new_record_file().ok();
        }
        self.record.as_ref()?.try_clone().ok()
    }

    /// The server has ended.
    fn ended(&mut self, failure: Option<MountError>) -> Ended {
        if !self.was_usable && self.mounted.take().is_some() {
            // It has made a mount, and did not live to serve it or to have it removed.
            self.mounter.detach();
        }
        match (self.succession.is_handed_over(), self.is_served) {
            (true, true) => Ended::HandedOver,
            (true, false) => Ended::NotTakenOver,
            (false, true) if self.is_worth_continuing() && self.can_continue() => {
                Ended::Unexpectedly
            }
            (false, _) => Ended::WithMount(failure),
        }
    }
}

/// Makes the file for the result of closing the volume, which is kept as long as the broker lives, for all its servers.
fn keep(kept: &mut Option<OwnedFd>, sent: &mut Vec<OwnedFd>) -> Reply {
    if kept.is_none() {
        *kept = new_close_result().ok();
    }
    let Some((ours, theirs)) = kept
        .as_ref()
        .and_then(|ours| Some((ours, ours.try_clone().ok()?)))
    else {
        return Reply::Failed;
    };
    sent.push(theirs);
    Reply::Answer(Answer::Word(ours.as_raw_fd().unsigned_abs()))
}

fn refused_or_done(result: Result<(), String>) -> Reply {
    match result {
        Ok(()) => Reply::Done,
        Err(why) => Reply::Refused(why.chars().take(REASON_CHARS_MAX).collect()),
    }
}

fn done(is_done: bool) -> Reply {
    match is_done {
        true => Reply::Done,
        false => Reply::Failed,
    }
}
