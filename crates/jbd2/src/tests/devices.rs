//! Devices that show a volume as a replay would leave it.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{BlockSize, DevBlock, IoTag};
use steadfs_block::{Buf, Device, MemDevice, Queue, QueueOptions};

use crate::overlay::Redirect;
use crate::{Overlay, OverlayDevice, ScratchDevice};

const TAG: IoTag = IoTag::background();
const BLOCK: usize = 1024;

fn size() -> BlockSize {
    BlockSize::new(BLOCK as u32).unwrap()
}

/// A device of 16 blocks; the bytes of each are its number.
fn numbered() -> Arc<MemDevice> {
    let bytes: Vec<u8> = (0..16u8).flat_map(|n| [n; BLOCK]).collect();
    Arc::new(MemDevice::from_bytes(&bytes))
}

fn queue(device: Arc<dyn Device>) -> Queue {
    Queue::new(device, QueueOptions::default())
}

#[test]
fn a_scratch_device_keeps_writes_and_reads_them_over_the_device_below() {
    let below = numbered();
    let before = below.to_bytes();
    let scratch = Arc::new(ScratchDevice::new(Arc::clone(&below) as _, size()));
    assert_eq!(scratch.background_depth(), below.background_depth());
    assert!(!scratch.geometry().read_only);
    let queue = queue(Arc::clone(&scratch) as _);
    let two = Buf::copy_of(&[[100; BLOCK], [101; BLOCK]].concat());
    queue.write(3 << 10, vec![two], TAG).unwrap();
    let one = Buf::copy_of(&[102; BLOCK]);
    queue.write(9 << 10, vec![one], TAG).unwrap();
    let read = queue.read(0, 16 * BLOCK, TAG).unwrap();
    let numbers: Vec<u8> = read.chunks(BLOCK).map(|block| block[0]).collect();
    assert_eq!(
        numbers,
        [0, 1, 2, 100, 101, 5, 6, 7, 8, 102, 10, 11, 12, 13, 14, 15]
    );
    // A part of one written block, and of the one after it.
    let read = queue.read((4 << 10) + 512, BLOCK, TAG).unwrap();
    assert_eq!(read[..], [[101; 512], [5; 512]].concat());
    let written = scratch.take_written();
    let blocks: Vec<_> = written.iter().map(|(at, buf)| (at.0, buf[0])).collect();
    assert_eq!(blocks, [(3, 100), (4, 101), (9, 102)]);
    assert!(written.values().all(|buf| buf.len() == BLOCK));
    assert!(scratch.take_written().is_empty());
    assert_eq!(below.to_bytes(), before);
}

#[test]
fn a_scratch_device_refuses_parts_of_blocks() {
    let scratch = Arc::new(ScratchDevice::new(numbered(), size()));
    let queue = queue(Arc::clone(&scratch) as _);
    let write = |at: u64, len| queue.write(at, vec![Buf::zeroed(len)], TAG);
    assert!(write(0, 512).is_err());
    assert!(write(512, BLOCK).is_err());
    assert!(write(512, 512).is_err());
    assert!(scratch.take_written().is_empty());
    assert!(write(BLOCK as u64, BLOCK).is_ok());
}

#[test]
fn content_in_memory_and_in_the_log_is_read_until_the_overlay_is_disabled() {
    let below = numbered();
    let changed = BTreeMap::from([
        (DevBlock(2), Buf::copy_of(&[200; BLOCK])),
        (DevBlock(7), Buf::copy_of(&[201; BLOCK])),
    ]);
    let at = |block| Redirect {
        at: DevBlock(block),
        escaped: false,
    };
    let logged = BTreeMap::from([(DevBlock(2), at(10)), (DevBlock(5), at(9))]);
    // What fast commits change is newer than the copies in the log.
    let overlay = Overlay::new(logged).with_changed(changed);
    assert_eq!(overlay.blocks().collect::<Vec<_>>(), [DevBlock(5)]);
    let held: Vec<_> = overlay.in_memory().keys().collect();
    assert_eq!(held, [&DevBlock(2), &DevBlock(7)]);
    let over = Arc::new(OverlayDevice::new(Arc::clone(&below) as _, size(), overlay));
    assert_eq!(over.overlay().in_memory().len(), 2);
    let first = |block: u64| {
        let read = queue(Arc::clone(&over) as _).read(block << 10, BLOCK, TAG);
        read.unwrap()[0]
    };
    assert_eq!([1, 2, 3, 5, 7].map(first), [1, 200, 3, 9, 201]);
    assert!(over.geometry().read_only);
    let refused = over.make_writable().unwrap_err();
    assert!(refused.contains("read-only"), "{refused}");
    over.leave_log();
    assert_eq!([1, 2, 3, 5, 7].map(first), [1, 200, 3, 5, 201]);
    over.disable_overlay();
    assert_eq!([1, 2, 3, 5, 7].map(first), [1, 2, 3, 5, 7]);
    assert!(!over.geometry().read_only);
    assert_eq!(over.make_writable(), Ok(()));
}
