//! `steadfs tune`: settings of a mounted volume.

use steadfs::{MountHandle, Options};

use crate::args;
use crate::failure::{Failure, code};
use crate::output::print;
use crate::umount::find;

pub fn run(args: &args::Tune) -> Result<(), Failure> {
    let mount = find(&args.mountpoint)?;
    let changes: Vec<&str> = changes(&args.settings).collect();
    if let Some(bad) = changes.iter().find(|change| change.contains('\n')) {
        return Err(Failure::new(code::USAGE, format!("{bad:?}: is one line")));
    }
    let now = MountHandle::of(mount.clone())
        .tune(&changes.join("\n"))
        .map_err(|error| Failure::new(code::MOUNT, format!("{error}{}", hint(&changes))))?;
    let requested: Vec<&str> = names(&args.settings).collect();
    let mut shown = Vec::new();
    for name in &requested {
        let last = name.rsplit('/').next().unwrap_or(name);
        let found = now
            .lines()
            .find(|line| line.split('=').next() == Some(last));
        shown.push(found.ok_or_else(|| {
            let what = format!(
                "{}: {name}: no such setting{}",
                mount.mountpoint.display(),
                hint(&[name])
            );
            Failure::new(code::MOUNT, what)
        })?);
    }
    if args.settings.is_empty() {
        shown = now.lines().collect();
    }
    print(|out| shown.iter().try_for_each(|line| writeln!(out, "{line}")))
}

fn changes(settings: &[String]) -> impl Iterator<Item = &str> {
    settings
        .iter()
        .map(String::as_str)
        .filter(|item| item.contains('='))
}

fn names(settings: &[String]) -> impl Iterator<Item = &str> {
    settings
        .iter()
        .map(String::as_str)
        .filter(|item| !item.contains('='))
}

/// A hint if one of these is a mount option and no setting.
fn hint(items: &[&str]) -> String {
    let name = |item: &str| item.split('=').next().unwrap_or_default().to_owned();
    let option = items
        .iter()
        .find(|item| Options::names().any(|known| known == name(item)));
    option.map_or(String::new(), |item| {
        format!(
            " ({} is a mount option: steadfs remount -o {item})",
            name(item)
        )
    })
}
