//! A mount's whole option list: what mount(8) and fusermount3(1) know, what is ours, and what
//! belongs to the volume's file system.

use steadfs_block::DeviceModel;
use steadfs_ext4::{MountOptions, OPTION_TABLE};
use steadfs_f2fs::OPTION_TABLE as F2FS_TABLE;
use steadfs_vfs::options::{
    Entry, already, apply, bytes, choice, either, flag, items, refused, unknown, value,
};
use steadfs_vfs::{FsError, Result};

use crate::io_options::{IO_TABLE, IoOptions, device_model, show_device_model};
use crate::volume::Kind;

/// How the device is accessed.
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
    /// `noatime`, told to the kernel too.
    pub noatime: bool,
    /// `nodiratime`, told to the kernel too.
    pub nodiratime: bool,
}

/// Why a list does not fit volumes of one kind, though it fits those of the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Misfits {
    ext4: Option<FsError>,
    f2fs: Option<FsError>,
}

/// Everything an option list can say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Options of ext2, ext3 and ext4.
    pub ext4: MountOptions,
    /// Options of f2fs.
    pub f2fs: steadfs_f2fs::MountOptions,
    /// Why the list fits volumes of one kind only.
    misfits: Misfits,
    /// What the kernel enforces.
    pub flags: MountFlags,
    /// `offset=`: where on the device the volume begins, in bytes.
    pub offset: u64,
    /// `sizelimit=`: how much of the device belongs to the volume, in bytes; `None`: the rest.
    pub size_limit: Option<u64>,
    /// `cache_size=`: memory the caches may hold, in bytes; `None`: chosen from the host's memory.
    pub cache_size: Option<u64>,
    /// `io_engine=`.
    pub io_engine: IoEngine,
    /// `buffered`: I/O goes through the host's page cache; else around it (`direct`).
    pub buffered: bool,
    /// The order in which queued I/O goes to the device.
    pub io: IoOptions,
    /// `device_model=`: the device is as slow as this, for tests.
    pub device_model: Option<DeviceModel>,
    /// `fuse_transport=`.
    pub fuse_transport: FuseTransport,
    /// `control`: the hidden directory `.steadfs` is there.
    pub control: bool,
    /// `allow_other`: other users may use the mount; `None`: as fits who mounts (root: yes).
    pub allow_other: Option<bool>,
    /// `foreground`: the mounting program stays.
    pub foreground: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            ext4: MountOptions::default(),
            f2fs: steadfs_f2fs::MountOptions::default(),
            misfits: Misfits::default(),
            flags: MountFlags::default(),
            offset: 0,
            size_limit: None,
            cache_size: None,
            io_engine: IoEngine::Auto,
            buffered: false,
            io: IoOptions::default(),
            device_model: None,
            fuse_transport: FuseTransport::Auto,
            control: true,
            allow_other: None,
            foreground: false,
        }
    }
}

/// Smallest cache a mount works with.
pub const MIN_CACHE_SIZE: u64 = 8 << 20;
/// What offsets are multiples of: the smallest unit every device can address.
pub const SECTOR: u64 = 512;
const OWNERS: &str = "owners and modes come from the volume";
const BIND: &str = "is mount(8)'s own; bind the mount point instead";
const PROPAGATION: &str = "is mount(8)'s own; mount --make-private and the like change a mount";
const VERITY: &str = "is mount(8)'s own; mount the device that veritysetup makes";
const LABELS: &str = "security labels come from the volume's attributes";

const ENGINES: [(&str, IoEngine); 3] = [
    ("auto", IoEngine::Auto),
    ("uring", IoEngine::Uring),
    ("threads", IoEngine::Threads),
];
const TRANSPORTS: [(&str, FuseTransport); 3] = [
    ("auto", FuseTransport::Auto),
    ("uring", FuseTransport::Uring),
    ("dev", FuseTransport::Dev),
];

