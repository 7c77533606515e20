//! Volumes that are corrupted on purpose.

use std::sync::OnceLock;

use super::*;
use crate::disk::dir_entry;
use crate::disk::extent::ExtentNode;
use crate::disk::features::Features;
use crate::disk::group_desc::GroupDesc;
use crate::disk::inode::{self, Inode};
use crate::disk::num::get32;
use crate::disk::{GroupNo, Ino};

/// A volume to be damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Base {
    /// ext4 as it is by default, several groups.
    Ext4,
    /// The same without checksums, so that they do not detect the damage first.
    Plain,
    /// ext2: indirect maps.
    Ext2,
    /// With an orphan file, without checksums.
    OrphanFile,
    /// With attribute inodes, without checksums.
    EaInode,
    /// With case-insensitive directories in a strict encoding, without checksums.
    Casefold,
    /// With clusters of four blocks, without checksums.
    Bigalloc,
}

impl Base {
    pub(super) fn options(self) -> Vec<&'static str> {
        let mut options = vec!["-b", "1024", "-g", "4096", "-N", "1200"];
        options.extend_from_slice(match self {
            Self::Ext4 => &["-t", "ext4"],
            Self::Plain => &["-t", "ext4", "-O", "^metadata_csum,^flex_bg"],
            Self::Ext2 => &["-t", "ext2"],
            Self::OrphanFile => &["-t", "ext4", "-O", "^metadata_csum,orphan_file"],
            Self::EaInode => &["-t", "ext4", "-O", "^metadata_csum,ea_inode"],
            Self::Casefold => &[
                "-t",
                "ext4",
                "-O",
                "^metadata_csum,casefold",
                "-E",
                "encoding_flags=strict",
            ],
            Self::Bigalloc => &["-t", "ext4", "-O", "^metadata_csum,bigalloc", "-C", "4096"],
        });
        options
    }

    /// The undamaged image, with the directory `many` indexed.
    pub(super) fn image(self) -> &'static [u8] {
        static IMAGES: [OnceLock<Vec<u8>>; 7] = [const { OnceLock::new() }; 7];
        IMAGES[self as usize].get_or_init(|| {
            let image = populated(&self.options(), "12M");
            let value = image.beside("value2");
            fs::write(&value, [b'w'; 200]).unwrap();
            let value = value.display();
            image.debugfs(&format!("ea_set -f {value} large user.other"));
            if self == Self::EaInode {
                let value = image.beside("value3");
                fs::write(&value, [b'y'; 1024]).unwrap();
                image.debugfs(&format!("ea_set -f {} empty user.inode", value.display()));
            }
            let path = image.path();
            let (code, words) = judge("e2fsck", &["-fyD", path.to_str().unwrap()]);
            assert!(code <= 1, "{words}");
            assert_clean(&image, &self);
            image.bytes()
        })
    }
}

/// A volume being damaged.
pub(super) struct Damage {
    pub(super) image: Image,
    pub(super) bytes: Vec<u8>,
    pub(super) geo: Geometry,
}

impl Damage {
    pub(super) fn new(base: Base) -> Self {
        let bytes = base.image().to_vec();
        let image = Image::of(&bytes);
        let geo = image.superblock().geometry().clone();
        Self { image, bytes, geo }
    }

    /// Runs debugfs on the image as it is now.
    pub(super) fn debugfs(&mut self, command: &str) {
        fs::write(self.image.path(), &self.bytes).unwrap();
        self.image.debugfs(command);
        self.bytes = self.image.bytes();
    }

    pub(super) fn ino(&self, name: &str) -> Ino {
        let stat = self.image.debugfs(&format!("stat {name}"));
        let number = stat
            .split_whitespace()
            .nth(1)
            .expect("debugfs finds the name");
        Ino(number.parse().unwrap())
    }

    pub(super) fn block(&mut self, block: DevBlock) -> &mut [u8] {
        let at = self.geo.block_size.offset_of(block) as usize;
        let len = self.geo.block_size.bytes();
        &mut self.bytes[at..at + len]
    }

    pub(super) fn desc_slot(&mut self, group: u32) -> &mut [u8] {
        let (n, offset) = self.geo.desc_slot(GroupNo(group));
        let size = usize::from(self.geo.desc_size);
        let at = self.geo.desc_block_at(n);
        &mut self.block(at)[offset..offset + size]
    }

    pub(super) fn desc(&mut self, group: u32) -> GroupDesc {
        let geo = self.geo.clone();
        GroupDesc::decode(&geo, self.desc_slot(group))
    }

    pub(super) fn set_desc(&mut self, group: u32, edit: impl FnOnce(&mut GroupDesc)) {
        let geo = self.geo.clone();
        let mut desc = self.desc(group);
        edit(&mut desc);
        desc.encode_into(&geo, GroupNo(group), self.desc_slot(group));
    }

