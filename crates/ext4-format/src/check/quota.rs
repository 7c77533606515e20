//! Quota files: recorded usage per user, group and project, compared with the sum over all inodes.

use steadfs_format_base::quota::Kind;
use steadfs_format_base::quota::usage::{Usage, Usages};

use super::tables::Run;
use super::{Checker, Issue};
use crate::disk::features::RoCompat;
use crate::disk::inode::EA_INODE;
use crate::disk::num::wide;
use crate::disk::{Ino, Inode};

/// Largest quota file that is compared: of some million owners.
const CONTENT_MAX: u64 = 256 << 20;

/// What is counted for a comparison with the quota files.
#[derive(Default)]
pub(super) struct Counted {
    usages: Usages,
    /// Blocks of the quota files, by kind.
    pub(super) runs: [Vec<Run>; 3],
    /// Attributes of the inode being checked whose value is an inode.
    pub(super) values: u64,
}

impl Checker<'_> {
    /// The kind of quota that the inode is the file of.
    pub(super) fn quota_kind(&self, ino: Ino) -> Option<Kind> {
        let files = self.sb.quota_inodes();
        Kind::ALL
            .into_iter()
            .find(|kind| files[kind.index()] == Some(ino))
    }

    /// Adds an inode to the usage of its owners. Values of attributes belong to the inodes that refer to them.
    pub(super) fn add_usage(&mut self, ino: Ino, inode: &Inode) {
        let is_own = ino != Ino::ROOT
            && (ino < self.geo.first_ino
                || self.quota_kind(ino).is_some()
                || self.sb.orphan_file() == Some(ino));
        if !self.geo.has_ro_compat(RoCompat::QUOTA) || is_own || inode.has(EA_INODE) {
            return;
        }
        let used = Usage {
            bytes: inode.blocks.saturating_mul(512),
            inodes: 1 + self.counted.values,
        };
        let owners = [inode.uid, inode.gid, inode.project];
        self.counted.usages.add(owners, used);
    }

    /// Compares the recorded usage with what was counted.
    pub(super) fn check_quota_usage(&mut self) {
        let files = self.sb.quota_inodes();
        let mut counted = std::mem::take(&mut self.counted);
        for kind in Kind::ALL {
            let Some(ino) = files[kind.index()] else {
                continue;
            };
            let runs = std::mem::take(&mut counted.runs[kind.index()]);
            let Some(content) = self.content_of(&runs) else {
                continue;
            };
            match counted.usages.compare(kind, content) {
                Ok(differences) => {
                    for difference in differences {
                        let kind = kind.name();
                        self.issue(Issue::QuotaUsage { kind, difference });
                    }
                }
                Err(why) => self.issue(Issue::QuotaFile { ino, why }),
            }
        }
    }

    /// The content of a file of these runs, up to the first hole; `None` if a block cannot be read, which is an issue, or
    /// if the file has more than any number of owners needs.
    fn content_of(&mut self, runs: &[Run]) -> Option<Vec<u8>> {
        let size = self.geo.block_size.bytes();
        let blocks: u64 = runs.iter().map(|run| u64::from(run.len)).sum();
        if blocks.saturating_mul(wide(size)) > CONTENT_MAX {
            self.skip("usage in a quota file of more than 256 MiB (quota)");
            return None;
        }
        let mut content = Vec::new();
        let mut block = Vec::new();
        for run in runs {
            if run.block.0 != wide(content.len() / size) {
                break;
            }
            for n in 0..run.len.into() {
                if !self.read_block(run.start.plus(n), &mut block) {
                    return None;
                }
                content.extend_from_slice(&block);
            }
        }
        Some(content)
    }
}
