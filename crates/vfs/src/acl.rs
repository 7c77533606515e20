//! POSIX access control lists. ext4 and f2fs store version 1, where only named users and groups have an id;
//! `system.posix_acl_access` and `_default` show version 2, where every entry has one.

use thiserror::Error;

use crate::{Cx, FileKind, FsError};

/// An invalid list: the entry (its number, or the number of entries), and the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("access control list: entry {index} {rule}")]
pub struct AclError {
    /// Number of the entry.
    pub index: u32,
    /// The rule it breaks.
    pub rule: &'static str,
}

type Result<T> = std::result::Result<T, AclError>;

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
const PERMISSION_BITS: u16 = 0o777;
const SET_GROUP_ID: u16 = 0o2000;

const HEADER: usize = 4;
const SHORT: usize = 4;
const LONG: usize = 8;
const NO_ID: u32 = u32::MAX;

const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// An entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    perm: u16,
    id: u32,
}

impl Entry {
    const fn has_id(self) -> bool {
        self.tag == USER || self.tag == GROUP
    }
}

fn bad(index: usize, rule: &'static str) -> AclError {
    let index = u32::try_from(index).unwrap_or(u32::MAX);
    AclError { index, rule }
}

fn get16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn check_version(bytes: &[u8], version: u32) -> Result<&[u8]> {
    if bytes.len() < HEADER {
        return Err(bad(0, "is cut short"));
    }
    if get32(bytes, 0) != version {
        return Err(bad(0, "follows an unknown version"));
    }
    Ok(&bytes[HEADER..])
}

/// Checks that a list has the required entries, in order: owner, named users, owning group, named groups, mask (required
/// with named entries), others. Repeated ids are allowed.
fn validate(entries: &[Entry]) -> Result<()> {
    let mut last = 0;
    let mut seen = 0;
    for (i, entry) in entries.iter().enumerate() {
        if entry.perm > 7 {
            return Err(bad(i, "has unknown permission bits"));
        }
        let known = [USER_OBJ, USER, GROUP_OBJ, GROUP, MASK, OTHER].contains(&entry.tag);
        if !known {
            return Err(bad(i, "has an unknown tag"));
        }
        let repeated = seen & entry.tag != 0 && !entry.has_id();
        if entry.tag < last || repeated {
            return Err(bad(i, "is out of order"));
        }
        if entry.has_id() && entry.id == NO_ID {
            return Err(bad(i, "has no id"));
        }
        last = entry.tag;
        seen |= entry.tag;
    }
    let needs_mask = seen & (USER | GROUP) != 0;
    let missing = (USER_OBJ | GROUP_OBJ | OTHER) & !seen != 0 || (needs_mask && seen & MASK == 0);
    if missing && !entries.is_empty() {
        return Err(bad(entries.len(), "is missing"));
    }
    Ok(())
}

fn read_disk(bytes: &[u8]) -> Result<Vec<Entry>> {
    let mut left = check_version(bytes, DISK_VERSION)?;
    let mut entries = Vec::with_capacity(left.len() / SHORT);
    while !left.is_empty() {
        let short = left.len() >= SHORT;
        let tag = if short { get16(left, 0) } else { 0 };
        let len = if tag == USER || tag == GROUP {
            LONG
        } else {
            SHORT
        };
        if left.len() < len {
            return Err(bad(entries.len(), "is cut short"));
        }
        entries.push(Entry {
            tag,
            perm: get16(left, 2),
            id: if len == LONG { get32(left, 4) } else { NO_ID },
        });
        left = &left[len..];
    }
    Ok(entries)
}

fn read_xattr(bytes: &[u8]) -> Result<Vec<Entry>> {
    let left = check_version(bytes, XATTR_VERSION)?;
    if !left.len().is_multiple_of(LONG) {
        return Err(bad(left.len() / LONG, "is cut short"));
    }
    Ok(left
        .chunks_exact(LONG)
        .map(|entry| Entry {
            tag: get16(entry, 0),
            perm: get16(entry, 2),
            id: get32(entry, 4),
        })
        .collect())
}

