//! Images made by f2fs-tools, and direct access to their structures, for the tests of this crate and of the engine.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

pub mod corrupt;
pub mod tree;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use steadfs_block::MemDevice;
use tempfile::TempDir;

use crate::check::{self, Report, check};
use crate::disk::checkpoint::CpFlags;
use crate::disk::num::idx;
use crate::disk::summary::{CompactSummaries, SummaryBlock};
use crate::disk::superblock::{COPIES, SUPERBLOCK_SIZE};
use crate::disk::{
    BLOCK_SIZE, BlockAddr, Checkpoint, Layout, LogType, NatEntry, Nid, Superblock, checkpoint,
    journal, nat,
};

/// Options of mkfs.f2fs for inodes with all fields.
pub const ALL_FEATURES: &str = "extra_attr,inode_checksum,sb_checksum,inode_crtime,\
                                       flexible_inline_xattr,lost_found,verity,encrypt,compression";

/// As `ALL_FEATURES`, for images filled by sload.f2fs 1.15: with `flexible_inline_xattr` it writes inodes that its
/// own check then repairs with data loss.
pub const LOAD_FEATURES: &str = "extra_attr,inode_checksum,sb_checksum,inode_crtime,\
                                        lost_found,verity,encrypt,compression";

/// An image file that is deleted with the value.
pub struct Image {
    dir: TempDir,
}

/// A command of f2fs-tools. With a full path, because a search of PATH happens after the fork, which copies the
/// page tables of a process full of images.
pub fn tool(program: &str) -> Command {
    let path = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"]
        .map(|dir| Path::new(dir).join(program))
        .into_iter()
        .find(|path| path.is_file());
    Command::new(path.unwrap_or_else(|| panic!("{program} is needed by this test")))
}

