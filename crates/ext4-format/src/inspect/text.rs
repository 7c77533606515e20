//! Text form of an [`Inspection`].

use std::fmt::{self, Display, Formatter};

use steadfs_base::endian::Le32;
pub(super) use steadfs_base::uuid_text as uuid;
use steadfs_vfs::names::printable;

use super::{ErrorFacts, Inspection, Journal, Log};
use crate::disk::time::Date;

/// A field of text, up to its first zero byte.
pub(super) fn field(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&b| b == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A time of the superblock, in seconds.
pub(super) fn time(low: Le32, high: u8) -> i64 {
    i64::from(low.get()) | i64::from(high) << 32
}

/// Names of `s_default_mount_opts`, as e2fsprogs prints them.
pub(super) fn mount_options(bits: u32) -> Vec<String> {
    const JOURNAL_MODES: u32 = 0x60;
    const NAMES: [(u32, &str); 9] = [
        (0x1, "debug"),
        (0x2, "bsdgroups"),
        (0x4, "user_xattr"),
        (0x8, "acl"),
        (0x10, "uid16"),
        (0x100, "nobarrier"),
        (0x200, "block_validity"),
        (0x400, "discard"),
        (0x800, "nodelalloc"),
    ];
    let mode = match bits & JOURNAL_MODES {
        0x20 => Some("journal_data"),
        0x40 => Some("journal_data_ordered"),
        0x60 => Some("journal_data_writeback"),
        _ => None,
    };
    let others = (0..u32::BITS)
        .filter(|bit| bits & !JOURNAL_MODES & (1 << bit) != 0)
        .map(
            |bit| match NAMES.iter().find(|(value, _)| *value == 1 << bit) {
                Some((_, name)) => (*name).to_owned(),
                None => format!("MNTOPT_{bit}"),
            },
        );
    mode.map(str::to_owned).into_iter().chain(others).collect()
}

/// Name of a directory hash (`s_def_hash_version`).
pub(super) fn hash(version: u8) -> String {
    const NAMES: [&str; 7] = [
        "legacy",
        "half_md4",
        "tea",
        "legacy_unsigned",
        "half_md4_unsigned",
        "tea_unsigned",
        "siphash",
    ];
    match NAMES.get(usize::from(version)) {
        Some(name) => (*name).to_owned(),
        None => format!("hash {version}"),
    }
}

/// Name of an error's kind (`s_first_error_errcode`).
pub(super) fn error_code(code: u8) -> String {
    const NAMES: [&str; 17] = [
        "UNKNOWN",
        "EIO",
        "ENOMEM",
        "EFSBADCRC",
        "EFSCORRUPTED",
        "ENOSPC",
        "ENOKEY",
        "EROFS",
        "EFBIG",
        "EEXIST",
        "ERANGE",
        "EOVERFLOW",
        "EBUSY",
        "ENOTDIR",
        "ENOTEMPTY",
        "ESHUTDOWN",
        "EFAULT",
    ];
    match usize::from(code).checked_sub(1).and_then(|i| NAMES.get(i)) {
        Some(name) => (*name).to_owned(),
        None => format!("UNKNOWN_ERRCODE_{code}"),
    }
}

/// A number of bytes with the largest unit in which it is at least 1.
struct Bytes(u128);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut unit = 0;
        while unit + 1 < UNITS.len() && self.0 >> (10 * (unit + 1)) > 0 {
            unit += 1;
        }
        let whole = self.0 >> (10 * unit);
        let tenths = ((self.0 * 10) >> (10 * unit)) % 10;
        if tenths == 0 {
            write!(f, "{whole} {}", UNITS[unit])
        } else {
            write!(f, "{whole}.{tenths} {}", UNITS[unit])
        }
    }
}

/// `part` of `all` in percent.
fn percent(part: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        100.0 * part as f64 / all as f64
    }
}