/// What a volume is mounted with and a running mount cannot change, of what the kernel does not show in its own table.
const FIXED: [&str; 8] = [
    "offset",
    "sizelimit",
    "cache_size",
    "io_engine",
    "direct",
    "buffered",
    "device_model",
    "fuse_transport",
];

const TABLE: &[Entry<Options>] = &[
    flag("suid", |o| o.flags.nosuid = false),
    flag("nosuid", |o| o.flags.nosuid = true),
    flag("dev", |o| o.flags.nodev = false),
    flag("nodev", |o| o.flags.nodev = true),
    flag("exec", |o| o.flags.noexec = false),
    flag("noexec", |o| o.flags.noexec = true),
    already("symfollow"),
    flag("defaults", set_defaults),
    // mount(8): who may mount is decided before we run; what it implies is applied.
    either("user", |o, _| {
        untrusted(o);
        o.flags.noexec = true;
        Ok(())
    }),
    flag("users", |o| {
        untrusted(o);
        o.flags.noexec = true;
    }),
    flag("owner", untrusted),
    flag("group", untrusted),
    already("nouser"),
    already("nousers"),
    already("noowner"),
    already("nogroup"),
    already("auto"),
    already("noauto"),
    already("nofail"),
    already("_netdev"),
    already("silent"),
    already("loud"),
    already("nomand"),
    already("noiversion"),
    value("comment", |_, _| Ok(())),
    value("helper", |_, _| Ok(())),
    value("uhelper", |_, _| Ok(())),
    // fusermount3(1).
    flag("allow_other", |o| o.allow_other = Some(true)),
    flag("noallow_other", |o| o.allow_other = Some(false)),
    already("default_permissions"),
    // Ours.
    value("offset", |o, v| sectors(v).map(|n| o.offset = n)),
    value("sizelimit", |o, v| {
        sectors(v).map(|n| o.size_limit = (n > 0).then_some(n))
    }),
    value("cache_size", set_cache_size),
    value("io_engine", |o, v| {
        choice(v, &ENGINES).map(|engine| o.io_engine = engine)
    }),
    flag("direct", |o| o.buffered = false),
    flag("buffered", |o| o.buffered = true),
    value("device_model", |o, v| {
        device_model(v).map(|model| o.device_model = Some(model))
    }),
    value("fuse_transport", |o, v| {
        choice(v, &TRANSPORTS).map(|transport| o.fuse_transport = transport)
    }),
    flag("control", |o| o.control = true),
    flag("nocontrol", |o| o.control = false),
    flag("foreground", |o| o.foreground = true),
    // Not offered.
    refused("loop", "image files are opened as they are; leave it out"),
    refused("allow_root", "use allow_other"),
    refused("fsname", "the source is always the image or device"),
    refused("nosymfollow", "FUSE's helpers do not take it"),
    refused("mand", "mandatory locks were removed from Linux"),
    refused("iversion", "FUSE does not show a change counter"),
    refused("uid", OWNERS),
    refused("gid", OWNERS),
    refused("umask", OWNERS),
    refused("fmask", OWNERS),
    refused("dmask", OWNERS),
    refused("context", LABELS),
    refused("fscontext", LABELS),
    refused("defcontext", LABELS),
    refused("rootcontext", LABELS),
    refused(
        "remount",
        "use steadfs remount, which reaches the running mount",
    ),
    refused("bind", BIND),
    refused("rbind", BIND),
    refused("move", "is mount(8)'s own; mount --move moves a mount"),
    refused("private", PROPAGATION),
    refused("rprivate", PROPAGATION),
    refused("shared", PROPAGATION),
    refused("rshared", PROPAGATION),
    refused("slave", PROPAGATION),
    refused("rslave", PROPAGATION),
    refused("unbindable", PROPAGATION),
    refused("runbindable", PROPAGATION),
    refused(
        "encryption",
        "was removed from mount(8); mount the device that cryptsetup makes",
    ),
    refused("verity.hashdevice", VERITY),
    refused("verity.roothash", VERITY),
    refused("verity.roothashfile", VERITY),
    refused("kernel_cache", "pages are always kept; leave it out"),
    refused("auto_cache", "pages are always kept; leave it out"),
    refused(
        "writeback_cache",
        "writes go to our own cache, which knows their owner",
    ),
    refused(
        "max_read",
        "requests have the largest size the kernel allows",
    ),
    refused("blkdev", "is chosen when root mounts a block device"),
    refused("subtype", "is the volume's type"),
];

