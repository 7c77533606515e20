//! ext3 and ext4 volumes as subjects, formatted by `mke2fs`.

mod external;

use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use steadfs_block::{Device, Policy, QueueSettings};
use steadfs_ext4::check::{BlockSource, Options as CheckOptions};
use steadfs_ext4::disk::superblock::{
    JournalPlace, STATE_ERROR, SUPERBLOCK_OFFSET, SUPERBLOCK_SIZE,
};
use steadfs_ext4::disk::{Incompat, Superblock};
use steadfs_ext4::{CacheSizes, Ext4, MountOptions};
use steadfs_vfs::{FileSystem, InodeFlags, Result};
use steadfs_workload::{Format, Recovery};

use super::Subject;
use super::subject::{Tool, ToolReplay, cannot_run};
use crate::device::Image;

/// How a volume is formatted and mounted.
struct Recipe {
    name: &'static str,
    size: &'static str,
    block_size: u32,
    extents: bool,
    wide_times: bool,
    options: &'static [&'static str],
    /// Mount options.
    mount: &'static str,
    /// Queue settings.
    queue: fn(&mut QueueSettings),
}

/// Each mechanism is on in some and off in others. Small journals, so that they wrap and are reclaimed; few inodes, so
/// that images differ in few blocks.
const RECIPES: [Recipe; 19] = [
    Recipe {
        name: "ext4-1k",
        size: "4M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256"],
        mount: "",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-4k",
        size: "12M",
        block_size: 4096,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256"],
        mount: "noasync_checkpoint",
        queue: |queue| queue.boost = false,
    },
    Recipe {
        name: "ext3-1k",
        size: "4M",
        block_size: 1024,
        extents: false,
        wide_times: true,
        options: &["-t", "ext3", "-N", "256"],
        mount: "async_checkpoint=99,discard",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-plain-2k",
        size: "6M",
        block_size: 2048,
        extents: true,
        wide_times: true,
        options: &[
            "-t",
            "ext4",
            "-N",
            "256",
            "-O",
            "^metadata_csum,^64bit,^orphan_file",
        ],
        mount: "async_checkpoint,discard",
        queue: |queue| queue.policy = Policy::Fair,
    },
    // Blocks larger than the pages of most kernels. Below 2048 blocks mke2fs creates no journal.
    Recipe {
        name: "ext4-64k",
        size: "160M",
        block_size: 65_536,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256"],
        mount: "async_checkpoint=75,commit=1",
        queue: |_| {},
    },
    Recipe {
        name: "ext3-128-4k",
        size: "12M",
        block_size: 4096,
        extents: false,
        wide_times: false,
        options: &["-t", "ext3", "-I", "128", "-N", "256", "-O", "^dir_index"],
        mount: "noasync_checkpoint",
        queue: |queue| queue.policy = Policy::Cfq,
    },
    // Fast commits need 1024 blocks of log beside their area.
    Recipe {
        name: "ext4-fast-1k",
        size: "6M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256", "-O", "fast_commit"],
        mount: "",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-fast-plain-1k",
        size: "6M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &[
            "-t",
            "ext4",
            "-N",
            "256",
            "-O",
            "fast_commit,^metadata_csum,^64bit,^dir_index",
        ],
        mount: "noasync_checkpoint,discard",
        queue: |queue| queue.policy = Policy::Fair,
    },
    Recipe {
        name: "ext4-values-1k",
        size: "5M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256", "-O", "ea_inode,orphan_file"],
        mount: "",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-bigalloc-1k",
        size: "10M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &[
            "-t",
            "ext4",
            "-N",
            "256",
            "-O",
            "bigalloc,orphan_file",
            "-C",
            "4096",
        ],
        mount: "discard",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-inline-1k",
        size: "5M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256", "-I", "512", "-O", "inline_data"],
        mount: "",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-encrypted-1k",
        size: "5M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256", "-O", "encrypt"],
        mount: "",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-encrypted-folded-1k",
        size: "5M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256", "-O", "encrypt,casefold"],
        mount: "",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-casefold-1k",
        size: "5M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256", "-O", "casefold,orphan_file"],
        mount: "async_checkpoint=80,discard",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-quota-1k",
        size: "5M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256", "-O", "quota,project,orphan_file"],
        mount: "usrquota,grpquota,prjquota",
        queue: |_| {},
    },
    // The smallest volumes that have a journal: to be filled up.
    Recipe {
        name: "small-bigalloc-1k",
        size: "5M",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "64", "-O", "bigalloc", "-C", "16384"],
        mount: "async_checkpoint",
        queue: |_| {},
    },
    Recipe {
        name: "small-ext4-1k",
        size: "2200K",
        block_size: 1024,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "64"],
        mount: "",
        queue: |_| {},
    },
    Recipe {
        name: "small-ext4-4k",
        size: "9M",
        block_size: 4096,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "64"],
        mount: "async_checkpoint=90,discard",
        queue: |_| {},
    },
    Recipe {
        name: "small-ext3-1k",
        size: "2200K",
        block_size: 1024,
        extents: false,
        wide_times: true,
        options: &["-t", "ext3", "-N", "64"],
        mount: "noasync_checkpoint",
        queue: |_| {},
    },
];