fn or_none(text: &str) -> &str {
    if text.is_empty() { "(none)" } else { text }
}

fn line(f: &mut Formatter<'_>, name: &str, value: impl Display) -> fmt::Result {
    // Text fields of a superblock may hold any bytes.
    let value = printable(value.to_string().as_bytes());
    writeln!(f, "{:<22}{value}", format!("{name}:"))
}

impl Display for Inspection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(at) = self.copy_at {
            line(f, "Superblock", format!("copy at byte {at}"))?;
        }
        line(f, "Label", or_none(&self.label))?;
        line(f, "UUID", &self.uuid)?;
        line(f, "Features", or_none(&self.features.join(" ")))?;
        line(f, "VolumeState", self.state_in_words())?;
        self.errors(f)?;
        self.sizes(f)?;
        self.times(f)?;
        self.journal_lines(f)?;
        if let Some(protection) = &self.mmp {
            line(f, "Mount protection", protection)?;
        }
        let options = self.default_mount_options.join(" ");
        line(f, "Mount options", or_none(&options))?;
        if !self.mount_options.is_empty() {
            line(f, "More mount options", &self.mount_options)?;
        }
        if !self.last_mounted.is_empty() {
            line(f, "Last mounted on", &self.last_mounted)?;
        }
        line(f, "Directory hash", &self.hash.version)?;
        if let Some(sum) = &self.checksum {
            let right = if sum.is_right { "right" } else { "WRONG" };
            let stored = sum.stored;
            line(f, "Superblock checksum", format!("{stored:#010x}, {right}"))?;
        }
        self.groups(f)
    }
}

impl Inspection {
    fn state_in_words(&self) -> String {
        let state = &self.state;
        let mut words = vec![if state.clean { "clean" } else { "not clean" }];
        let more = [
            (state.needs_recovery, "journal needs replay"),
            (state.has_errors, "with errors"),
            (state.orphans, "orphans to remove"),
        ];
        words.extend(more.iter().filter(|(is, _)| *is).map(|(_, word)| *word));
        format!("{}; on errors: {}", words.join(", "), state.on_error)
    }

    fn errors(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.state.error_count > 0 {
            line(f, "Errors noted", self.state.error_count)?;
        }
        for (name, error) in [
            ("First error", &self.state.first_error),
            ("Last error", &self.state.last_error),
        ] {
            if let Some(error) = error {
                line(f, name, error)?;
            }
        }
        Ok(())
    }

    fn sizes(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let geo = &self.geometry;
        let bytes = |blocks: u64| Bytes(u128::from(blocks) * u128::from(geo.block_size));
        let of = |blocks: u64| {
            let share = percent(blocks, geo.blocks);
            format!("{blocks} ({share:.1} %), {}", bytes(blocks))
        };
        line(
            f,
            "Size",
            format!(
                "{} blocks of {} bytes, {}",
                geo.blocks,
                geo.block_size,
                bytes(geo.blocks)
            ),
        )?;
        if geo.cluster_size != geo.block_size {
            line(f, "Cluster size", geo.cluster_size)?;
        }
        line(f, "Free blocks", of(geo.free_blocks))?;
        line(f, "Reserved blocks", of(geo.reserved_blocks))?;
        if geo.overhead_clusters > 0 {
            line(f, "Overhead", format!("{} clusters", geo.overhead_clusters))?;
        }
        let share = percent(geo.free_inodes.into(), geo.inodes.into());
        line(
            f,
            "Inodes",
            format!(
                "{} of {} bytes, {} ({share:.1} %) free",
                geo.inodes, geo.inode_size, geo.free_inodes
            ),
        )?;
        if geo.raid_stride > 0 || geo.raid_stripe_width > 0 {
            let (stride, width) = (geo.raid_stride, geo.raid_stripe_width);
            line(f, "RAID", format!("stride {stride}, stripe width {width}"))?;
        }
        Ok(())
    }

