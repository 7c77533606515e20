//! Every inode: its fields, then its attributes and its map.

use steadfs_base::DevBlock;
use steadfs_vfs::{FileKind, InodeFlags};

use super::map::{Collect, Walk};
use super::tables::{Comparison, Dir, DirForm, InodeState};
use super::{Checker, Issue};
use crate::disk::extent::ExtentNode;
use crate::disk::features::{Compat, Incompat, RoCompat};
use crate::disk::inode::{EA_INODE, I_BLOCK_SIZE, INLINE_DATA};
use crate::disk::num::{get16, get32};
use crate::disk::superblock::JournalPlace;
use crate::disk::{DiskError, Geometry, GroupNo, Ino, Inode, Structure, xattr};

/// `EXT4_COMPRBLK_FL`: the file has compressed clusters.
const COMPRESSED_BLOCKS: InodeFlags = InodeFlags(0x200);
/// `EXT4_IMAGIC_FL`: an AFS directory.
const IMAGIC: InodeFlags = InodeFlags(0x2000);

/// Bytes of inode table read at once.
const ITABLE_READ_BYTES: usize = 64 << 10;

impl Checker<'_> {
    pub(super) fn check_inodes(&mut self) {
        let mut buf = Vec::new();
        for group in self.geo.groups() {
            if !self.has_memory() {
                return;
            }
            self.check_inode_table(group, &mut buf);
        }
    }

    fn check_inode_table(&mut self, group: GroupNo, buf: &mut Vec<u8>) {
        let desc = self.descs[group.0 as usize];
        if desc.inode_table == DevBlock(0) {
            return;
        }
        let size = usize::from(self.geo.inode_size);
        let limit = desc.inodes_in_use_limit(&self.geo);
        let blocks = limit.div_ceil(self.geo.inodes_per_block());
        let at_once = (ITABLE_READ_BYTES / self.geo.block_size.bytes()).max(1) as u32;
        let mut first = 0;
        while first < blocks {
            let count = at_once.min(blocks - first);
            let at = desc.inode_table.plus(first.into());
            if self.read_blocks(at, count as usize, buf) {
                let index = first * self.geo.inodes_per_block();
                for (i, slot) in (index..limit).zip(buf.chunks_exact(size)) {
                    let ino = self.geo.inode_at(group, i);
                    // The orphan file was checked first, as it lists the orphans.
                    if self.sb.orphan_file() != Some(ino) {
                        self.check_slot(ino, slot);
                    }
                }
            }
            first += count;
        }
    }

    /// Reads the slot of one inode.
    pub(super) fn read_slot(&mut self, ino: Ino, buf: &mut Vec<u8>) -> bool {
        let (group, index) = self.geo.group_of_inode(ino);
        let table = self.descs[group.0 as usize].inode_table;
        if table == DevBlock(0) {
            return false;
        }
        let (block, offset) = self.geo.inode_slot(table, index);
        if !self.read_block(block, buf) {
            return false;
        }
        buf.drain(..offset);
        buf.truncate(self.geo.inode_size.into());
        true
    }

    pub(super) fn check_slot(&mut self, ino: Ino, slot: &[u8]) {
        let (mode, links) = (get16(slot, 0), get16(slot, 0x1A));
        let orphan = self.orphans.contains(&ino.0);
        if links == 0 && (!orphan || mode == 0) {
            self.check_free_slot(ino, slot, mode);
            return;
        }
        if let Err(error) = Inode::verify_checksum(&self.geo, ino, slot) {
            self.issue(Issue::Inode(error.in_inode(ino)));
        }
        let kind = FileKind::from_mode(mode.into());
        let hidden = self.is_hidden(ino);
        let state = self.inodes.get_mut(&self.geo, ino);
        state.set(InodeState::USED);
        state.kind = kind.map_or(0, FileKind::entry_type);
        state.links = links;
        if hidden {
            state.set(InodeState::HIDDEN);
        }
        let inode = match Inode::decode(&self.geo, slot) {
            Ok(inode) => inode,
            Err(error) => return self.issue(Issue::Inode(error.in_inode(ino))),
        };
        if inode.has(EA_INODE) {
            self.inodes
                .get_mut(&self.geo, ino)
                .set(InodeState::EA_INODE);
        }
        self.check_fields(ino, slot, &inode, orphan);
        self.counted.values = 0;
        let attr_blocks = self.check_xattrs(ino, &inode);
        self.add_usage(ino, &inode);
        self.check_context(ino, &inode);
        match kind {
            _ if ino == Ino::RESIZE => self.check_resize_inode(&inode, attr_blocks),
            Some(kind) => self.check_content(ino, &inode, kind, attr_blocks),
            // The list of bad blocks has no type, and may have no link either.
            None if ino == Ino::BAD_BLOCKS => self.check_map(ino, &inode, FileKind::Regular, 0),
            None => {}
        }
    }

    /// A slot that is not in use: never used, or deleted.
    fn check_free_slot(&mut self, ino: Ino, slot: &[u8], mode: u16) {
        let dtime = get32(slot, 0x14);
        // Slots that were never written are zero, checksum included; on a large volume most are.
        let never_used = slot.iter().all(|&byte| byte == 0);
        if never_used && ino >= self.geo.first_ino {
            return;
        }
        if ino < self.geo.first_ino {
            self.check_unlinked_reserved(ino, slot);
        } else if mode != 0 && dtime == 0 {
            self.issue(Issue::NoDeletionTime { ino });
        }
        if dtime != 0 && dtime < self.geo.inodes_count && !self.clock_was_wrong() {
            self.issue(Issue::LostOrphan { ino, dtime });
        }
        if !never_used && let Err(error) = Inode::verify_checksum(&self.geo, ino, slot) {
            self.issue(Issue::Inode(error.in_inode(ino)));
        }
    }

    /// Whether times in the superblock are as small as inode numbers; then times in inodes may be, too.
    fn clock_was_wrong(&self) -> bool {
        let limit = self.geo.inodes_count.into();
        let wrong = |secs| secs != 0 && secs < limit;
        self.sb.times().iter().any(|time| wrong(time.secs))
    }

    /// A reserved inode without links counts as in use and must own nothing, except that the bad-blocks inode owns
    /// blocks.
    fn check_unlinked_reserved(&mut self, ino: Ino, slot: &[u8]) {
        if ino == Ino::BAD_BLOCKS
            && let Ok(inode) = Inode::decode(&self.geo, slot)
        {
            self.check_map(ino, &inode, FileKind::Regular, 0);
        }
        if ino == Ino::RESIZE {
            self.check_no_resize_inode();
        }
        let none = ino == Ino::BAD_BLOCKS;
        let mode = get16(slot, 0);
        let is_file = FileKind::from_mode(mode.into()) == Some(FileKind::Regular);
        // Inodes of features that the volume lacks have no map either.
        let unmapped = [Ino::USER_QUOTA, Ino::GROUP_QUOTA, Ino::JOURNAL].contains(&ino);
        for (field, value, must_be_zero) in [
            ("i_mode", mode.into(), none || !is_file),
            ("i_uid", get16(slot, 2).into(), none),
            ("i_gid", get16(slot, 0x18).into(), none),
            ("i_blocks", get32(slot, 0x1C), !none),
            ("i_blocks_high", get16(slot, 0x74).into(), !none),
            ("i_block", get32(slot, 0x28), unmapped),
            ("i_flags", get32(slot, 0x20) & InodeFlags::INDEX.0, true),
            ("i_file_acl", get32(slot, 0x68), true),
            ("i_size_high", get32(slot, 0x6C), true),
        ] {
            if must_be_zero && value != 0 {
                let value = value.into();
                self.issue(Issue::FieldNotZero { ino, field, value });
            }
        }
    }

    fn check_fields(&mut self, ino: Ino, slot: &[u8], inode: &Inode, orphan: bool) {
        let valid = match ino {
            Ino::BAD_BLOCKS => Ok(()),
            // Its size is the reach of its map, which may exceed the largest file size.
            Ino::RESIZE => {
                let mut sizeless = inode.clone();
                sizeless.size = 0;
                sizeless.validate(&self.geo)
            }
            _ => inode.validate(&self.geo),
        };
        if let Err(error) = valid {
            self.issue(Issue::Inode(error.in_inode(ino)));
        }
        if inode.dtime != 0 && !orphan {
            let dtime = inode.dtime;
            self.issue(Issue::DeletionTime { ino, dtime });
        }
        let geo = &self.geo;
        let wide_size = match inode.kind() {
            Some(FileKind::Directory) => geo.has_incompat(Incompat::LARGE_DIR),
            kind => kind == Some(FileKind::Regular),
        };
        let rules = [
            ("i_faddr", get32(slot, 0x70), true),
            (
                "i_blocks_high",
                get16(slot, 0x74).into(),
                !geo.has_ro_compat(RoCompat::HUGE_FILE),
            ),
            (
                "i_file_acl_high",
                get16(slot, 0x76).into(),
                !geo.has_64bit(),
            ),
            ("i_size_high", get32(slot, 0x6C), !wide_size),
        ];
        for (field, value, must_be_zero) in rules {
            if must_be_zero && value != 0 {
                let value = value.into();
                self.issue(Issue::FieldNotZero { ino, field, value });
            }
        }
        self.check_flags(ino, inode);
    }

    fn check_flags(&mut self, ino: Ino, inode: &Inode) {
        let of_volume = flags_by_volume(&self.geo);
        let of_kind = flags_by_kind(inode.kind());
        for (flag, fine, why) in of_volume.into_iter().chain(of_kind) {
            if inode.has(flag) && !fine {
                let flag = flag.0;
                self.issue(Issue::InodeFlag { ino, flag, why });
            }
        }
    }

    fn check_content(&mut self, ino: Ino, inode: &Inode, kind: FileKind, attr_blocks: u64) {
        let stats = &mut self.report.stats;
        match kind {
            FileKind::Regular => stats.files += 1,
            FileKind::Directory => stats.dirs += 1,
            FileKind::Symlink => stats.symlinks += 1,
            _ => stats.specials += 1,
        }
        match kind {
            _ if inode.has(INLINE_DATA) => self.check_inline(ino, inode, kind, attr_blocks),
            FileKind::Symlink if inode.size < I_BLOCK_SIZE as u64 => {
                self.check_fast_symlink(ino, inode);
                self.check_block_count(ino, inode, attr_blocks);
            }
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => {
                self.check_map(ino, inode, kind, attr_blocks);
            }
            _ => {
                if inode.size != 0 {
                    let (field, value) = ("i_size", inode.size);
                    self.issue(Issue::FieldNotZero { ino, field, value });
                }
                self.check_block_count(ino, inode, attr_blocks);
            }
        }
    }

    pub(super) fn check_block_count(&mut self, ino: Ino, inode: &Inode, blocks: u64) {
        let counted = blocks * (self.geo.block_size.bytes_u64() / 512);
        if inode.blocks != counted {
            self.issue(Issue::BlockCount {
                ino,
                stored: inode.blocks,
                counted,
            });
        }
    }

    fn check_map(&mut self, ino: Ino, inode: &Inode, kind: FileKind, attr_blocks: u64) {
        // An orphan directory will be removed; its content is not checked.
        let is_dir = kind == FileKind::Directory && inode.links > 0;
        let collect = if is_dir {
            Collect::Dir
        } else if self.sb.journal() == JournalPlace::Inode(ino) {
            Collect::Journal
        } else if self.sb.orphan_file() == Some(ino) {
            Collect::Orphans
        } else if inode.has(EA_INODE) {
            self.value_runs.clear();
            Collect::Value
        } else if let Some(kind) = self.quota_kind(ino) {
            Collect::Quota(kind)
        } else {
            Collect::Nothing
        };
        let looks_extent_mapped = !inode.has(InodeFlags::EXTENTS)
            && self.geo.has_incompat(Incompat::EXTENTS)
            && kind != FileKind::Symlink
            && ExtentNode::parse_root(&self.geo, &inode.block).is_ok();
        if looks_extent_mapped {
            return self.issue(Issue::NoExtentsFlag { ino });
        }
        let runs_start = self.dir_runs.len();
        let seed = inode.seed(&self.geo, ino);
        let mut walk = Walk::new(ino, seed, collect, kind != FileKind::Regular);
        self.walk_map(inode, &mut walk);
        // Part of the count is unknown when part of the map is.
        if walk.intact && ino != Ino::BAD_BLOCKS {
            self.check_block_count(ino, inode, walk.blocks + attr_blocks);
        }
        match kind {
            FileKind::Directory if is_dir => {
                self.check_dir_size(ino, inode, &walk);
                let form = if inode.has(InodeFlags::INDEX) {
                    DirForm::Indexed
                } else {
                    DirForm::Linear
                };
                let blocks = inode.size >> self.geo.block_size.bits();
                self.add_dir(ino, inode, form, runs_start, blocks);
            }
            FileKind::Symlink => self.check_slow_symlink(ino, inode, &walk),
            FileKind::Regular if collect == Collect::Value => {
                let runs = std::mem::take(&mut self.value_runs);
                self.check_value_content(ino, inode, &runs);
                self.value_runs = runs;
                self.check_file_size(ino, inode, &walk);
            }
            FileKind::Regular if collect != Collect::Nothing => {
                self.check_whole_size(ino, inode, &walk);
            }
            FileKind::Regular => self.check_file_size(ino, inode, &walk),
            _ => {}
        }
    }

    fn add_dir(&mut self, ino: Ino, inode: &Inode, form: DirForm, first_run: usize, blocks: u64) {
        if form == DirForm::Indexed {
            self.report.stats.indexed_dirs += 1;
            self.inodes.get_mut(&self.geo, ino).set(InodeState::INDEXED);
        }
        self.dirs.push(Dir {
            ino,
            parent: None,
            dotdot: None,
            subdirs: 0,
            runs: first_run..self.dir_runs.len(),
            blocks,
            seed: inode.seed(&self.geo, ino),
            form,
            encrypted: inode.has(InodeFlags::ENCRYPTED),
            comparison: Comparison::of(&self.geo, inode),
        });
    }

    fn check_dir_size(&mut self, ino: Ino, inode: &Inode, walk: &Walk) {
        let expected = walk.end << self.geo.block_size.bits();
        if walk.intact && inode.size != expected {
            self.issue(Issue::DirSize {
                ino,
                size: inode.size,
                expected,
            });
        }
    }

    /// A journal or orphan file, which must not end in a hole.
    fn check_whole_size(&mut self, ino: Ino, inode: &Inode, walk: &Walk) {
        let expected = walk.end << self.geo.block_size.bits();
        if walk.intact && inode.size > expected {
            let rule = "beyond the last block of a file that has no holes";
            let error = DiskError::field(Structure::Inode, "i_size", inode.size, rule);
            self.issue(Issue::Inode(error.in_inode(ino)));
        }
        self.check_file_size(ino, inode, walk);
    }

    fn check_file_size(&mut self, ino: Ino, inode: &Inode, walk: &Walk) {
        // Blocks beyond the size wait for truncation on an orphan; a verity file has its hashes there.
        let exempt = self.orphans.contains(&ino.0)
            || inode.has(InodeFlags::VERITY)
            || ino == Ino::BAD_BLOCKS;
        if let Some(last) = walk.last_written
            && !exempt
            && inode.size >> self.geo.block_size.bits() < last
        {
            let size = inode.size;
            self.issue(Issue::SizeTooSmall { ino, size, last });
        }
    }

    fn check_fast_symlink(&mut self, ino: Ino, inode: &Inode) {
        let bytes = &inode.block;
        let end = bytes
            .iter()
            .position(|&byte| byte == 0)
            .unwrap_or(I_BLOCK_SIZE);
        // Ciphertext may contain zero bytes.
        let len_fits = inode.has(InodeFlags::ENCRYPTED) || end as u64 == inode.size;
        let why = if inode.size == 0 {
            "has no target"
        } else if inode.has(InodeFlags::EXTENTS) {
            "has a target that fits the inode, and extents"
        } else if !len_fits {
            "has a target that is not as long as its size"
        } else {
            return;
        };
        self.issue(Issue::Symlink { ino, why });
    }

    fn check_slow_symlink(&mut self, ino: Ino, inode: &Inode, walk: &Walk) {
        if !walk.intact || (inode.links == 0 && walk.end == 0) {
            return;
        }
        let why = match walk.first {
            _ if inode.size >= self.geo.block_size.bytes_u64() => {
                "has a target longer than a block"
            }
            Some((0, block)) if walk.end == 1 => {
                let mut buf = std::mem::take(&mut self.levels[0]);
                let read = self.read_block(block, &mut buf);
                let end = buf.iter().position(|&byte| byte == 0);
                self.levels[0] = buf;
                if !read || inode.has(InodeFlags::ENCRYPTED) || end == Some(inode.size as usize) {
                    return;
                }
                "has a target that is not as long as its size"
            }
            _ => "does not have one block",
        };
        self.issue(Issue::Symlink { ino, why });
    }

    /// Content in the inode: the first 60 bytes in the place of the map, more in an attribute.
    fn check_inline(&mut self, ino: Ino, inode: &Inode, kind: FileKind, attr_blocks: u64) {
        self.check_block_count(ino, inode, attr_blocks);
        let rest = inline_rest(inode);
        if rest.is_none() {
            let rule = "inline data without its attribute";
            let flags = inode.flags.0;
            let error = DiskError::field(Structure::Inode, "i_flags", flags, rule);
            self.issue(Issue::Inode(error.in_inode(ino)));
        }
        let more = rest.map_or(0, |rest| rest.len() as u64);
        let room = I_BLOCK_SIZE as u64 + more;
        if kind == FileKind::Directory && inode.links > 0 {
            if inode.size != room {
                self.issue(Issue::DirSize {
                    ino,
                    size: inode.size,
                    expected: room,
                });
            }
            let start = self.dir_runs.len();
            self.add_dir(ino, inode, DirForm::Inline, start, 0);
        } else if inode.size > room {
            let (size, last) = (inode.size, 0);
            self.issue(Issue::SizeTooSmall { ino, size, last });
        }
    }
}

