//! f2fs volumes as subjects, formatted by steadfs.

use std::io;
use std::sync::Arc;

use steadfs_block::{Device, Policy, QueueSettings};
use steadfs_f2fs::check::Options as CheckOptions;
use steadfs_f2fs::format::{DevicePart, FormatOptions, image};
use steadfs_f2fs::{CacheSizes, F2fs, MountOptions};
use steadfs_vfs::{FileSystem, FsError, InodeFlags, Result};
use steadfs_workload::{Format, Op, Recovery, Runner, Span, TreePath};

use super::free_space::on_volume;
use super::subject::{Tool, ToolReplay};
use super::{Problem, Subject};
use crate::device::Image;

/// How a volume is formatted and mounted.
struct Recipe {
    name: &'static str,
    features: &'static str,
    options: &'static str,
    /// Control files and the values written to them after the mount.
    controls: &'static [(&'static str, &'static str)],
    /// Queue settings.
    queue: fn(&mut QueueSettings),
    /// Whether the volume has been used until free segments are short.
    worn: bool,
    small: bool,
    /// Where its devices begin, if it is on several.
    parts: &'static [u64],
}

/// Small, so that images differ in few blocks; the minimum is 52 MiB.
const SIZE: u64 = 60 << 20;

const PLAIN: Recipe = Recipe {
    name: "f2fs-plain",
    features: "",
    options: "",
    controls: &[],
    queue: |_| {},
    worn: false,
    small: false,
    parts: &[],
};

/// Background GC as often as possible.
const URGENT: &[(&str, &str)] = &[("f2fs/gc_urgent_sleep_time", "1"), ("f2fs/gc_urgent", "1")];

/// Each mechanism is on in some and off in others.
const RECIPES: [Recipe; 18] = [
    PLAIN,
    Recipe {
        name: "f2fs-extra",
        features: "extra_attr,inode_checksum,sb_checksum,inode_crtime,flexible_inline_xattr,lost_found",
        options: "fsync_mode=strict,gc_merge,data_flush",
        queue: |queue| queue.policy = Policy::Fair,
        ..PLAIN
    },
    // Overwrites go to new blocks (OPU), so that segments become partly valid.
    Recipe {
        name: "f2fs-lfs",
        features: "extra_attr,inode_checksum",
        options: "mode=lfs,nocheckpoint_merge",
        queue: |queue| queue.boost = false,
        ..PLAIN
    },
    // No inline data or entries.
    Recipe {
        name: "f2fs-blocks",
        features: "extra_attr,compression",
        options: "noinline_data,noinline_dentry,active_logs=4,discard_unit=segment",
        ..PLAIN
    },
    // Every fsync is a checkpoint.
    Recipe {
        name: "f2fs-fastboot",
        options: "fastboot",
        ..PLAIN
    },
    Recipe {
        name: "f2fs-two-logs",
        features: "extra_attr,inode_checksum,inode_crtime",
        options: "active_logs=2,mode=lfs,background_gc=sync",
        ..PLAIN
    },
    Recipe {
        name: "f2fs-reuse",
        features: "extra_attr,inode_crtime,verity",
        options: "alloc_mode=reuse,nodiscard,fsync_mode=strict",
        ..PLAIN
    },
    Recipe {
        name: "f2fs-encrypted",
        features: "extra_attr,inode_checksum,encrypt",
        ..PLAIN
    },
    Recipe {
        name: "f2fs-casefold",
        features: "extra_attr,inode_checksum,casefold",
        options: "fsync_mode=strict",
        ..PLAIN
    },
    // Every file that is made with a name is compressed.
    Recipe {
        name: "f2fs-compressed",
        features: "extra_attr,inode_checksum,compression",
        options: "compress_algorithm=lzo,compress_chksum",
        ..PLAIN
    },
    Recipe {
        name: "f2fs-quota",
        features: "extra_attr,inode_checksum,lost_found,project_quota,quota",
        options: "usrquota,grpquota,prjquota",
        ..PLAIN
    },
    // Hot nodes, other nodes and data are on different devices, the checkpoint with the first ones.
    Recipe {
        name: "f2fs-devices",
        features: "extra_attr,inode_checksum",
        parts: &[0, 18 << 20, 22 << 20],
        ..PLAIN
    },
    // GC: foreground, background, and SSR in old segments.
    Recipe {
        name: "f2fs-worn",
        worn: true,
        ..PLAIN
    },
    Recipe {
        name: "f2fs-worn-lfs",
        options: "mode=lfs,gc_merge,nocheckpoint_merge",
        controls: &[("f2fs/max_victim_search", "1")],
        worn: true,
        ..PLAIN
    },
    Recipe {
        name: "f2fs-worn-urgent",
        features: "extra_attr,inode_checksum",
        options: "atgc",
        controls: URGENT,
        worn: true,
        ..PLAIN
    },
    Recipe {
        name: "f2fs-urgent-lfs",
        options: "mode=lfs,background_gc=sync,fsync_mode=strict",
        controls: URGENT,
        queue: |queue| {
            queue.policy = Policy::Fair;
            queue.boost = false;
        },
        worn: true,
        ..PLAIN
    },
    // To be filled up.
    Recipe {
        name: "small-f2fs",
        small: true,
        ..PLAIN
    },
    Recipe {
        name: "small-f2fs-lfs",
        features: "extra_attr",
        options: "mode=lfs,noinline_data,noinline_dentry",
        small: true,
        ..PLAIN
    },
];

