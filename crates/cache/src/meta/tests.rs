//! Metadata buffers over a device in memory, or a slow or failing one.

use std::time::Duration;

use steadfs_block::{Fault, FaultDevice, MemDevice, Op, QueueOptions};
use steadfs_rt::{sim, sleep, spawn};

use super::*;

fn cache(blocks: u64, budget: usize) -> (Arc<MemDevice>, MetaCache) {
    let device = Arc::new(MemDevice::new(blocks * 4096));
    let queue = Arc::new(Queue::new(
        Arc::clone(&device) as _,
        QueueOptions::default(),
    ));
    let block_size = BlockSize::new(4096).expect("valid");
    (device, MetaCache::new(queue, block_size, budget))
}

#[test]
fn a_snapshot_keeps_what_it_saw() {
    let (device, cache) = cache(8, 1 << 20);
    device.write(4096, b"old");
    let buf = cache.get(DevBlock(1), IoTag::default()).unwrap();
    let before = buf.data();
    buf.lock()[..3].copy_from_slice(b"new");
    assert_eq!(&before[..3], b"old");
    assert_eq!(&buf.data()[..3], b"new");
}

#[test]
fn a_hint_is_dropped_when_the_content_changes() {
    let (_device, cache) = cache(8, 1 << 20);
    let buf = cache.get(DevBlock(1), IoTag::default()).unwrap();
    let annotate = || {
        let mut guard = buf.lock();
        guard[0] = 1;
        guard.set_hint(24);
    };
    assert_eq!(buf.data_and_hint().1, 0);
    annotate();
    assert_eq!((buf.data_and_hint().0[0], buf.data_and_hint().1), (1, 24));
    drop(buf.lock());
    assert_eq!(buf.data_and_hint().1, 24, "the content has not changed");
    buf.lock()[9] = 1;
    assert_eq!(buf.data_and_hint().1, 0);
    annotate();
    cache.get_new(DevBlock(1));
    assert_eq!(buf.data_and_hint().1, 0);
    annotate();
    cache.set_content(DevBlock(1), buf.data());
    assert_eq!(buf.data_and_hint().1, 0);
}

#[test]
fn unjournaled_changes_reach_the_device_once_written() {
    let (device, cache) = cache(8, 1 << 20);
    for n in [2, 3, 5] {
        let buf = cache.get_new(DevBlock(n));
        cache.lock_dirty(&buf)[0] = n as u8;
    }
    cache.forget(DevBlock(3));
    cache.write_dirty(IoTag::default()).unwrap();
    let image = device.to_bytes();
    assert_eq!(
        [image[2 * 4096], image[3 * 4096], image[5 * 4096]],
        [2, 0, 5]
    );
    assert_eq!(cache.stats().dirty, 0);
}

#[test]
fn unused_blocks_leave_when_the_budget_is_full_and_used_ones_stay() {
    let (_device, cache) = cache(4096, 64 * 4096);
    let held = cache.get(DevBlock(0), IoTag::default()).unwrap();
    held.lock()[0] = 9;
    for n in 1..4096 {
        cache.get(DevBlock(n), IoTag::default()).unwrap();
    }
    assert!(cache.stats().cached < 256, "{:?}", cache.stats());
    let again = cache.get(DevBlock(0), IoTag::default()).unwrap();
    assert!(Arc::ptr_eq(&held, &again));
}

#[test]
fn prefetch_fills_what_is_missing_only() {
    let (device, cache) = cache(64, 1 << 20);
    device.write(10 * 4096, b"disk");
    let changed = cache.get(DevBlock(9), IoTag::default()).unwrap();
    changed.lock()[0] = 1;
    cache.prefetch(DevBlock(8), 4, IoTag::default());
    assert_eq!(&cache.peek(DevBlock(10)).unwrap().data()[..4], b"disk");
    assert_eq!(changed.data()[0], 1);
    assert!(cache.peek(DevBlock(12)).is_none());
}

