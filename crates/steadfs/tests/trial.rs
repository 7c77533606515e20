//! A trial of changes has the result that the changes have.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::ErrorKind;

use steadfs::{F2fsFormatOptions, Options, StagedVolume, Volume, VolumeDevice};

/// What becomes of a file that replaces the largest one of a volume.
fn replaced(opened: StagedVolume, big: usize) -> Result<(), ErrorKind> {
    let volume = opened.volume();
    volume.remove_file("/big").unwrap();
    volume
        .write("/new", vec![2; big])
        .map_err(|error| error.kind())?;
    let synced = volume.sync();
    synced.map_err(|error| error.kind())?;
    opened.apply().unwrap();
    Ok(())
}

/// With disabled checkpoints, by which the changes are one, freed blocks are not used again.
#[test]
fn a_trial_has_no_more_space_on_f2fs_than_the_changes() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    steadfs::format_f2fs(&image, Some(64 << 20), &F2fsFormatOptions::default()).unwrap();
    let volume = Volume::open(&image).unwrap();
    let usage = volume.usage().unwrap();
    // Twice as much does not fit.
    let bytes = usage.blocks_available * u64::from(usage.block_size) * 6 / 10;
    let big = usize::try_from(bytes).unwrap();
    volume.write("/big", vec![1; big]).unwrap();
    volume.close().unwrap();
    drop(volume);
    let open = || VolumeDevice::open_staged(&image, &Options::default()).unwrap();
    let as_written = Volume::open(&image).unwrap();
    as_written.remove_file("/big").unwrap();
    as_written.write("/big", vec![2; big]).unwrap();
    as_written.close().unwrap();
    drop(as_written);
    let before = std::fs::read(&image).unwrap();
    let trial = replaced(open().trial_volume().unwrap(), big);
    assert_eq!(trial, Err(ErrorKind::StorageFull));
    assert_eq!(replaced(open().staged_volume().unwrap(), big), trial);
    // In one that fits, all is done but the writes.
    let fits = open().trial_volume().unwrap();
    fits.volume().rename("/big", "/new").unwrap();
    fits.apply().unwrap();
    assert!(std::fs::read(&image).unwrap() == before);
}
