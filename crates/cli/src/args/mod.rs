//! The command line's arguments.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand};
use steadfs_base::size;

pub mod edit;
mod format;
pub mod key;
pub mod offline;
mod owners;
mod resize;
pub mod script;
mod select;
mod tar;
pub mod trees;
pub mod verity;

pub use format::Format;
pub use key::Key;
pub use offline::{Cat, Check, Cp, Extract, Inspect, Ls, Quota, Stat};
pub use owners::Owners;
pub use resize::Resize;
pub use select::Select;
pub use tar::Tar;
pub use trees::{Du, Find, Tree};
pub use verity::Verity;

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

/// Parses a size, of which a number without a unit counts bytes.
pub fn size<T: TryFrom<u64>>(text: &str) -> Result<T, String> {
    let bytes = size::parse(text, 1).map_err(|why| why.to_string())?;
    T::try_from(bytes).map_err(|_| "is too large".to_owned())
}

/// Parses a percentage.
pub fn percent(text: &str) -> Result<f64, &'static str> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite());
    number.ok_or("needs a percentage, such as 5 or 0.5")
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Format(Box<Format>),
    Check(Check),
    Resize(Resize),
    Inspect(Inspect),
    Mount(Mount),
    Umount(Umount),
    List(List),
    Top(Top),
    Remount(Remount),
    Upgrade(Upgrade),
    Tune(Tune),
    Quota(Quota),
    Key(Key),
    Verity(Verity),
    Sync(Sync),
    Ls(Ls),
    Cat(Cat),
    Cp(Cp),
    Extract(Extract),
    Tar(Tar),
    Stat(Stat),
    Find(Find),
    Du(Du),
    Tree(Tree),
    Mkdir(edit::Mkdir),
    Rmdir(edit::Rmdir),
    Rm(edit::Rm),
    Mv(edit::Mv),
    Ln(edit::Ln),
    Chmod(edit::Chmod),
    Chown(edit::Chown),
    Touch(edit::Touch),
    Truncate(edit::Truncate),
    Edit(script::Edit),
    /// Serve a mount that fuservicemount3(8) makes; systemd starts this (steadfs@.service), with the mounter's socket.
    Service,
    Completions(Completions),
    Lab(Lab),
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
    /// Run in the foreground and log to standard error. An interrupt or a hang-up of the terminal unmounts;
    /// another interrupt, at least a second later, does not wait for what is not written, which is lost.
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
    /// For umount(8)'s -r: if the mount is in use, it becomes read-only.
    #[arg(skip)]
    pub or_read_only: bool,
}

/// List the mounted volumes.
///
/// With type, size and use of each, and its state: ok, the first of its errors (.steadfs/errors), or that its server has
/// ended or does not answer within two seconds.
#[derive(Debug, clap::Args)]
pub struct List {
    /// Print a JSON document (docs/json.md).
    #[arg(long)]
    pub json: bool,
}

/// Show what mounted volumes do, now and in each interval.
///
/// For each mount: bytes read and written, requests, fsyncs and their mean time, data that is not on the device yet, requests
/// in queue and device, free space of the journal's log, commits or checkpoints, boosts; for the chosen one a histogram of
/// fsync times and the requests that wait: process, operation, inode, step and since when. Keys: q quits, the arrows choose a mount, p pauses. It reads .steadfs of each mount, which only root and
/// the user who mounted may do.
#[derive(Debug, clap::Args)]
pub struct Top {
    /// Mount points [default: all mounts].
    #[arg(value_name = "MOUNTPOINT")]
    pub mountpoints: Vec<PathBuf>,
    /// Print one JSON object for each mount and interval, on a line of its own (docs/json.md).
    #[arg(long)]
    pub json: bool,
    /// Length of an interval, from 0.1 to 3600.
    #[arg(short, long, value_name = "SECONDS", value_parser = interval, default_value = "1")]
    pub interval: Duration,
    /// End after this many intervals.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// Parses the length of an interval.
fn interval(text: &str) -> Result<Duration, &'static str> {
    let seconds: Option<f64> = text.parse().ok();
    match seconds.filter(|seconds| (0.1..=3600.0).contains(seconds)) {
        Some(seconds) => Ok(Duration::from_secs_f64(seconds)),
        None => Err("needs a number of seconds from 0.1 to 3600"),
    }
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
    /// Print the values that may replace the last of WORDS, as the scripts request it.
    #[arg(long, hide = true)]
    pub values: bool,
    #[arg(last = true, hide = true, requires = "values")]
    pub words: Vec<OsString>,
}

/// Experiments and crash tests on simulated devices (the program steadfs-lab).
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Lab {
    /// Commands and options of steadfs-lab; steadfs lab --help lists them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<OsString>,
}
