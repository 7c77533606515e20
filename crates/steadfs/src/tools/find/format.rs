//! Formats of `-printf`, and the lines of `-ls`.

use steadfs_vfs::{FileKind, FsError};

use super::super::list::{device_numbers, mode_string};
use super::super::{Result, printable};
use super::expression::Stamp;
use super::{Finder, Visited, base_name, times};

/// A format, parsed.
#[derive(Debug, Default)]
pub struct Format {
    pieces: Vec<Piece>,
    /// Names of users or groups are shown.
    pub names: bool,
}

#[derive(Debug)]
enum Piece {
    Text(Vec<u8>),
    Field(Field),
    /// `\c`: nothing follows.
    Stop,
}

#[derive(Debug, Default)]
struct Field {
    left: bool,
    zeros: bool,
    alternate: bool,
    width: usize,
    what: u8,
    /// Of times: which, and the part of it; the whole if there is no part.
    time: Option<(Stamp, Option<u8>)>,
}

/// Widest field, in bytes.
const WIDTH_MAX: usize = 4096;

impl Format {
    /// Parses a format.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let mut format = Self::default();
        let mut rest = text;
        while let [first, after @ ..] = rest {
            rest = match first {
                b'\\' => format.escape(after)?,
                b'%' => format.field(after)?,
                byte => {
                    format.byte(*byte);
                    after
                }
            };
        }
        Ok(format)
    }

    fn byte(&mut self, byte: u8) {
        match self.pieces.last_mut() {
            Some(Piece::Text(text)) => text.push(byte),
            _ => self.pieces.push(Piece::Text(vec![byte])),
        }
    }

    fn escape<'t>(&mut self, after: &'t [u8]) -> Result<&'t [u8], String> {
        let [letter, rest @ ..] = after else {
            return Err("-printf: a backslash is at the end".to_owned());
        };
        let byte = match letter {
            b'a' => 7,
            b'b' => 8,
            b'f' => 12,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'v' => 11,
            b'\\' => b'\\',
            b'c' => {
                self.pieces.push(Piece::Stop);
                return Ok(rest);
            }
            b'0'..=b'7' => {
                let is_octal = |byte: &&u8| (b'0'..=b'7').contains(*byte);
                let digits = after.iter().take(3).take_while(is_octal);
                let digits: Vec<u32> = digits.map(|digit| u32::from(digit - b'0')).collect();
                let value = digits.iter().fold(0, |value, digit| value * 8 + digit);
                self.byte((value % 256).try_into().unwrap_or_default());
                return Ok(&after[digits.len()..]);
            }
            _ => {
                let shown = printable(&[*letter]);
                return Err(format!("-printf: \\{shown} is no escape sequence"));
            }
        };
        self.byte(byte);
        Ok(rest)
    }

    fn field<'t>(&mut self, after: &'t [u8]) -> Result<&'t [u8], String> {
        let mut field = Field::default();
        let mut rest = after;
        while let [flag, next @ ..] = rest {
            match flag {
                b'-' => field.left = true,
                b'0' => field.zeros = true,
                b'#' => field.alternate = true,
                _ => break,
            }
            rest = next;
        }
        while let [digit @ b'0'..=b'9', next @ ..] = rest {
            field.width = field.width * 10 + usize::from(digit - b'0');
            if field.width > WIDTH_MAX {
                return Err(format!("-printf: a field is wider than {WIDTH_MAX}"));
            }
            rest = next;
        }
        let [what, next @ ..] = rest else {
            return Err("-printf: % is at the end".to_owned());
        };
        rest = next;
        field.what = *what;
        let stamp = |letter: u8| match letter.to_ascii_lowercase() {
            b'a' => Stamp::Access,
            b'b' => Stamp::Birth,
            b'c' => Stamp::Change,
            _ => Stamp::Modification,
        };
        match what {
            b'%' => {
                self.byte(b'%');
                return Ok(rest);
            }
            b'u' | b'g' => self.names = true,
            b'b' | b'd' | b'f' | b'G' | b'h' | b'H' | b'i' | b'k' | b'l' | b'm' | b'M' | b'n'
            | b'p' | b'P' | b's' | b'U' | b'y' | b'Y' => {}
            b'a' | b'c' | b't' => field.time = Some((stamp(*what), None)),
            b'A' | b'B' | b'C' | b'T' => match rest {
                [part, next @ ..] if times::is_known(*part) => {
                    field.time = Some((stamp(*what), Some(*part)));
                    rest = next;
                }
                _ => {
                    let (what, part) = (printable(&[*what]), printable(&rest[..rest.len().min(1)]));
                    return Err(format!("-printf: %{what}{part} is not supported"));
                }
            },
            _ => {
                let shown = printable(&[*what]);
                return Err(format!("-printf: %{shown} is not supported"));
            }
        }
        self.pieces.push(Piece::Field(field));
        Ok(rest)
    }
}

impl Field {
    /// Appends a value, as wide as asked for.
    fn append(&self, out: &mut Vec<u8>, value: &[u8]) {
        let missing = self.width.saturating_sub(value.len());
        // The other numbers are text to find(1).
        let is_number = b"dm".contains(&self.what);
        let fill = match self.zeros && !self.left && is_number {
            true => b'0',
            false => b' ',
        };
        if !self.left {
            out.resize(out.len() + missing, fill);
        }
        out.extend_from_slice(value);
        if self.left {
            out.resize(out.len() + missing, b' ');
        }
    }
}

/// The letter of a type, as in `-type`.
pub fn letter(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => b'f',
        FileKind::Directory => b'd',
        FileKind::Symlink => b'l',
        FileKind::CharDevice => b'c',
        FileKind::BlockDevice => b'b',
        FileKind::Fifo => b'p',
        FileKind::Socket => b's',
    }
}

