//! Changes several settings of a running volume: all of them or none.

use crate::options::nearest;
use crate::{Control, FsError, Result};

/// Applies the `NAME=VALUE` lines of `list`, all or none. Returns all settings afterwards, in lines of that form. A name
/// is the path of a control file, or its last component.
///
/// # Errors
/// [`FsError::BadOption`] names the first line that is wrong; nothing has changed.
pub(crate) fn tune(controls: &[&dyn Control], list: &str) -> Result<String> {
    let mut setters = Vec::new();
    for line in list.lines().filter(|line| !line.is_empty()) {
        let bad = |why: &str| FsError::BadOption(format!("{line}: {why}"));
        let (name, value) = line
            .split_once('=')
            .ok_or_else(|| bad("needs NAME=VALUE"))?;
        let (control, path) = find(controls, name)?;
        let setter = control
            .prepare(path, value.trim())
            .map_err(|error| match error {
                FsError::BadOption(why) => bad(&why),
                error => bad(&error.to_string()),
            })?;
        setters.push(setter);
    }
    setters.into_iter().for_each(|set| set());
    show(controls)
}

fn show(controls: &[&dyn Control]) -> Result<String> {
    let mut text = String::new();
    for control in controls {
        for path in control.tunables() {
            // A read-only volume does not have every setting.
            let Ok(value) = control.read(path) else {
                continue;
            };
            let value = String::from_utf8_lossy(&value);
            text += &format!("{}={}\n", last(path), chosen(value.trim()));
        }
    }
    Ok(text)
}

/// The word in brackets of `a [b] c`.
fn chosen(value: &str) -> &str {
    let inside = value
        .split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(value, |(word, _)| word)
}

fn last(path: &str) -> &str {
    path.rsplit_once('/').map_or(path, |(_, name)| name)
}

fn find<'a>(controls: &[&'a dyn Control], name: &str) -> Result<(&'a dyn Control, &'static str)> {
    let all = || {
        let each = |&control: &&'a dyn Control| {
            let paths = control.tunables().into_iter();
            paths.map(move |path| (control, path)).collect::<Vec<_>>()
        };
        controls.iter().flat_map(each)
    };
    let found = all().find(|(_, path)| *path == name || last(path) == name);
    found.ok_or_else(|| {
        let names: Vec<&str> = all().map(|(_, path)| last(path)).collect();
        FsError::BadOption(match nearest(name, names.into_iter()) {
            Some(near) => format!("{name}: no such setting; did you mean {near}?"),
            None => format!("{name}: no such setting"),
        })
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{ControlEntry, Setter};

    #[derive(Default)]
    struct Two([AtomicU32; 2]);

    const PATHS: [&str; 2] = ["dir/first", "dir/second"];

    impl Control for Two {
        fn entries(&self) -> Vec<ControlEntry> {
            let entry = |path| ControlEntry {
                path,
                writable: true,
            };
            PATHS.map(entry).to_vec()
        }
        fn read(&self, path: &str) -> Result<Vec<u8>> {
            let at = PATHS
                .iter()
                .position(|p| *p == path)
                .ok_or(FsError::NotFound)?;
            let value = self.0[at].load(Ordering::Relaxed);
            Ok(match at {
                0 => format!("{value}\n"),
                _ => format!("a [{value}] b\n"),
            }
            .into_bytes())
        }
        fn write(&self, _: &str, _: &[u8]) -> Result<()> {
            Err(FsError::NotPermitted)
        }
        fn tunables(&self) -> Vec<&'static str> {
            PATHS.to_vec()
        }
        fn prepare(&self, path: &str, value: &str) -> Result<Setter<'_>> {
            let wrong = |_| FsError::BadOption("no number".to_owned());
            let value = value.parse().map_err(wrong)?;
            let at = usize::from(path == PATHS[1]);
            Ok(Box::new(move || self.0[at].store(value, Ordering::Relaxed)))
        }
    }

    #[test]
    fn all_or_none() {
        let two = Two::default();
        let set = |list: &str| tune(&[&two], list).map_err(|error| error.to_string());
        assert_eq!(set("").unwrap(), "first=0\nsecond=0\n");
        assert_eq!(set("first=3\ndir/second=4").unwrap(), "first=3\nsecond=4\n");
        assert_eq!(set("first=5\nsecond=x").unwrap_err(), "second=x: no number");
        assert_eq!(
            set("first=5\nsecnd=1").unwrap_err(),
            "secnd: no such setting; did you mean second?"
        );
        assert_eq!(set("first").unwrap_err(), "first: needs NAME=VALUE");
        assert_eq!(
            set("frobnicate=1").unwrap_err(),
            "frobnicate: no such setting"
        );
        assert_eq!(set("").unwrap(), "first=3\nsecond=4\n", "nothing changed");
    }
}
