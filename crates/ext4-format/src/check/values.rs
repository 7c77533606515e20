//! Attribute inodes: content, size, hash and number of references.

use steadfs_base::FileBlock;
use steadfs_base::checksum::crc32c;
use steadfs_base::limits::XATTR_SIZE_MAX;
use steadfs_format_base::check::Name;

use super::tables::{InodeState, Run};
use super::{Checker, Issue};
use crate::disk::num::{idx, low32, wide};
use crate::disk::xattr::Attr;
use crate::disk::{Ino, Inode, ea_inode};

/// What the checker knows of an attribute inode.
#[derive(Default)]
pub(super) struct Value {
    /// Entries that refer to it.
    references: u64,
    /// In Lustre's form for the entry that refers to it: it has neither hash nor count.
    lustre: bool,
    /// Its content does not have the stored hash.
    wrong_content: bool,
}

impl Checker<'_> {
    /// Checks an entry of `owner` that refers to the attribute inode `value`; returns the blocks that its owner counts
    /// for it.
    pub(super) fn check_value(
        &mut self,
        (owner, generation): (Ino, u32),
        attr: &Attr<'_>,
        (value, size): (Ino, u32),
    ) -> u64 {
        if !self.geo.is_inode(value) || value < self.geo.first_ino || value == owner {
            self.issue(Issue::XattrInode { value });
            return 0;
        }
        self.inodes
            .get_mut(&self.geo, value)
            .set(InodeState::ATTR_VALUE);
        self.values.entry(value.0).or_default().references += 1;
        self.counted.values += 1;
        if let Some(inode) = self.read_value(value) {
            if size == 0 || inode.size != u64::from(size) {
                let actual = inode.size;
                self.issue(Issue::XattrInodeSize {
                    ino: owner,
                    value,
                    size,
                    actual,
                });
            } else if !attr.fits_value_hash(ea_inode::stored_hash(&inode)) {
                if ea_inode::is_lustre(&inode, owner, generation) {
                    self.values.entry(value.0).or_default().lustre = true;
                    return 0;
                }
                let name = Name::of(attr.name);
                self.issue(Issue::XattrHash { ino: owner, name });
            }
        }
        let blocks = self.geo.block_size.blocks_for(size.into());
        blocks.next_multiple_of(self.geo.blocks_per_cluster().into())
    }

    fn read_value(&mut self, value: Ino) -> Option<Inode> {
        let mut slot = std::mem::take(&mut self.value_slot);
        let inode = match self.read_slot(value, &mut slot) {
            true => Inode::decode(&self.geo, &slot).ok(),
            false => None,
        };
        self.value_slot = slot;
        inode
    }

    /// Compares the content of an attribute inode, which is in `runs`, with its hash.
    pub(super) fn check_value_content(&mut self, value: Ino, inode: &Inode, runs: &[Run]) {
        let fits = inode.size <= wide(XATTR_SIZE_MAX)
            && self.hash_of_runs(inode.size, runs) == Some(ea_inode::stored_hash(inode));
        if !fits {
            self.values.entry(value.0).or_default().wrong_content = true;
        }
    }

    /// The hash of the first `size` bytes; `None` if there are fewer.
    fn hash_of_runs(&mut self, size: u64, runs: &[Run]) -> Option<u32> {
        let mut block = std::mem::take(&mut self.levels[0]);
        let (mut hash, mut left, mut next) = (self.geo.value_seed, size, FileBlock(0));
        for run in runs {
            for n in 0..run.len.into() {
                if left == 0 {
                    break;
                }
                if run.block.plus(n) != next || !self.read_block(run.start.plus(n), &mut block) {
                    self.levels[0] = block;
                    return None;
                }
                let here = left.min(wide(block.len()));
                hash = crc32c(hash, &block[..idx(low32(here))]);
                left -= here;
                next = next.plus(1);
            }
        }
        self.levels[0] = block;
        (left == 0).then_some(hash)
    }

    /// Compares what was counted with the attribute inodes, when all inodes were read.
    pub(super) fn check_values(&mut self) {
        for (value, known) in std::mem::take(&mut self.values) {
            let value = Ino(value);
            let state = self.inodes.get(&self.geo, value);
            // What is no attribute inode is reported with its names.
            if !state.has(InodeState::EA_INODE) || !state.has(InodeState::USED) || known.lustre {
                continue;
            }
            if known.wrong_content && state.links > 0 {
                self.issue(Issue::XattrInodeContent { value });
            }
            let Some(inode) = self.read_value(value) else {
                continue;
            };
            let stored = ea_inode::references(&inode);
            if known.references > 0 && stored != known.references {
                let counted = known.references;
                self.issue(Issue::XattrInodeReferences {
                    value,
                    stored,
                    counted,
                });
            }
        }
    }
}
