//! The arguments of `steadfs format -t f2fs`: those of mkfs.f2fs.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;

use crate::args::{Owners, Sandbox, number, percent, sandbox, size};

/// Format an f2fs volume; existing content is lost.
///
/// Options and defaults are those of mkfs.f2fs, except -d. SOURCE_DATE_EPOCH (or -T) sets all times in the volume: with
/// it and -U the same tree gives the same bytes.
#[derive(Debug, Parser)]
#[command(
    name = "steadfs format -t f2fs",
    version,
    args_override_self = true,
    max_term_width = 100
)]
pub struct FormatF2fs {
    /// Image file or block device.
    pub volume: PathBuf,
    /// Size of the volume; an image file is created or extended. A bare number counts sectors (-w), as in mkfs.f2fs;
    /// others have a unit (see SIZES in steadfs(1)): 64M, 64MiB, 64MB, 0.5G, 131072s.
    pub size: Option<String>,
    /// f2fs; and 1 or 0, as in mkfs.f2fs: discard the device's old content first (default 1).
    #[arg(short = 't', long = "type", value_name = "f2fs|1|0")]
    pub kind: Vec<String>,
    /// Label: at most 511 units of UTF-16.
    #[arg(short, long, short_alias = 'L')]
    pub label: Option<String>,
    /// UUID, or random, time, clear.
    #[arg(short = 'U', long)]
    pub uuid: Option<String>,
    /// Features, separated by commas.
    #[arg(short = 'O', long, value_name = "LIST")]
    pub features: Vec<String>,
    /// Additional file name extensions of cold data, separated by commas.
    #[arg(short = 'e', long, value_name = "LIST", alias = "errors")]
    pub cold_extensions: Vec<String>,
    /// Directories can compare names without case (chattr +F): utf8, or utf8:strict, which refuses names that are not UTF-8.
    #[arg(short = 'C', long, value_name = "ENCODING")]
    pub casefold: Option<String>,
    /// Additional file name extensions of hot data, separated by commas.
    #[arg(short = 'E', long, value_name = "LIST", alias = "extended")]
    pub hot_extensions: Vec<String>,
    /// Fill the volume with the content of this directory, or with this tar archive (not compressed; - is standard input);
    /// mkfs.f2fs's debug level -d is not supported. The archive's ./ is the root; a stream's data are kept in TMPDIR, or
    /// /var/tmp, meanwhile.
    #[arg(short = 'd', long, value_name = "DIR|ARCHIVE|-")]
    pub from_dir: Option<PathBuf>,
    /// Make the image as small as what -d fills it with needs, with FREE of it free for users: a size, or a percentage
    /// of the image as in 10%; default none. Sizes are multiples of 2 MiB. The image gets its name once it is
    /// complete.
    #[arg(long, value_name = "FREE", num_args = 0..=1, require_equals = true, default_missing_value = "")]
    pub fit: Option<String>,
    /// Another device of the volume; up to 7. Mounts and commands name them again, in the same order: -o device=DEVICE.
    #[arg(short = 'c', long = "device", value_name = "DEVICE")]
    pub devices: Vec<PathBuf>,
    /// Overwrite an existing volume.
    #[arg(short, long, short_alias = 'F')]
    pub force: bool,
    /// Print nothing.
    #[arg(short, long)]
    pub quiet: bool,
    /// Segments of 2 MiB per section, the unit of GC; default 1.
    #[arg(short, long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub segments_per_section: Option<u32>,
    /// Sections per zone; default 1.
    #[arg(short = 'z', long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub sections_per_zone: Option<u32>,
    /// Percentage of the main area reserved for GC; 0 or none: the optimum.
    #[arg(short, long, value_name = "PERCENT", value_parser = percent)]
    pub overprovision: Option<f64>,
    /// Larger node bitmap, stored after the checkpoint's checksum.
    #[arg(short = 'i', long)]
    pub extended_node_bitmap: bool,
    /// Owner of the root directory, as in 1000:100; else the user and group that make the volume, or with -d the
    /// directory's.
    #[arg(short = 'R', long, value_name = "USER:GROUP")]
    pub root_owner: Option<String>,
    /// Bytes per sector: 512, 1024, 2048 or 4096; default: the device's.
    #[arg(short = 'w', long, value_name = "BYTES", value_parser = size::<u32>)]
    pub sector_size: Option<u32>,
    /// Do not discard the device's old content; the same as -t 0.
    #[arg(long)]
    pub nodiscard: bool,
    /// All times in the volume, in seconds since 1970; -1 is now.
    #[arg(
        short = 'T',
        long,
        value_name = "SECONDS",
        allow_negative_numbers = true
    )]
    pub timestamp: Option<i64>,
    /// Start with the checkpoint version of mkfs.f2fs -r instead of a random one.
    #[arg(short = 'r', long)]
    pub fixed_version: bool,
    /// Heap-based allocation: 0; 1 is not supported.
    #[arg(short = 'a', long, value_name = "0|1")]
    pub heap: Option<String>,
    /// Bytes in a block: 4096.
    #[arg(short, long, value_name = "BYTES")]
    pub block_size: Option<String>,
    /// Parse what the device holds, and fill the volume, in a process without rights over the host, the default, or with
    /// the caller's rights (off); also STEADFS_SANDBOX=off.
    #[arg(long, value_name = "on|off", value_parser = sandbox)]
    pub sandbox: Option<Sandbox>,
    #[command(flatten)]
    pub owners: Owners,
    #[command(flatten)]
    pub refused: RefusedF2fs,
}

