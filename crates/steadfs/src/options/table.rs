//! The table of options that belong to no format: those of mount(8) and fusermount3(1), and our own.

use steadfs_vfs::options::Section::{Device, Mount, Server};
use steadfs_vfs::options::Shown::{Always, Changed, Never};
use steadfs_vfs::options::{Entry, Table, bytes, choice, name_of, word};

use super::{FuseTransport, IoEngine, MIN_CACHE_SIZE, Options, Overlay, SECTOR};
use crate::io_options::{device_model, show_device_model};

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

const SWITCH: [(&str, bool); 2] = [("on", true), ("off", false)];

pub(super) const TABLE: Table<Options> = Table(&[ENTRIES]);

type Opt = Entry<Options>;

const ENTRIES: &[Opt] = &[
    Opt::flag("suid", |o| o.flags.nosuid = false)
        .help(Mount, "whether set-user-ID and set-group-ID bits and file capabilities have an effect")
        .current(Never, |o| word(o.flags.nosuid, "nosuid", "suid")),
    Opt::flag("nosuid", |o| o.flags.nosuid = true).also(),
    Opt::flag("dev", |o| o.flags.nodev = false)
        .help(Mount, "whether device nodes can be opened")
        .current(Never, |o| word(o.flags.nodev, "nodev", "dev")),
    Opt::flag("nodev", |o| o.flags.nodev = true).also(),
    Opt::flag("exec", |o| o.flags.noexec = false)
        .help(Mount, "whether programs can be run")
        .current(Never, |o| word(o.flags.noexec, "noexec", "exec")),
    Opt::flag("noexec", |o| o.flags.noexec = true).also(),
    Opt::flag("defaults", set_defaults).help(Mount, "rw,suid,dev,exec,async"),
    // mount(8) decides who may mount before it calls us; here the options apply what they imply.
    Opt::either("user", "", |o, _| {
        untrusted(o);
        o.flags.noexec = true;
        Ok(())
    })
    .help(Mount, "as in fstab: nosuid,nodev, and with the first two noexec"),
    Opt::flag("users", |o| {
        untrusted(o);
        o.flags.noexec = true;
    })
    .also(),
    Opt::flag("owner", untrusted).also(),
    Opt::flag("group", untrusted).also(),
    // fusermount3(1).
    Opt::flag("allow_other", |o| o.allow_other = Some(true))
        .help_with_default(
            Server,
            "whether other users may use the mount; without root this requires user_allow_other \
             in /etc/fuse.conf",
            "root: allow_other",
        )
        .current(Never, |o| {
            word(o.allow_other?, "allow_other", "noallow_other")
        })
        .fixed(),
    Opt::flag("noallow_other", |o| o.allow_other = Some(false))
        .also()
        .fixed(),
    Opt::either("fakeroot", "[=UID:GID]", |o, v| {
        o.fakeroot = Some(match v {
            None => (0, 0),
            Some(owner) => user_and_group(owner)?,
        });
        Ok(())
    })
    .help_with_default(
        Server,
        "processes of the mounting user, who must be the only one with access, have root's permissions on the volume, and \
         this user and group, or root, own what they create; implies noallow_other,nosuid,nodev",
        "as the files' permissions say",
    )
    .current(Changed, |o| {
        Some(match o.fakeroot? {
            (0, 0) => "fakeroot".to_owned(),
            (user, group) => format!("fakeroot={user}:{group}"),
        })
    })
    .fixed(),
    // Our own.
    Opt::value("partition", "=NUMBER|NAME", |o, v| {
        o.partition = Some(v.to_owned());
        Ok(())
    })
    .help_with_default(
        Device,
        "the partition of a disk (GPT, MBR or Android super) to use: its number, its name in the table, or the label of \
         the volume in it; the same as IMAGE@NUMBER or IMAGE@NAME",
        "the whole device",
    )
    .fixed(),
    Opt::value("offset", "=BYTES", |o, v| sectors(v).map(|n| o.offset = n))
        .help(
            Device,
            "where the volume begins on the device; most disk images have their first partition at 1M",
        )
        .current(Changed, |o| Some(format!("offset={}", o.offset)))
        .fixed(),
    Opt::value("sizelimit", "=BYTES", |o, v| {
        sectors(v).map(|n| o.size_limit = (n > 0).then_some(n))
    })
    .help_with_default(
        Device,
        "how much of the device belongs to the volume",
        "the rest",
    )
    .current(Changed, |o| Some(format!("sizelimit={}", o.size_limit?)))
    .fixed(),
    Opt::value("overlay", "=FILE|memory", |o, v| {
        o.overlay = Some(match v {
            "" => return Err("needs a file, or memory".to_owned()),
            "memory" => Overlay::Memory,
            file => Overlay::File(file.into()),
        });
        Ok(())
    })
    .help_with_default(
        Device,
        "the device is only read, and all changes go to this file, which is made if it is missing; memory: they are gone \
         after the unmount, and take at most a quarter of the memory",
        "changes go to the device",
    )
    .current(Changed, |o| {
        Some(match o.overlay.as_ref()? {
            Overlay::Memory => "overlay=memory".to_owned(),
            Overlay::File(file) => format!("overlay={}", file.display()),
        })
    })
    .fixed(),
    Opt::value("cache_size", "=BYTES", set_cache_size)
        .help_with_default(
            Device,
            "memory for clean metadata and dirty data, at least 8M; an eighth of it, at most 24 MiB, comes on top for \
             read-ahead",
            "1/16 of the memory of the host or cgroup, 32M to 256M; commands without a mount: at most 64M",
        )
        .current(Changed, |o| Some(format!("cache_size={}", o.cache_size?)))
        .fixed(),
    Opt::value("io_engine", "=auto|uring|threads", |o, v| {
        choice(v, &ENGINES).map(|engine| o.io_engine = engine)
    })
    .help_with_default(
        Device,
        "how the device is read and written; with io_uring a task that waits for a single small read busy-polls while \
         the machine is idle",
        "auto: io_uring where it is allowed",
    )
    .current(Changed, |o| {
        Some(format!("io_engine={}", name_of(o.io_engine, &ENGINES)))
    })
    .fixed(),
    Opt::flag("direct", |o| o.buffered = false)
        .help(Device, "I/O bypasses the host's page cache, or goes through it; commands that only read use it for small reads")
        .current(Changed, |o| word(o.buffered, "buffered", "direct"))
        .fixed(),
    Opt::flag("buffered", |o| o.buffered = true).also().fixed(),
    Opt::value("device_model", "=BYTES[:US[:DEPTH[:US]]]", |o, v| {
        device_model(v).map(|model| o.device_model = Some(model))
    })
    .help_with_default(
        Device,
        "for tests: a device with this throughput per second, latency in microseconds, queue depth, and latency of a \
         FLUSH",
        "0, 1, 0",
    )
    .current(Changed, |o| {
        let model = show_device_model(o.device_model.as_ref()?);
        Some(format!("device_model={model}"))
    })
    .fixed(),
    Opt::value("fuse_transport", "=auto|uring|dev", |o, v| {
        choice(v, &TRANSPORTS).map(|transport| o.fuse_transport = transport)
    })
    .help_with_default(
        Server,
        "how requests come from the kernel",
        "auto: io_uring where it is on",
    )
    .current(Changed, |o| {
        let transport = name_of(o.fuse_transport, &TRANSPORTS);
        Some(format!("fuse_transport={transport}"))
    })
    .fixed(),
    Opt::value("sandbox", "=on|off", |o, v| {
        choice(v, &SWITCH).map(|on| o.sandbox = on)
    })
    .help_with_default(
        Server,
        "on: the volume is read by a process without rights over the host; another one mounts, unmounts and answers it",
        "on",
    )
    .current(Always, |o| Some(format!("sandbox={}", name_of(o.sandbox, &SWITCH))))
    .fixed(),
    Opt::value("takeover", "=on|off", |o, v| {
        choice(v, &SWITCH).map(|on| o.takeover = on)
    })
    .help_with_default(
        Server,
        "on: if the server is killed, another one continues the mount with all that programs have written, synced or \
         not; read-only mounts are continued in any case",
        "off",
    )
    .current(Changed, |o| Some(format!("takeover={}", name_of(o.takeover, &SWITCH))))
    .fixed(),
    Opt::flag("control", |o| o.control = true)
        .help(Server, "the hidden directory .steadfs in the root of the mount")
        .current(Never, |o| word(o.control, "control", "nocontrol"))
        .fixed(),
    Opt::flag("nocontrol", |o| o.control = false).also().fixed(),
    Opt::flag("foreground", |o| o.foreground = true)
        .help(Server, "the command stays until the volume is unmounted")
        .current(Never, |o| o.foreground.then(|| "foreground".into()))
        .fixed(),
    // These hold in any case, or are for other programs.
    Opt::already("symfollow"),
    Opt::already("nouser"),
    Opt::already("nousers"),
    Opt::already("noowner"),
    Opt::already("nogroup"),
    Opt::already("auto"),
    Opt::already("noauto"),
    Opt::already("nofail"),
    Opt::already("_netdev"),
    Opt::already("silent"),
    Opt::already("loud"),
    Opt::already("nomand"),
    Opt::already("noiversion"),
    Opt::already("default_permissions"),
    Opt::value("comment", "=", |_, _| Ok(())),
    Opt::value("helper", "=", |_, _| Ok(())),
    Opt::value("uhelper", "=", |_, _| Ok(())),
    // Accepted: what they request holds, or they have no effect in Linux either.
    Opt::no_effect_if("loop", "", "image files need no loop device", |_, v| match v {
        None => Ok(()),
        Some(_) => Err("image files need no loop device; leave it out".to_owned()),
    }),
    Opt::no_effect("mand", "Linux removed mandatory locks"),
    Opt::no_effect("iversion", "FUSE does not show a change counter"),
    Opt::no_effect("seclabel", LABELS),
    // What the kernel shows of every FUSE mount.
    Opt::no_effect("user_id", "is the user who mounts").arg("="),
    Opt::no_effect("group_id", "is the group of the user who mounts").arg("="),
    Opt::no_effect("blksize", "is the volume's block size").arg("="),
    Opt::no_effect("max_read", "is the largest request").arg("="),
    // Refused.
    Opt::refused("allow_root", "use allow_other"),
    Opt::refused("fsname", "the source is always the image or device"),
    Opt::refused("nosymfollow", "FUSE's helpers do not take it"),
    Opt::refused("uid", OWNERS),
    Opt::refused("gid", OWNERS),
    Opt::refused("umask", OWNERS),
    Opt::refused("fmask", OWNERS),
    Opt::refused("dmask", OWNERS),
    Opt::refused("context", LABELS),
    Opt::refused("fscontext", LABELS),
    Opt::refused("defcontext", LABELS),
    Opt::refused("rootcontext", LABELS),
    Opt::refused(
        "remount",
        "use steadfs remount, which reaches the running mount",
    ),
    Opt::refused("bind", BIND),
    Opt::refused("rbind", BIND),
    Opt::refused("move", "is mount(8)'s own; mount --move moves a mount"),
    Opt::refused("private", PROPAGATION),
    Opt::refused("rprivate", PROPAGATION),
    Opt::refused("shared", PROPAGATION),
    Opt::refused("rshared", PROPAGATION),
    Opt::refused("slave", PROPAGATION),
    Opt::refused("rslave", PROPAGATION),
    Opt::refused("unbindable", PROPAGATION),
    Opt::refused("runbindable", PROPAGATION),
    Opt::refused(
        "encryption",
        "was removed from mount(8); mount the device that cryptsetup makes",
    ),
    Opt::refused("verity.hashdevice", VERITY),
    Opt::refused("verity.roothash", VERITY),
    Opt::refused("verity.roothashfile", VERITY),
    Opt::refused("kernel_cache", "pages are always kept; leave it out"),
    Opt::refused("auto_cache", "pages are always kept; leave it out"),
    Opt::refused(
        "writeback_cache",
        "writes go to our own cache, which knows their owner",
    ),
    Opt::refused("blkdev", "is chosen when root mounts a block device"),
    Opt::refused("subtype", "is the volume's type"),
];

fn set_defaults(options: &mut Options) {
    // As mount(8) has it: rw, suid, dev, exec, auto, nouser and async.
    options.flags.nosuid = false;
    options.flags.nodev = false;
    options.flags.noexec = false;
    options.set_read_only(false);
    options.ext4.common.sync = false;
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

fn user_and_group(value: &str) -> Result<(u32, u32), String> {
    let ids = value.split_once(':').and_then(|(user, group)| {
        let id = |text: &str| text.parse().ok().filter(|id| *id != u32::MAX);
        Some((id(user)?, id(group)?))
    });
    ids.ok_or_else(|| "needs numbers, as in 1000:100".to_owned())
}

fn sectors(value: &str) -> Result<u64, String> {
    let number = bytes(value)?;
    if number % SECTOR != 0 {
        return Err(format!("needs a multiple of {SECTOR} bytes"));
    }
    Ok(number)
}
