//! Data on its way to an ext4 volume: reservations, batches, failures. The image is judged by e2fsck.

use steadfs_block::MemDevice;

use crate::disk::Ino;
use crate::disk::test_images::Image;

mod batches;
mod beside_log;
mod early;
mod errors;
mod evicted;
mod full;
mod numbers;
mod reservations;
mod stopping;
mod throttled;
mod truncated;

/// The first inode that `mke2fs -d` gives to a file when the directory has one.
const FILE: Ino = Ino(12);

fn image_with_file(options: &[&str], size: &str) -> Image {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let mut all = options.to_vec();
    all.extend(["-d", dir.path().to_str().unwrap()]);
    Image::make(&all, size)
}

fn judge(device: &MemDevice, image: &Image, what: &str) {
    device.save(&image.path()).unwrap();
    let output = crate::disk::test_images::judge("e2fsck")
        .args(["-fn"])
        .arg(image.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{what}: {text}");
}
