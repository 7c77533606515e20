//! Extended attributes: one list, of which the first part lies in the inode (where it has room for
//! attributes) and the rest in a node of its own. A header, then entries until one that is all zero.

use zerocopy::FromBytes;

pub use super::raw::{RawXattrEntry, RawXattrHeader};

use super::node::FOOTER_AT;
use super::num::{get32, idx16, low16, short, wide};
use super::{DiskError, Result, Structure};

/// `F2FS_XATTR_MAGIC`.
pub const MAGIC: u32 = 0xF2F5_2011;
/// Bytes of a node that hold attributes (`VALID_XATTR_BLOCK_SIZE`).
pub const NODE_XATTR_BYTES: usize = FOOTER_AT;
const HEADER: usize = size_of::<RawXattrHeader>();
const ENTRY: usize = size_of::<RawXattrEntry>();

/// What a name begins with (`F2FS_XATTR_INDEX_*`); the prefix itself is not stored.
pub mod index {
    /// `user.`
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`, whole.
    pub const ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`, whole.
    pub const ACL_DEFAULT: u8 = 3;
    /// `trusted.`
    pub const TRUSTED: u8 = 4;
    /// `lustre.`, never used.
    pub const LUSTRE: u8 = 5;
    /// `security.`
    pub const SECURITY: u8 = 6;
    /// `system.advise`: not stored, it is a field of the inode.
    pub const ADVISE: u8 = 7;
    /// The encryption context, for nobody to see.
    pub const ENCRYPTION: u8 = 9;
    /// The place of verity's data, for nobody to see.
    pub const VERITY: u8 = 11;
}

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// What the name begins with.
    pub index: u8,
    /// The rest of the name.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

const fn padded(len: usize) -> usize {
    len.next_multiple_of(4)
}

impl Xattr<'_> {
    /// Bytes it takes.
    pub const fn size(&self) -> usize {
        padded(ENTRY + self.name.len() + self.value.len())
    }
}

/// Whether there is a list at all: areas never used have no header.
pub fn is_present(area: &[u8]) -> bool {
    area.len() >= HEADER && get32(area, 0) == MAGIC
}

/// The attributes in an area: the inode's part, with the node's behind it where there is one. None
/// where there is no header.
pub fn parse(area: &[u8]) -> Result<Vec<Xattr<'_>>> {
    let mut list = Vec::new();
    if !is_present(area) {
        return Ok(list);
    }
    let mut rest = &area[HEADER..];
    // What the area's end cuts off is a list's end too, as an all-zero word is.
    while rest.len() >= ENTRY && get32(rest, 0) != 0 {
        let (raw, body) = RawXattrEntry::ref_from_prefix(rest).expect("long enough");
        let (name_len, value_len) = (usize::from(raw.name_len), idx16(raw.value_size.get()));
        if name_len + value_len > body.len() {
            let number = short(list.len());
            return Err(DiskError::entry(
                Structure::Xattrs,
                number,
                "reaches past the end",
            ));
        }
        let (name, behind) = body.split_at(name_len);
        list.push(Xattr {
            index: raw.name_index,
            name,
            value: &behind[..value_len],
        });
        let size = padded(ENTRY + name_len + value_len);
        rest = rest.get(size..).unwrap_or_default();
    }
    Ok(list)
}

/// What is done to one attribute.
#[derive(Clone, Copy, Debug)]
pub struct XattrChange<'a> {
    /// What the name begins with.
    pub index: u8,
    /// The rest of the name.
    pub name: &'a [u8],
    /// The new value; `None` removes it.
    pub value: Option<&'a [u8]>,
}

impl XattrChange<'_> {
    /// Whether this is the attribute that changes.
    pub fn is_of(&self, xattr: &Xattr<'_>) -> bool {
        xattr.index == self.index && xattr.name == self.name
    }
}

/// An inode's list of attributes cut into its two places.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitXattrs {
    /// The inode's part; as long as its room.
    pub inode: Vec<u8>,
    /// The node's part, [`NODE_XATTR_BYTES`] bytes; `None` where the inode's room is enough.
    pub node: Option<Vec<u8>>,
}

