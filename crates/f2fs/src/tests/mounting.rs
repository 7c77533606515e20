//! Reads of a mount: the tables it needs, in few large requests, whatever the size and content of the volume.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use steadfs_block::{Fault, FaultDevice, MemDevice, Op};
use steadfs_vfs::{Cx, FileSystem};

use crate::disk::{BLOCK_SIZE, Layout};
use crate::format::{FormatOptions, image};
use crate::{CacheSizes, F2fs, MountOptions};

/// Reads of a mount, their bytes, and those of the SIT.
#[derive(Clone, Copy, Debug)]
struct Cost {
    reads: u64,
    bytes: u64,
    table: u64,
}

fn mount(device: &Arc<MemDevice>, options: &str) -> (Arc<F2fs>, Cost) {
    let counting = FaultDevice::new(Arc::clone(device));
    let [reads, bytes] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
    let read = (Arc::clone(&reads), Arc::clone(&bytes));
    counting.set(move |bio| {
        if bio.op == Op::Read {
            read.0.fetch_add(1, Ordering::Relaxed);
            read.1.fetch_add(bio.len, Ordering::Relaxed);
        }
        Fault::None
    });
    let options = MountOptions::parse(options).unwrap();
    let sizes = CacheSizes::of(64 << 20);
    let (fs, _) = F2fs::open(counting, options, sizes).unwrap();
    let table = |layout: &Layout| u64::from(layout.sit_used_blocks()) * BLOCK_SIZE as u64;
    let cost = Cost {
        reads: reads.load(Ordering::Relaxed),
        bytes: bytes.load(Ordering::Relaxed),
        table: table(fs.layout()),
    };
    (fs, cost)
}

/// Reads of superblocks, both packs, summaries, the root, and NAT blocks for free ids.
const REST: u64 = 40;
/// Bytes of the SIT in one read.
const PIECE: u64 = 1 << 20;

fn assert_cheap(cost: Cost) {
    assert!(cost.reads <= REST + cost.table.div_ceil(PIECE), "{cost:?}");
    assert!(cost.bytes <= cost.table + (1 << 20), "{cost:?}");
}

/// Mounts a volume of `mib` MiB as mkfs made it, and with this number of files.
fn volume(mib: u64, files: u32) {
    let device = image(mib << 20, &FormatOptions::default()).unwrap();
    let cx = Cx::default();
    let (fs, cost) = mount(&device, "background_gc=off");
    assert_cheap(cost);
    let mut dir = fs.root();
    for n in 0..files {
        if n % 100 == 0 {
            let name = format!("dir{n}");
            dir = fs
                .mkdir(&cx, fs.root(), name.as_bytes(), 0o755)
                .unwrap()
                .ino;
        }
        let name = format!("file{n}");
        let file = fs.mknod(&cx, dir, name.as_bytes(), 0o100_644, 0).unwrap();
        fs.write(&cx, file.ino, 0, &[n as u8; 6000], false).unwrap();
    }
    fs.close().unwrap();
    for options in ["background_gc=off", "ro"] {
        let (fs, cost) = mount(&device, options);
        assert_cheap(cost);
        fs.close().unwrap();
    }
}

#[test]
fn a_mount_reads_its_tables_in_large_requests() {
    volume(64, 300);
    volume(16 << 10, 3000);
}

/// The goal is half a second. Time depends on the machine, so reads are counted; 36 MiB in 40 requests.
#[test]
fn a_tebibyte_is_mounted_with_few_reads() {
    volume(1 << 20, 3000);
}