/// Formats every kind of volume.
///
/// # Errors
/// A recipe is wrong.
pub fn subjects() -> io::Result<Vec<Subject>> {
    RECIPES.iter().map(Recipe::make).collect()
}

impl Recipe {
    /// The devices that the superblock names.
    fn devices(&self) -> Vec<DevicePart> {
        let ends = self.parts.iter().skip(1).copied().chain([SIZE]);
        let sizes = self.parts.iter().zip(ends).map(|(at, end)| end - at);
        let named = sizes.enumerate().map(|(number, bytes)| DevicePart {
            path: format!("device {number}"),
            bytes,
        });
        named.collect()
    }

    fn make(&self) -> io::Result<Subject> {
        let wrong =
            |error: &dyn std::fmt::Display| io::Error::other(format!("{}: {error}", self.name));
        // A fixed UUID: every run formats the same volume.
        let mut options = FormatOptions {
            uuid: Some([0x5E; 16]),
            time: Some(1_700_000_000),
            checkpoint_version: Some(77),
            devices: self.devices(),
            ..FormatOptions::default()
        };
        options.set_features(self.features).map_err(|e| wrong(&e))?;
        let folds = self.features.contains("casefold");
        if folds {
            options.set_encoding("utf8").map_err(|e| wrong(&e))?;
        }
        let device = image(SIZE, &options).map_err(|e| wrong(&e))?;
        let mut bytes = vec![0; SIZE as usize];
        device.read(0, &mut bytes);
        let strict = self.options.contains("strict");
        let options = MountOptions {
            is_joined: !self.parts.is_empty(),
            ..MountOptions::parse(self.options).map_err(|e| wrong(&e))?
        };
        let compresses = self.options.contains("compress_");
        let (controls, queue) = (self.controls, self.queue);
        let mut subject = Subject {
            name: self.name.to_owned(),
            image: Image::from_bytes(&bytes),
            format: Format {
                punch_ranges: !compresses,
                shift_ranges: false,
                recovery: Recovery::RollForward { strict },
                ..Format::PLAIN
            },
            open: Arc::new(move |device| open(device, &options, controls, queue)),
            check: Some(Arc::new(check)),
            // fsck.f2fs looks for the devices by their paths.
            tool: self.parts.is_empty().then_some(Tool::FsckF2fs),
            // A node's checksum, if enabled, covers inodes only: f2fs relies on atomic blocks.
            atomic_unit: 4096,
            parts: self.parts,
            small: self.small,
            work: Some(work),
            tool_replays: ToolReplay::Nothing,
            // Each inode takes a block when it is created.
            fixed_inodes: false,
        };
        if self.worn {
            let in_holes = !self.options.contains("lfs");
            let wear = |most| {
                let worn = on_volume(&subject, &subject.image, move |fs, _| {
                    wear(fs, in_holes, most)
                });
                worn.map_err(|e| wrong(&e))
            };
            let (batches, mut image) = wear(u64::MAX)?;
            if !in_holes {
                // GC frees space for a long time; the volume is needed as it is just before.
                image = wear(batches)?.1;
            }
            subject.image = image;
        }
        match (folds, compresses) {
            (true, _) => subject.with_flags_of_root(InodeFlags::CASEFOLD),
            (_, true) => subject.with_flags_of_root(InodeFlags::COMPRESSED),
            _ if self.features.contains("encrypt") => subject.encrypted(false),
            _ => Ok(subject),
        }
    }
}

/// Files that are synced at a time, and the batch size when free segments are short; all but one of them are removed.
const BATCH: u64 = 64;
const SMALL_BATCH: u64 = 8;
/// Number of batches after which the volume should have begun SSR.
const BATCHES: u64 = 2_000;

