//! The end that uses the volume.

use std::io::{Read, Write};
use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_rt::{Mutex, Rank};
use steadfs_vfs::verity::{FileDigest, VerityOptions};
use steadfs_vfs::{
    Attr, Control, Cx, DirEntry, FallocMode, FileSystem, FsError, FsxAttr, Given, InodeFlags,
    NewFile, ReadData, RenameFlags, Result, Seek, SetAttr, SetXattr, ShutdownMode, StatFs,
    give_attributes, make_file,
};

use crate::ahead::NAMES_MAX;
use crate::codec::{Decoder, Encoder, Malformed};
use crate::connection::{Connection, ENDED, INVALID};
use crate::later::{FITS, Reply, fits};
use crate::listing::Listed;
use crate::preview::{Content, Preview};
use crate::{Call, Greeting, frame, listing};

/// Why there is no volume to use.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The server could not open the volume.
    #[error("{0}")]
    Refused(String),
    /// The server ended, or what it sent is wrong.
    #[error("{0}")]
    Broken(String),
}

/// A volume that a [`Server`](crate::Server) has open.
pub struct Client<S> {
    connection: Mutex<Connection<S>>,
    root: InodeNo,
}

/// Calls without a reply that are kept for the next call.
const FORGETS_MAX: usize = 256;

/// Most bytes of entries of one directory that are received; a hostile server could send entries forever.
const DIRECTORY_BYTES_MAX: usize = 2 << 30;

impl<S: Read + Write> Client<S> {
    /// Waits until the server at the other end of `stream` has opened its volume.
    ///
    /// # Errors
    /// It has not.
    pub fn connect(mut stream: S) -> std::result::Result<(Self, Greeting), ConnectError> {
        let broken = |why: &str| ConnectError::Broken(why.to_owned());
        let reply = frame::receive(&mut stream).ok().flatten();
        let reply = reply.ok_or_else(|| broken(ENDED))?;
        let greeting = match greeting(&reply).map_err(|Malformed| broken(INVALID))? {
            Ok(greeting) => greeting,
            Err(why) => return Err(ConnectError::Refused(why)),
        };
        let mut connection = Connection::new(stream);
        let reply = connection.ask(Call::Root, Encoder::default());
        let reply = reply.map_err(ConnectError::Broken)?;
        let root = Decoder::new(&reply).ino();
        let client = Self {
            root: root.map_err(|Malformed| broken(INVALID))?,
            connection: Mutex::new(Rank::Leaf, connection),
        };
        Ok((client, greeting))
    }