    pub(super) fn slot(&mut self, ino: Ino) -> &mut [u8] {
        let (group, index) = self.geo.group_of_inode(ino);
        let table = self.desc(group.0).inode_table;
        let (block, offset) = self.geo.inode_slot(table, index);
        let size = usize::from(self.geo.inode_size);
        &mut self.block(block)[offset..offset + size]
    }

    pub(super) fn inode(&mut self, ino: Ino) -> Inode {
        let geo = self.geo.clone();
        Inode::decode(&geo, self.slot(ino)).unwrap()
    }

    /// Edits the bytes of an inode's slot, and seals it.
    pub(super) fn set_slot(&mut self, ino: Ino, edit: impl FnOnce(&mut [u8])) {
        let geo = self.geo.clone();
        let slot = self.slot(ino);
        edit(slot);
        inode::seal(&geo, ino, slot);
    }

    pub(super) fn set_inode(&mut self, ino: Ino, edit: impl FnOnce(&mut Inode)) {
        let geo = self.geo.clone();
        let mut inode = self.inode(ino);
        edit(&mut inode);
        inode.encode_into(&geo, ino, self.slot(ino)).unwrap();
    }

    /// The device block of a file block, in a file whose map is in the inode.
    pub(super) fn mapped(&mut self, ino: Ino, block: u64) -> DevBlock {
        let inode = self.inode(ino);
        if !inode.has(steadfs_vfs::InodeFlags::EXTENTS) {
            return DevBlock(get32(&inode.block, block as usize * 4).into());
        }
        let root = ExtentNode::parse_root(&self.geo, &inode.block).unwrap();
        let block = steadfs_base::FileBlock(block);
        root.find(block).unwrap().1.device_block(block)
    }

    pub(super) fn dir_block(&mut self, name: &str, block: u64) -> &mut [u8] {
        let ino = self.ino(name);
        let at = self.mapped(ino, block);
        self.block(at)
    }

    /// Makes a directory case-insensitive. Its names have no capital letters, so their hashes stay.
    pub(super) fn fold(&mut self, dir: &str) {
        let ino = self.ino(dir);
        self.set_inode(ino, |inode| {
            inode.flags = inode.flags.union(steadfs_vfs::InodeFlags::CASEFOLD);
        });
    }

    /// The inode that is the value of an attribute of the file `empty`.
    pub(super) fn value_inode(&mut self) -> Ino {
        let owner = self.ino("empty");
        let inode = self.inode(owner);
        let attrs = crate::disk::xattr::InodeAttrs::parse(&inode.xattr_area).unwrap();
        match attrs.get(1, b"inode").unwrap().value {
            crate::disk::xattr::Value::Inode { ino, .. } => ino,
            crate::disk::xattr::Value::Here(_) => panic!("the value is in the inode"),
        }
    }

    /// An inode that is free and was never used.
    pub(super) fn free_ino(&self) -> Ino {
        Ino(self.geo.inodes_per_group - 2)
    }

    pub(super) fn set_superblock(
        &mut self,
        edit: impl FnOnce(&mut crate::disk::superblock::RawSuperblock),
    ) {
        let start = SUPERBLOCK_OFFSET as usize;
        let range = start..start + SUPERBLOCK_SIZE;
        let sb = Superblock::parse(&self.bytes[range.clone()]).unwrap();
        let mut raw = sb.raw().clone();
        edit(&mut raw);
        let sb = Superblock::from_raw(raw).unwrap();
        sb.seal_into(&mut self.bytes[range]);
    }

    pub(super) fn features(&self) -> Features {
        self.image.superblock().features()
    }

    /// Offset of an entry in a directory block.
    pub(super) fn offset_of(&mut self, dir: &str, block: u64, name: &str) -> usize {
        let layout = DirLayout::of(&self.geo);
        let bytes = self.dir_block(dir, block);
        let entry = dir_entry::find(&layout, bytes, name.as_bytes()).unwrap();
        entry.expect("the name is there").offset
    }

    /// First offset of a name in the root directory, wherever the root's blocks are.
    pub(super) fn in_root(&mut self, name: &str) -> (u64, usize) {
        let layout = DirLayout::of(&self.geo);
        for block in 0.. {
            let bytes = self.dir_block("/", block);
            if let Ok(Some(entry)) = dir_entry::find(&layout, bytes, name.as_bytes()) {
                return (block, entry.offset);
            }
        }
        unreachable!("the name is in some block");
    }

    pub(super) fn attr_block(&mut self, name: &str) -> (DevBlock, &mut [u8]) {
        let ino = self.ino(name);
        let at = self
            .inode(ino)
            .file_acl
            .expect("the file has an attribute block");
        (at, self.block(at))
    }
}
