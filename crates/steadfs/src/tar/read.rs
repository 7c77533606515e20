//! Reading an archive: headers of all the formats that GNU tar reads.
//!
//! **Problem.** An archive can be hostile: it can promise any size, and any number of records before a member.
//! **Rule.** All lengths are checked before memory is taken for them, and what a member needs is bounded:
//! [`RECORDS_MAX`], [`NAME_MAX`], [`PIECES_MAX`] and [`EXTENSIONS_MAX`].

use std::io;

use steadfs_base::Timestamp;

use super::extra::Extra;
use super::header::checksum;
use super::tape::Tape;
use super::{BLOCK, kind};

/// Largest pax records in one header, and most memory for the attributes of a member, in bytes.
pub(crate) const RECORDS_MAX: u64 = 16 << 20;
/// Longest name in a member of its own (GNU), in bytes: the deepest tree has longer ones nowhere.
const NAME_MAX: u64 = 1 << 20;
/// Most pieces of data of a sparse file.
pub(crate) const PIECES_MAX: usize = 1 << 20;
/// Most headers before a member that belong to it.
const EXTENSIONS_MAX: u32 = 16;
/// Pieces of a sparse file in its header, and in each block after it.
const PIECES_IN_HEADER: usize = 4;
const PIECES_IN_BLOCK: usize = 21;

/// Why an archive cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TarError {
    /// A call failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The content breaks the format's rules.
    #[error("byte {at}: {why}")]
    Broken {
        /// Where, from the archive's beginning.
        at: u64,
        /// The rule.
        why: String,
    },
    /// It is no archive, or not as it is.
    #[error("{0}")]
    Other(String),
}

pub(crate) type Result<T, E = TarError> = std::result::Result<T, E>;

/// A piece of a sparse file: its place there and its length.
pub(crate) type Piece = (u64, u64);

/// A member, without its data.
#[derive(Debug, Default)]
pub(crate) struct Member {
    pub name: Vec<u8>,
    pub link: Vec<u8>,
    pub kind: u8,
    pub perm: u32,
    pub uid: u32,
    pub gid: u32,
    pub mtime: Timestamp,
    pub atime: Option<Timestamp>,
    pub device: (u32, u32),
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Attributes that cannot be kept, with the reason.
    pub lost: Vec<(String, &'static str)>,
    /// Bytes of memory that the attributes take.
    pub held: u64,
    /// Bytes of data that follow in the archive.
    pub data: u64,
    /// Size of the file.
    pub size: u64,
    /// The pieces that the data fill.
    pub pieces: Vec<Piece>,
}

/// Reads members one after the other.
pub(crate) struct Members<'t, 's> {
    pub tape: &'t mut Tape<'s>,
    global: Extra,
}

impl<'t, 's> Members<'t, 's> {
    pub fn new(tape: &'t mut Tape<'s>) -> Self {
        Self {
            tape,
            global: Extra::default(),
        }
    }

    /// The next member; its data must be taken from the tape before the next call. `None` at the end.
    pub fn next(&mut self) -> Result<Option<Member>> {
        let mut extra = self.global.clone();
        for _ in 0..=EXTENSIONS_MAX {
            let at = self.tape.at();
            let Some(header) = self.header()? else {
                return Ok(None);
            };
            let size = || {
                self.tape
                    .broken_if_none(number(&header[124..136]), "its size is no number")
            };
            match header[156] {
                kind::PAX | kind::PAX_SOLARIS => {
                    let records = self.small(size()?, RECORDS_MAX, "pax records")?;
                    extra.add(&records).map_err(|why| broken(at, why))?;
                }
                kind::GLOBAL => {
                    let records = self.small(size()?, RECORDS_MAX, "pax records")?;
                    self.global.add(&records).map_err(|why| broken(at, why))?;
                    self.global.forget_file();
                    extra = self.global.clone();
                }
                kind::LONG_NAME => extra.path = Some(self.name(size()?)?),
                kind::LONG_LINK => extra.link = Some(self.name(size()?)?),
                _ => return self.member(&header, extra, at).map(Some),
            }
        }
        let why = format!("more than {EXTENSIONS_MAX} headers belong to one member");
        Err(broken(self.tape.at(), why))
    }

    /// The next header, or `None` at the end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let at = self.tape.at();
        let Some(header) = self.tape.block()? else {
            let why =
                "the archive ends without the two blocks of zeros at its end: it is cut short";
            return Err(broken(at, why));
        };
        if header == [0; BLOCK] {
            return Ok(None);
        }
        let found = number(&header[148..156]);
        let signed = checksum(&header) as i64
            - 256
                * header[..148]
                    .iter()
                    .chain(&header[156..])
                    .filter(|&&b| b > 127)
                    .count() as i64;
        let sums = [i64::from(checksum(&header)), signed];
        match found.and_then(|sum| i64::try_from(sum).ok()) {
            Some(sum) if sums.contains(&sum) => Ok(Some(header)),
            _ => Err(broken(
                at,
                "a header's checksum is wrong: the archive is damaged",
            )),
        }
    }

