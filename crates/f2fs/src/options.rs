//! Mount options of f2fs, as mount(8) and the kernel's Documentation/filesystems/f2fs.rst name them.

use steadfs_vfs::options::{Entry, already, apply, choice, flag, items, refused, unknown, value};
use steadfs_vfs::{FsError, Result};

/// What reads do to access times. Nothing yet: volumes are only read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// `relatime`.
    #[default]
    Relative,
    /// `noatime`.
    Never,
}

/// `errors=`: what happens when damage is found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The call fails, the volume stays.
    #[default]
    Continue,
    /// Writing stops.
    RemountReadOnly,
}

/// Options of an f2fs volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// `ro`.
    pub read_only: bool,
    /// `norecovery`, `disable_roll_forward`: what fsync wrote after the checkpoint is not looked for.
    pub no_recovery: bool,
    /// `user_xattr`: attributes of users are offered.
    pub user_xattr: Option<bool>,
    /// `acl`: POSIX access control lists are offered.
    pub acl: Option<bool>,
    /// `errors=`.
    pub errors: OnError,
    /// `noatime`, `relatime`.
    pub atime: Atime,
    /// `nodiratime`.
    pub nodiratime: bool,
}

const WRITING: &str = "is about writing, and f2fs volumes can only be read yet";
const NO_QUOTA: &str = "quota limits are not enforced";
const GONE: &str = "was removed from Linux; leave it out";
const TESTING: &str = "is for testing kernels";
const ON_ERROR: &[(&str, OnError)] = &[
    ("continue", OnError::Continue),
    ("remount-ro", OnError::RemountReadOnly),
];

/// Every option of f2fs that Linux knows.
pub const TABLE: &[Entry<MountOptions>] = &[
    flag("ro", |o| o.read_only = true),
    flag("rw", |o| o.read_only = false),
    flag("norecovery", |o| o.no_recovery = true),
    flag("disable_roll_forward", |o| o.no_recovery = true),
    flag("user_xattr", |o| o.user_xattr = Some(true)),
    flag("nouser_xattr", |o| o.user_xattr = Some(false)),
    flag("acl", |o| o.acl = Some(true)),
    flag("noacl", |o| o.acl = Some(false)),
    value("errors", set_errors),
    flag("noatime", |o| o.atime = Atime::Never),
    flag("atime", |o| o.atime = Atime::Relative),
    flag("relatime", |o| o.atime = Atime::Relative),
    flag("nodiratime", |o| o.nodiratime = true),
    flag("diratime", |o| o.nodiratime = false),
    already("async"),
    already("nolazytime"),
    already("nostrictatime"),
    already("noquota"),
    // What changes nothing for a volume that is only read, and mount lists commonly have.
    already("barrier"),
    already("nodiscard"),
    refused("sync", WRITING),
    refused("dirsync", WRITING),
    refused("lazytime", WRITING),
    refused("background_gc", WRITING),
    refused("gc_merge", WRITING),
    refused("nogc_merge", WRITING),
    refused("discard", WRITING),
    refused("discard_unit", WRITING),
    refused("active_logs", WRITING),
    refused("disable_ext_identify", WRITING),
    refused("inline_xattr", WRITING),
    refused("noinline_xattr", WRITING),
    refused("inline_xattr_size", WRITING),
    refused("inline_data", WRITING),
    refused("noinline_data", WRITING),
    refused("inline_dentry", WRITING),
    refused("noinline_dentry", WRITING),
    refused("flush_merge", WRITING),
    refused("noflush_merge", WRITING),
    refused("nobarrier", WRITING),
    refused("fastboot", WRITING),
    refused("extent_cache", WRITING),
    refused("noextent_cache", WRITING),
    refused("age_extent_cache", WRITING),
    refused("data_flush", WRITING),
    refused("reserve_root", WRITING),
    refused("reserve_node", WRITING),
    refused("resuid", WRITING),
    refused("resgid", WRITING),
    refused("mode", WRITING),
    refused("alloc_mode", WRITING),
    refused("fsync_mode", WRITING),
    refused("checkpoint", WRITING),
    refused("checkpoint_merge", WRITING),
    refused("nocheckpoint_merge", WRITING),
    refused("compress_algorithm", WRITING),
    refused("compress_log_size", WRITING),
    refused("compress_extension", WRITING),
    refused("nocompress_extension", WRITING),
    refused("compress_chksum", WRITING),
    refused("compress_mode", WRITING),
    refused("compress_cache", WRITING),
    refused("atgc", WRITING),
    refused("memory", WRITING),
    refused("nat_bits", WRITING),
    refused("io_bits", GONE),
    refused("heap", GONE),
    refused("no_heap", GONE),
    refused("whint_mode", GONE),
    refused("lookup_mode", "names are found by their hash and bytes"),
    refused("inlinecrypt", "encrypted files have no key here"),
    refused("quota", NO_QUOTA),
    refused("usrquota", NO_QUOTA),
    refused("grpquota", NO_QUOTA),
    refused("prjquota", NO_QUOTA),
    refused("usrjquota", NO_QUOTA),
    refused("grpjquota", NO_QUOTA),
    refused("prjjquota", NO_QUOTA),
    refused("offusrjquota", NO_QUOTA),
    refused("offgrpjquota", NO_QUOTA),
    refused("offprjjquota", NO_QUOTA),
    refused("jqfmt", NO_QUOTA),
    refused("fault_injection", TESTING),
    refused("fault_type", TESTING),
    refused("test_dummy_encryption", TESTING),
    refused(
        "strictatime",
        "reads served by the kernel's page cache are not seen; use relatime",
    ),
    refused("norelatime", "the other choice is noatime"),
];

