//! Quota files of a new volume (`-O quota`): what the root directory and lost+found use.

use steadfs_base::DevBlock;
use steadfs_format_base::quota::usage::{Usage, Usages};
use steadfs_format_base::quota::{BLOCK_SIZE, Kind};
use steadfs_vfs::InodeFlags;

use super::build::Build;
use super::files::REGULAR_600;
use super::{FormatError, FormatOptions};
use crate::disk::num::wide;
use crate::disk::superblock::RawSuperblock;
use crate::disk::{Features, Ino, RoCompat};

/// The kinds of quota of a new volume with these features.
pub(super) fn kinds(opts: &FormatOptions, features: Features) -> [bool; 3] {
    if !features.ro_compat.contains(RoCompat::QUOTA) {
        return [false; 3];
    }
    let [user, group, project] = opts.quota_types.unwrap_or([true, true, false]);
    let has_projects = features.ro_compat.contains(RoCompat::PROJECT);
    [user, group, project || has_projects]
}

/// Names the quota files; `next` is the first inode number that is not in use, and so is the result.
pub(super) fn set_numbers(raw: &mut RawSuperblock, kinds: [bool; 3], next: u32) -> u32 {
    let [users, groups, projects] = kinds;
    if users {
        raw.usr_quota_inum.set(Ino::USER_QUOTA.0);
    }
    if groups {
        raw.grp_quota_inum.set(Ino::GROUP_QUOTA.0);
    }
    if projects {
        raw.prj_quota_inum.set(next);
    }
    next + u32::from(projects)
}

/// Kinds as `-E quotatype=` has them, separated by colons; `^` or `!` before one leaves it out.
pub(super) fn parse(value: &str) -> Result<[bool; 3], String> {
    let mut kinds = [false; 3];
    for word in value.split(':').filter(|word| !word.is_empty()) {
        let (on, name) = match word.strip_prefix(['^', '!']) {
            Some(name) => (false, name),
            None => (true, word),
        };
        let kind = match name {
            "usrquota" | "usr" => Kind::User,
            "grpquota" | "grp" => Kind::Group,
            "prjquota" | "prj" => Kind::Project,
            _ => return Err(format!("{word} is not usrquota, grpquota or prjquota")),
        };
        kinds[kind.index()] = on;
    }
    Ok(kinds)
}

impl Build {
    /// The quota files of these kinds.
    pub(super) fn make_quota_files(&mut self, kinds: [bool; 3]) -> Result<(), FormatError> {
        let mut usages = Usages::default();
        for (&ino, inode) in &self.inodes {
            if ino == Ino::ROOT || ino >= self.geo.first_ino {
                let used = Usage {
                    bytes: inode.blocks * 512,
                    inodes: 1,
                };
                usages.add([inode.uid, inode.gid, inode.project], used);
            }
        }
        for kind in Kind::ALL {
            if kinds[kind.index()] {
                self.make_quota_file(kind, &usages.to_file(kind))?;
            }
        }
        Ok(())
    }

    fn make_quota_file(&mut self, kind: Kind, content: &[u8]) -> Result<(), FormatError> {
        let ino = match kind {
            Kind::User => Ino::USER_QUOTA,
            Kind::Group => Ino::GROUP_QUOTA,
            Kind::Project => self.new_inode()?,
        };
        let size = self.geo.block_size.bytes();
        let parts: Vec<&[u8]> = content.chunks(size).collect();
        let blocks = self.place_quota_blocks(ino, parts.len())?;
        for (&at, part) in blocks.iter().zip(&parts) {
            let mut block = self.zero_block();
            block.make_mut()[..part.len()].copy_from_slice(part);
            self.content.insert(DevBlock(at), block);
        }
        let mut inode = self.fresh_inode(REGULAR_600, 1);
        self.map_small(&mut inode, &blocks);
        inode.flags = inode.flags.union(InodeFlags::IMMUTABLE);
        inode.size = wide(content.len());
        self.inodes.insert(ino, inode);
        assert_eq!(
            self.superblock.quota_inodes()[kind.index()],
            Some(ino),
            "the superblock has named it"
        );
        Ok(())
    }

    /// Allocates blocks in the order in which mke2fs writes them: the root of the tree after the first path below it.
    fn place_quota_blocks(&mut self, ino: Ino, count: usize) -> Result<Vec<u64>, FormatError> {
        const PATH: usize = 4;
        let mut order: Vec<usize> = (0..count).collect();
        if self.geo.block_size.bytes() == BLOCK_SIZE && self.geo.cluster_bits == 0 {
            order[1..].rotate_left(1);
            order[1 + PATH..].rotate_right(1);
        }
        let mut blocks = vec![0; count];
        let mut before = None;
        for n in order {
            let at = match before {
                Some(before) if self.geo.cluster_bits > 0 => self.alloc_after(before)?,
                _ => self.alloc(self.inode_goal(ino))?,
            };
            blocks[n] = at;
            before = Some(at);
        }
        Ok(blocks)
    }
}
