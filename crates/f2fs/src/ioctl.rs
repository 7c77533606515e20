//! f2fs's own ioctls, with the kernel's numbers and structures (linux/f2fs.h). Those that are not supported are refused by
//! name.

use std::collections::BTreeSet;

use steadfs_vfs::{Cx, FileKind, FsError, IoctlAnswer, Result};

use crate::checkpoint::Reason;
use crate::data::MapTarget;
use crate::disk::inode::Inline;
use crate::disk::{BLOCK_SIZE, BlockAddr, Features, SEGMENT_BLOCKS};
use crate::fs::F2fs;
use crate::inode::Inode;
use crate::options::Mode;

const MAGIC: u32 = 0xf5 << 8;
const WRITE: u32 = 1 << 30;
const READ: u32 = 2 << 30;

const fn sized(size: u32, number: u32) -> u32 {
    size << 16 | MAGIC | number
}

const START_ATOMIC_WRITE: u32 = sized(0, 1);
const COMMIT_ATOMIC_WRITE: u32 = sized(0, 2);
const ABORT_ATOMIC_WRITE: u32 = sized(0, 5);
const GARBAGE_COLLECT: u32 = WRITE | sized(4, 6);
const WRITE_CHECKPOINT: u32 = sized(0, 7);
const DEFRAGMENT: u32 = WRITE | READ | sized(16, 8);
const GARBAGE_COLLECT_RANGE: u32 = WRITE | sized(24, 11);
const GET_FEATURES: u32 = READ | sized(4, 12);
const SET_PIN_FILE: u32 = WRITE | sized(4, 13);
const GET_PIN_FILE: u32 = READ | sized(4, 14);
const PRECACHE_EXTENTS: u32 = sized(0, 15);
const GET_COMPRESS_BLOCKS: u32 = READ | sized(8, 17);
const RELEASE_COMPRESS_BLOCKS: u32 = READ | sized(8, 18);
const RESERVE_COMPRESS_BLOCKS: u32 = READ | sized(8, 19);
const GET_COMPRESS_OPTION: u32 = READ | sized(2, 21);
const SET_COMPRESS_OPTION: u32 = WRITE | sized(2, 22);
const DECOMPRESS_FILE: u32 = sized(0, 23);
const COMPRESS_FILE: u32 = sized(0, 24);
const START_ATOMIC_REPLACE: u32 = sized(0, 25);

/// Known ioctls that are not supported, by number, with the reason.
const UNSUPPORTED: &[(u32, &str)] = &[
    (3, "F2FS_IOC_START_VOLATILE_WRITE: removed from Linux"),
    (4, "F2FS_IOC_RELEASE_VOLATILE_WRITE: removed from Linux"),
    (
        9,
        "F2FS_IOC_MOVE_RANGE: files of another process are not seen; use copy_file_range",
    ),
    (10, "F2FS_IOC_FLUSH_DEVICE: volumes on several devices"),
    (
        16,
        "F2FS_IOC_RESIZE_FS: changing the size of a mounted volume",
    ),
    (20, "F2FS_IOC_SEC_TRIM_FILE: erasing single files"),
    (26, "F2FS_IOC_GET_DEV_ALIAS_FILE: device aliases"),
    (27, "F2FS_IOC_IO_PRIO: I/O priorities of files"),
];

/// Sections that one request for GC may try.
const GC_ATTEMPTS_MAX: usize = 16;
/// Blocks that one defragmentation moves at a time.
const BLOCKS_PER_STEP: u64 = 2048;

fn word32(input: &[u8], at: usize) -> Result<u32> {
    let bytes = input.get(at..at + 4).and_then(|b| b.first_chunk());
    bytes
        .map(|b| u32::from_ne_bytes(*b))
        .ok_or(FsError::Invalid("the argument is too short"))
}

fn word64(input: &[u8], at: usize) -> Result<u64> {
    let bytes = input.get(at..at + 8).and_then(|b| b.first_chunk());
    bytes
        .map(|b| u64::from_ne_bytes(*b))
        .ok_or(FsError::Invalid("the argument is too short"))
}

