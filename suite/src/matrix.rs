//! Feature sets and block sizes of ext2, ext3 and ext4 volumes.

use std::path::Path;

use crate::command::succeed;
use crate::generate::Torture;
use crate::image::Image;
use crate::scratch::Scratch;

/// How far a kind of volume is supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Circle {
    /// Read and written.
    ReadWrite,
    /// Read; a mount for writing is refused or becomes read-only, naming the features.
    ReadOnly,
}

/// A kind of volume.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// Name in messages.
    pub name: &'static str,
    /// Arguments of mke2fs, separated by spaces.
    pub args: &'static str,
    /// Options of tune2fs afterwards (`-E`).
    pub tune: Option<&'static str>,
    /// Commands of debugfs afterwards.
    pub debugfs: Option<&'static str>,
    /// Block size in bytes.
    pub block: u64,
    /// Whether the kernels of the test machines can mount it (blocks no larger than a page, …).
    pub kernel: bool,
    /// How far it is supported.
    pub circle: Circle,
}

impl Kind {
    /// A volume of this kind, of `size` bytes. `from`: a folder whose content is copied into it.
    #[track_caller]
    pub fn make(&self, scratch: &Scratch, size: u64, from: Option<&Path>) -> Image {
        let mut args: Vec<&str> = self.args.split(' ').collect();
        if let Some(from) = from {
            args.extend(["-d", from.to_str().expect("scratch paths are UTF-8")]);
        }
        let image = Image::mke2fs(scratch, self.name, size, &args);
        if let Some(tune) = self.tune {
            succeed(
                "tune2fs",
                ["-E".as_ref(), tune.as_ref(), image.path().as_os_str()],
            );
        }
        if let Some(command) = self.debugfs {
            image.debugfs(command);
        }
        image
    }

    /// Size of the image that holds a torture tree, in bytes.
    pub fn size(&self) -> u64 {
        let coarse = self.block > 4096 || self.args.contains("bigalloc");
        if coarse { 256 << 20 } else { 96 << 20 }
    }

    /// Parameters of a torture tree that fits.
    pub fn torture(&self) -> Torture {
        let indirect = self.args.contains("ext2")
            || self.args.contains("ext3")
            || self.args.contains("^extent")
            || self.args.contains("inline_data");
        // Indirect maps end at 12 + p + p^2 + p^3 blocks, and the kernel applies that limit to inline files, too; for
        // extents 1 TiB is far enough.
        let far = if indirect { 4 << 30 } else { 1 << 40 };
        let longest = usize::try_from(self.block - 1).unwrap_or(4095).min(4095);
        Torture {
            block: self.block,
            far,
            longest_link: longest,
            xattr_bytes: if self.block == 1024 { 900 } else { 1900 },
            many: 2000,
        }
    }
}

const fn rw(name: &'static str, args: &'static str) -> Kind {
    Kind {
        name,
        args,
        tune: None,
        debugfs: None,
        block: 4096,
        kernel: true,
        circle: Circle::ReadWrite,
    }
}

const fn ro(name: &'static str, args: &'static str) -> Kind {
    Kind {
        circle: Circle::ReadOnly,
        ..rw(name, args)
    }
}

impl Kind {
    const fn block(self, block: u64) -> Self {
        Self {
            block,
            kernel: self.kernel && block <= 4096,
            ..self
        }
    }

    const fn tuned(self, tune: &'static str) -> Self {
        Self {
            tune: Some(tune),
            ..self
        }
    }

    const fn changed(self, debugfs: &'static str) -> Self {
        Self {
            debugfs: Some(debugfs),
            ..self
        }
    }

    const fn no_kernel(self) -> Self {
        Self {
            kernel: false,
            ..self
        }
    }
}

