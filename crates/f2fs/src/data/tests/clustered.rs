//! Files that an fsync makes durable along with its own.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_cache::WritebackReason;
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem};

use super::{fsck, open, volume_with_file};

const FILES: u64 = 60;

/// A flusher that comes before the fsyncs leaves nodes only: they are clustered as data is.
#[test]
fn files_that_a_flusher_has_written_are_synced_together() {
    sim::run(sim::Config::new(1), || {
        let device = volume_with_file("extra_attr", 64);
        let fs = open(&device, "noinline_data");
        let cx = Cx::default();
        let files: Vec<_> = (0..FILES)
            .map(|n| {
                let name = format!("f{n}");
                let made = fs.mknod(&cx, fs.root(), name.as_bytes(), 0o100_644, 0);
                let inode = fs.by_number(made.unwrap().ino, IoTag::default()).unwrap();
                let written = fs.write_file(&cx, &inode, 0, &[n as u8; 4096], false);
                assert_eq!(written, Ok(4096));
                inode
            })
            .collect();
        for file in &files {
            fs.write_out(file, WritebackReason::Background, IoTag::default())
                .unwrap();
        }
        let flushes = || fs.queue.next_flush();
        let before = flushes();
        for file in &files {
            fs.fsync_inode(&cx, file, false).unwrap();
        }
        assert!(flushes() - before <= 16, "{} FLUSHes", flushes() - before);
        assert!(fs.syncs.clustered() >= FILES - 16);
        // Every file is there after a power cut.
        let copy = Arc::new(device.copy());
        let again = open(&copy, "");
        for n in 0..FILES {
            let name = format!("f{n}");
            let ino = again
                .lookup(&cx, again.root(), name.as_bytes())
                .unwrap()
                .ino;
            let content = again.read(&cx, ino, 0, 5000).unwrap().to_vec();
            assert!(content == [n as u8; 4096], "{name}");
        }
        again.close().unwrap();
        drop(again);
        fsck(&copy);
        drop(files);
        fs.close().unwrap();
        drop(fs);
        fsck(&device);
    });
}
