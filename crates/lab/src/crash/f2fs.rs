//! f2fs volumes as subjects, made by our own format.

use std::io;
use std::sync::Arc;

use steadfs_block::Device;
use steadfs_f2fs::check::Options as CheckOptions;
use steadfs_f2fs::format::{FormatOptions, image};
use steadfs_f2fs::{CacheSizes, F2fs, MountOptions};
use steadfs_vfs::{FileSystem, Result};
use steadfs_workload::{Format, Promise};

use super::Subject;
use super::subject::Tool;
use crate::device::Image;

/// How a volume is made and mounted.
struct Recipe {
    name: &'static str,
    /// MiB.
    size: u64,
    features: &'static str,
    options: &'static str,
}

/// Small, so that images differ little: the smallest there can be have 52 MiB.
const RECIPES: [Recipe; 7] = [
    Recipe {
        name: "f2fs-plain",
        size: 60,
        features: "",
        options: "",
    },
    Recipe {
        name: "f2fs-extra",
        size: 60,
        features: "extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,lost_found",
        options: "fsync_mode=strict,gc_merge",
    },
    // New places for all that is overwritten, so that segments get holes.
    Recipe {
        name: "f2fs-lfs",
        size: 60,
        features: "extra_attr,inode_checksum",
        options: "mode=lfs,nocheckpoint_merge",
    },
    // A node's summary and data lie apart; nothing is kept within inodes.
    Recipe {
        name: "f2fs-blocks",
        size: 60,
        features: "extra_attr,compression",
        options: "noinline_data,noinline_dentry,active_logs=4,checkpoint_merge",
    },
    // Every fsync is a checkpoint.
    Recipe {
        name: "f2fs-fastboot",
        size: 60,
        features: "",
        options: "fastboot",
    },
    Recipe {
        name: "f2fs-two-logs",
        size: 60,
        features: "extra_attr,inode_checksum,inode_crtime",
        options: "active_logs=2,mode=lfs,background_gc=sync",
    },
    // Everything beside writing in place.
    Recipe {
        name: "f2fs-reuse",
        size: 60,
        features: "extra_attr,inode_crtime,verity",
        options: "alloc_mode=reuse,nodiscard,fsync_mode=strict",
    },
];

/// Makes every kind of volume.
///
/// # Errors
/// A recipe is wrong.
pub fn subjects() -> io::Result<Vec<Subject>> {
    RECIPES.iter().map(Recipe::make).collect()
}

impl Recipe {
    fn make(&self) -> io::Result<Subject> {
        let wrong =
            |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", self.name));
        // The same volume each time.
        let mut options = FormatOptions {
            uuid: Some([0x5E; 16]),
            time: Some(1_700_000_000),
            checkpoint_version: Some(77),
            ..FormatOptions::default()
        };
        options.set_features(self.features).map_err(|e| wrong(&e))?;
        let device = image(self.size << 20, &options).map_err(|e| wrong(&e))?;
        let mut bytes = vec![0; (self.size << 20) as usize];
        device.read(0, &mut bytes);
        let strict = self.options.contains("strict");
        let options = MountOptions::parse(self.options).map_err(|e| wrong(&e))?;
        Ok(Subject {
            name: self.name.to_owned(),
            image: Image::from_bytes(&bytes),
            format: Format {
                block_size: 4096,
                extents: true,
                shift_ranges: false,
                wide_times: true,
                promise: Promise::RollForward { strict },
            },
            open: Arc::new(move |device| open(device, &options)),
            check: Some(Arc::new(check)),
            tool: Some(Tool::FsckF2fs),
            // A node's checksum, where it has one, covers inodes only: f2fs relies on whole blocks.
            atomic_unit: 4096,
            small: false,
        })
    }
}

/// What our checker finds wrong with an unmounted volume.
fn check(image: &Image) -> String {
    let report = steadfs_f2fs::check::check(image, &CheckOptions::default());
    let mut findings: Vec<String> = report.issues.iter().map(ToString::to_string).collect();
    if report.more > 0 {
        findings.push(format!("and {} more", report.more));
    }
    findings.join("\n")
}

fn open(device: Arc<dyn Device>, options: &MountOptions) -> Result<Arc<dyn FileSystem>> {
    let (fs, _) = F2fs::open(device, options.clone(), CacheSizes::of(8 << 20))?;
    Ok(fs)
}
