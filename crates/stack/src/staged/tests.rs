//! Staged writes against a plain copy of the device.

use std::sync::Arc;

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, MemDevice, Queue, QueueOptions};

use super::{StagedDevice, StagedOrder};

const SECTOR: u64 = 512;
const SECTORS: u64 = 64;

fn random(seed: &mut u64, end: u64) -> u64 {
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    *seed % end
}

fn bytes(fill: u8, len: u64) -> Vec<u8> {
    vec![fill; len as usize]
}

fn staged(order: StagedOrder, bytes_max: u64) -> (Arc<MemDevice>, Arc<StagedDevice>, Queue) {
    let base = Arc::new(MemDevice::from_bytes(&bytes(0xAA, SECTORS * SECTOR)));
    let staged = Arc::new(StagedDevice::new(Arc::clone(&base) as _, order, bytes_max));
    let queue = Queue::new(Arc::clone(&staged) as _, QueueOptions::default());
    (base, staged, queue)
}

#[test]
fn reads_see_the_newest_write_and_the_base_is_unchanged() {
    let (base, staged, queue) = staged(StagedOrder::Dropped, u64::MAX);
    let mut model = base.to_bytes();
    let tag = IoTag::default();
    let mut seed = 0x9E37_79B9_7F4A_7C15;
    for round in 0..400u64 {
        let first = random(&mut seed, SECTORS);
        let len = SECTOR * (1 + random(&mut seed, (SECTORS - first).min(9)));
        let at = first * SECTOR;
        let fill = round as u8;
        let range = at as usize..(at + len) as usize;
        match random(&mut seed, 4) {
            0 => {
                queue
                    .submit(Bio::write_zeroes(at, len), tag)
                    .wait()
                    .unwrap();
                model[range].fill(0);
            }
            1 => {
                let read = queue.read(at, len as usize, tag).unwrap();
                assert_eq!(*read, model[range], "round {round}");
            }
            _ => {
                // In two buffers.
                let (one, two) = (bytes(fill, SECTOR), bytes(!fill, len - SECTOR));
                let parts = [&one, &two].into_iter().filter(|part| !part.is_empty());
                let bufs = parts.map(|part| Buf::copy_of(part)).collect();
                queue.write(at, bufs, tag).unwrap();
                model[range].copy_from_slice(&[one, two].concat());
            }
        }
    }
    let all = queue.read(0, model.len(), tag).unwrap();
    assert_eq!(*all, model[..]);
    assert_eq!(base.to_bytes(), bytes(0xAA, SECTORS * SECTOR));
    let changed = staged.changed();
    assert!(changed.windows(2).all(|two| two[0].end < two[1].start));
    for sector in 0..SECTORS {
        let at = sector * SECTOR;
        let differs = model[at as usize] != 0xAA;
        let is_changed = changed.iter().any(|range| range.contains(&at));
        assert!(is_changed || !differs, "sector {sector}");
    }
    assert_eq!(staged.in_order().iter().flatten().count(), 0);
}

#[test]
fn barriers_divide_the_writes() {
    let (_, staged, queue) = staged(StagedOrder::Kept, u64::MAX);
    let tag = IoTag::default();
    let write =
        |at: u64, fill: u8| Bio::write(at * SECTOR, vec![Buf::copy_of(&bytes(fill, SECTOR))]);
    let submit = |bio| drop(queue.submit(bio, tag).into_bio().unwrap());
    submit(write(1, 1));
    submit(write(2, 2));
    submit(write(1, 3));
    submit(Bio::flush());
    submit(Bio::flush());
    submit(write(2, 4));
    submit(write(5, 5).preflush_and_fua());
    submit(write(1, 6));
    let groups: Vec<Vec<(u64, u8)>> = staged
        .in_order()
        .iter()
        .map(|group| {
            group
                .iter()
                .map(|(at, buf)| (at / SECTOR, buf[0]))
                .collect()
        })
        .collect();
    assert_eq!(
        groups,
        [
            vec![(1, 3), (2, 2)],
            vec![(2, 4)],
            vec![(5, 5)],
            vec![(1, 6)]
        ]
    );
    let whole = SECTOR..3 * SECTOR;
    assert_eq!(staged.changed(), [whole, 5 * SECTOR..6 * SECTOR]);
}

#[test]
fn a_write_beyond_the_memory_fails_and_leaves_the_rest() {
    let (_, _, queue) = staged(StagedOrder::Dropped, 4 * SECTOR);
    let tag = IoTag::default();
    let write = |at: u64| queue.write(at * SECTOR, vec![Buf::copy_of(&bytes(7, SECTOR))], tag);
    (0..4).for_each(|at| write(at).unwrap());
    let error = write(4).unwrap_err().to_string();
    assert!(error.contains("need more than 0 MiB of memory"), "{error}");
    assert_eq!(queue.read(3 * SECTOR, 512, tag).unwrap()[0], 7);
    assert_eq!(queue.read(4 * SECTOR, 512, tag).unwrap()[0], 0xAA);
}
