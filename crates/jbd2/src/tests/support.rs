//! A volume that is nothing but a journal and blocks.

use std::sync::Arc;

use steadfs_base::endian::Be32;
use steadfs_base::{BlockSize, DevBlock, IoTag, Tid};
use steadfs_block::{Device, MemDevice, Queue, QueueOptions};
use steadfs_cache::{MetaBuf, MetaCache};
use zerocopy::{FromZeros, IntoBytes};

use crate::{Journal, JournalConfig, JournalMap, Recover, Recovered, recover};
use steadfs_jbd2_format::{Header, RawSuperblock, block_type};

/// Geometry of the volume and its journal.
#[derive(Clone, Debug)]
pub struct Layout {
    pub block_size: BlockSize,
    /// Blocks on the device.
    pub blocks: u64,
    pub journal: Vec<(DevBlock, u64)>,
    /// The first transaction.
    pub sequence: u32,
}

impl Layout {
    /// A journal of `len` blocks from block 10 on, on a device of `blocks`.
    pub fn new(block_size: u32, blocks: u64, len: u64) -> Self {
        Self {
            block_size: BlockSize::new(block_size).unwrap(),
            blocks,
            journal: vec![(DevBlock(10), len)],
            sequence: 1,
        }
    }

    pub fn map(&self) -> JournalMap {
        JournalMap::new(self.journal.iter().copied()).unwrap()
    }

    /// A device with an empty journal without features.
    pub fn device(&self) -> Arc<MemDevice> {
        let device = MemDevice::new(self.blocks * self.block_size.bytes_u64());
        let mut raw = RawSuperblock::new_zeroed();
        raw.header = Header::new(block_type::SUPERBLOCK_V2, Tid(0));
        raw.block_size = Be32::new(self.block_size.bytes() as u32);
        raw.max_len = Be32::new(self.map().len());
        raw.first = Be32::new(1);
        raw.sequence = Be32::new(self.sequence);
        raw.users = Be32::new(1);
        raw.uuid = *b"0123456789abcdef";
        let at = self.block_size.offset_of(self.journal[0].0);
        device.write(at, raw.as_bytes());
        Arc::new(device)
    }

    pub fn queue(&self, device: Arc<dyn Device>) -> Arc<Queue> {
        Arc::new(Queue::new(device, QueueOptions::default()))
    }

    /// The block's content in an image.
    pub fn block<'a>(&self, image: &'a [u8], block: u64) -> &'a [u8] {
        let size = self.block_size.bytes();
        &image[block as usize * size..][..size]
    }

    pub fn recover(&self, device: Arc<dyn Device>) -> Recovered {
        let queue = self.queue(device);
        let how = Recover::ToDevice;
        recover(&queue, self.block_size, &self.map(), how, IoTag::default()).unwrap()
    }

    /// What the device holds after recovery of a copy of it.
    pub fn recovered(&self, device: &MemDevice) -> Vec<u8> {
        let copy = Arc::new(MemDevice::from_bytes(&device.to_bytes()));
        self.recover(Arc::clone(&copy) as _);
        copy.to_bytes()
    }

    pub fn open(&self, device: Arc<dyn Device>, config: JournalConfig) -> Arc<Journal> {
        let cache = MetaCache::new(self.queue(device), self.block_size, 1 << 20);
        Journal::open(Arc::new(cache), self.map(), config).unwrap()
    }
}

/// The block's buffer.
pub fn buf(journal: &Journal, block: u64) -> Arc<MetaBuf> {
    journal
        .cache
        .get(DevBlock(block), IoTag::default())
        .unwrap()
}

/// Changes one byte of a block in its own handle.
pub fn set(journal: &Journal, block: u64, value: u8) -> Tid {
    let mut handle = journal.begin(1).unwrap();
    handle.write(&buf(journal, block)).unwrap()[9] = value;
    handle.tid()
}

/// How many seeds a test tries: SEEDS of the environment, or `default`.
pub fn seeds(default: u64) -> std::ops::Range<u64> {
    let seeds = std::env::var("SEEDS").ok();
    0..seeds.map_or(default, |n| n.parse().expect("SEEDS is a number"))
}
