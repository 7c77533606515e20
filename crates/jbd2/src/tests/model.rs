//! The oracle: the state after each transaction, in a map.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{DevBlock, IoTag, Tid};
use steadfs_block::{Bio, Buf};
use steadfs_rt::{Mutex, Random, Rank};

use super::crash_device::CrashDevice;
use crate::{Durable, Handle, Journal, JournalError};

/// Blocks that transactions change.
pub const FIRST: u64 = 1000;
pub const BLOCKS: u64 = 150;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    Meta(u64),
    /// Written without the journal, and referred to by a transaction.
    Data(u64),
}

impl Content {
    pub fn value(self) -> u64 {
        match self {
            Self::Meta(value) | Self::Data(value) => value,
        }
    }
}

pub type Blocks = BTreeMap<u64, Content>;

/// A block's whole content from a value.
pub fn pattern(value: u64, len: usize) -> Vec<u8> {
    value
        .to_be_bytes()
        .iter()
        .copied()
        .cycle()
        .take(len)
        .collect()
}

struct Inner {
    now: Blocks,
    /// After each transaction, counted from the first.
    after: BTreeMap<u32, Blocks>,
    /// Free blocks that replay must not write any more.
    free: Vec<u64>,
    freed_in: BTreeMap<u32, Vec<u64>>,
    /// Blocks that a handle changes now.
    busy: Vec<u64>,
}

pub struct Model {
    inner: Arc<Mutex<Inner>>,
    /// Where the numbers of transactions start: they wrap.
    first: u32,
}

impl Model {
    /// A model of a new journal, which is notified of commits.
    pub fn new(journal: &Journal) -> Self {
        let inner = Inner {
            now: Blocks::new(),
            after: BTreeMap::new(),
            free: (FIRST..FIRST + BLOCKS).collect(),
            freed_in: BTreeMap::new(),
            busy: Vec::new(),
        };
        let inner = Arc::new(Mutex::new(Rank::Table, inner));
        let hears = Arc::clone(&inner);
        journal.on_commit(Box::new(move |tid| {
            let mut inner = hears.lock();
            let freed = inner.freed_in.remove(&tid.0).unwrap_or_default();
            inner.free.extend(freed);
        }));
        let first = journal.durable_tid().0;
        Self { inner, first }
    }

    pub fn states(&self) -> BTreeMap<u32, Blocks> {
        self.inner.lock().after.clone()
    }

    pub fn now(&self) -> Blocks {
        self.inner.lock().now.clone()
    }

    /// Takes a free block, or one with metadata, for one handle.
    fn take_meta(&self, random: &mut Random) -> Option<(u64, Option<u64>)> {
        let mut inner = self.inner.lock();
        let metas: Vec<(u64, u64)> = inner
            .now
            .iter()
            .filter(|(block, _)| !inner.busy.contains(block))
            .filter_map(|(&block, content)| match content {
                Content::Meta(value) => Some((block, *value)),
                Content::Data(_) => None,
            })
            .collect();
        if (metas.is_empty() || random.chance(200)) && !inner.free.is_empty() {
            let at = random.below(inner.free.len());
            let block = inner.free.swap_remove(at);
            inner.busy.push(block);
            return Some((block, None));
        }
        if metas.is_empty() {
            return None;
        }
        // A few blocks are changed often.
        let at = random.below(metas.len());
        let at = if random.chance(500) { at % 8 } else { at };
        let (block, value) = metas[at.min(metas.len() - 1)];
        inner.busy.push(block);
        Some((block, Some(value)))
    }

    /// One operation: perhaps data, then a handle with some changes. Returns the transaction.
    pub fn operation(&self, journal: &Journal, random: &mut Random) -> Result<Tid, JournalError> {
        let data = if random.chance(400) {
            self.write_data(journal, random)?
        } else {
            None
        };
        let mut handle = journal.begin(12)?;
        let mut busy = Vec::new();
        let result = self.changes(&mut handle, random, data, &mut busy);
        let tid = handle.tid();
        let mut inner = self.inner.lock();
        inner.busy.retain(|block| !busy.contains(block));
        let now = inner.now.clone();
        inner.after.insert(tid.0.wrapping_sub(self.first), now);
        drop(inner);
        result.map(|()| tid)
    }

    /// Perhaps an operation that is committed beside its data, then another one. Returns the transaction of the latter.
    pub fn operations(
        &self,
        journal: &Journal,
        device: &CrashDevice,
        random: &mut Random,
    ) -> Result<Tid, JournalError> {
        if random.chance(300) {
            self.operation_beside(journal, device, random)?;
        }
        self.operation(journal, random)
    }

    /// An operation with data that is written at the same time as the log, and is committed at once. Does nothing if
    /// other tasks use the journal, and commits nothing if the data was not written.
    fn operation_beside(
        &self,
        journal: &Journal,
        device: &CrashDevice,
        random: &mut Random,
    ) -> Result<(), JournalError> {
        let (tag, size) = (IoTag::default(), journal.block_size);
        let Some(block) = self.inner.lock().free.pop() else {
            return Ok(());
        };
        let value = random.next_u64();
        let buf = Buf::copy_of(&pattern(value, size.bytes()));
        let data = Bio::write(size.offset_of(DevBlock(block)), vec![buf]);
        let data = journal.queue.submit(data, tag);
        let mut committed = None;
        journal.commit_beside(24, tag, |mut handle| {
            let mut busy = Vec::new();
            let mut changed = self.changes(&mut handle, random, None, &mut busy);
            handle.write_log_ahead();
            if random.chance(200) {
                let more = self.changes(&mut handle, random, None, &mut busy);
                changed = changed.and(more);
            }
            let is_written = data.wait().is_ok();
            let mut inner = self.inner.lock();
            if is_written {
                inner.now.insert(block, Content::Data(value));
            }
            inner.busy.retain(|block| !busy.contains(block));
            let now = inner.now.clone();
            let tid = handle.tid();
            inner.after.insert(tid.0.wrapping_sub(self.first), now);
            committed = (is_written && changed.is_ok()).then_some(tid);
            committed.is_some()
        })?;
        match committed {
            Some(tid) => device.ack(tid),
            None => {
                let _ = data.wait();
                self.inner.lock().free.push(block);
            }
        }
        Ok(())
    }