/// Runs a command and returns its standard output. Panics if it is missing or fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = tool(program).args(args).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // sload.f2fs prints its progress: only the end is of interest.
    let said = text.get(text.len().saturating_sub(400)..).unwrap_or(&text);
    assert!(
        output.status.success(),
        "{program} {args:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

impl Image {
    /// Runs `mkfs.f2fs` with these options on a new sparse file of `mib` MiB.
    pub fn make(options: &[&str], mib: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let image = Self { dir };
        let path = image.path();
        let file = fs::File::create(&path).unwrap();
        file.set_len(mib << 20).unwrap();
        let mut args = vec!["-q", "-f"];
        args.extend_from_slice(options);
        args.push(path.to_str().unwrap());
        run("mkfs.f2fs", &args);
        image
    }

    /// Fills the image from a directory by `sload.f2fs` with these options.
    pub fn load(&self, from: &Path, options: &[&str]) {
        let path = self.path();
        let mut args = vec!["-f", from.to_str().unwrap()];
        args.extend_from_slice(options);
        args.push(path.to_str().unwrap());
        run("sload.f2fs", &args);
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    /// A device in memory with the image's content.
    pub fn device(&self) -> Arc<MemDevice> {
        Arc::new(MemDevice::load(&self.path()).unwrap())
    }

    /// A path next to the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs `dump.f2fs` with these options.
    pub fn dump(&self, options: &[&str]) -> String {
        let path = self.path();
        let mut args = options.to_vec();
        args.push(path.to_str().unwrap());
        run("dump.f2fs", &args)
    }

    pub fn open(&self) -> Opened {
        Opened::of(fs::read(self.path()).unwrap())
    }
}

/// An image in memory with its current checkpoint.
pub struct Opened {
    pub bytes: Vec<u8>,
    pub superblock: Superblock,
    pub checkpoint: Checkpoint,
    /// The number of the current pack.
    pub pack: u32,
    journal: BTreeMap<Nid, NatEntry>,
}

impl Opened {
    pub fn of(bytes: Vec<u8>) -> Self {
        let at = usize::try_from(COPIES[0]).unwrap();
        let superblock = Superblock::parse(&bytes[at..at + SUPERBLOCK_SIZE]).unwrap();
        let layout = superblock.layout().clone();
        // For equal versions `max_by_key` returns the last one: the first pack.
        let (checkpoint, pack) = [1, 0]
            .into_iter()
            .filter_map(|pack| {
                let start = layout.pack_start(pack);
                let blocks = range(&bytes, start, 1 + layout.cp_payload);
                let checkpoint = Checkpoint::parse(&layout, blocks).ok()?;
                let last = start.plus(checkpoint.pack_blocks - 1);
                let tail = checkpoint::verify_block(range(&bytes, last, 1)).ok()?;
                (tail.version == checkpoint.version).then_some((checkpoint, pack))
            })
            .max_by_key(|(checkpoint, _)| checkpoint.version)
            .expect("a valid checkpoint");
        let mut opened = Self {
            bytes,
            superblock,
            checkpoint,
            pack,
            journal: BTreeMap::new(),
        };
        let journal = opened.nat_journal();
        opened.journal = journal::parse_nat(&layout, &journal)
            .unwrap()
            .into_iter()
            .collect();
        opened
    }

    pub fn layout(&self) -> &Layout {
        self.superblock.layout()
    }

    pub fn blocks(&self, at: BlockAddr, count: u32) -> &[u8] {
        range(&self.bytes, at, count)
    }

    /// Blocks of the pack from the data summaries to its end.
    pub fn summaries(&self) -> &[u8] {
        let start = self.layout().pack_start(self.pack);
        let first = self.checkpoint.start_sum;
        self.blocks(start.plus(first), self.checkpoint.pack_blocks - 1 - first)
    }

    fn nat_journal(&self) -> [u8; journal::SIZE] {
        if self.checkpoint.flags.contains(CpFlags::COMPACT_SUMMARIES) {
            CompactSummaries::parse(self.summaries(), self.checkpoint.compacted_counts())
                .unwrap()
                .nat_journal
        } else {
            let at = self.checkpoint.summary_in_pack(LogType::HotData).unwrap();
            let start = self.layout().pack_start(self.pack);
            SummaryBlock::parse(self.blocks(start.plus(at), 1))
                .unwrap()
                .journal
        }
    }

    pub fn nat(&self, nid: Nid) -> NatEntry {
        if let Some(entry) = self.journal.get(&nid) {
            return *entry;
        }
        let (block, slot) = self.layout().nat_slot(nid);
        let second = self.checkpoint.nat_second(block);
        nat::get(self.blocks(self.layout().nat_block(block, second), 1), slot)
    }

    pub fn node(&self, nid: Nid) -> &[u8] {
        let entry = self.nat(nid);
        entry.validate(self.layout(), nid).unwrap();
        self.blocks(entry.addr, 1)
    }

    /// All nodes in use.
    pub fn nids(&self) -> Vec<Nid> {
        (Nid::ROOT.0..self.layout().max_nid)
            .map(Nid)
            .filter(|nid| self.nat(*nid).is_used())
            .collect()
    }
}

fn range(bytes: &[u8], at: BlockAddr, count: u32) -> &[u8] {
    let start = idx(at.0) * BLOCK_SIZE;
    &bytes[start..start + idx(count) * BLOCK_SIZE]
}

/// Runs `fsck.f2fs --dry-run`. Returns its exit code (0: clean) and its output.
pub fn fsck(path: &Path) -> (i32, String) {
    let output = tool("fsck.f2fs")
        .args(["--dry-run", path.to_str().unwrap()])
        .output()
        .unwrap();
    let code = output.status.code().unwrap_or(-1);
    (code, String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn words(report: &Report) -> Vec<String> {
    report.issues.iter().map(ToString::to_string).collect()
}

#[track_caller]
pub fn assert_clean(image: &Image, what: &dyn std::fmt::Debug) -> Report {
    let file = std::fs::File::open(image.path()).unwrap();
    let report = check(&file, &check::Options::default());
    assert!(report.is_clean(), "{what:?}: {:#?}", words(&report));
    let (code, words) = fsck(&image.path());
    assert_eq!(code, 0, "{what:?}: {words}");
    report
}
