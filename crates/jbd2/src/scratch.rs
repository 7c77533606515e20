//! A device whose writes stay in memory: what a change would do to a volume is computed without changing it.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_base::{BlockSize, DevBlock};
use steadfs_block::{Bio, Buf, Device, Done, Geometry, IoError, Op};
use steadfs_rt::{Mutex, Rank};

use crate::overlay::{blocks_of, patch};

/// A writable copy of a device that is only read. It keeps each block that was written.
pub struct ScratchDevice {
    inner: Arc<dyn Device>,
    geometry: Geometry,
    block_size: BlockSize,
    written: Mutex<BTreeMap<DevBlock, Buf>>,
}

impl ScratchDevice {
    /// A copy of `inner`, which must not change.
    pub fn new(inner: Arc<dyn Device>, block_size: BlockSize) -> Self {
        let geometry = Geometry {
            read_only: false,
            discard_granularity: None,
            discard_zeroes: false,
            ..inner.geometry().clone()
        };
        Self {
            inner,
            geometry,
            block_size,
            written: Mutex::new(Rank::DeviceInner, BTreeMap::new()),
        }
    }

    /// The blocks that were written, with their content.
    pub fn take_written(&self) -> BTreeMap<DevBlock, Buf> {
        std::mem::take(&mut *self.written.lock())
    }

    fn read(&self, bio: Bio, done: Done) {
        let size = self.block_size;
        let written: Vec<(u64, Buf)> = match blocks_of(&bio, size) {
            None => Vec::new(),
            Some(range) => {
                let written = self.written.lock();
                let inside = written.range(range);
                inside
                    .map(|(&block, buf)| (size.offset_of(block), buf.clone()))
                    .collect()
            }
        };
        let patched: Done = Box::new(move |mut bio, result| {
            for (at, buf) in written {
                patch(&mut bio, at, false, buf);
            }
            done(bio, result);
        });
        self.inner.start(bio, patched);
    }

    /// Keeps the blocks of a write, which is made of whole ones.
    fn write(&self, bio: &Bio) -> Result<(), IoError> {
        let len = self.block_size.bytes();
        let whole = bio.bufs.iter().all(|buf| buf.len().is_multiple_of(len));
        if !whole || !bio.offset.is_multiple_of(self.block_size.bytes_u64()) {
            return Err(IoError::of(bio, "a part of a block is written"));
        }
        let mut at = DevBlock(bio.offset >> self.block_size.bits());
        let mut written = self.written.lock();
        for buf in &bio.bufs {
            for block in buf.chunks(len) {
                written.insert(at, Buf::copy_of(block));
                at = at.plus(1);
            }
        }
        Ok(())
    }
}

impl Device for ScratchDevice {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn start(&self, bio: Bio, done: Done) {
        let result = match bio.op {
            Op::Read => return self.read(bio, done),
            Op::Write => self.write(&bio),
            Op::Flush => Ok(()),
            Op::Discard | Op::WriteZeroes => Err(IoError::of(&bio, "not supported")),
        };
        done(bio, result);
    }

    fn background_depth(&self) -> usize {
        self.inner.background_depth()
    }

    fn help(&self, until: &dyn Fn() -> bool) {
        self.inner.help(until);
    }
}