/// Runs `then` while blocks 1 and 3 are prefetched: block 3 has been read, and the prefetch waits for block 1.
fn while_prefetched(then: impl FnOnce(&Arc<MetaCache>) + Send + 'static) {
    sim::run(sim::Config::new(1), move || {
        let device = FaultDevice::new(Arc::new(MemDevice::new(8 * 4096)));
        device.memory.write(3 * 4096, b"old");
        device.set(|bio| match bio.offset {
            4096 => Fault::Delay(Duration::from_millis(10)),
            _ => Fault::None,
        });
        let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
        let block_size = BlockSize::new(4096).expect("valid");
        let cache = Arc::new(MetaCache::new(Arc::new(queue), block_size, 1 << 20));
        let reads = Arc::clone(&cache);
        let reader = spawn("reader", move || {
            reads.prefetch_blocks(&[DevBlock(1), DevBlock(3)], IoTag::default());
        });
        sleep(Duration::from_millis(1));
        assert!(!cache.is_cached(DevBlock(3)), "the prefetch has ended");
        then(&cache);
        reader.join();
        let buf = cache.get(DevBlock(3), IoTag::default()).unwrap();
        assert_eq!(&buf.data()[..3], b"new");
    });
}

/// The prefetch would bring the old content back, and the next change of the block would write it.
#[test]
fn a_prefetch_does_not_replace_what_was_changed_and_evicted_meanwhile() {
    while_prefetched(|cache| {
        let buf = cache.get(DevBlock(3), IoTag::default()).unwrap();
        assert_eq!(&buf.data()[..3], b"old");
        cache.lock_dirty(&buf)[..3].copy_from_slice(b"new");
        cache.write_dirty(IoTag::default()).unwrap();
        drop(buf);
        cache.drop_unused();
    });
}

/// The block has another owner, which writes it without the cache.
#[test]
fn a_prefetch_does_not_fill_a_block_that_was_forgotten_meanwhile() {
    while_prefetched(|cache| {
        cache.forget(DevBlock(3));
        let data = Buf::copy_of(&[b"new".as_slice(), &[0; 4093]].concat());
        let bio = Bio::write(3 * 4096, vec![data]);
        cache.queue().submit(bio, IoTag::default()).wait().unwrap();
    });
}

/// A task that waits for a read by a group of low weight does not wait as long as that group would.
#[test]
fn a_read_that_other_tasks_wait_for_is_boosted() {
    use steadfs_base::{GroupId, OwnerId};
    use steadfs_block::{DeviceModel, ModelDevice, Policy, QueueSettings};
    use steadfs_rt::now;

    let of_group = |number| IoTag {
        group: GroupId(number),
        owner: OwnerId(number),
        ..IoTag::default()
    };
    let took = |boost: bool| {
        let run = move || {
            let model = DeviceModel {
                bytes_per_second: 10 << 20,
                latency: Duration::from_micros(500),
                flush: Duration::ZERO,
                depth: 1,
            };
            let memory = Arc::new(MemDevice::new(4096 * 4096));
            let settings = QueueSettings {
                policy: Policy::Fair,
                depth: 1,
                boost,
                ..QueueSettings::default()
            };
            let device = Arc::new(ModelDevice::new(memory, model));
            let queue = Arc::new(Queue::with_settings(device, settings));
            for (group, weight) in [(1, 5), (2, 1000), (3, 1000)] {
                queue.set_group(GroupId(group), GroupId(0), weight);
            }
            let block_size = BlockSize::new(4096).expect("valid");
            let cache = Arc::new(MetaCache::new(Arc::clone(&queue), block_size, 1 << 20));
            let until = now().0 + 3_000_000_000;
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    let queue = Arc::clone(&queue);
                    spawn("others", move || {
                        while now().0 < until {
                            queue.read(1 << 20, 64 << 10, of_group(3)).unwrap();
                        }
                    })
                })
                .collect();
            sleep(Duration::from_millis(50));
            // The light group has used its share, so its next request is not at the front.
            cache.get(DevBlock(1), of_group(1)).unwrap();
            let light = Arc::clone(&cache);
            let light = spawn("light", move || {
                light.get(DevBlock(5), of_group(1)).unwrap();
            });
            sleep(Duration::from_millis(10));
            let began = now();
            cache.get(DevBlock(5), of_group(2)).unwrap();
            let took = began.elapsed();
            light.join();
            readers.into_iter().for_each(steadfs_rt::JoinHandle::join);
            assert!(cache.fills.lock().is_empty());
            took
        };
        sim::run(sim::Config::new(3), run).value
    };
    let (with, without) = (took(true), took(false));
    assert!(with * 2 < without, "{with:?} {without:?}");
}

