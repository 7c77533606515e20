//! The fields of new inodes, as the kernel sets them.

use steadfs_base::Timestamp;
use steadfs_rt::random_u64;
use steadfs_vfs::acl::Inherited;
use steadfs_vfs::{Cx, FileKind, InodeFlags, NewInode};

use super::extensions::{Extensions, ends_with};
use crate::disk::inode::{Compression, DEFAULT_XATTR_WORDS, Inline, extra_isize_for};
use crate::disk::{self, Features, Layout, Nid};
use crate::options::MountOptions;

/// Flags that a new inode inherits from its directory (`F2FS_FL_INHERITED`).
const INHERITED: u32 = InodeFlags::SYNC.0
    | InodeFlags::NODUMP.0
    | InodeFlags::NOATIME.0
    | InodeFlags::DIRSYNC.0
    | InodeFlags::PROJINHERIT.0
    | InodeFlags::CASEFOLD.0;

/// The volume's and the directory's influence on a new inode.
pub(super) struct InodeContext<'a> {
    pub(super) layout: &'a Layout,
    pub(super) options: &'a MountOptions,
    /// The superblock's lists; `None` if they are not used.
    pub(super) extensions: Option<&'a Extensions>,
    /// The superblock's lists, which decide about compression in any case.
    pub(super) lists: &'a Extensions,
    pub(super) parent: &'a disk::Inode,
    pub(super) parent_ino: Nid,
    pub(super) now: Timestamp,
}

/// The fields of a new inode with this name; `None` for a file without a name.
pub(super) fn fields(
    cx: &Cx,
    setting: &InodeContext<'_>,
    spec: &NewInode<'_>,
    inherited: &Inherited,
    name: &[u8],
) -> disk::Inode {
    let (parent, now) = (setting.parent, setting.now);
    let directory = spec.kind == FileKind::Directory;
    let (uid, gid) = cx.new_owner();
    let mut core = disk::Inode {
        uid,
        gid,
        links: match (directory, name) {
            (true, _) => 2,
            (false, b"") => 0,
            (false, _) => 1,
        },
        blocks: 1,
        // The low 32 bits of a random number.
        generation: random_u64() as u32,
        depth: u32::from(directory),
        flags: InodeFlags(parent.flags.0 & INHERITED & flags_for(spec.kind)),
        parent: setting.parent_ino,
        name: name.to_vec(),
        atime: now,
        mtime: now,
        ctime: now,
        ..disk::Inode::default()
    };
    if directory {
        core.flags = core.flags.union(InodeFlags::INDEX);
    }
    let (perm, takes_group) = spec.perm_in(cx, (parent.mode, parent.gid), inherited.mode);
    if takes_group {
        core.gid = parent.gid;
    }
    // File type and 12 permission bits.
    core.mode = (spec.kind.mode_bits() | perm) as u16;
    extra_fields(setting, &mut core);
    choose_compression(setting, spec.kind, name, &mut core);
    choose_inline(setting, spec, &mut core);
    if spec.kind == FileKind::Regular
        && let Some(extensions) = setting.extensions
    {
        core.advise = extensions.advise(name);
    }
    core
}

/// Sets the fields that exist only with `extra_attr`.
fn extra_fields(setting: &InodeContext<'_>, core: &mut disk::Inode) {
    let layout = setting.layout;
    if !layout.has(Features::EXTRA_ATTR) {
        return;
    }
    core.inline = core.inline.union(Inline::EXTRA);
    core.extra_isize = extra_isize_for(layout);
    if layout.has(Features::INODE_CRTIME) {
        core.btime = Some(setting.now);
    }
    if setting.parent.has(InodeFlags::PROJINHERIT) {
        core.project = setting.parent.project;
    }
}

/// Decides whether a new file is compressed, or what is created in a new directory: by the file's name, or as its
/// directory says.
fn choose_compression(
    setting: &InodeContext<'_>,
    kind: FileKind,
    name: &[u8],
    core: &mut disk::Inode,
) {
    if !core.has_compression(setting.layout) {
        return;
    }
    let options = &setting.options.compress;
    core.compression = Some(Compression::default());
    let compressed = |core: &mut disk::Inode| {
        core.compression = Some(options.of_new_file());
        core.flags = core.flags.union(InodeFlags::COMPRESSED);
    };
    let ends = |list: &[String]| list.iter().any(|ext| ends_with(name, ext.as_bytes()));
    match kind {
        FileKind::Directory => {}
        FileKind::Regular if !name.is_empty() => {
            if setting.lists.ends_hot(name) || ends(&options.not_extensions) {
                return;
            }
            if ends(&options.extensions) {
                return compressed(core);
            }
        }
        _ => return,
    }
    if setting.parent.has(InodeFlags::NOT_COMPRESSED) {
        core.flags = core.flags.union(InodeFlags::NOT_COMPRESSED);
    } else if setting.parent.has(InodeFlags::COMPRESSED) {
        compressed(core);
    }
}

/// Decides which content is stored in the inode.
fn choose_inline(setting: &InodeContext<'_>, spec: &NewInode<'_>, core: &mut disk::Inode) {
    let options = setting.options;
    if options.inline_xattr {
        core.inline = core.inline.union(Inline::XATTR);
        if setting.layout.has(Features::FLEXIBLE_INLINE_XATTR) {
            core.xattr_words = options.inline_xattr_size.unwrap_or(DEFAULT_XATTR_WORDS);
        }
    }
    match spec.kind {
        FileKind::Directory if options.inline_dentry => {
            core.inline = core.inline.union(Inline::DENTRIES);
            core.size = core.inline_range(setting.layout).len() as u64;
        }
        // Compressed content is in clusters of blocks.
        FileKind::Regular if options.inline_data && !core.has(InodeFlags::COMPRESSED) => {
            core.inline = core.inline.union(Inline::DATA);
        }
        FileKind::Symlink => {
            core.size = spec.target.len() as u64;
            // The kernel stores a zero byte after the target.
            let free_dentry = core.inline_range(setting.layout).len();
            if options.inline_data && spec.target.len() < free_dentry {
                core.inline = core.inline.union(Inline::DATA).union(Inline::DATA_EXISTS);
            }
        }
        _ => {}
    }
}

/// Flags that are valid for inodes of this kind (`F2FS_REG_FLMASK`, `F2FS_OTHER_FLMASK`).
pub(crate) fn flags_for(kind: FileKind) -> u32 {
    const DIRECTORY_ONLY: u32 =
        InodeFlags::DIRSYNC.0 | InodeFlags::PROJINHERIT.0 | InodeFlags::CASEFOLD.0;
    match kind {
        FileKind::Directory => u32::MAX,
        FileKind::Regular => !DIRECTORY_ONLY,
        _ => InodeFlags::NODUMP.0 | InodeFlags::NOATIME.0,
    }
}
