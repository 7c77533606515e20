//! Devices over a device in memory.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, Device, MemDevice, Queue, QueueOptions, wait_all};

use crate::{Map, MappedDevice, Source};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 3 % 251) as u8).collect()
}

fn queue(device: Arc<dyn Device>) -> Queue {
    Queue::new(device, QueueOptions::default())
}

#[test]
fn segments_are_read_at_any_place() {
    let bytes = pattern(10_000);
    let below = Arc::new(MemDevice::from_bytes(&bytes[..9728]));
    let tail = bytes[9728..].to_vec();
    let mut map = Map::default();
    let mut expected = Vec::new();
    // Odd places, fills that begin anywhere, and the tail.
    for (at, len) in [(7, 1001), (0, 512), (4000, 5000), (9700, 300), (9999, 1)] {
        map.push(len, Source::Below(at)).unwrap();
        expected.extend_from_slice(&bytes[at as usize..(at + len) as usize]);
        map.push(len / 3, Source::Fill([1, 2, 3, 4])).unwrap();
        expected.extend((0..len / 3).map(|i| 1 + (i % 4) as u8));
    }
    let device = MappedDevice::new(below, map, tail).unwrap();
    assert!(device.geometry().read_only);
    let size = device.geometry().size;
    assert_eq!(size, expected.len() as u64 / 512 * 512);
    let queue = queue(Arc::new(device));
    for at in (0..size).step_by(512) {
        for len in [512, 1024, 4096, size - at] {
            if at + len <= size {
                let read = queue.read(at, len as usize, IoTag::default()).unwrap();
                assert!(
                    *read == expected[at as usize..(at + len) as usize],
                    "{at} {len}"
                );
            }
        }
    }
    let ios: Vec<_> = (0..size / 512)
        .map(|n| queue.submit(Bio::read(n * 512, 512), IoTag::default()))
        .collect();
    wait_all(&ios).unwrap();
    let write = Bio::write(0, vec![Buf::zeroed(512)]);
    assert!(queue.submit(write, IoTag::default()).wait().is_err());
}

#[test]
fn a_window_is_read_and_written() {
    let below = Arc::new(MemDevice::from_bytes(&pattern(64 << 10)));
    let window = MappedDevice::window(Arc::clone(&below) as _, 4096, 8192).unwrap();
    assert_eq!(window.geometry().size, 8192);
    let queue = queue(Arc::new(window));
    let mut expected = below.to_bytes();
    let tag = IoTag::default();
    let bio = Bio::write(512, vec![Buf::copy_of(&[9; 1024])]);
    queue.submit(bio, tag).wait().unwrap();
    queue
        .submit(Bio::write_zeroes(4096, 4096), tag)
        .wait()
        .unwrap();
    expected[4608..5632].fill(9);
    expected[8192..12288].fill(0);
    assert!(below.to_bytes() == expected);
    assert!(*queue.read(0, 8192, tag).unwrap() == expected[4096..12288]);
    let error = queue.read(8192, 512, tag).unwrap_err();
    assert_eq!(error.offset, 8192, "{error}");
}

#[test]
fn what_is_not_there_is_no_part() {
    let below = || Arc::new(MemDevice::new(4096)) as Arc<dyn Device>;
    assert!(MappedDevice::window(below(), 4096, 512).is_err());
    assert!(MappedDevice::window(below(), u64::MAX, u64::MAX).is_err());
    let cut = MappedDevice::window(below(), 1024, u64::MAX).unwrap();
    assert_eq!(cut.geometry().size, 3072);
    let mut map = Map::default();
    map.push(10, Source::Below(4090)).unwrap();
    assert!(MappedDevice::new(below(), map.clone(), Vec::new()).is_err());
    assert!(MappedDevice::new(below(), map, vec![0; 4]).is_ok());
}
