//! The rules of `format` about owners.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use steadfs::OwnerRules;

use crate::args::Owners;
use crate::failure::Failure;

/// The rules, if options give any; only for a volume that is `filled`.
pub fn rules(owners: &Owners, filled: bool) -> Result<Option<Arc<OwnerRules>>, Failure> {
    let Some(first) = owners.given() else {
        return Ok(None);
    };
    if !filled {
        let why = "is about the files of -d, which is not given";
        return Err(Failure::plain(format!("{first}: {why}")));
    }
    let wrong =
        |option: &str, text: &str, why: String| Failure::plain(format!("{option} {text}: {why}"));
    let mut rules = OwnerRules::default();
    if let Some(text) = &owners.owner {
        let set = rules.set_owner(text);
        set.map_err(|why| wrong("--owner", text, why))?;
    }
    for list in &owners.map_owner {
        let added = rules.add_map(list);
        added.map_err(|why| wrong("--map-owner", list, why))?;
    }
    if let Some(prefix) = &owners.mounted_on {
        rules.set_prefix(prefix.as_os_str().as_bytes());
    }
    if let Some(path) = &owners.fs_config {
        read(path, |text| rules.add_fs_config(text))?;
    }
    for path in &owners.file_contexts {
        read(path, |text| rules.add_file_contexts(text))?;
    }
    Ok(Some(Arc::new(rules)))
}

fn read(path: &Path, add: impl FnOnce(&[u8]) -> Result<(), String>) -> Result<(), Failure> {
    let text = std::fs::read(path).map_err(|error| error.to_string());
    let added = text.and_then(|text| add(&text));
    added.map_err(|why| Failure::plain(format!("{}: {why}", path.display())))
}
