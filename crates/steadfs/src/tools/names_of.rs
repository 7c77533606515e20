//! The names of users and groups by the volume's `/etc/passwd` and `/etc/group`.

use std::collections::BTreeMap;

use steadfs_vfs::{Cx, FileSystem};

use super::edit::owner::{GROUPS, USERS, number_of, text_of};

/// The volume's names; none without these files.
#[derive(Default)]
pub struct Accounts {
    users: BTreeMap<u32, Vec<u8>>,
    groups: BTreeMap<u32, Vec<u8>>,
}

impl Accounts {
    /// Reads them.
    pub fn of(fs: &dyn FileSystem, cx: &Cx) -> Self {
        let names = |file| names(&text_of(fs, cx, file).unwrap_or_default());
        Self {
            users: names(USERS),
            groups: names(GROUPS),
        }
    }

    /// The name of a user.
    pub fn user(&self, uid: u32) -> Option<&[u8]> {
        self.users.get(&uid).map(|name| &name[..])
    }

    /// The name of a group.
    pub fn group(&self, gid: u32) -> Option<&[u8]> {
        self.groups.get(&gid).map(|name| &name[..])
    }
}

/// The names of `NAME:PASSWORD:NUMBER` lines; the first of a number counts.
fn names(text: &[u8]) -> BTreeMap<u32, Vec<u8>> {
    let mut names = BTreeMap::new();
    for line in text.split(|b| *b == b'\n') {
        let mut fields = line.split(|b| *b == b':');
        let name = fields.next().filter(|name| !name.is_empty());
        let number = fields
            .nth(1)
            .and_then(|field| std::str::from_utf8(field).ok());
        if let (Some(name), Some(number)) = (name, number.and_then(number_of)) {
            names.entry(number).or_insert_with(|| name.to_vec());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_number_names_it() {
        let found = names(b"root:x:0:0::/:\n:x:1\nbad:x:y\n# no line\ntoor:x:0\nu:x:7");
        let wanted = [(0, b"root".to_vec()), (7, b"u".to_vec())];
        assert_eq!(found.into_iter().collect::<Vec<_>>(), wanted);
    }
}
