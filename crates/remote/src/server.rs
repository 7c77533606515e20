//! The end that has the volume.

use std::io::{self, BufReader, Read, Write};

use steadfs_vfs::verity::VerityOptions;
use steadfs_vfs::{
    Cx, FileSystem, FsError, RenameFlags, Result, SetXattr, give_attributes, make_file,
};

use crate::codec::{Decoder, Encoder, Malformed};
use crate::{Call, Greeting, ahead, frame, listing, preview};

/// Names of a directory are sent in batches of about this length in bytes.
const BATCH_BYTES: usize = 256 << 10;
/// Longest read in bytes.
const READ_MAX: usize = 1 << 20;
/// Bytes of calls that are received at once.
const RECEIVED: usize = 64 << 10;
/// Bytes of replies that are kept while more calls are there.
const KEPT: usize = 4 << 10;

/// Serves one volume to one client.
pub struct Server<S> {
    /// Buffered, since several calls can arrive at once.
    stream: BufReader<S>,
}

impl<S: Read + Write> Server<S> {
    /// Serves the client at the other end of `stream`.
    pub fn new(stream: S) -> Self {
        let stream = BufReader::with_capacity(RECEIVED, stream);
        Self { stream }
    }

    /// Reports that the volume cannot be opened.
    ///
    /// # Errors
    /// The client is gone.
    pub fn refuse(mut self, why: &str) -> io::Result<()> {
        let mut reply = Encoder::default();
        reply.flag(false);
        reply.bytes(why.as_bytes());
        frame::send(self.stream.get_mut(), &reply.0)
    }

    /// Reports that the volume is open.
    ///
    /// # Errors
    /// The client is gone.
    pub fn greet(&mut self, greeting: &Greeting) -> io::Result<()> {
        let mut reply = Encoder::default();
        reply.flag(true);
        reply.list(&greeting.warnings, |to, text| to.bytes(text.as_bytes()));
        reply.option(greeting.read_only_because.as_ref(), |to, text| {
            to.bytes(text.as_bytes());
        });
        reply.list(&greeting.missing, |to, text| to.bytes(text.as_bytes()));
        frame::send(self.stream.get_mut(), &reply.0)
    }

    /// Answers calls until the client closes the volume. Returns false if the client is gone instead.
    ///
    /// # Errors
    /// A call is not one of [`Client`](crate::Client), or the reply cannot be sent.
    pub fn serve(&mut self, fs: &dyn FileSystem, cx: &Cx) -> io::Result<bool> {
        let (mut replies, mut message) = (Vec::new(), Vec::new());
        loop {
            // Each sending wakes the client, which waits for the last of several calls.
            if !replies.is_empty() && (self.stream.buffer().is_empty() || replies.len() > KEPT) {
                self.stream.get_mut().write_all(&replies)?;
                replies.clear();
            }
            if !frame::receive_into(&mut self.stream, &mut message)? {
                return Ok(false);
            }
            let mut decoder = Decoder::new(&message);
            let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
            let call = decoder.byte().map_err(invalid)?;
            let call = Call::of_byte(call).ok_or(Malformed).map_err(invalid)?;
            if call == Call::Close {
                self.stream.get_mut().write_all(&replies)?;
                return Ok(true);
            }
            let before = replies.len();
            let answered = frame::push(&mut replies, |to| answer(call, fs, cx, &mut decoder, to))?;
            if !answered.map_err(invalid)? {
                replies.truncate(before);
            }
            decoder.end().map_err(invalid)?;
        }
    }

    /// Reports the result of closing the volume.
    ///
    /// # Errors
    /// The client is gone.
    pub fn closed(mut self, result: std::result::Result<(), String>) -> io::Result<()> {
        let mut reply = Encoder::default();
        reply.option(result.err(), |to, why| to.bytes(why.as_bytes()));
        frame::send(self.stream.get_mut(), &reply.0)
    }
}

/// Encodes a result.
fn put<T>(reply: &mut Encoder, result: Result<T>, encode: impl FnOnce(&mut Encoder, T)) {
    reply.flag(result.is_ok());
    match result {
        Ok(value) => encode(reply, value),
        Err(error) => reply.error(&error),
    }
}

fn nothing(_: &mut Encoder, (): ()) {}