/// Options of mkfs.f2fs that are refused with a reason.
#[derive(Debug, clap::Args)]
pub struct RefusedF2fs {
    #[arg(short = 'g', hide = true)]
    pub defaults: Option<String>,
    #[arg(short = 'm', hide = true)]
    pub zoned: bool,
    #[arg(short = 'S', hide = true)]
    pub sparse: bool,
    #[arg(short = 'H', hide = true)]
    pub hint: Option<String>,
}

/// Whether the arguments are `format` with `-t f2fs`, whose options are mkfs.f2fs's. A letter that takes a value in
/// only one of the two programs counts as one without: an `f2fs` after it cannot be the kind then.
pub fn is_f2fs(words: &[OsString]) -> bool {
    const ALONE: &str = "cDFfijKmnqrSvV";
    let words: Vec<_> = words
        .iter()
        .skip(1)
        .map(|word| word.to_string_lossy())
        .collect();
    if words.first().is_none_or(|word| word != "format") {
        return false;
    }
    let next = words.iter().skip(1).map(Some).chain([None]);
    let mut pairs = words
        .iter()
        .zip(next)
        .skip(1)
        .take_while(|(word, _)| *word != "--");
    pairs.any(|(word, next)| {
        let value = match word.strip_prefix("--") {
            Some(long) => long
                .strip_prefix("type")
                .map(|rest| rest.trim_start_matches('=')),
            None => word.strip_prefix('-').and_then(|letters| {
                letters
                    .trim_start_matches(|c: char| ALONE.contains(c))
                    .strip_prefix('t')
            }),
        };
        match value {
            Some("") => next.is_some_and(|next| next == "f2fs"),
            Some(value) => value.trim_start_matches('=') == "f2fs",
            None => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_found_wherever_it_stands() {
        let is = |line: &str| is_f2fs(&line.split(' ').map(OsString::from).collect::<Vec<_>>());
        for line in [
            "steadfs format -t f2fs a.img",
            "steadfs format a.img 64M -tf2fs",
            "steadfs format -fqt f2fs a.img -t 0",
            "steadfs format -i -t 1 --type f2fs a.img",
            "steadfs format --type=f2fs a.img",
            "steadfs format -t=f2fs a.img",
        ] {
            assert!(is(line), "{line}");
        }
        for line in [
            "steadfs format f2fs",
            "steadfs format -t ext4 f2fs",
            "steadfs format -Lt f2fs",
            "steadfs format -- -t f2fs",
            "steadfs mount -t f2fs a.img mnt",
            "steadfs",
        ] {
            assert!(!is(line), "{line}");
        }
    }
}
