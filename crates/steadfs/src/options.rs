//! The option list of a mount: options of mount(8) and fusermount3(1), our own, and those of the volume's file system.

mod help;
#[cfg(feature = "mount")]
mod remount;
mod table;

use std::path::{Path, PathBuf};

use steadfs_block::DeviceModel;
use steadfs_ext4::{Atime, MountOptions, OPTION_TABLE as EXT4_TABLE};
use steadfs_f2fs::OPTION_TABLE as F2FS_TABLE;
use steadfs_vfs::options::{Entry, Refusals, item, items, unknown};
use steadfs_vfs::{FsError, Result};

use crate::io_options::{IO_TABLE, IoOptions};
use crate::memory::command_cache_size;
use crate::probe::{Kind, probe};
use table::TABLE;

/// How the device is read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IoEngine {
    /// io_uring where the host allows it, else threads.
    #[default]
    Auto,
    /// io_uring, or the mount fails.
    Uring,
    /// A pool of threads with pread(2) and pwrite(2).
    Threads,
}

/// Where the changes of a volume are kept that is not written itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Overlay {
    /// In memory: they end with the process.
    Memory,
    /// In this file.
    File(PathBuf),
}

/// How requests come from the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FuseTransport {
    /// FUSE-over-io_uring where the kernel allows it, else the device.
    #[default]
    Auto,
    /// FUSE-over-io_uring, or the mount fails.
    Uring,
    /// Reads and writes of /dev/fuse.
    Dev,
}

/// What the kernel enforces at the mount point.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountFlags {
    /// `nosuid`: set-user-ID, set-group-ID and file capabilities have no effect.
    pub nosuid: bool,
    /// `nodev`: device nodes cannot be opened.
    pub nodev: bool,
    /// `noexec`: programs cannot be run.
    pub noexec: bool,
    /// `noatime`, also a flag of the mount.
    pub noatime: bool,
    /// `nodiratime`, also a flag of the mount.
    pub nodiratime: bool,
}

/// The errors of a list for volumes of one kind that are valid for the other kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Misfits {
    ext4: Refusals,
    f2fs: Refusals,
}

impl Misfits {
    fn of(&self, kind: Kind) -> &Refusals {
        match kind {
            Kind::F2fs => &self.f2fs,
            Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => &self.ext4,
        }
    }
}

/// All options of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Options of ext2, ext3 and ext4.
    pub ext4: MountOptions,
    /// Options of f2fs.
    pub f2fs: steadfs_f2fs::MountOptions,
    /// The errors of the list for one kind of volume.
    misfits: Misfits,
    /// What the kernel enforces.
    pub flags: MountFlags,
    /// `partition=`: the partition of the disk that is the volume's device.
    pub partition: Option<String>,
    /// `offset=`: where on the device the volume begins, in bytes.
    pub offset: u64,
    /// `sizelimit=`: the size of the volume's part of the device in bytes; `None`: up to the end.
    pub size_limit: Option<u64>,
    /// `overlay=`: the device is only read, and all changes go there.
    pub overlay: Option<Overlay>,
    /// `cache_size=`: memory of the caches in bytes; `None`: by the host's memory.
    pub cache_size: Option<u64>,
    /// `io_engine=`.
    pub io_engine: IoEngine,
    /// `buffered`: I/O goes through the host's page cache; else around it (`direct`).
    pub buffered: bool,
    /// The options of the I/O scheduler.
    pub io: IoOptions,
    /// `device_model=`: for tests, the device is slowed down to this model.
    pub device_model: Option<DeviceModel>,
    /// `fuse_transport=`.
    pub fuse_transport: FuseTransport,
    /// `control`: the hidden directory `.steadfs` exists.
    pub control: bool,
    /// `allow_other`: other users may use the mount; `None`: if root mounts.
    pub allow_other: Option<bool>,
    /// `fakeroot`: callers have root's permissions; this user and group own what they create.
    pub fakeroot: Option<(u32, u32)>,
    /// `foreground`: the command stays until the volume is unmounted.
    pub foreground: bool,
    /// `sandbox=on`: the server is a process without rights over the host.
    pub sandbox: bool,
    /// `takeover=on`: all calls are recorded outside the server, so that another one can continue a writable mount.
    pub takeover: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ext4: MountOptions::default(),
            f2fs: steadfs_f2fs::MountOptions::default(),
            misfits: Misfits::default(),
            flags: MountFlags::default(),
            partition: None,
            offset: 0,
            size_limit: None,
            overlay: None,
            cache_size: None,
            io_engine: IoEngine::Auto,
            buffered: false,
            io: IoOptions::default(),
            device_model: None,
            fuse_transport: FuseTransport::Auto,
            control: true,
            allow_other: None,
            fakeroot: None,
            foreground: false,
            sandbox: true,
            takeover: false,
        }
    }
}

