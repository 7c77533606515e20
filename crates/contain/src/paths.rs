//! The Landlock part: paths, network and scopes.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, AccessNet, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

/// The newest rights that are restricted, those of Linux 6.12: all of the file system, TCP, signals and abstract sockets.
const NEWEST: ABI = ABI::V6;

/// Refuses all that Landlock controls, except reading of `readable`.
pub fn restrict(readable: &[PathBuf]) -> Result<(), String> {
    let status = rules(readable).map_err(|error| error.to_string())?;
    match status {
        RulesetStatus::FullyEnforced => Ok(()),
        RulesetStatus::PartiallyEnforced => Err("only in part before Linux 6.12".to_owned()),
        RulesetStatus::NotEnforced => Err(
            "not in this kernel (Linux 5.13 has it if CONFIG_SECURITY_LANDLOCK is set)".to_owned(),
        ),
    }
}

fn rules(readable: &[PathBuf]) -> Result<RulesetStatus, RulesetError> {
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))?
        .handle_access(AccessNet::from_all(NEWEST))?
        .scope(Scope::from_all(NEWEST))?
        .create()?;
    for path in readable {
        let Ok(open) = PathFd::new(path) else {
            continue; // It is not there.
        };
        let rights = match path.is_dir() {
            true => AccessFs::ReadFile | AccessFs::ReadDir,
            false => AccessFs::ReadFile.into(),
        };
        ruleset = ruleset.add_rule(PathBeneath::new(open, rights))?;
    }
    Ok(ruleset.restrict_self()?.ruleset)
}
