//! The options that ext4 and f2fs have in common: those of mount(8), and of files whatever the format.

use std::marker::PhantomData;

use super::Section::{Files, Mount};
use super::Shown::{Always, Changed};
use super::{Entry, Shown, choice, number};
use crate::{FsError, Result};

/// When reading a file updates the time of its last access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// `relatime`: if it is not newer than the last change, or is a day old. Reads that the kernel serves from its page
    /// cache do not reach the server.
    #[default]
    Relative,
    /// `noatime`.
    Never,
}

/// `errors=`: what the volume does when it finds a corrupt structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The call fails, the volume stays writable.
    #[default]
    Continue,
    /// The volume becomes read-only.
    RemountReadOnly,
}

/// The values of `errors=`.
pub const ERRORS: &[(&str, OnError)] = &[
    ("continue", OnError::Continue),
    ("remount-ro", OnError::RemountReadOnly),
];

/// Parses the value of `errors=`.
///
/// # Errors
/// The predicate of a sentence about the value.
pub fn parse_errors(value: &str) -> Result<OnError, String> {
    if value == "panic" {
        return Err("a program cannot halt the machine; use errors=remount-ro".to_owned());
    }
    choice(value, ERRORS)
}

/// The options that ext4 and f2fs have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CommonOptions {
    /// `ro`: no call changes anything. ext4's journal is still replayed if the device can be written.
    pub read_only: bool,
    /// For programs that only read: metadata that reading can do without may be corrupt or missing. Needs `read_only`.
    pub salvage: bool,
    /// `sync`: every change is durable before its call returns.
    pub sync: bool,
    /// `dirsync`: every change of a directory is durable before its call returns.
    pub dirsync: bool,
    /// `noatime`, `relatime`.
    pub atime: Atime,
    /// `nodiratime`: reading a directory does not update its access time.
    pub nodiratime: bool,
    /// `user_xattr`: `user.*` attributes are offered. `None`: by default.
    pub user_xattr: Option<bool>,
    /// `acl`: POSIX access control lists are offered. `None`: by default.
    pub acl: Option<bool>,
    /// `resuid=`: the user who may use the reserved blocks.
    pub resuid: Option<u32>,
    /// `resgid=`: the group that may use the reserved blocks.
    pub resgid: Option<u32>,
    /// `usrquota`: limits of users are enforced.
    pub user_quota: bool,
    /// `grpquota`: limits of groups are enforced.
    pub group_quota: bool,
    /// `prjquota`: limits of projects are enforced. Refused on a volume without project ids, as in Linux.
    pub project_quota: bool,
}

impl CommonOptions {
    /// Whether a volume can be mounted so that can only be read for the reasons `why`, or whose device is read-only.
    ///
    /// # Errors
    /// `OnlyReadable`, `ReadOnly`: a mount for writing is requested.
    pub fn check_mode(&self, why: &[String], device_read_only: bool) -> Result<()> {
        if self.read_only {
            return Ok(());
        }
        match device_read_only {
            _ if !why.is_empty() => Err(FsError::OnlyReadable(why.join("; "))),
            true => Err(FsError::ReadOnly),
            false => Ok(()),
        }
    }

    /// Whether limits are enforced: of users, groups, projects.
    pub fn limits(&self) -> [bool; 3] {
        [self.user_quota, self.group_quota, self.project_quota]
    }

    /// A warning about limits that options ask for and the volume, with these quota files, does not have.
    pub fn warn_of_missing_limits(&self, files: [bool; 3]) -> Option<String> {
        let names = ["usrquota", "grpquota", "prjquota"];
        let asked = self.limits();
        let missing: Vec<_> = (0..names.len())
            .filter(|&n| asked[n] && !files[n])
            .map(|n| names[n])
            .collect();
        (!missing.is_empty()).then(|| {
            let missing = missing.join(", ");
            format!("option {missing}: without effect, as the volume has no such quota file (feature quota)")
        })
    }
}

/// Settings that include the common options.
pub trait HasCommon {
    /// When `user_xattr` and `acl` are shown. ext4 and f2fs differ in it in Linux, too.
    const ATTRIBUTES_SHOWN: Shown;
    /// The common options.
    fn common(&self) -> &CommonOptions;
    /// The common options, to change them.
    fn common_mut(&mut self) -> &mut CommonOptions;
}

/// The values of `jqfmt=`: formats of quota files with names.
pub const QUOTA_FORMATS: &[(&str, ())] = &[("vfsold", ()), ("vfsv0", ()), ("vfsv1", ())];
const ID_MAX: u32 = u32::MAX - 1;

/// The word that stands for a setting with two values.
pub fn word(chosen: bool, yes: &str, no: &str) -> Option<String> {
    Some(if chosen { yes } else { no }.to_owned())
}

/// The common options of the settings `T`.
pub struct Common<T>(PhantomData<T>);

