//! Verity files, built with the tree and the descriptor of `fsverity digest`.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_ext4_format::disk::test_images::{Image, run};
use steadfs_f2fs_format::disk::inode::{self, Advise, Inode};
use steadfs_f2fs_format::disk::xattr::{Xattr, encode, index};
use steadfs_f2fs_format::disk::{BLOCK_SIZE, Nid};
use steadfs_f2fs_format::test_support::Opened;
use steadfs_vfs::InodeFlags;

use crate::{Kind, Setup, World};

/// The value of f2fs's attribute for a descriptor of this size at this offset; `None`: no attribute.
pub type Place = fn(u32, u64) -> Option<Vec<u8>>;

/// A volume with a verity file named `file`.
pub struct Sealed {
    kind: &'static Kind,
    memory: Arc<MemDevice>,
    /// What is in the blocks of the file: content, hashes, descriptor.
    stored: Vec<u8>,
    /// The content.
    pub content: Vec<u8>,
    /// The digest that fsverity printed.
    pub digest: Vec<u8>,
    /// Where the file has the root of the tree.
    pub tree: u64,
    /// Where the file has the descriptor.
    pub descriptor: u64,
}

/// The attribute as Linux stores it: a version, then the size and the offset of the descriptor.
pub fn location(version: u32, size: u32, at: u64) -> Vec<u8> {
    let words = [version, size].map(u32::to_le_bytes).concat();
    [words, at.to_le_bytes().to_vec()].concat()
}

impl Sealed {
    /// A file of `size` bytes, hashed by these options of `fsverity`.
    pub fn new(kind: &'static Kind, how: &[&str], size: usize) -> Self {
        Self::placed(kind, how, size, |len, at| Some(location(1, len, at)))
    }

    /// The same with another attribute for the descriptor.
    pub fn placed(kind: &'static Kind, how: &[&str], size: usize, place: Place) -> Self {
        let content: Vec<u8> = (0..size)
            .map(|i| (i * 7 + i / 251 + i / 65_521 * 31) as u8)
            .collect();
        let (digest, tree, descriptor) = fsverity(how, &content);
        let mut stored = content.clone();
        stored.resize(size.next_multiple_of(64 << 10), 0);
        let tree_at = stored.len() as u64;
        stored.extend(tree);
        if kind.is_ext() {
            let block = kind.block as usize;
            stored.resize(stored.len().next_multiple_of(block), 0);
        }
        let at = stored.len() as u64;
        stored.extend(&descriptor);
        if kind.is_ext() {
            let end = (stored.len() + 4).next_multiple_of(kind.block as usize);
            stored.resize(end - 4, 0);
            stored.extend((descriptor.len() as u32).to_le_bytes());
        }
        let (memory, ino) = volume(kind, &stored);
        let memory = match kind.is_ext() {
            true => mark_ext(&memory, size),
            false => {
                let value = place(descriptor.len() as u32, at);
                mark_f2fs(&memory, ino, size, value.as_deref())
            }
        };
        Self {
            kind,
            memory,
            stored,
            content,
            digest,
            tree: tree_at,
            descriptor: at,
        }
    }

    /// An ext4 file that is marked, but has no hashes.
    pub fn without_hashes(kind: &'static Kind, size: usize) -> World {
        let (memory, _) = volume(kind, &vec![7; size]);
        open(kind, mark_ext(&memory, size), "ro")
    }

    /// Mounts the volume.
    pub fn open(&self) -> World {
        open(self.kind, Arc::new(self.memory.copy()), "")
    }

