//! Writes the volume in memory to the device.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use steadfs_base::{BlockSize, DevBlock, IoTag};
use steadfs_block::{Bio, Buf, IoHandle, Queue};

use super::FormatError;
use super::build::Build;
use crate::disk::features::RoCompat;
use crate::disk::num::idx;
use crate::disk::superblock::{STATE_CLEAN, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE};
use crate::disk::{DiskError, GroupDesc, GroupNo, Ino, Inode, bitmap, group_desc};

/// Requests in flight.
const REQUESTS_IN_FLIGHT_MAX: usize = 32;
/// Bytes of a discard or of zeroing in one request.
const REQUEST_BYTES_MAX: u64 = 2 << 30;
/// Bytes around the superblock where another file system may have left its own.
const OLD_SUPERBLOCK: Range<usize> = 1024..4096;

/// Writes blocks; consecutive adjacent blocks are merged into one request.
pub(super) struct Writer<'a> {
    queue: &'a Queue,
    block_size: BlockSize,
    at: DevBlock,
    bufs: Vec<Buf>,
    under_way: VecDeque<IoHandle>,
    written: u64,
}

impl<'a> Writer<'a> {
    pub(super) fn new(queue: &'a Queue, block_size: BlockSize) -> Self {
        Self {
            queue,
            block_size,
            at: DevBlock(0),
            bufs: Vec::new(),
            under_way: VecDeque::new(),
            written: 0,
        }
    }

    fn start(&mut self, bio: Bio) -> Result<(), FormatError> {
        if self.under_way.len() >= REQUESTS_IN_FLIGHT_MAX
            && let Some(oldest) = self.under_way.pop_front()
        {
            oldest.wait()?;
        }
        let io = self.queue.submit(bio, IoTag::default());
        self.under_way.push_back(io);
        Ok(())
    }

    fn put(&mut self, at: DevBlock, block: Buf) -> Result<(), FormatError> {
        let most = u64::from(self.queue.geometry().max_transfer) >> self.block_size.bits();
        let len = self.bufs.len() as u64;
        if len > 0 && (self.at.plus(len) != at || len >= most) {
            self.send()?;
        }
        if self.bufs.is_empty() {
            self.at = at;
        }
        self.written += block.len() as u64;
        self.bufs.push(block);
        Ok(())
    }

    fn send(&mut self) -> Result<(), FormatError> {
        if self.bufs.is_empty() {
            return Ok(());
        }
        let bufs = std::mem::take(&mut self.bufs);
        self.start(Bio::write(self.block_size.offset_of(self.at), bufs))
    }

    /// Waits for all requests in flight.
    fn wait(&mut self) -> Result<(), FormatError> {
        self.send()?;
        for io in self.under_way.drain(..) {
            io.wait()?;
        }
        Ok(())
    }

    fn in_steps(
        &mut self,
        bytes: Range<u64>,
        make: impl Fn(u64, u64) -> Bio,
    ) -> Result<(), FormatError> {
        let mut at = bytes.start;
        while at < bytes.end {
            let len = REQUEST_BYTES_MAX.min(bytes.end - at);
            self.start(make(at, len))?;
            at += len;
        }
        Ok(())
    }

    /// Discards the first `len` bytes, if the device can. Returns whether they then read as zeros.
    pub(super) fn discard(&mut self, len: u64) -> Result<bool, FormatError> {
        if self.queue.geometry().discard_granularity.is_none() {
            return Ok(false);
        }
        self.wait()?;
        // A device may refuse a discard; then nothing has changed, and it is not asked again.
        let mut are_discarded = true;
        let mut at = 0;
        while at < len && are_discarded {
            while at < len && self.under_way.len() < REQUESTS_IN_FLIGHT_MAX {
                let bytes = REQUEST_BYTES_MAX.min(len - at);
                self.start(Bio::discard(at, bytes))?;
                at += bytes;
            }
            let ended: Vec<_> = self.under_way.drain(..).map(|io| io.wait()).collect();
            are_discarded = ended.iter().all(Result::is_ok);
        }
        Ok(are_discarded && self.queue.geometry().discard_zeroes)
    }

    /// Wipes the old superblock, so that an interrupted format leaves no volume.
    pub(super) fn wipe_superblock(&mut self) -> Result<(), FormatError> {
        let mut head = self.queue.read(0, OLD_SUPERBLOCK.end, IoTag::default())?;
        head.make_mut()[OLD_SUPERBLOCK].fill(0);
        self.start(Bio::write(0, vec![head]))?;
        self.wait()?;
        Ok(self.queue.flush(IoTag::default()).wait()?)
    }

    /// Writes zeros to `ranges` of blocks, and waits, as other content may be written there next.
    pub(super) fn zero(&mut self, ranges: &[Range<u64>]) -> Result<(), FormatError> {
        let size = self.block_size;
        for range in ranges {
            let bytes = size.offset_of(DevBlock(range.start))..size.offset_of(DevBlock(range.end));
            self.in_steps(bytes, Bio::write_zeroes)?;
        }
        self.wait()
    }

