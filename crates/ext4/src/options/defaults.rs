//! Default mount options in the superblock (`tune2fs -o`, `tune2fs -E mount_opts=`). Options of the mount override
//! them.

use steadfs_vfs::names::printable;
use steadfs_vfs::options::{item, items};

use super::{MountOptions, TABLE};

/// `s_default_mount_opts`: bits (`EXT4_DEFM_*` of the ext4 disk layout) and their options, without those that are
/// always on or have no effect here (1: debug, 4: user_xattr, 8: acl, 0x10: uid16, 0x200: block_validity).
const BITS: [(u32, &str); 4] = [
    (0x2, "grpid"),
    (0x100, "nobarrier"),
    (0x400, "discard"),
    (0x800, "nodelalloc"),
];
/// The bits of the journal's mode, and its modes.
const DATA: u32 = 0x60;
const DATA_MODES: [(u32, &str); 3] = [
    (0x20, "data=journal"),
    (0x40, "data=ordered"),
    (0x60, "data=writeback"),
];

/// The options given at the mount, in order. Ignored by comparisons: two lists with the same effect are equal.
#[derive(Clone, Debug, Default)]
pub struct Asked(Vec<(String, Option<String>)>);

impl Asked {
    pub(super) fn push(&mut self, name: &str, value: Option<&str>) {
        let item = (name.to_owned(), value.map(ToOwned::to_owned));
        self.0.retain(|other| *other != item);
        self.0.push(item);
    }
}

impl PartialEq for Asked {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Asked {}

impl MountOptions {
    /// These options over those of a superblock with these `s_default_mount_opts` and `s_mount_opts`. Also returns why
    /// some of the superblock's are ignored, a sentence for each.
    pub(crate) fn over(&self, bits: u32, text: &str) -> (Self, Vec<String>) {
        let set = BITS.iter().filter(|(bit, _)| bits & bit != 0);
        let mode = DATA_MODES.iter().filter(|(mode, _)| bits & DATA == *mode);
        let defaults: Vec<&str> = set.chain(mode).map(|&(_, option)| option).collect();
        let mut new = self.clone();
        let mut passed = Vec::new();
        for (name, value) in items(&defaults.join(",")).chain(items(text)) {
            let why = match new.put(name, value) {
                Ok(true) => match TABLE.no_effect_because(name, value) {
                    None => continue,
                    Some(why) => format!("option {}: has no effect: {why}", item(name, value)),
                },
                Ok(false) => format!("option {name}: unknown"),
                Err(error) => error.to_string(),
            };
            // The text comes from the superblock and may hold any characters.
            passed.push(printable(why.as_bytes()));
        }
        for (name, value) in &self.asked.0 {
            // It was valid at the mount.
            let _ = new.put(name, value.as_deref());
        }
        // The superblock cannot set options that mount(8) handles for every file system.
        let (common, own) = (&mut new.common, &self.common);
        common.read_only = own.read_only;
        (common.sync, common.dirsync) = (own.sync, own.dirsync);
        (common.atime, common.nodiratime) = (own.atime, own.nodiratime);
        new.no_replay = self.no_replay;
        match new.validate() {
            Ok(()) => (new, passed),
            Err(error) => {
                passed.push(error.to_string());
                (self.clone(), passed)
            }
        }
    }
}
