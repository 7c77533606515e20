//! Why a device on a server could not be opened.

use std::io;
use std::time::Duration;

use thiserror::Error;

/// Longest text of a server that is shown, in characters.
const TEXT_MAX: usize = 200;

/// Why a device on a server could not be opened.
#[derive(Debug, Error)]
pub enum NbdError {
    /// The URI is malformed, or names what is not supported.
    #[error("{0}")]
    Uri(String),
    /// The host of the URI has no address, or the server does not accept connections.
    #[error("cannot connect to {to}: {cause}")]
    Connect {
        /// The server.
        to: String,
        /// The system's error.
        cause: io::Error,
    },
    /// The server did not complete the negotiation in time.
    #[error(
        "no answer of the NBD server within {} s (a server that takes one client at a time does not answer a second one)",
        .0.as_secs()
    )]
    Late(Duration),
    /// The connection failed.
    #[error("the connection to the NBD server failed: {0}")]
    Lost(io::Error),
    /// The connection cannot be encrypted, or the server is not the one that it should be.
    #[error("TLS with the NBD server failed: {0}")]
    Tls(String),
    /// The server sent what the protocol does not allow.
    #[error("the NBD server breaks the protocol: {0}")]
    Protocol(String),
    /// The server refused the export.
    #[error("{0}")]
    Refused(String),
    /// The export cannot be used.
    #[error("the export {0}")]
    Unusable(String),
    /// The export is read-only, and was to be written.
    #[error("the NBD server takes no writes to this export")]
    ReadOnly,
}

impl NbdError {
    /// As an error of the system, for callers that distinguish kinds.
    pub fn into_io(self) -> io::Error {
        match self {
            Self::Connect { cause, to } => {
                io::Error::new(cause.kind(), format!("cannot connect to {to}: {cause}"))
            }
            Self::ReadOnly => io::Error::new(io::ErrorKind::ReadOnlyFilesystem, self.to_string()),
            Self::Late(_) => io::Error::new(io::ErrorKind::TimedOut, self.to_string()),
            other => io::Error::other(other.to_string()),
        }
    }
}

/// A text of a server, bounded and without control characters.
pub(crate) fn shown(text: &[u8]) -> String {
    let text = String::from_utf8_lossy(text);
    let plain = |c: char| if c.is_control() { '?' } else { c };
    text.chars().take(TEXT_MAX).map(plain).collect()
}