fn set_defaults(options: &mut Options) {
    // mount(8): rw, suid, dev, exec, auto, nouser and async.
    options.flags.nosuid = false;
    options.flags.nodev = false;
    options.flags.noexec = false;
    options.set_read_only(false);
    options.ext4.sync = false;
}

fn untrusted(options: &mut Options) {
    options.flags.nosuid = true;
    options.flags.nodev = true;
}

fn set_cache_size(options: &mut Options, value: &str) -> Result<(), String> {
    let size = bytes(value)?;
    if size < MIN_CACHE_SIZE {
        return Err(format!("is at least {}M", MIN_CACHE_SIZE >> 20));
    }
    options.cache_size = Some(size);
    Ok(())
}

fn sectors(value: &str) -> Result<u64, String> {
    let number = bytes(value)?;
    if number % SECTOR != 0 {
        return Err(format!("needs a multiple of {SECTOR} bytes"));
    }
    Ok(number)
}

/// Whether an item is a note for other programs: mount(8) keeps `x-…` and `X-…` for them.
///
/// # Errors
/// [`FsError::BadOption`] for those that tell mount(8) to do something: it does that, and does not pass them on.
fn is_note(name: &str) -> Result<bool> {
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
    /// [`FsError::BadOption`] naming the first option that is unknown (with the nearest one there
    /// is), not offered (with the reason), or contradicts another.
    pub fn parse(list: &str) -> Result<Self> {
        let mut options = Self::default();
        for (name, value) in items(list) {
            options.set(name, value)?;
        }
        options.flags.noatime = options.ext4.atime == steadfs_ext4::Atime::Never;
        options.flags.nodiratime = options.ext4.nodiratime;
        options.validate()?;
        if options
            .offset
            .checked_add(options.size_limit.unwrap_or(0))
            .is_none()
        {
            return Err(FsError::BadOption(
                "option sizelimit: ends past the largest offset there is".to_owned(),
            ));
        }
        Ok(options)
    }

    /// The names of all options that are taken; `x-…` and `X-…`, notes for others, are taken too.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let ours = TABLE.iter().filter(|e| !e.is_refused()).map(|e| e.name);
        let format = OPTION_TABLE.iter().filter(|e| !e.is_refused());
        let f2fs = F2FS_TABLE
            .iter()
            .filter(|e| !e.is_refused() && !is_ext4(e.name));
        let io = IO_TABLE.iter().map(|e| e.name);
        ours.chain(io)
            .chain(format.map(|e| e.name))
            .chain(f2fs.map(|e| e.name))
    }

    /// Takes apart a list for a running mount: what goes to the volume, as a list, and the items that
    /// only count when it is mounted. What the kernel enforces, and what says nothing, is in neither.
    ///
    /// # Errors
    /// As [`Options::parse`].
    pub fn split_remount(list: &str) -> Result<(String, Vec<String>)> {
        let (mut volume, mut fixed) = (Vec::new(), Vec::new());
        for (name, value) in items(list) {
            let item = value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
            let mut alone = Self::default();
            alone.set(name, value)?;
            if is_ext4(name)
                || IoOptions::has(name)
                || F2FS_TABLE.iter().any(|entry| entry.name == name)
            {
                volume.push(item);
                continue;
            }
            alone.flags = MountFlags::default();
            if alone != Self::default() {
                fixed.push(item);
            }
        }
        Ok((volume.join(","), fixed))
    }

    /// What a running mount cannot change and differs from the default, as a list.
    pub(crate) fn show_fixed(&self) -> String {
        let default = Self::default();
        let mut shown: Vec<String> = Vec::new();
        if self.offset != default.offset {
            shown.push(format!("offset={}", self.offset));
        }
        let sizes = [
            ("sizelimit", self.size_limit),
            ("cache_size", self.cache_size),
        ];
        let sizes = sizes
            .iter()
            .filter_map(|(name, size)| Some((name, (*size)?)));
        shown.extend(sizes.map(|(name, size)| format!("{name}={size}")));
        if self.io_engine != default.io_engine {
            shown.push(format!("io_engine={}", name_of(self.io_engine, &ENGINES)));
        }
        if self.buffered {
            shown.push("buffered".to_owned());
        }
        if let Some(model) = &self.device_model {
            shown.push(format!("device_model={}", show_device_model(model)));
        }
        if self.fuse_transport != default.fuse_transport {
            shown.push(format!(
                "fuse_transport={}",
                name_of(self.fuse_transport, &TRANSPORTS)
            ));
        }
        shown.join(",")
    }

    /// Takes what a running mount cannot change out of a list, and returns the rest.
    ///
    /// # Errors
    /// [`FsError::BadOption`] for the first item that would change something.
    pub(crate) fn without_fixed(&self, list: &str) -> Result<String> {
        let mut rest = Vec::new();
        for (name, value) in items(list) {
            let item = value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}"));
            if !FIXED.contains(&name) {
                rest.push(item);
                continue;
            }
            let mut changed = self.clone();
            changed.set(name, value)?;
            if changed != *self {
                let why = "cannot change while mounted; unmount and mount again";
                return Err(FsError::BadOption(format!("option {item}: {why}")));
            }
        }
        Ok(rest.join(","))
    }

    /// Sets `ro` or `rw` for whatever the volume is.
    pub fn set_read_only(&mut self, read_only: bool) {
        self.ext4.read_only = read_only;
        self.f2fs.read_only = read_only;
    }

    /// Whether the volume is only to be read.
    pub fn read_only(&self) -> bool {
        self.ext4.read_only
    }

    /// Whether the list fits volumes of this kind.
    ///
    /// # Errors
    /// [`FsError::BadOption`] naming the first option that is of another kind's only.
    pub(crate) fn fits(&self, kind: Kind) -> Result<()> {
        let misfit = match kind {
            Kind::F2fs => &self.misfits.f2fs,
            Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => &self.misfits.ext4,
        };
        misfit.clone().map_or(Ok(()), Err)
    }

    /// Contradictions, once all are set: a list must fit volumes of one kind at least.
    fn validate(&mut self) -> Result<()> {
        if let Err(error) = self.ext4.validate() {
            self.misfits.ext4.get_or_insert(error);
        }
        if let Err(error) = self.f2fs.validate() {
            self.misfits.f2fs.get_or_insert(error);
        }
        match &self.misfits {
            Misfits {
                ext4: Some(error),
                f2fs: Some(_),
            } => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        if is_note(name)? || apply(TABLE, self, name, value)? || self.io.set(name, value)? {
            return Ok(());
        }
        let of_other = |kind: &str| FsError::BadOption(format!("option {name}: {kind} has none"));
        match (self.ext4.set(name, value), self.f2fs.set(name, value)) {
            (Ok(true), Ok(true)) => Ok(()),
            (Ok(true), f2fs) => {
                let error = f2fs.err().unwrap_or_else(|| of_other("f2fs"));
                self.misfits.f2fs.get_or_insert(error);
                Ok(())
            }
            (ext4, Ok(true)) => {
                let error = ext4.err().unwrap_or_else(|| of_other("ext4"));
                self.misfits.ext4.get_or_insert(error);
                Ok(())
            }
            // Whoever knows the name says what is wrong with it.
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(false), Ok(false)) => {
                let ours = TABLE.iter().map(|entry| entry.name);
                let ours = ours.chain(IO_TABLE.iter().map(|entry| entry.name));
                let ext4 = OPTION_TABLE.iter().map(|entry| entry.name);
                let f2fs = F2FS_TABLE.iter().map(|entry| entry.name);
                Err(unknown(name, ours.chain(ext4).chain(f2fs)))
            }
        }
    }
}

