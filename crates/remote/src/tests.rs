use std::io::{self, Read, Write};

use steadfs_base::{Corruption, DevBlock, InodeNo, Timestamp};
use steadfs_vfs::{
    Attr, Cx, FileKind, FileSystem, FsError, Given, GivenPart, InodeFlags, NewFile, NotGiven, Seek,
    SetXattr, StatFs,
};

use crate::codec::{Decoder, Encoder};
use crate::{Call, Client, ConnectError, frame};

/// A stream whose other end has sent `replies`, whatever it is asked.
#[derive(Default)]
struct Script {
    replies: io::Cursor<Vec<u8>>,
    sent: Vec<u8>,
}

impl Script {
    fn new(frames: &[Vec<u8>]) -> Self {
        let mut replies = Vec::new();
        for content in frames {
            frame::send(&mut replies, content).unwrap();
        }
        Self {
            replies: io::Cursor::new(replies),
            sent: Vec::new(),
        }
    }
}

impl Read for Script {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.replies.read(buf)
    }
}

impl Write for Script {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.sent.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn greeting() -> Vec<u8> {
    let mut reply = Encoder::default();
    reply.flag(true);
    reply.list(&[] as &[String], |_, _| ());
    reply.option(None::<()>, |_, ()| ());
    reply.list(&[] as &[String], |_, _| ());
    reply.0
}

fn connected(replies: &[Vec<u8>]) -> Client<Script> {
    let mut root = Encoder::default();
    root.ino(InodeNo(2));
    let frames = [&[greeting(), root.0][..], replies].concat();
    Client::connect(Script::new(&frames)).unwrap().0
}

fn attr() -> Attr {
    let time = Timestamp {
        secs: -5,
        nanos: 999_999_999,
    };
    Attr {
        ino: InodeNo(12),
        generation: 7,
        kind: FileKind::CharDevice,
        perm: 0o4755,
        nlink: 2,
        uid: 1000,
        gid: 100,
        rdev: 259,
        size: 1 << 40,
        blocks: 8,
        block_size: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: Some(time),
        flags: InodeFlags(0x8_0000),
    }
}

#[test]
fn attributes_arrive_as_they_were_sent() {
    let mut reply = Encoder::default();
    reply.flag(true);
    reply.attr(&attr());
    let client = connected(&[reply.0]);
    let received = client.lookup(&Cx::default(), InodeNo(2), b"name");
    assert_eq!(received, Ok(attr()));
}

#[test]
fn the_usage_of_a_volume_arrives_as_it_was_sent() {
    let usage = StatFs {
        block_size: 1024,
        blocks: 9 << 40,
        blocks_free: 8 << 40,
        blocks_available: 7 << 40,
        files: 6 << 32,
        files_free: 5 << 32,
        name_max: 255,
        fsid: u64::MAX,
    };
    let mut reply = Encoder::default();
    reply.flag(true);
    reply.usage(&usage);
    let client = connected(&[reply.0]);
    assert_eq!(client.statfs(&Cx::default()), Ok(usage));
}

#[test]
fn errors_keep_what_callers_distinguish() {
    let corrupt = Corruption::new("is mapped twice")
        .in_inode(InodeNo(3))
        .in_block(DevBlock(9))
        .with_code(5)
        .with_hint("see e2fsck");
    let same = [
        FsError::NotFound,
        FsError::NoSuchOffset,
        FsError::Stopped("why".to_owned()),
        FsError::TurnedReadOnly("why".to_owned()),
        corrupt.into(),
    ];
    let by_text = [
        FsError::Invalid("a name"),
        FsError::NotSupported("verity"),
        FsError::Io("block 5".to_owned()),
        FsError::NoThread("limit".to_owned()),
    ];
    for error in same.iter().chain(&by_text) {
        let mut to = Encoder::default();
        to.error(error);
        let mut from = Decoder::new(&to.0);
        let received = from.error().unwrap();
        assert_eq!(from.end(), Ok(()));
        assert_eq!(received.to_string(), error.to_string());
        assert_eq!(received.errno(), error.errno());
        assert_eq!(same.contains(error), received == *error);
    }
}

/// An archive can have attributes, names and targets of 16 MiB.
#[test]
fn a_call_that_is_too_long_fails_alone() {
    let mut reply = Encoder::default();
    reply.flag(true);
    reply.attr(&attr());
    let client = connected(&[reply.0]);
    let (cx, long) = (Cx::default(), vec![b'x'; 5 << 20]);
    let (dir, file) = (InodeNo(2), InodeNo(12));
    let set = client.setxattr(&cx, file, b"user.x", &long, SetXattr::Any);
    assert_eq!(set, Err(FsError::TooBig));
    assert_eq!(
        client.mkdir(&cx, dir, &long, 0o755),
        Err(FsError::NameTooLong)
    );
    let given = Given::default();
    for (name, target) in [(&long[..], &b"x"[..]), (b"x", &long)] {
        let new = NewFile {
            kind: FileKind::Symlink,
            rdev: 0,
            target,
            runs: &[],
            size: 0,
            given: &given,
        };
        let made = client.make(&cx, dir, name, &new).map(|made| made.map(drop));
        assert_eq!(made, Some(Err(FsError::NameTooLong)));
    }
    assert_eq!(client.getattr(&cx, file), Ok(attr()));
}

#[test]
fn a_wrong_reply_ends_the_connection() {
    let mut trailing = Encoder::default();
    trailing.flag(true);
    trailing.attr(&attr());
    trailing.byte(0);
    let cut = trailing.0[..20].to_vec();
    let mut good = Encoder::default();
    good.flag(true);
    good.attr(&attr());
    for wrong in [vec![], vec![2], vec![0, 0xFF], cut, trailing.0.clone()] {
        let client = connected(&[wrong, good.0.clone()]);
        for _ in 0..2 {
            let error = client.getattr(&Cx::default(), InodeNo(2)).unwrap_err();
            assert!(error.is_stop(), "{error}");
        }
    }
}

#[test]
fn a_server_that_ends_is_reported() {
    assert!(matches!(
        Client::connect(Script::default()),
        Err(ConnectError::Broken(_))
    ));
    let client = connected(&[]);
    assert!(client.close().is_err());
    let error = client.getattr(&Cx::default(), InodeNo(2)).unwrap_err();
    assert!(error.is_stop(), "{error}");
}

#[test]
fn no_reply_yields_more_data_than_was_read() {
    let too_long: [fn(&mut Encoder); 3] = [
        |to| {
            to.flag(true);
            to.bytes(&[0; 101]);
        },
        |to| {
            to.flag(false);
            to.long(101);
        },
        |to| {
            to.flag(false);
            to.long(u64::MAX);
        },
    ];
    for segment in too_long {
        let mut reply = Encoder::default();
        reply.flag(true);
        reply.word(1);
        segment(&mut reply);
        let client = connected(&[reply.0]);
        let read = client.read(&Cx::default(), InodeNo(3), 0, 100);
        assert!(read.is_err_and(|error| error.is_stop()));
    }
}

#[test]
fn an_endless_directory_is_refused() {
    let mut reply = Encoder::default();
    reply.word(0);
    reply.flag(true);
    reply.option(None::<()>, |_, ()| ());
    let client = connected(&[reply.0]);
    let read = client.readdir(&Cx::default(), InodeNo(2), 0, &mut |_| true);
    assert!(read.unwrap_err().is_stop());
}

/// Every decoder gets random bytes: it returns a value or an error, and allocates no more than the frame justifies.
#[test]
fn random_replies_are_survived() {
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for _ in 0..20_000 {
        let len = usize::try_from(random() % 200).unwrap();
        let mut reply: Vec<u8> = (0..len).map(|_| random().to_le_bytes()[0] % 8).collect();
        if let Some(first) = reply.first_mut() {
            *first &= 1;
        }
        let cx = Cx::default();
        let ino = InodeNo(5);
        drop(connected(&[reply.clone()]).getattr(&cx, ino));
        drop(connected(&[reply.clone()]).read(&cx, ino, 0, 4096));
        drop(connected(&[reply.clone()]).listxattr(&cx, ino));
        let opened = connected(&[reply.clone()]);
        if opened.open(&cx, ino, false).is_ok() {
            // Answered by what arrived with the open, if anything did.
            assert!(
                opened
                    .read(&cx, ino, 0, 4096)
                    .map_or(true, |data| data.len() <= 4096)
            );
            drop(opened.seek(&cx, ino, 0, Seek::Hole));
        }
        let ahead = connected(&[reply.clone()]);
        ahead.expect(&cx, ino, &[b"a", b"b"]);
        if let Ok(found) = ahead.lookup(&cx, ino, b"b") {
            drop(ahead.readdir(&cx, found.ino, 0, &mut |_| true));
        }
        let later = connected(&[reply.clone()]);
        begin(&later, b"content");
        assert_eq!(later.made(true).len(), 1);
        drop(connected(&[reply.clone()]).seek(&cx, ino, 0, Seek::Data));
        drop(connected(&[reply.clone()]).readdir(&cx, ino, 0, &mut |_| true));
        drop(Client::connect(Script::new(&[reply])));
    }
}

#[test]
fn calls_have_distinct_bytes() {
    for call in Call::ALL {
        assert_eq!(Call::of_byte(call as u8), Some(call));
    }
    assert_eq!(Call::of_byte(u8::try_from(Call::ALL.len()).unwrap()), None);
}

fn made(missing: &[NotGiven]) -> Vec<u8> {
    let mut reply = Encoder::default();
    reply.flag(true);
    reply.list(missing, Encoder::not_given);
    reply.0
}

fn failed(error: &FsError) -> Vec<u8> {
    let mut reply = Encoder::default();
    reply.flag(false);
    reply.error(error);
    reply.0
}

/// Begins to make a file; its result comes later.
fn begin(client: &Client<Script>, content: &[u8]) -> Option<Result<Vec<NotGiven>, FsError>> {
    let given = Given::default();
    let new = NewFile {
        kind: FileKind::Regular,
        rdev: 0,
        target: b"",
        runs: &[(0, content.into())],
        size: content.len() as u64,
        given: &given,
    };
    client.make(&Cx::default(), InodeNo(2), b"name", &new)
}

#[test]
fn later_results_come_once_and_in_order() {
    let missing = vec![
        (GivenPart::Xattr(3), FsError::NoSpace),
        (GivenPart::Times, FsError::ReadOnly),
    ];
    let mut lookup = Encoder::default();
    lookup.flag(true);
    lookup.attr(&attr());
    let replies = [
        made(&[]),
        failed(&FsError::NoSpace),
        lookup.0,
        made(&missing),
    ];
    let client = connected(&replies);
    assert_eq!(begin(&client, b"a"), None);
    assert_eq!(begin(&client, b"b"), None);
    assert_eq!(client.made(false), []);
    // A call that is answered at once comes after them.
    assert!(client.lookup(&Cx::default(), InodeNo(2), b"name").is_ok());
    assert_eq!(client.made(false), [Ok(vec![]), Err(FsError::NoSpace)]);
    assert_eq!(begin(&client, b"c"), None);
    assert_eq!(client.made(true), [Ok(missing)]);
    assert_eq!(client.made(true), []);
}

#[test]
fn each_later_call_has_a_result_when_the_connection_breaks() {
    for files in [1, 70, 300, 1000] {
        // The server answers five calls, and sends nonsense then.
        let mut replies = vec![made(&[]); 5];
        replies.push(vec![7]);
        let client = connected(&replies);
        let mut results = Vec::new();
        for _ in 0..files {
            results.extend(begin(&client, b"content"));
            results.extend(client.made(false));
        }
        results.extend(client.made(true));
        assert_eq!(results.len(), files);
        let (good, bad) = results.split_at(5.min(files));
        assert!(good.iter().all(|result| *result == Ok(vec![])));
        let stops = |result: &Result<_, FsError>| result.as_ref().is_err_and(FsError::is_stop);
        assert!(bad.iter().all(stops), "{files}");
    }
}

#[test]
fn few_calls_are_on_their_way() {
    let client = connected(&vec![made(&[]); 10_000]);
    let mut got = 0;
    for begun in 1..=10_000 {
        assert_eq!(begin(&client, b"c"), None);
        got += client.made(false).len();
        assert!(begun - got <= 256, "{begun} {got}");
    }
    assert_eq!(got + client.made(true).len(), 10_000);
}

/// A reply to `expect`: the files with these inode numbers and contents.
fn entries(files: &[(u64, Option<&[u8]>)]) -> Vec<u8> {
    let mut reply = Encoder::default();
    for (ino, content) in files {
        reply.flag(true);
        reply.attr(&Attr {
            ino: InodeNo(*ino),
            kind: FileKind::Regular,
            ..attr()
        });
        reply.option(*content, |to, content| {
            to.list(&[] as &[Vec<u8>], |_, _| ());
            to.byte(1);
            to.long(content.len() as u64);
            to.list(&[content], |to, content| {
                to.long(0);
                to.word(u32::try_from(content.len()).unwrap());
                to.word(1);
                to.flag(true);
                to.bytes(content);
            });
        });
    }
    reply.0
}

#[test]
fn expected_entries_answer_lookups_and_opens() {
    let cx = Cx::default();
    let mut missing = Encoder::default();
    missing.flag(false);
    missing.error(&FsError::NotFound);
    let first = [entries(&[(11, Some(b"one")), (12, None)]), missing.0].concat();
    let client = connected(&[first, entries(&[(14, Some(b"four"))])]);
    client.expect(&cx, InodeNo(2), &[b"a", b"b", b"c"]);
    client.expect(&cx, InodeNo(3), &[b"a"]);
    let found = |dir, name: &[u8]| client.lookup(&cx, InodeNo(dir), name);
    assert_eq!(found(2, b"a").unwrap().ino, InodeNo(11));
    client.open(&cx, InodeNo(11), false).unwrap();
    let read = client.read(&cx, InodeNo(11), 0, 100).unwrap();
    assert_eq!(read.to_vec(), b"one");
    // In any order, and the same name in another directory.
    assert_eq!(found(3, b"a").unwrap().ino, InodeNo(14));
    assert_eq!(found(2, b"c"), Err(FsError::NotFound));
    assert_eq!(found(2, b"b").unwrap().ino, InodeNo(12));
    // Each once: now the server is asked, which has sent nothing more.
    assert!(found(2, b"b").unwrap_err().is_stop());
}

/// A reply to `expect` for one file of this kind. `preview` encodes its attributes' list and its content.
fn found(ino: u64, kind: FileKind, preview: impl FnOnce(&mut Encoder)) -> Vec<u8> {
    let mut reply = Encoder::default();
    reply.flag(true);
    reply.attr(&Attr {
        ino: InodeNo(ino),
        kind,
        ..attr()
    });
    reply.option(Some(()), |to, ()| preview(to));
    reply.0
}

#[test]
fn links_directories_and_attributes_arrive_with_expected_entries() {
    let cx = Cx::default();
    let link = found(11, FileKind::Symlink, |to| {
        to.list(&[b"user.short", b"user.along"], |to, name| {
            to.bytes(&name[..]);
            // A long value does not arrive.
            to.option((*name == b"user.short").then_some(b"value"), |to, value| {
                to.bytes(value);
            });
        });
        to.byte(2);
        to.bytes(b"target");
    });
    let dir = found(12, FileKind::Directory, |to| {
        to.list(&[] as &[()], |_, ()| ());
        to.byte(3);
        to.list(&[(20, b"x"), (21, b"y")], |to, (ino, name)| {
            to.ino(InodeNo(*ino));
            to.option(Some(FileKind::Regular), Encoder::kind);
            to.bytes(&name[..]);
            to.long(*ino);
        });
    });
    let client = connected(&[[link, dir].concat()]);
    client.expect(&cx, InodeNo(2), &[b"link", b"dir"]);
    client.lookup(&cx, InodeNo(2), b"link").unwrap();
    assert_eq!(client.readlink(&cx, InodeNo(11)).unwrap(), b"target");
    let names = client.listxattr(&cx, InodeNo(11)).unwrap();
    assert_eq!(names, [b"user.short", b"user.along"]);
    let value = client.getxattr(&cx, InodeNo(11), b"user.short");
    assert_eq!(value.unwrap(), b"value");
    client.lookup(&cx, InodeNo(2), b"dir").unwrap();
    assert_eq!(client.listxattr(&cx, InodeNo(12)).unwrap(), [b""; 0]);
    let mut names = Vec::new();
    let read = client.readdir(&cx, InodeNo(12), 0, &mut |entry| {
        names.push((entry.ino.0, entry.name.to_vec(), entry.next));
        true
    });
    assert_eq!(read, Ok(()));
    assert_eq!(names, [(20, b"x".to_vec(), 20), (21, b"y".to_vec(), 21)]);
    // The server is asked for what did not arrive, and has sent nothing more.
    let value = client.getxattr(&cx, InodeNo(11), b"user.along");
    assert!(value.unwrap_err().is_stop());
}

#[test]
fn a_change_drops_what_was_expected() {
    let cx = Cx::default();
    let mut looked_up = Encoder::default();
    looked_up.flag(true);
    looked_up.attr(&attr());
    let replies = [entries(&[(11, Some(b"old"))]), made(&[]), looked_up.0];
    let client = connected(&replies);
    client.expect(&cx, InodeNo(2), &[b"a"]);
    assert_eq!(begin(&client, b"new"), None);
    // Asked again.
    let found = client.lookup(&cx, InodeNo(2), b"a");
    assert_eq!(found.unwrap().ino, attr().ino);
    assert_eq!(client.made(true), [Ok(vec![])]);
}

#[test]
fn wrong_entries_end_the_connection() {
    let short = entries(&[(11, None)]);
    let long = entries(&[(11, None), (12, None), (13, None)]);
    for wrong in [short, long, vec![], vec![9]] {
        let client = connected(&[wrong]);
        client.expect(&Cx::default(), InodeNo(2), &[b"a", b"b"]);
        let found = client.lookup(&Cx::default(), InodeNo(2), b"a");
        assert!(found.unwrap_err().is_stop());
    }
}