/// Whether an ioctl changes how a file may be written or is stored. The others move blocks, or only return something;
/// atomic writes are not recorded (`takeover=on` refuses them).
pub(crate) fn changes_files(command: u32) -> bool {
    [
        START_ATOMIC_WRITE,
        START_ATOMIC_REPLACE,
        COMMIT_ATOMIC_WRITE,
        ABORT_ATOMIC_WRITE,
        SET_PIN_FILE,
        RELEASE_COMPRESS_BLOCKS,
        RESERVE_COMPRESS_BLOCKS,
        SET_COMPRESS_OPTION,
        DECOMPRESS_FILE,
        COMPRESS_FILE,
    ]
    .contains(&command)
}

fn check_admin(cx: &Cx) -> Result<()> {
    match cx.admin {
        true => Ok(()),
        false => Err(FsError::NotPermitted),
    }
}

impl F2fs {
    /// See [`steadfs_vfs::FileSystem::ioctl`].
    pub(crate) fn own_ioctl(
        &self,
        cx: &Cx,
        inode: &Inode,
        command: u32,
        input: &[u8],
    ) -> Result<Option<IoctlAnswer>> {
        let word = |word: u32| IoctlAnswer::bytes(word.to_ne_bytes().to_vec());
        let blocks = |blocks: u64| IoctlAnswer::bytes(blocks.to_ne_bytes().to_vec());
        let done = |()| IoctlAnswer::default();
        let answer = match command {
            GARBAGE_COLLECT => {
                let wait = word32(input, 0)? != 0;
                self.gc_on_request(cx, wait).map(done)
            }
            GARBAGE_COLLECT_RANGE => {
                let (start, len) = (word64(input, 8)?, word64(input, 16)?);
                self.gc_range(cx, start, len).map(done)
            }
            WRITE_CHECKPOINT => self.checkpoint_on_request(cx).map(done),
            DEFRAGMENT => {
                let (start, len) = (word64(input, 0)?, word64(input, 8)?);
                let moved = self.defragment(cx, inode, start, len)?;
                let range = [start.to_ne_bytes(), moved.to_ne_bytes()].concat();
                Ok(IoctlAnswer::bytes(range))
            }
            GET_FEATURES => Ok(word(self.features_shown().0)),
            START_ATOMIC_WRITE => self.start_atomic_write(cx, inode, false),
            START_ATOMIC_REPLACE => self.start_atomic_write(cx, inode, true),
            COMMIT_ATOMIC_WRITE => self.commit_atomic_write(cx, inode),
            ABORT_ATOMIC_WRITE => self.abort_atomic_write(cx, inode),
            SET_PIN_FILE => {
                let failures = self.set_pin(cx, inode, word32(input, 0)? != 0)?;
                Ok(IoctlAnswer::result(i32::from(failures)))
            }
            GET_PIN_FILE => {
                let core = inode.core.read();
                let pinned = core.inline.contains(Inline::PINNED);
                let failures = if pinned { core.depth & 0xffff } else { 0 };
                Ok(IoctlAnswer {
                    result: failures as i32,
                    ..word(failures)
                })
            }
            PRECACHE_EXTENTS => self.precache_extents(cx, inode).map(done),
            GET_COMPRESS_BLOCKS => self
                .compression_of(inode)
                .map(|how| blocks(how.saved_blocks)),
            RELEASE_COMPRESS_BLOCKS => self.release_saved(cx, inode).map(blocks),
            RESERVE_COMPRESS_BLOCKS => self.reserve_saved(cx, inode).map(blocks),
            GET_COMPRESS_OPTION => self
                .compression_of(inode)
                .map(|how| IoctlAnswer::bytes(vec![how.algorithm, how.log_cluster])),
            SET_COMPRESS_OPTION => self.set_compression(cx, inode, input).map(done),
            DECOMPRESS_FILE => self.recompress(cx, inode, false).map(done),
            COMPRESS_FILE => self.recompress(cx, inode, true).map(done),
            other if other & 0xff00 == MAGIC => {
                let number = other & 0xff;
                match UNSUPPORTED.iter().find(|(refused, _)| *refused == number) {
                    Some((_, name)) => Err(FsError::NotSupported(name)),
                    None => return Ok(None),
                }
            }
            _ => return Ok(None),
        };
        answer.map(Some)
    }

