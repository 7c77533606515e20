//! Arguments about owners, of `format`.

use std::path::PathBuf;

/// Owners, modes and labels of the files that -d fills the volume with.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Owners of the files of -d")]
pub struct Owners {
    /// Owner of all files, by numbers; with :GROUP alone their group.
    #[arg(long, value_name = "USER[:GROUP]")]
    pub owner: Option<String>,
    /// Users and groups FROM become TO, as in 1000:0, except those that --owner sets.
    #[arg(long, value_name = "FROM:TO,...")]
    pub map_owner: Vec<String>,
    /// Android's list of owners, modes and capabilities: PATH UID GID MODE [capabilities=NUMBER]. Files that are not in it
    /// stay as they are.
    #[arg(long, value_name = "FILE")]
    pub fs_config: Option<PathBuf>,
    /// SELinux's list of labels: REGEX [TYPE] LABEL. A pattern must match the whole path; the last line that matches counts,
    /// and one without special characters goes before all others. Can be repeated: later lists count. lost+found gets its
    /// label, and keeps its owner.
    #[arg(long, value_name = "FILE")]
    pub file_contexts: Vec<PathBuf>,
    /// Where the volume will be mounted: the paths of both lists begin with it, as with e2fsdroid -a. Default: /
    #[arg(long, value_name = "DIR")]
    pub mounted_on: Option<PathBuf>,
}

impl Owners {
    /// The first option that is given.
    pub fn given(&self) -> Option<&'static str> {
        let all = [
            ("--owner", self.owner.is_some()),
            ("--map-owner", !self.map_owner.is_empty()),
            ("--fs-config", self.fs_config.is_some()),
            ("--file-contexts", !self.file_contexts.is_empty()),
            ("--mounted-on", self.mounted_on.is_some()),
        ];
        let first = all.into_iter().find(|(_, given)| *given);
        first.map(|(name, _)| name)
    }
}
