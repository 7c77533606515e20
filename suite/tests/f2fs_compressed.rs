//! Compressed f2fs volumes, as in images of phones: filled by a sload.f2fs with compression, read by us.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
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
        let refused = fs::write(&large, "new").unwrap_err();
        assert_eq!(
            Errno::from_io_error(&refused),
            Some(Errno::OPNOTSUPP),
            "{options:?}"
        );
        fs::remove_file(&large).unwrap();
        fs::rename(mount.join("zeros"), mount.join("dir/nothing")).unwrap();
        fs::write(mount.join("plain"), vec![3; 100_000]).unwrap();
        mount.unmount();
        check_clean(image.path(), "compressed");
    }
}
