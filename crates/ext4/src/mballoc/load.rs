//! Reading the group descriptors when a volume is opened.
//!
//! A mount for writing needs all of them to be valid. Reading needs only the place of a group's inode table: a corrupt
//! descriptor is taken from a copy of its block, and a group without a valid copy loses only its own inodes
//! ([`Descriptors`] defines what each kind of mount needs).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use steadfs_base::{Corruption, DevBlock, IoTag};
use steadfs_cache::{MetaBuf, MetaCache};
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::{FsError, Result};

use super::clusters::HeldClusters;
use super::corrupt::CorruptGroups;
use super::prealloc_table::PreallocTable;
use super::zones::Zones;
use super::{Allocator, Group, Totals};
use crate::disk::{DESC_COPIES_MAX, Geometry, GroupDesc, GroupNo};
use crate::io_error;

/// Read-ahead window in descriptor blocks.
const DESC_READ_AHEAD_BLOCKS: u32 = 256;
/// Bytes of block bitmaps that are kept in memory beside those of groups with changes that the device does not have.
const LOADED_BYTES_MAX: usize = 8 << 20;
/// Inode table of a lost group: no inode table can be in block 0.
const NO_TABLE: DevBlock = DevBlock(0);

/// The validity required of the group descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors {
    /// All of them are valid: the volume may be written.
    Valid,
    /// Their places are valid; a wrong checksum alone is ignored, as by the kernel on a read-only mount.
    Places,
    /// None: groups without a valid descriptor are lost.
    Nothing,
}

/// Most groups that may be lost.
const LOST_GROUPS_MAX: u32 = 1 << 16;

/// Reads descriptors and counts the corrupt ones.
struct Reader<'a> {
    geo: &'a Geometry,
    meta: &'a MetaCache,
    needed: Descriptors,
    /// The block that was read last.
    block: Option<(u32, Option<Arc<MetaBuf>>)>,
    /// The copies of a block that were read last.
    copies: Option<(u32, Vec<Vec<u8>>)>,
    lost: u32,
    /// Number of corrupt descriptors, and the error of the first.
    corruption: Option<(u32, String)>,
}

impl Reader<'_> {
    /// A group's descriptor, whose blocks are added to `zones`; one without an inode table for a group that is lost.
    fn desc_apart(&mut self, group: GroupNo, zones: &mut Zones) -> Result<GroupDesc> {
        let Some(desc) = self.desc(group)? else {
            return Ok(GroupDesc {
                inode_table: NO_TABLE,
                ..GroupDesc::default()
            });
        };
        let own = desc.own_blocks(self.geo, group);
        let apart = own.map(|(start, len)| zones.add(start, len));
        if apart.contains(&false) {
            let what = "its bitmaps or inode table overlap other metadata";
            let error = Corruption::new(what).in_group(group.0).into();
            if self.needed != Descriptors::Nothing {
                return Err(error);
            }
            self.record_corruption(&error);
        }
        Ok(desc)
    }

    /// A group's descriptor; `None` for a group that is lost.
    fn desc(&mut self, group: GroupNo) -> Result<Option<GroupDesc>> {
        let (n, at) = self.geo.desc_slot(group);
        if self.block.as_ref().is_none_or(|(have, _)| *have != n) {
            self.block = Some((n, self.read_block(n)?));
        }
        let block = self.block.as_ref().and_then(|(_, block)| block.clone());
        let slot = at..at + usize::from(self.geo.desc_size);
        let error = match &block {
            None => FsError::Io(format!("group {group}: its descriptor cannot be read")),
            Some(buf) => match GroupDesc::parse(self.geo, group, &buf.data()[slot.clone()]) {
                Ok(desc) => return Ok(Some(desc)),
                Err(error) => error.into(),
            },
        };
        if self.needed == Descriptors::Valid {
            return Err(error);
        }
        let as_stored = block.map(|buf| GroupDesc::decode(self.geo, &buf.data()[slot]));
        let as_stored = as_stored.filter(|desc| desc.validate(self.geo, group).is_ok());
        if self.needed == Descriptors::Places && as_stored.is_none() {
            return Err(error);
        }
        self.record_corruption(&error);
        let found = self.desc_of_copy(group).or(as_stored);
        self.lost += u32::from(found.is_none());
        if self.lost > LOST_GROUPS_MAX {
            return Err(error);
        }
        Ok(found)
    }

    fn desc_of_copy(&mut self, group: GroupNo) -> Option<GroupDesc> {
        let (n, at) = self.geo.desc_slot(group);
        if self.copies.as_ref().is_none_or(|(have, _)| *have != n) {
            let places = self.geo.desc_copies(n).take(DESC_COPIES_MAX);
            let blocks = places.filter_map(|at| {
                let buf = self.meta.get(at, IoTag::default()).ok()?;
                Some(buf.data().to_vec())
            });
            self.copies = Some((n, blocks.collect()));
        }
        let (_, blocks) = self.copies.as_ref()?;
        let slot = at..at + usize::from(self.geo.desc_size);
        let mut slots = blocks.iter().filter_map(|block| block.get(slot.clone()));
        slots.find_map(|slot| GroupDesc::parse(self.geo, group, slot).ok())
    }

    /// A block of the table; `None` if it cannot be read and is not required.
    fn read_block(&self, n: u32) -> Result<Option<Arc<MetaBuf>>> {
        let at = self.geo.desc_block_at(n);
        if n.is_multiple_of(DESC_READ_AHEAD_BLOCKS) {
            let count = DESC_READ_AHEAD_BLOCKS.min(self.geo.desc_blocks_together(n));
            self.meta.prefetch(at, count.into(), IoTag::default());
        }
        match self.meta.get(at, IoTag::default()) {
            Ok(buf) => Ok(Some(buf)),
            Err(_) if self.needed != Descriptors::Valid => Ok(None),
            Err(error) => Err(io_error(error)),
        }
    }

    fn record_corruption(&mut self, what: &FsError) {
        let first = || (0, what.to_string());
        self.corruption.get_or_insert_with(first).0 += 1;
    }
}

