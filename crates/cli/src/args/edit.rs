//! Arguments of the commands that change files on a volume. Names and letters are those of coreutils.

use std::ffi::OsString;

use steadfs::tools::edit::{ModeChange, SizeChange};

use super::offline::Open;

/// Parses a mode of chmod(1).
fn mode(text: &str) -> Result<ModeChange, &'static str> {
    ModeChange::parse(text).ok_or(MODES)
}

const MODES: &str = "needs a mode, such as 755 or u+rwX,go=u-w";

/// Operands where the first word is the new mode or owner, unless a reference file has it.
fn operands(first: &OsString, places: &[OsString], has_reference: bool) -> Vec<OsString> {
    let first = has_reference.then_some(first);
    first.into_iter().chain(places).cloned().collect()
}

/// When `rm` asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Asks {
    Never,
    Once,
    Always,
}

impl Rm {
    /// When a question is asked: the last option counts.
    pub fn asks(&self) -> Asks {
        match (self.each, self.once) {
            (true, _) => Asks::Always,
            (_, true) => Asks::Once,
            _ => self.interactive.unwrap_or(Asks::Never),
        }
    }
}

impl Chmod {
    /// The files.
    pub fn operands(&self) -> Vec<OsString> {
        operands(&self.mode, &self.places, self.reference.is_some())
    }

    /// The mode, if no reference file has it.
    pub fn change(&self) -> Result<ModeChange, String> {
        let parsed = self.mode.to_str().ok_or(MODES).and_then(mode);
        parsed.map_err(|why| format!("{}: {why}", self.mode.display()))
    }
}

impl Chown {
    /// The files.
    pub fn operands(&self) -> Vec<OsString> {
        operands(&self.owner, &self.places, self.reference.is_some())
    }
}

fn size(text: &str) -> Result<SizeChange, String> {
    SizeChange::parse(text)
}

/// Make directories on a volume.
#[derive(Debug, clap::Args)]
pub struct Mkdir {
    /// IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    /// Make the directories around it, too; one that exists is no error.
    #[arg(short, long)]
    pub parents: bool,
    /// The mode, as in chmod(1), instead of rwx for all without the umask.
    #[arg(short, long, value_name = "MODE", value_parser = mode)]
    pub mode: Option<ModeChange>,
    /// Print each change.
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Remove empty directories from a volume.
#[derive(Debug, clap::Args)]
pub struct Rmdir {
    /// IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    /// Remove the directories around it, too.
    #[arg(short, long)]
    pub parents: bool,
    /// A directory that is not empty is no error.
    #[arg(long)]
    pub ignore_fail_on_non_empty: bool,
    /// Print each change.
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Remove files from a volume.
///
/// Symbolic links are removed, not followed. What cannot be removed is reported, and the rest goes on;
/// the exit code is 1 then.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct Rm {
    /// IMAGE:/PATH.
    #[arg(required_unless_present = "force", value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    /// Remove directories with all that is in them.
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// What does not exist, or a pattern that nothing matches, is no error, and nothing is asked.
    #[arg(short, long, overrides_with_all = ["each", "once", "interactive"])]
    pub force: bool,
    /// Ask before each removal.
    #[arg(short = 'i', overrides_with_all = ["force", "once", "interactive"])]
    pub each: bool,
    /// Ask once if there are more than three operands, or with -r.
    #[arg(short = 'I', overrides_with_all = ["force", "each", "interactive"])]
    pub once: bool,
    /// Ask never, once (-I) or always (-i).
    #[arg(
        long,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always",
        overrides_with_all = ["force", "each", "once"]
    )]
    pub interactive: Option<Asks>,
    /// Remove empty directories.
    #[arg(short, long)]
    pub dir: bool,
    /// Print each change.
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Move files inside a volume.
///
/// Between volumes, and to or from the host: cp -a, then rm.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct Mv {
    /// Sources, and last the target unless -t is given.
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    /// Do not replace existing files.
    #[arg(short, long, overrides_with_all = ["force", "interactive"])]
    pub no_clobber: bool,
    /// Replace existing files, the default.
    #[arg(short, long, overrides_with_all = ["no_clobber", "interactive"])]
    pub force: bool,
    /// Ask before an existing file is replaced.
    #[arg(short, long, overrides_with_all = ["no_clobber", "force"])]
    pub interactive: bool,
    /// Print each change.
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub open: Open,
}

/// Where `mv` and `ln` put their operands.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Into this directory.
    #[arg(
        short,
        long,
        value_name = "DIRECTORY",
        conflicts_with = "no_target_directory"
    )]
    pub target_directory: Option<OsString>,
    /// The target is the name itself, even if it is a directory.
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
}

