//! Compares bitmaps and counts with the blocks and inodes found in use.

use steadfs_base::DevBlock;

use super::tables::InodeState;
use super::{Checker, Issue};
use crate::disk::group_desc::{init_block_bitmap, init_inode_bitmap};
use crate::disk::{GroupDesc, GroupNo, Ino, Structure, bitmap};
use steadfs_vfs::FileKind;

/// Counts of a group, or of all groups.
#[derive(Clone, Copy, Default)]
struct Counted {
    free_clusters: u64,
    free_blocks: u64,
    free_inodes: u32,
    dirs: u32,
}

/// How two bitmaps differ.
struct Difference {
    first: u32,
    used_but_free: u32,
    free_but_used: u32,
}

/// Compares the bits found in use with the stored ones; `found` is `None` where none is in use.
fn compare(found: Option<&[u8]>, stored: &[u8], bits: u32) -> Option<Difference> {
    let Some(found) = found else {
        return bitmap::find_next_set(stored, 0..bits).map(|first| Difference {
            first,
            used_but_free: 0,
            free_but_used: bitmap::count_ones(stored, first..bits),
        });
    };
    let mut difference: Option<Difference> = None;
    bitmap::differences(found, stored, 0..bits, |base, differ| {
        let missing = (0..64).filter(|bit| differ & (1 << bit) != 0);
        let missing = missing
            .filter(|bit| bitmap::test(found, base + bit))
            .count() as u32;
        let total = difference.get_or_insert(Difference {
            first: base + differ.trailing_zeros(),
            used_but_free: 0,
            free_but_used: 0,
        });
        total.used_but_free += missing;
        total.free_but_used += differ.count_ones() - missing;
    });
    difference
}

