//! Text that users and programs give: option lists, and values of control files.

use std::sync::{Arc, OnceLock};

use steadfs::Options;
use steadfs_vfs::{CONTROL_DIR, Cx, FileSystem, FsError, WithControl};

use super::input::Input;
use crate::hostile::exercise::{CALL_LIMIT, Outcome, Trial, cpu_time};

/// Most writes of an input.
const WRITES_MAX: usize = 32;

/// Words that texts are made of, besides the names of options.
const WORDS: [&str; 40] = [
    ",",
    "=",
    ":",
    "%",
    "/",
    " ",
    "\n",
    "\0",
    "0",
    "1",
    "-1",
    "+1",
    "7",
    "8",
    "100",
    "101",
    "1000",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    "18446744073709551616",
    "1e9",
    "0x10",
    "1k",
    "16M",
    "1T",
    "99999999999T",
    "ro",
    "rw",
    "on",
    "off",
    "sync",
    "disable",
    "enable",
    "RT",
    "be",
    "idle",
    "\"",
    "\\",
    "é",
];

fn words() -> &'static [String] {
    static ALL: OnceLock<Vec<String>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all: Vec<String> = WORDS.iter().map(|&word| word.to_owned()).collect();
        for (_, lines) in Options::help() {
            // Names without `=VALUE` and `[=VALUE]`.
            let usages = lines.into_iter().flat_map(|line| line.usages);
            let names = usages.map(|usage| usage.split(['=', '[']).next().unwrap_or("").to_owned());
            all.extend(names);
        }
        all.extend(Options::taken());
        all.extend(Options::ineffective());
        all
    })
}

/// The rest of `input`: a byte below 0x80 is a character; any other, and the next one, a word.
fn text(input: &mut Input<'_>, len: usize) -> String {
    let bytes = input.bytes(len);
    let mut text = String::new();
    let mut rest = bytes.iter();
    while let Some(&byte) = rest.next() {
        if byte < 0x80 {
            text.push(char::from(byte));
            continue;
        }
        let low = rest.next().copied().unwrap_or(0);
        let index = usize::from(byte & 0x7F) << 8 | usize::from(low);
        text.push_str(&words()[index % words().len()]);
    }
    text
}

/// Option lists of mounts and remounts. What is accepted can be shown, and the shown list means the same.
pub fn options(bytes: &[u8]) -> Outcome {
    let mut input = Input::new(bytes);
    let kind = input.byte();
    let list = text(&mut input, usize::MAX);
    let mut outcome = Outcome::default();
    let began = cpu_time();
    let shown = match kind % 4 {
        0 => ext4_options(&list, steadfs_ext4::MountOptions::parse),
        1 => f2fs_options(&list, steadfs_f2fs::MountOptions::parse),
        2 => {
            let mounted = steadfs_ext4::MountOptions::default();
            ext4_options(&list, |list| mounted.remounted(list)).and_then(|()| {
                f2fs_options(&list, |list| {
                    steadfs_f2fs::MountOptions::default().remounted(list)
                })
            })
        }
        _ => {
            let _ = Options::check_items(&list, None);
            let _ = Options::split_fixed(&list);
            let parsed = Options::parse(&list);
            match parsed {
                Err(error) if error.to_string().is_empty() => Err("an empty message".to_owned()),
                _ => Ok(()),
            }
        }
    };
    outcome.violations.extend(shown.err());
    let took = cpu_time() - began;
    if took > CALL_LIMIT {
        outcome.violations.push(format!("took {took:?}"));
    }
    outcome
}

/// Settings that show the number of the GC mode and take another one, as in Linux.
const SHOW_MODE: [&str; 2] = ["f2fs/gc_idle", "f2fs/gc_urgent"];

type Parsed<T> = Result<T, FsError>;