    /// The volume's features. As in Linux, SQLite learns by one that no volume has that it can write atomically.
    fn features_shown(&self) -> Features {
        let features = self.superblock.features();
        match self.has_atomic_writes() {
            true => features.union(Features::ATOMIC_WRITE),
            false => features,
        }
    }

    fn check_may_gc(&self, cx: &Cx) -> Result<()> {
        check_admin(cx)?;
        self.check_writable()
    }

    /// Runs GC on the section with the fewest valid blocks.
    fn gc_on_request(&self, cx: &Cx, wait: bool) -> Result<()> {
        self.check_may_gc(cx)?;
        if !wait && self.is_gc_running() {
            return Err(FsError::Busy);
        }
        let mut tried = BTreeSet::new();
        let (mut emptied, mut failed) = (Some(false), false);
        while emptied == Some(false) && tried.len() < GC_ATTEMPTS_MAX {
            let done = self.clean_one(&mut tried, cx.tag)?;
            failed |= done.is_some_and(|done| done.failed);
            emptied = done.map(|done| done.is_emptied());
        }
        // Files that are not pinned any more are tried again.
        self.segments().forget_pins();
        self.checkpoint(Reason::Sync, cx.tag)?;
        match emptied {
            Some(true) => Ok(()),
            None if tried.is_empty() => Err(FsError::NoData),
            _ if failed => Err(unreadable()),
            _ => Err(FsError::Again("a block is in use and could not be moved")),
        }
    }

    /// Runs GC on each section with valid blocks in a range of device blocks.
    fn gc_range(&self, cx: &Cx, start: u64, len: u64) -> Result<()> {
        self.check_may_gc(cx)?;
        let wrong = FsError::Invalid("the range is not within the main area");
        let end = start.checked_add(len).filter(|end| *end > start);
        let end = end.ok_or(wrong.clone())?;
        let (main, blocks) = (self.layout.main_start, self.layout.main_blocks());
        let (main, last) = (u64::from(main), u64::from(main) + u64::from(blocks));
        if start < main || end > last {
            return Err(wrong);
        }
        let size = u64::from(self.layout.segments_per_section * SEGMENT_BLOCKS);
        let (first, end_section) = ((start - main) / size, (end - main).div_ceil(size));
        let mut failed = false;
        for section in first..end_section {
            failed |= self.clean_section(section as u32, cx.tag)?.failed;
        }
        self.checkpoint(Reason::Sync, cx.tag)?;
        match failed {
            true => Err(unreadable()),
            false => Ok(()),
        }
    }

    fn checkpoint_on_request(&self, cx: &Cx) -> Result<()> {
        self.check_may_gc(cx)?;
        if self.is_cp_disabled() {
            return Err(FsError::Invalid(
                "checkpoints are disabled (checkpoint=disable)",
            ));
        }
        self.request_checkpoint(cx.tag)
    }

    /// Moves the blocks of a range of a file so that they are contiguous. Returns the number of bytes moved, 0 if
    /// they are contiguous already.
    fn defragment(&self, cx: &Cx, inode: &Inode, start: u64, len: u64) -> Result<u64> {
        self.check_may_gc(cx)?;
        let size = BLOCK_SIZE as u64;
        if inode.kind() != FileKind::Regular || !(start | len).is_multiple_of(size) {
            return Err(FsError::Invalid(
                "F2FS_IOC_DEFRAGMENT needs whole blocks of a regular file",
            ));
        }
        if inode.core.read().inline.contains(Inline::PINNED) {
            return Err(FsError::Invalid("the file is pinned"));
        }
        self.check_not_atomic(inode)?;
        let end = start.checked_add(len).ok_or(FsError::FileTooBig)? / size;
        let end = end.min(inode.size().div_ceil(size));
        let mut moved = 0;
        let mut at = start / size;
        while at < end {
            let step = at..end.min(at + BLOCKS_PER_STEP);
            at = step.end;
            let blocks = self.blocks_in(cx, inode, step)?;
            let follows = |pair: &[(u64, BlockAddr)]| pair[0].1.plus(1) == pair[1].1;
            if blocks.len() < 2 || blocks.windows(2).all(follows) {
                continue;
            }
            self.balance(cx.tag)?;
            moved += self.relocate_blocks(inode, &blocks, false, cx.tag)?;
        }
        Ok(moved * size)
    }

