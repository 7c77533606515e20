//! The table of options that mount(8) and fusermount3(1) know and of our own: what each does, why it has no effect or
//! why it is not offered.

use steadfs_vfs::options::{
    Entry, already, bytes, choice, either, flag, no_effect, no_effect_if, refused, value,
};

use super::{FuseTransport, IoEngine, MIN_CACHE_SIZE, Options, SECTOR};
use crate::io_options::device_model;

const OWNERS: &str = "owners and modes come from the volume";
const BIND: &str = "is mount(8)'s own; bind the mount point instead";
const PROPAGATION: &str = "is mount(8)'s own; mount --make-private and the like change a mount";
const VERITY: &str = "is mount(8)'s own; mount the device that veritysetup makes";
const LABELS: &str = "security labels come from the volume's attributes";

pub(super) const ENGINES: [(&str, IoEngine); 3] = [
    ("auto", IoEngine::Auto),
    ("uring", IoEngine::Uring),
    ("threads", IoEngine::Threads),
];
pub(super) const TRANSPORTS: [(&str, FuseTransport); 3] = [
    ("auto", FuseTransport::Auto),
    ("uring", FuseTransport::Uring),
    ("dev", FuseTransport::Dev),
];

pub(super) const TABLE: &[Entry<Options>] = &[
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
    // Accepted, for what they ask for is so, or Linux has them without effect, too.
    no_effect_if("loop", "image files need no loop device", |_, v| match v {
        None => Ok(()),
        Some(_) => Err("image files need no loop device; leave it out".to_owned()),
    }),
    no_effect("mand", "Linux removed mandatory locks"),
    no_effect("iversion", "FUSE does not show a change counter"),
    no_effect("seclabel", LABELS),
    // What the kernel shows of every FUSE mount.
    no_effect("user_id", "is the user who mounts"),
    no_effect("group_id", "is the group of the user who mounts"),
    no_effect("blksize", "is the volume's block size"),
    // Not offered.
    refused("allow_root", "use allow_other"),
    refused("fsname", "the source is always the image or device"),
    refused("nosymfollow", "FUSE's helpers do not take it"),
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