impl Checker<'_> {
    pub(super) fn check_bitmaps(&mut self) {
        let mut total = Counted::default();
        let mut stored = Vec::new();
        let mut found = Vec::new();
        for group in self.geo.groups() {
            let desc = self.descs[group.0 as usize];
            self.check_block_bitmap(group, &desc, &mut stored);
            self.check_inode_bitmap(group, &desc, &mut stored, &mut found);
            let counted = self.count(group, &found);
            self.check_group_counts(group, &desc, counted);
            total.free_blocks += counted.free_blocks;
            total.free_inodes += counted.free_inodes;
        }
        self.report.stats.blocks_used = self.geo.blocks_count - total.free_blocks;
        self.report.stats.inodes_used = self.geo.inodes_count - total.free_inodes;
        self.check_total_counts(total);
    }

    fn check_block_bitmap(&mut self, group: GroupNo, desc: &GroupDesc, stored: &mut Vec<u8>) {
        if desc.block_uninit(&self.geo) {
            stored.resize(self.geo.block_size.bytes(), 0);
            init_block_bitmap(&self.geo, group, desc, stored);
        } else {
            // An impossible place has been reported before.
            if desc.block_bitmap == DevBlock(0) || !self.read_block(desc.block_bitmap, stored) {
                return;
            }
            if let Err(error) = desc.verify_block_bitmap(&self.geo, stored) {
                self.issue(Issue::BitmapChecksum(error.in_group(group)));
            }
        }
        let clusters = self.geo.clusters_in(group);
        let bits = bitmap::bits_in(stored.len());
        if !bitmap::all_set(stored, clusters..bits) {
            let what = Structure::BlockBitmap;
            self.issue(Issue::BitmapPadding { group, what });
        }
        let difference = compare(self.used.group(group), stored, clusters);
        if let Some(difference) = difference {
            let bit = u64::from(difference.first) << self.geo.cluster_bits;
            self.issue(Issue::BlockBitmapDiffers {
                group,
                first: self.geo.first_block_of(group).plus(bit),
                used_but_free: difference.used_but_free,
                free_but_used: difference.free_but_used,
            });
        }
    }

    /// Compares the inode bitmap and leaves the inodes found in use in `found`.
    fn check_inode_bitmap(
        &mut self,
        group: GroupNo,
        desc: &GroupDesc,
        stored: &mut Vec<u8>,
        found: &mut Vec<u8>,
    ) {
        self.inodes_in_use(group, found);
        if desc.inode_uninit(&self.geo) {
            stored.resize(self.geo.block_size.bytes(), 0);
            init_inode_bitmap(&self.geo, stored);
        } else {
            if desc.inode_bitmap == DevBlock(0) || !self.read_block(desc.inode_bitmap, stored) {
                return;
            }
            if let Err(error) = desc.verify_inode_bitmap(&self.geo, stored) {
                self.issue(Issue::BitmapChecksum(error.in_group(group)));
            }
        }
        let inodes = self.geo.inodes_per_group;
        if !bitmap::all_set(stored, inodes..bitmap::bits_in(stored.len())) {
            let what = Structure::InodeBitmap;
            self.issue(Issue::BitmapPadding { group, what });
        }
        if let Some(difference) = compare(Some(found), stored, inodes) {
            self.issue(Issue::InodeBitmapDiffers {
                group,
                first: self.geo.inode_at(group, difference.first),
                used_but_free: difference.used_but_free,
                free_but_used: difference.free_but_used,
            });
        }
    }

    fn inodes_in_use(&self, group: GroupNo, found: &mut Vec<u8>) {
        found.clear();
        found.resize(self.geo.inode_bitmap_bytes(), 0);
        if let Some(states) = self.inodes.group(group) {
            for (i, state) in (0..).zip(states) {
                if state.has(InodeState::USED) {
                    bitmap::set(found, i);
                }
            }
        }
        // Reserved inodes count as in use even if they are empty.
        let first = self.geo.inode_at(group, 0);
        let reserved = self.geo.first_ino.0.saturating_sub(first.0);
        bitmap::set_range(found, 0..reserved.min(self.geo.inodes_per_group));
    }

    fn count(&self, group: GroupNo, inodes: &[u8]) -> Counted {
        let clusters = self.geo.clusters_in(group);
        let free = match self.used.group(group) {
            Some(used) => bitmap::count_zeros(used, 0..clusters),
            None => clusters,
        };
        // A last cluster that is cut short counts as a whole one in every count.
        let free_blocks = u64::from(free) << self.geo.cluster_bits;
        let directory = FileKind::Directory.entry_type();
        let dirs = self.inodes.group(group).map_or(0, |states| {
            let is_dir =
                |state: &&InodeState| state.has(InodeState::USED) && state.kind == directory;
            states.iter().filter(is_dir).count() as u32
        });
        Counted {
            free_clusters: free.into(),
            free_blocks,
            free_inodes: bitmap::count_zeros(inodes, 0..self.geo.inodes_per_group),
            dirs,
        }
    }

    fn check_group_counts(&mut self, group: GroupNo, desc: &GroupDesc, counted: Counted) {
        let free = counted.free_clusters as u32;
        if desc.free_clusters != free {
            self.issue(Issue::GroupFreeBlocks {
                group,
                stored: desc.free_clusters,
                counted: free,
            });
        }
        if desc.free_inodes != counted.free_inodes {
            self.issue(Issue::GroupFreeInodes {
                group,
                stored: desc.free_inodes,
                counted: counted.free_inodes,
            });
        }
        if desc.used_dirs != counted.dirs {
            self.issue(Issue::GroupDirs {
                group,
                stored: desc.used_dirs,
                counted: counted.dirs,
            });
        }
    }

    fn check_total_counts(&mut self, total: Counted) {
        let (blocks, inodes) = (self.sb.free_blocks(), self.sb.free_inodes());
        let stats = &mut self.report.stats;
        stats.free_blocks_off = blocks.wrapping_sub(total.free_blocks) as i64;
        stats.free_inodes_off = i64::from(inodes) - i64::from(total.free_inodes);
        if self.options.after_crash || stats.needs_recovery {
            return;
        }
        if blocks != total.free_blocks {
            self.issue(Issue::FreeBlocks {
                stored: blocks,
                counted: total.free_blocks,
            });
        }
        if inodes != total.free_inodes {
            self.issue(Issue::FreeInodes {
                stored: inodes,
                counted: total.free_inodes,
            });
        }
    }

    /// Whether the inode is meant to exist without a name.
    pub(super) fn is_hidden(&self, ino: Ino) -> bool {
        (ino < self.geo.first_ino && ino != Ino::ROOT)
            || self.sb.orphan_file() == Some(ino)
            || self.sb.quota_inodes().contains(&Some(ino))
    }
}
