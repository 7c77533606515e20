//! Ioctls that no record describes became durable before the server was killed, after changes that are recorded.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_conformance::kind;
use steadfs_lab::device::Image;
use steadfs_vfs::{Cx, FileSystem, FsError, InodeFlags};

use super::model::Model;
use super::{CACHE, device, simulated};

const RELEASE_COMPRESS_BLOCKS: u32 = 0x8008_f512;
const SET_PIN_FILE: u32 = 0x4004_f50d;

/// Two files, the first of them compressed, without content.
fn make(fs: &dyn FileSystem, cx: &Cx) -> [InodeNo; 2] {
    let files = [&b"released"[..], b"pinned"];
    let files = files.map(|name| fs.mknod(cx, fs.root(), name, 0o100_644, 0).unwrap().ino);
    let flags = fs.flags(cx, files[0]).unwrap().flags;
    let compressed = InodeFlags(flags.0 | InodeFlags::COMPRESSED.0);
    fs.set_flags(cx, files[0], compressed).unwrap();
    files
}

#[test]
fn files_whose_ioctls_forbid_recorded_changes_keep_what_is_durable() {
    let kind = kind("f2fs_all");
    let bytes = kind.make(kind.usual_mib(), &[]).to_bytes();
    let image = Image::from_bytes(&bytes);
    let content = b"abcd".repeat(16 << 10);
    let recorded = content.clone();
    let (image, model, files) = simulated(1, move || {
        let device = device(&image);
        let fs = kind.mount(Arc::new(device.clone()), "", CACHE).unwrap();
        let (cx, mut model) = (Cx::default(), Model::default());
        let files = make(&*fs, &cx);
        fs.sync_all(&cx).unwrap();
        files.into_iter().for_each(|ino| model.touch(&*fs, ino));
        let written = fs.write(&cx, files[0], 0, &recorded, false).unwrap();
        assert_eq!(written, recorded.len());
        model.write(files[0], 0, &recorded);
        files.into_iter().for_each(|ino| model.touch(&*fs, ino));
        for (ino, command) in files
            .into_iter()
            .zip([RELEASE_COMPRESS_BLOCKS, SET_PIN_FILE])
        {
            let done = fs.ioctl(&cx, ino, command, &1_u32.to_ne_bytes());
            assert!(done.unwrap().is_some(), "an ioctl of f2fs");
        }
        fs.sync_all(&cx).unwrap();
        (device.content(), model, files)
    });
    simulated(2, move || {
        let (cx, state) = (Cx::default(), model.state());
        let mut counts = model.lookups();
        state.hold(&mut counts);
        let device = Arc::new(device(&image));
        let fs = kind.mount_handed_over(device, "", CACHE, &counts).unwrap();
        fs.restore(&state).unwrap();
        let read = fs.read(&cx, files[0], 0, content.len() + 1).unwrap();
        assert!(read.to_vec() == content, "it was durable with the ioctl");
        let refused = fs.write(&cx, files[0], 0, b"x", false);
        assert_eq!(refused, Err(FsError::NotPermitted), "it stays released");
        let pinned = fs.flags(&cx, files[1]).unwrap().flags;
        assert!(pinned.contains(InodeFlags::NOCOW), "it stays pinned");
        files.into_iter().for_each(|ino| fs.forget(ino, 1));
        fs.unmount().unwrap();
    });
}
