//! The command line's arguments.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// ext2, ext3, ext4 and f2fs volumes in user space: mount them, or read and write them without a mount.
#[derive(Debug, Parser)]
#[command(name = "steadfs", version, max_term_width = 100)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// Parses a number.
pub fn number<T: TryFrom<u64>>(text: &str) -> Result<T, &'static str> {
    let number: u64 = text.parse().map_err(|_| "needs a whole number")?;
    T::try_from(number).map_err(|_| "is too large")
}

/// Parses a percentage.
pub fn percent(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or("needs a percentage, such as 5 or 0.5")
}

/// Parses a number of bytes, as mount options do.
fn size_of_bytes(text: &str) -> Result<u32, &'static str> {
    let bytes =
        steadfs_vfs::options::bytes(text).map_err(|_| "needs a number of bytes, or with K or M")?;
    u32::try_from(bytes).map_err(|_| "is too large")
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Format(Box<Format>),
    Check(Check),
    Inspect(Inspect),
    Mount(Mount),
    Umount(Umount),
    Remount(Remount),
    Upgrade(Upgrade),
    Tune(Tune),
    Sync(Sync),
    Ls(Ls),
    Cat(Cat),
    Cp(Cp),
    Extract(Extract),
    Stat(Stat),
    /// Serve a mount that fuservicemount3(8) makes; systemd starts this (steadfs@.service), with the mounter's socket.
    Service,
    Completions(Completions),
    Lab(Lab),
}

/// Format an ext2, ext3, ext4 or f2fs volume; existing content is lost.
///
/// Options and defaults are mke2fs's. With `-t f2fs` they are those of mkfs.f2fs (see steadfs format -t f2fs --help):
/// -i, -m, -r, -t 0, -T, -g, -o, -s, -z and others then have mkfs.f2fs's meaning. SOURCE_DATE_EPOCH sets all times in
/// the volume: with it and -U the same tree gives the same bytes.
#[derive(Debug, clap::Args)]
#[command(version, args_override_self = true)]
pub struct Format {
    /// Image file or block device.
    pub volume: PathBuf,
    /// Size of the volume; an image file is created or extended. A bare number counts blocks of -b bytes, or KiB
    /// without -b (f2fs: sectors), as in mke2fs; or with s (512 bytes), K, M, G, T, KiB to TiB, or B (bytes).
    pub size: Option<String>,
    /// Kind of volume: ext2, ext3, ext4 (the default) or f2fs.
    #[arg(short = 't', long = "type", value_name = "KIND")]
    pub kind: Vec<String>,
    /// Usage type: floppy, small, default, big, huge, news, largefile or largefile4.
    #[arg(short = 'T', long, value_name = "LIST")]
    pub usage: Option<String>,
    /// Bytes in a block: a power of two from 1024 to 65536. With a minus, as in -4096: a
    /// minimum; the volume's size decides.
    #[arg(short, long, value_name = "BYTES", allow_hyphen_values = true)]
    pub block_size: Option<String>,
    /// Number of inodes.
    #[arg(short = 'N', long, value_name = "NUMBER", value_parser = number::<u64>)]
    pub inodes: Option<u64>,
    /// Bytes of the volume for each inode.
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = size_of_bytes)]
    pub inode_ratio: Option<u32>,
    /// Bytes in an inode.
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = number::<u16>)]
    pub inode_size: Option<u16>,
    /// Blocks in a group: a multiple of 8.
    #[arg(short = 'g', long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub blocks_per_group: Option<u32>,
    /// Groups whose bitmaps and inode tables are stored together: a power of two; default 16.
    #[arg(short = 'G', long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub flex_group_size: Option<u32>,
    /// Last mount point to record in the superblock.
    #[arg(short = 'M', long, value_name = "DIR")]
    pub last_mounted: Option<String>,
    /// Revision of the format: 1. Revision 0 is not supported.
    #[arg(short, long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub revision: Option<u32>,
    /// Use O_DIRECT, as mke2fs -D; it is the default if the device supports it.
    #[arg(short = 'D', long)]
    pub direct: bool,
    /// Percentage of blocks reserved for root; default 5.
    #[arg(short = 'm', long, value_name = "PERCENT", value_parser = percent)]
    pub reserved: Option<f64>,
    /// Label: at most 16 bytes, f2fs (there also -l) 511 units of UTF-16.
    #[arg(short = 'L', long)]
    pub label: Option<String>,
    /// UUID, or random, time, clear.
    #[arg(short = 'U', long)]
    pub uuid: Option<String>,
    /// Features, separated by commas; ^ removes one.
    #[arg(short = 'O', long, value_name = "LIST")]
    pub features: Vec<String>,
    /// Create a journal for any kind; the same as -O has_journal.
    #[arg(short = 'j', long)]
    pub with_journal: bool,
    /// Journal options, such as size=MIB.
    #[arg(short = 'J', long, value_name = "LIST")]
    pub journal: Vec<String>,
    /// mke2fs's extended options, such as offset=BYTES (start of the volume on the device) or root_owner[=UID:GID];
    /// f2fs: additional file name extensions of hot data.
    #[arg(short = 'E', long, value_name = "LIST")]
    pub extended: Vec<String>,
    /// Behavior on errors: continue, remount-ro or panic; f2fs: additional file name extensions of cold data.
    #[arg(short = 'e', long)]
    pub errors: Option<String>,
    /// Fill the volume with the content of this directory; mkfs.f2fs's debug level -d is not supported.
    #[arg(short = 'd', long, value_name = "DIR")]
    pub from_dir: Option<PathBuf>,
    /// Overwrite existing content: do not ask at a terminal, and replace an existing f2fs volume.
    #[arg(short, long, short_alias = 'F')]
    pub force: bool,
    /// Dry run: print sizes and the locations of superblock backups.
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print features, UUID and the locations of superblock backups, too.
    #[arg(short, long)]
    pub verbose: bool,
    /// Print nothing.
    #[arg(short, long)]
    pub quiet: bool,
    /// Creator operating system, as mke2fs -o: Linux.
    #[arg(short = 'o', long, value_name = "OS")]
    pub creator_os: Option<String>,
    /// mke2fs's old name of -E nodiscard.
    #[arg(short = 'K', hide = true)]
    pub keep: bool,
    /// mke2fs's old name of -E.
    #[arg(short = 'R', hide = true)]
    pub raid: Vec<String>,
    /// Parse what the device holds, and fill the volume, in a process without rights over the host, the default, or with
    /// the caller's rights (off); also STEADFS_SANDBOX=off.
    #[arg(long, value_name = "on|off", value_parser = sandbox)]
    pub sandbox: Option<Sandbox>,
    #[command(flatten)]
    pub refused: RefusedFormat,
    #[command(flatten)]
    pub f2fs: F2fsFormat,
}

