//! Opens a volume for one command.

use std::path::Path;

use steadfs::tools::printable_text;
use steadfs::{Options, Volume, VolumeDevice};
use steadfs_vfs::FileSystem;

use crate::args;
use crate::failure::Failure;
use crate::{partition, sandbox, worker};

/// What a command does with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// The same while this command has another volume on the same disk open for writing.
    ReadBeside,
    Write,
}

impl Access {
    pub fn open(self, image: &Path, options: &Options) -> Result<VolumeDevice, steadfs::Error> {
        match self {
            Self::Read => VolumeDevice::open_salvage(image, options),
            Self::ReadBeside => VolumeDevice::open_salvage_beside(image, options),
            Self::Write => VolumeDevice::open(image, options),
        }
    }
}

/// Opens the volume, calls `work`, and closes it; both must succeed. In the sandbox another process does the first and
/// the last.
pub fn with_volume<T>(
    image: &Path,
    open: &args::offline::Open,
    access: Access,
    work: impl FnOnce(&dyn FileSystem) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let (image, list) = &partition::resolve(image, &open.options.join(","), open.sandbox)?;
    if sandbox::is_on(open.sandbox)? {
        let task = worker::Task::Serve(access);
        return worker::with_volume(image, task, list, work);
    }
    let options = match access {
        Access::Write => Options::parse_for(list, image),
        Access::Read | Access::ReadBeside => Options::parse_to_read(list),
    };
    let options = options.map_err(Failure::plain)?;
    crate::log::start(false);
    let device = access.open(image, &options).map_err(Failure::plain)?;
    let volume = device.volume().map_err(Failure::plain)?;
    for warning in &volume.report().warnings {
        eprintln!("steadfs: {}: {}", image.display(), printable_text(warning));
    }
    let done = writable(&volume, access == Access::Write).and_then(|()| work(&*volume.fs()));
    match (done, volume.close()) {
        (Err(failure), _) => Err(failure),
        (Ok(_), Err(error)) => Err(Failure::plain(error)),
        (Ok(value), Ok(())) => Ok(value),
    }
}

fn writable(volume: &Volume, write: bool) -> Result<(), Failure> {
    match volume.report().read_only_because.first() {
        Some(reason) if write => Err(Failure::plain(format!(
            "{}: can only be read: {reason}",
            volume.path().display()
        ))),
        _ => Ok(()),
    }
}