    /// Closes the volume; all that was written is on the device then.
    ///
    /// # Errors
    /// The text of the error.
    pub fn close(&self) -> std::result::Result<(), String> {
        let reply = self
            .connection
            .lock()
            .ask(Call::Close, Encoder::default())?;
        let mut decoder = Decoder::new(&reply);
        match decoder.option(Decoder::text) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(why),
            Err(Malformed) => Err(INVALID.to_owned()),
        }
    }

    /// Makes a call. `decode` gets the frame with the reply, after the mark of success.
    fn call<T>(
        &self,
        call: Call,
        encode: impl FnOnce(&mut Encoder),
        decode: impl FnOnce(&mut Decoder<'_>, &Arc<Vec<u8>>) -> std::result::Result<T, Malformed>,
    ) -> Result<T> {
        self.exchange(call, encode, |decoder, frame| {
            let result = match decoder.flag()? {
                true => Ok(decode(decoder, frame)?),
                false => Err(decoder.error()?),
            };
            decoder.end()?;
            Ok(result)
        })?
    }

    /// Makes a call, whose reply has no mark of success.
    fn exchange<T>(
        &self,
        call: Call,
        encode: impl FnOnce(&mut Encoder),
        decode: impl FnOnce(&mut Decoder<'_>, &Arc<Vec<u8>>) -> std::result::Result<T, Malformed>,
    ) -> Result<T> {
        let mut arguments = Encoder::default();
        encode(&mut arguments);
        // If it fails nothing is sent: the other calls go on.
        frame::check(call, arguments.0.len())?;
        let mut connection = self.connection.lock();
        let reply = connection.ask(call, arguments).map_err(FsError::Stopped)?;
        let reply = Arc::new(reply);
        decode(&mut Decoder::new(&reply), &reply).map_err(|Malformed| {
            connection.breaks(INVALID);
            FsError::Stopped(INVALID.to_owned())
        })
    }

    /// The answer of the preview, if it is of this file and has one.
    fn by_preview<T>(&self, ino: InodeNo, answer: impl FnOnce(&Preview) -> Option<T>) -> Option<T> {
        let connection = self.connection.lock();
        let preview = connection.preview.as_ref();
        preview
            .filter(|preview| preview.ino == ino)
            .and_then(answer)
    }

    /// The entries of a directory, if they arrived when it was looked up.
    fn entries_ahead(&self, dir: InodeNo) -> Option<Vec<Listed>> {
        let mut connection = self.connection.lock();
        let preview = connection.preview.as_mut();
        let preview = preview.filter(|preview| preview.ino == dir)?;
        match std::mem::replace(&mut preview.content, Content::Unknown) {
            Content::Entries(entries) => Some(entries),
            other => {
                preview.content = other;
                None
            }
        }
    }

    /// The result of a lookup that was expected.
    fn by_ahead(&self, dir: InodeNo, name: &[u8]) -> Option<Result<Attr>> {
        let mut connection = self.connection.lock();
        let waited = connection.if_whole(|connection| connection.wait_for(dir, name));
        if let Err(why) = waited {
            return Some(Err(FsError::Stopped(why)));
        }
        let (found, preview) = connection.ahead.take(dir, name)?;
        if preview.is_some() {
            connection.preview = preview;
        }
        Some(found)
    }

    /// A call whose reply is received later.
    fn begin(&self, call: Call, encode: impl FnOnce(&mut Encoder)) -> Option<Reply> {
        let mut connection = self.connection.lock();
        if let Some(why) = &connection.broken {
            return Some(Err(FsError::Stopped(why.clone())));
        }
        // An error is the result of each call that waits, so of this one, too.
        let _ = connection.if_whole(|connection| connection.begin(call, encode));
        None
    }

    /// A call that returns attributes.
    fn attr(&self, call: Call, encode: impl FnOnce(&mut Encoder)) -> Result<Attr> {
        self.call(call, encode, |from, _| from.attr())
    }

    /// A call that returns nothing.
    fn done(&self, call: Call, encode: impl FnOnce(&mut Encoder)) -> Result<()> {
        self.call(call, encode, |_, _| Ok(()))
    }

    /// A call that returns bytes.
    fn bytes(&self, call: Call, encode: impl FnOnce(&mut Encoder)) -> Result<Vec<u8>> {
        self.call(call, encode, |from, _| from.bytes().map(<[u8]>::to_vec))
    }
}

fn greeting(reply: &[u8]) -> std::result::Result<std::result::Result<Greeting, String>, Malformed> {
    let mut decoder = Decoder::new(reply);
    if !decoder.flag()? {
        return Ok(Err(decoder.text()?));
    }
    Ok(Ok(Greeting {
        warnings: decoder.list(Decoder::text)?,
        read_only_because: decoder.option(Decoder::text)?,
        missing: decoder.list(Decoder::text)?,
    }))
}

const NOT_HERE: FsError = FsError::NotSupported("not without a mount");

impl<S: Read + Write + Send> FileSystem for Client<S> {
    fn root(&self) -> InodeNo {
        self.root
    }

    fn expect(&self, _: &Cx, dir: InodeNo, names: &[&[u8]]) {
        let mut connection = self.connection.lock();
        for names in names.chunks(NAMES_MAX) {
            let names = names.iter().map(|name| name.to_vec()).collect();
            // An error is reported by the next call.
            let _ = connection.if_whole(|connection| connection.expect(dir, names));
        }
    }

    fn lookup(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        if let Some(found) = self.by_ahead(dir, name) {
            return found;
        }
        self.attr(Call::Lookup, |to| {
            to.ino(dir);
            to.bytes(name);
        })
    }

    fn attach(&self, _: &Cx, _: InodeNo) -> Result<Attr> {
        Err(NOT_HERE)
    }

    fn forget(&self, ino: InodeNo, count: u64) {
        let mut connection = self.connection.lock();
        connection.forgets.push((ino, count));
        if connection.forgets.len() >= FORGETS_MAX {
            // Its reply is not of interest, and an error is reported by the next call.
            drop(connection.ask(Call::Root, Encoder::default()));
        }
    }

    fn getattr(&self, _: &Cx, ino: InodeNo) -> Result<Attr> {
        self.attr(Call::Getattr, |to| to.ino(ino))
    }

    fn setattr(&self, _: &Cx, ino: InodeNo, set: &SetAttr) -> Result<Attr> {
        self.attr(Call::Setattr, |to| {
            to.ino(ino);
            to.set_attr(set);
        })
    }

    fn readlink(&self, _: &Cx, ino: InodeNo) -> Result<Vec<u8>> {
        let target = self.by_preview(ino, |preview| match &preview.content {
            Content::Target(target) => Some(target.clone()),
            _ => None,
        });
        if let Some(target) = target {
            return Ok(target);
        }
        self.bytes(Call::Readlink, |to| to.ino(ino))
    }

    fn mknod(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32, rdev: u32) -> Result<Attr> {
        self.attr(Call::Mknod, |to| {
            to.ino(dir);
            to.bytes(name);
            to.creation(cx);
            to.word(mode);
            to.word(rdev);
        })
    }

    fn mkdir(&self, cx: &Cx, dir: InodeNo, name: &[u8], mode: u32) -> Result<Attr> {
        self.attr(Call::Mkdir, |to| {
            to.ino(dir);
            to.bytes(name);
            to.creation(cx);
            to.word(mode);
        })
    }

    fn symlink(&self, _: &Cx, dir: InodeNo, name: &[u8], target: &[u8]) -> Result<Attr> {
        self.attr(Call::Symlink, |to| {
            to.ino(dir);
            to.bytes(name);
            to.bytes(target);
        })
    }

    fn link(&self, _: &Cx, ino: InodeNo, dir: InodeNo, name: &[u8]) -> Result<Attr> {
        self.attr(Call::Link, |to| {
            to.ino(dir);
            to.bytes(name);
            to.ino(ino);
        })
    }

    fn tmpfile(&self, _: &Cx, _: InodeNo, _: u32) -> Result<Attr> {
        Err(NOT_HERE)
    }

    fn make(&self, cx: &Cx, dir: InodeNo, name: &[u8], new: &NewFile<'_>) -> Option<Reply> {
        let content: usize = new.runs.iter().map(|(_, bytes)| bytes.len()).sum();
        if !fits(new.given) || name.len() + new.target.len() + content > FITS {
            return Some(make_file(self, cx, dir, name, new));
        }
        self.begin(Call::Make, |to| {
            to.ino(dir);
            to.bytes(name);
            to.creation(cx);
            to.new_file(new);
        })
    }

    fn give(&self, cx: &Cx, ino: InodeNo, given: &Given) -> Option<Reply> {
        if !fits(given) {
            return Some(Ok(give_attributes(self, cx, ino, given)));
        }
        self.begin(Call::Give, |to| {
            to.ino(ino);
            to.given(given);
        })
    }

    fn made(&self, all: bool) -> Vec<Reply> {
        let mut connection = self.connection.lock();
        if all {
            // An error is the result of each call that waits.
            let _ = connection.if_whole(Connection::settle);
        }
        connection.later.take_replies()
    }

    fn unlink(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.done(Call::Unlink, |to| {
            to.ino(dir);
            to.bytes(name);
        })
    }

    fn rmdir(&self, _: &Cx, dir: InodeNo, name: &[u8]) -> Result<()> {
        self.done(Call::Rmdir, |to| {
            to.ino(dir);
            to.bytes(name);
        })
    }

    fn rename(
        &self,
        _: &Cx,
        from: (InodeNo, &[u8]),
        to: (InodeNo, &[u8]),
        flags: RenameFlags,
    ) -> Result<()> {
        if flags.exchange || flags.whiteout {
            return Err(NOT_HERE);
        }
        self.done(Call::Rename, |call| {
            for (dir, name) in [from, to] {
                call.ino(dir);
                call.bytes(name);
            }
            call.flag(flags.no_replace);
        })
    }

    fn open(&self, _: &Cx, ino: InodeNo, write: bool) -> Result<()> {
        if !write
            && self
                .by_preview(ino, |preview| preview.data().map(|_| ()))
                .is_some()
        {
            return Ok(());
        }
        let encode = |to: &mut Encoder| {
            to.ino(ino);
            to.flag(write);
        };
        let preview = self.call(Call::Open, encode, |from, frame| {
            from.option(|from| Preview::decode(ino, from, frame))
        })?;
        self.connection.lock().preview = preview;
        Ok(())
    }

    fn read(&self, _: &Cx, ino: InodeNo, offset: u64, len: usize) -> Result<ReadData> {
        if let Some(read) = self.by_preview(ino, |preview| Some(preview.data()?.read(offset, len)))
        {
            return Ok(read);
        }
        let encode = |to: &mut Encoder| {
            to.ino(ino);
            to.long(offset);
            to.word(u32::try_from(len).unwrap_or(u32::MAX));
        };
        self.call(Call::Read, encode, |from, frame| from.data(frame, len))
    }

    fn write(&self, _: &Cx, ino: InodeNo, offset: u64, data: &[u8], kill: bool) -> Result<usize> {
        let encode = |to: &mut Encoder| {
            to.ino(ino);
            to.long(offset);
            to.bytes(data);
            to.flag(kill);
        };
        self.call(Call::Write, encode, |from, _| {
            let written = usize::try_from(from.long()?).map_err(|_| Malformed)?;
            (written <= data.len()).then_some(written).ok_or(Malformed)
        })
    }

    fn fsync(&self, _: &Cx, _: InodeNo, _: bool) -> Result<()> {
        Err(NOT_HERE)
    }

    fn fallocate(&self, _: &Cx, _: InodeNo, _: FallocMode, _: u64, _: u64) -> Result<()> {
        Err(NOT_HERE)
    }

    fn seek(&self, _: &Cx, ino: InodeNo, offset: u64, what: Seek) -> Result<u64> {
        if let Some(found) =
            self.by_preview(ino, |preview| Some(preview.data()?.seek(offset, what)))
        {
            return found;
        }
        let encode = |to: &mut Encoder| {
            to.ino(ino);
            to.long(offset);
            to.flag(what == Seek::Hole);
        };
        self.call(Call::Seek, encode, |from, _| from.long())
    }

    fn copy_range(&self, _: &Cx, _: (InodeNo, u64), _: (InodeNo, u64), _: u64) -> Result<u64> {
        Err(NOT_HERE)
    }

    fn readdir(
        &self,
        _: &Cx,
        dir: InodeNo,
        cookie: u64,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        if cookie == 0
            && let Some(entries) = self.entries_ahead(dir)
        {
            let _ = entries.iter().all(|entry| emit(entry.as_entry()));
            return Ok(());
        }
        let (mut cookie, mut received) = (cookie, 0);
        loop {
            let encode = |to: &mut Encoder| {
                to.ino(dir);
                to.long(cookie);
            };
            let (entries, more, error) = self.exchange(Call::Readdir, encode, |from, frame| {
                received += frame.len();
                let entries = from.list(listing::decode)?;
                let (more, error) = (from.flag()?, from.option(Decoder::error)?);
                from.end()?;
                let is_endless = received > DIRECTORY_BYTES_MAX || more && entries.is_empty();
                let reply = (entries, more, error);
                (!is_endless).then_some(reply).ok_or(Malformed)
            })?;
            let last = entries.last().map(|entry| entry.next);
            for entry in entries {
                if !emit(entry.as_entry()) {
                    return Ok(());
                }
            }
            match (error, last) {
                (Some(error), _) => return Err(error),
                (None, Some(next)) if more => cookie = next,
                _ => return Ok(()),
            }
        }
    }

    fn getxattr(&self, _: &Cx, ino: InodeNo, name: &[u8]) -> Result<Vec<u8>> {
        let value = self.by_preview(ino, |preview| {
            let xattr = preview.xattrs.iter().find(|(here, _)| here == name);
            xattr.and_then(|(_, value)| value.clone())
        });
        if let Some(value) = value {
            return Ok(value);
        }
        self.bytes(Call::Getxattr, |to| {
            to.ino(ino);
            to.bytes(name);
        })
    }

    fn listxattr(&self, _: &Cx, ino: InodeNo) -> Result<Vec<Vec<u8>>> {
        let names = self.by_preview(ino, |preview| {
            let names = preview.xattrs.iter().map(|(name, _)| name.clone());
            Some(names.collect())
        });
        if let Some(names) = names {
            return Ok(names);
        }
        self.call(
            Call::Listxattr,
            |to| to.ino(ino),
            |from, _| from.list(|from| from.bytes().map(<[u8]>::to_vec)),
        )
    }

    fn setxattr(
        &self,
        _: &Cx,
        ino: InodeNo,
        name: &[u8],
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        if how != SetXattr::Any {
            return Err(NOT_HERE);
        }
        self.done(Call::Setxattr, |to| {
            to.ino(ino);
            to.bytes(name);
            to.bytes(value);
        })
    }

    fn removexattr(&self, _: &Cx, _: InodeNo, _: &[u8]) -> Result<()> {
        Err(NOT_HERE)
    }

    fn verity_digest(&self, _: &Cx, ino: InodeNo) -> Result<FileDigest> {
        self.call(
            Call::VerityDigest,
            |to| to.ino(ino),
            |from, _| from.digest(),
        )
    }

    fn enable_verity(&self, _: &Cx, ino: InodeNo, options: &VerityOptions) -> Result<()> {
        let line = options.to_line();
        self.done(Call::EnableVerity, |to| to.named(ino, line.as_bytes()))
    }

    fn statfs(&self, _: &Cx) -> Result<StatFs> {
        self.call(Call::Statfs, |_| {}, |from, _| from.usage())
    }

    fn flags(&self, _: &Cx, ino: InodeNo) -> Result<FsxAttr> {
        self.call(Call::Flags, |to| to.ino(ino), |from, _| from.flags())
    }

    fn set_flags(&self, _: &Cx, _: InodeNo, _: InodeFlags) -> Result<()> {
        Err(NOT_HERE)
    }

    fn set_project(&self, _: &Cx, _: InodeNo, _: u32) -> Result<()> {
        Err(NOT_HERE)
    }

    fn generation(&self, _: &Cx, _: InodeNo) -> Result<u32> {
        Err(NOT_HERE)
    }

    fn trim(&self, _: &Cx, _: u64, _: u64, _: u64) -> Result<u64> {
        Err(NOT_HERE)
    }

    fn sync_all(&self, _: &Cx) -> Result<()> {
        self.done(Call::SyncAll, |_| {})
    }

    fn shutdown(&self, _: &Cx, _: ShutdownMode) -> Result<()> {
        Err(NOT_HERE)
    }

    fn options(&self) -> String {
        String::new()
    }

    fn remount(&self, _: &Cx, _: &str) -> Result<()> {
        Err(NOT_HERE)
    }

    fn control(&self) -> Option<&dyn Control> {
        None
    }

    fn read_control(&self, path: &str) -> Result<Vec<u8>> {
        self.bytes(Call::ReadControl, |to| to.bytes(path.as_bytes()))
    }

    fn write_control(&self, path: &str, value: &[u8]) -> Result<()> {
        self.done(Call::WriteControl, |to| {
            to.bytes(path.as_bytes());
            to.bytes(value);
        })
    }

    fn unmount(&self) -> Result<()> {
        Client::close(self).map_err(FsError::Stopped)
    }
}
