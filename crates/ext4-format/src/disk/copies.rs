//! Where the copies of the superblock and of the group descriptors are.

use steadfs_base::DevBlock;

use super::features::{Compat, Incompat, RoCompat};
use super::num::{idx, wide};
use super::{Features, Geometry, GroupDesc, GroupNo};

/// Whether `group` starts with a superblock on a volume with these features; `backups` are the groups
/// that `sparse_super2` names.
pub const fn has_super(features: Features, backups: [u32; 2], group: GroupNo) -> bool {
    let group = group.0;
    if group == 0 {
        return true;
    }
    if features.compat.contains(Compat::SPARSE_SUPER2) {
        return group == backups[0] || group == backups[1];
    }
    if group == 1 || !features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
        return true;
    }
    is_power_of(3, group) || is_power_of(5, group) || is_power_of(7, group)
}

const fn is_power_of(base: u32, number: u32) -> bool {
    let mut power = 1u64;
    while power < wide(idx(number)) {
        power *= wide(idx(base));
    }
    power == wide(idx(number))
}

/// Most copies of a descriptor block that are read.
pub const DESC_COPIES_MAX: usize = 9;

/// A descriptor from a copy of its block, the first that verifies. `read` returns a block's content.
pub fn desc_from_copies(
    geo: &Geometry,
    group: GroupNo,
    read: impl FnMut(DevBlock) -> Option<Vec<u8>>,
) -> Option<GroupDesc> {
    let (n, at) = geo.desc_slot(group);
    let slot = at..at + usize::from(geo.desc_size);
    geo.desc_copies(n)
        .take(DESC_COPIES_MAX)
        .filter_map(read)
        .find_map(|block| GroupDesc::parse(geo, group, block.get(slot.clone())?).ok())
}

impl Geometry {
    /// Groups that begin with a copy of the superblock, in order. On volumes without `meta_bg` the whole descriptor
    /// table follows each copy.
    pub fn copy_groups(&self) -> Box<dyn Iterator<Item = GroupNo> + '_> {
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            let named = self.backup_groups.map(GroupNo).into_iter();
            return Box::new(named.filter(|group| group.0 > 0 && group.0 < self.group_count));
        }
        Box::new(self.groups().skip(1).filter(|&group| self.has_super(group)))
    }

    /// The other places of descriptor block `n`, in order.
    pub fn desc_copies(&self, n: u32) -> Box<dyn Iterator<Item = DevBlock> + '_> {
        let first_of_table = |group| self.first_block_of(group).plus(1);
        if !self.has_incompat(Incompat::META_BG) || n < self.first_meta_bg {
            let copies = self.copy_groups();
            return Box::new(copies.map(move |group| first_of_table(group).plus(n.into())));
        }
        // A metagroup's one block is in its first group, and again in the second and in the last.
        let per_block = self.descs_per_block();
        let first = n.saturating_mul(per_block);
        let others = [1, per_block - 1].map(|i| first.saturating_add(i));
        let there = others.into_iter().filter(|&group| group < self.group_count);
        Box::new(there.map(|group| {
            let group = GroupNo(group);
            let skip = u64::from(self.has_super(group));
            self.first_block_of(group).plus(skip)
        }))
    }
}
