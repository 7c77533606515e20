use std::path::Path;
use std::sync::Arc;

use steadfs_block::{MemDevice, Queue, QueueOptions};

use super::*;
use crate::disk::Layout;
use crate::test_support::tree::make_tree;
use crate::test_support::{Image, assert_clean, run};

fn queue_on(device: &Arc<MemDevice>) -> Queue {
    Queue::new(Arc::clone(device) as _, QueueOptions::default())
}

fn extend(path: &Path, mib: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    if file.metadata().unwrap().len() < mib << 20 {
        file.set_len(mib << 20).unwrap();
    }
}

/// Resizes the image to `mib` MiB, and extends it before if it is smaller.
fn resize_image(image: &Image, mib: u64, keep_tables: bool) -> Result<ResizeReport> {
    extend(&image.path(), mib);
    let device = image.device();
    let options = ResizeOptions {
        size: Some(mib << 20),
        keep_tables,
    };
    let report = resize(&queue_on(&device), &*device, options)?;
    device.save(&image.path()).unwrap();
    Ok(report)
}

fn filled(options: &[&str], mib: u64) -> Image {
    let image = Image::make(options, mib);
    let tree = image.beside("tree");
    make_tree(&tree);
    image.load(&tree, &[]);
    image
}

/// The layout of an image and the counts of its checkpoint.
fn geometry(path: &Path) -> (Layout, [u64; 4]) {
    let device = Arc::new(MemDevice::load(path).unwrap());
    let queue = queue_on(&device);
    let layout = crate::read_superblock(&queue).unwrap().layout().clone();
    let cp = crate::checkpoint::load(&queue, &layout).unwrap().checkpoint;
    let kept = [cp.overprovision_segments, cp.reserved_segments].map(u64::from);
    (layout, [cp.user_blocks, cp.valid_blocks, kept[0], kept[1]])
}

/// What resize.f2fs makes of a copy of the image.
fn by_resize_f2fs(image: &Image, mib: u64, options: &[&str]) -> (Layout, [u64; 4]) {
    let copy = image.beside("copy");
    std::fs::copy(image.path(), &copy).unwrap();
    extend(&copy, mib);
    let sectors = (mib << 11).to_string();
    let args = [options, &["-t", &sectors, copy.to_str().unwrap()]].concat();
    run("resize.f2fs", &args);
    geometry(&copy)
}

#[test]
fn a_grown_volume_is_the_one_of_resize_f2fs() {
    let all = "extra_attr,inode_checksum,sb_checksum,project_quota,quota,lost_found,encrypt";
    for (options, from, to) in [
        (&["-O", all][..], 128, 1111),
        (&["-s", "2", "-z", "2"], 260, 1400),
    ] {
        let image = filled(options, from);
        let theirs = by_resize_f2fs(&image, to, &[]);
        let report = resize_image(&image, to, false).unwrap();
        assert!(report.moved > 0 && !report.is_unchanged(), "{options:?}");
        assert_eq!(geometry(&image.path()), theirs, "{options:?}");
        assert_clean(&image, &options);
    }
}

#[test]
fn volumes_grow_to_other_tables() {
    // The second one has large bitmaps; the third one has room in its tables.
    for (options, from, to) in [(&[][..], 64, 12_000), (&["-i"], 64, 3000), (&[], 100, 150)] {
        let image = Image::make(options, from);
        let report = resize_image(&image, to, false).unwrap();
        assert_eq!(report.blocks, to << 8);
        assert_clean(&image, &(from, to));
        let again = resize_image(&image, to, false).unwrap();
        assert!(again.is_unchanged() && again.user_blocks == report.user_blocks);
    }
}

#[test]
fn volumes_shrink_as_far_as_their_content_allows() {
    let image = filled(&[], 1500);
    let (before, _) = geometry(&image.path());
    resize_image(&image, 200, false).unwrap();
    let (after, _) = geometry(&image.path());
    assert_eq!(
        (after.main_start, after.max_nid),
        (before.main_start, before.max_nid)
    );
    run("truncate", &["-s", "200M", image.path().to_str().unwrap()]);
    assert_clean(&image, &"shrunk");
    let error = resize_image(&image, 64, false).unwrap_err();
    assert!(error.to_string().contains("blocks in use"), "{error}");
    assert_clean(&image, &"refused");
    // It grows again where its tables are, and then with larger ones.
    resize_image(&image, 1400, true).unwrap();
    assert_clean(&image, &"grown in place");
    let error = resize_image(&image, 9000, true).unwrap_err();
    assert!(error.to_string().contains("resize without -s"), "{error}");
    resize_image(&image, 9000, false).unwrap();
    assert_clean(&image, &"grown");
}
