//! What the control files are for: the words of the book's page on them. The files themselves are listed by a volume.

/// The page's beginning.
pub const ABOUT: &str = "# Control files

Each mount has a directory `.steadfs` in its root. It is not listed, and only root and the user who mounted the volume may \
use it. The option `nocontrol` leaves it out.

- A **setting** keeps the value that is written to it. `steadfs tune MOUNTPOINT` lists all settings, and \
`steadfs tune MOUNTPOINT NAME=VALUE ...` changes several at once, or none.
- An **action** does something when it is written.
- A file for **read** shows a state. Each open reads the state of that moment.

The third column shows the settings of a new volume of 64 MiB.

";

/// Files that exist only on volumes with a feature.
pub const QUOTA: &str = "
## Volumes with the feature quota

`quota/user`, `quota/group` and `quota/project` show usage and limits, and take new limits: a line `grace` with seconds for \
space and inodes, then a line for each id with the KiB used, the soft limit, the hard limit and the end of the grace time, and \
the same for inodes. `steadfs quota` reads and writes them.
";

/// The file that a mount has in addition to those of its volume.
pub const SYNC: &str = "a write to it, or an fsync of it, makes the volume durable";

/// Each file of `.steadfs`, and what it contains or does.
pub const FILES: &[(&str, &str)] = &[
    (
        "options",
        "the effective mount options, and those of the device that are not the defaults; a write is a remount",
    ),
    (
        "errors",
        "why the volume stopped, what is not written yet, each corruption, directories whose index is full",
    ),
    ("io/scheduler", "the queue's policy: fair, fifo or cfq"),
    ("io/queue", "queued requests by owner"),
    ("io/stats.json", "counters of the queue, as JSON"),
    ("ext4/freeze", "1 freezes the volume, 0 thaws it"),
    (
        "ext4/fsync_cluster_files",
        "how many other small files an fsync writes along at most; 0: none",
    ),
    ("jbd2/info", "the journal: commits, their times and sizes"),
    ("jbd2/stats.json", "the same as JSON"),
    ("f2fs/freeze", "1 freezes the volume, 0 thaws it"),
    (
        "f2fs/status",
        "segments, logs, checkpoints and GC, for people",
    ),
    ("f2fs/stats.json", "the same as JSON"),
    (
        "f2fs/ckpt_thread_ioprio",
        "I/O class and priority of the task that writes merged checkpoints",
    ),
    (
        "f2fs/max_batch_time",
        "how long a merged checkpoint waits for the usual requesters, in microseconds; 0: not at all",
    ),
    (
        "f2fs/fsync_cluster_files",
        "how many other small files an fsync writes along at most; 0: none",
    ),
    (
        "f2fs/cp_interval",
        "seconds between two checkpoints in the background",
    ),
    (
        "f2fs/idle_interval",
        "seconds without requests after which the volume counts as idle",
    ),
    (
        "f2fs/unusable",
        "blocks that checkpoint=disable makes unusable",
    ),
    (
        "f2fs/cp_foreground_calls",
        "checkpoints that a call waited for",
    ),
    ("f2fs/cp_background_calls", "checkpoints in the background"),
    (
        "f2fs/stat/sb_status",
        "the kernel's bits of the volume's state, in hexadecimal digits",
    ),
    (
        "f2fs/stat/cp_status",
        "the kernel's bits of the checkpoint's flags, in hexadecimal digits",
    ),
    (
        "f2fs/gc_min_sleep_time",
        "shortest pause of background GC, in milliseconds",
    ),
    (
        "f2fs/gc_max_sleep_time",
        "longest pause of background GC, in milliseconds",
    ),
    (
        "f2fs/gc_no_gc_sleep_time",
        "pause of background GC that found nothing to clean, in milliseconds",
    ),
    (
        "f2fs/gc_urgent_sleep_time",
        "pause of urgent GC, in milliseconds",
    ),
    (
        "f2fs/gc_idle_interval",
        "seconds without requests after which background GC runs",
    ),
    (
        "f2fs/bggc_io_aware",
        "whether background GC waits for other I/O, by the kernel's numbers",
    ),
    (
        "f2fs/gc_idle",
        "victim selection of background GC while idle, by the kernel's numbers",
    ),
    (
        "f2fs/gc_urgent",
        "urgent GC, by the kernel's numbers: 0 ends it, 1 is high, 2 is low, 3 is mid",
    ),
    (
        "f2fs/gc_remaining_trials",
        "rounds of urgent GC after which the mode returns to normal; 0: no limit",
    ),
    (
        "f2fs/atgc_candidate_ratio",
        "atgc: share of the candidates that are compared, in percent",
    ),
    (
        "f2fs/atgc_candidate_count",
        "atgc: smallest number of candidates that are compared",
    ),
    (
        "f2fs/atgc_age_threshold",
        "atgc: seconds after which a section is a candidate",
    ),
    (
        "f2fs/atgc_age_weight",
        "atgc: weight of the age against the share of valid blocks, in percent",
    ),
    (
        "f2fs/gc_segment_mode",
        "the GC mode whose cleaned segments gc_reclaimed_segments counts",
    ),
    (
        "f2fs/gc_pin_file_thresh",
        "segments in which GC skips a pinned file before it unpins the file",
    ),
    ("f2fs/gc_mode", "the name of the current GC mode"),
    (
        "f2fs/gc_reclaimed_segments",
        "segments that GC in the mode of gc_segment_mode has freed; 0 resets the count",
    ),
    ("f2fs/gc_foreground_calls", "GC runs that a call waited for"),
    ("f2fs/gc_background_calls", "GC runs in the background"),
    (
        "f2fs/moved_blocks_foreground",
        "blocks that GC moved while a call waited",
    ),
    (
        "f2fs/moved_blocks_background",
        "blocks that GC moved in the background",
    ),
    (
        "f2fs/avg_vblocks",
        "average number of valid blocks in a segment that is neither full nor free",
    ),
    (
        "f2fs/dirty_segments",
        "segments with valid and invalid blocks",
    ),
    ("f2fs/free_segments", "free segments"),
    ("f2fs/ovp_segments", "segments of the overprovisioned space"),
    ("f2fs/reserved_segments", "segments reserved for GC"),
    (
        "f2fs/max_victim_search",
        "dirty segments that a search for a victim looks at; see [the four mechanisms](../concepts/mechanisms.md)",
    ),
    (
        "f2fs/migration_granularity",
        "segments of a section that one round of background GC empties at most",
    ),
    (
        "f2fs/min_ssr_sections",
        "free sections, beside the reserved ones, below which blocks are placed in partly valid segments (SSR)",
    ),
    (
        "f2fs/ipu_policy",
        "when blocks are overwritten in place, by the kernel's bits",
    ),
    (
        "f2fs/min_ipu_util",
        "use of the volume in percent from which on blocks are overwritten in place, if ipu_policy has that bit",
    ),
    (
        "f2fs/min_fsync_blocks",
        "dirty blocks up to which an fsync overwrites in place, if ipu_policy has that bit",
    ),
    (
        "f2fs/reclaim_segments",
        "prefree segments from which on a checkpoint is taken in the background",
    ),
];