    /// Mounts the volume for reading, with a byte of the file's blocks changed.
    pub fn changed(&self, at: u64) -> World {
        let block = self.kind.block as usize;
        let (first, within) = (at as usize / block * block, at as usize % block);
        let mut wanted = self.stored[first..self.stored.len().min(first + block)].to_vec();
        wanted.resize(block, 0);
        let mut bytes = self.memory.to_bytes();
        let same = |(_, there): &(usize, &[u8])| *there == wanted;
        let found: Vec<_> = bytes.chunks(block).enumerate().filter(same).collect();
        assert_eq!(found.len(), 1, "the block at {at} is not the only one");
        let place = found[0].0 * block + within;
        bytes[place] ^= 0x10;
        open(self.kind, Arc::new(MemDevice::from_bytes(&bytes)), "ro")
    }
}

fn open(kind: &'static Kind, memory: Arc<MemDevice>, mount: &str) -> World {
    let setup = Setup {
        mount,
        ..Setup::default()
    };
    World::open(kind, memory, &setup)
}

/// A volume that can have verity files, and has none.
pub fn verity_world(kind: &'static Kind, setup: &Setup<'_>) -> World {
    let world = World::with(kind, setup);
    if !kind.is_ext() {
        return world;
    }
    let image = Image::of(&world.close().to_bytes());
    image.debugfs("feature verity");
    World::open(kind, image.device(), setup)
}

/// Digest, tree and descriptor of a content.
pub fn fsverity(how: &[&str], content: &[u8]) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let [file, tree, descriptor] = ["file", "tree", "descriptor"].map(|name| dir.path().join(name));
    std::fs::write(&file, content).unwrap();
    let outputs = [
        format!("--out-merkle-tree={}", tree.display()),
        format!("--out-descriptor={}", descriptor.display()),
    ];
    let mut args = vec!["digest", "--compact", file.to_str().unwrap()];
    args.extend(outputs.iter().map(String::as_str));
    args.extend(how);
    let digest = run("fsverity", &args);
    let byte = |i| u8::from_str_radix(&digest[2 * i..2 * i + 2], 16).unwrap();
    let digest = (0..digest.trim().len() / 2).map(byte).collect();
    let read = |path| std::fs::read(path).unwrap();
    (digest, read(tree), read(descriptor))
}

/// An unmounted volume with a file of this content.
fn volume(kind: &'static Kind, stored: &[u8]) -> (Arc<MemDevice>, InodeNo) {
    let world = World::make(kind);
    let ino = world.written(b"file", stored).unwrap();
    (world.close(), ino)
}

/// Makes `file` an ext4 verity file of this size.
fn mark_ext(memory: &MemDevice, size: usize) -> Arc<MemDevice> {
    let image = Image::of(&memory.to_bytes());
    let flags = InodeFlags::EXTENTS.0 | InodeFlags::VERITY.0;
    image.debugfs("feature verity");
    image.debugfs(&format!("sif file size {size}"));
    image.debugfs(&format!("sif file flags {flags}"));
    run("e2fsck", &["-fn", image.path().to_str().unwrap()]);
    image.device()
}

/// Makes an inode an f2fs verity file of this size, with this attribute.
fn mark_f2fs(
    memory: &MemDevice,
    ino: InodeNo,
    size: usize,
    attribute: Option<&[u8]>,
) -> Arc<MemDevice> {
    let mut opened = Opened::of(memory.to_bytes());
    let layout = opened.layout().clone();
    let at = opened.nat(Nid::from_vfs(ino).unwrap()).addr.0 as usize * BLOCK_SIZE;
    let block = &mut opened.bytes[at..at + BLOCK_SIZE];
    let mut core = Inode::decode(&layout, block).unwrap();
    core.advise = core.advise.union(Advise::VERITY);
    core.size = size as u64;
    core.encode_into(&layout, block).unwrap();
    if let Some(value) = attribute {
        let list = [Xattr {
            index: index::VERITY,
            name: b"v",
            value,
        }];
        let range = core.xattr_range(&layout);
        let area = encode(&list, range.len()).expect("it fits the inode");
        block[range].copy_from_slice(&area);
    }
    inode::seal(&layout, block);
    Arc::new(MemDevice::from_bytes(&opened.bytes))
}
