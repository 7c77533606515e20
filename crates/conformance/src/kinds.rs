//! The table of kinds of volumes, and what each of them can store.

use std::fmt;
use std::sync::Arc;

use steadfs_base::{InodeNo, Timestamp};
use steadfs_block::{Device, MemDevice};
use steadfs_cache::CacheSizes;
use steadfs_ext4::Ext4;
use steadfs_ext4_format::disk::Superblock;
use steadfs_ext4_format::disk::features::Incompat;
use steadfs_ext4_format::disk::superblock::STATE_CLEAN;
use steadfs_ext4_format::disk::test_images::Image;
use steadfs_f2fs::F2fs;
use steadfs_f2fs_format::disk::checkpoint::CpFlags;
use steadfs_f2fs_format::format::{FormatOptions, image};
use steadfs_f2fs_format::test_support::Opened;
use steadfs_vfs::{FileSystem, Result};

/// All features of f2fs volumes that are written.
pub const ALL_FEATURES: &str = "extra_attr,inode_checksum,sb_checksum,inode_crtime,\
                                flexible_inline_xattr,lost_found,verity,encrypt,compression";

/// How a file's blocks are mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Map {
    Extents,
    Indirect,
    /// f2fs.
    Nodes,
}

/// A kind of volume.
#[derive(Debug)]
pub struct Kind {
    /// Its name in the names of tests.
    pub name: &'static str,
    /// Options of `mke2fs`, or the features of an f2fs volume.
    format: &'static [&'static str],
    /// Options of every mount.
    mount: &'static str,
    map: Map,
    /// Block size in bytes.
    pub block: u64,
    /// Size of an inode in bytes (ext only).
    inode: u64,
    /// Whether a mount after a power cut brings the volume to a consistent state.
    pub recovers: bool,
}

const fn ext(
    name: &'static str,
    block: u64,
    map: Map,
    recovers: bool,
    format: &'static [&'static str],
) -> Kind {
    Kind {
        name,
        format,
        mount: "",
        map,
        block,
        inode: 256,
        recovers,
    }
}

const fn f2fs(name: &'static str, features: &'static [&'static str], mount: &'static str) -> Kind {
    Kind {
        name,
        format: features,
        mount,
        map: Map::Nodes,
        block: 4096,
        inode: 4096,
        recovers: true,
    }
}

/// Every kind of volume.
#[rustfmt::skip]
pub static KINDS: &[Kind] = &[
    ext("ext2", 1024, Map::Indirect, false, &["-t", "ext2"]),
    ext("ext3", 1024, Map::Indirect, true, &["-t", "ext3"]),
    ext("ext4_1k", 1024, Map::Extents, true, &["-t", "ext4", "-O", "^orphan_file"]),
    ext("ext4_4k", 4096, Map::Extents, true, &["-t", "ext4", "-O", "orphan_file"]),
    ext("ext4_no_journal", 1024, Map::Extents, false, &["-t", "ext4", "-O", "^has_journal"]),
    ext("ext4_indirect", 4096, Map::Indirect, true, &["-t", "ext4", "-O", "^extents,^64bit"]),
    Kind { inode: 512, ..ext("ext4_unindexed", 2048, Map::Extents, true,
        &["-t", "ext4", "-O", "^dir_index,^metadata_csum,^64bit,^flex_bg"]) },
    // One block of 254 slots for orphans: further ones are added to the list.
    Kind { mount: "nobarrier", ..ext("ext4_orphan_file", 1024, Map::Extents, true,
        &["-t", "ext4", "-O", "orphan_file,^metadata_csum,uninit_bg", "-E", "orphan_file_size=32K"]) },
    Kind { inode: 128, ..ext("ext4_small_inodes", 1024, Map::Extents, true, &["-t", "ext4", "-O", "^huge_file"]) },
    // Bits of features that no file uses.
    Kind { inode: 1024, ..ext("ext4_large_inodes", 4096, Map::Extents, true,
        &["-t", "ext4", "-O", "meta_bg,^resize_inode,large_dir,encrypt,verity,casefold,project"]) },
    Kind { inode: 512, ..ext("ext4_64k", 65_536, Map::Extents, false, &["-t", "ext4", "-O", "^has_journal"]) },
    f2fs("f2fs", &[], ""),
    f2fs("f2fs_all", &[ALL_FEATURES], ""),
    f2fs("f2fs_two_logs", &[], "active_logs=2"),
    f2fs("f2fs_four_logs", &[ALL_FEATURES], "active_logs=4,noinline_dentry"),
    f2fs("f2fs_not_inline", &[ALL_FEATURES], "noinline_dentry,noinline_data,inline_xattr_size=100"),
    f2fs("f2fs_xattr_nodes", &["extra_attr"], "noinline_xattr,noinline_dentry"),
    f2fs("f2fs_small_xattrs", &[ALL_FEATURES], "inline_xattr_size=6"),
    f2fs("f2fs_lfs", &[ALL_FEATURES], "mode=lfs,noinline_xattr"),
];

/// The kind of this name.
pub fn kind(name: &str) -> &'static Kind {
    let found = KINDS.iter().find(|kind| kind.name == name);
    found.unwrap_or_else(|| panic!("no kind of volume is called {name}"))
}

