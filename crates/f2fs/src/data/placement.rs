//! Where a file's data is written: in place (IPU) or to a new block (OPU), and of which log. Pure rules, those of
//! the kernel (`f2fs_should_update_inplace`, `__get_segment_type`).

use crate::disk::LogType;
use crate::disk::inode::{Advise, Inline};

/// When data is written in place (`ipu_policy`): a set of rules, each of which is sufficient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpuPolicy(pub u32);

impl IpuPolicy {
    /// Always.
    pub const FORCE: Self = Self(0x01);
    /// While free sections are short enough for SSR.
    pub const SSR: Self = Self(0x02);
    /// While the volume is fuller than `min_ipu_util`.
    pub const UTIL: Self = Self(0x04);
    /// While both conditions hold.
    pub const SSR_UTIL: Self = Self(0x08);
    /// In fdatasync, and in an fsync of at most `min_fsync_blocks` dirty blocks.
    pub const FSYNC: Self = Self(0x10);
    /// In background write-back.
    pub const ASYNC: Self = Self(0x20);
    /// Not for data that GC or defragmentation moves, whatever the other rules say.
    pub const HONOR_OPU: Self = Self(0x80);

    /// All rules that this implementation knows.
    pub const KNOWN: Self = Self(0xBF);

    /// The default for a main area of this many segments: up to 16 GiB everything is written in place, because GC
    /// is expensive on a small volume.
    pub fn default_for(main_segments: u32, lfs: bool) -> Self {
        const SMALL_VOLUME_SEGMENTS: u32 = 16 * 512;
        if main_segments <= SMALL_VOLUME_SEGMENTS {
            Self(Self::FORCE.0 | Self::HONOR_OPU.0)
        } else if lfs {
            Self(0)
        } else {
            Self::FSYNC
        }
    }

    const fn has(self, rule: Self) -> bool {
        self.0 & rule.0 != 0
    }
}

/// The state of the volume that placement depends on.
#[derive(Clone, Copy, Debug)]
pub struct VolumeState {
    /// Rules for writing in place.
    pub policy: IpuPolicy,
    /// `mode=lfs`: only OPU, and only LFS cursegs.
    pub lfs: bool,
    /// Cold files are written in place, and files with few dirty blocks are hot (not with `gc_policy=2013`).
    pub temperature: bool,
    /// Free sections are short, so that cursegs use SSR.
    pub needs_ssr: bool,
    /// Used share of the volume in percent.
    pub used_percent: u32,
    /// `min_ipu_util` in percent.
    pub min_util: u32,
}

/// Why data is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occasion {
    /// fdatasync, or an fsync of at most `min_fsync_blocks` dirty blocks.
    SmallSync,
    /// Another write-back that a task waits for.
    Sync,
    /// Background write-back.
    Background,
    /// GC or defragmentation: the data must move.
    Moved,
}

/// The most dirty blocks of a file that count as hot (`min_hot_blocks`).
pub const HOT_DIRTY_BLOCKS_MAX: u64 = 16;

/// The state of a file that placement depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHints {
    /// `i_advise`.
    pub advise: Advise,
    /// `i_inline`; only the bit "pinned" is used.
    pub inline: Inline,
    /// At most [`HOT_DIRTY_BLOCKS_MAX`] blocks of the file are dirty.
    pub few_dirty: bool,
}

/// Whether a block that is allocated is overwritten in place.
pub fn ipu(volume: &VolumeState, file: &FileHints, occasion: Occasion) -> bool {
    if file.inline.contains(Inline::PINNED) {
        return true;
    }
    if volume.lfs || occasion == Occasion::Moved {
        return false;
    }
    if volume.temperature && file.advise.contains(Advise::COLD) {
        return true;
    }
    let full = volume.used_percent > volume.min_util;
    let when = |rule, condition| volume.policy.has(rule) && condition;
    volume.policy.has(IpuPolicy::FORCE)
        || when(IpuPolicy::SSR, volume.needs_ssr)
        || when(IpuPolicy::UTIL, full)
        || when(IpuPolicy::SSR_UTIL, full && volume.needs_ssr)
        || when(IpuPolicy::ASYNC, occasion == Occasion::Background)
        || when(IpuPolicy::FSYNC, occasion == Occasion::SmallSync)
}

/// The log that new blocks of a regular file are allocated from with this number of logs in use (`active_logs`: 2,
/// 4 or 6); for `temperature` see [`VolumeState`].
pub fn data_log(
    active_logs: u8,
    temperature: bool,
    file: &FileHints,
    occasion: Occasion,
) -> LogType {
    match active_logs {
        2 => LogType::HotData,
        4 => LogType::ColdData,
        _ if occasion == Occasion::Moved || file.advise.contains(Advise::COLD) => LogType::ColdData,
        _ if temperature
            && (file.advise.contains(Advise::HOT)
                || file.few_dirty
                || occasion == Occasion::SmallSync) =>
        {
            LogType::HotData
        }
        _ => LogType::WarmData,
    }
}

