//! Where a clean volume has its metadata, so that it can be corrupted with correct checksums.

use steadfs_base::DevBlock;
use steadfs_base::checksum::{crc16, crc32c};
use steadfs_ext4::disk::dir_entry::{self, DirLayout};
use steadfs_ext4::disk::extent::ExtentNode;
use steadfs_ext4::disk::superblock::JournalPlace;
use steadfs_ext4::disk::{
    ChecksumSeed, Geometry, GroupDesc, GroupNo, Ino, Inode, RoCompat, Superblock, indirect, inode,
    orphan_file,
};
use steadfs_lab::device::Image;
use steadfs_vfs::{FileKind, InodeFlags};

/// The content of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The superblock.
    Super,
    /// Group descriptors.
    Descriptors,
    /// A block bitmap.
    BlockBitmap,
    /// An inode bitmap.
    InodeBitmap,
    /// Inodes.
    Inodes,
    /// Directory entries.
    Entries,
    /// A directory's hash index.
    Index,
    /// Extents.
    Extents,
    /// Indirect blocks.
    Indirect,
    /// Extended attributes.
    Attributes,
    /// The journal's superblock.
    JournalSuper,
    /// The log.
    Log,
    /// The orphan file.
    Orphans,
}

/// One block of metadata.
#[derive(Clone, Copy, Debug)]
pub struct MetadataBlock {
    /// Its content.
    pub part: Part,
    /// Its number.
    pub block: u64,
    /// Seed of the owning inode's checksums, or of the volume's if it has no owner.
    pub seed: ChecksumSeed,
    /// The group, for bitmaps; the first inode, for inode tables; otherwise the owning inode.
    pub number: u32,
}

/// All metadata of a volume.
pub struct Survey {
    /// The volume's geometry.
    pub geo: Geometry,
    /// Every block of metadata.
    pub metadata: Vec<MetadataBlock>,
    /// Kinds of blocks in the volume.
    pub parts: Vec<Part>,
    /// Numbers of inodes in use.
    pub inodes: Vec<u32>,
    /// Blocks of the journal, in the order of the log.
    pub journal: Vec<u64>,
    journal_uuid: [u8; 16],
}

impl Survey {
    /// Reads a clean volume.
    ///
    /// # Panics
    /// If it is not clean.
    pub fn of(image: &Image) -> Self {
        let mut raw = [0; 1024];
        image.read(1024, &mut raw);
        let sb = Superblock::parse(&raw).expect("a good superblock");
        let geo = sb.geometry().clone();
        let mut survey = Self {
            metadata: Vec::new(),
            parts: Vec::new(),
            inodes: Vec::new(),
            journal: Vec::new(),
            journal_uuid: [0; 16],
            geo,
        };
        survey.add(Part::Super, survey.geo.superblock_place().0.0, 0, None);
        for n in 0..survey.geo.desc_blocks() {
            let block = survey.geo.desc_block_at(n).0;
            survey.add(Part::Descriptors, block, 0, None);
        }
        for group in 0..survey.geo.group_count {
            survey.group(image, &sb, group);
        }
        survey.parts = survey.metadata.iter().map(|meta| meta.part).collect();
        survey.parts.sort_unstable();
        survey.parts.dedup();
        survey
    }

    fn add(&mut self, part: Part, block: u64, number: u32, seed: Option<ChecksumSeed>) {
        let seed = seed.unwrap_or(self.geo.seed);
        self.metadata.push(MetadataBlock {
            part,
            block,
            seed,
            number,
        });
    }

    /// The blocks of a kind.
    pub fn of_part(&self, part: Part) -> impl Iterator<Item = &MetadataBlock> {
        self.metadata.iter().filter(move |meta| meta.part == part)
    }

    /// A block's content.
    pub fn block(&self, image: &Image, block: u64) -> Vec<u8> {
        let size = self.geo.block_size.bytes();
        let mut bytes = vec![0; size];
        image.read(block * size as u64, &mut bytes);
        bytes
    }

    /// Where an inode is stored: its block, and the byte offset in the image.
    pub fn inode_place(&self, image: &Image, ino: u32) -> (u64, u64) {
        let (group, index) = self.geo.group_of_inode(Ino(ino));
        let (_, desc) = self.desc(image, group.0);
        let (block, at) = self.geo.inode_slot(desc.inode_table, index);
        let offset = block.0 * self.geo.block_size.bytes_u64() + at as u64;
        (block.0, offset)
    }