impl Finder<'_> {
    /// A file's text by a format.
    pub fn formatted(&mut self, format: &Format, file: Visited<'_>) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        for piece in &format.pieces {
            match piece {
                Piece::Text(plain) => text.extend_from_slice(plain),
                Piece::Stop => break,
                Piece::Field(field) => {
                    let value = self.value(field, file)?;
                    field.append(&mut text, &value);
                }
            }
        }
        Ok(text)
    }

    fn value(&mut self, field: &Field, file: Visited<'_>) -> Result<Vec<u8>> {
        let attr = file.attr;
        if let Some((which, part)) = field.time {
            // A time that the format does not keep is empty, as in find(1).
            return Ok(match (which.of(attr), part) {
                (None, _) => Vec::new(),
                (Some(time), Some(part)) => times::part(time, part).into_bytes(),
                (Some(time), None) => times::whole(time).into_bytes(),
            });
        }
        let account = |name: Option<&[u8]>, id: u32| match name {
            Some(name) => self.shown(name),
            None => id.to_string().into_bytes(),
        };
        let number = match field.what {
            b'b' => attr.blocks,
            b'd' => file.depth as u64,
            b'G' => attr.gid.into(),
            b'i' => attr.ino.0,
            b'k' => attr.blocks.div_ceil(2),
            b'n' => attr.nlink.into(),
            b's' => attr.size,
            b'U' => attr.uid.into(),
            b'm' => {
                let zero = if field.alternate && attr.perm != 0 {
                    "0"
                } else {
                    ""
                };
                return Ok(format!("{zero}{:o}", attr.perm).into_bytes());
            }
            b'M' => return Ok(mode_string(attr.kind, attr.perm).into_bytes()),
            b'u' => return Ok(account(self.accounts.user(attr.uid), attr.uid)),
            b'g' => return Ok(account(self.accounts.group(attr.gid), attr.gid)),
            b'y' => return Ok(vec![letter(attr.kind)]),
            b'Y' => return Ok(vec![self.target_letter(file)]),
            b'l' => {
                let target = self.target(file)?.unwrap_or_default();
                return Ok(self.shown(&target));
            }
            what => return Ok(self.path(what, file)),
        };
        Ok(number.to_string().into_bytes())
    }

    /// A file's path, or a part of it.
    fn path(&self, what: u8, file: Visited<'_>) -> Vec<u8> {
        let whole = [self.output.prefix, file.path].concat();
        match what {
            b'f' => self.shown(base_name(file.path)),
            b'h' => {
                let slash = whole.iter().rposition(|byte| *byte == b'/');
                self.shown(&whole[..slash.unwrap_or(whole.len())])
            }
            b'H' => self.shown(&[self.output.prefix, self.top].concat()),
            b'P' => {
                let below = file.path.strip_prefix(self.top).unwrap_or_default();
                self.shown(below.strip_prefix(b"/").unwrap_or(below))
            }
            _ => self.shown(&whole),
        }
    }

    /// The type of the file that a path leads to; N: there is none, L: a circle of links, ?: it cannot be read.
    fn target_letter(&self, file: Visited<'_>) -> u8 {
        match self.target_kind(file) {
            Ok(kind) => letter(kind),
            Err(FsError::NotFound | FsError::NotDir) => b'N',
            Err(FsError::Loop) => b'L',
            Err(_) => b'?',
        }
    }

    /// A line of `-ls`.
    pub fn listed(&mut self, file: Visited<'_>) -> Result<String> {
        let attr = file.attr;
        let account = |name: Option<&[u8]>, id: u32| name.map_or(id.to_string(), printable);
        let user = account(self.accounts.user(attr.uid), attr.uid);
        let group = account(self.accounts.group(attr.gid), attr.gid);
        let size = match attr.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let (major, minor) = device_numbers(attr.rdev);
                format!("{major:>3}, {minor:>3}")
            }
            _ => attr.size.to_string(),
        };
        let target = self.target(file)?;
        let target = target.map_or(String::new(), |target| {
            format!(" -> {}", printable(&target))
        });
        let (mode, links) = (mode_string(attr.kind, attr.perm), attr.nlink);
        let time = times::short(attr.mtime, self.expression.now);
        let path = printable(&[self.output.prefix, file.path].concat());
        let (ino, kib) = (attr.ino.0, attr.blocks.div_ceil(2));
        Ok(format!(
            "{ino:>9} {kib:>6} {mode} {links:>3} {user:<8} {group:<8} {size:>8} {time} {path}{target}\n"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_refused_by_name() {
        for (format, why) in [
            ("%Z", "%Z is not supported"),
            ("%T", "%T is not supported"),
            ("%Tq", "%Tq is not supported"),
            ("%", "at the end"),
            ("%-5", "at the end"),
            ("\\", "at the end"),
            ("\\q", "\\q is no escape"),
            ("%99999p", "wider"),
            ("%.3p", "%. is not supported"),
        ] {
            let error = Format::parse(format.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{format}: {error}");
        }
    }

    #[test]
    fn escapes_are_those_of_find() {
        let format = Format::parse(b"a\\t\\101\\0\\\\%%\\c%p").unwrap();
        let Piece::Text(text) = &format.pieces[0] else {
            panic!("{format:?}");
        };
        assert_eq!(text, b"a\tA\0\\%");
        assert!(matches!(format.pieces[1], Piece::Stop));
        assert!(!format.names && Format::parse(b"%u").unwrap().names);
    }
}
