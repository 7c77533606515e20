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

/// The attribute's value of a text: entries by commas or lines. A name counts only if its number stands in a fourth field,
/// as star(1) writes it: the names of this host may mean others.
pub(crate) fn acl_of_text(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    const NO_LIST: &str = "is no access control list";
    const NAMES: &str =
        "it has names of users or groups, not numbers, which tar --numeric-owner writes";
    const NO_ID: u32 = u32::MAX;
    let text = std::str::from_utf8(text).map_err(|_| NO_LIST)?;
    let mut value = VERSION.to_vec();
    for entry in text
        .split([',', '\n'])
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
    {
        let fields: Vec<&str> = entry.split(':').collect();
        let [word, name, perm, rest @ ..] = &fields[..] else {
            return Err(NO_LIST);
        };
        let named = !name.is_empty();
        let tag = TAGS
            .into_iter()
            .find(|tag| tag.1 == *word && tag.2 == named);
        let (tag, ..) = tag.ok_or(NO_LIST)?;
        let id = match (named, name.parse(), rest.first().map(|id| id.parse())) {
            (false, ..) => NO_ID,
            (true, Ok(id), _) | (true, Err(_), Some(Ok(id))) => id,
            _ => return Err(NAMES),
        };
        let mut bits = 0u16;
        for letter in perm.split('#').next().unwrap_or_default().trim().chars() {
            bits |= match letter {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                '-' => 0,
                _ => return Err(NO_LIST),
            };
        }
        value.extend(tag.to_le_bytes());
        value.extend(bits.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    match value.len() > HEADER {
        true => Ok(value),
        false => Err(NO_LIST),
    }
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
        assert_eq!(acl_of_text(text.unwrap().as_bytes()), Ok(list.concat()));
        let star = acl_of_text(b"user::rw-\nuser:some:r-x:1000\nother::---\n");
        assert_eq!(star, Ok(list.concat()));
        for wrong in [
            "",
            "user:some:r-x",
            "user::rq-",
            "user::",
            "x::r",
            "user:1:r:x:y",
        ] {
            assert_eq!(
                acl_of_text(wrong.as_bytes()).is_ok(),
                wrong == "user:1:r:x:y" || wrong == "user::"
            );
        }
        assert_eq!(acl_to_text(&[2, 0, 0, 0, 1]), None);
        assert_eq!(acl_to_text(&[1, 0, 0, 0]), None);
    }
}
