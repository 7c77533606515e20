//! What is done with images that are not opened: making, probing and checking volumes, listing partitions.

use std::path::{Path, PathBuf};

use pyo3::exceptions::{PyFileExistsError, PyValueError};
use pyo3::prelude::*;
use steadfs::image::Window;
use steadfs::{
    Error, F2fsFormatOptions, FormatOptions, Options, VolumeDevice, format_f2fs_until, format_until,
};

use crate::error::of_volume;
use crate::signals::Signals;
use crate::volume::options_of;

/// The kind of volume on an image.
#[pyfunction]
pub fn probe(
    py: Python<'_>,
    image: PathBuf,
    partition: Option<String>,
    options: &str,
) -> PyResult<&'static str> {
    py.detach(|| {
        let options = options_of(&image, options, partition, false)?;
        let kind = steadfs::probe(&image, &options).map_err(|error| of_volume(&error))?;
        Ok(kind.name())
    })
}

/// Number, first byte, length, type, name, content, whether that is a volume, its label.
type Part = (
    u32,
    Option<u64>,
    u64,
    String,
    String,
    Option<String>,
    bool,
    String,
);

/// The partitions of a disk: the scheme of its table, what is wrong with that, and the partitions.
#[pyfunction]
pub fn partitions(
    py: Python<'_>,
    image: PathBuf,
) -> PyResult<(&'static str, Option<String>, Vec<Part>)> {
    let table = py.detach(|| VolumeDevice::open_disk(&image)?.partitions());
    let table = table.map_err(|error| of_volume(&error))?;
    let has_places = table.has_places;
    let part = |part: steadfs::image::Partition| {
        let start = (has_places && part.map.is_none()).then_some(part.start);
        (
            part.number,
            start,
            part.bytes,
            part.kind,
            part.name,
            part.holds,
            part.is_volume,
            part.label,
        )
    };
    let flaw = table.flaw.map(|flaw| flaw.into_owned());
    Ok((
        table.scheme,
        flaw,
        table.partitions.into_iter().map(part).collect(),
    ))
}

/// The issues of a volume: those that are kept, how many there are beyond these, and the features that were not checked.
#[pyfunction]
pub fn check(
    py: Python<'_>,
    image: PathBuf,
    partition: Option<String>,
    options: &str,
) -> PyResult<(Vec<String>, u64, Vec<String>)> {
    py.detach(|| {
        let options = options_of(&image, options, partition, false)?;
        let signals = Signals::default();
        let checked = VolumeDevice::open_salvage(&image, &options)
            .and_then(|device| device.stopped_by(signals.stop()).check(&mut |_| {}));
        let checked = signals.or(checked.map_err(|error| of_volume(&error)))?;
        let skipped = checked.skipped().iter().map(|name| name.to_string());
        Ok((checked.issues(), checked.more(), skipped.collect()))
    })
}

/// Fails if there is anything that is known.
fn check_empty(image: &Path, partition: Option<&str>) -> PyResult<()> {
    let mut options = Options::default();
    options.partition = partition.map(str::to_owned);
    let found = match steadfs::probe(image, &options) {
        Ok(kind) => format!("an {} volume", kind.name()),
        Err(Error::NoVolume { found, .. }) if found.is_known() => found.to_string(),
        Err(Error::Volume { error, .. }) => format!("a volume ({error})"),
        // What else is wrong, making the volume reports.
        Err(_) => return Ok(()),
    };
    let why = format!("holds {found}; overwrite=True replaces it");
    Err(PyFileExistsError::new_err((
        17,
        why,
        image.as_os_str().to_owned(),
    )))
}

/// The part of a disk that is a partition of this name.
fn window(image: &Path, which: &str) -> PyResult<Window> {
    let disk = VolumeDevice::open_disk(image);
    let found = disk.and_then(|disk| disk.partition_window(which));
    let found = found.map_err(|error| of_volume(&error))?;
    found.ok_or_else(|| PyValueError::new_err("no volume can be made in this kind of partition"))
}

/// How a volume is made; what is `None` follows from its size.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Wanted {
    label: String,
    uuid: Option<String>,
    features: String,
    block_size: Option<u32>,
    inodes: Option<u64>,
    inode_size: Option<u16>,
    reserved_percent: Option<f64>,
    root_owner: Option<(u32, u32)>,
}

fn invalid(error: impl std::fmt::Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

impl Wanted {
    fn ext(self, kind: &str) -> PyResult<FormatOptions> {
        let mut options = FormatOptions::default();
        options.set_kind(kind).map_err(invalid)?;
        if let Some(uuid) = &self.uuid {
            options.set_uuid(uuid).map_err(invalid)?;
        }
        let reserved = self.reserved_percent;
        Ok(FormatOptions {
            label: self.label,
            features: self.features,
            block_size: self.block_size,
            inodes: self.inodes,
            inode_size: self.inode_size,
            reserved_percent: reserved.unwrap_or(options.reserved_percent),
            root_owner: self.root_owner,
            ..options
        })
    }

    fn f2fs(self) -> PyResult<F2fsFormatOptions> {
        let not_of_f2fs = [
            ("block_size", self.block_size.is_some()),
            ("inodes", self.inodes.is_some()),
            ("inode_size", self.inode_size.is_some()),
            ("reserved_percent", self.reserved_percent.is_some()),
        ];
        if let Some((name, _)) = not_of_f2fs.iter().find(|(_, given)| *given) {
            return Err(invalid(format!("f2fs has no {name}: leave it out")));
        }
        let mut options = F2fsFormatOptions {
            label: self.label,
            root_owner: self.root_owner.unwrap_or_default(),
            ..F2fsFormatOptions::default()
        };
        options.set_features(&self.features).map_err(invalid)?;
        if let Some(uuid) = &self.uuid {
            options.set_uuid(uuid).map_err(invalid)?;
        }
        Ok(options)
    }
}

/// Makes a volume.
#[pyfunction]
pub fn format(
    py: Python<'_>,
    image: PathBuf,
    size: Option<u64>,
    kind: &str,
    partition: Option<String>,
    overwrite: bool,
    wanted: Wanted,
) -> PyResult<()> {
    py.detach(|| {
        if !overwrite {
            check_empty(&image, partition.as_deref())?;
        }
        let part = partition.map(|which| window(&image, &which)).transpose()?;
        let place = (part, size);
        let signals = Signals::default();
        let stop = signals.stop();
        let made = match kind {
            "f2fs" => format_f2fs_until(&image, place, &wanted.f2fs()?, Some(&stop)).map(drop),
            _ => format_until(&image, place, &wanted.ext(kind)?, Some(&stop)).map(drop),
        };
        signals.or(made.map_err(|error| of_volume(&error)))
    })
}
