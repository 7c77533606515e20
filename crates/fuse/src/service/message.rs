//! The messages, each one datagram; all numbers are big-endian.
//!
//! Source of the numbers and layouts: libfuse's `include/fuse_service_priv.h` at e8d407ce (protocol version 1).

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::OFlags;

/// Longest message in bytes.
pub(super) const MESSAGE_BYTES_MAX: usize = 65_536;
/// Most bytes of the file with the arguments, and of all arguments: twice what Linux passes to a program by default.
pub(super) const ARGUMENTS_BYTES_MAX: usize = 4 << 20;

/// The only version of the protocol.
const VERSION: u16 = 1;

const HELLO: u32 = u32::from_be_bytes(*b"SAFT");
const HELLO_REPLY: u32 = u32::from_be_bytes(*b"LAST");
const OPEN: u32 = u32::from_be_bytes(*b"OPEN");
const OPEN_BLOCK_DEVICE: u32 = u32::from_be_bytes(*b"BDEV");
const TYPE: u32 = u32::from_be_bytes(*b"TYPE");
const MOUNTPOINT: u32 = u32::from_be_bytes(*b"MNTP");
const MOUNT: u32 = u32::from_be_bytes(*b"DOIT");
const BYE: u32 = u32::from_be_bytes(*b"BYEE");
const FILE: u32 = u32::from_be_bytes(*b"FILE");
const REPLY: u32 = u32::from_be_bytes(*b"REPL");
const ARGUMENTS: u32 = u32::from_be_bytes(*b"ARGS");

/// The mounter may mount for other users.
const ALLOWS_OTHERS: u32 = 1;
/// The mounter mounts block devices as `fuseblk`: root uses it.
const ALLOWS_FUSEBLK: u32 = 2;
/// The mounter prints no error.
const OPEN_QUIETLY: u32 = 1;
/// S_IFDIR, the type of file that a mount point must have.
const DIRECTORY: u16 = 0o040_000;

/// A message that is not as the protocol has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Invalid(pub(super) &'static str);

type Parsed<T> = Result<T, Invalid>;

/// The number at byte `at`.
fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let four = bytes.get(at..at.checked_add(4)?)?;
    Some(u32::from_be_bytes(four.try_into().ok()?))
}

/// The bytes before the zero byte that ends them, which is the only one.
fn text(bytes: &[u8]) -> Option<&[u8]> {
    let (end, text) = bytes.split_last()?;
    (*end == 0 && !text.contains(&0)).then_some(text)
}

/// The mounter's first message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) allows_others: bool,
    pub(super) allows_fuseblk: bool,
}

impl Hello {
    /// Magic, lowest and highest version (16 bits each), flags.
    pub(super) fn parse(message: &[u8]) -> Parsed<Self> {
        if message.len() != 12 || number(message, 0) != Some(HELLO) {
            return Err(Invalid("the first message is no greeting"));
        }
        let versions = number(message, 4).unwrap_or_default();
        let flags = number(message, 8).unwrap_or_default();
        let (lowest, highest) = (versions >> 16, versions & 0xffff);
        if !(lowest..=highest).contains(&u32::from(VERSION)) {
            return Err(Invalid(
                "it does not speak version 1 of libfuse's service protocol",
            ));
        }
        if flags & !(ALLOWS_OTHERS | ALLOWS_FUSEBLK) != 0 {
            return Err(Invalid("the greeting has unknown flags"));
        }
        Ok(Self {
            allows_others: flags & ALLOWS_OTHERS != 0,
            allows_fuseblk: flags & ALLOWS_FUSEBLK != 0,
        })
    }

    /// Magic, version, padding.
    pub(super) fn reply() -> Vec<u8> {
        words(&[HELLO_REPLY, u32::from(VERSION) << 16])
    }
}

/// The reply to a request for a file, which has a descriptor unless it has an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FileReply<'a> {
    /// 0, or the error number.
    pub(super) errno: u32,
    pub(super) path: &'a [u8],
}

