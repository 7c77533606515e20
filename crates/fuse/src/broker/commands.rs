//! What a broker asks of its server, over a socket of its own.

use std::os::fd::OwnedFd;

use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::FsError;

use super::{receive, send};

const SYNC: &str = "sync";
const DONE: &str = "done";

/// The broker's end.
pub struct Commands(Mutex<OwnedFd>);

impl Commands {
    /// Commands go to the process at the other end.
    pub fn new(socket: OwnedFd) -> Self {
        Self(Mutex::new(Rank::Leaf, socket))
    }

    /// Makes everything durable that the server has.
    ///
    /// # Errors
    /// Why it could not, or that the server is gone.
    pub fn sync(&self) -> Result<(), String> {
        let socket = self.0.lock();
        let replied = send(&socket, SYNC, &[]).and_then(|()| receive(&socket));
        match replied.map_err(|error| error.to_string())? {
            Some((text, _)) if text == DONE => Ok(()),
            Some((cause, _)) => Err(cause),
            None => Err("the server has ended".to_owned()),
        }
    }
}

/// The server's end: carries out commands until the broker has ended. `sync` makes the volume durable.
pub fn serve_commands(socket: &OwnedFd, sync: impl Fn() -> Result<(), FsError>) {
    while let Ok(Some((text, _))) = receive(socket) {
        let reply = match text.as_str() {
            SYNC => sync().map_or_else(|error| error.to_string(), |()| DONE.to_owned()),
            _ => "not a command".to_owned(),
        };
        if let Err(error) = send(socket, &reply, &[]) {
            tracing::debug!(%error, "cannot reply to the broker");
        }
    }
}