    /// Data is written and waited for before the handle begins that refers to it.
    fn write_data(
        &self,
        journal: &Journal,
        random: &mut Random,
    ) -> Result<Option<(u64, u64)>, JournalError> {
        let block = {
            let mut inner = self.inner.lock();
            if inner.free.is_empty() {
                return Ok(None);
            }
            let at = random.below(inner.free.len());
            inner.free.swap_remove(at)
        };
        let value = random.next_u64();
        let size = journal.block_size;
        let buf = Buf::copy_of(&pattern(value, size.bytes()));
        let offset = size.offset_of(DevBlock(block));
        journal.queue.write(offset, vec![buf], IoTag::default())?;
        Ok(Some((block, value)))
    }

    fn changes(
        &self,
        handle: &mut Handle<'_>,
        random: &mut Random,
        data: Option<(u64, u64)>,
        busy: &mut Vec<u64>,
    ) -> Result<(), JournalError> {
        if let Some((block, value)) = data {
            self.inner.lock().now.insert(block, Content::Data(value));
        }
        for _ in 0..1 + random.below(6) {
            let Some((block, old)) = self.take_meta(random) else {
                continue;
            };
            busy.push(block);
            self.write_meta(handle, random, block, old)?;
            if random.chance(200) {
                handle.forget(DevBlock(block))?;
                let mut inner = self.inner.lock();
                inner.now.remove(&block);
                inner
                    .freed_in
                    .entry(handle.tid().0)
                    .or_default()
                    .push(block);
            }
            if random.chance(100) {
                self.free_some(handle, random, busy)?;
            }
        }
        Ok(())
    }

    fn write_meta(
        &self,
        handle: &mut Handle<'_>,
        random: &mut Random,
        block: u64,
        old: Option<u64>,
    ) -> Result<(), JournalError> {
        let journal = handle.journal();
        let cache = &journal.cache;
        let buf = match old {
            None => cache.get_new(DevBlock(block)),
            Some(_) => cache.get(DevBlock(block), IoTag::default())?,
        };
        let mut bytes = handle.write(&buf)?;
        if let Some(old) = old {
            assert_eq!(
                bytes[..],
                pattern(old, bytes.len()),
                "block {block} went back"
            );
        }
        let mut value = random.next_u64();
        if random.chance(100) {
            value = 0xC03B_3998 << 32 | value >> 32;
        }
        let new = pattern(value, bytes.len());
        bytes.copy_from_slice(&new);
        self.inner.lock().now.insert(block, Content::Meta(value));
        Ok(())
    }

    /// Frees a block, metadata or data, that no handle changes.
    fn free_some(
        &self,
        handle: &mut Handle<'_>,
        random: &mut Random,
        busy: &mut Vec<u64>,
    ) -> Result<(), JournalError> {
        let mut inner = self.inner.lock();
        let idle: Vec<(u64, Content)> = inner
            .now
            .iter()
            .filter(|(block, _)| !inner.busy.contains(block))
            .map(|(&block, &content)| (block, content))
            .collect();
        if idle.is_empty() {
            return Ok(());
        }
        let (block, content) = idle[random.below(idle.len())];
        inner.now.remove(&block);
        inner.busy.push(block);
        busy.push(block);
        drop(inner);
        if let Content::Meta(_) = content {
            handle.forget(DevBlock(block))?;
        }
        let tid = handle.tid().0;
        self.inner
            .lock()
            .freed_in
            .entry(tid)
            .or_default()
            .push(block);
        Ok(())
    }

    /// Commits and records the acknowledgement.
    pub fn commit(
        &self,
        journal: &Journal,
        device: &CrashDevice,
        tid: Tid,
    ) -> Result<Durable, JournalError> {
        let durable = journal.commit(tid, IoTag::default())?;
        // A transaction without changes stays open and acknowledges nothing.
        if journal.durable_tid().at_least(tid) {
            device.ack(tid);
        }
        Ok(durable)
    }
}

/// The first of `states`, from `acked` on, that the image has.
pub fn find_state(
    image: &[u8],
    block_size: usize,
    states: &BTreeMap<u32, Blocks>,
    acked: Option<u32>,
) -> Result<Option<u32>, String> {
    let differs = |(&block, content): (&u64, &Content)| {
        let at = block as usize * block_size;
        let same = image[at..at + block_size] == pattern(content.value(), block_size);
        (!same).then_some((block, *content))
    };
    let mut wrong = String::new();
    let Some(acked) = acked else {
        // Nothing was acknowledged, and the state before the first transaction has no block.
        return Ok(None);
    };
    for (tid, blocks) in states.range(acked..) {
        match blocks.iter().find_map(differs) {
            None => return Ok(Some(*tid)),
            Some((block, content)) => wrong += &format!("{tid}: block {block} not {content:?}; "),
        }
    }
    Err(format!("no state from {acked} on: {wrong}"))
}
