//! Arguments of `find`, `du` and `tree`. Names and letters are those of findutils, coreutils and tree(1).

use std::ffi::OsString;

use steadfs::tools::Unit;
use steadfs_base::size;

use super::offline::Open;

/// Find files on a volume.
///
/// The expression is that of find(1). Tests: -name -iname -path -ipath -lname -ilname -type -xtype -size -empty -perm
/// -user -group -uid -gid -nouser -nogroup -links -inum -mtime -mmin -atime -amin -ctime -cmin -newer -anewer -cnewer
/// -newerXY -true -false. Actions: -print -print0 -printf -ls -prune -quit -delete. Options: -maxdepth -mindepth -depth.
/// Operators: ( ) ! -not -a -and -o -or and the comma. Paths are printed as IMAGE:/PATH; -path sees /PATH. Names of
/// users and groups are those in the volume's /etc/passwd and /etc/group, times are UTC, and the file of -newer is
/// IMAGE:/PATH or on the host. Symbolic links are not followed. What cannot be read is reported, and the rest goes on;
/// the exit code is 1 then.
#[derive(Debug, clap::Args)]
#[command(override_usage = "steadfs find [OPTIONS] IMAGE[:/PATH]... [EXPRESSION]")]
pub struct Find {
    /// IMAGE or IMAGE:/PATH, then the expression. Options of steadfs stand before the first one.
    #[arg(
        required = true,
        value_name = "IMAGE[:/PATH]",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub words: Vec<OsString>,
    /// Follow the links that are named.
    #[arg(short = 'H')]
    pub follow: bool,
    /// Follow no links, the default.
    #[arg(short = 'P', overrides_with = "follow")]
    pub physical: bool,
    /// Print a JSON document (docs/json.md).
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: Open,
}

/// Show the space that files on a volume take.
///
/// Like du(1), of each directory with all that is in it, in units of 1024 bytes. An inode with several names counts once.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, args_override_self = true)]
pub struct Du {
    /// IMAGE or IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    pub places: Vec<OsString>,
    /// Only the sum of each argument.
    #[arg(short, long, conflicts_with_all = ["all", "max_depth"])]
    pub summarize: bool,
    /// Also files, not only directories.
    #[arg(short, long)]
    pub all: bool,
    /// Deepest level that is shown; 0 is the same as -s.
    #[arg(short = 'd', long, value_name = "N", value_parser = super::number::<usize>)]
    pub max_depth: Option<usize>,
    /// Also the sum of all arguments.
    #[arg(short = 'c', long)]
    pub total: bool,
    /// Directories without those in them.
    #[arg(short = 'S', long)]
    pub separate_dirs: bool,
    /// Each name of a file that has several.
    #[arg(short = 'l', long)]
    pub count_links: bool,
    /// Sizes of files, not the space of their blocks.
    #[arg(long)]
    pub apparent_size: bool,
    #[command(flatten)]
    pub units: Units,
    /// A NUL byte after each line instead of a newline.
    #[arg(short = '0', long)]
    pub null: bool,
    /// Print a JSON document with sizes in bytes (docs/json.md).
    #[arg(long, conflicts_with_all = ["total", "null", "human-readable", "si", "k", "m", "block-size"])]
    pub json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: Open,
}

/// Show a tree of files on a volume.
///
/// The form is that of tree(1). Names are sorted by their bytes and escaped as by ls; names of users and groups are those
/// in the volume's /etc/passwd and /etc/group. Links are shown, not followed.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub struct Tree {
    /// IMAGE or IMAGE:/PATH.
    #[arg(required = true, value_name = "IMAGE[:/PATH]")]
    pub places: Vec<OsString>,
    /// Also names that begin with a dot.
    #[arg(short)]
    pub all: bool,
    /// Only directories.
    #[arg(short)]
    pub directories: bool,
    /// Deepest level.
    #[arg(short = 'L', value_name = "N", value_parser = level)]
    pub level: Option<usize>,
    /// Whole paths, not only names.
    #[arg(short)]
    pub full_path: bool,
    /// No lines in front of names.
    #[arg(short = 'i')]
    pub no_indent: bool,
    /// Type and permissions.
    #[arg(short)]
    pub permissions: bool,
    /// Owner.
    #[arg(short)]
    pub user: bool,
    /// Group.
    #[arg(short)]
    pub group: bool,
    /// Size in bytes.
    #[arg(short)]
    pub size: bool,
    /// Size with K, M, G; powers of 1024.
    #[arg(short)]
    pub human: bool,
    /// Without the number of files at the end.
    #[arg(long = "noreport")]
    pub no_report: bool,
    /// The characters of lines: utf-8 or ascii.
    #[arg(long, value_name = "NAME", default_value = "utf-8", value_parser = charset)]
    pub charset: Charset,
    /// Print a JSON document with all attributes (docs/json.md).
    #[arg(long, conflicts_with_all = ["full_path", "no_indent", "permissions", "user", "group", "size", "human", "no_report", "charset"])]
    pub json: bool,
    /// Print help.
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
    #[command(flatten)]
    pub open: Open,
}

