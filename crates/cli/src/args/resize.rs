//! Arguments of `steadfs resize`.

use std::path::PathBuf;

use super::{Sandbox, sandbox};

/// Change the size of an f2fs volume that is not mounted.
///
/// The volume is checked first, and only a clean one is changed. Until everything is staged it keeps its old size; interrupted
/// later, no program opens it, and another `steadfs resize` without SIZE finishes. An image file that is shorter than SIZE is
/// extended, and one that the volume filled is cut off behind a smaller volume. A smaller volume, and one with -s, keeps its tables: only
/// its end moves. Sizes of ext volumes are changed by resize2fs(8).
#[derive(Debug, clap::Args)]
pub struct Resize {
    /// Image file or block device, or IMAGE@PARTITION.
    pub volume: PathBuf,
    /// The new size in blocks of 4096 bytes, or with a unit, such as 8G [default: that of the device or file].
    pub size: Option<String>,
    /// The new size in sectors of 512 bytes, as in resize.f2fs.
    #[arg(short, long, value_name = "SECTORS", conflicts_with = "size")]
    pub target_sectors: Option<String>,
    /// Keep the tables as they are, which limits how far a volume grows (resize.f2fs -s).
    #[arg(short, long)]
    pub safe: bool,
    /// Options for opening the volume, such as offset=1M or partition=2; separated by commas.
    #[arg(short = 'o', long = "options", value_name = "LIST")]
    pub options: Vec<String>,
    /// Parse the volume in a process without rights over the host, the default, or with the caller's rights (off); also
    /// STEADFS_SANDBOX=off.
    #[arg(long, value_name = "on|off", value_parser = sandbox)]
    pub sandbox: Option<Sandbox>,
}
