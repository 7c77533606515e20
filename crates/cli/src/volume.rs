//! Opens a volume for one command.

use std::path::Path;

use steadfs::tools::printable_text;
use steadfs::{Options, Volume};
use steadfs_vfs::FileSystem;

use crate::args;
use crate::failure::Failure;
use crate::{sandbox, worker};

/// Opens the volume, calls `work`, and closes it; both must succeed. In the sandbox another process does the first and
/// the last.
pub fn with_volume<T>(
    image: &Path,
    open: &args::Open,
    write: bool,
    work: impl FnOnce(&dyn FileSystem) -> Result<T, Failure>,
) -> Result<T, Failure> {
    if sandbox::is_on(open.sandbox)? {
        let task = match write {
            true => worker::Task::Write,
            false => worker::Task::Read,
        };
        return worker::with_volume(image, task, &open.options.join(","), work);
    }
    let list = open.options.join(",");
    let options = match write {
        true => Options::parse_for(&list, image),
        false => Options::parse_to_read(&list),
    };
    let mut options = options.map_err(Failure::plain)?;
    if !write {
        options.set_salvage();
    }
    crate::log::start(false);
    let volume = Volume::open(image, &options).map_err(Failure::plain)?;
    for warning in &volume.report().warnings {
        eprintln!("steadfs: {}: {}", image.display(), printable_text(warning));
    }
    let done = writable(&volume, write).and_then(|()| work(&*volume.fs()));
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