/// Converts the stored value to the value of the extended attribute.
pub fn disk_to_xattr(bytes: &[u8]) -> Result<Vec<u8>> {
    Ok(Acl::from_disk(bytes)?.to_xattr())
}

/// Converts a user's value of the extended attribute to the value to store. An error means that the user's value is not a
/// valid list (EINVAL), not that the volume is corrupt.
pub fn xattr_to_disk(bytes: &[u8]) -> Result<Vec<u8>> {
    Ok(Acl::from_xattr(bytes)?.to_disk())
}

/// A valid list, and its relation to the permission bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl(Vec<Entry>);

impl Acl {
    /// Parses the stored value.
    pub fn from_disk(bytes: &[u8]) -> Result<Self> {
        let entries = read_disk(bytes)?;
        validate(&entries)?;
        Ok(Self(entries))
    }

    /// Parses the value of the extended attribute; an error means that it is not a valid list (EINVAL).
    pub fn from_xattr(bytes: &[u8]) -> Result<Self> {
        let entries = read_xattr(bytes)?;
        validate(&entries)?;
        Ok(Self(entries))
    }

    /// The value to store.
    pub fn to_disk(&self) -> Vec<u8> {
        self.write(DISK_VERSION, |entry| entry.has_id())
    }

    /// The value of the extended attribute.
    pub fn to_xattr(&self) -> Vec<u8> {
        self.write(XATTR_VERSION, |_| true)
    }

    fn write(&self, version: u32, with_id: impl Fn(&Entry) -> bool) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.0.len() * LONG);
        out.extend_from_slice(&version.to_le_bytes());
        for entry in &self.0 {
            out.extend_from_slice(&entry.tag.to_le_bytes());
            out.extend_from_slice(&entry.perm.to_le_bytes());
            if with_id(entry) {
                // Entries without an id have all bits set, whatever the user wrote there.
                let id = if entry.has_id() { entry.id } else { NO_ID };
                out.extend_from_slice(&id.to_le_bytes());
            }
        }
        out
    }

    /// Whether there is no entry: setting such a list removes the attribute.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the permission bits alone express the list.
    pub fn is_trivial(&self) -> bool {
        self.0
            .iter()
            .all(|entry| [USER_OBJ, GROUP_OBJ, OTHER].contains(&entry.tag))
    }

    /// The entry that the group bits of the mode show: the mask, or the owning group.
    fn group_class(&self) -> u16 {
        if self.0.iter().any(|entry| entry.tag == MASK) {
            MASK
        } else {
            GROUP_OBJ
        }
    }

    /// The shift of the entry's permissions in the mode, if the mode shows them.
    fn shift(&self, tag: u16) -> Option<u32> {
        match tag {
            USER_OBJ => Some(6),
            OTHER => Some(0),
            tag if tag == self.group_class() => Some(3),
            _ => None,
        }
    }

    /// The nine permission bits that a file with this access list has.
    pub fn mode_bits(&self) -> u32 {
        self.0.iter().fold(0, |mode, entry| {
            self.shift(entry.tag)
                .map_or(mode, |shift| mode | u32::from(entry.perm) << shift)
        })
    }

    /// Applies chmod: owner, mask (or owning group) and others get the bits of `mode`.
    pub fn set_mode_bits(&mut self, mode: u32) {
        for i in 0..self.0.len() {
            if let Some(shift) = self.shift(self.0[i].tag) {
                self.0[i].perm = (mode >> shift & 7) as u16;
            }
        }
    }

    /// The list that permission bits are.
    pub fn of_mode(mode: u32) -> Self {
        let entry = |tag, shift: u32| Entry {
            tag,
            // Three bits.
            perm: (mode >> shift & 7) as u16,
            id: NO_ID,
        };
        Self(vec![
            entry(USER_OBJ, 6),
            entry(GROUP_OBJ, 3),
            entry(OTHER, 0),
        ])
    }

    /// Permission bits that admit no caller to more than the list does. Without it the named users and groups are members of the
    /// owning group or others: these two get what all of them have.
    pub fn narrowest_mode(&self) -> u32 {
        let of = |tag| self.0.iter().filter(move |entry| entry.tag == tag);
        let all = |tag| of(tag).fold(7, |perm, entry| perm & entry.perm);
        let users = all(USER) & all(MASK);
        let group = all(GROUP_OBJ) & users;
        // A list without named entries limits only the owning group by its mask.
        let others = match of(USER).chain(of(GROUP)).next() {
            Some(_) => all(OTHER) & all(GROUP) & users,
            None => all(OTHER),
        };
        u32::from(all(USER_OBJ)) << 6 | u32::from(group) << 3 | u32::from(others)
    }

    /// Whether the list of a file with these owners lets a caller that is not root write (acl(5)).
    pub fn may_write(&self, cx: &Cx, (owner, group): (u32, u32)) -> bool {
        const WRITE: u16 = 2;
        let of = |tag| self.0.iter().find(move |entry| entry.tag == tag);
        let grants = |entry: &Entry| entry.perm & WRITE != 0;
        if cx.uid == owner {
            return of(USER_OBJ).is_some_and(grants);
        }
        let masked = of(MASK).is_none_or(grants);
        let mut users = self.0.iter().filter(|entry| entry.tag == USER);
        if let Some(user) = users.find(|entry| entry.id == cx.uid) {
            return masked && grants(user);
        }
        let applies = |entry: &&Entry| match entry.tag {
            GROUP_OBJ => cx.is_in_group(group),
            GROUP => cx.is_in_group(entry.id),
            _ => false,
        };
        let mut groups = self.0.iter().filter(applies).peekable();
        match groups.peek().is_some() {
            true => masked && groups.any(grants),
            false => of(OTHER).is_some_and(grants),
        }
    }

    /// The access list of a file created in a directory with this default list: the same list with the owner, group-class
    /// and other entries limited to the bits of the requested `mode`. The file's mode is [`Acl::mode_bits`] of the result;
    /// a trivial result is not stored.
    pub fn inherit(&self, mode: u32) -> Self {
        let mut child = self.clone();
        for i in 0..child.0.len() {
            if let Some(shift) = child.shift(child.0[i].tag) {
                child.0[i].perm &= (mode >> shift & 7) as u16;
            }
        }
        child
    }
}

