//! What mount options mean: for `steadfs mount --help` and the manual.

/// Names with their values between commas, and the meaning.
pub type Meaning = (&'static str, &'static str);

/// What all of them have in common.
pub const RULES: &str = "Options of mount(8) and ext4(5) and of f2fs keep their names and meanings. What makes no \
    sense here is refused by name, with the reason; a misspelt one with the nearest that there is. All refusals of a \
    list are reported at once. \
    Defaults are in brackets; where the volume has its own, it is asked first.";

/// Groups of options, each under a title.
pub const GROUPS: &[(&str, &[Meaning])] = &[
    (
        "The kernel's",
        &[
            ("ro, rw", "read-only or read-write [rw]"),
            (
                "suid, nosuid",
                "whether set-user-ID and set-group-ID bits count [suid]",
            ),
            ("dev, nodev", "whether device nodes can be opened [dev]"),
            ("exec, noexec", "whether programs can be run [exec]"),
            (
                "sync, async, dirsync",
                "every change, or every change of a directory, is durable before its call returns [async]",
            ),
            (
                "relatime, atime, noatime",
                "access times: when older than the last change or a day, or never [relatime]",
            ),
            (
                "diratime, nodiratime",
                "the same for directories [diratime]",
            ),
            (
                "allow_other, noallow_other",
                "whether users other than who mounts may enter [root: allow_other]; others than root need user_allow_other in /etc/fuse.conf",
            ),
            ("defaults", "rw,suid,dev,exec,async"),
            (
                "user, users, owner, group",
                "as in fstab: nosuid,nodev, and with the first two noexec",
            ),
        ],
    ),
    (
        "The device",
        &[
            (
                "offset=BYTES",
                "where the volume begins on the device, also with K, M, G [0]",
            ),
            (
                "sizelimit=BYTES",
                "how much of the device belongs to the volume [the rest]",
            ),
            (
                "io_engine=auto|uring|threads",
                "how the device is read and written [auto: io_uring where it is allowed]",
            ),
            (
                "io_scheduler=fair|fifo|cfq",
                "the order of queued I/O: by the weights of cgroups and I/O priorities; as it came, what is waited for first; by weights in CFQ's time slices [fair]",
            ),
            (
                "boost, noboost",
                "waiting for queued I/O raises it to the waiter's priority and group [boost]",
            ),
            (
                "queue_depth=1..1024",
                "most requests in the device at a time [32]",
            ),
            (
                "slice_idle=0..1000",
                "fair, cfq: milliseconds that the device is kept for a process whose turn it is and who is about to ask for more [8]",
            ),
            (
                "low_latency, nolow_latency",
                "fair: a process that comes after a pause is favoured at first [low_latency]",
            ),
            (
                "strict_guarantees, nostrict_guarantees",
                "fair, cfq: one request at a time, for exact shares [nostrict_guarantees]",
            ),
            (
                "cgroup_weight=PATH:WEIGHT",
                "fair, cfq: the weight of a cgroup, 1 to 1000, instead of its own file's; repeatable; default: as the file says",
            ),
            (
                "device_model=BYTES[:US[:DEPTH[:US]]]",
                "for tests: a device of so many bytes a second, microseconds for each request, requests at a time, and microseconds for each FLUSH [0, 1, 0]",
            ),
            (
                "direct, buffered",
                "around the host's page cache, or through it [direct]",
            ),
            (
                "cache_size=BYTES",
                "memory for metadata and unwritten data, at least 8M [by the host's memory]",
            ),
            (
                "discard, nodiscard",
                "freed blocks are discarded once that is committed [nodiscard]",
            ),
            (
                "barrier[=0|1], nobarrier",
                "commits flush the device's cache [barrier]; without it a power cut can damage the volume",
            ),
        ],
    ),
    (
        "The journal and data",
        &[
            ("commit=SECONDS", "how often the journal commits [5]"),
            (
                "min_batch_time=US, max_batch_time=US",
                "how long a synchronous commit waits for company [0, 15000]",
            ),
            (
                "journal_checksum, nojournal_checksum",
                "whether the log has checksums [where the volume's metadata has them]",
            ),
            (
                "async_checkpoint[=1..99], noasync_checkpoint",
                "log space is freed in the background once less than so many percent are free, or only when it runs out [50]",
            ),
            ("journal_ioprio=0..7", "the journal's I/O priority [3]"),
            (
                "noload, norecovery, disable_roll_forward",
                "the journal is not replayed, what fsync wrote after f2fs's checkpoint not recovered; only with ro",
            ),
            (
                "sb=N",
                "the superblock to use, in units of 1 KiB: a copy where the first one is damaged [1]",
            ),
            (
                "data=ordered|writeback",
                "both: no committed file ever shows blocks that were not written",
            ),
            (
                "data_err=ignore|abort",
                "failing to write data also aborts the journal [ignore]",
            ),
            (
                "delalloc, nodelalloc",
                "blocks are chosen at write-back, or at write [delalloc]",
            ),
            (
                "auto_da_alloc[=0|1], noauto_da_alloc",
                "files that replace others by rename are written before, by truncate within seconds [on]",
            ),
            (
                "errors=continue|remount-ro",
                "what a damaged structure does to the volume [as the superblock says]",
            ),
        ],
    ),
    (
        "Files",
        &[
            ("acl, noacl", "POSIX access control lists [acl]"),
            ("user_xattr, nouser_xattr", "user.* attributes [user_xattr]"),
            (
                "grpid, bsdgroups, nogrpid, sysvgroups",
                "new files get their directory's group, or the caller's [nogrpid]",
            ),
            (
                "resuid=UID, resgid=GID",
                "who may use the reserved blocks [as the superblock says]",
            ),
            (
                "max_dir_size_kb=KIB",
                "the size no directory outgrows [none]",
            ),
            (
                "minixdf, bsddf",
                "statfs counts the volume's own structures as space, or not [bsddf]",
            ),
            (
                "stripe=BLOCKS",
                "long allocations begin at multiples of this; 0: anywhere [as the superblock says]",
            ),
            (
                "inode_readahead_blks=N",
                "inode table blocks read ahead: 0 or a power of two [32]",
            ),
        ],
    ),
    (
        "f2fs",
        &[
            (
                "fsync_mode=posix|strict|nobarrier",
                "what fsync makes durable: the file; the names it depends on, too; the file, without a FLUSH [posix]",
            ),
            (
                "checkpoint_merge, nocheckpoint_merge",
                "those who need a checkpoint at one time share it [checkpoint_merge]",
            ),
            (
                "checkpoint=disable[:BLOCKS|:PERCENT%]",
                "nothing is durable until checkpoint=enable: an unmount or a power cut brings back the volume as it was; so much of it may be unusable meanwhile [0]",
            ),
            (
                "fastboot",
                "each fsync is a checkpoint, so that the next mount is quick",
            ),
            (
                "background_gc=on|off|sync",
                "cleaning while the volume is idle; sync: it writes what it moves at once [on]",
            ),
            (
                "gc_policy=default|2013",
                "segments are cleaned and filled by today's rules, or by those of Linux 3.11, for experiments",
            ),
            (
                "atgc",
                "cleaning in the background chooses by age, on a volume that was mounted for a week",
            ),
            (
                "gc_merge, nogc_merge",
                "who needs space lets the cleaning task make it, or makes it himself [nogc_merge]",
            ),
            (
                "mode=adaptive|lfs",
                "blocks go where it is best, or always to free segments [adaptive]",
            ),
            (
                "alloc_mode=default|reuse",
                "the next free segment is that behind the last, or the volume's first [reuse up to 16 GiB]",
            ),
            (
                "active_logs=2|4|6",
                "logs that are written side by side [6]",
            ),
            (
                "discard_unit=block|segment|section",
                "the smallest piece that is discarded [block]",
            ),
            (
                "inline_data, noinline_data",
                "small files lie in their inodes [inline_data]",
            ),
            (
                "inline_dentry, noinline_dentry",
                "so do small directories [inline_dentry]",
            ),
            (
                "inline_xattr, noinline_xattr",
                "new inodes have room for attributes [inline_xattr]",
            ),
            (
                "inline_xattr_size=WORDS",
                "so much room, on volumes with flexible_inline_xattr [50]",
            ),
            (
                "disable_ext_identify",
                "names do not tell which files are hot or cold",
            ),
            (
                "data_flush",
                "checkpoints in the background write file data before",
            ),
            (
                "reserve_root=BLOCKS",
                "blocks for the superuser, resuid= and resgid= [0]",
            ),
        ],
    ),
    (
        "The program",
        &[
            (
                "fuse_transport=auto|uring|dev",
                "how requests come from the kernel [auto: io_uring where it is on]",
            ),
            (
                "control, nocontrol",
                "the hidden directory .steadfs in the root [control]",
            ),
            (
                "foreground",
                "the command stays until the volume is unmounted",
            ),
        ],
    ),
];

