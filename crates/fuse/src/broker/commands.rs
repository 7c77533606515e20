//! What a broker asks of its server, over a socket of its own.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, memfd_create};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::FsError;

use super::{receive, send};

const SYNC: &str = "sync";
const HAND_OVER: &str = "hand-over";
const DONE: &str = "done";

/// A file with the text of a legacy.
pub(super) fn new_legacy(text: &str) -> io::Result<OwnedFd> {
    let file = File::from(memfd_create("steadfs-legacy", MemfdFlags::CLOEXEC)?);
    file.write_all_at(text.as_bytes(), 0)?;
    Ok(file.into())
}

/// The broker's end.
pub struct Commands(Mutex<OwnedFd>);

impl Commands {
    /// Commands go to the process at the other end.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(Rank::Leaf, socket))
    }

    /// From now on commands go to the process at the other end of this socket.
    pub fn replace(&self, socket: OwnedFd) {
        *self.0.lock() = socket;
    }

    /// Makes everything durable that the server has.
    ///
    /// # Errors
    /// Why it could not, or that the server is gone.
    pub fn sync(&self) -> Result<(), String> {
        self.command(SYNC, None)
    }

    /// Ends the service of the server for a successor; returns the file with its [`Legacy`](crate::Legacy).
    ///
    /// # Errors
    /// Why it serves on, or that it is gone.
    pub fn hand_over(&self) -> Result<OwnedFd, String> {
        let file = new_legacy("").map_err(|error| error.to_string())?;
        self.command(HAND_OVER, Some(&file)).map(|()| file)
    }

    fn command(&self, text: &str, file: Option<&OwnedFd>) -> Result<(), String> {
        let socket = self.0.lock();
        let files: Vec<_> = file.into_iter().map(AsFd::as_fd).collect();
        let replied = send(&socket, text, &files).and_then(|()| receive(&socket));
        match replied.map_err(|error| error.to_string())? {
            Some((text, _)) if text == DONE => Ok(()),
            Some((cause, _)) => Err(cause),
            None => Err("the server has ended".to_owned()),
        }
    }
}

/// Why there is no hand-over.
#[derive(Debug)]
pub enum HandOverError {
    /// The server serves as before.
    Refused(FsError),
    /// The service has ended, and its successor cannot have what it needs.
    Lost(FsError),
}

/// The server's end: carries out commands until the broker has ended, or the service has. `sync` makes the volume durable,
/// `hand_over` ends the service for a successor and writes what it needs into the file.
pub fn serve_commands(
    socket: &OwnedFd,
    sync: impl Fn() -> Result<(), FsError>,
    hand_over: impl Fn(&File) -> Result<(), HandOverError>,
) {
    while let Ok(Some((text, files))) = receive(socket) {
        let file = files.into_iter().next().map(File::from);
        let (done, last) = match (text.as_str(), file) {
            (SYNC, _) => (sync().map_err(|error| error.to_string()), false),
            (HAND_OVER, Some(file)) => {
                let handed_over = hand_over(&file);
                let last = !matches!(handed_over, Err(HandOverError::Refused(_)));
                let handed_over = handed_over.map_err(|error| match error {
                    HandOverError::Refused(error) | HandOverError::Lost(error) => error.to_string(),
                });
                (handed_over, last)
            }
            _ => (Err("not a command".to_owned()), false),
        };
        let reply = done.map_or_else(|cause| cause, |()| DONE.to_owned());
        if let Err(error) = send(socket, &reply, &[]) {
            tracing::debug!(%error, "cannot reply to the broker");
        }
        if last {
            return;
        }
    }
}
