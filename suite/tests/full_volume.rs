//! Full mounted volumes: what was acknowledged stays, and what does not fit is reported.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use steadfs_suite::generate::Numbers;
use steadfs_suite::{Compare, Image, LoopDevice, Scratch, SteadMount, Tree, run, steadfs};

const MIB: u64 = 1 << 20;

/// The kernel drops pages of a shared mapping that it could not write back; nothing can recover them while the volume
/// stays mounted.
#[test]
fn lost_pages_of_a_mapping_are_reported_and_do_not_keep_a_volume_mounted() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "small.img", 24 * MIB, &["-t", "ext4", "-m", "0"]);
    let device = LoopDevice::attach(image.path(), false);
    let mount = SteadMount::new(&scratch, device.path(), "");
    let mut fill = File::create(mount.join("fill")).unwrap();
    while fill.write_all(&[7; 1024]).is_ok() {}
    drop(fill);
    let hole = mount.join("hole");
    File::create(&hole).unwrap().set_len(4 * MIB).unwrap();
    let named = format!("--filename={}", hole.display());
    let how = [
        "--name=map",
        "--ioengine=mmap",
        "--rw=write",
        "--size=4M",
        "--fallocate=none",
        "--thread",
    ];
    run("fio", how.into_iter().chain([named.as_str()])).expect(0);
    let output = steadfs(["umount".as_ref(), mount.root().as_os_str()]).expect(0);
    assert!(
        output.err.contains("No space left") && output.err.contains("mappings"),
        "{}",
        output.err
    );
    assert_eq!(mount.wait(), 0);
    drop(device);
    image.check_clean();
}

/// Linux' FUSE fetches no attributes after a call that has failed.
#[test]
fn the_blocks_of_an_allocation_that_failed_are_shown() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "small.img", 24 * MIB, &["-t", "ext4", "-m", "0"]);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let free = || rustix::fs::statvfs(mount.root()).unwrap().f_bavail;
    let file = File::create(mount.join("file")).unwrap();
    file.sync_all().unwrap();
    let before = free();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    let failed = rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 1 << 30);
    assert_eq!(failed, Err(Errno::NOSPC));
    let block = rustix::fs::statvfs(mount.root()).unwrap().f_frsize;
    let taken = (before - free()) * block;
    assert!(taken > MIB, "{taken}");
    assert_eq!(file.metadata().unwrap().blocks() * 512, taken);
    drop(file);
    mount.unmount();
    image.check_clean();
}

#[test]
fn a_full_volume_keeps_what_it_acknowledged() {
    fill_and_empty(&["-t", "ext4", "-m", "0"]);
}

#[test]
fn a_full_volume_with_clusters_keeps_what_it_acknowledged() {
    fill_and_empty(&["-t", "ext4", "-m", "0", "-O", "bigalloc", "-C", "16384"]);
}

fn fill_and_empty(options: &[&str]) {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "small.img", 24 * MIB, options);
    let mount = SteadMount::new(&scratch, image.path(), "");
    let free = || rustix::fs::statvfs(mount.root()).unwrap().f_bfree;
    File::open(mount.root()).unwrap().sync_all().unwrap();
    let before = free();
    let mut numbers = Numbers::new(9);
    let mut kept = Vec::new();
    for round in 0..3 {
        let dir = mount.join(&format!("round{round}"));
        fs::create_dir(&dir).unwrap();
        loop {
            let path = dir.join(format!("{}", kept.len()));
            let len = usize::try_from(numbers.below(200_000)).unwrap();
            let bytes = numbers.bytes(len);
            // What write(2) accepted is kept, with or without an fsync before the volume is full.
            match fs::write(&path, &bytes) {
                Ok(()) => kept.push((path, bytes)),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::StorageFull);
                    let _ = fs::remove_file(&path);
                    break;
                }
            }
        }
        // Half of it is removed, and its space must become free.
        let mut n = 0;
        kept.retain(|(path, _)| {
            n += 1;
            n % 2 == 0 || fs::remove_file(path).is_err()
        });
    }
    for (path, _) in &kept {
        File::open(path).unwrap().sync_all().unwrap();
    }
    for (path, bytes) in &kept {
        assert!(fs::read(path).unwrap() == *bytes, "{}", path.display());
    }
    let tree = Tree::of(mount.root());
    mount.unmount();
    image.check_clean();
    let mount = SteadMount::new(&scratch, image.path(), "");
    tree.assert_same(
        &Tree::of(mount.root()),
        Compare::COPY,
        "after a full volume",
    );
    for round in 0..3 {
        fs::remove_dir_all(mount.join(&format!("round{round}"))).unwrap();
    }
    let folder = File::open(mount.root()).unwrap();
    folder.sync_all().unwrap();
    drop(folder);
    steadfs(["sync".as_ref(), mount.root().as_os_str()]).expect(0);
    let after = rustix::fs::statvfs(mount.root()).unwrap().f_bfree;
    assert_eq!(after, before, "blocks were lost");
    mount.unmount();
    image.check_clean();
}

/// The kernel turns a short direct write into EIO, so a volume with space for a part returns ENOSPC.
#[test]
fn a_direct_write_that_fits_in_part_fails_with_enospc() {
    #[repr(align(4096))]
    struct Page([u8; 4096]);
    const PAGES: usize = 32;

    let scratch = Scratch::new();
    for kind in ["ext4", "f2fs"] {
        let image = Image::empty(&scratch, kind, 64 * MIB);
        steadfs(["format", "-t", kind, image.path().to_str().unwrap()]).expect(0);
        let mount = SteadMount::new(&scratch, image.path(), "");
        let mut fill = File::create(mount.join("fill")).unwrap();
        for len in [1 << 20, 4096] {
            while fill.write_all(&vec![7; len]).is_ok() {}
        }
        let len = fill.metadata().unwrap().len();
        fill.set_len(len - 10 * 4096).unwrap();
        fill.sync_all().unwrap();
        let file = File::create(mount.join("file")).unwrap();
        file.set_len(MIB).unwrap();
        let flags = OFlags::DIRECT | OFlags::WRONLY;
        let direct = rustix::fs::open(mount.join("file"), flags, Mode::empty()).unwrap();
        let pages: Vec<Page> = (0..PAGES).map(|_| Page([9; 4096])).collect();
        let bytes: Vec<_> = pages.iter().map(|p| std::io::IoSlice::new(&p.0)).collect();
        let refused = rustix::io::pwritev(&direct, &bytes, 0);
        assert_eq!(refused, Err(rustix::io::Errno::NOSPC), "{kind}");
        assert_eq!(rustix::io::pwritev(&direct, &bytes[..1], 0), Ok(4096));
        file.sync_all().unwrap();
        let content = fs::read(mount.join("file")).unwrap();
        assert_eq!(content.len() as u64, MIB);
        assert!(content[..4096] == [9; 4096]);
        assert!(content[PAGES * 4096..].iter().all(|byte| *byte == 0));
        drop((fill, file, direct));
        mount.unmount();
    }
}