/// Make links on a volume.
///
/// With -s the operands are the texts of the links, such as ../lib/x.so: steadfs ln -s TEXT IMAGE:/PATH. With -s -r they are
/// files on the volume.
#[derive(Debug, clap::Args)]
#[command(args_override_self = true)]
pub struct Ln {
    /// Operands, and last the target unless -t is given.
    #[arg(required = true, value_name = "PATH")]
    pub places: Vec<OsString>,
    /// Symbolic links.
    #[arg(short, long)]
    pub symbolic: bool,
    /// Remove existing files first.
    #[arg(short, long, overrides_with = "interactive")]
    pub force: bool,
    /// Ask before an existing file is removed.
    #[arg(short, long, overrides_with = "force")]
    pub interactive: bool,
    /// With -s: operands are IMAGE:/PATH, and the texts of the links the ways to them.
    #[arg(short, long, requires = "symbolic")]
    pub relative: bool,
    /// A target that is a link to a directory is the name itself.
    #[arg(short, long)]
    pub no_dereference: bool,
    /// Print each change.
    #[arg(short, long)]
    pub verbose: bool,
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub open: Open,
}

/// Change permissions of files on a volume.
#[derive(Debug, clap::Args)]
pub struct Chmod {
    /// The mode: octal, or [ugoa]*[-+=][rwxXst]*|[ugo], separated by commas. None with --reference.
    #[arg(allow_hyphen_values = true)]
    pub mode: OsString,
    /// IMAGE:/PATH.
    #[arg(required_unless_present = "reference", value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    /// The mode of this file: IMAGE:/PATH, or of the host.
    #[arg(long, value_name = "PATH")]
    pub reference: Option<OsString>,
    /// Print each mode that changes.
    #[arg(short, long, overrides_with = "verbose")]
    pub changes: bool,
    /// Directories with all that is in them; links in them are passed over.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Print what becomes of each file.
    #[arg(short, long, overrides_with = "changes")]
    pub verbose: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Change owner and group of files on a volume.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Chown {
    /// OWNER, OWNER:GROUP, :GROUP, or OWNER: for the owner's login group. Numbers, or names in /etc/passwd and
    /// /etc/group of the volume. None with --reference.
    pub owner: OsString,
    /// IMAGE:/PATH.
    #[arg(required_unless_present = "reference", value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    /// Owner and group of this file: IMAGE:/PATH, or of the host.
    #[arg(long, value_name = "PATH")]
    pub reference: Option<OsString>,
    /// Print each owner that changes.
    #[arg(short, long, overrides_with = "verbose")]
    pub changes: bool,
    /// Directories with all that is in them; links are changed themselves.
    #[arg(short = 'R', long)]
    pub recursive: bool,
    /// Links themselves.
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    /// Print what becomes of each file.
    #[arg(short, long, overrides_with = "changes")]
    pub verbose: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Change times of files on a volume; a missing file is made.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Touch {
    /// IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    /// Only the time of access.
    #[arg(short = 'a')]
    pub access: bool,
    /// Only the time of modification.
    #[arg(short = 'm')]
    pub modification: bool,
    /// Make no file.
    #[arg(short = 'c', long)]
    pub no_create: bool,
    /// Links themselves.
    #[arg(short = 'h', long)]
    pub no_dereference: bool,
    /// This time: YYYY-MM-DD [HH:MM[:SS]] [ZONE], or @SECONDS; UTC without a zone.
    #[arg(short, long, value_name = "DATE")]
    pub date: Option<String>,
    /// This time: [[CC]YY]MMDDhhmm[.ss], UTC.
    #[arg(short = 't', value_name = "STAMP", conflicts_with_all = ["date", "reference"])]
    pub stamp: Option<String>,
    /// The times of this file: IMAGE:/PATH, or of the host.
    #[arg(short, long, value_name = "PATH", conflicts_with = "date")]
    pub reference: Option<OsString>,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: Open,
}

/// Set the size of files on a volume; a missing file is made.
#[derive(Debug, clap::Args)]
pub struct Truncate {
    /// IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE:/PATH")]
    pub places: Vec<OsString>,
    /// The size in bytes, or with K, M, G, T. With + or - a change, < at most, > at least, / and % a multiple of it.
    #[arg(
        short,
        long,
        value_parser = size,
        allow_hyphen_values = true,
        required_unless_present = "reference"
    )]
    pub size: Option<SizeChange>,
    /// The size of this file, which -s can change: IMAGE:/PATH, or of the host.
    #[arg(short, long, value_name = "PATH")]
    pub reference: Option<OsString>,
    /// Make no file.
    #[arg(short = 'c', long)]
    pub no_create: bool,
    #[command(flatten)]
    pub open: Open,
}