    /// The addresses of the allocated blocks of a range.
    fn blocks_in(
        &self,
        cx: &Cx,
        inode: &Inode,
        range: std::ops::Range<u64>,
    ) -> Result<Vec<(u64, BlockAddr)>> {
        let _shared = inode.lock.read();
        let mut blocks = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let mapped = self.map(inode, at, range.end - at, cx.tag)?;
            if let MapTarget::Block(start) = mapped.target {
                let each = (0..mapped.len).map(|n| (at + n, start.plus(n as u32)));
                blocks.extend(each);
            }
            at += mapped.len;
        }
        Ok(blocks)
    }

    /// Reads the nodes that map a file into the cache.
    fn precache_extents(&self, cx: &Cx, inode: &Inode) -> Result<()> {
        if inode.kind() != FileKind::Regular {
            return Err(FsError::NotSupported(
                "F2FS_IOC_PRECACHE_EXTENTS for anything but regular files",
            ));
        }
        let end = inode.size().div_ceil(BLOCK_SIZE as u64);
        let mut at = 0;
        while at < end {
            let _shared = inode.lock.read();
            if inode.is_content_inline() {
                return Ok(());
            }
            at += self.map(inode, at, end - at, cx.tag)?.len;
        }
        Ok(())
    }

    /// Pins a file (GC does not move its blocks) or unpins it. Returns how often GC has met its blocks.
    fn set_pin(&self, cx: &Cx, inode: &Inode, pin: bool) -> Result<u16> {
        let _exclusive = inode.lock.write();
        if inode.kind() != FileKind::Regular {
            return Err(FsError::Invalid("only regular files can be pinned"));
        }
        if cx.uid != 0 && cx.uid != inode.core.read().uid {
            return Err(FsError::Access);
        }
        self.check_writable()?;
        self.check_not_atomic(inode)?;
        if pin {
            if self.options.read().mode == Mode::Lfs {
                return Err(FsError::Invalid("files cannot be pinned with mode=lfs"));
            }
            self.check_may_change(inode)?;
            if !inode.is_pinned() && self.has_blocks(inode) {
                // Its blocks are not in sections of their own.
                return Err(FsError::FileTooBig);
            }
            self.leave_inline(cx, inode)?;
            self.end_compression(inode, cx.tag)?;
        }
        let change = self.change()?;
        let mut core = inode.core.write();
        if core.inline.contains(Inline::PINNED) != pin {
            self.mark_dirty(&change, inode, cx.tag)?;
            core.inline = if pin {
                core.inline.union(Inline::PINNED)
            } else {
                core.inline.without(Inline::PINNED)
            };
            core.depth = 0;
        }
        Ok(core.depth as u16)
    }

    /// Counts that foreground GC met blocks of a pinned file, and unpins the file after `gc_pin_file_thresh` times.
    /// As in the kernel, background GC does not count. Nothing is counted while another task holds the file's lock:
    /// it may be the caller, or be freeing the file.
    pub(crate) fn count_pin(&self, inode: &Inode) -> Result<()> {
        let Some(_there) = inode.lock.try_read() else {
            return Ok(());
        };
        if inode.marks.is_dead() {
            return Ok(());
        }
        let most = self.gc.tunables.lock().pin_thresh;
        let change = self.change()?;
        let mut core = inode.core.write();
        self.mark_dirty(&change, inode, Default::default())?;
        core.depth = (core.depth & 0xffff) + 1;
        if core.depth >= most.min(0xffff) {
            tracing::warn!(ino = %inode.nid(), "unpinned a file that blocked garbage collection too often (gc_pin_file_thresh)");
            core.inline = core.inline.without(Inline::PINNED);
            core.depth = 0;
        }
        Ok(())
    }
}

/// GC left something where it is.
fn unreadable() -> FsError {
    FsError::Io("GC could not read what a section has".to_owned())
}

#[cfg(test)]
mod tests;