/// Options of mke2fs that are refused with a reason.
#[derive(Debug, clap::Args)]
pub struct RefusedFormat {
    #[arg(short = 'c', hide = true)]
    pub bad_blocks: bool,
    #[arg(short = 'l', hide = true)]
    pub bad_block_list: Option<String>,
    #[arg(short = 'C', hide = true)]
    pub cluster_size: Option<String>,
    #[arg(short = 'S', hide = true)]
    pub superblocks_only: bool,
    #[arg(short = 's', hide = true)]
    pub sparse: Option<String>,
    #[arg(short = 'z', hide = true)]
    pub undo_file: Option<PathBuf>,
}

/// Options of f2fs volumes.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "f2fs only (mkfs.f2fs's letters after -t f2fs in parentheses)")]
pub struct F2fsFormat {
    /// Segments of 2 MiB per section, the unit of GC; default 1 (-s).
    #[arg(long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub segments_per_section: Option<u32>,
    /// Sections per zone; default 1 (-z).
    #[arg(long, value_name = "NUMBER", value_parser = number::<u32>)]
    pub sections_per_zone: Option<u32>,
    /// Percentage of the main area reserved for GC; 0 or none: the optimum (-o).
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub overprovision: Option<f64>,
    /// Larger node bitmap, stored after the checkpoint's checksum (-i).
    #[arg(long)]
    pub extended_node_bitmap: bool,
    /// Owner of the root directory, such as 1000:100; default: the calling user and group (-R).
    #[arg(long, value_name = "USER:GROUP")]
    pub root_owner: Option<String>,
    /// Bytes per sector: 512, 1024, 2048 or 4096; default: the device's (-w).
    #[arg(long, value_name = "BYTES", value_parser = number::<u32>)]
    pub sector_size: Option<u32>,
    /// Do not discard the device's old content (-t 0).
    #[arg(long)]
    pub nodiscard: bool,
}