    /// The data of a member that only describes the next one.
    fn small(&mut self, size: u64, most: u64, what: &str) -> Result<Vec<u8>> {
        let at = self.tape.at();
        if size > most {
            return Err(broken(
                at,
                format!("{what} of {size} bytes: at most {most} are read"),
            ));
        }
        self.tape.data(size)
    }

    fn name(&mut self, size: u64) -> Result<Vec<u8>> {
        let mut name = self.small(size, NAME_MAX, "a name")?;
        let end = name.iter().position(|&b| b == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn member(&mut self, header: &[u8; BLOCK], mut extra: Extra, at: u64) -> Result<Member> {
        let field = |range: std::ops::Range<usize>, what: &str| {
            number(&header[range]).ok_or_else(|| broken(at, format!("its {what} is no number")))
        };
        let narrow = |value: u64, what: &str| {
            u32::try_from(value).map_err(|_| broken(at, format!("its {what} {value} is too large")))
        };
        let is_gnu = &header[257..265] == b"ustar  \0";
        let is_ustar = &header[257..262] == b"ustar";
        let mut name = until_zero(&header[..100]).to_vec();
        let prefix = until_zero(&header[345..500]);
        if is_ustar && !is_gnu && !prefix.is_empty() {
            name = [prefix, b"/", &name].concat();
        }
        let mut size = field(124..136, "size")?;
        let device = match header[156] {
            kind::CHAR_DEVICE | kind::BLOCK_DEVICE => (
                narrow(field(329..337, "device")?, "device")?,
                narrow(field(337..345, "device")?, "device")?,
            ),
            _ => (0, 0),
        };
        size = extra.size.unwrap_or(size);
        let mut member = Member {
            name: extra.path.take().unwrap_or(name),
            link: extra
                .link
                .take()
                .unwrap_or_else(|| until_zero(&header[157..257]).to_vec()),
            kind: header[156],
            perm: (field(100..108, "mode")? & 0o7777) as u32,
            uid: narrow(
                extra.uid.map_or_else(|| field(108..116, "owner"), Ok)?,
                "owner",
            )?,
            gid: narrow(
                extra.gid.map_or_else(|| field(116..124, "group"), Ok)?,
                "group",
            )?,
            mtime: match extra.mtime {
                Some(time) => time,
                None => Timestamp {
                    secs: signed(&header[136..148])
                        .ok_or_else(|| broken(at, "its time is no number"))?,
                    nanos: 0,
                },
            },
            atime: extra.atime,
            device,
            // These have no data, whatever their size is: some writers give the length of a link's target or a directory's size.
            data: match header[156] {
                kind::HARD_LINK | kind::SYMLINK | kind::DIRECTORY | kind::FIFO => 0,
                kind::CHAR_DEVICE | kind::BLOCK_DEVICE => 0,
                _ => size,
            },
            size,
            held: extra.held,
            ..Member::default()
        };
        (member.xattrs, member.lost) = extra.xattrs();
        if member.name.ends_with(b"/") && matches!(member.kind, 0 | kind::REGULAR) {
            member.kind = kind::DIRECTORY;
        }
        self.pieces(&mut member, header, extra, at)?;
        Ok(member)
    }

    /// Finds out which pieces of the file the data fill.
    fn pieces(
        &mut self,
        member: &mut Member,
        header: &[u8; BLOCK],
        mut extra: Extra,
        at: u64,
    ) -> Result<()> {
        let sparse = &mut extra.sparse;
        if member.kind == kind::GNU_SPARSE {
            member.kind = kind::REGULAR;
            member.size =
                number(&header[483..495]).ok_or_else(|| broken(at, "its size is no number"))?;
            let mut list = self.old_map(header)?;
            std::mem::swap(&mut member.pieces, &mut list);
        } else if sparse.is_sparse {
            if let Some(name) = sparse.name.take() {
                member.name = name;
            }
            member.size = sparse
                .size
                .ok_or_else(|| broken(at, "a sparse file has no size"))?;
            member.pieces = match sparse.in_data {
                true => {
                    let (map, used) = self.map_in_data(member.data)?;
                    member.data -= used;
                    map
                }
                false => std::mem::take(&mut sparse.map),
            };
        } else {
            member.pieces = match member.data {
                0 => Vec::new(),
                data => vec![(0, data)],
            };
            return Ok(());
        }
        member.pieces.retain(|(_, len)| *len > 0);
        let mut last = 0;
        let mut sum = 0;
        for &(start, len) in &member.pieces {
            let end = start
                .checked_add(len)
                .filter(|&end| start >= last && end <= member.size);
            last = end.ok_or_else(|| broken(at, "the map of a sparse file has no order"))?;
            sum += len;
        }
        match sum == member.data {
            true => Ok(()),
            false => Err(broken(at, "the map of a sparse file does not fit its data")),
        }
    }

    /// The map of GNU tar's old format: in the header and in blocks after it.
    fn old_map(&mut self, header: &[u8; BLOCK]) -> Result<Vec<Piece>> {
        let mut map = Vec::new();
        let at = self.tape.at();
        let take =
            |map: &mut Vec<Piece>, bytes: &[u8], count: usize| {
                for entry in bytes
                    .chunks_exact(24)
                    .take(count)
                    .filter(|entry| entry[0] != 0)
                {
                    let piece = number(&entry[..12]).zip(number(&entry[12..]));
                    map.push(piece.ok_or_else(|| {
                        broken(at, "the map of a sparse file is no list of numbers")
                    })?);
                }
                check_pieces(map.len(), at)
            };
        take(&mut map, &header[386..], PIECES_IN_HEADER)?;
        let mut more = header[482] != 0;
        while more {
            let block = self.tape.full_block()?;
            take(&mut map, &block, PIECES_IN_BLOCK)?;
            more = block[504] != 0;
        }
        Ok(map)
    }

    /// The map of format 1.0, in front of the data; and the bytes that it takes.
    fn map_in_data(&mut self, data: u64) -> Result<(Vec<Piece>, u64)> {
        let at = self.tape.at();
        let no_list = || broken(at, "the map of a sparse file is no list of numbers");
        let (mut used, mut numbers, mut digits) = (0, Vec::new(), Vec::new());
        let mut wanted = None;
        while wanted.is_none_or(|wanted| numbers.len() < wanted) {
            used += BLOCK as u64;
            if used > data {
                return Err(broken(
                    at,
                    "the map of a sparse file is longer than its data",
                ));
            }
            for byte in self.tape.full_block()? {
                if wanted.is_some_and(|wanted| numbers.len() == wanted) {
                    break;
                }
                match byte {
                    b'0'..=b'9' if digits.len() < 20 => digits.push(byte),
                    b'\n' => {
                        let value = decimal(&digits).ok_or_else(no_list)?;
                        digits.clear();
                        match wanted {
                            Some(_) => numbers.push(value),
                            None => {
                                let count = usize::try_from(value).unwrap_or(usize::MAX);
                                check_pieces(count, at)?;
                                wanted = Some(2 * count);
                            }
                        }
                    }
                    _ => return Err(no_list()),
                }
            }
        }
        let map = numbers.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        Ok((map.collect(), used))
    }
}

fn check_pieces(count: usize, at: u64) -> Result<()> {
    match count > PIECES_MAX {
        true => Err(broken(
            at,
            format!("a sparse file has more than {PIECES_MAX} pieces"),
        )),
        false => Ok(()),
    }
}

pub(crate) fn broken(at: u64, why: impl Into<String>) -> TarError {
    let why = why.into();
    TarError::Broken { at, why }
}

fn until_zero(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    &field[..end]
}

/// A decimal number.
pub(crate) fn decimal(text: &[u8]) -> Option<u64> {
    let digits = !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(text).ok()?.parse().ok())?
}

/// A number in a header's field: octal digits, or with a set bit in front binary. An empty field is 0.
fn number(field: &[u8]) -> Option<u64> {
    u64::try_from(signed(field)?).ok()
}

fn signed(field: &[u8]) -> Option<i64> {
    if field.first().is_some_and(|&first| first & 0x80 != 0) {
        // Two's complement, from the second bit on.
        let mut value = if field[0] & 0x40 != 0 { -1 } else { 0i128 };
        value = value << 6 | i128::from(field[0] & 0x3f);
        for &byte in &field[1..] {
            value = value.checked_mul(256)? | i128::from(byte);
        }
        return i64::try_from(value).ok();
    }
    let text = field.iter().skip_while(|b| **b == b' ');
    let mut value: i64 = 0;
    for &byte in text {
        match byte {
            b'0'..=b'7' => value = value.checked_mul(8)?.checked_add(i64::from(byte - b'0'))?,
            0 | b' ' => break,
            _ => return None,
        }
    }
    Some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_octal_or_binary() {
        assert_eq!(number(b"0000644\0"), Some(0o644));
        assert_eq!(number(b"  17 \0\0\0"), Some(0o17));
        assert_eq!(number(b"\0\0\0\0"), Some(0));
        assert_eq!(number(b"12x\0"), None);
        assert_eq!(number(b"\x80\0\0\x01\x02"), Some(258));
        assert_eq!(signed(b"\xff\xff\xff\xff\xfe"), Some(-2));
        assert_eq!(number(b"\xff\xff\xff\xff\xfe"), None);
        assert_eq!(number(&[0xbf; 12]), None);
        assert_eq!(number(b"777777777777"), Some((1 << 36) - 1));
    }
}
