//! The limit of an archive's data holds for what cannot be read, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use steadfs::tools::{Quiet, Selection, ToolError, owner_cx, resolve, tar_out};
use steadfs::{FormatOptions, VerityOptions, Volume};

const SIZE: usize = 8 << 20;
const LIMIT: u64 = 1 << 20;

#[test]
fn a_file_that_cannot_be_read_is_not_filled_up_without_limit() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let options = FormatOptions {
        features: "verity".to_owned(),
        block_size: Some(4096),
        ..FormatOptions::default()
    };
    steadfs::format(&image, Some(64 << 20), &options).unwrap();
    let mark = b"the content of the first block";
    let mut content = vec![7; SIZE];
    content[..mark.len()].copy_from_slice(mark);
    let volume = Volume::open(&image).unwrap();
    volume.write("/file", &content).unwrap();
    let (fs, cx) = (volume.fs(), owner_cx());
    let file = resolve(&*fs, &cx, b"/file", false).unwrap();
    fs.enable_verity(&cx, file.ino(), &VerityOptions::default())
        .unwrap();
    drop(file);
    volume.close().unwrap();
    drop((fs, volume));
    // Its first block is not what was hashed.
    let mut bytes = fs::read(&image).unwrap();
    let at = bytes
        .windows(mark.len())
        .position(|part| part == mark)
        .unwrap();
    bytes[at] ^= 1;
    fs::write(&image, bytes).unwrap();
    let volume = Volume::open(&image).unwrap();
    let (fs, mut archive) = (volume.fs(), Vec::new());
    let (all, out) = (Selection::default(), (&mut archive as _, Path::new("-")));
    let done = tar_out(&*fs, &cx, b"/", Some(LIMIT), all, out, &mut Quiet);
    assert!(matches!(done, Err(ToolError::TooMuch(LIMIT))), "{done:?}");
    assert!(archive.len() < 2 * LIMIT as usize, "{}", archive.len());
}