/// Whether a file name has an extension of the superblock's list: after a dot that is not its first byte, in upper
/// or lower case, possibly followed by more (`mp` matches `.mp3` and `.mp4.part`).
pub fn has_extension(name: &[u8], extension: &[u8]) -> bool {
    if extension == b"*" {
        return true;
    }
    if extension.is_empty() {
        return false;
    }
    name.windows(extension.len() + 1)
        .skip(1)
        .any(|part| part[0] == b'.' && part[1..].eq_ignore_ascii_case(extension))
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: VolumeState = VolumeState {
        policy: IpuPolicy(0),
        lfs: false,
        temperature: true,
        needs_ssr: false,
        used_percent: 50,
        min_util: 70,
    };
    const PLAIN: FileHints = FileHints {
        advise: Advise(0),
        inline: Inline(0),
        few_dirty: false,
    };

    #[test]
    fn extensions() {
        for (name, extension, expected) in [
            ("film.mp4", "mp", true),
            ("film.MP4.part", "mp4", true),
            (".mp4", "mp4", false),
            ("a.mp4", "mp4", true),
            ("mp4", "mp4", false),
            ("film.amp4", "mp4", false),
            ("film.m", "mp4", false),
            ("anything", "*", true),
            ("anything.", "", false),
        ] {
            let found = has_extension(name.as_bytes(), extension.as_bytes());
            assert_eq!(found, expected, "{name} {extension}");
        }
    }

    #[test]
    fn ipu_by_rule() {
        let with = |rule: IpuPolicy| VolumeState {
            policy: rule,
            ..IDLE
        };
        let full = |v: VolumeState| VolumeState {
            used_percent: 71,
            ..v
        };
        let needs_ssr = |v: VolumeState| VolumeState {
            needs_ssr: true,
            ..v
        };
        use IpuPolicy as P;
        use Occasion::*;
        for (volume, occasion, expected) in [
            (IDLE, SmallSync, false),
            (with(P::FORCE), Background, true),
            (with(P::FORCE), Moved, false),
            (
                VolumeState {
                    lfs: true,
                    ..with(P::FORCE)
                },
                SmallSync,
                false,
            ),
            (with(P::FSYNC), SmallSync, true),
            (with(P::FSYNC), Sync, false),
            (with(P::ASYNC), Background, true),
            (with(P::ASYNC), Sync, false),
            (with(P::SSR), Sync, false),
            (needs_ssr(with(P::SSR)), Sync, true),
            (with(P::UTIL), Sync, false),
            (full(with(P::UTIL)), Sync, true),
            (full(with(P::SSR_UTIL)), Sync, false),
            (needs_ssr(full(with(P::SSR_UTIL))), Sync, true),
        ] {
            let found = ipu(&volume, &PLAIN, occasion);
            assert_eq!(found, expected, "{volume:?} {occasion:?}");
        }
        let cold = FileHints {
            advise: Advise::COLD,
            ..PLAIN
        };
        assert!(ipu(&IDLE, &cold, Background));
        let of_2013 = VolumeState {
            temperature: false,
            ..IDLE
        };
        assert!(!ipu(&of_2013, &cold, Background));
        assert!(!ipu(&VolumeState { lfs: true, ..IDLE }, &cold, Background));
        let pinned = FileHints {
            inline: Inline::PINNED,
            ..PLAIN
        };
        assert!(ipu(&VolumeState { lfs: true, ..IDLE }, &pinned, Background));
        assert_eq!(P::default_for(8192, false).0, 0x81);
        assert_eq!(P::default_for(8193, false), P::FSYNC);
        assert_eq!(P::default_for(8193, true).0, 0);
    }

    #[test]
    fn logs() {
        use LogType::*;
        let cold = FileHints {
            advise: Advise::COLD,
            few_dirty: true,
            ..PLAIN
        };
        let hot = FileHints {
            advise: Advise::HOT,
            ..PLAIN
        };
        let few = FileHints {
            few_dirty: true,
            ..PLAIN
        };
        for (logs, file, occasion, expected) in [
            (6, PLAIN, Occasion::Background, WarmData),
            (6, PLAIN, Occasion::SmallSync, HotData),
            (6, PLAIN, Occasion::Moved, ColdData),
            (6, hot, Occasion::Background, HotData),
            (6, few, Occasion::Background, HotData),
            (6, cold, Occasion::SmallSync, ColdData),
            (4, hot, Occasion::Background, ColdData),
            (2, cold, Occasion::Moved, HotData),
        ] {
            assert_eq!(data_log(logs, true, &file, occasion), expected);
        }
        assert_eq!(data_log(6, false, &few, Occasion::SmallSync), WarmData);
        assert_eq!(data_log(6, false, &cold, Occasion::SmallSync), ColdData);
    }
}