/// Smallest cache a mount works with.
pub const MIN_CACHE_SIZE: u64 = 8 << 20;
/// Offsets are multiples of this: the smallest sector size.
pub const SECTOR: u64 = 512;

/// Whether an item is for other programs: mount(8) reserves `x-…` and `X-…` for them.
///
/// # Errors
/// [`FsError::BadOption`] for `x-mount.…`, which only mount(8) can do.
fn is_for_others(name: &str) -> Result<bool> {
    if name.starts_with("x-mount.") || name.starts_with("X-mount.") {
        let why = "is done by mount(8); use mount -t steadfs";
        return Err(FsError::BadOption(format!("option {name}: {why}")));
    }
    Ok(name.starts_with("x-") || name.starts_with("X-"))
}

impl Options {
    /// The options in `list`, as `-o` takes them.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming all options that are unknown (with the nearest one there is), not offered (with
    /// the reason), or contradict another.
    pub fn parse(list: &str) -> Result<Self> {
        let (options, mut refused) = Self::read(list);
        options.refuse_unfit(&mut refused);
        refused.into_result().map(|()| options)
    }

    /// As [`Options::parse`], for a command that only reads: `ro` is added, so options that require it are valid.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub fn parse_to_read(list: &str) -> Result<Self> {
        Self::parse(&format!("{list},ro"))
    }

    /// As [`Options::parse`], for the volume at `path`: an error also lists the options that are invalid for its kind.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub fn parse_for(list: &str, path: &Path) -> Result<Self> {
        Self::parse_by(list, |options| probe(path, options).ok())
    }

    /// As [`Options::parse_for`]; `kind` is called with a refused list only, to find the volume's kind.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub fn parse_by(list: &str, kind: impl FnOnce(&Self) -> Option<Kind>) -> Result<Self> {
        let (options, mut refused) = Self::read(list);
        let mut all = refused.clone();
        options.refuse_unfit(&mut refused);
        if !refused.is_empty()
            && let Some(kind) = kind(&options)
        {
            all.extend(options.misfits.of(kind));
            return all.into_result().map(|()| options);
        }
        refused.into_result().map(|()| options)
    }

    /// The options of `list` without effect on a volume of this kind (`None`: of any kind), grouped by reason.
    pub fn without_effect(list: &str, kind: Option<Kind>) -> Vec<String> {
        let mut reasons: Vec<(&str, Vec<String>)> = Vec::new();
        for (name, value) in items(list) {
            let ours = TABLE.no_effect_because(name, value);
            let ext4 = || EXT4_TABLE.no_effect_because(name, value);
            let f2fs = || F2FS_TABLE.no_effect_because(name, value);
            let why = match kind {
                Some(Kind::F2fs) => ours.or_else(f2fs),
                Some(_) => ours.or_else(ext4),
                None => ours.or_else(ext4).or_else(f2fs),
            };
            let Some(why) = why else { continue };
            let item = item(name, value);
            match reasons.iter_mut().find(|(reason, _)| *reason == why) {
                None => reasons.push((why, vec![item])),
                Some((_, same)) if same.contains(&item) => {}
                Some((_, same)) => same.push(item),
            }
        }
        let sentence = |(why, same): (&str, Vec<String>)| format!("{}: {why}", same.join(", "));
        reasons.into_iter().map(sentence).collect()
    }

    /// An option that names a device beside the one that the volume begins on, and the device.
    pub fn device_beside(&self) -> Option<(&'static str, &Path)> {
        let journal = self.ext4.journal_path.as_ref();
        let journal = journal.map(|path| ("journal_path", path.as_path()));
        let device = || Some(("device", self.f2fs.devices.first()?.as_path()));
        journal.or_else(device)
    }

    /// The files of this host that a volume at `path` is in: the base, an external journal, further devices, an
    /// overlay.
    #[cfg(feature = "mount")]
    pub(crate) fn files<'o>(&'o self, path: &'o Path) -> impl Iterator<Item = &'o Path> {
        let base = (!crate::nbd::is_uri(path)).then_some(path);
        let journal = self.ext4.journal_path.as_deref();
        let devices = self.f2fs.devices.iter().map(PathBuf::as_path);
        let overlay = match &self.overlay {
            Some(Overlay::File(file)) => Some(file.as_path()),
            Some(Overlay::Memory) | None => None,
        };
        base.into_iter()
            .chain(journal)
            .chain(devices)
            .chain(overlay)
    }

    /// The options in `list`, and the errors that do not depend on the volume.
    fn read(list: &str) -> (Self, Refusals) {
        let (mut options, mut refused) = Self::take(list);
        options.complete(&mut refused);
        (options, refused)
    }

    /// Derives what follows from other options, and refuses what contradicts them.
    fn complete(&mut self, refused: &mut Refusals) {
        self.flags.noatime = self.ext4.common.atime == Atime::Never;
        self.flags.nodiratime = self.ext4.common.nodiratime;
        if let Err(error) = self.ext4.validate() {
            self.misfits.ext4.push(error);
        }
        if let Err(error) = self.f2fs.validate() {
            self.misfits.f2fs.push(error);
        }
        refused.extend(&self.refuse_takeover());
        if self.fakeroot.is_some() {
            // Of files that callers could make root's.
            (self.flags.nosuid, self.flags.nodev) = (true, true);
            if self.allow_other == Some(true) {
                let why = "option fakeroot: others must not enter, as no permissions are checked; leave out allow_other";
                refused.push(FsError::BadOption(why.to_owned()));
            }
        }
        if self.partition.is_some() && (self.offset > 0 || self.size_limit.is_some()) {
            let why = "option partition: offset= and sizelimit= contradict it";
            refused.push(FsError::BadOption(why.to_owned()));
        }
        if self
            .offset
            .checked_add(self.size_limit.unwrap_or(0))
            .is_none()
        {
            refused.push(FsError::BadOption(
                "option sizelimit: ends past the largest offset there is".to_owned(),
            ));
        }
    }

    /// The options in `list` with what `change` changes, checked as a whole.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub(crate) fn built(list: &str, change: impl FnOnce(&mut Self)) -> Result<Self> {
        let (mut options, mut refused) = Self::take(list);
        change(&mut options);
        options.complete(&mut refused);
        options.refuse_unfit(&mut refused);
        refused.into_result().map(|()| options)
    }

    /// These options with what `change` changes of the mount, checked as a whole.
    ///
    /// # Errors
    /// As [`Options::parse`].
    #[cfg(feature = "mount")]
    pub(crate) fn changed(&self, change: impl FnOnce(&mut Self)) -> Result<Self> {
        let (mut options, mut refused) = (self.clone(), Refusals::default());
        change(&mut options);
        options.complete(&mut refused);
        refused.into_result().map(|()| options)
    }

    /// Why this mount could not be taken over, if it is to be.
    fn refuse_takeover(&self) -> Refusals {
        let mut refused = Refusals::default();
        let mut refuse = |why: &str| {
            refused.push(FsError::BadOption(format!("option takeover=on: {why}")));
        };
        if self.takeover && !self.sandbox {
            refuse("with sandbox=off there is no process that outlives the server");
        }
        if self.takeover && self.overlay == Some(Overlay::Memory) {
            refuse("with overlay=memory all changes end with the server; name a file");
        }
        if self.takeover && self.f2fs.atomic_write {
            refuse("what is written atomically is not recorded; leave out atomic_write");
        }
        if self.takeover && self.fuse_transport == FuseTransport::Uring {
            refuse("rings belong to one server; use fuse_transport=dev or auto");
        }
        refused
    }

    /// Applies the items of `list` one by one, without checking for contradictions.
    fn take(list: &str) -> (Self, Refusals) {
        let (mut options, mut refused) = (Self::default(), Refusals::default());
        for (name, value) in items(list) {
            refused.check(options.set(name, value));
        }
        (options, refused)
    }

    /// Refuses a list that is valid for no kind of volume.
    fn refuse_unfit(&self, refused: &mut Refusals) {
        if !self.misfits.ext4.is_empty() && !self.misfits.f2fs.is_empty() {
            refused.extend(&self.misfits.ext4);
        }
    }

    /// The names of all options that are not refused; so are `x-…` and `X-…`, which are for other programs.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let offered = |name: &&str| {
            let refused = [
                TABLE.find(name).map(Entry::is_refused),
                EXT4_TABLE.find(name).map(Entry::is_refused),
                F2FS_TABLE.find(name).map(Entry::is_refused),
            ];
            refused.contains(&Some(false)) || IO_TABLE.find(name).is_some()
        };
        Self::all_names().filter(offered)
    }

    fn all_names() -> impl Iterator<Item = &'static str> {
        let own = TABLE.names().chain(IO_TABLE.names());
        let f2fs = F2FS_TABLE.names().filter(|name| !is_ext4(name));
        own.chain(EXT4_TABLE.names()).chain(f2fs)
    }

    /// Whether users other than the mounting one have access, which is root or not.
    pub fn allow_other(&self, root: bool) -> bool {
        self.allow_other.unwrap_or(root && self.fakeroot.is_none())
    }

    /// For commands that use the volume briefly, without a mount: caches are small unless `cache_size=` is given.
    pub fn set_brief(&mut self) {
        self.cache_size.get_or_insert_with(command_cache_size);
    }

    /// Sets `ro` or `rw` for every kind of volume.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.ext4.common.read_only = read_only;
        self.f2fs.common.read_only = read_only;
    }

    /// For programs that only read and do not mount: metadata that reading can do without may be corrupt or missing.
    pub fn set_salvage(&mut self) {
        self.set_read_only(true);
        self.ext4.common.salvage = true;
        self.f2fs.common.salvage = true;
    }

    /// Whether the volume is only to be read.
    pub fn read_only(&self) -> bool {
        self.ext4.common.read_only
    }

    /// Checks that the list is valid for volumes of this kind.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming all options that are of another kind's only.
    pub(crate) fn fits(&self, kind: Kind) -> Result<()> {
        self.misfits.of(kind).clone().into_result()
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        if is_for_others(name)? || TABLE.apply(self, name, value)? || self.io.set(name, value)? {
            return Ok(());
        }
        let of_other = |kind: &str| FsError::BadOption(format!("option {name}: {kind} has none"));
        match (self.ext4.set(name, value), self.f2fs.set(name, value)) {
            (Ok(true), Ok(true)) => Ok(()),
            (Ok(true), f2fs) => {
                let error = f2fs.err().unwrap_or_else(|| of_other("f2fs"));
                self.misfits.f2fs.push(error);
                Ok(())
            }
            (ext4, Ok(true)) => {
                let error = ext4.err().unwrap_or_else(|| of_other("ext4"));
                self.misfits.ext4.push(error);
                Ok(())
            }
            // The table that has the name gives the reason.
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(false), Ok(false)) => Err(unknown(name, Self::all_names())),
        }
    }
}