    fn desc(&self, image: &Image, group: u32) -> (u64, GroupDesc) {
        let (n, at) = self.geo.desc_slot(GroupNo(group));
        let offset = self.geo.desc_block_at(n).0 * self.geo.block_size.bytes_u64() + at as u64;
        let mut slot = vec![0; self.geo.desc_size.into()];
        image.read(offset, &mut slot);
        (offset, GroupDesc::decode(&self.geo, &slot))
    }

    fn group(&mut self, image: &Image, sb: &Superblock, group: u32) {
        let (_, desc) = self.desc(image, group);
        self.add(Part::BlockBitmap, desc.block_bitmap.0, group, None);
        self.add(Part::InodeBitmap, desc.inode_bitmap.0, group, None);
        let used = desc.inodes_in_use_limit(&self.geo);
        let size = u32::from(self.geo.inode_size);
        let per_block = self.geo.inodes_per_block();
        for n in 0..used.div_ceil(per_block) {
            let block = desc.inode_table.0 + u64::from(n);
            let bytes = self.block(image, block);
            let mut any = false;
            for (i, slot) in (0..).zip(bytes.chunks(size as usize)) {
                let index = n * per_block + i;
                let ino = self.geo.inode_at(GroupNo(group), index);
                let inode = Inode::decode(&self.geo, slot).ok();
                let Some(inode) = inode.filter(|inode| inode.mode != 0) else {
                    continue;
                };
                any = true;
                self.inodes.push(ino.0);
                self.inode(image, sb, ino, &inode);
            }
            if any {
                let first = self.geo.inode_at(GroupNo(group), n * per_block);
                self.add(Part::Inodes, block, first.0, None);
            }
        }
    }

    fn inode(&mut self, image: &Image, sb: &Superblock, ino: Ino, inode: &Inode) {
        let seed = inode.seed(&self.geo, ino);
        if let Some(block) = inode.file_acl {
            self.add(Part::Attributes, block.0, ino.0, None);
        }
        let kind = FileKind::from_mode(inode.mode.into());
        let mapped = matches!(kind, Some(FileKind::Regular | FileKind::Directory))
            || (kind == Some(FileKind::Symlink) && !inode.is_fast_symlink(&self.geo));
        // EXT4_INLINE_DATA_FL
        if !mapped || inode.flags.0 & 0x1000_0000 != 0 {
            return;
        }
        let mut data = Vec::new();
        if inode.flags.contains(InodeFlags::EXTENTS) {
            self.extents(image, &inode.block, (ino, seed), &mut data);
        } else {
            self.pointers(image, &inode.block, (ino, seed), &mut data);
        }
        let journal = matches!(sb.journal(), JournalPlace::Inode(journal) if journal == ino);
        for (index, block) in data {
            if journal {
                self.journal.push(block);
                let part = if index == 0 {
                    Part::JournalSuper
                } else {
                    Part::Log
                };
                // Most of a log was never written: only its start is corrupted.
                if index < 64 {
                    self.add(part, block, 0, None);
                }
                if index == 0 {
                    let bytes = self.block(image, block);
                    self.journal_uuid.copy_from_slice(&bytes[0x30..0x40]);
                }
            } else if sb.orphan_file() == Some(ino) {
                self.add(Part::Orphans, block, ino.0, Some(seed));
            } else if kind == Some(FileKind::Directory) {
                let bytes = self.block(image, block);
                let part = self.directory_part(inode, index, &bytes);
                self.add(part, block, ino.0, Some(seed));
            }
        }
    }

