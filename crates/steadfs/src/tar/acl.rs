//! Access control lists as text: `user::rw-,user:1000:r--,…`, with numbers for names.

/// Bytes before the entries of an `system.posix_acl_*` attribute, and its version.
const HEADER: usize = 4;
const VERSION: [u8; HEADER] = [2, 0, 0, 0];
const ENTRY: usize = 8;

/// Tags of entries, with their words, and whether the entry has a number.
const TAGS: [(u16, &str, bool); 6] = [
    (0x01, "user", false),
    (0x02, "user", true),
    (0x04, "group", false),
    (0x08, "group", true),
    (0x10, "mask", false),
    (0x20, "other", false),
];

/// The text of an attribute's value; `None` for a value that is no list.
pub(crate) fn acl_to_text(value: &[u8]) -> Option<String> {
    let entries = value.strip_prefix(&VERSION)?;
    if entries.len() % ENTRY != 0 {
        return None;
    }
    let mut all = Vec::new();
    for entry in entries.chunks_exact(ENTRY) {
        let half = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let (_, word, named) = TAGS.into_iter().find(|(tag, ..)| *tag == half(0))?;
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let id = if named { id.to_string() } else { String::new() };
        let bit = |bit: u16, letter: char| if half(2) & bit != 0 { letter } else { '-' };
        let (r, w, x) = (bit(4, 'r'), bit(2, 'w'), bit(1, 'x'));
        all.push(format!("{word}:{id}:{r}{w}{x}"));
    }
    Some(all.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_become_text() {
        let list = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 255, 255, 255, 255],
            &[2, 0, 5, 0, 232, 3, 0, 0],
            &[32, 0, 0, 0, 255, 255, 255, 255],
        ];
        let text = acl_to_text(&list.concat());
        assert_eq!(text.as_deref(), Some("user::rw-,user:1000:r-x,other::---"));
        assert_eq!(acl_to_text(&[2, 0, 0, 0, 1]), None);
        assert_eq!(acl_to_text(&[1, 0, 0, 0]), None);
    }
}
