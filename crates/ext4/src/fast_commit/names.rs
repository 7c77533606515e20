//! Records of names: create, link, unlink.

use std::sync::Arc;

use steadfs_base::{Corruption, IoTag};
use steadfs_vfs::names::is_dots;
use steadfs_vfs::{FileKind, FsError, Result, check_name};

use super::Replay;
use crate::dir::{Dir, Entry};
use crate::disk::Ino;
use crate::disk::inode::LINK_MAX;
use crate::inode::Inode;

/// A name of an inode in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) parent: Ino,
    pub(super) ino: Ino,
    pub(super) name: Box<[u8]>,
}

impl Name {
    /// Refuses what no entry can be.
    pub(super) fn check(&self) -> Result<()> {
        check_name(&self.name)?;
        if is_dots(&self.name) || self.ino == self.parent || self.ino == Ino::ROOT {
            let what = format!("a name of inode {} in directory {}", self.ino, self.parent);
            return Err(Corruption::new(what).into());
        }
        Ok(())
    }
}

impl Replay<'_> {
    /// The directory. `None`: it was removed by the end of the fast commit, and changes of its names are ignored.
    fn directory(&self, ino: Ino) -> Result<Option<Arc<Inode>>> {
        if self.unmade.contains(&ino) {
            let what = "a directory gets names before its own";
            return Err(Corruption::new(what).in_inode(ino).into());
        }
        let inode = self.current(ino)?;
        Ok(inode.filter(|dir| dir.kind() == FileKind::Directory && dir.core.read().links > 0))
    }

    fn entry(&self, dir: &Inode, name: &[u8]) -> Result<Option<Entry>> {
        let core = dir.core.read();
        Dir::new(self.fs, dir.ino(), &core, IoTag::default()).find(&core, name)
    }

    /// Adds the entry; false if it is there.
    fn add_entry(&mut self, dir: &Arc<Inode>, name: &Name, inode: &Arc<Inode>) -> Result<bool> {
        if let Some(entry) = self.entry(dir, &name.name)? {
            if entry.ino() == name.ino {
                return Ok(false);
            }
            let what = format!("the name belongs to inode {}", entry.ino());
            return Err(Corruption::new(what).in_inode(dir.ino()).into());
        }
        let subdir = inode.kind() == FileKind::Directory;
        self.change(|replay, handle| {
            let (fs, cx) = (replay.fs, replay.cx.clone());
            let slot = fs.room_for_name(&cx, handle, dir, &name.name, 0)?;
            fs.add_name(&cx, handle, dir, &slot, inode, subdir)
        })?;
        Ok(true)
    }

    /// Sets the link count of an inode that is not a directory.
    fn set_links(&mut self, inode: &Arc<Inode>, links: u16) -> Result<()> {
        self.touched.insert(inode.ino());
        self.change(|replay, handle| {
            let mut core = inode.core.write();
            core.links = links;
            replay.fs.store_inode(handle, inode, &core)
        })
    }

    /// Names an inode that an inode record has made.
    pub(super) fn create(&mut self, name: &Name) -> Result<()> {
        let Some(inode) = self.current(name.ino)? else {
            let what = "is created, but has no inode record";
            return Err(Corruption::new(what).in_inode(name.ino).into());
        };
        let Some(dir) = self.directory(name.parent)? else {
            return Ok(());
        };
        if inode.kind() != FileKind::Directory {
            self.add_entry(&dir, name, &inode)?;
            // The inode record has the count after all changes; later records of names are counted again.
            return self.set_links(&inode, 1);
        }
        if self.unmade.remove(&name.ino) {
            self.change(|replay, handle| {
                let mut core = inode.core.write();
                Dir::new(replay.fs, name.ino, &core, IoTag::default()).init(
                    handle,
                    &inode,
                    &mut core,
                    name.parent,
                )?;
                replay.fs.store_inode(handle, &inode, &core)
            })?;
            self.add_entry(&dir, name, &inode)?;
            return Ok(());
        }
        match self.entry(&dir, &name.name)? {
            Some(entry) if entry.ino() == name.ino => Ok(()),
            _ => {
                let what = "a directory gets a second name";
                Err(Corruption::new(what).in_inode(name.ino).into())
            }
        }
    }

    /// Gives an inode one more name. If it does not exist yet, its inode record follows; or it was removed meanwhile.
    pub(super) fn link(&mut self, name: Name) -> Result<()> {
        let Some(inode) = self.current(name.ino)? else {
            self.early_names.push(name);
            return Ok(());
        };
        if inode.kind() == FileKind::Directory {
            let what = "a directory gets a second name";
            return Err(Corruption::new(what).in_inode(name.ino).into());
        }
        let Some(dir) = self.directory(name.parent)? else {
            return Ok(());
        };
        let links = inode.core.read().links;
        if links >= LINK_MAX {
            return Err(FsError::TooManyLinks);
        }
        if self.add_entry(&dir, &name, &inode)? {
            self.set_links(&inode, links + 1)?;
        }
        Ok(())
    }

    /// Adds the names that were recorded before their inode. Its record has the link count after them.
    pub(super) fn add_early_names(&mut self, ino: Ino) -> Result<()> {
        let (due, later) = std::mem::take(&mut self.early_names)
            .into_iter()
            .partition(|name| name.ino == ino);
        self.early_names = later;
        let due: Vec<Name> = due;
        for name in due {
            let (inode, dir) = (self.current(ino)?, self.directory(name.parent)?);
            let (Some(inode), Some(dir)) = (inode, dir) else {
                continue;
            };
            if inode.kind() == FileKind::Directory {
                let what = "a directory is linked";
                return Err(Corruption::new(what).in_inode(ino).into());
            }
            self.add_entry(&dir, &name, &inode)?;
        }
        Ok(())
    }

    /// Removes a name. It need not be there: what was created and removed again has no create record.
    pub(super) fn unlink(&mut self, name: &Name) -> Result<()> {
        self.early_names
            .retain(|early| (early.parent, &early.name) != (name.parent, &name.name));
        let Some(dir) = self.directory(name.parent)? else {
            return Ok(());
        };
        let entry = self.entry(&dir, &name.name)?;
        let Some(entry) = entry.filter(|entry| entry.ino() == name.ino) else {
            return Ok(());
        };
        let Some(inode) = self.current(name.ino)? else {
            let what = format!("an entry names free inode {}", name.ino);
            return Err(Corruption::new(what).in_inode(dir.ino()).into());
        };
        let subdir = inode.kind() == FileKind::Directory;
        if subdir {
            let core = inode.core.read();
            if !Dir::new(self.fs, name.ino, &core, IoTag::default()).is_empty(&core)? {
                let what = "is removed, but has names";
                return Err(Corruption::new(what).in_inode(name.ino).into());
            }
        }
        self.change(|replay, handle| {
            replay
                .fs
                .take_name(&replay.cx.clone(), handle, &dir, &entry, subdir)
        })?;
        let links = match subdir {
            true => 0,
            false => inode.core.read().links.saturating_sub(1),
        };
        self.set_links(&inode, links)
    }
}
