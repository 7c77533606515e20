//! lookup, readdir, readlink.

use steadfs_base::{Corruption, FileBlock, InodeNo, IoTag};
use steadfs_vfs::names::check_length;
use steadfs_vfs::nokey::symlink_target;
use steadfs_vfs::{Attr, Cx, DirEntry, FileKind, FsError, InodeFlags, Result};

use crate::dir::Dir;
use crate::disk::{self, Ino};
use crate::fs::Ext4;
use crate::inline;
use crate::inode::Inode;

impl Ext4 {
    /// See [`steadfs_vfs::FileSystem::lookup`].
    pub fn lookup(&self, cx: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        check_length(name)?;
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.read();
        let ino = {
            let core = dir.core.read();
            let names = Dir::new(self, dir.ino(), &core, cx.tag)
                .for_reader(cx)
                .after_last_search(&dir);
            names.lookup(&core, name)?
        };
        let inode = self.named(&dir, ino.ok_or(FsError::NotFound)?, cx.tag)?;
        // Under the directory's lock: a later removal of the name sees the lookup count.
        inode.add_lookup();
        Ok(inode.attr(self))
    }

    /// See [`steadfs_vfs::FileSystem::readdir`].
    pub fn readdir(
        &self,
        cx: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.directory(dir, cx.tag)?;
        let _names = dir.lock.read();
        let core = dir.core.read();
        if core.links == 0 {
            return Err(FsError::NotFound);
        }
        let names = Dir::new(self, dir.ino(), &core, cx.tag).for_reader(cx);
        names.read(&core, cookie, emit)
    }

    /// See [`steadfs_vfs::FileSystem::readlink`].
    pub fn readlink(&self, cx: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        let inode = self.by_number(ino, cx.tag)?;
        if inode.kind() != FileKind::Symlink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        self.link_target(&inode, cx.tag)
    }

    /// A symbolic link's target; an encrypted one without its key in its no-key form.
    pub(crate) fn link_target(&self, inode: &Inode, tag: IoTag) -> Result<Vec<u8>> {
        let content = self.link_content(inode, tag)?;
        match self.content_key(inode, tag) {
            Ok(None) => Ok(content),
            Ok(Some(key)) => key.decrypt_target(&content),
            Err(FsError::NoKey) => symlink_target(&content),
            Err(error) => Err(error),
        }
    }

    fn link_content(&self, inode: &Inode, tag: IoTag) -> Result<Vec<u8>> {
        let core = inode.core.read();
        let ino = inode.ino();
        let bad = |what: &str| {
            FsError::from(Corruption::new(format!("symbolic link {what}")).in_inode(ino))
        };
        let is_bad = |target: &[u8]| !core.has(InodeFlags::ENCRYPTED) && target.contains(&0);
        if core.is_fast_symlink(self.geo()) {
            let target = core.fast_symlink_target();
            if target.is_empty() || is_bad(target) {
                return Err(bad("is empty or has a zero byte"));
            }
            return Ok(target.to_vec());
        }
        let size = usize::try_from(core.size).map_err(|_| bad("is too long"))?;
        if size == 0 || size > self.geo().block_size.bytes() {
            return Err(bad("has an impossible length"));
        }
        let mut content = self.link_bytes(ino, &core, tag)?;
        if content.len() < size {
            return Err(bad("is cut short"));
        }
        content.truncate(size);
        // The kernel takes the target up to the first zero byte.
        if is_bad(&content) {
            return Err(bad("has a zero byte"));
        }
        Ok(content)
    }

    fn link_bytes(&self, ino: Ino, core: &disk::Inode, tag: IoTag) -> Result<Vec<u8>> {
        if core.has(disk::inode::INLINE_DATA) {
            return Ok(inline::parts(core)?.concat());
        }
        let at = self.map_block(core, ino, FileBlock(0), tag)?;
        let at = at.ok_or_else(|| Corruption::new("symbolic link has no target").in_inode(ino))?;
        Ok(self.block(at, tag)?.data().to_vec())
    }
}