    /// Writes the whole volume, durably, its superblock last. Returns the bytes written.
    pub(super) fn write(
        mut self,
        build: &mut Build,
        count_kbytes: bool,
    ) -> Result<u64, FormatError> {
        self.write_bitmaps(build)?;
        self.write_inodes(build)?;
        for (at, block) in std::mem::take(&mut build.content) {
            self.put(at, block)?;
        }
        let table = descriptors(build);
        let geo = build.geo.clone();
        let copies = geo.groups().map(|group| {
            let descs = geo.descs_in(group);
            u64::from(geo.has_super(group)) + u64::from(descs.end - descs.start)
        });
        let all = self.written + (copies.sum::<u64>() << self.block_size.bits());
        if count_kbytes {
            build.superblock.add_kbytes_written((all >> 10).max(1));
        }
        for group in geo.groups() {
            let mut at = geo.first_block_of(group);
            if group.0 == 0 {
                at = geo.superblock_place().0.plus(1);
            } else if geo.has_super(group) {
                self.put(at, superblock_copy(build, group))?;
                at = at.plus(1);
            }
            let descs = geo.descs_in(group);
            for block in &table[idx(descs.start)..idx(descs.end)] {
                self.put(at, block.clone())?;
                at = at.plus(1);
            }
        }
        self.wait()?;
        self.queue.flush(IoTag::default()).wait()?;
        self.write_superblock(build)?;
        Ok(all)
    }

    fn write_bitmaps(&mut self, build: &mut Build) -> Result<(), FormatError> {
        let geo = build.geo.clone();
        // In order of block number: in flex groups bitmaps of several groups are adjacent.
        let mut bitmaps: BTreeMap<DevBlock, Buf> = BTreeMap::new();
        for group in geo.groups() {
            let desc = &mut build.descs[idx(group.0)];
            if !desc.block_uninit(&geo) {
                let first = geo.first_block_of(group).0;
                let blocks = geo.blocks_in(group);
                let mut bits = Buf::zeroed(geo.block_size.bytes());
                let bytes = bits.make_mut();
                for run in build.space.used_in(first..first + u64::from(blocks)) {
                    let within = |block| geo.clusters_for(crate::disk::num::low32(block - first));
                    bitmap::set_range(bytes, within(run.start)..within(run.end));
                }
                let clusters = geo.clusters_in(group);
                bitmap::set_range(bytes, clusters..bitmap::bits_in(bytes.len()));
                desc.seal_block_bitmap(&geo, bytes);
                bitmaps.insert(desc.block_bitmap, bits);
            }
            if !desc.inode_uninit(&geo) {
                let mut bits = Buf::zeroed(geo.block_size.bytes());
                let bytes = bits.make_mut();
                group_desc::init_inode_bitmap(&geo, bytes);
                let first = geo.inode_at(group, 0);
                let next = Ino(first.0.saturating_add(geo.inodes_per_group));
                for ino in build.used_inodes.range(first..next) {
                    bitmap::set(bytes, ino.0 - first.0);
                }
                desc.seal_inode_bitmap(&geo, bytes);
                bitmaps.insert(desc.inode_bitmap, bits);
            }
        }
        for (at, bits) in bitmaps {
            self.put(at, bits)?;
        }
        Ok(())
    }

    fn write_inodes(&mut self, build: &Build) -> Result<(), FormatError> {
        let geo = &build.geo;
        let mut blocks: BTreeMap<DevBlock, Buf> = BTreeMap::new();
        let mut enter = |ino: Ino, inode: &Inode| -> Result<(), DiskError> {
            let (group, index) = geo.group_of_inode(ino);
            let (at, offset) = geo.inode_slot(build.descs[idx(group.0)].inode_table, index);
            let block = blocks
                .entry(at)
                .or_insert_with(|| Buf::zeroed(geo.block_size.bytes()));
            let slot = &mut block.make_mut()[offset..offset + usize::from(geo.inode_size)];
            inode.encode_into(geo, ino, slot)
        };
        if geo.has_ro_compat(RoCompat::METADATA_CSUM) {
            // A slot of zeros would be an inode with a wrong checksum.
            for ino in (1..geo.first_ino.0).map(Ino) {
                enter(ino, &Inode::default())?;
            }
        }
        for (&ino, inode) in &build.inodes {
            enter(ino, inode)?;
        }
        for (at, block) in blocks {
            self.put(at, block)?;
        }
        Ok(())
    }

    /// Writes the main superblock; everything else is durable.
    fn write_superblock(&mut self, build: &Build) -> Result<(), FormatError> {
        let (at, offset) = build.geo.superblock_place();
        let size = self.block_size;
        let mut block = if offset > 0 {
            // The bytes before it belong to a boot loader.
            self.queue
                .read(size.offset_of(at), size.bytes(), IoTag::default())?
        } else {
            build.zero_block()
        };
        let bytes = block.make_mut();
        bytes[offset..].fill(0);
        build
            .superblock
            .seal_into(&mut bytes[offset..offset + SUPERBLOCK_SIZE]);
        let bio = Bio::write(size.offset_of(at), vec![block]).with_fua();
        self.start(bio)?;
        self.wait()?;
        Ok(self.queue.flush(IoTag::default()).wait()?)
    }
}

/// The blocks of the descriptor table.
fn descriptors(build: &Build) -> Vec<Buf> {
    let geo = &build.geo;
    let mut table: Vec<Buf> = (0..geo.desc_blocks()).map(|_| build.zero_block()).collect();
    for (desc, group) in build.descs.iter().zip(geo.groups()) {
        let (block, offset) = geo.desc_slot(group);
        let slot = offset..offset + usize::from(geo.desc_size);
        let bytes = table[idx(block)].make_mut();
        GroupDesc::encode_into(desc, geo, group, &mut bytes[slot]);
    }
    table
}

/// The copy of the superblock in `group`. It is marked as not cleanly unmounted, so that a repair from it does not skip
/// the check.
fn superblock_copy(build: &Build, group: GroupNo) -> Buf {
    let mut superblock = build.superblock.clone();
    superblock.set_state(superblock.state() & !STATE_CLEAN);
    let mut block = build.zero_block();
    superblock.seal_copy_into(group, &mut block.make_mut()[..SUPERBLOCK_SIZE]);
    block
}

const _: () = assert!(OLD_SUPERBLOCK.start as u64 == SUPERBLOCK_OFFSET);