impl Allocator {
    /// Reads and verifies all group descriptors. Also returns what was ignored; if something was, the volume must not
    /// be written.
    pub fn load(
        geo: &Geometry,
        meta: &MetaCache,
        needed: Descriptors,
    ) -> Result<(Self, Option<String>)> {
        // No memory is allocated by the superblock's group count alone: a sparse file can claim any size.
        let mut groups = Vec::new();
        let mut inode_tables = Vec::new();
        let mut zones = Zones::default();
        let mut totals = Totals::default();
        let mut reader = Reader {
            geo,
            meta,
            needed,
            block: None,
            copies: None,
            lost: 0,
            corruption: None,
        };
        for group in geo.groups() {
            let desc = reader.desc_apart(group, &mut zones)?;
            totals.free += u64::from(desc.free_clusters);
            totals.free_inodes += u64::from(desc.free_inodes);
            totals.dirs += u64::from(desc.used_dirs);
            let room = inode_tables.try_reserve(1).and(groups.try_reserve(1));
            room.map_err(|_| FsError::NoMemory)?;
            inode_tables.push(desc.inode_table);
            let free = desc.free_clusters;
            let state = Group {
                desc,
                busy: None,
                free,
                longest: geo.clusters_per_group,
                is_corrupt: false,
            };
            groups.push(Mutex::with_key(Rank::Group, group.0.into(), state));
        }
        let corrupt = reader.corruption.map(|(count, first)| match count {
            1 => first,
            _ => format!("{first} (and {} more group descriptors)", count - 1),
        });
        assert_eq!(
            groups.len(),
            geo.group_count as usize,
            "each group has its state"
        );
        let allocator = Self {
            groups,
            inode_tables,
            zones,
            totals: Mutex::new(Rank::Leaf, totals),
            loaded: AtomicU32::new(0),
            loaded_max: AtomicU32::new((LOADED_BYTES_MAX / geo.block_size.bytes()) as u32),
            next_unloaded: AtomicU32::new(0),
            pending: Mutex::new(Rank::Leaf, Vec::new()),
            held: HeldClusters::default(),
            prealloc: PreallocTable::new(),
            next_top_dir: AtomicU32::new(0),
            trimmed: AtomicU64::new(0),
            shortages: AtomicU32::new(0),
            discard: AtomicBool::new(false),
            stripe: AtomicU32::new(1),
            corrupt_groups: CorruptGroups::new(),
        };
        Ok((allocator, corrupt))
    }

    /// First block of a group's inode table.
    ///
    /// # Errors
    /// The group's descriptor was corrupt when the volume was opened.
    pub fn inode_table(&self, group: GroupNo) -> Result<DevBlock> {
        match self.inode_tables[group.0 as usize] {
            NO_TABLE => Err(Corruption::new("its descriptor is damaged")
                .in_group(group.0)
                .into()),
            table => Ok(table),
        }
    }
}