/// Taken as they are, because they hold anyway or are for others.
pub const TAKEN: &str = "auto, noauto, nofail, nouser, nousers, noowner, nogroup, _netdev, comment=, helper=, uhelper=, x-*, X-*, silent, loud, nomand, noiversion, symfollow, default_permissions, block_validity, dax=never, dax=inode, nolazytime, nostrictatime, noinit_itable, no_prefetch_block_bitmaps, nombcache, no_mbcache, nowarn_on_error, noquota, offusrjquota, offgrpjquota, offprjjquota, dioread_nolock, extent_cache, flush_merge, memory=normal, lookup_mode=perf, checkpoint=enable";

/// Accepted, and have no effect, which the command reports with the reason.
pub const NO_EFFECT: &str = "lazytime, norelatime, mand, iversion, i_version, seclabel, user_id=, group_id=, blksize=, loop, debug, warn_on_error, noblock_validity, journal_async_commit, init_itable=, dioread_lock, nodioread_nolock, mb_optimize_scan=, prefetch_block_bitmaps, inlinecrypt, quota, usrquota, grpquota, prjquota, usrjquota=, grpjquota=, prjjquota=, jqfmt=, bh, nobh, mblk_io_submit, nomblk_io_submit, oldalloc, orlov, reservation, noreservation, journal=, check=, nocheck, compress_algorithm=, compress_log_size=, compress_extension=, nocompress_extension=, compress_chksum, compress_mode=, compress_cache, memory=low, lookup_mode=, age_extent_cache, noextent_cache, noflush_merge, nat_bits, heap, no_heap, io_bits=, whint_mode=";

