//! Whether a volume can be mounted for writing, for reading, or not at all.

use steadfs_base::Corruption;
use steadfs_block::Queue;
use steadfs_vfs::{FsError, Result};

use crate::disk::Superblock;
use crate::disk::features::{Incompat, MountMode, RoCompat, mount_mode};
use crate::disk::superblock::JournalPlace;
use crate::external_journal::JournalArea;
use crate::options::MountOptions;
use crate::report::MountReport;

/// Why a volume is refused whose journal is not given.
pub(crate) const ELSEWHERE: &str = "the journal is on another device and has changes to replay; -o journal_path= names \
     that device, -o ro,noload reads the volume without them";

/// Features of images that are read-only by design.
const MADE_TO_BE_READ: RoCompat = RoCompat::READONLY.union(RoCompat::SHARED_BLOCKS);

/// Why the volume can only be read, a phrase for each reason; empty if it can be written.
pub(crate) fn why_only_readable(sb: &Superblock, options: &MountOptions) -> Vec<String> {
    let mut why = Vec::new();
    let mut features = sb.features();
    let made = features
        .ro_compat
        .without(features.ro_compat.without(MADE_TO_BE_READ));
    features.ro_compat = features.ro_compat.without(MADE_TO_BE_READ);
    let made: Vec<_> = made.names().collect();
    if !made.is_empty() {
        why.push(format!("made to be read only ({})", made.join(", ")));
    }
    if let MountMode::ReadOnly { because } = mount_mode(features) {
        let names = because.join(", ");
        why.push(format!("features not supported for writing: {names}"));
    }
    if is_elsewhere(sb, options) {
        why.push("its journal is on another device, which journal_path= names".to_owned());
    }
    why
}

/// Refuses the mount, or reports why it must be read-only.
pub(crate) fn choose_mode(
    sb: &Superblock,
    options: &MountOptions,
    device_read_only: bool,
    report: &mut MountReport,
) -> Result<()> {
    if let MountMode::Refused { features } = mount_mode(sb.features()) {
        let names = features.join(", ");
        return Err(FsError::BadOption(format!("unsupported features: {names}")));
    }
    if let Some((number, _)) = sb.encoding()
        && sb.geometry().encoding.is_none()
    {
        return Err(FsError::BadOption(format!(
            "the names of casefolded directories have an unknown encoding (s_encoding {number})"
        )));
    }
    let is_dirty = sb.features().incompat.contains(Incompat::NEEDS_RECOVERY);
    if is_elsewhere(sb, options) && is_dirty && !options.no_replay {
        return Err(FsError::BadOption(ELSEWHERE.to_owned()));
    }
    let why = why_only_readable(sb, options);
    options.common.check_mode(&why, device_read_only)?;
    report.read_only_because = why;
    Ok(())
}

/// Whether the volume's journal is on another device, which is not given.
pub(crate) fn is_elsewhere(sb: &Superblock, options: &MountOptions) -> bool {
    matches!(sb.journal(), JournalPlace::External(_)) && options.external_journal.is_none()
}

/// Refuses a volume that is longer than its device. `external`: where an external journal follows it.
pub(crate) fn check_size(
    sb: &Superblock,
    queue: &Queue,
    external: Option<JournalArea>,
) -> Result<()> {
    let geo = sb.geometry();
    let there = external.map_or(queue.geometry().size, |area| area.volume_bytes);
    let needed = geo.blocks_count.checked_mul(geo.block_size.bytes_u64());
    if needed.is_none_or(|n| n > there) {
        let what = format!(
            "the volume has {} blocks of {} bytes, the device only {} bytes",
            geo.blocks_count,
            geo.block_size.bytes(),
            there
        );
        return Err(Corruption::new(what).into());
    }
    Ok(())
}
