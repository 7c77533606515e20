//! One inode: attributes, content in blocks of 4 KiB, names if it is a directory.

use std::collections::BTreeMap;
use std::sync::Arc;

use steadfs_vfs::{Attr, FallocMode, FsError, ReadData, Result, Seek};

use super::now;

const BLOCK: u64 = 4096;

pub(super) struct Node {
    pub(super) attr: Attr,
    pub(super) lookups: u64,
    pub(super) blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    pub(super) entries: BTreeMap<Vec<u8>, (u64, u64)>,
    pub(super) order: BTreeMap<u64, Vec<u8>>,
    pub(super) parent: u64,
    pub(super) target: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(super) project: u32,
}

impl Node {
    pub(super) fn set_size(&mut self, size: u64) {
        if size < self.attr.size {
            self.blocks.retain(|&b, _| b * BLOCK < size);
            let (last, within) = (size / BLOCK, (size % BLOCK) as usize);
            if let Some(block) = self.blocks.get_mut(&last) {
                Arc::make_mut(block)[within..].fill(0);
            }
        }
        self.attr.size = size;
        self.account();
    }

    pub(super) fn account(&mut self) {
        self.attr.blocks = self.blocks.len() as u64 * BLOCK / 512;
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let within = (at % BLOCK) as usize;
            let n = rest.len().min(BLOCK as usize - within);
            let block = self
                .blocks
                .entry(at / BLOCK)
                .or_insert_with(|| Arc::new(vec![0; BLOCK as usize]));
            Arc::make_mut(block)[within..within + n].copy_from_slice(&rest[..n]);
            at += n as u64;
            rest = &rest[n..];
        }
        self.attr.size = self.attr.size.max(at);
        self.attr.mtime = now();
        self.attr.ctime = now();
        self.account();
    }

    pub(super) fn read(&self, offset: u64, len: usize) -> ReadData {
        let mut out = ReadData::new();
        let end = self.attr.size.min(offset.saturating_add(len as u64));
        let mut at = offset;
        while at < end {
            let within = (at % BLOCK) as usize;
            let n = ((end - at) as usize).min(BLOCK as usize - within);
            match self.blocks.get(&(at / BLOCK)) {
                Some(block) => out.push(block.clone(), within..within + n),
                None => out.push_zeros(n),
            }
            at += n as u64;
        }
        out
    }

    pub(super) fn zero(&mut self, offset: u64, len: u64, keep_blocks: bool) {
        let end = offset + len;
        for b in offset / BLOCK..end.div_ceil(BLOCK) {
            let from = offset.max(b * BLOCK) - b * BLOCK;
            let to = end.min((b + 1) * BLOCK) - b * BLOCK;
            if from == 0 && to == BLOCK && !keep_blocks {
                self.blocks.remove(&b);
            } else if keep_blocks || self.blocks.contains_key(&b) {
                let block = self
                    .blocks
                    .entry(b)
                    .or_insert_with(|| Arc::new(vec![0; BLOCK as usize]));
                Arc::make_mut(block)[from as usize..to as usize].fill(0);
            }
        }
        self.account();
    }

    pub(super) fn allocate(&mut self, mode: FallocMode, offset: u64, len: u64) -> Result<()> {
        let grow = match mode {
            FallocMode::PunchHole => {
                self.zero(offset, len, false);
                false
            }
            FallocMode::ZeroRange { keep_size } => {
                self.zero(offset, len, true);
                !keep_size
            }
            FallocMode::Allocate { keep_size } => !keep_size,
            _ => return Err(FsError::NotSupported("range")),
        };
        if grow {
            self.attr.size = self.attr.size.max(offset + len);
        }
        Ok(())
    }

    pub(super) fn seek(&self, offset: u64, what: Seek) -> Result<u64> {
        let size = self.attr.size;
        if offset >= size {
            return Err(FsError::NoSuchOffset);
        }
        let wanted = what == Seek::Data;
        let mut at = offset;
        while at < size && self.blocks.contains_key(&(at / BLOCK)) != wanted {
            at = (at / BLOCK + 1) * BLOCK;
        }
        match what {
            Seek::Data if at >= size => Err(FsError::NoSuchOffset),
            _ => Ok(at.min(size)),
        }
    }
}
