//! The block of multiple-mount protection.

use std::fmt::{self, Display, Formatter};

use serde::Serialize;
use steadfs_base::DevBlock;
use steadfs_block::Queue;

use crate::disk::Superblock;
use crate::disk::mmp::{Usage, Writer};
use crate::mmp;

/// Multiple-mount protection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MountProtection {
    /// Its block.
    pub block: u64,
    /// Seconds between two updates.
    pub update_interval: u16,
    /// Why the block cannot be used, if so.
    pub error: Option<String>,
    /// Its content.
    #[serde(flatten)]
    pub state: Option<ProtectionState>,
}

/// Content of the block.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProtectionState {
    /// `clean`; `fsck`: a program of e2fsprogs writes the volume; `mounted`: a node has it mounted, or has ended without
    /// unmounting it; `unknown`: no known program writes this sequence number.
    pub usage: &'static str,
    /// Sequence number.
    pub sequence: u32,
    /// When the block was written.
    pub updated: i64,
    /// The node that wrote it.
    pub node: String,
    /// The device, as that node names it.
    pub device: String,
    /// Seconds after which a node that waits considers the writer gone.
    pub check_interval: u16,
}

impl MountProtection {
    pub(super) fn read(queue: &Queue, sb: &Superblock, block: DevBlock) -> Self {
        let read = mmp::read(queue, sb.geometry(), block);
        let (state, error) = match read {
            Ok((mmp, _)) => (Some(mmp), None),
            Err(error) => (None, Some(error.to_string())),
        };
        Self {
            block: block.0,
            update_interval: sb.mmp_update_interval(),
            error,
            state: state.map(|mmp| ProtectionState {
                usage: match mmp.usage() {
                    Usage::Clean => "clean",
                    Usage::Fsck => "fsck",
                    Usage::Mounted => "mounted",
                    Usage::Unknown => "unknown",
                },
                sequence: mmp.seq(),
                updated: mmp.time(),
                node: mmp.node_name().into_owned(),
                device: mmp.device_name().into_owned(),
                check_interval: mmp.check_interval(),
            }),
        }
    }
}

impl Display for MountProtection {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (block, every) = (self.block, self.update_interval);
        write!(f, "block {block}, updated every {every} s, ")?;
        let state = match (&self.state, &self.error) {
            (Some(state), _) => state,
            (None, error) => return write!(f, "unusable: {}", error.as_deref().unwrap_or("")),
        };
        match state.usage {
            "clean" => write!(f, "clean, last written by ")?,
            "mounted" => write!(f, "in use (or not unmounted) by ")?,
            "fsck" => write!(f, "in use by a program of e2fsprogs on ")?,
            _ => write!(f, "unknown sequence {:#x} of ", state.sequence)?,
        }
        let writer = Writer {
            node: (&*state.node).into(),
            device: (&*state.device).into(),
            time: state.updated,
        };
        writer.fmt(f)
    }
}
