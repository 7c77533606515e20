//! The client of NBD servers.

use std::path::Path;

use steadfs_block::{Engine, OpenError, OpenOptions};
use steadfs_nbd::{NbdError, NbdOptions};

pub(crate) use steadfs_nbd::NbdDevice;
pub use steadfs_nbd::is_uri;

/// Opens the export of an NBD URI. No thread is started, and nothing of its content is interpreted.
pub(crate) fn open(path: &Path, how: &OpenOptions) -> Result<NbdDevice, OpenError> {
    if how.engine == Engine::Uring {
        return Err(OpenError::NoUring {
            path: path.to_owned(),
            reason: "an NBD server is reached by a socket".to_owned(),
        });
    }
    let options = NbdOptions {
        read_only: how.read_only,
        offset: how.offset,
        sizelimit: how.sizelimit,
    };
    NbdDevice::open_idle(path, &options).map_err(|error| failed(path, error))
}

fn failed(path: &Path, error: NbdError) -> OpenError {
    OpenError::Io {
        path: path.to_owned(),
        what: "cannot be opened",
        cause: error.into_io(),
    }
}
