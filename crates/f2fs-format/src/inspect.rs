//! Describes a volume without opening it: its superblock and its checkpoint.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;
use steadfs_block::Queue;
use steadfs_vfs::Result;
use steadfs_vfs::names::printable;

use crate::checkpoint::{self, Current};
use crate::disk::checkpoint::{ALLOC_SSR, CpFlags};
use crate::disk::{LogType, Superblock};
use crate::superblock::read_superblock;

/// The description of a volume. Names are those of dump.f2fs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Inspection {
    /// Label.
    pub label: String,
    /// UUID as text.
    pub uuid: String,
    /// The kernel that made the volume.
    pub made_by: String,
    /// The kernel (or program) that wrote it last.
    pub written_by: String,
    /// Names of the features.
    pub features: Vec<String>,
    /// Whether it has recorded corruption or an abort.
    pub has_errors: bool,
    /// The areas of the volume.
    pub layout: Areas,
    /// File name extensions of cold data.
    pub cold_extensions: Vec<String>,
    /// File name extensions of hot data.
    pub hot_extensions: Vec<String>,
    /// The devices of a volume on several, with the size of its part on each; empty for one.
    pub devices: Vec<String>,
    /// Inodes of the user, group and project quota files.
    pub quota_inodes: [Option<u32>; 3],
    /// The current checkpoint.
    pub checkpoint: CheckpointState,
}

/// Areas and sizes, in blocks of 4096 bytes and segments of 512 blocks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are dump.f2fs's")]
pub struct Areas {
    pub block_count: u64,
    pub log_sectorsize: u32,
    pub section_count: u32,
    pub segment_count: u32,
    pub segment_count_ckpt: u32,
    pub segment_count_sit: u32,
    pub segment_count_nat: u32,
    pub segment_count_ssa: u32,
    pub segs_per_sec: u32,
    pub secs_per_zone: u32,
    pub cp_blkaddr: u32,
    pub cp_payload: u32,
    pub sit_blkaddr: u32,
    pub nat_blkaddr: u32,
    pub ssa_blkaddr: u32,
    pub main_blkaddr: u32,
    pub segment_count_main: u32,
}

/// The newest valid checkpoint, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckpointState {
    /// No pack is valid.
    Unreadable {
        /// The error.
        why: String,
    },
    /// The fields of the pack.
    Valid(Box<CheckpointNumbers>),
}

/// Fields of the current checkpoint pack.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[expect(missing_docs, reason = "the names are dump.f2fs's")]
pub struct CheckpointNumbers {
    /// What is inconsistent in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong: Option<String>,
    /// Its pack: 0 or 1.
    pub pack: u32,
    pub checkpoint_ver: u64,
    /// Names of its flags, as dump.f2fs prints them; the last is `unmount` or `sudden-power-off`.
    pub flags: Vec<&'static str>,
    pub user_block_count: u64,
    pub valid_block_count: u64,
    pub rsvd_segment_count: u32,
    pub overprov_segment_count: u32,
    pub free_segment_count: u32,
    pub valid_node_count: u32,
    pub valid_inode_count: u32,
    pub next_free_nid: u32,
    pub cp_pack_total_block_count: u32,
    pub cp_pack_start_sum: u32,
    pub elapsed_time: u64,
    /// The cursegs: hot, warm and cold data, then hot, warm and cold nodes.
    pub cursegs: Vec<Curseg>,
    /// Inodes without links that were open.
    pub orphans: Vec<u32>,
    /// Entries in the NAT journal.
    pub nat_journal: usize,
    /// Entries in the SIT journal.
    pub sit_journal: usize,
}

/// The position of a log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Curseg {
    /// The log.
    pub name: &'static str,
    /// The segment.
    pub segment: u32,
    /// The next block in the segment.
    pub offset: u16,
    /// Allocates invalid blocks of the segment (SSR) and not only blocks after its position (LFS).
    pub ssr: bool,
}

impl CheckpointState {
    /// The fields of the pack, if one is valid.
    pub fn numbers(&self) -> Option<&CheckpointNumbers> {
        match self {
            Self::Valid(numbers) => Some(numbers),
            Self::Unreadable { .. } => None,
        }
    }
}