fn superblock(volume: &MemDevice) -> Superblock {
    let mut bytes = [0; 1024];
    volume.read(1024, &mut bytes);
    Superblock::parse(&bytes).unwrap()
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl Kind {
    /// A seed of random operations: run number `n` differs from kind to kind.
    pub fn seed(&self, n: u64) -> u64 {
        let place = KINDS.iter().position(|kind| kind.name == self.name);
        100 * place.map_or(0, |place| place as u64) + n
    }

    /// Whether it is ext2, ext3 or ext4.
    pub fn is_ext(&self) -> bool {
        self.map != Map::Nodes
    }

    /// Whether blocks can be allocated without being written: ext2's maps have no such state.
    pub fn has_fallocate(&self) -> bool {
        self.map != Map::Indirect
    }

    /// Whether every fsync of f2fs writes a checkpoint: with two logs a node chain cannot be recovered.
    pub fn syncs_by_checkpoint(&self) -> bool {
        self.mount.contains("active_logs=2")
    }

    /// Whether inodes have a birth time.
    pub fn has_birth_time(&self) -> bool {
        match self.is_ext() {
            true => self.inode > 128,
            false => self.features().contains("inode_crtime"),
        }
    }

    /// The name of the volume's format in control files.
    pub fn format_name(&self) -> &'static str {
        if self.is_ext() { "ext4" } else { "f2fs" }
    }

    /// The features of an f2fs volume.
    fn features(&self) -> &'static str {
        self.format.first().copied().unwrap_or("")
    }

    /// The nearest time that the format stores. Times outside have no fraction, as in Linux.
    pub fn stored(&self, time: Timestamp) -> Timestamp {
        let (first, last) = match (self.is_ext(), self.inode) {
            (true, 128) => (-(1 << 31), (1 << 31) - 1),
            (true, _) => (-(1 << 31), (1 << 34) - (1 << 31) - 1),
            (false, _) => return time,
        };
        let whole = self.inode == 128 || !(first..=last).contains(&time.secs);
        Timestamp {
            secs: time.secs.clamp(first, last),
            nanos: if whole { 0 } else { time.nanos },
        }
    }

    /// Sectors that a file with this content counts, once it is written. (Maps of blocks are not counted here.)
    pub fn sectors(&self, len: u64) -> u64 {
        len.div_ceil(self.block) * (self.block / 512)
    }

    /// Whether content of up to 3400 bytes is kept in the inode.
    pub fn has_inline_data(&self) -> bool {
        !self.is_ext() && !self.mount.contains("noinline_data")
    }

    /// Length of the longest target of a symbolic link: a block, and at most what a path can have.
    pub fn longest_link(&self) -> usize {
        (self.block as usize).min(4096) - 1
    }

    /// Lengths up to which files can grow, for this volume: by writing, and by preallocation.
    pub fn largest_file(&self, volume: &MemDevice) -> u64 {
        if !self.is_ext() {
            // As Linux counts: 2 direct nodes, 2 indirect ones and a double indirect one, of 1018 entries each.
            return 1018 * (2 + 2 * 1018 + 1018 * 1018) * 4096;
        }
        self.geometry(volume)
            .max_file_size(self.map == Map::Extents)
    }

    /// The offset at which fallocate(2) ends. ext4 has one limit for the whole volume, whatever a file's map.
    pub fn fallocate_end(&self, volume: &MemDevice) -> u64 {
        match self.is_ext() {
            true => self.geometry(volume).max_file_size(true),
            false => self.largest_file(volume),
        }
    }

    fn geometry(&self, volume: &MemDevice) -> steadfs_ext4_format::disk::Geometry {
        superblock(volume).geometry().clone()
    }

    /// Whether the volume is marked as cleanly unmounted: it needs neither a replay nor a check.
    pub fn is_marked_clean(&self, volume: &MemDevice) -> bool {
        if self.is_ext() {
            let sb = superblock(volume);
            let log = sb.features().incompat.contains(Incompat::NEEDS_RECOVERY);
            return !log && sb.state() & STATE_CLEAN != 0;
        }
        let opened = Opened::of(volume.to_bytes());
        opened.checkpoint.flags.contains(CpFlags::UNMOUNT)
    }

    /// Whether the log of an ext volume must be replayed.
    pub fn needs_replay(&self, volume: &MemDevice) -> bool {
        let recovery = Incompat::NEEDS_RECOVERY;
        self.is_ext() && superblock(volume).features().incompat.contains(recovery)
    }

    /// Whether the volume lists orphans (on ext: in the list that begins in the superblock).
    pub fn lists_orphans(&self, volume: &MemDevice) -> bool {
        if self.is_ext() {
            return superblock(volume).last_orphan().is_some();
        }
        let opened = Opened::of(volume.to_bytes());
        opened.checkpoint.flags.contains(CpFlags::ORPHANS)
    }

    /// Number of mounts that an ext volume has counted.
    pub fn mounts(&self, volume: &MemDevice) -> Option<u16> {
        self.is_ext()
            .then(|| superblock(volume).raw().mnt_count.get())
    }

    /// Whether it has a journal.
    pub fn has_journal(&self) -> bool {
        self.is_ext() && self.recovers
    }

    /// Size in MiB that most tests use.
    pub fn usual_mib(&self) -> u64 {
        if self.is_ext() && self.block <= 4096 {
            32
        } else {
            64
        }
    }

    /// Makes a volume of `mib` MiB, an ext one with these options of `mke2fs` more.
    pub fn make(&self, mib: u64, options: &[&str]) -> Arc<MemDevice> {
        if self.is_ext() {
            let (block, inode) = (self.block.to_string(), self.inode.to_string());
            let mut all = self.format.to_vec();
            all.extend(["-b", &block, "-I", &inode]);
            all.extend(options);
            return Image::make(&all, &format!("{mib}M")).device();
        }
        let mut format = FormatOptions::default();
        format.set_features(self.features()).unwrap();
        image(mib << 20, &format).unwrap()
    }

    /// The names of all mount options.
    pub fn option_names(&self) -> Vec<&'static str> {
        match self.is_ext() {
            true => steadfs_ext4::OPTION_TABLE.names().collect(),
            false => steadfs_f2fs::OPTION_TABLE.names().collect(),
        }
    }

    /// How a list of mount options is shown.
    ///
    /// # Errors
    /// As for a mount with this list.
    pub fn shown(&self, list: &str) -> Result<String> {
        match self.is_ext() {
            true => steadfs_ext4::MountOptions::parse(list).map(|options| options.show()),
            false => steadfs_f2fs::MountOptions::parse(list).map(|options| options.show()),
        }
    }

    /// Mounts a volume with the options of this kind and these. `cache`: its memory in bytes.
    ///
    /// # Errors
    /// As the mount.
    pub fn mount(
        &self,
        device: Arc<dyn Device>,
        options: &str,
        cache: u64,
    ) -> Result<Arc<dyn FileSystem>> {
        self.mount_handed_over(device, options, cache, &[])
    }

    /// The same for a volume that was handed over with these lookup counts.
    ///
    /// # Errors
    /// As the mount.
    pub fn mount_handed_over(
        &self,
        device: Arc<dyn Device>,
        options: &str,
        cache: u64,
        lookups: &[(InodeNo, u64)],
    ) -> Result<Arc<dyn FileSystem>> {
        let list = [self.mount, options].join(",");
        let sizes = CacheSizes::of(cache);
        if self.is_ext() {
            let options = steadfs_ext4::MountOptions::parse(&list)?;
            let (fs, _) = Ext4::open_handed_over(device, options, sizes, lookups)?;
            return Ok(fs);
        }
        let options = steadfs_f2fs::MountOptions::parse(&list)?;
        let (fs, _) = F2fs::open_handed_over(device, options, sizes, lookups)?;
        Ok(fs)
    }
}
