//! Inode records.

use std::sync::Arc;

use steadfs_base::Corruption;
use steadfs_vfs::{FileKind, InodeFlags, Result};

use super::Replay;
use crate::disk::inode::{EA_INODE, I_BLOCK_SIZE, INLINE_DATA, seal};
use crate::disk::{self, Ino};
use crate::inode::Inode;
use crate::quota::owners_of;

/// Flags that select the form of `i_block`.
const CONTENT_FLAGS: u32 = InodeFlags::EXTENTS.0 | INLINE_DATA.0 | EA_INODE.0;

impl Replay<'_> {
    /// Gives an inode the fields of a record. Another generation is another inode: the old one was freed, and its number
    /// was allocated again.
    pub(super) fn inode(&mut self, ino: Ino, raw: &[u8]) -> Result<()> {
        let new = self.parse(ino, raw)?;
        self.touched.insert(ino);
        let owners = owners_of(&new).map(Some);
        let _pins = self.fs.prepare_owners(owners, self.cx.tag)?;
        match self.current(ino)? {
            Some(inode) if inode.core.read().generation == new.generation => {
                self.update(&inode, new)
            }
            Some(old) => {
                self.free_old(&old)?;
                self.make(ino, new)
            }
            None => self.make(ino, new),
        }
    }

    /// The fields of a record. Its checksum belongs to the whole slot, of which the record has the start only.
    fn parse(&self, ino: Ino, raw: &[u8]) -> Result<disk::Inode> {
        let geo = self.fs.geo();
        let mut slot = vec![0; geo.inode_size.into()];
        let Some(start) = slot.get_mut(..raw.len()) else {
            let what = format!("an inode of {} bytes", raw.len());
            return Err(Corruption::new(what).in_inode(ino).into());
        };
        start.copy_from_slice(raw);
        seal(geo, ino, &mut slot);
        Ok(disk::Inode::parse(geo, ino, &slot)?)
    }

    /// Changes an inode. What a fast commit does not record stays: the map, attributes, a directory's size and links.
    fn update(&mut self, inode: &Arc<Inode>, new: disk::Inode) -> Result<()> {
        let contradiction = |what| Err(Corruption::new(what).in_inode(inode.ino()).into());
        let mut core = inode.core.write();
        if new.kind() != core.kind() {
            return contradiction("its type changes");
        }
        if (new.flags.0 ^ core.flags.0) & CONTENT_FLAGS != 0 {
            return contradiction("the form of its content changes");
        }
        if new.file_acl != core.file_acl {
            return contradiction("its attribute block changes");
        }
        let kept = disk::Inode {
            blocks: core.blocks,
            // While it is an orphan, the next one's number.
            dtime: core.dtime,
            block: if has_map(&new) { core.block } else { new.block },
            xattr_area: std::mem::take(&mut core.xattr_area),
            ..new
        };
        *core = match kept.kind() {
            Some(FileKind::Directory) => disk::Inode {
                size: core.size,
                links: core.links,
                flags: InodeFlags(
                    kept.flags.0 & !InodeFlags::INDEX.0 | core.flags.0 & InodeFlags::INDEX.0,
                ),
                ..kept
            },
            _ => kept,
        };
        inode.set_size(core.size);
        self.change(|replay, handle| replay.fs.store_inode(handle, inode, &core))
    }

    /// Frees an inode whose number was allocated again. It lost its names before.
    fn free_old(&mut self, old: &Inode) -> Result<()> {
        if old.core.read().links > 0 {
            let what = "its number is allocated again, but it has names";
            return Err(Corruption::new(what).in_inode(old.ino()).into());
        }
        self.unmade.remove(&old.ino());
        self.fs.evict(old)
    }

    /// Makes a new inode without a name and without content.
    fn make(&mut self, ino: Ino, new: disk::Inode) -> Result<()> {
        let contradiction = |what| Err(Corruption::new(what).in_inode(ino).into());
        let Some(kind) = new.kind() else {
            return contradiction("a new inode has no type");
        };
        if new.file_acl.is_some() {
            return contradiction("a new inode has an attribute block");
        }
        if new.has(EA_INODE) || new.has(INLINE_DATA) {
            return contradiction("a new inode has content that is not recorded");
        }
        let mut core = disk::Inode {
            blocks: 0,
            dtime: 0,
            ..new
        };
        if kind == FileKind::Directory {
            core.size = 0;
            core.links = 2;
            core.flags = InodeFlags(core.flags.0 & !InodeFlags::INDEX.0);
            self.unmade.insert(ino);
        }
        if has_map(&core) {
            core.block = [0; I_BLOCK_SIZE];
            if core.has(InodeFlags::EXTENTS) {
                crate::extent::init_root(&mut core);
            }
        }
        self.change(|replay, handle| {
            let fs = replay.fs;
            fs.alloc.allocate_given_inode(fs, handle, ino, kind)?;
            fs.clear_slot(handle, ino)?;
            let inode = fs
                .inodes
                .insert(Inode::new(ino, core, fs.geo.block_size, &fs.writeback)?);
            let core = inode.core.read();
            fs.store_inode(handle, &inode, &core)
        })
    }
}

/// Whether `i_block` is a block map, which no inode record has, and not a device number or a short link's target.
fn has_map(core: &disk::Inode) -> bool {
    match core.kind() {
        Some(FileKind::Regular | FileKind::Directory) => true,
        Some(FileKind::Symlink) => {
            core.has(InodeFlags::EXTENTS) || core.size >= I_BLOCK_SIZE as u64
        }
        _ => false,
    }
}
