//! Compressed f2fs volumes, as in images of phones: filled by a sload.f2fs with compression, read and changed by us.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::IFlags;
use rustix::io::Errno;
use steadfs_suite::f2fs::check_clean;
use steadfs_suite::generate::Numbers;
use steadfs_suite::{Image, Scratch, SteadMount, run, steadfs, succeed};

/// Files that compress well, a little, and not at all, with sizes around cluster boundaries.
fn source(scratch: &Scratch) -> std::path::PathBuf {
    let top = scratch.folder("source");
    fs::create_dir(top.join("dir")).unwrap();
    let mut numbers = Numbers::new(7);
    let text: Vec<u8> = (0..400_000_u64)
        .flat_map(|n| format!("{} ", n * n % 977).into_bytes())
        .collect();
    for (n, size) in [1, 100, 4096, 16_384, 16_385, 65_536, 70_000, 1_000_000]
        .iter()
        .enumerate()
    {
        fs::write(top.join(format!("text{n}")), &text[n..n + size]).unwrap();
        fs::write(top.join(format!("dir/noise{n}")), numbers.bytes(*size)).unwrap();
        let mixed: Vec<u8> = text[..*size]
            .chunks(9000)
            .flat_map(|chunk| [chunk.to_vec(), numbers.bytes(5000)].concat())
            .collect();
        fs::write(top.join(format!("dir/mixed{n}")), mixed).unwrap();
    }
    fs::write(top.join("zeros"), vec![0; 300_000]).unwrap();
    top
}

fn is_compressed(path: &Path) -> bool {
    let file = fs::File::open(path).unwrap();
    rustix::fs::ioctl_getflags(&file)
        .unwrap()
        .contains(IFlags::COMPRESSED)
}

#[test]
fn compressed_files_of_sload_are_read_back() {
    let scratch = Scratch::new();
    let top = source(&scratch);
    let judge = "sload.f2fs-compressing/sload.f2fs";
    for (n, options) in [
        &["-a", "lz4"][..],
        &["-a", "lz4", "-L", "4"],
        &["-a", "lzo"],
        &["-a", "lzo", "-L", "8", "-r"],
        &["-a", "lz4", "-r", "-m", "2"],
    ]
    .iter()
    .enumerate()
    {
        let image = Image::empty(&scratch, &format!("{n}.img"), 128 << 20);
        let path = image.path().to_str().unwrap();
        let features = "extra_attr,inode_checksum,compression";
        succeed("mkfs.f2fs", ["-f", "-O", features, path]);
        let what = [
            &["-P", "-c"],
            *options,
            &["-f", top.to_str().unwrap(), path],
        ]
        .concat();
        let output = succeed(judge, what);
        check_clean(image.path(), "compressed");
        // Without a mount, as for taking apart the image of a phone.
        let out = scratch.join(&format!("out{n}"));
        steadfs(["extract", &format!("{path}:/"), out.to_str().unwrap()]).expect(0);
        run("diff", ["-r".as_ref(), top.as_os_str(), out.as_os_str()]).expect(0);

        let mount = SteadMount::new(&scratch, image.path(), "");
        let large = mount.join("text7");
        assert!(is_compressed(&large), "{options:?}: {}", output.out);
        run(
            "diff",
            ["-r".as_ref(), top.as_os_str(), mount.root().as_os_str()],
        )
        .expect(0);
        if options.contains(&"-r") {
            // sload.f2fs has released what it saved: the file is only read, until it is made anew.
            let refused = fs::OpenOptions::new()
                .write(true)
                .open(&large)
                .and_then(|file| file.write_at(b"new", 0));
            assert_eq!(
                refused.map_err(|e| Errno::from_io_error(&e)),
                Err(Some(Errno::PERM)),
                "{options:?}"
            );
            fs::write(&large, fs::read(top.join("text6")).unwrap()).unwrap();
        }
        let written = overwrite(&large);
        fs::rename(mount.join("zeros"), mount.join("dir/nothing")).unwrap();
        fs::write(mount.join("plain"), vec![3; 100_000]).unwrap();
        mount.unmount();
        check_clean(image.path(), "compressed");
        let mount = SteadMount::new(&scratch, image.path(), "ro");
        assert!(fs::read(mount.join("text7")).unwrap() == written);
        mount.unmount();
    }
}

/// Changes a file's bytes here and there, appends and cuts; its content then.
fn overwrite(path: &Path) -> Vec<u8> {
    let mut content = fs::read(path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    for at in (0..content.len() - 5000).step_by(30_001) {
        file.write_all_at(&[at as u8; 4500], at as u64).unwrap();
        content[at..at + 4500].fill(at as u8);
    }
    let end = content.len();
    content.extend_from_within(..9000);
    file.write_all_at(&content[end..], end as u64).unwrap();
    let size = content.len() - 1234;
    file.set_len(size as u64).unwrap();
    content.truncate(size);
    file.sync_all().unwrap();
    content
}

/// The users' programs: flags that directories pass on, options, and giving back what compression saves.
#[test]
fn compressed_files_are_made_and_released() {
    let scratch = Scratch::new();
    let image = Image::empty(&scratch, "made.img", 128 << 20);
    let path = image.path().to_str().unwrap();
    let features = "extra_attr,inode_checksum,compression";
    succeed("mkfs.f2fs", ["-f", "-O", features, path]);
    let options = "compress_algorithm=zstd,compress_chksum,compress_extension=log";
    let mount = SteadMount::new(&scratch, image.path(), options);
    let text: Vec<u8> = (0..200_000_u64)
        .flat_map(|n| format!("{} ", n * n % 977).into_bytes())
        .collect();
    let dir = mount.join("dir");
    fs::create_dir(&dir).unwrap();
    succeed("chattr", ["+c".as_ref(), dir.as_os_str()]);
    for name in ["dir/file", "by-name.log"] {
        let file = mount.join(name);
        let said = |command: &str| {
            let out = succeed("f2fs_io", [command.as_ref(), file.as_os_str()]).out;
            let digits = out.split(|c: char| !c.is_ascii_digit());
            digits
                .filter_map(|n| n.parse().ok())
                .next()
                .unwrap_or(0_u64)
        };
        fs::write(&file, &text).unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
        assert!(is_compressed(&file), "{name}");
        let saved = said("get_cblocks");
        assert!(saved > 100, "{name}: {saved}");
        let before = fs::metadata(&file).unwrap();
        assert_eq!(said("release_cblocks"), saved);
        let released = fs::metadata(&file).unwrap();
        assert_eq!(released.blocks(), before.blocks() - 8 * saved, "{name}");
        let ctime = |m: &fs::Metadata| (m.ctime(), m.ctime_nsec());
        assert!(ctime(&released) > ctime(&before), "{name}");
        assert!(
            fs::OpenOptions::new()
                .write(true)
                .open(&file)
                .unwrap()
                .write_at(b"x", 0)
                .is_err()
        );
        assert!(fs::read(&file).unwrap() == text);
        assert_eq!(said("reserve_cblocks"), saved);
        let written = overwrite(&file);
        assert!(fs::read(&file).unwrap() == written, "{name}");
    }
    mount.unmount();
    check_clean(image.path(), "made");
}
