//! Moving file blocks to other device blocks without changing them, for GC.

use steadfs_base::IoTag;
use steadfs_block::{Bio, Buf, IoHandle};
use steadfs_vfs::Result;

use super::BLOCK;
use crate::disk::{BlockAddr, DiskError, LogType, Structure};
use crate::fs::{F2fs, io_error};
use crate::inode::Inode;
use crate::node::SlotLookup;
use crate::segment::{Purpose, Run};

/// A file block, and the address that the segment summary has for it.
pub type BlockToMove = (u64, BlockAddr);

impl F2fs {
    /// Moves those of `blocks` that still have the address the caller knows to the log of cold data, or with `atgc`
    /// to a segment of similar age. Returns their number. It is 0 while another task works on the file's content:
    /// the caller, which may hold any lock ranked before the flush lock, retries later.
    ///
    /// # Errors
    /// A device failure; `NoSpace` if no segment is free. No data is lost, and blocks moved before the error stay
    /// moved.
    pub(crate) fn relocate_blocks(
        &self,
        inode: &Inode,
        blocks: &[BlockToMove],
        atgc: bool,
        tag: IoTag,
    ) -> Result<u64> {
        // For writing: a reader has looked up these addresses and may still be waiting for the device.
        let Some(_exclusive) = inode.lock.try_write() else {
            return Ok(0);
        };
        // Removed while the caller waited for this lock, or before.
        if inode.marks.is_dead() {
            return Ok(0);
        }
        // No write-back overwrites them meanwhile.
        let _flush = inode.lock_flush();
        let mut valid = Vec::with_capacity(blocks.len());
        for &(block, addr) in blocks {
            if self.slot(inode, block, tag)? == addr && addr.is_block() {
                valid.push((block, addr));
            }
        }
        let content = self.read_valid(&valid, tag)?;
        let mut done = 0;
        while done < valid.len() {
            let want = (valid.len() - done).min(self.blocks_to_write(tag)) as u32;
            let segments = self.segments();
            let aged = match atgc {
                true => segments.allocate_atgc(valid[done].1, want),
                false => None,
            };
            let run = match aged {
                Some(run) => run,
                None => segments.allocate(LogType::ColdData, want, Purpose::Moved)?,
            };
            let end = done + run.len as usize;
            let (valid, content) = (&valid[done..end], &content[done..end]);
            self.move_run(inode, valid, content, (run, atgc), tag)?;
            done = end;
        }
        Ok(valid.len() as u64)
    }

    /// Reads the blocks, consecutive ones with one request.
    fn read_valid(&self, valid: &[BlockToMove], tag: IoTag) -> Result<Vec<Buf>> {
        let most = self.queue.geometry().max_transfer as usize / BLOCK as usize;
        let mut ios: Vec<IoHandle> = Vec::new();
        let mut rest = valid;
        while let Some(&(_, first)) = rest.first() {
            let next = |(n, at): &(u32, &BlockToMove)| Some(at.1.0) == first.0.checked_add(*n);
            let len = (0..).zip(rest).take(most.max(1)).take_while(next).count();
            let bio = Bio::read(u64::from(first.0) * BLOCK, len * BLOCK as usize);
            ios.push(self.queue.submit(bio, tag));
            rest = &rest[len..];
        }
        let mut content = Vec::with_capacity(valid.len());
        for io in ios {
            for buf in io.into_bio().map_err(io_error)?.bufs {
                content.extend(buf.chunks(BLOCK as usize).map(Buf::copy_of));
            }
        }
        Ok(content)
    }

    fn move_run(
        &self,
        inode: &Inode,
        valid: &[BlockToMove],
        content: &[Buf],
        (run, atgc): (Run, bool),
        tag: IoTag,
    ) -> Result<()> {
        let bio = Bio::write(u64::from(run.start.0) * BLOCK, content.to_vec());
        let written = self.queue.submit(bio, tag).wait().map_err(io_error);
        let mut mapped = 0;
        let result =
            written.and_then(|()| self.map_moved(inode, valid, (run, atgc), &mut mapped, tag));
        if mapped < run.len {
            self.segments().release(Run {
                start: run.start.plus(mapped),
                len: run.len - mapped,
            });
        }
        inode.record_written(true, self.queue.next_flush());
        result
    }

    fn map_moved(
        &self,
        inode: &Inode,
        valid: &[BlockToMove],
        (run, atgc): (Run, bool),
        mapped: &mut u32,
        tag: IoTag,
    ) -> Result<()> {
        let change = self.change()?;
        let mut core = inode.core.write();
        for (&(block, addr), to) in valid.iter().zip(run.blocks()) {
            // Slots change only under one of the locks held here.
            let SlotLookup::Slot(slot) = self.find_slot(inode, &core, block, tag)? else {
                let rule = "has no slot in its node while GC moves it";
                let error = DiskError::field(Structure::Node, "block", addr.0, rule);
                return Err(error.in_node(inode.nid()).into());
            };
            let old = self.set_slot(&change, inode, &mut core, &slot, to, tag)?;
            assert!(old == addr, "slots change only under the locks held here");
            match atgc {
                true => self.segments().set_valid_atgc(to, slot.owner(), addr),
                false => self.segments().set_valid(to, slot.owner()),
            }
            *mapped += 1;
        }
        Ok(())
    }
}
