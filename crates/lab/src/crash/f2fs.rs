//! f2fs volumes as subjects, made by our own format.

use std::io;
use std::sync::Arc;

use steadfs_block::Device;
use steadfs_f2fs::check::Options as CheckOptions;
use steadfs_f2fs::format::{FormatOptions, image};
use steadfs_f2fs::{CacheSizes, F2fs, MountOptions};
use steadfs_vfs::{FileSystem, Result};
use steadfs_workload::Format;

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

/// With `fastboot` each fsync is a checkpoint. (What a chain of nodes recovers is one file without what was
/// done before it to others: the oracle, which knows ordered journals, would not have that.)
///
/// Small, so that images differ little: the smallest there can be have 52 MiB.
const RECIPES: [Recipe; 3] = [
    Recipe {
        name: "f2fs-plain",
        size: 60,
        features: "",
        options: "fastboot",
    },
    Recipe {
        name: "f2fs-extra",
        size: 60,
        features: "extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,lost_found",
        options: "fastboot",
    },
    // New places for all that is overwritten, so that segments get holes.
    Recipe {
        name: "f2fs-lfs",
        size: 60,
        features: "extra_attr,inode_checksum",
        options: "fastboot,mode=lfs",
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
        let options = MountOptions::parse(self.options).map_err(|e| wrong(&e))?;
        Ok(Subject {
            name: self.name.to_owned(),
            image: Image::from_bytes(&bytes),
            format: Format {
                block_size: 4096,
                extents: true,
                shift_ranges: false,
                wide_times: true,
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