/// Uses the volume until free segments are so short that GC or SSR begins, but for at most `most` batches. Returns
/// their number.
fn wear(fs: &dyn FileSystem, in_holes: bool, most: u64) -> std::result::Result<u64, Problem> {
    let mut runner = Runner::new(fs);
    let mut step = |op: &Op| runner.step(op).map(drop).map_err(Problem::Sync);
    let path = |number: u64| -> TreePath {
        TreePath::root()
            .child(b"worn")
            .child(format!("{number}").as_bytes())
    };
    step(&Op::Mkdir {
        path: TreePath::root().child(b"worn"),
        perm: 0o755,
    })?;
    let sign = if in_holes { IN_HOLES } else { CLEANED };
    let mut begun = 0;
    let mut before = None;
    for batch in 0..most.min(BATCHES) {
        let free = segments(fs, "f2fs/free_segments")?;
        let short = free <= segments(fs, "f2fs/reserved_segments")? + 2;
        let files = begun..begun + if short { SMALL_BATCH } else { BATCH };
        begun = files.end;
        for number in files.clone() {
            step(&Op::Create {
                path: path(number),
                perm: 0o600,
            })?;
            step(&Op::Write {
                file: path(number).into(),
                span: Span::new(0, 5_000),
                fill: 1_000_000 + u32::try_from(number).expect("files are few"),
            })?;
        }
        step(&Op::Sync)?;
        for number in files.skip(1) {
            step(&Op::Unlink { path: path(number) })?;
        }
        if short {
            let counts = work(fs);
            let count = counts.iter().find(|(what, _)| *what == sign);
            let count = count.map_or(0, |(_, count)| *count);
            if *before.get_or_insert(count) < count {
                return Ok(batch);
            }
        }
    }
    match most < BATCHES {
        true => Ok(most),
        false => Err(Problem::Sync(FsError::Invalid(
            "free segments did not become short",
        ))),
    }
}

/// Sections cleaned.
pub const CLEANED: &str = "sections cleaned";
/// Blocks written by SSR.
pub const IN_HOLES: &str = "blocks written by SSR";
/// Files that were clustered with another's fsync.
pub const CLUSTERED: &str = "clustered files";
/// fsyncs whose node chain was written by another one, in its group.
pub const GROUPED: &str = "grouped fsyncs";

/// Counts in the volume's status: the lines that hold them, and their names.
fn work(fs: &dyn FileSystem) -> Vec<(&'static str, u64)> {
    let lines = [
        ("GC victims: ", CLEANED),
        ("SSR: ", IN_HOLES),
        ("  - along with others' : ", CLUSTERED),
        ("  - in the group of another's : ", GROUPED),
    ];
    let status = fs.control().map(|control| control.read("f2fs/status"));
    let status = status.and_then(Result::ok).unwrap_or_default();
    let status = String::from_utf8_lossy(&status);
    let count = |begin: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(begin))?;
        let digits = line.bytes().take_while(u8::is_ascii_digit).count();
        line[..digits].parse().ok()
    };
    let counts = lines
        .iter()
        .map(|(begin, what)| Some((*what, count(begin)?)));
    counts.flatten().collect()
}

/// The number in a control file.
fn segments(fs: &dyn FileSystem, name: &str) -> std::result::Result<u64, Problem> {
    let text = fs.control().map(|control| control.read(name));
    let text = text
        .unwrap_or(Err(FsError::NotFound))
        .map_err(Problem::Sync)?;
    let number = String::from_utf8_lossy(&text).trim().parse();
    number.map_err(|_| Problem::Sync(FsError::Invalid("a control file is no number")))
}

/// Our checker's findings in an unmounted volume.
fn check(image: &Image) -> String {
    let options = CheckOptions {
        // An image has all devices of the volume.
        is_joined: true,
        ..CheckOptions::default()
    };
    let report = steadfs_f2fs::check::check(image, &options);
    let mut findings: Vec<String> = report.issues.iter().map(ToString::to_string).collect();
    if report.more > 0 {
        findings.push(format!("and {} more", report.more));
    }
    // Usage is always as the inodes add up to.
    let unchecked = report.skipped.iter().filter(|what| what.contains("quota"));
    findings.extend(unchecked.map(|what| format!("not checked: {what}")));
    findings.extend(report.refused.map(|why| why.to_string()));
    findings.join("\n")
}

fn open(
    device: Arc<dyn Device>,
    options: &MountOptions,
    controls: &[(&str, &str)],
    queue: fn(&mut QueueSettings),
) -> Result<Arc<dyn FileSystem>> {
    let (fs, _) = F2fs::open(device, options.clone(), CacheSizes::of(8 << 20))?;
    let mut settings = fs.queue().settings();
    queue(&mut settings);
    fs.queue().configure(settings);
    for (name, value) in controls {
        let control = FileSystem::control(fs.as_ref()).ok_or(FsError::NotFound)?;
        control.write(name, value.as_bytes())?;
    }
    Ok(fs)
}
