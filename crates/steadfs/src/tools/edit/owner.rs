//! Owners as chown(1) takes them. Names are those of the volume: of its `/etc/passwd` and `/etc/group`.

use steadfs_vfs::{Cx, FileKind, FileSystem};

use super::super::walk::resolve;
use super::super::{Result, ToolError, printable};

/// Bytes of a file of names that are read.
const NAMES_MAX: usize = 4 << 20;
pub(in crate::tools) const USERS: &[u8] = b"/etc/passwd";
pub(in crate::tools) const GROUPS: &[u8] = b"/etc/group";

/// `OWNER`, `OWNER:GROUP`, `:GROUP` or `OWNER:` (the login group), by number or by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnerSpec {
    user: Option<String>,
    group: Option<String>,
    login_group: bool,
}

/// New numbers of owner and group; `None` changes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The user.
    pub uid: Option<u32>,
    /// The group.
    pub gid: Option<u32>,
}

impl OwnerSpec {
    /// Parses an owner.
    pub fn parse(text: &str) -> Self {
        let some = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        match text.split_once(':') {
            None => Self {
                user: some(text),
                group: None,
                login_group: false,
            },
            Some((user, group)) => Self {
                user: some(user),
                group: some(group),
                login_group: group.is_empty() && !user.is_empty(),
            },
        }
    }

    /// The numbers on this volume.
    ///
    /// # Errors
    /// The volume has no such user or group.
    pub fn find(&self, fs: &dyn FileSystem, cx: &Cx) -> Result<Owners> {
        let mut owners = Owners::default();
        if let Some(user) = &self.user {
            match number_of(user) {
                Some(_) if self.login_group => {
                    return wrong(format!("{user}: a number has no login group"));
                }
                Some(uid) => owners.uid = Some(uid),
                None => {
                    let line = line_of(fs, cx, USERS, user)?;
                    let number = |at| number_in(&line, at, USERS, user);
                    owners.uid = Some(number(2)?);
                    if self.login_group {
                        owners.gid = Some(number(3)?);
                    }
                }
            }
        }
        if let Some(group) = &self.group {
            owners.gid = Some(match number_of(group) {
                Some(gid) => gid,
                None => number_in(&line_of(fs, cx, GROUPS, group)?, 2, GROUPS, group)?,
            });
        }
        Ok(owners)
    }
}

/// A number, which may begin with `+` as in chown(1). The largest one means "unchanged" to the kernel.
pub(in crate::tools) fn number_of(text: &str) -> Option<u32> {
    let digits = text.strip_prefix('+').unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
    let number = digits.parse().ok().filter(|_| is_number)?;
    (number != u32::MAX).then_some(number)
}

fn wrong<T>(why: String) -> Result<T> {
    Err(ToolError::Wrong(why))
}

fn number_in(line: &[Vec<u8>], at: usize, file: &[u8], name: &str) -> Result<u32> {
    let field = line.get(at).and_then(|f| std::str::from_utf8(f).ok());
    match field.and_then(number_of) {
        Some(number) => Ok(number),
        None => wrong(format!(
            "{name}: its line in {} of the volume has no number",
            printable(file)
        )),
    }
}

/// The fields of the line that begins with `name:`.
fn line_of(fs: &dyn FileSystem, cx: &Cx, file: &[u8], name: &str) -> Result<Vec<Vec<u8>>> {
    let Some(text) = text_of(fs, cx, file) else {
        let file = printable(file);
        return wrong(format!(
            "{name}: is no number, and the volume has no {file} to look it up in"
        ));
    };
    let fields =
        |line: &[u8]| -> Vec<Vec<u8>> { line.split(|b| *b == b':').map(<[u8]>::to_vec).collect() };
    let mut lines = text.split(|b| *b == b'\n').map(fields);
    match lines.find(|line| line.first().is_some_and(|first| first == name.as_bytes())) {
        Some(line) => Ok(line),
        None => wrong(format!(
            "{name}: is not in {} of the volume",
            printable(file)
        )),
    }
}

/// A regular file's content, at most [`NAMES_MAX`] bytes of it.
pub(in crate::tools) fn text_of(fs: &dyn FileSystem, cx: &Cx, path: &[u8]) -> Option<Vec<u8>> {
    let file = resolve(fs, cx, path, true).ok()?;
    if file.attr().kind != FileKind::Regular {
        return None;
    }
    fs.open(cx, file.ino(), false).ok()?;
    let mut text = Vec::new();
    while text.len() < NAMES_MAX {
        let read = fs.read(cx, file.ino(), text.len() as u64, super::super::CHUNK);
        let read = read.ok()?.to_vec();
        if read.is_empty() {
            break;
        }
        text.extend(read);
    }
    Some(text)
}
