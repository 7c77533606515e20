//! A volume and its journal on another device.

use std::io;
use std::sync::Arc;

use steadfs_block::{Device, MemDevice, Queue, QueueOptions};
use steadfs_ext4::format::{
    FormatOptions, NamedJournal, format_journal, image, take_journal, unused_journal,
};
use steadfs_ext4::{JournalArea, MountOptions};
use steadfs_workload::{Format, Recovery};

use super::{check, open, work};
use crate::crash::{Subject, ToolReplay};
use crate::device::Image;

const VOLUME_BYTES: u64 = 4 << 20;
const JOURNAL_BYTES: u64 = 1 << 20;
const BLOCK_SIZE: u32 = 1024;

/// Makes the volume. e2fsck does not judge it: it takes the journal from another device only.
pub(super) fn subject() -> io::Result<Subject> {
    let image = formatted().map_err(|error| io::Error::other(error.to_string()))?;
    let mount = MountOptions {
        external_journal: Some(JournalArea {
            at: VOLUME_BYTES,
            volume_bytes: VOLUME_BYTES,
        }),
        ..MountOptions::default()
    };
    Ok(Subject {
        name: "ext4-external-1k".to_owned(),
        image,
        format: Format {
            block_size: BLOCK_SIZE,
            extents: true,
            punch_ranges: true,
            shift_ranges: false,
            wide_times: true,
            long_values: false,
            cluster_blocks: 1,
            recovery: Recovery::Prefix,
        },
        open: Arc::new(move |device| open(device, &mount, |_| {})),
        check: Some(Arc::new(check)),
        tool: None,
        atomic_unit: 512,
        parts: &[0, VOLUME_BYTES],
        small: false,
        work: Some(work),
        tool_replays: ToolReplay::Nothing,
        fixed_inodes: true,
    })
}

fn formatted() -> Result<Image, steadfs_ext4::format::FormatError> {
    // Every run formats the same volume.
    let options = |last| {
        let mut uuid = *b"steadfs external";
        uuid[15] = last;
        FormatOptions {
            block_size: Some(BLOCK_SIZE),
            inodes: Some(256),
            uuid: Some(uuid),
            hash_seed: Some(uuid),
            ..FormatOptions::default()
        }
    };
    let journal = Arc::new(MemDevice::new(JOURNAL_BYTES));
    let queue = Queue::new(
        Arc::clone(&journal) as Arc<dyn Device>,
        QueueOptions::default(),
    );
    let as_journal = FormatOptions {
        inodes: None,
        features: "journal_dev".to_owned(),
        ..options(1)
    };
    format_journal(&queue, JOURNAL_BYTES, &as_journal)?;
    let named = NamedJournal {
        uuid: unused_journal(&queue)?.uuid,
        device: 0,
        block_size: BLOCK_SIZE,
    };
    let as_volume = FormatOptions {
        external_journal: Some(named),
        ..options(2)
    };
    let volume = image(VOLUME_BYTES, &as_volume)?;
    take_journal(&queue, options(2).uuid.unwrap_or_default())?;
    Ok(Image::from_bytes(
        &[volume.to_bytes(), journal.to_bytes()].concat(),
    ))
}
