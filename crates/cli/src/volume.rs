//! Opens a volume for one command.

use std::path::Path;

use steadfs::tools::printable_text;
use steadfs::{KEYS_FILE, Options, StagedVolume, Volume, VolumeDevice};
use steadfs_vfs::FileSystem;

use crate::args;
use crate::failure::Failure;
use crate::stderr::say;
use crate::{partition, sandbox, worker};

/// What a command does with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    /// The same while this command has another volume on the same disk open for writing.
    ReadBeside,
    Write,
    /// The same, and all changes become durable together when the volume is closed, or none if it is not.
    Staged,
    /// The same, and all changes are dropped.
    Trial,
}

/// An open volume.
pub enum Opened {
    Direct(Box<Volume>),
    Staged(Box<StagedVolume>),
}

impl Opened {
    pub fn volume(&self) -> &Volume {
        match self {
            Self::Direct(volume) => volume,
            Self::Staged(staged) => staged.volume(),
        }
    }

    /// Closes the volume; all changes are durable then.
    pub fn close(self) -> Result<(), steadfs::Error> {
        match self {
            Self::Direct(volume) => volume.close(),
            Self::Staged(staged) => staged.apply(),
        }
    }

    /// Closes the volume after a failure: staged changes are dropped.
    pub fn abandon(self) -> Result<(), steadfs::Error> {
        match self {
            Self::Direct(volume) => volume.close(),
            Self::Staged(_) => Ok(()),
        }
    }
}

impl Access {
    /// Whether the volume is to be changed.
    pub fn is_write(self) -> bool {
        matches!(self, Self::Write | Self::Staged | Self::Trial)
    }

    pub fn volume(self, device: VolumeDevice) -> Result<Opened, steadfs::Error> {
        match self {
            Self::Staged => Ok(Opened::Staged(Box::new(device.staged_volume()?))),
            Self::Trial => Ok(Opened::Staged(Box::new(device.trial_volume()?))),
            _ => Ok(Opened::Direct(Box::new(device.volume()?))),
        }
    }

    pub fn open(self, image: &Path, options: &Options) -> Result<VolumeDevice, steadfs::Error> {
        let mut options = options.clone();
        options.set_brief();
        match self {
            Self::Read => VolumeDevice::open_salvage(image, &options),
            Self::ReadBeside => VolumeDevice::open_salvage_beside(image, &options),
            Self::Write => VolumeDevice::open(image, &options),
            Self::Staged | Self::Trial => VolumeDevice::open_staged(image, &options),
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
    let work = |fs: &dyn FileSystem| {
        let takes_keys = fs.read_control(KEYS_FILE).is_ok();
        if !open.keys.is_empty() && !takes_keys {
            let image = image.display();
            say(format_args!(
                "steadfs: {image}: has no encrypted files; --key-file has no effect there"
            ));
        }
        for key in open.keys.iter().filter(|_| takes_keys) {
            fs.write_control(KEYS_FILE, key.command().as_bytes())
                .map_err(|error| Failure::plain(format!("--key-file: {error}")))?;
        }
        work(fs)
    };
    let (image, list) = &partition::resolve(image, &open.options.join(","), open.sandbox)?;
    if sandbox::is_on(open.sandbox)? {
        let task = worker::Task::Serve(access);
        return worker::with_volume(image, task, list, work);
    }
    let options = match access {
        Access::Write | Access::Staged | Access::Trial => Options::parse_for(list, image),
        Access::Read | Access::ReadBeside => Options::parse_to_read(list),
    };
    let options = options.map_err(Failure::plain)?;
    crate::log::start(false);
    let device = access.open(image, &options).map_err(Failure::plain)?;
    let opened = access.volume(device).map_err(Failure::plain)?;
    let volume = opened.volume();
    for warning in &volume.report().warnings {
        say(format_args!(
            "steadfs: {}: {}",
            image.display(),
            printable_text(warning)
        ));
    }
    let done = writable(volume, access.is_write()).and_then(|()| work(&*volume.fs()));
    let closed = match done {
        Ok(_) => opened.close(),
        Err(_) => opened.abandon(),
    };
    match (done, closed) {
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
