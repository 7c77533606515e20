//! Describes a request by its target and content.

use steadfs_block::{Bio, Op};
use steadfs_f2fs::disk::node::Footer;
use steadfs_f2fs::disk::{BlockAddr, Layout, Superblock};

use super::Kind;
use crate::experiment::content;
use crate::flash::Store;

const BLOCK: u64 = 4096;
/// Maximum number of blocks of the file: each is filled with its number plus one.
const LARGEST: u64 = 1 << 10;
/// First bytes of each journal block that is not a copy (big-endian).
const JBD2_MAGIC: [u8; 4] = 0xC03B_3998_u32.to_be_bytes();

/// The layout of a volume.
pub(super) enum BlockNames {
    /// The journal's blocks.
    Ext4 { log: std::ops::Range<u64> },
    /// The areas.
    F2fs(Box<Layout>),
}

fn word(block: &[u8], at: usize) -> Option<u32> {
    let bytes = block.get(at..at + 4)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

impl BlockNames {
    /// The layout of a new volume.
    pub(super) fn of(kind: Kind, store: &Store) -> Result<Self, String> {
        let mut block = [0; BLOCK as usize];
        match kind {
            Kind::F2fs => {
                store.read(1024, &mut block);
                let superblock = Superblock::parse(&block).map_err(|error| error.to_string())?;
                Ok(Self::F2fs(Box::new(superblock.layout().clone())))
            }
            Kind::Ext4 => {
                for number in 0..store.size() / BLOCK {
                    store.read(number * BLOCK, &mut block);
                    // The journal's superblock: type 4, its length in the word at 16. A new journal is contiguous.
                    if block.starts_with(&JBD2_MAGIC) && word(&block, 4) == Some(4) {
                        let length = word(&block, 16).unwrap_or(0);
                        let log = number..number + u64::from(length);
                        return Ok(Self::Ext4 { log });
                    }
                }
                Err("the volume has no journal".to_owned())
            }
        }
    }

    /// A request in words.
    pub(super) fn label(&self, bio: &Bio) -> String {
        match bio.op {
            Op::Flush => return "FLUSH".to_owned(),
            Op::Discard => return format!("discard {} KiB", bio.len >> 10),
            _ => {}
        }
        let first = bio.offset / BLOCK;
        let verb = if bio.op == Op::Read { "read" } else { "write" };
        let mut text = format!("{verb} {} KiB at block {first}", bio.len >> 10);
        if bio.op != Op::Read {
            let bytes = bio.bufs.iter().flat_map(|buf| buf.chunks(BLOCK as usize));
            let blocks = (first..)
                .zip(bytes)
                .map(|(at, block)| self.block(at, block));
            text.push_str(&format!(": {}", counted(blocks)));
        }
        for (flag, name) in [(bio.preflush, "preflush"), (bio.fua, "FUA")] {
            if flag {
                text.push_str(&format!(", {name}"));
            }
        }
        text
    }

    fn block(&self, at: u64, bytes: &[u8]) -> &'static str {
        let ours = bytes
            .first_chunk::<8>()
            .map_or(0, |word| u64::from_le_bytes(*word));
        if (1..=LARGEST).contains(&ours) && content((ours - 1) * BLOCK, BLOCK) == bytes {
            return "the file's data";
        }
        match self {
            Self::Ext4 { log } if log.contains(&at) => in_log(bytes),
            Self::Ext4 { .. } => "metadata, home location",
            Self::F2fs(layout) => in_f2fs(layout, at, bytes),
        }
    }
}

fn in_log(bytes: &[u8]) -> &'static str {
    match bytes
        .starts_with(&JBD2_MAGIC)
        .then(|| word(bytes, 4))
        .flatten()
    {
        Some(1) => "log: descriptor",
        Some(2) => "log: COMMIT RECORD",
        Some(3 | 4) => "journal superblock",
        Some(5) => "log: revoked blocks",
        _ => "log: a metadata block",
    }
}

fn in_f2fs(layout: &Layout, at: u64, bytes: &[u8]) -> &'static str {
    let at = u32::try_from(at).unwrap_or(u32::MAX);
    if at < layout.cp_start {
        return "superblock";
    }
    if at < layout.sit_start {
        return "checkpoint pack";
    }
    if at < layout.nat_start {
        return "segment information table (SIT)";
    }
    if at < layout.ssa_start {
        return "node address table (NAT)";
    }
    if !layout.is_main(BlockAddr(at)) {
        return "segment summaries (SSA)";
    }
    let footer = Footer::parse(bytes);
    let plausible = layout.is_nid(footer.nid) && layout.is_nid(footer.ino);
    match (plausible, footer.fsync) {
        (true, true) => "node, with an fsync mark",
        (true, false) => "node",
        (false, _) => "directory block",
    }
}

/// `a, 3 x b`: consecutive equal names are counted.
fn counted(names: impl Iterator<Item = &'static str>) -> String {
    let mut runs: Vec<(&str, u64)> = Vec::new();
    for name in names {
        match runs.last_mut() {
            Some((last, count)) if *last == name => *count += 1,
            _ => runs.push((name, 1)),
        }
    }
    let labels = runs.iter().map(|(name, count)| match count {
        1 => (*name).to_owned(),
        count => format!("{count} x {name}"),
    });
    labels.collect::<Vec<_>>().join(", ")
}