impl<'a> FileReply<'a> {
    /// Magic, error, path.
    pub(super) fn parse(message: &'a [u8]) -> Parsed<Self> {
        let path = message.get(8..).and_then(text);
        match (number(message, 0), number(message, 4), path) {
            (Some(FILE), Some(errno), Some(path)) => Ok(Self { errno, path }),
            _ => Err(Invalid("a message is no reply with a file")),
        }
    }
}

/// The error number in the reply to any other command; 0 if it was carried out. Magic, error.
pub(super) fn parse_reply(message: &[u8]) -> Parsed<u32> {
    match (message.len(), number(message, 0), number(message, 4)) {
        (8, Some(REPLY), Some(errno)) => Ok(errno),
        _ => Err(Invalid("a message is no reply")),
    }
}

/// A command to the mounter.
#[derive(Clone, Copy, Debug)]
pub(super) enum Command<'a> {
    /// Opens a file with these flags of open(2).
    Open {
        path: &'a OsStr,
        flags: OFlags,
        /// The mounter prints no error.
        quietly: bool,
    },
    /// The same; the file must be a block device, whose block size stays as it is.
    OpenBlockDevice { path: &'a OsStr, flags: OFlags },
    /// The type of the mount: `fuseblk` or `fuse`.
    Type { fuseblk: bool },
    /// The source of the mount.
    Source(&'a OsStr),
    /// The mount point, a directory, as it is among the arguments.
    Mountpoint(&'a OsStr),
    /// Options of FUSE, separated by commas.
    Options(&'a str),
    /// Mounts, with these flags of mount(2).
    Mount { flags: u32 },
    /// The last message; other than 0, the mount has failed.
    Bye { code: u32 },
}

impl Command<'_> {
    /// # Errors
    /// It is longer than [`MESSAGE_BYTES_MAX`], has an empty text, or a text with a zero byte.
    pub(super) fn encode(&self) -> Parsed<Vec<u8>> {
        let open = |magic, flags: OFlags, quietly: bool, path: &OsStr| {
            let quietly = if quietly { OPEN_QUIETLY } else { 0 };
            // Magic, flags, mode of a new file, flags of the request, block size, path.
            with_text(
                words(&[magic, flags.bits(), 0, quietly, 0]),
                path.as_bytes(),
            )
        };
        let string = |magic: &[u8; 4], value: &[u8]| with_text(magic.to_vec(), value);
        match *self {
            Self::Open {
                path,
                flags,
                quietly,
            } => open(OPEN, flags, quietly, path),
            Self::OpenBlockDevice { path, flags } => open(OPEN_BLOCK_DEVICE, flags, false, path),
            Self::Type { fuseblk } => Ok(words(&[TYPE, fuseblk.into()])),
            Self::Source(source) => string(b"NAME", source.as_bytes()),
            // Magic, type (16 bits), padding (16 bits), path.
            Self::Mountpoint(path) => with_text(
                words(&[MOUNTPOINT, u32::from(DIRECTORY) << 16]),
                path.as_bytes(),
            ),
            Self::Options(list) => string(b"OPTS", list.as_bytes()),
            Self::Mount { flags } => Ok(words(&[MOUNT, flags])),
            Self::Bye { code } => Ok(words(&[BYE, code])),
        }
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn with_text(mut head: Vec<u8>, text: &[u8]) -> Parsed<Vec<u8>> {
    if text.is_empty() || text.contains(&0) {
        return Err(Invalid("a text is empty or has a zero byte"));
    }
    if head.len() + text.len() >= MESSAGE_BYTES_MAX {
        return Err(Invalid("a text is longer than a message can be"));
    }
    head.extend_from_slice(text);
    head.push(0);
    Ok(head)
}

/// The content of the file with the arguments of the mounter's command line, the first of which is the type of the mount:
/// magic, number of arguments, for each its position in the file and its length, which includes a final zero byte.
pub(super) fn parse_arguments(file: &[u8]) -> Parsed<Vec<OsString>> {
    if number(file, 0) != Some(ARGUMENTS) {
        return Err(Invalid("the file with the arguments has another content"));
    }
    let damaged = Invalid("the file with the arguments is damaged");
    let count = number(file, 4).ok_or(damaged)? as usize;
    let mut bytes = 0_usize;
    let mut arguments = Vec::new();
    for n in 0..count {
        let entry = 8 + 8 * n;
        let (at, len) = number(file, entry)
            .zip(number(file, entry + 4))
            .ok_or(damaged)?;
        let (at, len) = (at as usize, len as usize);
        // Several entries may share their bytes.
        bytes += len;
        if bytes > ARGUMENTS_BYTES_MAX {
            return Err(Invalid("the arguments are too long"));
        }
        let argument = file.get(at..).and_then(|rest| rest.get(..len));
        let argument = argument.and_then(text).ok_or(damaged)?;
        arguments.push(OsString::from_vec(argument.to_vec()));
    }
    Ok(arguments)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(lowest: u16, highest: u16, flags: u32) -> Vec<u8> {
        let versions = u32::from(lowest) << 16 | u32::from(highest);
        words(&[HELLO, versions, flags])
    }

    #[test]
    fn greetings_are_parsed() {
        assert_eq!(
            hello(1, 2, 3),
            [0x53, 0x41, 0x46, 0x54, 0, 1, 0, 2, 0, 0, 0, 3]
        );
        for (flags, allows_others, allows_fuseblk) in [
            (0, false, false),
            (1, true, false),
            (2, false, true),
            (3, true, true),
        ] {
            let wanted = Hello {
                allows_others,
                allows_fuseblk,
            };
            assert_eq!(Hello::parse(&hello(1, 1, flags)), Ok(wanted));
        }
        assert!(Hello::parse(&hello(0, 7, 0)).is_ok());
        for (lowest, highest, flags) in [(2, 3, 0), (0, 0, 0), (2, 1, 0), (1, 1, 4)] {
            assert!(Hello::parse(&hello(lowest, highest, flags)).is_err());
        }
        let message = hello(1, 1, 0);
        for len in 0..message.len() {
            assert!(Hello::parse(&message[..len]).is_err(), "{len}");
        }
        assert!(Hello::parse(&[&message[..], &[0]].concat()).is_err());
        assert!(Hello::parse(&words(&[REPLY, 0x0001_0001, 0])).is_err());
        assert_eq!(Hello::reply(), [0x4c, 0x41, 0x53, 0x54, 0, 1, 0, 0]);
    }

    #[test]
    fn replies_are_parsed() {
        assert_eq!(parse_reply(b"REPL\0\0\0\x02"), Ok(2));
        assert_eq!(parse_reply(b"REPL\0\0\0\0"), Ok(0));
        for other in [
            &b""[..],
            b"REPL",
            b"REPL\0\0\0",
            b"REPL\0\0\0\0\0",
            b"FILE\0\0\0\0",
        ] {
            assert!(parse_reply(other).is_err(), "{other:?}");
        }
        let wanted = FileReply {
            errno: 13,
            path: b"/dev/a",
        };
        assert_eq!(FileReply::parse(b"FILE\0\0\0\x0d/dev/a\0"), Ok(wanted));
        for other in [
            &b""[..],
            b"FILE\0\0\0\0",
            b"FILE\0\0\0\0/dev/a",
            b"FILE\0\0\0\0/dev\0/a\0",
            b"REPL\0\0\0\0/dev/a\0",
        ] {
            assert!(FileReply::parse(other).is_err(), "{other:?}");
        }
    }

    #[test]
    fn commands_are_encoded() {
        let path = OsStr::new("/a");
        let flags = OFlags::RDWR | OFlags::EXCL;
        let quiet = Command::Open {
            path,
            flags: OFlags::RDONLY,
            quietly: true,
        };
        for (command, wanted) in [
            (quiet, &b"OPEN\0\0\0\0\0\0\0\0\0\0\0\x01\0\0\0\0/a\0"[..]),
            (
                Command::OpenBlockDevice { path, flags },
                b"BDEV\0\0\0\x82\0\0\0\0\0\0\0\0\0\0\0\0/a\0",
            ),
            (Command::Type { fuseblk: true }, b"TYPE\0\0\0\x01"),
            (Command::Type { fuseblk: false }, b"TYPE\0\0\0\0"),
            (Command::Source(path), b"NAME/a\0"),
            (Command::Mountpoint(path), b"MNTP\x40\0\0\0/a\0"),
            (Command::Options("a,b=1"), b"OPTSa,b=1\0"),
            (Command::Mount { flags: 7 }, b"DOIT\0\0\0\x07"),
            (Command::Bye { code: 32 }, b"BYEE\0\0\0\x20"),
        ] {
            assert_eq!(command.encode().as_deref(), Ok(wanted), "{command:?}");
        }
    }

    #[test]
    fn texts_that_do_not_fit_are_refused() {
        let longest = "x".repeat(MESSAGE_BYTES_MAX - 5);
        let encoded = Command::Options(&longest).encode();
        assert_eq!(encoded.map(|message| message.len()), Ok(MESSAGE_BYTES_MAX));
        let longer = format!("{longest}x");
        for list in [&*longer, "", "a\0b"] {
            assert!(Command::Options(list).encode().is_err());
            assert!(Command::Source(list.as_ref()).encode().is_err());
            assert!(Command::Mountpoint(list.as_ref()).encode().is_err());
        }
    }

    /// A file with these entries and strings behind them.
    fn file(entries: &[(u32, u32)], strings: &[u8]) -> Vec<u8> {
        let head = [ARGUMENTS, u32::try_from(entries.len()).unwrap()];
        let entries: Vec<u32> = entries.iter().flat_map(|(at, len)| [*at, *len]).collect();
        [words(&head), words(&entries), strings.to_vec()].concat()
    }

    #[test]
    fn arguments_are_parsed() {
        assert_eq!(parse_arguments(&file(&[], b"")), Ok(Vec::new()));
        let three = file(&[(32, 8), (40, 3), (43, 1)], b"steadfs\0/a\0\0");
        let wanted = ["steadfs", "/a", ""].map(OsString::from).to_vec();
        assert_eq!(parse_arguments(&three), Ok(wanted));
        // The strings lie anywhere.
        let shared = file(&[(24, 3), (24, 3)], b"/a\0");
        assert_eq!(parse_arguments(&shared).map(|words| words.len()), Ok(2));
    }

    #[test]
    fn hostile_arguments_are_refused() {
        for (entries, strings) in [
            (&[(16, 3)][..], &b"/a"[..]),
            (&[(16, 2)], b"/a\0"),
            (&[(16, 0)], b"/a\0"),
            (&[(16, 4)], b"/\0a\0"),
            (&[(u32::MAX, 3)], b"/a\0"),
            (&[(16, u32::MAX)], b"/a\0"),
            (&[(u32::MAX, u32::MAX)], b"/a\0"),
        ] {
            let file = file(entries, strings);
            assert!(parse_arguments(&file).is_err(), "{entries:?}");
        }
        for bytes in [&b""[..], b"ARGS", b"SGRA\0\0\0\0"] {
            assert!(parse_arguments(bytes).is_err(), "{bytes:?}");
        }
        // More arguments than there are.
        let mut many = file(&[(16, 3)], b"/a\0");
        many[4..8].fill(0xff);
        assert!(parse_arguments(&many).is_err());
        // One long string many times.
        let string = [vec![b'x'; 65_535], vec![0]].concat();
        let entries = vec![(8 + 8 * 65, 65_536); 65];
        let too_long = Invalid("the arguments are too long");
        assert_eq!(parse_arguments(&file(&entries, &string)), Err(too_long));
        let some = file(&vec![(8 + 8 * 64, 65_536); 64], &string);
        assert_eq!(parse_arguments(&some).map(|words| words.len()), Ok(64));
    }
}
