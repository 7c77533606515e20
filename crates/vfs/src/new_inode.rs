//! The inode that a call creates: its kind, and the owner, group and permission bits that POSIX gives it.

use steadfs_base::limits::SYMLINK_MAX;

use crate::{Cx, FileKind, FsError, Result};

const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;

/// What kind of inode to create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewInode<'a> {
    /// Its kind.
    pub kind: FileKind,
    /// Requested permission bits, before umask and default list.
    pub perm: u32,
    /// Device number of a device node.
    pub rdev: u32,
    /// Target of a symbolic link.
    pub target: &'a [u8],
}

impl<'a> NewInode<'a> {
    /// An inode without content of its own.
    pub const fn plain(kind: FileKind, perm: u32, rdev: u32) -> Self {
        Self {
            kind,
            perm,
            rdev,
            target: b"",
        }
    }

    /// A directory as mkdir(2) makes it: set-group-ID is inherited from the parent, set-user-ID is ignored.
    pub const fn dir(mode: u32) -> Self {
        Self::plain(FileKind::Directory, mode & 0o1777, 0)
    }

    /// A file as mknod(2) makes it.
    ///
    /// # Errors
    /// `Invalid`: the mode has no type, or that of a directory or symbolic link.
    pub fn node(mode: u32, rdev: u32) -> Result<Self> {
        let kind = FileKind::from_mode(mode).ok_or(FsError::Invalid("a mode without a type"))?;
        if matches!(kind, FileKind::Directory | FileKind::Symlink) {
            let why = "mknod makes neither directories nor links";
            return Err(FsError::Invalid(why));
        }
        Ok(Self::plain(kind, mode & 0o7777, rdev))
    }

    /// A symbolic link on a volume with blocks of `block_size` bytes, of which its target takes one at most.
    ///
    /// # Errors
    /// The target is empty, has a zero byte, or is too long.
    pub fn link(target: &'a [u8], block_size: usize) -> Result<Self> {
        if target.is_empty() {
            return Err(FsError::NotFound);
        }
        if target.contains(&0) {
            let why = "a link's target cannot contain a zero byte";
            return Err(FsError::Invalid(why));
        }
        if target.len() >= block_size || target.len() > SYMLINK_MAX {
            return Err(FsError::NameTooLong);
        }
        Ok(Self {
            target,
            ..Self::plain(FileKind::Symlink, 0o777, 0)
        })
    }

    /// The twelve permission bits in a directory with this mode and group, and whether the inode gets the directory's
    /// group. `inherited`: the nine bits that the directory's default list determines.
    pub fn perm_in(&self, cx: &Cx, (mode, gid): (u16, u32), inherited: Option<u32>) -> (u32, bool) {
        let mut perm = match inherited {
            Some(nine) => self.perm & 0o7000 | nine,
            None if self.kind == FileKind::Symlink => self.perm,
            None => self.perm & !cx.umask & 0o7777,
        };
        let takes_group = u32::from(mode) & SET_GROUP_ID != 0;
        if takes_group {
            let both = SET_GROUP_ID | GROUP_EXECUTE;
            if self.kind == FileKind::Directory {
                perm |= SET_GROUP_ID;
            } else if perm & both == both && !cx.may_keep_group(gid) {
                perm &= !SET_GROUP_ID;
            }
        }
        (perm, takes_group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller() -> Cx {
        Cx {
            umask: 0o022,
            gid: 5,
            fsetid: false,
            ..Cx::default()
        }
    }

    #[test]
    fn the_umask_or_the_default_list_limits_the_mode() {
        let file = NewInode::node(0o100_666, 0).unwrap();
        let dir = (0o755, 7);
        assert_eq!(file.perm_in(&caller(), dir, None), (0o644, false));
        assert_eq!(file.perm_in(&caller(), dir, Some(0o660)), (0o660, false));
        let link = NewInode::link(b"target", 4096).unwrap();
        assert_eq!(link.perm_in(&caller(), dir, None), (0o777, false));
    }

    #[test]
    fn a_directory_with_set_group_id_gives_its_group() {
        let dir = (0o2755, 7);
        let below = NewInode::dir(0o7777);
        assert_eq!(below.perm_in(&caller(), dir, None), (0o3755, true));
        let script = NewInode::node(0o102_755, 0).unwrap();
        assert_eq!(script.perm_in(&caller(), dir, None), (0o755, true));
        let of_own_group = (0o2755, 5);
        assert_eq!(
            script.perm_in(&caller(), of_own_group, None),
            (0o2755, true)
        );
        let no_program = NewInode::node(0o102_644, 0).unwrap();
        assert_eq!(no_program.perm_in(&caller(), dir, None), (0o2644, true));
    }

    #[test]
    fn what_cannot_be_made_is_refused() {
        assert!(NewInode::node(0o644, 0).is_err());
        assert!(NewInode::node(0o040_755, 0).is_err());
        assert!(NewInode::node(0o120_777, 0).is_err());
        assert_eq!(NewInode::link(b"", 4096), Err(FsError::NotFound));
        assert!(matches!(
            NewInode::link(b"a\0b", 4096),
            Err(FsError::Invalid(_))
        ));
        assert_eq!(
            NewInode::link(&[b'x'; 1024], 1024),
            Err(FsError::NameTooLong)
        );
        assert!(NewInode::link(&[b'x'; 1023], 1024).is_ok());
    }
}
