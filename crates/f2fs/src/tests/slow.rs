//! Slow checkpoints: the log names the slow step, and how long each request waited.

use std::sync::Arc;
use std::time::Duration;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Device, Fault, FaultDevice, Op};
use steadfs_rt::{sim, sleep, spawn};

use super::checkpoints::make_file;
use crate::checkpoint::steps::Warnings;
use crate::disk::BLOCK_SIZE;
use crate::format::{FormatOptions, image};
use crate::{CacheSizes, F2fs, MountOptions};

/// Time of a slow request.
const LONG: Duration = Duration::from_millis(7300);

/// The request that is slow.
#[derive(Clone, Copy, Debug)]
enum At {
    Nothing,
    /// A write to the checkpoint packs without a barrier.
    Pack,
    /// The write that commits a checkpoint.
    LastBlock,
}

/// Warnings about a checkpoint on such a device and about the waits of its two requesters.
fn told(at: At, options: &'static str) -> [Option<(u64, String)>; 2] {
    let run = move || {
        let inner = image(64 << 20, &FormatOptions::default()).unwrap();
        let open = |device: Arc<dyn Device>| {
            let options = MountOptions::parse(options).unwrap();
            F2fs::open(device, options, CacheSizes::of(64 << 20))
                .unwrap()
                .0
        };
        let looked = open(Arc::clone(&inner) as _);
        let (start, end) = (looked.layout().cp_start, looked.layout().sit_start);
        looked.close().unwrap();
        let bytes = |block: u32| u64::from(block) * BLOCK_SIZE as u64;
        let packs = bytes(start)..bytes(end);
        let device = FaultDevice::new(inner);
        let fs = open(Arc::clone(&device) as _);
        make_file(&fs, b"one", 0);
        assert!(!fs.status().contains("slow"));
        let slow = move |bio: &Bio| {
            let pack = bio.op == Op::Write && packs.contains(&bio.offset);
            match at {
                At::Nothing => false,
                At::Pack => pack && !bio.fua,
                At::LastBlock => pack && bio.fua,
            }
        };
        device.next(1, slow, Fault::Delay(LONG));
        let other = Arc::clone(&fs);
        let other = spawn("other", move || {
            other.request_checkpoint(IoTag::default()).unwrap();
        });
        sleep(Duration::from_millis(100));
        make_file(&fs, b"two", 0);
        let second = Arc::clone(&fs);
        let second = spawn("second", move || {
            second.request_checkpoint(IoTag::default()).unwrap();
        });
        other.join();
        second.join();
        let said = [&fs.checkpoints.slow, &fs.checkpoints.slow_waits].map(Warnings::last);
        let status = fs.status();
        for (_, last) in said.iter().flatten() {
            assert!(status.contains(last), "{status}");
        }
        fs.close().unwrap();
        said
    };
    sim::run(sim::Config::new(4), run).value
}

#[test]
fn slow_steps_and_waits_are_logged_by_name() {
    for options in ["checkpoint_merge", "nocheckpoint_merge"] {
        for (at, step) in [
            (At::Pack, "wait for tables, nodes and pack"),
            (At::LastBlock, "last block"),
        ] {
            let [slow, waits] = told(at, options).map(Option::unwrap);
            // Without merging the second requester waits inside a checkpoint of its own.
            let (ones, step, begin) = match options {
                "checkpoint_merge" => (1, step, "a checkpoint took 73"),
                _ => (2, "wait for another checkpoint", "a checkpoint took 72"),
            };
            assert!(slow.0 == ones && slow.1.starts_with(begin), "{slow:?}");
            let named = format!("most of it in \"{step}\": ");
            assert!(slow.1.contains(&named), "{slow:?}");
            assert_eq!(waits.0, 2, "{waits:?}");
            let begin = "a request for a checkpoint waited 7";
            assert!(waits.1.starts_with(begin), "{waits:?}");
        }
        assert_eq!(told(At::Nothing, options), [None, None]);
    }
}
