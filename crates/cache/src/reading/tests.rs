use std::cell::Cell;
use std::sync::Arc;

use steadfs_base::BlockSize;
use steadfs_block::{MemDevice, QueueOptions};
use steadfs_rt::Random;

use super::*;
use crate::{CacheWrite, DirtyFile, Writeback, WritebackOptions};

const BS: u64 = 1024;

/// A file with blocks in memory, on the device, and made by the file system, and with holes.
struct File {
    queue: Queue,
    pages: Mapping,
    window: ReadAheadWindow,
    content: Vec<u8>,
}

impl File {
    fn new(blocks: u64) -> Self {
        let device = Arc::new(MemDevice::new(blocks * BS));
        let writeback = Arc::new(Writeback::new(WritebackOptions::for_cache(64 << 20)));
        let size = BlockSize::new(BS as u32).expect("valid");
        let pages = Mapping::new(size, DirtyFile(12), writeback);
        let mut content = vec![0; (blocks * BS) as usize];
        for (n, block) in content.chunks_mut(BS as usize).enumerate() {
            let n = n as u64;
            if kind(n) != Kind::Hole {
                block.fill(n as u8 | 1);
            }
            match kind(n) {
                Kind::Device => device.write(n * BS, block),
                Kind::Memory => {
                    let write = CacheWrite {
                        offset: n * BS,
                        data: block,
                        tag: IoTag::default(),
                    };
                    let whole = |_, _: &mut [u8]| -> Result<(), ()> { unreachable!() };
                    pages.write_growing(write, |_| true, whole, |_| ());
                }
                Kind::Hole | Kind::Made => {}
            }
        }
        Self {
            queue: Queue::new(device, QueueOptions::default()),
            pages,
            window: ReadAheadWindow::default(),
            content,
        }
    }

    fn reader(&self) -> FileReader<'_> {
        FileReader {
            queue: &self.queue,
            pages: &self.pages,
            window: &self.window,
            tag: IoTag::default(),
        }
    }

    fn read(&self, range: Range<u64>) -> Vec<u8> {
        let reading = self.reader().begin(range, map).unwrap();
        let mut out = Vec::new();
        let push = |part| match part {
            ReadPart::Zeros(n) => out.resize(out.len() + n, 0),
            ReadPart::Bytes(buf, wanted) => out.extend_from_slice(&buf[wanted]),
        };
        reading.finish(push).unwrap();
        out
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Hole,
    Device,
    Memory,
    Made,
}

/// Runs of 1 to 7 blocks of each kind.
fn kind(block: u64) -> Kind {
    match block % 16 {
        0..3 => Kind::Hole,
        3 | 8 => Kind::Memory,
        4..8 | 9..12 => Kind::Device,
        12..14 => Kind::Made,
        _ => Kind::Device,
    }
}

/// The map is not called for blocks in memory.
fn map(block: FileBlock, most: u64) -> Result<(BlockSource, u64), &'static str> {
    let what = kind(block.0);
    let count = (0..most).take_while(|n| kind(block.0 + n) == what).count() as u64;
    let source = match what {
        Kind::Hole => BlockSource::Hole,
        Kind::Device => BlockSource::Device(block.0 * BS),
        Kind::Memory => return Err("in memory"),
        Kind::Made => {
            let made = (block.0..block.0 + count).flat_map(|n| [n as u8 | 1; BS as usize]);
            BlockSource::Content(Buf::copy_of(&made.collect::<Vec<_>>()))
        }
    };
    Ok((source, count))
}

#[test]
fn every_range_reads_back_its_content() {
    let file = File::new(200);
    let mut random = Random::new(3);
    let size = file.content.len();
    for _ in 0..3000 {
        let start = random.below(size);
        let end = start + 1 + random.below((size - start).min(40_000));
        let found = file.read(start as u64..end as u64);
        assert!(found == file.content[start..end], "{start}..{end}");
    }
    assert!(file.read(0..size as u64) == file.content);
}

#[test]
fn a_map_may_cover_more_blocks_than_requested() {
    let file = File::new(64);
    let hole = |_, _| Ok::<_, ()>((BlockSource::Hole, u64::MAX));
    let reading = file.reader().begin(10..4 * BS + 10, hole).unwrap();
    let mut bytes = 0;
    reading
        .finish(|part| {
            bytes += match part {
                ReadPart::Zeros(n) => n,
                ReadPart::Bytes(buf, wanted) => {
                    assert_eq!(buf[0], 3, "the fourth block, in memory");
                    wanted.len()
                }
            };
        })
        .unwrap();
    assert_eq!(bytes, 4 * BS as usize);
}

#[test]
fn errors_of_map_and_device_are_returned() {
    let file = File::new(16);
    let begun = file.reader().begin(0..BS, |_, _| Err("corrupt"));
    assert_eq!(begun.err(), Some("corrupt"));
    let beyond = |_, most| Ok::<_, ()>((BlockSource::Device(1 << 40), most));
    let reading = file.reader().begin(0..BS, beyond).unwrap();
    assert!(reading.finish(|_| ()).is_err());
}

#[test]
fn a_stream_is_read_ahead_up_to_an_error_of_the_map() {
    const READ: u64 = 128 << 10;
    const SIZE: u64 = 64 * READ;
    let file = File::new(SIZE / BS);
    let asked = Cell::new(0);
    let corrupt = Cell::new(false);
    let map = |block: FileBlock, most| {
        asked.set(block.0 * BS);
        match corrupt.get() && block.0 >= 5 * READ / BS {
            true => Err(()),
            false => Ok((BlockSource::Device(block.0 * BS), most)),
        }
    };
    let ahead = |n: u64| {
        asked.set(0);
        file.reader()
            .read_ahead(n * READ..(n + 1) * READ, SIZE, map);
        asked.get()
    };
    assert_eq!([ahead(0), ahead(1)], [0, 0], "not a stream yet");
    corrupt.set(true);
    assert_eq!(ahead(2), 5 * READ, "up to the corruption");
    corrupt.set(false);
    assert!(ahead(3) > 5 * READ, "and from there on");
}

#[test]
fn read_ahead_that_the_queue_refused_is_tried_again() {
    const READ: u64 = 128 << 10;
    const SIZE: u64 = 64 * READ;
    let file = File::new(SIZE / BS);
    let asked = Cell::new(0);
    let full = Cell::new(true);
    let ahead = |n: u64| {
        asked.set(0);
        let range = n * READ..(n + 1) * READ;
        file.reader().read_ahead(range, SIZE, |block, most| {
            asked.set(block.0 * BS);
            if full.get() {
                // Other streams use up the limit meanwhile.
                file.queue.set_read_ahead_limit(0);
            }
            Ok::<_, ()>((BlockSource::Device(block.0 * BS), most))
        });
        asked.get()
    };
    assert_eq!([ahead(0), ahead(1), ahead(2)], [0, 0, 3 * READ]);
    assert_eq!(ahead(3), 0, "the limit is reached");
    file.queue.set_read_ahead_limit(64 << 20);
    assert_eq!(ahead(4), 5 * READ);
    file.queue.set_read_ahead_limit(64 << 20);
    full.set(false);
    assert!(ahead(5) > 6 * READ);
}