fn set_errors(options: &mut MountOptions, value: &str) -> Result<(), String> {
    if value == "panic" {
        return Err("a program cannot halt the machine; use errors=remount-ro".to_owned());
    }
    options.errors = choice(value, ON_ERROR)?;
    Ok(())
}

impl MountOptions {
    /// The options in `list`, over the defaults.
    ///
    /// # Errors
    /// [`FsError::BadOption`], as [`MountOptions::set`], for unknown names and contradictions.
    pub fn parse(list: &str) -> Result<Self> {
        let mut options = Self::default();
        options.set_list(list)?;
        options.validate()?;
        Ok(options)
    }

    /// Applies one item. Returns whether the name is one of f2fs's options.
    ///
    /// # Errors
    /// [`FsError::BadOption`] for a value that makes no sense or an option that is not offered.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<bool> {
        apply(TABLE, self, name, value)
    }

    /// Contradictions between options, once all are set.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming the options that do not go together.
    pub fn validate(&self) -> Result<()> {
        if self.no_recovery && !self.read_only {
            return Err(FsError::BadOption(
                "option norecovery: needs ro, for a volume is only written after its recovery"
                    .to_owned(),
            ));
        }
        Ok(())
    }

    /// These options changed by a remount's `list`.
    ///
    /// # Errors
    /// [`FsError::BadOption`] also for a change that needs a new mount; nothing is changed then.
    pub fn remounted(&self, list: &str) -> Result<Self> {
        let mut new = self.clone();
        new.set_list(list)?;
        new.validate()?;
        let fixed = [
            ("rw", self.read_only != new.read_only),
            ("norecovery", self.no_recovery != new.no_recovery),
        ];
        match fixed.iter().find(|(_, changed)| *changed) {
            None => Ok(new),
            Some((name, _)) => Err(FsError::BadOption(format!(
                "option {name}: cannot change while mounted; unmount and mount again"
            ))),
        }
    }

    fn set_list(&mut self, list: &str) -> Result<()> {
        for (name, value) in items(list) {
            if !self.set(name, value)? {
                return Err(unknown(name, TABLE.iter().map(|entry| entry.name)));
            }
        }
        Ok(())
    }

    /// The options as /proc/mounts shows them: `ro` or `rw`, then what differs from the default.
    pub fn show(&self) -> String {
        let mut out = String::from(if self.read_only { "ro" } else { "rw" });
        let mut word = |shown: bool, name: &str| {
            if shown {
                out.push(',');
                out.push_str(name);
            }
        };
        word(self.atime == Atime::Never, "noatime");
        word(self.atime == Atime::Relative, "relatime");
        word(self.nodiratime, "nodiratime");
        word(self.no_recovery, "norecovery");
        word(self.user_xattr == Some(false), "nouser_xattr");
        word(self.acl == Some(false), "noacl");
        word(self.errors == OnError::RemountReadOnly, "errors=remount-ro");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let options = MountOptions::parse("ro,noatime,norecovery,noacl,errors=remount-ro").unwrap();
        let shown = options.show();
        assert_eq!(shown, "ro,noatime,norecovery,noacl,errors=remount-ro");
        assert_eq!(MountOptions::parse(&shown).unwrap(), options);
        for (list, why) in [
            ("norecovery", "needs ro"),
            ("ro,fsync_mode=posix", "can only be read"),
            ("ro,noatme", "did you mean noatime"),
            ("errors=panic", "halt the machine"),
        ] {
            let error = MountOptions::parse(list).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        assert!(options.remounted("rw,relatime").is_err());
        assert_eq!(
            options.remounted("relatime").unwrap().atime,
            Atime::Relative
        );
    }
}