fn is_ext4(name: &str) -> bool {
    EXT4_TABLE.find(name).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn good(list: &str) -> Options {
        Options::parse(list).unwrap_or_else(|error| panic!("{list}: {error}"))
    }

    #[track_caller]
    fn fails(list: &str, sentence: &str) {
        assert_eq!(
            Options::parse(list),
            Err(FsError::BadOption(sentence.to_owned()))
        );
    }

    #[test]
    fn lists_of_mount_8() {
        assert_eq!(good(""), Options::default());
        let fstab = good("defaults,noauto,nofail,_netdev,x-systemd.automount,comment=mine");
        assert_eq!(fstab, Options::default());
        let flags = good("user,exec,noatime").flags;
        assert!(flags.nosuid && flags.nodev && !flags.noexec && flags.noatime);
        let flags = good("nosuid,noexec,defaults").flags;
        assert_eq!(flags, MountFlags::default());
        assert!(good("ro,noload").ext4.no_replay);
        fails(
            "x-a,X-mount.subdir=b",
            "option X-mount.subdir: is done by mount(8); use mount -t steadfs",
        );
    }

    /// Every word of mount(8) and its library: taken, or refused with the reason; none is unknown.
    #[test]
    fn words_of_mount_8_are_known() {
        let taken = "defaults auto noauto user user=joe nouser users nousers owner noowner group nogroup _netdev \
                     nofail x-systemd.automount X-mine=1 comment=hi helper=x uhelper=udisks2 rw ro sync async \
                     dirsync silent loud nomand noiversion nolazytime nostrictatime relatime atime noatime diratime \
                     nodiratime exec noexec suid nosuid dev nodev offset=0 sizelimit=0 symfollow mand iversion \
                     lazytime norelatime loop seclabel";
        for word in taken.split_whitespace() {
            good(word);
        }
        let refused = "strictatime loop=/dev/loop0 encryption=x bind rbind move \
                       remount private rprivate shared rshared slave rslave unbindable runbindable nosymfollow \
                       verity.hashdevice=x verity.roothash=x verity.roothashfile=x context=x fscontext=x";
        for word in refused.split_whitespace() {
            let said = Options::parse(word).unwrap_err().to_string();
            let reason = said.strip_prefix(&format!("option {word}: "));
            assert!(
                reason.is_some_and(|why| !why.starts_with("unknown")),
                "{said}"
            );
        }
    }

    #[test]
    fn our_own() {
        let options = good(
            "offset=1M,sizelimit=2G,cache_size=64M,io_engine=threads,buffered,io_scheduler=fair,\
             fuse_transport=dev,nocontrol,allow_other,foreground,sandbox=off",
        );
        let wanted = Options {
            offset: 1 << 20,
            size_limit: Some(2 << 30),
            cache_size: Some(64 << 20),
            io_engine: IoEngine::Threads,
            buffered: true,
            fuse_transport: FuseTransport::Dev,
            control: false,
            allow_other: Some(true),
            foreground: true,
            sandbox: false,
            ..Options::default()
        };
        assert_eq!(options, wanted);
    }

    #[test]
    fn tables_do_not_overlap() {
        for name in TABLE.names() {
            let twice = TABLE.names().filter(|other| *other == name).count();
            assert_eq!(twice, 1, "{name}");
            let f2fs = F2FS_TABLE.find(name).is_some();
            assert!(!is_ext4(name) && !f2fs, "{name}");
        }
    }

    #[test]
    fn options_of_one_kind_only() {
        let both = good("ro,noatime,noacl,errors=continue");
        assert_eq!(both.fits(Kind::Ext3), Ok(()));
        assert_eq!(both.fits(Kind::F2fs), Ok(()));
        assert!(both.f2fs.common.read_only && both.f2fs.common.acl == Some(false));
        let ext4 = good("data=ordered");
        assert_eq!(ext4.fits(Kind::Ext4), Ok(()));
        let said = ext4.fits(Kind::F2fs).unwrap_err().to_string();
        assert_eq!(said, "option data: f2fs has none");
        let f2fs = good("ro,disable_roll_forward");
        assert_eq!(f2fs.fits(Kind::F2fs), Ok(()));
        let said = f2fs.fits(Kind::Ext4).unwrap_err().to_string();
        assert_eq!(said, "option disable_roll_forward: ext4 has none");
        assert_eq!(good("discard").fits(Kind::F2fs), Ok(()));
        fails(
            "data=ordered,ro,disable_roll_forward",
            "option disable_roll_forward: ext4 has none",
        );
    }

    #[test]
    fn mistakes_are_named() {
        fails("noatme", "option noatme: unknown; did you mean noatime?");
        fails(
            "cachesize=1G",
            "option cachesize: unknown; did you mean cache_size?",
        );
        fails("cache_size=1M", "option cache_size=1M: is at least 8M");
        fails("offset=7", "option offset=7: needs a multiple of 512 bytes");
        fails(
            "io_engine=aio",
            "option io_engine=aio: is one of auto, uring, threads",
        );
        fails(
            "uid=1000",
            "option uid=1000: owners and modes come from the volume",
        );
        fails(
            "loop=/dev/loop9",
            "option loop=/dev/loop9: image files need no loop device; leave it out",
        );
        fails("frobnicate", "option frobnicate: unknown");
        fails(
            "offset=16777215T,sizelimit=2T",
            "option sizelimit: ends past the largest offset there is",
        );
    }
}