/// All kinds.
pub const KINDS: &[Kind] = &[
    rw("ext2-1k", "-t ext2 -b 1024").block(1024),
    rw("ext2-2k", "-t ext2 -b 2048").block(2048),
    rw("ext2-4k", "-t ext2 -b 4096"),
    rw("ext2-8k", "-t ext2 -b 8192").block(8192),
    rw("ext2-128", "-t ext2 -b 4096 -I 128"),
    rw("ext3-1k", "-t ext3 -b 1024").block(1024),
    rw("ext3-2k", "-t ext3 -b 2048").block(2048),
    rw("ext3-4k", "-t ext3 -b 4096"),
    rw("ext3-64k", "-t ext3 -b 65536").block(65536),
    rw("ext3-128", "-t ext3 -b 4096 -I 128"),
    rw("ext4-1k", "-t ext4 -b 1024").block(1024),
    rw("ext4-2k", "-t ext4 -b 2048").block(2048),
    rw("ext4-4k", "-t ext4 -b 4096"),
    rw("ext4-8k", "-t ext4 -b 8192").block(8192),
    rw("ext4-16k", "-t ext4 -b 16384").block(16384),
    rw("ext4-32k", "-t ext4 -b 32768").block(32768),
    rw("ext4-64k", "-t ext4 -b 65536").block(65536),
    rw("inode-128", "-t ext4 -b 4096 -I 128"),
    rw("inode-512", "-t ext4 -b 4096 -I 512"),
    rw("inode-1024", "-t ext4 -b 4096 -I 1024"),
    rw("no-journal", "-t ext4 -b 4096 -O ^has_journal"),
    rw("no-extents", "-t ext4 -b 4096 -O ^extent,^64bit"),
    rw("no-64bit", "-t ext4 -b 4096 -O ^64bit"),
    rw("no-csum", "-t ext4 -b 4096 -O ^metadata_csum"),
    rw("uninit-bg", "-t ext4 -b 4096 -O ^metadata_csum,uninit_bg"),
    rw("csum-seed", "-t ext4 -b 4096 -O metadata_csum_seed"),
    rw("no-flex-bg", "-t ext4 -b 4096 -O ^flex_bg"),
    rw("no-dir-index", "-t ext4 -b 4096 -O ^dir_index"),
    rw("no-filetype", "-t ext4 -b 4096 -O ^filetype"),
    rw("no-resize-inode", "-t ext4 -b 4096 -O ^resize_inode"),
    rw(
        "no-sparse-super",
        "-t ext4 -b 4096 -O ^sparse_super,^resize_inode",
    ),
    rw(
        "sparse-super2",
        "-t ext4 -b 4096 -O sparse_super2,^resize_inode",
    ),
    rw("no-huge-file", "-t ext4 -b 4096 -O ^huge_file"),
    rw("no-dir-nlink", "-t ext4 -b 4096 -O ^dir_nlink"),
    rw("no-extra-isize", "-t ext4 -b 4096 -O ^extra_isize"),
    rw("no-ext-attr", "-t ext4 -b 4096 -O ^ext_attr"),
    rw("large-dir", "-t ext4 -b 4096 -O large_dir"),
    rw("orphan-file", "-t ext4 -b 4096 -O orphan_file"),
    rw("orphan-file-1k", "-t ext4 -b 1024 -O orphan_file").block(1024),
    rw("hash-legacy", "-t ext4 -b 4096").tuned("hash_alg=legacy"),
    rw("hash-tea", "-t ext4 -b 4096").tuned("hash_alg=tea"),
    rw(
        "eager-itable",
        "-t ext4 -b 4096 -E lazy_itable_init=0,lazy_journal_init=0",
    ),
    rw("small-groups", "-t ext4 -b 1024 -g 1024 -N 4096").block(1024),
    rw("small-journal", "-t ext4 -b 4096 -J size=4"),
    rw("packed", "-t ext4 -b 4096 -E packed_meta_blocks=1"),
    rw("stable-inodes", "-t ext4 -b 4096 -O stable_inodes"),
    rw("inline-data", "-t ext4 -b 4096 -O inline_data"),
    rw("inline-data-1k", "-t ext4 -b 1024 -O inline_data -I 256").block(1024),
    rw("ea-inode", "-t ext4 -b 4096 -O ea_inode"),
    rw("bigalloc", "-t ext4 -b 4096 -O bigalloc -C 65536"),
    rw("bigalloc-1k", "-t ext4 -b 1024 -O bigalloc -C 8192").block(1024),
    rw("meta-bg", "-t ext4 -b 1024 -O meta_bg,^resize_inode").block(1024),
    // The kernel may lack the quota format, which it needs for a mount that writes.
    rw("quota", "-t ext4 -b 4096 -O quota").no_kernel(),
    rw("project", "-t ext4 -b 4096 -O project").no_kernel(),
    rw(
        "quota-project",
        "-t ext4 -b 4096 -O quota,project -E quotatype=usrquota:grpquota:prjquota",
    )
    .no_kernel(),
    // mke2fs cannot make it, and the kernel mounts it read-only.
    ro("shared_blocks", "-t ext4 -b 4096")
        .changed("feature shared_blocks")
        .no_kernel(),
    rw("encrypt", "-t ext4 -b 4096 -O encrypt"),
    rw("verity", "-t ext4 -b 4096 -O verity").no_kernel(),
    rw("casefold", "-t ext4 -b 4096 -O casefold").no_kernel(),
    rw(
        "everything-64k",
        "-t ext4 -b 65536 -I 1024 -O inline_data,ea_inode,quota,project,\
large_dir,orphan_file,metadata_csum_seed,encrypt,casefold,verity,stable_inodes",
    )
    .block(65536),
];