    fn times(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let history = &self.history;
        line(f, "Created", Date(history.created))?;
        if history.mounted == 0 {
            line(f, "Mounted", "never")?;
        } else {
            line(f, "Mounted", Date(history.mounted))?;
        }
        line(f, "Written", Date(history.written))?;
        line(f, "Checked", Date(history.checked))?;
        let most = history
            .max_mount_count
            .map_or(String::new(), |most| format!(", check after {most}"));
        let count = history.mount_count;
        line(f, "Mounts since check", format!("{count}{most}"))?;
        if let Some(secs) = history.check_interval {
            line(f, "Check after", format!("{} days", secs / 86_400))?;
        }
        if history.kbytes_written > 0 {
            let bytes = u128::from(history.kbytes_written) << 10;
            line(f, "Written in its life", Bytes(bytes))?;
        }
        Ok(())
    }

    fn journal_lines(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.journal {
            Journal::None => line(f, "Journal", "none"),
            Journal::External { uuid } => line(f, "Journal", format!("on device {uuid}")),
            Journal::Unreadable { inode, why } => {
                line(f, "Journal", format!("inode {inode}, unreadable: {why}"))
            }
            Journal::Internal { inode, log, .. } => {
                line(f, "Journal", format!("inode {inode}, {log}"))?;
                let features = log.features.join(" ");
                line(f, "Journal features", or_none(&features))
            }
        }
    }

    fn groups(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (geo, usage) = (&self.geometry, &self.usage);
        let mut words = format!(
            "{} of {} blocks and {} inodes",
            geo.groups, geo.blocks_per_group, geo.inodes_per_group
        );
        if geo.flex_group_size > 1 {
            words.push_str(&format!(", {} in a flex group", geo.flex_group_size));
        }
        line(f, "Groups", words)?;
        line(f, "Directories", usage.directories)?;
        if usage.block_uninit > 0 || usage.inode_uninit > 0 {
            line(
                f,
                "Groups never used",
                format!(
                    "{} (blocks), {} (inodes)",
                    usage.block_uninit, usage.inode_uninit
                ),
            )?;
        }
        let tenths: Vec<String> = usage.by_tenths.iter().map(u32::to_string).collect();
        line(
            f,
            "Groups by tenths full",
            format!("{} ({} full)", tenths.join(" "), usage.full),
        )?;
        if usage.damaged > 0 {
            line(f, "Damaged descriptors", usage.damaged)?;
        }
        if let Some(why) = &usage.unreadable {
            line(f, "Descriptors", format!("unreadable: {why}"))?;
        }
        Ok(())
    }
}

impl Display for ErrorFacts {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} in {}:{}",
            Date(self.time),
            or_none(&self.function),
            self.line
        )?;
        if let Some(inode) = self.inode {
            write!(f, ", inode {inode}")?;
        }
        if let Some(block) = self.block {
            write!(f, ", block {block}")?;
        }
        if let Some(code) = &self.code {
            write!(f, ", {code}")?;
        }
        Ok(())
    }
}

impl Display for Log {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let bytes = u128::from(self.blocks) * u128::from(self.block_size);
        write!(f, "{} blocks, {}, ", self.blocks, Bytes(bytes))?;
        if self.fast_commit_blocks > 0 {
            write!(f, "{} for fast commits, ", self.fast_commit_blocks)?;
        }
        match self.start {
            0 => write!(f, "empty, next transaction {}", self.sequence)?,
            start => write!(f, "transaction {} starts at block {start}", self.sequence)?,
        }
        if let Some(errno) = self.aborted {
            write!(f, ", aborted with error {errno}")?;
        }
        if !self.checksum_is_right {
            write!(f, ", superblock checksum WRONG")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        for (bytes, text) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1536, "1.5 KiB"),
            (1 << 40, "1 TiB"),
            (u128::from(u64::MAX) << 10, "16383.9 EiB"),
        ] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
