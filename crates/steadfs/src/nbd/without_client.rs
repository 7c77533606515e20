//! NBD URIs in a build without the feature `nbd`: they are known as such, and refused.

use std::io;
use std::path::Path;

use steadfs_block::{Bio, Device, Done, Geometry, OpenError, OpenOptions};

const SCHEMES: [&str; 4] = ["nbd://", "nbd+unix://", "nbds://", "nbds+unix://"];

/// Whether an argument that names an image is the URI of an export of an NBD server.
pub fn is_uri(argument: &Path) -> bool {
    let bytes = argument.as_os_str().as_encoded_bytes();
    SCHEMES
        .iter()
        .any(|scheme| bytes.starts_with(scheme.as_bytes()))
}

/// Refuses the export of an NBD URI.
pub(crate) fn open(path: &Path, _: &OpenOptions) -> Result<NbdDevice, OpenError> {
    let why = "NBD servers need the feature nbd of the crate steadfs";
    Err(OpenError::Io {
        path: path.to_owned(),
        what: "cannot be opened",
        cause: io::Error::new(io::ErrorKind::Unsupported, why),
    })
}

/// An export, which no value of this build is.
pub(crate) enum NbdDevice {}

impl NbdDevice {
    pub(crate) fn start_threads(&self) -> io::Result<()> {
        match *self {}
    }

    pub(crate) fn describe(&self) -> String {
        match *self {}
    }
}

impl Device for NbdDevice {
    fn geometry(&self) -> &Geometry {
        match *self {}
    }

    fn start(&self, _: Bio, _: Done) {
        match *self {}
    }
}