/// The two lists of an inode, as attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AclType {
    /// Permissions of the inode (`system.posix_acl_access`).
    Access,
    /// What new files in the directory inherit (`system.posix_acl_default`).
    Default,
}

/// What a new inode inherits from its directory's default list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inherited {
    /// The nine permission bits, if the list determines them.
    pub mode: Option<u32>,
    /// Lists to store, in their stored form.
    pub lists: Vec<(AclType, Vec<u8>)>,
}

impl Inherited {
    /// What an inode of this kind, created with the permission bits `perm`, inherits from the default list and its stored
    /// form. Symbolic links inherit nothing.
    pub fn of(default: &Acl, stored: Vec<u8>, kind: FileKind, perm: u32) -> Self {
        let access = default.inherit(perm);
        let mut lists = Vec::new();
        if !access.is_trivial() {
            lists.push((AclType::Access, access.to_disk()));
        }
        if kind == FileKind::Directory {
            lists.push((AclType::Default, stored));
        }
        Self {
            mode: Some(access.mode_bits()),
            lists,
        }
    }
}

/// A list to set, and the matching mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AclChange {
    /// The stored form; `None` if the mode expresses all of it, or the list is removed.
    pub stored: Option<Vec<u8>>,
    /// The inode's new mode.
    pub mode: u16,
}