/// Describes the volume on a device.
///
/// # Errors
/// No superblock is valid. All other errors are in the result.
pub fn inspect(queue: &Queue) -> Result<Inspection> {
    let superblock = read_superblock(queue)?;
    let layout = superblock.layout();
    let checkpoint = match checkpoint::load(queue, layout) {
        Ok(current) => CheckpointState::Valid(Box::new(numbers(&current))),
        Err(error) => CheckpointState::Unreadable {
            why: error.to_string(),
        },
    };
    Ok(describe(&superblock, checkpoint))
}

fn describe(superblock: &Superblock, checkpoint: CheckpointState) -> Inspection {
    let (layout, raw) = (superblock.layout(), superblock.raw());
    let (cold, hot) = superblock.extensions();
    let [made_by, written_by] = superblock.versions();
    let owned = |list: Vec<std::borrow::Cow<'_, str>>| list.into_iter().map(Into::into).collect();
    Inspection {
        label: superblock.label(),
        uuid: steadfs_base::uuid_text(&superblock.uuid()),
        made_by: made_by.trim_end().to_owned(),
        written_by: written_by.trim_end().to_owned(),
        features: owned(superblock.features().names()),
        has_errors: superblock.has_errors(),
        layout: Areas {
            block_count: layout.block_count,
            log_sectorsize: raw.log_sectorsize.get(),
            section_count: raw.section_count.get(),
            segment_count: raw.segment_count.get(),
            segment_count_ckpt: raw.segment_count_ckpt.get(),
            segment_count_sit: raw.segment_count_sit.get(),
            segment_count_nat: raw.segment_count_nat.get(),
            segment_count_ssa: raw.segment_count_ssa.get(),
            segs_per_sec: layout.segments_per_section,
            secs_per_zone: layout.sections_per_zone,
            cp_blkaddr: layout.cp_start,
            cp_payload: layout.cp_payload,
            sit_blkaddr: layout.sit_start,
            nat_blkaddr: layout.nat_start,
            ssa_blkaddr: layout.ssa_start,
            main_blkaddr: layout.main_start,
            segment_count_main: layout.main_segments,
        },
        cold_extensions: owned(cold),
        hot_extensions: owned(hot),
        devices: (superblock.devices().iter().zip(superblock.device_bytes()))
            .map(|((path, _), bytes)| format!("{path} ({} MiB)", bytes >> 20))
            .collect(),
        quota_inodes: superblock.quota_inodes().map(|nid| nid.map(|nid| nid.0)),
        checkpoint,
    }
}

fn numbers(current: &Current) -> CheckpointNumbers {
    let cp = &current.checkpoint;
    let wrong = current.unreadable.as_ref().or(current.unwritable.as_ref());
    CheckpointNumbers {
        wrong: wrong.map(ToString::to_string),
        pack: current.pack,
        checkpoint_ver: cp.version,
        flags: flag_names(cp.flags),
        user_block_count: cp.user_blocks,
        valid_block_count: cp.valid_blocks,
        rsvd_segment_count: cp.reserved_segments,
        overprov_segment_count: cp.overprovision_segments,
        free_segment_count: cp.free_segments,
        valid_node_count: cp.valid_nodes,
        valid_inode_count: cp.valid_inodes,
        next_free_nid: cp.next_free_nid.0,
        cp_pack_total_block_count: cp.pack_blocks,
        cp_pack_start_sum: cp.start_sum,
        elapsed_time: cp.elapsed,
        cursegs: LogType::ALL
            .into_iter()
            .map(|log| {
                let open = cp.log(log);
                Curseg {
                    name: log.name(),
                    segment: open.segment.0,
                    offset: open.offset,
                    ssr: open.alloc == ALLOC_SSR,
                }
            })
            .collect(),
        orphans: current.orphans.iter().map(|nid| nid.0).collect(),
        nat_journal: current.nat_journal.len(),
        sit_journal: current.sit_journal.len(),
    }
}

fn flag_names(flags: CpFlags) -> Vec<&'static str> {
    [
        (CpFlags::QUOTA_FSCK, "quota_need_fsck"),
        (CpFlags::LARGE_NAT_BITMAP, "large_nat_bitmap"),
        (CpFlags::NOCRC_RECOVERY, "allow_nocrc"),
        (CpFlags::TRIMMED, "trimmed"),
        (CpFlags::NAT_BITS, "nat_bits"),
        (CpFlags::CRC_RECOVERY, "crc"),
        (CpFlags::FASTBOOT, "fastboot"),
        (CpFlags::FSCK, "fsck"),
        (CpFlags::ERROR, "error"),
        (CpFlags::COMPACT_SUMMARIES, "compacted_summary"),
        (CpFlags::ORPHANS, "orphan_inodes"),
        (CpFlags::DISABLED, "disabled"),
        (CpFlags::DISABLED_QUICK, "disabled_quick"),
        (CpFlags::RESIZE, "resizefs"),
    ]
    .into_iter()
    .filter(|(flag, _)| flags.contains(*flag))
    .map(|(_, name)| name)
    .chain([if flags.contains(CpFlags::UNMOUNT) {
        "unmount"
    } else {
        "sudden-power-off"
    }])
    .collect()
}