fn ext4_options(
    list: &str,
    parse: impl Fn(&str) -> Parsed<steadfs_ext4::MountOptions>,
) -> Result<(), String> {
    let Ok(options) = parse(list) else {
        return Ok(());
    };
    let shown = options.show();
    match parse(&shown) {
        Ok(again) if again.show() == shown => Ok(()),
        Ok(again) => Err(format!("{list:?} shows {shown}, then {}", again.show())),
        Err(error) => Err(format!("{list:?} shows {shown}, which is refused: {error}")),
    }
}

fn f2fs_options(
    list: &str,
    parse: impl Fn(&str) -> Parsed<steadfs_f2fs::MountOptions>,
) -> Result<(), String> {
    let Ok(options) = parse(list) else {
        return Ok(());
    };
    let shown = options.show();
    match parse(&shown) {
        Ok(again) if again.show() == shown => Ok(()),
        Ok(again) => Err(format!("{list:?} shows {shown}, then {}", again.show())),
        Err(error) => Err(format!("{list:?} shows {shown}, which is refused: {error}")),
    }
}

/// Writes to the control files of a mounted volume. A value that is refused changes nothing; every file can be read
/// afterwards.
pub fn write_control_files(fs: Arc<dyn FileSystem>, trial: &mut Trial, input: &mut Input<'_>) {
    let fs = WithControl::new(fs);
    let mut files: Vec<&str> = vec!["options", "sync"];
    let control = fs.control().map(|control| control.entries());
    files.extend(control.iter().flatten().map(|entry| entry.path));
    for _ in 0..WRITES_MAX {
        if input.is_empty() {
            break;
        }
        let path = files[input.below(files.len())];
        let len = usize::from(input.byte() % 64);
        let value = text(input, len);
        if trial.trace {
            eprintln!("{path} = {value:?}");
        }
        write_and_read(&fs, trial, path, &value);
    }
    for path in files {
        content(&fs, trial, path);
    }
}

fn write_and_read(fs: &WithControl, trial: &mut Trial, path: &str, value: &str) {
    let setting = fs
        .control()
        .is_some_and(|control| control.tunables().contains(&path));
    let before = setting.then(|| content(fs, trial, path)).flatten();
    let Some(ino) = find(fs, trial, path) else {
        return;
    };
    let written = fs.write(&Cx::default(), ino, 0, value.as_bytes(), false);
    fs.forget(ino, 1);
    let refused = written.is_err();
    trial.check_error("write of a control file", written);
    let after = content(fs, trial, path);
    if setting && refused && before != after {
        trial.violation(format!("{path}: a refused {value:?} changes its value"));
    }
    if let (true, false, Some(after)) = (setting && !SHOW_MODE.contains(&path), refused, after) {
        // What is shown can be written.
        let Some(ino) = find(fs, trial, path) else {
            return;
        };
        let again = fs.write(&Cx::default(), ino, 0, &after, false);
        fs.forget(ino, 1);
        if let Err(error) = again {
            let shown = String::from_utf8_lossy(&after);
            trial.violation(format!(
                "{path}: its own value {shown:?} is refused: {error}"
            ));
        }
    }
}

fn find(fs: &WithControl, trial: &mut Trial, path: &str) -> Option<steadfs_base::InodeNo> {
    let cx = Cx::default();
    let mut at = fs.root();
    let dir = std::str::from_utf8(CONTROL_DIR).expect("ASCII");
    for name in [dir].into_iter().chain(path.split('/')) {
        let found = fs.lookup(&cx, at, name.as_bytes());
        if at != fs.root() {
            fs.forget(at, 1);
        }
        match trial.check_error("lookup of a control file", found) {
            Some(attr) => at = attr.ino,
            None => return None,
        }
    }
    Some(at)
}

fn content(fs: &WithControl, trial: &mut Trial, path: &str) -> Option<Vec<u8>> {
    let ino = find(fs, trial, path)?;
    let read = fs.read(&Cx::default(), ino, 0, 1 << 20);
    fs.forget(ino, 1);
    match read {
        Ok(data) => Some(data.to_vec()),
        Err(error) => {
            trial.violation(format!("cannot read {path}: {error}"));
            None
        }
    }
}
