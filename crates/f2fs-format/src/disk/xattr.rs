//! Extended attributes: one list, whose first part is stored in the inode (in the inline xattr area, if it has one)
//! and the rest in the xattr node. A header, then entries up to an all-zero one.

use zerocopy::FromBytes;

pub use super::raw::{RawXattrEntry, RawXattrHeader};

use super::node::FOOTER_AT;
use super::num::{get32, idx16, low16, short, wide};
use super::{DiskError, Result, Structure};

/// `F2FS_XATTR_MAGIC`.
pub const MAGIC: u32 = 0xF2F5_2011;
/// Bytes of the xattr node that hold attributes (`VALID_XATTR_BLOCK_SIZE`).
pub const NODE_XATTR_BYTES: usize = FOOTER_AT;
const HEADER: usize = size_of::<RawXattrHeader>();
const ENTRY: usize = size_of::<RawXattrEntry>();

/// Name prefixes (`F2FS_XATTR_INDEX_*`), which are not stored with the name.
pub mod index {
    /// `user.`
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`, the full name.
    pub const ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`, the full name.
    pub const ACL_DEFAULT: u8 = 3;
    /// `trusted.`
    pub const TRUSTED: u8 = 4;
    /// `lustre.`, not used.
    pub const LUSTRE: u8 = 5;
    /// `security.`
    pub const SECURITY: u8 = 6;
    /// `system.advise`: not stored in the list but in `i_advise`.
    pub const ADVISE: u8 = 7;
    /// The encryption context; hidden from users.
    pub const ENCRYPTION: u8 = 9;
    /// The position of the verity descriptor; hidden from users.
    pub const VERITY: u8 = 11;
}

/// An extended attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Xattr<'a> {
    /// The prefix of the name.
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
    /// Bytes of the entry.
    pub const fn size(&self) -> usize {
        padded(ENTRY + self.name.len() + self.value.len())
    }
}

/// Whether the area has a list: areas never used have no header.
pub fn is_present(area: &[u8]) -> bool {
    area.len() >= HEADER && get32(area, 0) == MAGIC
}

/// Decodes the attributes of an area: the part in the inode, followed by the xattr node's, if there is one. Without
/// a header there are none.
pub fn parse(area: &[u8]) -> Result<Vec<Xattr<'_>>> {
    let mut list = Vec::new();
    if !is_present(area) {
        return Ok(list);
    }
    let mut rest = &area[HEADER..];
    // The list also ends where the area ends before another entry header.
    while rest.len() >= ENTRY && get32(rest, 0) != 0 {
        let (raw, body) = RawXattrEntry::ref_from_prefix(rest).expect("long enough");
        let (name_len, value_len) = (usize::from(raw.name_len), idx16(raw.value_size.get()));
        if name_len + value_len > body.len() {
            let number = short(list.len());
            return Err(DiskError::entry(
                Structure::Xattrs,
                number,
                "extends beyond the end of the area",
            ));
        }
        let (name, value) = body.split_at(name_len);
        list.push(Xattr {
            index: raw.name_index,
            name,
            value: &value[..value_len],
        });
        let size = padded(ENTRY + name_len + value_len);
        rest = rest.get(size..).unwrap_or_default();
    }
    Ok(list)
}

/// A change of one attribute.
#[derive(Clone, Copy, Debug)]
pub struct XattrChange<'a> {
    /// The prefix of the name.
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

/// A list of attributes split between inode and xattr node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitXattrs {
    /// The part in the inode, as long as the inline xattr area.
    pub inode: Vec<u8>,
    /// The part in the node, [`NODE_XATTR_BYTES`] bytes; `None` if the inline area is sufficient.
    pub node: Option<Vec<u8>>,
}

/// Applies changes to a list and splits it; changed attributes move to the end. `inline`: bytes of the inline xattr
/// area. `None` if the list does not fit.
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

/// Splits a list; an empty one needs no node. `None` if it does not fit.
pub fn split(list: &[Xattr<'_>], inline: usize) -> Option<SplitXattrs> {
    let mut area = encode(list, inline + NODE_XATTR_BYTES)?;
    let fits = size_of_list(list) <= inline || list.is_empty();
    let node = area.split_off(inline);
    Some(SplitXattrs {
        inode: area,
        node: (!fits).then_some(node),
    })
}

/// Encodes a list into an area of `len` bytes (as for [`parse`]). `None` if it does not fit. (It may fill the area:
/// Linux keeps no terminating zero word free either.)
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

/// Bytes of a list with header and terminating zeros; decides whether the inline area is sufficient.
pub fn size_of_list(list: &[Xattr<'_>]) -> usize {
    HEADER + list.iter().map(Xattr::size).sum::<usize>() + 4
}

/// The longest value that an attribute with an empty name can have, with an inline area of this size.
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

    /// The list as it is read from both areas.
    fn joined(cut: &SplitXattrs) -> Vec<u8> {
        [&cut.inode[..], cut.node.as_deref().unwrap_or(&[])].concat()
    }

    #[test]
    fn a_list_is_split_at_the_end_of_the_inode() {
        const INLINE: usize = 200;
        let first = apply(&[], &[user(b"a", &[1; 100])], INLINE).unwrap();
        assert_eq!((first.inode.len(), &first.node), (INLINE, &None));
        let list = parse(&first.inode).unwrap();
        // The second attribute crosses the boundary.
        let second = apply(&list, &[user(b"b", &[2; 100])], INLINE).unwrap();
        assert_eq!(second.node.as_ref().unwrap().len(), NODE_XATTR_BYTES);
        let area = joined(&second);
        let list = parse(&area).unwrap();
        assert_eq!(list.len(), 2);
        // A new value moves to the end; removing an attribute may free the node.
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
    fn without_an_inline_area_all_is_in_the_node() {
        let made = apply(&[], &[user(b"a", b"b")], 0).unwrap();
        assert!(made.inode.is_empty());
        assert_eq!(parse(&joined(&made)).unwrap().len(), 1);
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