/// The part of inline content that is in an attribute.
pub(super) fn inline_rest(inode: &Inode) -> Option<&[u8]> {
    let attrs = xattr::InodeAttrs::parse(&inode.xattr_area).ok()?;
    match attrs.get(xattr::INDEX_SYSTEM, b"data")?.value {
        xattr::Value::Here(value) => Some(value),
        xattr::Value::Inode { .. } => None,
    }
}

/// A flag, whether an inode may have it, and why not.
type FlagRule = (InodeFlags, bool, &'static str);

/// Flags that need a feature.
fn flags_by_volume(geo: &Geometry) -> [FlagRule; 9] {
    let compat = |bits| geo.features.compat.contains(bits);
    [
        (
            InodeFlags::EXTENTS,
            geo.has_incompat(Incompat::EXTENTS),
            "the volume has no extents",
        ),
        (
            INLINE_DATA,
            geo.has_incompat(Incompat::INLINE_DATA),
            "the volume has no inline data",
        ),
        (
            InodeFlags::ENCRYPTED,
            geo.has_incompat(Incompat::ENCRYPT),
            "the volume has no encryption",
        ),
        (
            InodeFlags::CASEFOLD,
            geo.has_incompat(Incompat::CASEFOLD),
            "the volume has no casefolding",
        ),
        (
            EA_INODE,
            geo.has_incompat(Incompat::EA_INODE),
            "the volume has no attribute inodes",
        ),
        (
            InodeFlags::VERITY,
            geo.has_ro_compat(RoCompat::VERITY),
            "the volume has no verity",
        ),
        (
            IMAGIC,
            compat(Compat::IMAGIC_INODES),
            "the volume has no such inodes",
        ),
        (COMPRESSED_BLOCKS, false, "nothing is compressed"),
        (
            InodeFlags::INDEX,
            compat(Compat::DIR_INDEX),
            "the volume has no indexed directories",
        ),
    ]
}

/// Flags that only some kinds of files can have.
fn flags_by_kind(kind: Option<FileKind>) -> [FlagRule; 4] {
    let is_dir = kind == Some(FileKind::Directory);
    let mappable = matches!(
        kind,
        Some(FileKind::Regular | FileKind::Directory | FileKind::Symlink)
    );
    let no_map = "it is a device, pipe or socket";
    [
        (InodeFlags::INDEX, is_dir, "it is no directory"),
        (InodeFlags::EXTENTS, mappable, "it has no map"),
        (InodeFlags::IMMUTABLE, mappable, no_map),
        (InodeFlags::APPEND, mappable, no_map),
    ]
}