impl AclChange {
    /// Plans to set a list of an inode with this kind, mode and group from the attribute's value (`None` removes it).
    /// `None`: nothing changes. The caller has checked that `cx` may change the inode.
    ///
    /// # Errors
    /// `Invalid` for a value that is no list; `Access` for a default list of a file that is no directory.
    pub fn plan(
        cx: &Cx,
        (kind, mode, gid): (FileKind, u16, u32),
        which: AclType,
        value: Option<&[u8]>,
    ) -> crate::Result<Option<Self>> {
        let parsed = value.map(Acl::from_xattr).transpose();
        let acl = parsed.map_err(|_| FsError::Invalid("not a valid access control list"))?;
        let mut acl = acl.filter(|acl| !acl.is_empty());
        let mut mode = mode;
        match (which, &acl) {
            (AclType::Default, Some(_)) if kind != FileKind::Directory => {
                return Err(FsError::Access);
            }
            (AclType::Default, None) if kind != FileKind::Directory => return Ok(None),
            (AclType::Access, Some(access)) => {
                // The nine permission bits.
                mode = mode & !PERMISSION_BITS | access.mode_bits() as u16;
                if !cx.may_keep_group(gid) {
                    mode &= !SET_GROUP_ID;
                }
                acl = acl.filter(|access| !access.is_trivial());
            }
            _ => {}
        }
        let stored = acl.map(|acl| acl.to_disk());
        Ok(Some(Self { stored, mode }))
    }
}

