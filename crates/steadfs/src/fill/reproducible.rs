//! Filling a volume whose bytes are a function of the tree and the origin.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use steadfs_block::{OpenOptions, SyncFileDevice};
use steadfs_ext4::CacheSizes;
use steadfs_rt::sim;
use steadfs_vfs::FsError;

use super::{Fill, FillError, FillSource, Filled, Origin, into};
use crate::nbd::is_uri;
use crate::probe::failed;
use crate::tools::Progress;
use crate::{Error, Options, Volume};

/// Cache size while a reproducible volume is filled. It decides when data is written back, so it does not depend on the
/// machine.
const REPRODUCIBLE_CACHE_BYTES: u64 = 64 << 20;

/// As [`super::fill`], from this origin.
pub(super) fn fill<P: Progress + 'static>(
    path: &Path,
    from: &Arc<FillSource>,
    (how, origin): (&Fill, Origin),
    mut progress: P,
) -> (Option<P>, Result<Filled, FillError>) {
    let device = match ReproducibleDevice::open(path, how.offset, origin) {
        Ok(device) => device,
        Err(error) => return (Some(progress), Err(error.into())),
    };
    let (from, how) = (Arc::clone(from), how.clone());
    let run = device.run(move |volume| {
        let done = volume
            .map_err(FillError::from)
            .and_then(|volume| into(&volume, &from, &how, &mut progress));
        (Some(progress), done)
    });
    run.unwrap_or_else(|error| (None, Err(error)))
}

/// An open image or device, for the work on a reproducible volume.
pub struct ReproducibleDevice {
    device: SyncFileDevice,
    path: PathBuf,
    options: Options,
    origin: Origin,
}

impl ReproducibleDevice {
    /// Opens the device of a volume that begins at `offset`. Nothing of its content is interpreted yet.
    ///
    /// # Errors
    /// Those of opening.
    pub fn open(path: &Path, offset: u64, origin: Origin) -> Result<Self, Error> {
        if is_uri(path) {
            let why = "a reproducible volume (SOURCE_DATE_EPOCH) is made in a file; nbdcopy(1) copies it to a server";
            return Err(failed(path, FsError::BadOption(why.to_owned())));
        }
        let mut options = Options::default();
        options.offset = offset;
        // The image's name is no input of its bytes.
        options.ext4.protection.device = Some(Vec::new());
        let open = OpenOptions {
            direct: false,
            offset,
            ..OpenOptions::default()
        };
        Ok(Self {
            device: SyncFileDevice::open(path, &open)?,
            path: path.to_owned(),
            options,
            origin,
        })
    }

    /// Calls `work` on the volume in a simulation, all of whose I/O runs in the calling thread.
    ///
    /// # Errors
    /// [`FillError::Simulation`].
    pub fn run<T: 'static>(
        self,
        work: impl FnOnce(Result<Volume, Error>) -> T + 'static,
    ) -> Result<T, FillError> {
        let config = sim::Config {
            seed: steadfs_base::uuid_seed(self.origin.uuid),
            max_time: Duration::MAX,
            stall_bound: Duration::MAX,
            preempt: 0,
            calendar: Some(self.origin.time),
            ..sim::Config::default()
        };
        let path = self.path.clone();
        let run = sim::try_run(config, move || {
            let sizes = CacheSizes::of(REPRODUCIBLE_CACHE_BYTES);
            let device = Arc::new(self.device);
            work(Volume::on(device, &self.path, sizes, &self.options))
        });
        match run {
            Ok(report) => Ok(report.value),
            Err(failure) => {
                let why = failure.to_string();
                Err(FillError::Simulation { path, why })
            }
        }
    }
}