impl<T: HasCommon + 'static> Common<T> {
    /// The entries of the table.
    pub const ENTRIES: &'static [Entry<T>] = &[
        Entry::flag("ro", |o: &mut T| o.common_mut().read_only = true)
            .help(Mount, "read-only or read-write")
            .current(Always, |o| word(o.common().read_only, "ro", "rw")),
        Entry::flag("rw", |o: &mut T| o.common_mut().read_only = false).also(),
        Entry::flag("sync", |o: &mut T| o.common_mut().sync = true)
            .help(
                Mount,
                "changes are durable before their call returns: all, none, or those of directories",
            )
            .current(Changed, |o| word(o.common().sync, "sync", "async")),
        Entry::flag("async", |o: &mut T| o.common_mut().sync = false).also(),
        Entry::flag("dirsync", |o: &mut T| o.common_mut().dirsync = true)
            .also()
            .current(Changed, |o| o.common().dirsync.then(|| "dirsync".into())),
        Entry::flag("relatime", |o: &mut T| {
            o.common_mut().atime = Atime::Relative
        })
        .help(
            Mount,
            "access times are updated if older than the last change or a day, or never",
        )
        .current(Always, |o| {
            word(o.common().atime == Atime::Never, "noatime", "relatime")
        }),
        Entry::flag("atime", |o: &mut T| o.common_mut().atime = Atime::Relative).also(),
        Entry::flag("noatime", |o: &mut T| o.common_mut().atime = Atime::Never).also(),
        Entry::flag("diratime", |o: &mut T| o.common_mut().nodiratime = false)
            .help(Mount, "the same for directories")
            .current(Changed, |o| {
                word(o.common().nodiratime, "nodiratime", "diratime")
            }),
        Entry::flag("nodiratime", |o: &mut T| o.common_mut().nodiratime = true).also(),
        Entry::flag("user_xattr", |o: &mut T| {
            o.common_mut().user_xattr = Some(true)
        })
        .help(Files, "user.* attributes")
        .current(T::ATTRIBUTES_SHOWN, |o| {
            let off = o.common().user_xattr == Some(false);
            word(off, "nouser_xattr", "user_xattr")
        }),
        Entry::flag("nouser_xattr", |o: &mut T| {
            o.common_mut().user_xattr = Some(false)
        })
        .also(),
        // The kernel checks permissions by the lists, as the mount asked it to.
        Entry::flag("acl", |o: &mut T| o.common_mut().acl = Some(true))
            .help(Files, "POSIX access control lists")
            .current(T::ATTRIBUTES_SHOWN, |o| {
                word(o.common().acl == Some(false), "noacl", "acl")
            })
            .fixed(),
        Entry::flag("noacl", |o: &mut T| o.common_mut().acl = Some(false)).also(),
        Entry::value("resuid", "=UID", |o: &mut T, v| {
            number(v, 0..=ID_MAX).map(|id| o.common_mut().resuid = Some(id))
        })
        .help_with_default(
            Files,
            "the user and the group that may use the reserved blocks",
            "ext4: as the superblock says; f2fs: none",
        )
        .current(Changed, |o| {
            o.common().resuid.map(|id| format!("resuid={id}"))
        }),
        Entry::value("resgid", "=GID", |o: &mut T, v| {
            number(v, 0..=ID_MAX).map(|id| o.common_mut().resgid = Some(id))
        })
        .also()
        .current(Changed, |o| {
            o.common().resgid.map(|id| format!("resgid={id}"))
        }),
        Entry::flag("usrquota", |o: &mut T| o.common_mut().user_quota = true)
            .help(
                Files,
                "limits of users, groups or projects are enforced, on volumes with the feature quota",
            )
            .current(Changed, |o| {
                o.common().user_quota.then(|| "usrquota".into())
            }),
        Entry::flag("quota", |o: &mut T| o.common_mut().user_quota = true).also(),
        Entry::flag("grpquota", |o: &mut T| o.common_mut().group_quota = true)
            .also()
            .current(Changed, |o| {
                o.common().group_quota.then(|| "grpquota".into())
            }),
        Entry::flag("prjquota", |o: &mut T| o.common_mut().project_quota = true)
            .also()
            .current(Changed, |o| {
                o.common().project_quota.then(|| "prjquota".into())
            }),
        Entry::flag("noquota", |o: &mut T| {
            let common = o.common_mut();
            (
                common.user_quota,
                common.group_quota,
                common.project_quota,
            ) = (false, false, false);
        })
        .also(),
        Entry::already("nolazytime"),
        Entry::already("nostrictatime"),
        Entry::no_effect("norelatime", "Linux has relatime in its place, too"),
        Entry::no_effect("inlinecrypt", "encrypted files have no key here"),
        Entry::refused(
            "strictatime",
            "reads served by the kernel's page cache are not seen; use relatime",
        ),
        Entry::refused("test_dummy_encryption", "is for testing kernels"),
    ];
}
