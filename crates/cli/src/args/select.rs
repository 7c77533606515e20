//! Arguments that select files, of `extract` and `tar`.

use std::ffi::OsString;

/// Patterns of files.
#[derive(Debug, clap::Args)]
pub struct Select {
    /// Only files that match, as 'etc/*.conf', with what is in them and the directories around them. Patterns are those of
    /// tar --wildcards: of whole paths, here below PATH, and * and ? match slashes too. Can be repeated; a pattern that
    /// matches no file is an error.
    #[arg(long, value_name = "PATTERN")]
    pub include: Vec<OsString>,
    /// Leave out files that match, with what is in them. As with tar, a match may begin at any name of a path; if the
    /// pattern begins with /, only below PATH. Can be repeated, and goes before --include.
    #[arg(long, value_name = "PATTERN")]
    pub exclude: Vec<OsString>,
}

impl Select {
    /// Whether there are no patterns.
    pub fn is_all(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }
}
