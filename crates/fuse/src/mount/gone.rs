//! The errors of calls on a mount whose server is gone.

use std::io;

use rustix::io::Errno;

/// Whether a call on a mount has failed because its server is gone, or went while the call waited for it.
#[must_use]
pub fn is_server_gone(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        // CONNREFUSED: it was killed before it answered INIT. CANCELED: a request that it had in service through
        // io_uring when it was killed.
        Some(Errno::NOTCONN | Errno::CONNABORTED | Errno::CONNREFUSED | Errno::CANCELED)
    )
}