/// Volumes without a journal guarantee less than the oracle requires; they have tests of their own.
const WITHOUT_JOURNAL: [Recipe; 3] = [
    Recipe {
        name: "ext2-1k",
        size: "4M",
        block_size: 1024,
        extents: false,
        wide_times: true,
        options: &["-t", "ext2", "-N", "256"],
        mount: "",
        queue: |_| {},
    },
    Recipe {
        name: "ext4-4k-unjournaled",
        size: "12M",
        block_size: 4096,
        extents: true,
        wide_times: true,
        options: &["-t", "ext4", "-N", "256", "-O", "^has_journal"],
        mount: "",
        queue: |queue| queue.policy = Policy::Fair,
    },
    Recipe {
        name: "ext4-plain-2k-unjournaled",
        size: "6M",
        block_size: 2048,
        extents: true,
        wide_times: true,
        options: &[
            "-t",
            "ext4",
            "-N",
            "256",
            "-O",
            "^has_journal,^metadata_csum,uninit_bg",
        ],
        mount: "",
        queue: |_| {},
    },
];

/// Formats every kind of volume that has a journal, using `scratch` for files.
///
/// # Errors
/// If `mke2fs` cannot be run or fails, or the directory cannot be written.
pub fn subjects(scratch: &Path) -> io::Result<Vec<Subject>> {
    let mut all = make_all(&RECIPES, scratch)?;
    all.push(external::subject()?);
    Ok(all)
}

/// Formats volumes without a journal. After a crash they keep only data that was synced and not changed since, and only
/// after e2fsck's repair: not for [`sweep`](super::sweep).
///
/// # Errors
/// As [`subjects`].
pub fn without_journal(scratch: &Path) -> io::Result<Vec<Subject>> {
    make_all(&WITHOUT_JOURNAL, scratch)
}

fn make_all(recipes: &[Recipe], scratch: &Path) -> io::Result<Vec<Subject>> {
    std::fs::create_dir_all(scratch)?;
    recipes.iter().map(|recipe| recipe.make(scratch)).collect()
}

impl Recipe {
    fn wants_journal(&self) -> bool {
        let without = |option: &&str| *option == "ext2" || option.contains("^has_journal");
        !self.options.iter().any(without)
    }

    fn has(&self, feature: &str) -> bool {
        self.options.iter().any(|option| option.contains(feature))
    }

    fn cluster_blocks(&self) -> u32 {
        let mut options = self.options.iter().skip_while(|option| **option != "-C");
        let bytes = options.nth(1).and_then(|bytes| bytes.parse::<u32>().ok());
        bytes.map_or(1, |bytes| bytes / self.block_size)
    }