/// Volumes in fstab.
pub const FSTAB: &str = "mount(8) finds the helper mount.steadfs, which `make install` puts into /sbin: \
    the type steadfs (or fuse.steadfs) works in /etc/fstab, with noauto, nofail, _netdev, comment= and \
    x-systemd.* as with any other. With user, somebody who is not root may mount the line's image if it \
    is his to write, through fusermount3, and the mount point too. umount(8) returns when the volume is \
    closed. Example: /srv/disk.img /mnt/disk steadfs noauto,user,noatime 0 0";

const COLUMN: usize = 32;
const WIDTH: usize = 98;

/// All of it as text for a terminal.
pub fn help() -> String {
    let mut text = String::from("Mount options:\n");
    paragraph(&mut text, 2, 2, RULES);
    for (title, options) in GROUPS {
        text.push_str(&format!("\n{title}:\n"));
        for (names, meaning) in *options {
            text.push_str(&format!("  {names:<w$}", w = COLUMN - 2));
            let mut at = COLUMN;
            if names.len() + 3 > COLUMN {
                text.push('\n');
                at = 0;
            }
            paragraph(&mut text, COLUMN - at, COLUMN, meaning);
        }
    }
    text.push_str("\nTaken as they are, because they hold anyway or are for others:\n");
    paragraph(&mut text, 2, 2, TAKEN);
    text.push_str("\nAccepted without effect, each with its reason on standard error:\n");
    paragraph(&mut text, 2, 2, NO_EFFECT);
    text.push_str("\nIn fstab:\n");
    paragraph(&mut text, 2, 2, FSTAB);
    text
}

/// Words in lines of at most [`WIDTH`]: the first one after `first` blanks, the others after `rest`.
fn paragraph(out: &mut String, first: usize, rest: usize, words: &str) {
    out.push_str(&" ".repeat(first));
    let mut at = rest;
    for (n, word) in words.split_whitespace().enumerate() {
        if n > 0 && at + 1 + word.len() > WIDTH {
            out.push('\n');
            out.push_str(&" ".repeat(rest));
            at = rest;
        } else if n > 0 {
            out.push(' ');
            at += 1;
        }
        out.push_str(word);
        at += word.len();
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The names in "a=x|y, b[=0|1], c".
    fn names(list: &str) -> impl Iterator<Item = &str> {
        list.split(", ")
            .map(|item| item.split(['=', '[']).next().unwrap_or_default())
    }

    #[test]
    fn every_option_is_told_and_no_other() {
        let told: BTreeSet<&str> = GROUPS
            .iter()
            .flat_map(|(_, options)| *options)
            .flat_map(|(list, _)| names(list))
            .chain(names(TAKEN))
            .chain(names(NO_EFFECT))
            .filter(|name| *name != "x-*" && *name != "X-*")
            .collect();
        let taken: BTreeSet<&str> = steadfs::Options::names().collect();
        assert_eq!(told, taken);
    }

    #[test]
    fn help_fits_a_terminal() {
        for line in help().lines() {
            assert!(line.len() <= WIDTH && line.trim_end() == line, "{line:?}");
        }
    }
}