/// Refuses access control lists of symbolic links.
///
/// # Errors
/// `NotSupported`.
pub fn check_has_lists(kind: FileKind) -> crate::Result<()> {
    match kind {
        FileKind::Symlink => Err(FsError::NotSupported(
            "access control lists of symbolic links",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn xattr(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut out = 2u32.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&perm.to_le_bytes());
            out.extend_from_slice(&id.to_le_bytes());
        }
        out
    }

    const FULL: [(u16, u16, u32); 6] = [
        (USER_OBJ, 7, NO_ID),
        (USER, 6, 1000),
        (GROUP_OBJ, 5, NO_ID),
        (GROUP, 4, 50),
        (MASK, 6, NO_ID),
        (OTHER, 0, NO_ID),
    ];

    #[test]
    fn both_versions_convert_to_each_other() {
        let shown = xattr(&FULL);
        let stored = xattr_to_disk(&shown).unwrap();
        assert_eq!(stored.len(), 4 + 4 * 4 + 2 * 8);
        assert_eq!(stored[..4], [1, 0, 0, 0]);
        assert_eq!(disk_to_xattr(&stored).unwrap(), shown);
    }

    #[test]
    fn the_narrowest_mode_admits_no_caller_to_more_than_the_list() {
        let narrowest = |entries: &[(u16, u16, u32)]| {
            Acl::from_xattr(&xattr(entries)).unwrap().narrowest_mode()
        };
        assert_eq!(narrowest(&FULL), 0o740);
        let with = |user, group, mask, other| {
            [
                (USER_OBJ, 6, NO_ID),
                (USER, user, 1000),
                (GROUP_OBJ, 6, NO_ID),
                (GROUP, group, 50),
                (MASK, mask, NO_ID),
                (OTHER, other, NO_ID),
            ]
        };
        // A user with no rights is not to get those of the others, nor one group those of another.
        assert_eq!(narrowest(&with(0, 7, 7, 4)), 0o600);
        assert_eq!(narrowest(&with(7, 0, 7, 4)), 0o660);
        assert_eq!(narrowest(&with(7, 7, 4, 6)), 0o644);
        assert_eq!(narrowest(&with(7, 7, 7, 4)), 0o664);
        let unnamed = [
            (USER_OBJ, 6, NO_ID),
            (GROUP_OBJ, 6, NO_ID),
            (MASK, 0, NO_ID),
            (OTHER, 4, NO_ID),
        ];
        assert_eq!(narrowest(&unnamed), 0o604);
        for mode in 0..=0o777 {
            assert_eq!(Acl::of_mode(mode).narrowest_mode(), mode);
        }
    }

    #[test]
    fn invalid_lists_are_refused() {
        let cases: [&[(u16, u16, u32)]; 7] = [
            &[(USER_OBJ, 7, NO_ID)],
            &[
                (USER_OBJ, 7, NO_ID),
                (GROUP_OBJ, 8, NO_ID),
                (OTHER, 0, NO_ID),
            ],
            &[
                (GROUP_OBJ, 7, NO_ID),
                (USER_OBJ, 7, NO_ID),
                (OTHER, 0, NO_ID),
            ],
            &[
                (USER_OBJ, 7, NO_ID),
                (USER_OBJ, 7, NO_ID),
                (GROUP_OBJ, 7, NO_ID),
                (OTHER, 0, NO_ID),
            ],
            &[
                (USER_OBJ, 7, NO_ID),
                (USER, 7, 1),
                (GROUP_OBJ, 7, NO_ID),
                (OTHER, 0, NO_ID),
            ],
            &[
                (USER_OBJ, 7, NO_ID),
                (USER, 7, NO_ID),
                (GROUP_OBJ, 7, NO_ID),
                (MASK, 7, NO_ID),
                (OTHER, 0, NO_ID),
            ],
            &[
                (USER_OBJ, 7, NO_ID),
                (GROUP_OBJ, 7, NO_ID),
                (OTHER, 0, NO_ID),
                (0x40, 0, NO_ID),
            ],
        ];
        for case in cases {
            assert!(xattr_to_disk(&xattr(case)).is_err(), "{case:?}");
        }
        assert!(xattr_to_disk(&[2, 0, 0, 0, 1]).is_err());
        assert!(xattr_to_disk(&[]).is_err());
        assert!(disk_to_xattr(&[1, 0, 0, 0, 2, 0, 7, 0]).is_err());
        assert!(disk_to_xattr(&xattr(&FULL)).is_err());
    }

    #[test]
    fn the_list_follows_the_mode() {
        let mut acl = Acl::from_xattr(&xattr(&FULL)).unwrap();
        assert_eq!(acl.mode_bits(), 0o760);
        acl.set_mode_bits(0o604);
        assert_eq!(acl.mode_bits(), 0o604);
        assert!(!acl.is_trivial());
        let child = Acl::from_xattr(&xattr(&FULL)).unwrap().inherit(0o640);
        assert_eq!(child.mode_bits(), 0o640);
        let base = xattr(&[
            (USER_OBJ, 7, NO_ID),
            (GROUP_OBJ, 5, NO_ID),
            (OTHER, 5, NO_ID),
        ]);
        let base = Acl::from_xattr(&base).unwrap();
        assert!(base.is_trivial());
        assert_eq!(base.inherit(0o666).mode_bits(), 0o644);
    }

    #[test]
    fn the_first_entries_that_apply_decide_whether_a_caller_may_write() {
        let by = |uid, gid, groups: &[u32]| Cx {
            uid,
            gid,
            groups: groups.to_vec(),
            ..Cx::default()
        };
        let may = |acl: &Acl, cx: &Cx| acl.may_write(cx, (1, 2));
        let (owner, member, other) = (by(1, 2, &[]), by(5, 6, &[2]), by(5, 6, &[]));
        for (mode, wanted) in [
            (0o200, [true, false, false]),
            (0o020, [false, true, false]),
            (0o002, [false, false, true]),
            (0o555, [false; 3]),
        ] {
            let acl = Acl::of_mode(mode);
            assert_eq!([&owner, &member, &other].map(|cx| may(&acl, cx)), wanted);
        }
        let entry = |tag, perm, id| Entry { tag, perm, id };
        let list = |mask| {
            Acl(vec![
                entry(USER_OBJ, 4, NO_ID),
                entry(USER, 6, 7),
                entry(USER, 4, 8),
                entry(GROUP_OBJ, 4, NO_ID),
                entry(GROUP, 6, 9),
                entry(MASK, mask, NO_ID),
                entry(OTHER, 6, NO_ID),
            ])
        };
        let callers = [
            by(1, 9, &[]),
            by(7, 0, &[]),
            by(8, 9, &[]),
            by(5, 2, &[9]),
            by(5, 2, &[]),
            by(5, 6, &[]),
        ];
        let seen = |mask| callers.each_ref().map(|cx| may(&list(mask), cx));
        assert_eq!(seen(6), [false, true, false, true, false, true]);
        assert_eq!(seen(4), [false, false, false, false, false, true]);
    }
}