/// The word for a choice.
fn name_of<V: PartialEq>(chosen: V, choices: &[(&'static str, V)]) -> &'static str {
    let found = choices.iter().find(|(_, choice)| *choice == chosen);
    found.map_or("", |(name, _)| name)
}

fn is_ext4(name: &str) -> bool {
    OPTION_TABLE.iter().any(|entry| entry.name == name)
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
                     nodiratime exec noexec suid nosuid dev nodev offset=0 sizelimit=0 symfollow";
        for word in taken.split_whitespace() {
            good(word);
        }
        let refused = "mand iversion lazytime strictatime norelatime loop loop=/dev/loop0 encryption=x bind rbind move \
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
             fuse_transport=dev,nocontrol,allow_other,foreground",
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
            ..Options::default()
        };
        assert_eq!(options, wanted);
    }

    #[test]
    fn lists_for_running_mounts() {
        let list = "rw,nofail,x-a=b,noexec,offset=1M,commit=9,buffered,control";
        let fixed = ["offset=1M", "buffered"].map(String::from).to_vec();
        let split = Options::split_remount(list);
        assert_eq!(split, Ok(("rw,commit=9".to_owned(), fixed)));
        assert!(Options::split_remount("nofial").is_err());
    }

    #[test]
    fn what_is_fixed_is_shown_as_it_is_taken() {
        for (list, shown) in [
            (
                "ro,noatime,control,direct,io_engine=auto,sizelimit=0,offset=0",
                "",
            ),
            ("offset=1M,sizelimit=2M", "offset=1048576,sizelimit=2097152"),
            (
                "buffered,io_engine=threads,cache_size=64M",
                "cache_size=67108864,io_engine=threads,buffered",
            ),
            (
                "fuse_transport=dev,device_model=20M:5",
                "device_model=20971520:5:1:0,fuse_transport=dev",
            ),
        ] {
            let options = good(list);
            assert_eq!(options.show_fixed(), shown);
            assert_eq!(good(shown).show_fixed(), shown);
            let again = format!("rw,{shown},commit=9");
            assert_eq!(options.without_fixed(&again).as_deref(), Ok("rw,commit=9"));
            for other in [
                "offset=512",
                "sizelimit=1M",
                "io_engine=uring",
                "fuse_transport=uring",
            ] {
                let said = options.without_fixed(other).unwrap_err().to_string();
                let why =
                    format!("option {other}: cannot change while mounted; unmount and mount again");
                assert_eq!(said, why);
            }
        }
        assert!(good("").without_fixed("offset=x").is_err());
        for name in FIXED {
            assert!(TABLE.iter().any(|entry| entry.name == name), "{name}");
        }
    }

    #[test]
    fn tables_do_not_overlap() {
        for entry in TABLE {
            let twice = TABLE.iter().filter(|e| e.name == entry.name).count();
            assert_eq!(twice, 1, "{}", entry.name);
            let f2fs = F2FS_TABLE.iter().any(|e| e.name == entry.name);
            assert!(!is_ext4(entry.name) && !f2fs, "{}", entry.name);
        }
    }

    #[test]
    fn options_of_one_kind_only() {
        let both = good("ro,noatime,noacl,errors=continue");
        assert_eq!(both.fits(Kind::Ext3), Ok(()));
        assert_eq!(both.fits(Kind::F2fs), Ok(()));
        assert!(both.f2fs.read_only && both.f2fs.acl == Some(false));
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
        fails(
            "ro,compress_mode=fs",
            "option compress_mode=fs: compressed files are read, and none are made",
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
            "loop",
            "option loop: image files are opened as they are; leave it out",
        );
        fails("frobnicate", "option frobnicate: unknown");
        fails(
            "offset=16777215T,sizelimit=2T",
            "option sizelimit: ends past the largest offset there is",
        );
    }
}