/// Mount the volume on an image file or block device.
///
/// The command returns when the mount is usable. Exit codes are those of mount(8): 1 for a wrong
/// call or missing permission, 2 for an error of the system, 32 when the volume cannot be mounted.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_long_help = crate::mount_options::help())]
#[command(override_usage = "steadfs mount [OPTIONS] VOLUME MOUNTPOINT\n       \
                            steadfs mount [OPTIONS] -L LABEL|-U UUID MOUNTPOINT")]
pub struct Mount {
    /// Image file or block device, or IMAGE@PARTITION (see the option partition); LABEL=, UUID=, PARTLABEL= or PARTUUID=
    /// names a device as in fstab.
    pub volume: PathBuf,
    /// Directory to mount on.
    #[arg(required_unless_present_any = ["label", "uuid"])]
    pub mountpoint: Option<PathBuf>,
    /// Mount the device with this label; the same as LABEL=.
    #[arg(short = 'L', long, conflicts_with_all = ["uuid", "mountpoint"])]
    pub label: Option<String>,
    /// Mount the device with this UUID; the same as UUID=.
    #[arg(short = 'U', long, conflicts_with = "mountpoint")]
    pub uuid: Option<String>,
    /// Mount the volume only if it is of one of these kinds: ext2, ext3, ext4, f2fs; as in mount(8), ext4 includes ext2
    /// and ext3, and auto means any.
    #[arg(
        short = 't',
        long = "types",
        value_name = "LIST",
        value_delimiter = ','
    )]
    pub types: Vec<String>,
    #[command(flatten)]
    pub options: ListedOptions,
    /// No effect, as in mount(8) today: there is no mtab.
    #[arg(short = 'n', long)]
    pub no_mtab: bool,
    /// Run in the foreground and log to standard error. An interrupt or a hang-up of the terminal unmounts.
    #[arg(short, long)]
    pub foreground: bool,
    /// Log what the mount finds and does.
    #[arg(short, long)]
    pub verbose: bool,
    /// Run the server; it reports on standard output that the mount is usable.
    #[arg(long, hide = true)]
    pub serve: bool,
    /// Run the server of a broker: standard input and output are its sockets.
    #[arg(long, hide = true)]
    pub contained: bool,
    /// The same for a server that continues a mount.
    #[arg(long, hide = true)]
    pub successor: bool,
    /// The same for the server of a service, whose mounter root uses, or another user.
    #[arg(long, hide = true, value_parser = ["root", "other"])]
    pub service_of: Option<String>,
}

/// `-o`, `-r` and `-w` of mount(8). The last one wins, so their order is kept, which clap's derived fields lose.
#[derive(Clone, Debug, Default)]
pub struct ListedOptions {
    /// All of them as lists.
    pub lists: Vec<String>,
    /// Whether `-w` is among them.
    pub read_write: bool,
}

impl ListedOptions {
    const IDS: [&str; 3] = ["options", "read_only", "read_write"];
}

impl clap::FromArgMatches for ListedOptions {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let mut listed = Self::default();
        listed.update_from_arg_matches(matches)?;
        Ok(listed)
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        let mut lists = Vec::new();
        for id in Self::IDS {
            let places = matches.indices_of(id).into_iter().flatten();
            let words = matches.get_many::<String>(id).into_iter().flatten();
            lists.extend(places.zip(words.cloned()));
        }
        lists.sort_unstable();
        self.lists = lists.into_iter().map(|(_, list)| list).collect();
        self.read_write = matches.contains_id("read_write");
        Ok(())
    }
}

impl clap::Args for ListedOptions {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flag = |id: &'static str, letter: char, word: &'static str, long: &'static str| {
            let flag = clap::Arg::new(id).short(letter).long(long).num_args(0);
            flag.action(clap::ArgAction::Append)
                .default_missing_value(word)
        };
        let [options, read_only, read_write] = Self::IDS;
        command
            .arg(
                clap::Arg::new(options)
                    .short('o')
                    .long("options")
                    .value_name("LIST")
                    .action(clap::ArgAction::Append)
                    .help("Mount options, separated by commas, as in mount(8); may be given several times"),
            )
            .arg(flag(read_only, 'r', "ro", "read-only").help("Mount read-only; the same as -o ro"))
            .arg(
                flag(read_write, 'w', "rw", "read-write")
                    .alias("rw")
                    .help("Mount for reading and writing, or not at all"),
            )
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

