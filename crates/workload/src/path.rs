//! Paths inside a volume.

use std::fmt;
use std::str::FromStr;

/// A path from the root of a volume: its components, none for the root. Symbolic links are never followed. As text it
/// begins with `/`; `\` and bytes other than visible ASCII are written `\xNN`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreePath(Vec<Vec<u8>>);

impl TreePath {
    /// The root.
    pub const fn root() -> Self {
        Self(Vec::new())
    }

    /// The entry `name` of this directory.
    pub fn child(&self, name: &[u8]) -> Self {
        let mut parts = self.0.clone();
        parts.push(name.to_vec());
        Self(parts)
    }

    /// The path of the directory that holds the last component; `None` for the root.
    pub fn parent(&self) -> Option<Self> {
        let (_, dir) = self.0.split_last()?;
        Some(Self(dir.to_vec()))
    }

    /// The last component; `None` for the root.
    pub fn name(&self) -> Option<&[u8]> {
        self.0.last().map(Vec::as_slice)
    }

    /// All components, from the root.
    pub fn parts(&self) -> &[Vec<u8>] {
        &self.0
    }

    /// Whether this is `dir` or below it.
    pub fn is_within(&self, dir: &Self) -> bool {
        self.0.starts_with(&dir.0)
    }
}

/// Writes `bytes` as one word of text.
pub(crate) fn escape(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for &byte in bytes {
        if byte.is_ascii_graphic() && byte != b'\\' {
            write!(f, "{}", char::from(byte))?;
        } else {
            write!(f, "\\x{byte:02x}")?;
        }
    }
    Ok(())
}

/// Parses the output of [`escape`].
pub(crate) fn unescape(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        if first != b'\\' {
            out.push(first);
            rest = after;
            continue;
        }
        let hex = after
            .strip_prefix(b"x")
            .and_then(|h| h.get(..2))
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok())
            .ok_or_else(|| format!("'\\' is not followed by xNN in '{text}'"))?;
        out.push(hex);
        rest = &after[3..];
    }
    Ok(out)
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        for part in &self.0 {
            f.write_str("/")?;
            escape(part, f)?;
        }
        Ok(())
    }
}

impl FromStr for TreePath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let rest = text
            .strip_prefix('/')
            .ok_or_else(|| format!("'{text}' is not a path: it does not begin with '/'"))?;
        if rest.is_empty() {
            return Ok(Self::root());
        }
        let parts: Result<Vec<_>, _> = rest.split('/').map(unescape).collect();
        Ok(Self(parts?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        for path in ["/", "/a", "/a/b c", "/\u{e9}/x\\y\n", "/#/@1"] {
            let mut tree = TreePath::root();
            for part in path[1..].split('/').filter(|p| !p.is_empty()) {
                tree = tree.child(part.as_bytes());
            }
            let text = tree.to_string();
            assert!(!text.contains(' ') && text.is_ascii());
            assert_eq!(text.parse(), Ok(tree));
        }
        assert!("a".parse::<TreePath>().is_err());
        assert!("/a\\q1".parse::<TreePath>().is_err());
        assert!("/a\\x1".parse::<TreePath>().is_err());
    }

    #[test]
    fn families() {
        let a: TreePath = "/a/b".parse().unwrap();
        assert_eq!(a.parent(), Some("/a".parse().unwrap()));
        assert_eq!(a.name(), Some(&b"b"[..]));
        assert!(a.is_within(&a) && a.is_within(&TreePath::root()));
        assert!(!a.is_within(&"/a/bb".parse().unwrap()));
        assert_eq!(TreePath::root().parent(), None);
    }
}