    fn make(&self, scratch: &Path) -> io::Result<Subject> {
        let path = scratch.join(format!("{}.img", self.name));
        let block = self.block_size.to_string();
        let journal = format!("size={}", (self.block_size / 1024).max(1));
        let journal = match self.wants_journal() {
            true => vec!["-J", &journal],
            false => Vec::new(),
        };
        // A fixed UUID: every run formats the same volume.
        const ID: &str = "5eadf5ba-0000-4000-8000-000000000001";
        let output = Command::new("mke2fs")
            .env("E2FSPROGS_FAKE_TIME", "1700000000")
            .args(["-q", "-F", "-b", &block, "-U", ID])
            .args(journal)
            .args(["-E", &format!("hash_seed={ID}")])
            .args(self.options)
            .arg(&path)
            .arg(self.size)
            .output()
            .map_err(|error| cannot_run("mke2fs", &error))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(io::Error::other(format!("mke2fs of {}: {said}", self.name)));
        }
        let image = Image::load(&path)?;
        std::fs::remove_file(&path)?;
        if has_journal(&image) != self.wants_journal() {
            // mke2fs silently creates no journal if the volume is too small.
            let said = format!("mke2fs of {}: the journal is not as requested", self.name);
            return Err(io::Error::other(said));
        }
        let mount = MountOptions::parse(self.mount)
            .map_err(|error| io::Error::other(format!("{}: {error}", self.name)))?;
        let queue = self.queue;
        let subject = Subject {
            name: self.name.to_owned(),
            image,
            format: Format {
                block_size: self.block_size,
                extents: self.extents,
                punch_ranges: true,
                shift_ranges: false,
                wide_times: self.wide_times,
                long_values: self.has("ea_inode"),
                cluster_blocks: self.cluster_blocks(),
                recovery: Recovery::Prefix,
            },
            open: Arc::new(move |device| open(device, &mount, queue)),
            check: Some(Arc::new(check)),
            tool: Some(Tool::E2fsck),
            atomic_unit: 512,
            parts: &[],
            small: self.name.starts_with("small"),
            work: Some(work),
            tool_replays: match (self.wants_journal(), self.has("fast_commit")) {
                (false, _) => ToolReplay::Nothing,
                (true, false) => ToolReplay::Transactions,
                (true, true) => ToolReplay::FastCommits,
            },
            fixed_inodes: true,
        };
        match (self.has("casefold"), self.has("encrypt")) {
            (true, false) => subject.with_flags_of_root(InodeFlags::CASEFOLD),
            (folds, true) => subject.encrypted(folds),
            (false, false) => Ok(subject),
        }
    }
}

fn superblock(image: &Image) -> Option<Superblock> {
    let mut bytes = [0; SUPERBLOCK_SIZE];
    image.read(SUPERBLOCK_OFFSET, &mut bytes);
    Superblock::parse(&bytes).ok()
}

fn has_journal(image: &Image) -> bool {
    superblock(image).is_some_and(|sb| matches!(sb.journal(), JournalPlace::Inode(_)))
}

/// Whether the volume is marked as having errors.
pub(super) fn has_errors(image: &Image) -> bool {
    superblock(image).is_some_and(|sb| sb.state() & STATE_ERROR != 0)
}

/// The size of blocks in bytes; `None` if there is no superblock.
pub(super) fn block_size(image: &Image) -> Option<usize> {
    Some(superblock(image)?.geometry().block_size.bytes())
}

/// Whether a log waits for its replay.
pub(super) fn needs_recovery(image: &Image) -> bool {
    let incompat = superblock(image).map(|sb| sb.features().incompat);
    incompat.is_some_and(|incompat| incompat.contains(Incompat::NEEDS_RECOVERY))
}

fn open(
    device: Arc<dyn Device>,
    mount: &MountOptions,
    queue: fn(&mut QueueSettings),
) -> Result<Arc<dyn FileSystem>> {
    let (fs, _) = Ext4::open(device, mount.clone(), CacheSizes::of(8 << 20))?;
    let mut settings = fs.queue().settings();
    queue(&mut settings);
    fs.queue().configure(settings);
    Ok(fs)
}

/// How many fast commits were written.
fn work(fs: &dyn FileSystem) -> Vec<(&'static str, u64)> {
    let info = fs.control().map(|control| control.read("jbd2/info"));
    let info = info.and_then(Result::ok).unwrap_or_default();
    let info = String::from_utf8_lossy(&info);
    let count = info.lines().find_map(|line| {
        let (count, _) = line.split_once(" fast commits, ")?;
        count.parse().ok().filter(|&count| count > 0)
    });
    count
        .map(|count| ("fast commits", count))
        .into_iter()
        .collect()
}

/// Our checker's findings in an unmounted volume.
fn check(image: &Image) -> String {
    let report = steadfs_ext4::check::check(image, &CheckOptions::default());
    let mut findings: Vec<String> = report.issues.iter().map(ToString::to_string).collect();
    if report.more > 0 {
        findings.push(format!("and {} more", report.more));
    }
    findings.extend(report.refused.map(|why| why.to_string()));
    findings.join("\n")
}

impl BlockSource for Image {
    fn size_bytes(&self) -> u64 {
        self.size()
    }

    fn read(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        Image::read(self, offset, buf);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