/// The areas of a list after changes: changed attributes go last. `inline`: bytes of room in the inode.
/// `None` if it does not fit.
pub fn apply(
    list: &[Xattr<'_>],
    changes: &[XattrChange<'_>],
    inline: usize,
) -> Option<SplitXattrs> {
    let is_changed = |xattr: &&Xattr<'_>| changes.iter().any(|change| change.is_of(xattr));
    let mut list: Vec<_> = list.iter().filter(|x| !is_changed(x)).copied().collect();
    list.extend(changes.iter().filter_map(|change| {
        Some(Xattr {
            index: change.index,
            name: change.name,
            value: change.value?,
        })
    }));
    split(&list, inline)
}

/// The areas of a list; none of it in a node where the list is empty. `None` if it does not fit.
pub fn split(list: &[Xattr<'_>], inline: usize) -> Option<SplitXattrs> {
    let mut area = encode(list, inline + NODE_XATTR_BYTES)?;
    let fits = size_of_list(list) <= inline || list.is_empty();
    let node = area.split_off(inline);
    Some(SplitXattrs {
        inode: area,
        node: (!fits).then_some(node),
    })
}

/// Writes a list into an area of `len` bytes (as for [`parse`]). `None` when it does not fit. (It may fill the area:
/// Linux leaves no room for a zero word behind it, either.)
pub fn encode(list: &[Xattr<'_>], len: usize) -> Option<Vec<u8>> {
    let size: usize = HEADER + list.iter().map(Xattr::size).sum::<usize>();
    if size > len {
        return None;
    }
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(&MAGIC.to_le_bytes());
    out.extend_from_slice(&1u32.to_le_bytes());
    out.resize(HEADER, 0);
    for xattr in list {
        let start = out.len();
        let value_len = u16::try_from(xattr.value.len()).ok()?;
        out.push(xattr.index);
        out.push(u8::try_from(xattr.name.len()).ok()?);
        out.extend_from_slice(&value_len.to_le_bytes());
        out.extend_from_slice(xattr.name);
        out.extend_from_slice(xattr.value);
        out.resize(start + xattr.size(), 0);
    }
    debug_assert_eq!(out.len(), size);
    out.resize(len, 0);
    Some(out)
}

/// Bytes of a list, header and final zeros included: what decides whether the inode's part is enough.
pub fn size_of_list(list: &[Xattr<'_>]) -> usize {
    HEADER + list.iter().map(Xattr::size).sum::<usize>() + 4
}

/// Longest value that an inode with so many bytes for attributes can have with an empty name.
pub fn max_value(inline: usize) -> u64 {
    wide((inline + NODE_XATTR_BYTES).saturating_sub(HEADER + ENTRY)).min(low16(u32::MAX).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user<'a>(name: &'a [u8], value: &'a [u8]) -> XattrChange<'a> {
        XattrChange {
            index: index::USER,
            name,
            value: Some(value),
        }
    }

    /// The list that two areas hold, as it is read.
    fn together(cut: &SplitXattrs) -> Vec<u8> {
        [&cut.inode[..], cut.node.as_deref().unwrap_or(&[])].concat()
    }

    #[test]
    fn a_list_is_cut_where_the_inode_ends() {
        const INLINE: usize = 200;
        let first = apply(&[], &[user(b"a", &[1; 100])], INLINE).unwrap();
        assert_eq!((first.inode.len(), &first.node), (INLINE, &None));
        let list = parse(&first.inode).unwrap();
        // The second one reaches over the edge.
        let second = apply(&list, &[user(b"b", &[2; 100])], INLINE).unwrap();
        assert_eq!(second.node.as_ref().unwrap().len(), NODE_XATTR_BYTES);
        let area = together(&second);
        let list = parse(&area).unwrap();
        assert_eq!(list.len(), 2);
        // A new value goes last; what is removed may let the node go.
        let third = apply(&list, &[user(b"a", b"new")], INLINE).unwrap();
        assert!(third.node.is_none());
        let list = parse(&third.inode).unwrap();
        assert_eq!((list[0].name, list[1].value), (&b"b"[..], &b"new"[..]));
        let gone = XattrChange {
            value: None,
            ..user(b"b", b"")
        };
        let last = apply(&list, &[gone], INLINE).unwrap();
        assert_eq!(parse(&last.inode).unwrap().len(), 1);
        let most = vec![0; usize::try_from(max_value(INLINE)).unwrap() - 1];
        assert!(
            apply(&[], &[user(b"", &most)], INLINE)
                .unwrap()
                .node
                .is_some()
        );
        assert_eq!(apply(&[], &[user(b"12345", &most)], INLINE), None);
    }

    #[test]
    fn without_room_in_the_inode_all_is_in_the_node() {
        let made = apply(&[], &[user(b"a", b"b")], 0).unwrap();
        assert!(made.inode.is_empty());
        assert_eq!(parse(&together(&made)).unwrap().len(), 1);
        assert_eq!(split(&[], 0).unwrap().node, None);
    }

    #[test]
    fn lists_round_trip() {
        let list = [
            Xattr {
                index: index::USER,
                name: b"a",
                value: b"",
            },
            Xattr {
                index: index::SECURITY,
                name: b"capability",
                value: &[7; 20],
            },
            Xattr {
                index: index::ACL_ACCESS,
                name: b"",
                value: &[1, 2, 3],
            },
        ];
        let area = encode(&list, 200).unwrap();
        assert_eq!(parse(&area).unwrap(), list);
        assert_eq!(
            encode(&list, size_of_list(&list)).unwrap().len(),
            size_of_list(&list)
        );
        let full = size_of_list(&list) - 4;
        assert_eq!(parse(&encode(&list, full).unwrap()).unwrap(), list);
        assert_eq!(encode(&list, full - 1), None);
        assert!(parse(&[0; 200]).unwrap().is_empty());
        assert!(parse(&area[..44]).is_err(), "cut inside a value");
        for end in 0..area.len() {
            let _ = parse(&area[..end]);
        }
        let wild = [&area[..24], &[0xFF; 100]].concat();
        assert!(parse(&wild).is_err());
    }
}
