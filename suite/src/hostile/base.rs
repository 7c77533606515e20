//! Clean volumes, to be corrupted.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_ext4::disk::Incompat;
use steadfs_ext4::{CacheSizes, Ext4, MountOptions};
use steadfs_lab::device::Image;
use steadfs_rt::sim;
use steadfs_vfs::{Cx, FileSystem, SetXattr};

use super::device::ImageDevice;
use super::encrypted;
use super::survey::{Part, Survey};
use crate::command::{run, succeed};

/// How a volume is made.
struct Recipe {
    name: &'static str,
    size: &'static str,
    args: &'static str,
    /// Copied while mounted: the journal is full of transactions, and there are orphans.
    dirty: bool,
}

const fn recipe(name: &'static str, size: &'static str, args: &'static str) -> Recipe {
    Recipe {
        name,
        size,
        args,
        dirty: false,
    }
}

const fn dirty(name: &'static str, size: &'static str, args: &'static str) -> Recipe {
    Recipe {
        dirty: true,
        ..recipe(name, size, args)
    }
}

const RECIPES: &[Recipe] = &[
    recipe("ext2-1k", "4M", "-t ext2 -b 1024"),
    recipe("ext3-1k", "5M", "-t ext3 -b 1024 -J size=1"),
    recipe("ext4-1k", "5M", "-t ext4 -b 1024 -J size=1"),
    recipe("ext4-4k", "24M", "-t ext4 -b 4096 -J size=4"),
    recipe(
        "uninit-bg",
        "5M",
        "-t ext4 -b 1024 -J size=1 -g 1024 -O ^metadata_csum,uninit_bg",
    ),
    recipe(
        "128",
        "5M",
        "-t ext4 -b 1024 -J size=1 -I 128 -O ^flex_bg,^64bit",
    ),
    recipe("no-journal", "5M", "-t ext4 -b 1024 -O ^has_journal"),
    recipe(
        "orphan-file",
        "5M",
        "-t ext4 -b 1024 -J size=1 -O orphan_file,ea_inode",
    ),
    recipe("64k", "32M", "-t ext4 -b 65536 -O ^has_journal"),
    dirty("dirty-ext3", "5M", "-t ext3 -b 1024 -J size=1"),
    dirty("dirty-ext4", "5M", "-t ext4 -b 1024 -J size=1"),
    dirty(
        "dirty-orphan-file",
        "5M",
        "-t ext4 -b 1024 -J size=1 -O orphan_file",
    ),
    recipe(
        "inline-data",
        "5M",
        "-t ext4 -b 1024 -J size=1 -O inline_data",
    ),
    recipe(
        "bigalloc",
        "16M",
        "-t ext4 -b 1024 -C 8192 -J size=1 -O bigalloc",
    ),
    recipe(
        "rare-features",
        "16M",
        "-t ext4 -b 1024 -J size=1 -O meta_bg,^resize_inode,ea_inode,quota,project,large_dir,\
casefold,encrypt,verity",
    ),
];

const FAST_COMMIT: Recipe = dirty(
    "dirty-fast-commit",
    "8M",
    "-t ext4 -b 1024 -J size=2 -O fast_commit",
);

/// A clean volume.
pub struct Base {
    /// Name in messages.
    pub name: &'static str,
    /// Its content.
    pub image: Image,
    /// Where its metadata is.
    pub survey: Survey,
}

impl Base {
    /// Makes every base, using `scratch` for files.
    ///
    /// # Panics
    /// If one cannot be made.
    pub fn all(scratch: &Path) -> Vec<Self> {
        let tree = scratch.join("tree");
        write_tree(&tree);
        let make = |recipe: &Recipe| {
            let image = decorated(recipe.format(scratch, &tree), recipe.dirty);
            Self::of(recipe.name, image)
        };
        RECIPES.iter().map(make).collect()
    }

    /// Makes a volume whose log may be followed by fast commits: the journal has the feature, as Linux sets it at the
    /// first commit.
    ///
    /// # Panics
    /// If it cannot be made.
    pub fn with_fast_commits(scratch: &Path) -> Self {
        /// Offset of the incompatible features in the journal's superblock, and `JBD2_FEATURE_INCOMPAT_FAST_COMMIT`.
        const INCOMPAT: u64 = 0x28;
        const FEATURE: u32 = 0x20;
        let tree = scratch.join("tree");
        if !tree.exists() {
            write_tree(&tree);
        }
        let mut image = FAST_COMMIT.format(scratch, &tree);
        let survey = Survey::of(&image);
        let meta = survey.of_part(Part::JournalSuper).next();
        let meta = *meta.expect("the volume has a journal");
        let at = meta.block * survey.geo.block_size.bytes_u64() + INCOMPAT;
        let mut word = [0; 4];
        image.read(at, &mut word);
        let features = u32::from_be_bytes(word) | FEATURE;
        image.write(at, &features.to_be_bytes());
        Self::of(FAST_COMMIT.name, decorated(image, true))
    }

    fn of(name: &'static str, image: Image) -> Self {
        Self {
            name,
            survey: Survey::of(&image),
            image,
        }
    }

    /// Whether the log has to be replayed.
    pub fn is_dirty(&self) -> bool {
        self.name.starts_with("dirty")
    }
}