    fn directory_part(&self, inode: &Inode, index: u64, bytes: &[u8]) -> Part {
        let whole = u16::from_le_bytes([bytes[4], bytes[5]]);
        let alone = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) == 0
            && usize::from(whole) == self.geo.block_size.bytes();
        if inode.flags.contains(InodeFlags::INDEX) && (index == 0 || alone) {
            Part::Index
        } else {
            Part::Entries
        }
    }

    fn extents(
        &mut self,
        image: &Image,
        bytes: &[u8],
        owner: (Ino, ChecksumSeed),
        data: &mut Vec<(u64, u64)>,
    ) {
        let node = ExtentNode::view(bytes).expect("a good extent node");
        if node.depth() == 0 {
            for extent in node.extents() {
                for n in 0..u64::from(extent.len) {
                    data.push((extent.block.0 + n, extent.start.0 + n));
                }
            }
            return;
        }
        let children: Vec<_> = node.indexes().map(|index| index.child.0).collect();
        for block in children {
            self.add(Part::Extents, block, owner.0.0, Some(owner.1));
            let bytes = self.block(image, block);
            self.extents(image, &bytes, owner, data);
        }
    }

    fn pointers(
        &mut self,
        image: &Image,
        i_block: &[u8],
        owner: (Ino, ChecksumSeed),
        data: &mut Vec<(u64, u64)>,
    ) {
        let per_block = indirect::per_block(&self.geo);
        let bases = indirect::bases(per_block);
        for (n, block) in (0..12).zip(numbers(i_block)) {
            if block != 0 {
                data.push((n, block.into()));
            }
        }
        for level in 0..3 {
            let block = numbers(i_block).nth(12 + level).unwrap_or(0);
            if block != 0 {
                let span = u64::from(per_block).pow(u32::try_from(level).unwrap_or(0));
                self.pointer_block(image, block.into(), bases[level + 1], span, owner, data);
            }
        }
    }

    fn pointer_block(
        &mut self,
        image: &Image,
        block: u64,
        base: u64,
        span: u64,
        owner: (Ino, ChecksumSeed),
        data: &mut Vec<(u64, u64)>,
    ) {
        self.add(Part::Indirect, block, owner.0.0, Some(owner.1));
        let bytes = self.block(image, block);
        for (n, child) in (0..).zip(numbers(&bytes)) {
            if child == 0 {
                continue;
            }
            let at = base + n * span;
            if span == 1 {
                data.push((at, child.into()));
            } else {
                let span = span / u64::from(indirect::per_block(&self.geo));
                self.pointer_block(image, child.into(), at, span, owner, data);
            }
        }
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let words = bytes.chunks_exact(4);
    words.map(|word| u32::from_le_bytes(word.try_into().expect("four bytes")))
}

/// Updating checksums, as an attacker would.
impl Survey {
    /// Updates the checksums of a corrupted block.
    pub fn seal(&self, image: &mut Image, meta: &MetadataBlock) {
        match meta.part {
            Part::BlockBitmap | Part::InodeBitmap => self.seal_bitmap(image, meta),
            Part::Super => self.seal_super(image),
            Part::Descriptors => self.seal_descriptors(image, meta.block),
            _ => {
                let mut bytes = self.block(image, meta.block);
                self.seal_block(&mut bytes, meta);
                image.write(meta.block * self.geo.block_size.bytes_u64(), &bytes);
            }
        }
    }

    fn seal_super(&self, image: &mut Image) {
        let mut raw = [0; 1024];
        image.read(1024, &mut raw);
        let sum = crc32c(!0, &raw[..1020]);
        image.write(1024 + 1020, &sum.to_le_bytes());
    }

    fn seal_descriptors(&self, image: &mut Image, block: u64) {
        for group in 0..self.geo.group_count {
            let (n, _) = self.geo.desc_slot(GroupNo(group));
            if self.geo.desc_block_at(n).0 == block {
                self.seal_descriptor(image, group);
            }
        }
    }

    fn seal_descriptor(&self, image: &mut Image, group: u32) {
        let (offset, _) = self.desc(image, group);
        let mut slot = vec![0; self.geo.desc_size.into()];
        image.read(offset, &mut slot);
        slot[0x1E..0x20].fill(0);
        let number = group.to_le_bytes();
        let sum = if let Some(sum) = self.geo.seed.over(&number).over(&slot).value() {
            sum & 0xFFFF
        } else if self.geo.has_ro_compat(RoCompat::GDT_CSUM) {
            let rest = if slot.len() > 32 { &slot[32..] } else { &[] };
            let sum = crc16(crc16(!0, &self.geo.uuid), &number);
            crc16(crc16(sum, &slot[..0x1E]), rest).into()
        } else {
            return;
        };
        image.write(offset + 0x1E, &sum.to_le_bytes()[..2]);
    }