/// Blocks 3 and 5 were changed without a journal and are being written. The write of block 3 takes 10 ms; that of block
/// 5 meets `fault`.
fn being_written(fault: Fault, then: impl FnOnce(&FaultDevice, &Arc<MetaCache>) + Send + 'static) {
    sim::run(sim::Config::new(1), move || {
        let device = FaultDevice::new(Arc::new(MemDevice::new(8 * 4096)));
        let of = |block: u64| move |bio: &Bio| bio.op == Op::Write && bio.offset == block * 4096;
        device.set(move |bio| match bio {
            bio if of(3)(bio) => Fault::Delay(Duration::from_millis(10)),
            bio if of(5)(bio) => fault,
            _ => Fault::None,
        });
        let queue = Queue::new(Arc::clone(&device) as _, QueueOptions::default());
        let block_size = BlockSize::new(4096).expect("valid");
        let cache = Arc::new(MetaCache::new(Arc::new(queue), block_size, 1 << 20));
        for n in [3, 5] {
            cache.lock_dirty(&cache.get_new(DevBlock(n)))[0] = n as u8;
        }
        let writes = Arc::clone(&cache);
        let writer = spawn("writer", move || {
            let written = writes.write_dirty(IoTag::default());
            assert_eq!(written.is_err(), fault == Fault::Fail);
        });
        sleep(Duration::from_millis(1));
        device.set(|_| Fault::None);
        then(&device, &cache);
        writer.join();
    });
}

/// Without a journal a freed block can be allocated at once.
#[test]
fn forget_waits_for_the_write_in_flight() {
    let late = Fault::Delay(Duration::from_millis(10));
    being_written(late, |device, cache| {
        cache.forget(DevBlock(5));
        let data = vec![Buf::copy_of(&[9; 4096])];
        let io = cache
            .queue()
            .submit(Bio::write(5 * 4096, data), IoTag::default());
        io.wait().unwrap();
        sleep(Duration::from_millis(50));
        assert_eq!(device.memory.to_bytes()[5 * 4096], 9);
    });
}

#[test]
fn a_forgotten_block_is_not_written_again_because_its_write_failed() {
    being_written(Fault::Fail, |device, cache| {
        cache.forget(DevBlock(5));
        sleep(Duration::from_millis(50));
        cache.write_dirty(IoTag::default()).unwrap();
        assert_eq!(cache.stats().dirty, 0);
        let image = device.memory.to_bytes();
        assert_eq!([image[3 * 4096], image[5 * 4096]], [3, 0]);
    });
}

/// The superblock is written at once where a stopping volume marks it, while write-back may write it, too.
#[test]
fn a_block_that_is_written_alone_meets_no_other_write_of_it() {
    let late = Fault::Delay(Duration::from_millis(10));
    being_written(late, |device, cache| {
        let slow = |bio: &Bio| match bio.op {
            Op::Write => Fault::Delay(Duration::from_millis(5)),
            _ => Fault::None,
        };
        device.set(slow);
        let tasks: Vec<_> = (0..3)
            .map(|n| {
                let cache = Arc::clone(cache);
                spawn("alone", move || {
                    let block = DevBlock(5);
                    let buf = cache.get(block, IoTag::default()).unwrap();
                    let content = || {
                        let mut content = buf.lock();
                        content[1] += 1;
                        content.snapshot()
                    };
                    cache.lock_dirty(&buf)[2] = n;
                    cache
                        .write_alone(block, n == 0, IoTag::default(), content)
                        .unwrap();
                    cache.write_dirty(IoTag::default()).unwrap();
                })
            })
            .collect();
        tasks.into_iter().for_each(steadfs_rt::JoinHandle::join);
        assert_eq!(cache.stats().dirty, 0);
        let image = device.memory.to_bytes();
        assert_eq!(image[5 * 4096..][..2], [5, 3]);
    });
}