/// The volume with what mke2fs does not make.
fn decorated(image: Image, dirty: bool) -> Image {
    sim::run(sim::Config::new(1), move || decorate(image, dirty)).value
}

impl Recipe {
    /// Runs mke2fs.
    fn format(&self, scratch: &Path, tree: &Path) -> Image {
        let path = scratch.join(self.name);
        let id = "5eadf5ba-0000-4000-8000-000000000001";
        let seed = format!("hash_seed={id}");
        let mut args = vec!["-q", "-F", "-N", "1024", "-U", id, "-E", &seed, "-m", "0"];
        args.extend(self.args.split(' '));
        args.extend(["-d", tree.to_str().expect("scratch paths are UTF-8")]);
        args.extend([path.to_str().expect("scratch paths are UTF-8"), self.size]);
        succeed("mke2fs", args);
        if self.args.contains("quota") {
            // mke2fs does not count what it copies.
            run("e2fsck", ["-fy".as_ref(), path.as_os_str()]).expect(1);
        }
        Image::load(&path).expect("mke2fs made it")
    }
}

/// Files that a volume can hold and every user can make.
pub(super) fn write_tree(root: &Path) {
    let deep = root.join("a/b/c/d/e");
    fs::create_dir_all(&deep).expect("scratch can be written");
    let write = |name: &str, bytes: &[u8]| {
        fs::write(root.join(name), bytes).expect("scratch can be written");
    };
    write("a/b/c/d/e/bottom", b"x");
    write("empty", b"");
    write("small", b"fits into the inode");
    write("large", &vec![0x5A; 400_000]);
    write(&"n".repeat(255), b"long name");
    let sparse = fs::File::create(root.join("scattered")).expect("scratch can be written");
    for n in 0..30 {
        sparse
            .write_all_at(b"here", n * 140_000)
            .expect("scratch can be written");
    }
    for len in [5, 59, 60, 900] {
        let link = root.join(format!("link {len}"));
        symlink("l".repeat(len), link).expect("scratch can be written");
    }
    fs::create_dir_all(root.join("many")).expect("scratch can be written");
    for n in 0..120 {
        write(&format!("many/a name of some length, number {n}"), b"");
    }
    fs::hard_link(root.join("large"), root.join("a/second")).expect("scratch can be written");
}

/// Adds what mke2fs does not make: attributes, an index, a full log, orphans.
fn decorate(image: Image, dirty: bool) -> Image {
    let device = Arc::new(ImageDevice::new(image));
    // Bases have no fast commits of their own.
    let options = MountOptions {
        fast_commit: false,
        ..MountOptions::default()
    };
    let opened = Ext4::open(Arc::clone(&device) as _, options, CacheSizes::of(8 << 20));
    let (fs, _) = opened.expect("a volume that mke2fs made can be written");
    let cx = Cx::default();
    let find = |dir: InodeNo, name: &str| {
        let attr = fs.lookup(&cx, dir, name.as_bytes());
        attr.expect("the tree has it").ino
    };
    let set = |ino, name: &str, value: &[u8]| {
        fs.setxattr(&cx, ino, name.as_bytes(), value, SetXattr::Any)
            .expect("attributes can be set");
    };
    // A directory that mke2fs copies has no index; one that grows gets one.
    let many = fs.mkdir(&cx, fs.root(), b"indexed", 0o755);
    let many = many.expect("a directory can be made").ino;
    for n in 0..100 {
        let name = format!("another name of some length, {n}");
        let file = fs.mknod(&cx, many, name.as_bytes(), 0o100_644, 0);
        fs.forget(file.expect("a file can be made").ino, 1);
    }
    set(find(fs.root(), "small"), "user.tiny", b"in the inode");
    for name in ["empty", "large", "a"] {
        set(find(fs.root(), name), "user.large", &[b'v'; 500]);
    }
    if fs.geo().has_incompat(Incompat::EA_INODE) {
        // Two files share the first value; the entries of the second are in the inode and in the block.
        for name in ["empty", "large"] {
            set(find(fs.root(), name), "user.shared", &[b's'; 5000]);
        }
        for n in 0..6 {
            let name = format!("user.value {n}");
            set(find(fs.root(), "large"), &name, &[n; 2000]);
        }
    }
    if fs.geo().has_incompat(Incompat::ENCRYPT) {
        encrypted::fill(&*fs, fs.geo().has_incompat(Incompat::CASEFOLD));
    }
    if !dirty {
        fs.unmount().expect("a good volume unmounts");
        return device.content();
    }
    for n in 0..20 {
        let file = fs.mknod(&cx, fs.root(), format!("new {n}").as_bytes(), 0o100_644, 0);
        let ino = file.expect("a file can be made").ino;
        fs.write(&cx, ino, 0, &[b'd'; 3000], false)
            .expect("there is space");
        if n % 3 == 0 {
            fs.unlink(&cx, fs.root(), format!("new {n}").as_bytes())
                .expect("a file can be unlinked");
        }
        fs.fsync(&cx, ino, false).expect("a device in memory");
    }
    let content = device.content();
    fs.unmount().expect("a good volume unmounts");
    content
}
