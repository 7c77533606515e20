//! The files of a new volume: the root directory, quota files, `lost+found`.

use steadfs_base::Timestamp;
use steadfs_vfs::InodeFlags;

use super::build::Build;
use super::{FormatError, FormatOptions};
use crate::disk::dentry::{self, DentryLayout, Entry};
use crate::disk::inode::{self, Inline};
use crate::disk::node::Footer;
use crate::disk::quota::Kind;
use crate::disk::quota::usage::{Usage, Usages};
use crate::disk::{BLOCK_SIZE, BlockAddr, Features, Inode, Layout, LogType, Nid, hash};

/// The checkpoint version in the first nodes.
const FIRST_VERSION: u64 = 1;
const LOST_FOUND: &[u8] = b"lost+found";
const DIRECTORY: u8 = 2;

/// Bytes of extra fields: up to the last one that a feature of the volume needs.
fn extra_isize(layout: &Layout) -> u16 {
    let ends = [
        (Features::COMPRESSION, 36),
        (Features::INODE_CRTIME, 24),
        (Features::INODE_CHECKSUM, 12),
        (Features::PROJECT_QUOTA, 8),
        (Features::EXTRA_ATTR, 4),
    ];
    let found = ends.into_iter().find(|(feature, _)| layout.has(*feature));
    found.map_or(0, |(_, end)| end)
}

/// An inode with the fields that all new inodes share.
fn base(layout: &Layout, mode: u16, now: Timestamp, owner: (u32, u32)) -> Inode {
    let inline = if layout.has(Features::EXTRA_ATTR) {
        Inline::EXTRA
    } else {
        Inline::default()
    };
    Inode {
        mode,
        inline,
        uid: owner.0,
        gid: owner.1,
        atime: now,
        ctime: now,
        mtime: now,
        extra_isize: extra_isize(layout),
        ..Inode::default()
    }
}

impl Build {
    /// Creates the files; the root directory first, because its node is the first of the log.
    pub(super) fn make_files(
        &mut self,
        opts: &FormatOptions,
        now: Timestamp,
    ) -> Result<(), FormatError> {
        let layout = self.layout().clone();
        let quota_files = self.plan.superblock.quota_inodes();
        let lost_found = layout.has(Features::LOST_FOUND).then(|| {
            let before = quota_files.into_iter().flatten().max();
            Nid(before.unwrap_or(Nid::ROOT).0 + 1)
        });
        let mut root = base(&layout, 0o40755, now, opts.root_owner);
        root.links = if lost_found.is_some() { 3 } else { 2 };
        let mut names = vec![(&b"."[..], Nid::ROOT), (b"..", Nid::ROOT)];
        names.extend(lost_found.map(|ino| (LOST_FOUND, ino)));
        self.make_directory(&layout, Nid::ROOT, root, &names)?;
        let directories = if lost_found.is_some() { 2 } else { 1 };
        for (kind, ino) in Kind::ALL.into_iter().zip(quota_files) {
            if let Some(ino) = ino {
                self.make_quota(&layout, opts, now, (kind, ino, directories))?;
            }
        }
        if let Some(ino) = lost_found {
            let mut inode = base(&layout, 0o40700, now, opts.root_owner);
            inode.links = 2;
            inode.parent = Nid::ROOT;
            inode.name = LOST_FOUND.to_vec();
            self.make_directory(&layout, ino, inode, &[(b".", ino), (b"..", Nid::ROOT)])?;
        }
        Ok(())
    }

    fn make_directory(
        &mut self,
        layout: &Layout,
        ino: Nid,
        mut inode: Inode,
        names: &[(&[u8], Nid)],
    ) -> Result<(), FormatError> {
        let mut block = vec![0; BLOCK_SIZE];
        let mut slot = 0;
        for &(name, ino) in names {
            let hash = match name {
                b"." | b".." => 0,
                _ => hash::of_name(name),
            };
            let file_type = DIRECTORY;
            let entry = Entry {
                slot,
                hash,
                ino,
                file_type,
                name,
            };
            dentry::insert(&DentryLayout::BLOCK, &mut block, &entry);
            slot += dentry::slots_for(name.len());
        }
        inode.size = BLOCK_SIZE as u64;
        inode.depth = 1;
        inode.btime = Some(inode.ctime);
        self.put_inode(layout, ino, inode, vec![block], 1)
    }

    /// Creates the quota file of a kind: the directories belong to their owner, and to project 0.
    fn make_quota(
        &mut self,
        layout: &Layout,
        opts: &FormatOptions,
        now: Timestamp,
        (kind, ino, directories): (Kind, Nid, u64),
    ) -> Result<(), FormatError> {
        let mut inode = base(layout, 0o100_600, now, opts.root_owner);
        inode.links = 1;
        inode.flags = InodeFlags::IMMUTABLE;
        let mut usages = Usages::default();
        let (user, group) = opts.root_owner;
        let used = Usage {
            bytes: directories * BLOCK_SIZE as u64,
            inodes: directories,
        };
        usages.add([user, group, 0], used);
        let mut bytes = usages.to_file(kind);
        inode.size = bytes.len() as u64;
        bytes.resize(bytes.len().next_multiple_of(BLOCK_SIZE), 0);
        let blocks = bytes.chunks(BLOCK_SIZE).map(<[u8]>::to_vec).collect();
        // For each of the three possible quota files there is one next-block address, in the order of the kinds.
        let files = self.plan.superblock.quota_inodes();
        let before = files.into_iter().flatten().filter(|other| *other < ino);
        let next = kind.index() + 1 - before.count();
        self.put_inode(layout, ino, inode, blocks, next as u32)
    }

    /// Appends a file's blocks and its inode to their logs. `next`: distance from the inode to the next-block
    /// address in its footer.
    fn put_inode(
        &mut self,
        layout: &Layout,
        ino: Nid,
        mut inode: Inode,
        blocks: Vec<Vec<u8>>,
        next: u32,
    ) -> Result<(), FormatError> {
        inode.blocks = 1 + blocks.len() as u64;
        let mut node = vec![0; BLOCK_SIZE];
        inode.encode_into(layout, &mut node)?;
        for (slot, block) in (0u16..).zip(blocks) {
            let addr = self.append(LogType::HotData, ino, slot, block);
            inode.set_addr(layout, &mut node, slot, addr);
        }
        let addr = self.next_address(LogType::HotNode);
        let footer = Footer {
            nid: ino,
            ino,
            cp_version: FIRST_VERSION,
            next: BlockAddr(addr.0 + next),
            ..Footer::default()
        };
        footer.encode_into(&mut node);
        inode::seal(layout, &mut node);
        self.append(LogType::HotNode, ino, 0, node);
        self.set_nat(ino, addr);
        Ok(())
    }
}