    fn seal_bitmap(&self, image: &mut Image, meta: &MetadataBlock) {
        let bytes = self.block(image, meta.block);
        let (offset, mut desc) = self.desc(image, meta.number);
        match meta.part {
            Part::BlockBitmap => desc.seal_block_bitmap(&self.geo, &bytes),
            _ => desc.seal_inode_bitmap(&self.geo, &bytes),
        }
        let mut slot = vec![0; self.geo.desc_size.into()];
        image.read(offset, &mut slot);
        desc.encode_into(&self.geo, GroupNo(meta.number), &mut slot);
        image.write(offset, &slot);
    }

    fn seal_block(&self, bytes: &mut [u8], meta: &MetadataBlock) {
        let layout = DirLayout::of(&self.geo);
        match meta.part {
            Part::Inodes => self.seal_inodes(bytes, meta),
            Part::Entries => dir_entry::seal(&layout, meta.seed, bytes),
            Part::Index => seal_index(meta.seed, bytes),
            Part::Extents => {
                let max = usize::from(u16::from_le_bytes([bytes[4], bytes[5]]));
                put(bytes, 12 + 12 * max, meta.seed, |seed, tail| {
                    seed.over(tail)
                });
            }
            Part::Attributes => {
                bytes[16..20].fill(0);
                let sum = self.geo.seed.over(&meta.block.to_le_bytes()).over(bytes);
                if let Some(sum) = sum.value() {
                    bytes[16..20].copy_from_slice(&sum.to_le_bytes());
                }
            }
            Part::JournalSuper => {
                bytes[0xFC..0x100].fill(0);
                let sum = crc32c(!0, &bytes[..1024]);
                bytes[0xFC..0x100].copy_from_slice(&sum.to_be_bytes());
            }
            Part::Log => self.seal_log(bytes),
            Part::Orphans => orphan_file::seal(&self.geo, meta.seed, DevBlock(meta.block), bytes),
            _ => {}
        }
    }

    fn seal_inodes(&self, bytes: &mut [u8], meta: &MetadataBlock) {
        let size = usize::from(self.geo.inode_size);
        for (i, slot) in (0..).zip(bytes.chunks_mut(size)) {
            if slot.iter().any(|&byte| byte != 0) {
                inode::seal(&self.geo, Ino(meta.number + i), slot);
            }
        }
    }

    /// Descriptor and revoke blocks end with a checksum, commit blocks have one within.
    fn seal_log(&self, bytes: &mut [u8]) {
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
        if word(0) != 0xC03B_3998 {
            return;
        }
        let at = match word(4) {
            1 | 5 => bytes.len() - 4,
            2 => 16,
            _ => return,
        };
        bytes[at..at + 4].fill(0);
        let sum = crc32c(crc32c(!0, &self.journal_uuid), bytes);
        bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Writes the checksum of everything before `at` there, if it fits.
fn put(
    bytes: &mut [u8],
    at: usize,
    seed: ChecksumSeed,
    sum: impl FnOnce(ChecksumSeed, &[u8]) -> ChecksumSeed,
) {
    if at + 4 > bytes.len() {
        return;
    }
    if let Some(sum) = sum(seed, &bytes[..at]).value() {
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

/// The checksum of an index node is stored after the space for its entries.
fn seal_index(seed: ChecksumSeed, bytes: &mut [u8]) {
    let first = u16::from_le_bytes([bytes[4], bytes[5]]);
    // A root begins with `.` and `..`; a node with one empty entry.
    let start = if first == 12 { 32 } else { 8 };
    let half = |at: usize| usize::from(u16::from_le_bytes([bytes[at], bytes[at + 1]]));
    let (limit, count) = (half(start), half(start + 2));
    let (tail, end) = (start + limit * 8, start + count * 8);
    if tail + 8 > bytes.len() || end > bytes.len() {
        return;
    }
    let sum = seed.over(&bytes[..end]).over(&bytes[tail..tail + 4]);
    if let Some(sum) = sum.over(&[0; 4]).value() {
        bytes[tail + 4..tail + 8].copy_from_slice(&sum.to_le_bytes());
    }
}