/// The characters of a tree's lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Charset {
    Utf8,
    Ascii,
}

fn charset(text: &str) -> Result<Charset, &'static str> {
    match text.to_ascii_lowercase().as_str() {
        "utf-8" | "utf8" => Ok(Charset::Utf8),
        "ascii" | "us-ascii" => Ok(Charset::Ascii),
        _ => Err("needs utf-8 or ascii"),
    }
}

/// A level of a tree, from 1 on.
fn level(text: &str) -> Result<usize, &'static str> {
    match super::number(text) {
        Ok(0) => Err("needs a number above 0"),
        level => level,
    }
}

/// The options for units, of which the last one counts; clap's derived fields lose their order.
#[derive(Clone, Debug, Default)]
pub struct Units {
    /// Sizes are counted, not blocks.
    pub bytes: bool,
    chosen: Option<BlockSize>,
}

/// A unit, and what comes behind each number: a unit without a number, such as `M`, is shown.
#[derive(Clone, Debug)]
struct BlockSize {
    unit: Unit,
    suffix: Option<String>,
}

fn block_size(text: &str) -> Result<BlockSize, String> {
    let unit = size::unit_bytes(text);
    match unit.map_or_else(|| size::parse(text, 1), Ok) {
        Ok(0) => Err("a unit has more than 0 bytes".to_owned()),
        Ok(bytes) => Ok(BlockSize {
            unit: Unit::Bytes(bytes),
            suffix: unit.is_some().then(|| text.to_owned()),
        }),
        Err(why) => Err(why.to_string()),
    }
}

impl Units {
    /// The flags: letter, name (two letters have no long one), unit and help.
    const FLAGS: [(Option<char>, &str, Unit, &str); 5] = [
        (
            Some('b'),
            "bytes",
            Unit::Bytes(1),
            "Sizes of files in bytes; the same as --apparent-size --block-size=1",
        ),
        (
            Some('h'),
            "human-readable",
            Unit::Human(1024),
            "Numbers with K, M, G; powers of 1024",
        ),
        (
            None,
            "si",
            Unit::Human(1000),
            "Numbers with k, M, G; powers of 1000",
        ),
        (
            Some('k'),
            "k",
            Unit::Bytes(1 << 10),
            "In units of 1024 bytes, the default",
        ),
        (Some('m'), "m", Unit::Bytes(1 << 20), "In units of 1 MiB"),
    ];
    const SIZE: &str = "block-size";

    /// A number of bytes in the chosen unit.
    pub fn show(&self, bytes: u64) -> String {
        match &self.chosen {
            Some(BlockSize { unit, suffix }) => {
                unit.show(bytes) + suffix.as_deref().unwrap_or_default()
            }
            None => Unit::Bytes(1024).show(bytes),
        }
    }
}

impl clap::FromArgMatches for Units {
    fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
        let mut units = Self::default();
        units.update_from_arg_matches(matches)?;
        Ok(units)
    }

    fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
        let mut last = None;
        for (_, id, unit, _) in Self::FLAGS {
            if matches.get_flag(id) {
                let suffix = None;
                last = last.max(matches.indices_of(id).and_then(Iterator::last));
                if last == matches.indices_of(id).and_then(Iterator::last) {
                    self.chosen = Some(BlockSize { unit, suffix });
                }
            }
        }
        let size = matches.get_one::<BlockSize>(Self::SIZE);
        if size.is_some() && last < matches.indices_of(Self::SIZE).and_then(Iterator::last) {
            self.chosen = size.cloned();
        }
        self.bytes = matches.get_flag("bytes");
        Ok(())
    }
}

impl clap::Args for Units {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flag = |(letter, id, _, help): (Option<char>, &'static str, Unit, &'static str)| {
            let long = (id.len() > 1).then_some(id);
            let flag = clap::Arg::new(id).long(long).help(help);
            flag.short(letter).action(clap::ArgAction::SetTrue)
        };
        command.args(Self::FLAGS.map(flag)).arg(
            clap::Arg::new(Self::SIZE)
                .short('B')
                .long(Self::SIZE)
                .value_name("SIZE")
                .value_parser(block_size)
                .help("In units of this size, such as 512, 64K or 1MB; or of K, M, G, T, MB, ..., which are shown then"),
        )
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}