/// Reads or writes a control file.
fn read_or_write_control(
    call: Call,
    fs: &dyn FileSystem,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<(), Malformed> {
    let path = from.text()?;
    if call == Call::WriteControl {
        put(to, fs.write_control(&path, from.bytes()?), nothing);
        return Ok(());
    }
    let read = fs.read_control(&path);
    put(to, read, |to, content| to.bytes(&content));
    Ok(())
}

/// Makes a call and encodes its result. Returns false for a call without a reply.
fn answer(
    call: Call,
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<bool, Malformed> {
    match call {
        Call::Root => to.ino(fs.root()),
        Call::Forget => {
            fs.forget(from.ino()?, from.long()?);
            return Ok(false);
        }
        Call::Lookup => {
            let (dir, name) = (from.ino()?, from.bytes()?);
            put(to, fs.lookup(cx, dir, name), |to, attr| to.attr(&attr));
        }
        Call::Getattr => put(to, fs.getattr(cx, from.ino()?), |to, attr| to.attr(&attr)),
        Call::Setattr => {
            let (ino, set) = (from.ino()?, from.set_attr()?);
            put(to, fs.setattr(cx, ino, &set), |to, attr| to.attr(&attr));
        }
        Call::Readlink => put(to, fs.readlink(cx, from.ino()?), |to, target| {
            to.bytes(&target);
        }),
        Call::Mknod | Call::Mkdir | Call::Symlink | Call::Link => {
            make_name(call, fs, cx, from, to)?;
        }
        Call::Unlink | Call::Rmdir | Call::Rename => change_names(call, fs, cx, from, to)?,
        Call::Open => open(fs, cx, from, to)?,
        Call::Read => {
            let (ino, offset, len) = (from.ino()?, from.long()?, from.len()?);
            let data = fs.read(cx, ino, offset, len.min(READ_MAX));
            put(to, data, |to, data| to.data(&data));
        }
        Call::Write => {
            let (ino, offset) = (from.ino()?, from.long()?);
            let (data, kill) = (from.bytes()?, from.flag()?);
            let written = fs.write(cx, ino, offset, data, kill);
            put(to, written, |to, len| to.long(len as u64));
        }
        Call::Seek => {
            let (ino, offset, what) = (from.ino()?, from.long()?, from.seek()?);
            put(to, fs.seek(cx, ino, offset, what), Encoder::long);
        }
        Call::Readdir => readdir(fs, cx, from, to)?,
        Call::Getxattr => {
            let (ino, name) = (from.ino()?, from.bytes()?);
            put(to, fs.getxattr(cx, ino, name), |to, value| to.bytes(&value));
        }
        Call::Listxattr => put(to, fs.listxattr(cx, from.ino()?), |to, names| {
            to.list(&names, |to, name| to.bytes(name));
        }),
        Call::Setxattr => {
            let (ino, name, value) = (from.ino()?, from.bytes()?, from.bytes()?);
            let set = fs.setxattr(cx, ino, name, value, SetXattr::Any);
            put(to, set, nothing);
        }
        Call::Statfs => put(to, fs.statfs(cx), |to, usage| to.usage(&usage)),
        Call::Flags => put(to, fs.flags(cx, from.ino()?), Encoder::flags),
        Call::SyncAll => put(to, fs.sync_all(cx), nothing),
        Call::EnableVerity | Call::VerityDigest => verity(call, fs, cx, from, to)?,
        Call::ReadControl | Call::WriteControl => read_or_write_control(call, fs, from, to)?,
        Call::Expect => ahead::answer(fs, cx, from, to)?,
        Call::Make | Call::Give => make_or_give(call, fs, cx, from, to)?,
        Call::Close => return Err(Malformed),
    }
    Ok(true)
}

fn verity(
    call: Call,
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<(), Malformed> {
    let ino = from.ino()?;
    if call == Call::VerityDigest {
        put(to, fs.verity_digest(cx, ino), |to, digest| {
            to.digest(&digest)
        });
        return Ok(());
    }
    let options = VerityOptions::parse(&from.text()?);
    let sealed = options.and_then(|options| fs.enable_verity(cx, ino, &options));
    put(to, sealed, nothing);
    Ok(())
}

fn open(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<(), Malformed> {
    let (ino, write) = (from.ino()?, from.flag()?);
    put(to, fs.open(cx, ino, write), |to, ()| {
        let preview = match write {
            true => None,
            false => preview::of_open(fs, cx, ino).ok().flatten(),
        };
        to.option(preview, |to, preview| preview.encode(to));
    });
    Ok(())
}

fn make_or_give(
    call: Call,
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<(), Malformed> {
    let ino = from.ino()?;
    let done = match call {
        Call::Make => {
            let (name, cx) = (from.bytes()?, from.creation(cx)?);
            from.new_file(|new| make_file(fs, &cx, ino, name, new))?
        }
        _ => Ok(give_attributes(fs, cx, ino, &from.given()?)),
    };
    put(to, done, |to, missing| {
        to.list(&missing, Encoder::not_given);
    });
    Ok(())
}

fn make_name(
    call: Call,
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<(), Malformed> {
    let (dir, name) = (from.ino()?, from.bytes()?);
    let made = match call {
        Call::Mknod => fs.mknod(&from.creation(cx)?, dir, name, from.word()?, from.word()?),
        Call::Mkdir => fs.mkdir(&from.creation(cx)?, dir, name, from.word()?),
        Call::Symlink => fs.symlink(cx, dir, name, from.bytes()?),
        _ => fs.link(cx, from.ino()?, dir, name),
    };
    put(to, made, |to, attr| to.attr(&attr));
    Ok(())
}

fn change_names(
    call: Call,
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<(), Malformed> {
    let (dir, name) = (from.ino()?, from.bytes()?);
    let done = match call {
        Call::Unlink => fs.unlink(cx, dir, name),
        Call::Rmdir => fs.rmdir(cx, dir, name),
        _ => {
            let target = (from.ino()?, from.bytes()?);
            let flags = RenameFlags {
                no_replace: from.flag()?,
                ..RenameFlags::default()
            };
            fs.rename(cx, (dir, name), target, flags)
        }
    };
    put(to, done, nothing);
    Ok(())
}

/// A batch of entries, and whether more follow.
fn readdir(
    fs: &dyn FileSystem,
    cx: &Cx,
    from: &mut Decoder<'_>,
    to: &mut Encoder,
) -> std::result::Result<(), Malformed> {
    let (dir, cookie) = (from.ino()?, from.long()?);
    let mut batch = Encoder::default();
    let (mut count, mut more) = (0_u32, false);
    let mut read = fs.readdir(cx, dir, cookie, &mut |entry| {
        if batch.0.len() >= BATCH_BYTES {
            more = true;
            return false;
        }
        listing::encode(&mut batch, &entry);
        count += 1;
        true
    });
    // The entries before an error are sent, too.
    let error = std::mem::replace(&mut read, Ok(())).err();
    to.word(count);
    to.0.append(&mut batch.0);
    to.flag(more);
    to.option(error, |to, error: FsError| to.error(&error));
    Ok(())
}