/// Unmount a volume; returns when it is closed and all data is on the device.
#[derive(Debug, clap::Args)]
pub struct Umount {
    /// The mount point, or the image or device that is mounted.
    pub mountpoint: PathBuf,
    /// Detach the mount now, even if it is in use, and do not wait.
    #[arg(short, long)]
    pub lazy: bool,
    /// Abort the connection to a server that does not respond: pending calls and later calls on open files fail.
    /// Dirty data in the kernel is lost; data that the server has acknowledged is still written if the server runs,
    /// but the command does not wait for it. A server that is stuck must be killed. Requires root.
    #[arg(short, long)]
    pub force: bool,
}

/// Change options of a mounted volume.
#[derive(Debug, clap::Args)]
pub struct Remount {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// Mount options to change, separated by commas.
    #[arg(short, long = "options", value_name = "LIST", required = true)]
    pub options: Vec<String>,
}

/// Replace the server of a mounted volume by the program as it is installed now.
///
/// The server writes everything, and a new process continues: files stay open, calls wait for the time of an unmount and a
/// mount, and none fails. If the new program cannot continue, the old one does. Not possible with `sandbox=off`, and where
/// requests come through io_uring (mount with `fuse_transport=dev`).
#[derive(Debug, clap::Args)]
pub struct Upgrade {
    /// The mount point.
    pub mountpoint: PathBuf,
}

/// Show and change settings of a mounted volume.
///
/// The settings are the writable files below `.steadfs`, with their names in the kernel. Either all or none are
/// changed: an invalid value changes nothing. Without arguments all settings are listed.
#[derive(Debug, clap::Args)]
pub struct Tune {
    /// The mount point.
    pub mountpoint: PathBuf,
    /// The setting to change; without =VALUE, to show.
    #[arg(value_name = "NAME[=VALUE]")]
    pub settings: Vec<String>,
}

/// Make everything written to a mounted volume durable.
#[derive(Debug, clap::Args)]
pub struct Sync {
    /// The mount point.
    pub mountpoint: PathBuf,
}

/// How to open an image without mounting it.
#[derive(Debug, clap::Args)]
pub struct Open {
    /// Options for opening the volume (or each of them), such as offset=1M or partition=2; separated by commas.
    #[arg(short = 'o', long = "options", value_name = "LIST")]
    pub options: Vec<String>,
    /// Parse volumes in a process without rights over the host, the default, or with the caller's rights (off); also
    /// STEADFS_SANDBOX=off.
    #[arg(long, value_name = "on|off", value_parser = sandbox)]
    pub sandbox: Option<Sandbox>,
}

/// Whether volumes are parsed without rights over the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sandbox {
    On,
    Off,
}

/// Parses on or off.
pub fn sandbox(text: &str) -> Result<Sandbox, &'static str> {
    match text {
        "on" => Ok(Sandbox::On),
        "off" => Ok(Sandbox::Off),
        _ => Err("needs on or off"),
    }
}

/// Print a shell completion script.
///
/// `make install` installs them. Manually, for bash: steadfs completions bash
/// >~/.local/share/bash-completion/completions/steadfs
#[derive(Debug, clap::Args)]
pub struct Completions {
    /// The shell.
    pub shell: clap_complete::Shell,
}