impl Display for Inspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: &dyn Display| {
            // Labels may contain any bytes.
            let value = printable(value.to_string().as_bytes());
            writeln!(f, "{name:<28}{value}")
        };
        line("Type:", &"f2fs")?;
        line("Label:", &self.label)?;
        line("UUID:", &self.uuid)?;
        line("Made by:", &self.made_by)?;
        line("Written by:", &self.written_by)?;
        line("Features:", &self.features.join(" "))?;
        line(
            "Errors recorded:",
            &if self.has_errors { "yes" } else { "no" },
        )?;
        let areas = &self.layout;
        line("Block count:", &areas.block_count)?;
        line("Block size:", &crate::disk::BLOCK_SIZE)?;
        line("Sector size:", &(1u64 << areas.log_sectorsize))?;
        line("Segments:", &areas.segment_count)?;
        line("Sections:", &areas.section_count)?;
        line("Segments per section:", &areas.segs_per_sec)?;
        line("Sections per zone:", &areas.secs_per_zone)?;
        line("Checkpoint area:", &areas.cp_blkaddr)?;
        line("Checkpoint payload:", &areas.cp_payload)?;
        line("SIT area:", &areas.sit_blkaddr)?;
        line("NAT area:", &areas.nat_blkaddr)?;
        line("SSA area:", &areas.ssa_blkaddr)?;
        line("Main area:", &areas.main_blkaddr)?;
        line("Main segments:", &areas.segment_count_main)?;
        line("Cold extensions:", &self.cold_extensions.join(" "))?;
        line("Hot extensions:", &self.hot_extensions.join(" "))?;
        for device in &self.devices {
            line("Device:", device)?;
        }
        let names = ["User", "Group", "Project"];
        for (name, nid) in names.into_iter().zip(self.quota_inodes) {
            if let Some(nid) = nid {
                line(&format!("{name} quota inode:"), &nid)?;
            }
        }
        match &self.checkpoint {
            CheckpointState::Unreadable { why } => {
                write!(f, "{:<28}unreadable: {why}", "Checkpoint:")
            }
            CheckpointState::Valid(numbers) => numbers.fmt(f),
        }
    }
}

impl Display for CheckpointNumbers {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let mut line = |name: &str, value: &dyn Display| writeln!(f, "{name:<28}{value}");
        line("Checkpoint pack:", &(self.pack + 1))?;
        if let Some(wrong) = &self.wrong {
            line("Checkpoint error:", wrong)?;
        }
        line(
            "Checkpoint version:",
            &format!("{:#x}", self.checkpoint_ver),
        )?;
        line("Checkpoint flags:", &self.flags.join(" "))?;
        line("User blocks:", &self.user_block_count)?;
        line("Valid blocks:", &self.valid_block_count)?;
        line("Valid nodes:", &self.valid_node_count)?;
        line("Valid inodes:", &self.valid_inode_count)?;
        line("Next free node id:", &self.next_free_nid)?;
        line("Free segments:", &self.free_segment_count)?;
        line("Reserved segments:", &self.rsvd_segment_count)?;
        line("Overprovisioned segments:", &self.overprov_segment_count)?;
        line("Pack blocks:", &self.cp_pack_total_block_count)?;
        line("First summary block:", &self.cp_pack_start_sum)?;
        line("Mounted time (s):", &self.elapsed_time)?;
        line("NAT journal entries:", &self.nat_journal)?;
        line("SIT journal entries:", &self.sit_journal)?;
        line("Orphans:", &self.orphans.len())?;
        for (n, log) in self.cursegs.iter().enumerate() {
            let end = if n + 1 == self.cursegs.len() {
                ""
            } else {
                "\n"
            };
            let how = if log.ssr { "SSR" } else { "LFS" };
            let name = format!("Curseg of {}s:", log.name).replace("datas", "data");
            let (segment, offset) = (log.segment, log.offset);
            write!(f, "{name:<28}segment {segment}, block {offset}, {how}{end}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