/// Experiments and crash tests on simulated devices (the program steadfs-lab).
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Lab {
    /// Commands and options of steadfs-lab; steadfs lab --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}

/// Check a volume; nothing is changed.
///
/// Exit codes are e2fsck's: 0 for a clean volume, 4 for errors found, 8 if it could not be checked, 16 for wrong usage.
#[derive(Debug, clap::Args)]
pub struct Check {
    /// Image file or block device.
    pub volume: PathBuf,
    #[command(flatten)]
    pub open: Open,
}

/// Show a volume's superblock: features, journal, usage.
#[derive(Debug, clap::Args)]
pub struct Inspect {
    /// Image file or block device.
    pub volume: PathBuf,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: Open,
}

/// List files on a volume.
///
/// Like ls(1), one name per line; owners are numbers, times are UTC.
#[derive(Debug, clap::Args)]
pub struct Ls {
    /// IMAGE or IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    pub places: Vec<OsString>,
    /// Type, permissions, links, owner, group, size and time of each file.
    #[arg(short)]
    pub long: bool,
    /// Also names that begin with a dot.
    #[arg(short, long)]
    pub all: bool,
    /// As -a, but not the entries . and ..
    #[arg(short = 'A', long)]
    pub almost_all: bool,
    /// Directories themselves, not their entries.
    #[arg(short, long)]
    pub directory: bool,
    /// Also the entries of subdirectories.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Inode numbers.
    #[arg(short, long)]
    pub inode: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Write files' contents to standard output.
#[derive(Debug, clap::Args)]
pub struct Cat {
    /// IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    #[command(flatten)]
    pub open: Open,
}

/// Copy files into a volume, out of it, or from one to another.
///
/// Sources, targets and options are those of cp(1), except that new files always keep types, permissions, times, extended
/// attributes, holes and hard links. They also keep owners; out of a volume only if root runs it, else set-ID bits are
/// dropped. A path on a volume is IMAGE:/PATH, its root IMAGE: (write ./a:/b for a host path with a colon); - is standard
/// input or output. A file that cannot be copied is reported, and the copy continues; the exit code is 1 then. An
/// interrupted copy closes the volume; the files copied so far are there.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct Cp {
    /// Sources, and last the target unless -t is given.
    #[arg(required = true, value_name = "PATH")]
    pub places: Vec<OsString>,
    /// Copy directories recursively; special files are created, not read.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// The same as -r -d -p.
    #[arg(short, long)]
    pub archive: bool,
    /// Set owner, mode, times and attributes also on existing files.
    #[arg(short, long)]
    pub preserve: bool,
    /// Copy links as links (the default with -r).
    #[arg(short = 'P', long, overrides_with_all = ["dereference", "dereference_named", "links"])]
    pub no_dereference: bool,
    /// Follow symbolic links.
    #[arg(short = 'L', long, overrides_with_all = ["no_dereference", "dereference_named", "links"])]
    pub dereference: bool,
    /// Follow symbolic links on the command line, but copy links below them as links.
    #[arg(short = 'H', overrides_with_all = ["no_dereference", "dereference", "links"])]
    pub dereference_named: bool,
    /// The same as -P: hard links are always kept.
    #[arg(short = 'd', overrides_with_all = ["no_dereference", "dereference", "dereference_named"])]
    pub links: bool,
    /// Replace an existing file that cannot be opened, and overwrite an image by a file.
    #[arg(short, long)]
    pub force: bool,
    /// Do not overwrite existing files.
    #[arg(short, long)]
    pub no_clobber: bool,
    /// Remove existing files first.
    #[arg(long)]
    pub remove_destination: bool,
    /// Copy into this directory.
    #[arg(
        short,
        long,
        value_name = "DIRECTORY",
        conflicts_with = "no_target_directory"
    )]
    pub target_directory: Option<OsString>,
    /// The target is the copy itself, even if it is a directory.
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Print each copied file.
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub to_host: ToHost,
    #[command(flatten)]
    pub open: Open,
}

/// Options of copies to the host.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct ToHost {
    /// To the host: no set-ID bits, no device nodes (each is reported), no attributes below security. and trusted.; for
    /// root's copies of untrusted volumes.
    #[arg(long)]
    pub no_privileges: bool,
    /// To the host: also copy more data than 16 times the size of the image or device, which compressed files or files
    /// that share blocks can have.
    #[arg(long)]
    pub unlimited: bool,
}

/// Copy a whole volume, or a part of it, to a directory.
///
/// A file that cannot be copied is reported, and the copy continues; the exit code is 1 then.
#[derive(Debug, clap::Args)]
pub struct Extract {
    /// IMAGE or IMAGE:/PATH.
    #[arg(value_name = "IMAGE[:/PATH]")]
    pub place: OsString,
    /// The directory to fill; it is created if it does not exist.
    pub directory: PathBuf,
    /// Replace existing files.
    #[arg(short, long)]
    pub force: bool,
    #[command(flatten)]
    pub to_host: ToHost,
    #[command(flatten)]
    pub open: Open,
}

/// Show all attributes of files on a volume, or statistics of a mounted volume.
///
/// For a mount: its queue with waits and boosts, by operation and by group, and its commits, reclaim, checkpoints and GC.
#[derive(Debug, clap::Args)]
pub struct Stat {
    /// IMAGE:/PATH, or a mount point.
    #[arg(required = true, value_name = "IMAGE:/PATH|MOUNTPOINT")]
    pub places: Vec<OsString>,
    /// For a mount: print JSON, times of the queue in nanoseconds.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: Open,
}
