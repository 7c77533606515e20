//! Operations: from the decoded request through the volume to the reply.

mod data;

use std::ops::Range;

use rustix::io::Errno;
use steadfs_base::{InodeNo, IoTag, Timestamp, Urgency};
use steadfs_vfs::names::is_dots;
use steadfs_vfs::{Cx, FallocMode, FileKind, FsError, RenameFlags, SetAttr, SetTime, SetXattr};
use zerocopy::IntoBytes;

use crate::call::{Call, CallError, Outcome, Volume};
use crate::ioctl;
use crate::open_files::OpenKind;
use crate::record::is_repeatable;
use crate::reply::{Answer, PlusEntry, ReplyBuf, statfs_out};
use crate::request::{Op, Request};
use crate::wire::{self, fattr};

/// Serves a request that concerns the volume.
pub(crate) fn dispatch(volume: &Volume, request: &Request<'_>, out: &mut ReplyBuf) -> Answer {
    let ids = volume.translate.ids;
    match request.op {
        // The most frequent request without a reply; needs no context.
        Op::Forget { count } => {
            volume.forget(ids.ino(request.header.nodeid), count);
            return Answer::Silent;
        }
        Op::BatchForget(list) => {
            for one in list.iter() {
                volume.forget(ids.ino(one.nodeid), one.nlookup);
            }
            return Answer::Silent;
        }
        _ => {}
    }
    let call = Call {
        volume,
        header: &request.header,
        ino: ids.ino(request.header.nodeid),
        cx: Cx {
            caller_state: Some(out.served.clone()),
            ..context(volume, request)
        },
    };
    // The holder of a lock that this request waits for inherits its tag (priority inheritance).
    let _task_tag = steadfs_rt::inherit::set_task_tag(call.cx.tag.with_urgency(Urgency::Waited));
    let outcome = match volume.recorder() {
        Some(recorder) => recorder.serve(&call, &request.op, out),
        None => call.run(&request.op, out),
    };
    match outcome {
        Ok(()) => Answer::Done,
        Err(CallError::Errno(errno)) => Answer::Error(errno),
        Err(CallError::Fs(error)) => {
            tracing::debug!(op = wire::op_name(request.header.opcode), %error);
            Answer::Error(Errno::from_raw_os_error(error.errno()))
        }
    }
}

fn context(volume: &Volume, request: &Request<'_>) -> Cx {
    let head = &request.header;
    let umask = match request.op {
        Op::Mknod { arg, .. } => arg.umask,
        Op::Mkdir { arg, .. } => arg.umask,
        Op::Tmpfile(arg) => arg.umask,
        _ => 0,
    };
    let tag = owner(volume, request);
    let fakeroot = volume.config.fakeroot;
    let (uid, gid) = match fakeroot {
        Some(_) => (0, 0),
        None => (head.uid, head.gid),
    };
    Cx {
        uid,
        gid,
        new_owner: fakeroot,
        groups: request.groups.iter().collect(),
        // The kernel does not send capabilities; root has them.
        fsetid: uid == 0,
        admin: false,
        umask: umask & 0o777,
        no_default_acl: false,
        tag,
        caller: head.pid.into(),
        opened: None,
        caller_state: None,
    }
}

/// The tag that the request's I/O is charged to.
fn owner(volume: &Volume, request: &Request<'_>) -> IoTag {
    let classifier = &volume.config.classifier;
    let ino = volume.translate.ids.ino(request.header.nodeid);
    match request.op {
        Op::Write { arg, .. } if arg.write_flags & wire::WRITE_CACHE != 0 => {
            // Write-back of a shared mapping: the kernel does not record which process dirtied a page.
            let tag = classifier.last_user(ino);
            tag.with_urgency(Urgency::Background)
        }
        Op::Write { .. } | Op::Read(_) => {
            let tag = classifier.tag(request.header.pid);
            classifier.uses(ino, tag);
            tag
        }
        _ => classifier.tag(request.header.pid),
    }
}

impl Call<'_> {
    /// Carries out the operation.
    pub(crate) fn run(&self, op: &Op<'_>, out: &mut ReplyBuf) -> Outcome {
        let fs = &*self.volume.fs;
        match *op {
            Op::Lookup { name } => self.lookup(name, out),
            Op::Getattr => {
                let attr = fs.getattr(&self.cx, self.ino)?;
                out.put(&self.volume.translate.attr_out(&attr));
                Ok(())
            }
            Op::Statx => {
                let attr = fs.getattr(&self.cx, self.ino)?;
                out.put(&self.volume.translate.statx_out(&attr));
                Ok(())
            }
            Op::Setattr(ref arg) => self.setattr(arg, out),
            Op::Read(ref arg) => self.read(arg, out),
            Op::Write { arg, data } => self.write(&arg, data, out),
            Op::Open(kind) => self.open(kind, out),
            Op::Release { fh } => self.release(fh),
            Op::Flush => self.drop_abandoned(),
            Op::Opendir => {
                out.put(&self.open_dir());
                Ok(())
            }
            Op::Readdir(ref arg) => self.readdir(arg, out),
            Op::Readdirplus(ref arg) => self.readdirplus(arg, out),
            Op::Readlink => {
                out.bytes
                    .extend_from_slice(&fs.readlink(&self.cx, self.ino)?);
                Ok(())
            }
            Op::Fsync { .. } | Op::Syncfs => self.sync(op),
            Op::Statfs => {
                out.put(&statfs_out(&fs.statfs_at(&self.cx, self.ino)?));
                Ok(())
            }
            Op::Lseek(ref arg) => self.seek(arg, out),
            Op::Fallocate(arg) => {
                let mode = falloc_mode(arg.mode)?;
                if self.volume.recorder().is_some() && !is_repeatable(mode) {
                    return Err(Errno::OPNOTSUPP.into());
                }
                let kills = self.may_kill(self.ino, !self.cx.fsetid)?;
                let result = fs.fallocate(&self.cx, self.ino, mode, arg.offset, arg.length);
                if result.is_err() {
                    let bytes = match mode {
                        FallocMode::Allocate { .. } => None,
                        // What is behind the range may have moved.
                        _ => Some(arg.offset..i64::MAX as u64),
                    };
                    self.may_have_changed(self.ino, bytes);
                }
                result?;
                self.killed(self.ino, kills);
                Ok(())
            }
            Op::CopyFileRange { ref arg, wide } => self.copy_range(arg, wide, out),
            Op::Ioctl { ref arg, data } => ioctl::serve(self, arg, data, out),
            Op::Getxattr { .. }
            | Op::Setxattr { .. }
            | Op::Listxattr { .. }
            | Op::Removexattr { .. } => self.xattr(op, out),
            _ => self.namespace(op, out),
        }
    }

    /// Operations that make, move and remove names.
    fn namespace(&self, op: &Op<'_>, out: &mut ReplyBuf) -> Outcome {
        let fs = &*self.volume.fs;
        let (cx, dir) = (&self.cx, self.ino);
        let attr = match *op {
            Op::Mknod { arg, name } => fs.mknod(cx, dir, name, arg.mode, arg.rdev)?,
            Op::Mkdir { arg, name } => fs.mkdir(cx, dir, name, arg.mode)?,
            Op::Symlink { name, target } => fs.symlink(cx, dir, name, target)?,
            Op::Link { node, name } => {
                let ino = self.volume.translate.ids.ino(node);
                fs.link(cx, ino, dir, name)?
            }
            Op::Tmpfile(arg) => {
                let attr = fs.tmpfile(cx, dir, arg.mode)?;
                let kind = OpenKind::of_flags(arg.flags);
                self.count_writer(attr.ino, kind)?;
                out.put(&self.volume.translate.entry(&attr));
                out.put(&self.open_out(kind));
                return Ok(());
            }
            Op::Unlink { name } => return Ok(fs.unlink(cx, dir, name)?),
            Op::Rmdir { name } => return Ok(fs.rmdir(cx, dir, name)?),
            Op::Rename {
                newdir,
                flags,
                from,
                to,
            } => {
                let newdir = self.volume.translate.ids.ino(newdir);
                let flags = rename_flags(flags)?;
                return Ok(fs.rename(cx, (dir, from), (newdir, to), flags)?);
            }
            _ => return Err(Errno::NOSYS.into()),
        };
        out.put(&self.entry(&attr, self.spellings()));
        Ok(())
    }

    fn lookup(&self, name: &[u8], out: &mut ReplyBuf) -> Outcome {
        let fs = &*self.volume.fs;
        let found = if name == b"." {
            // The kernel opens a file handle of an exported volume: it knows the inode by number only.
            fs.attach(&self.cx, self.ino)
        } else {
            fs.lookup(&self.cx, self.ino, name)
        };
        match found {
            Ok(attr) => out.put(&self.entry(&attr, self.spellings())),
            Err(FsError::NotFound) if !is_dots(name) => out.put(&self.no_entry()),
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn setattr(&self, arg: &wire::SetattrIn, out: &mut ReplyBuf) -> Outcome {
        let has = |bit: u32| arg.valid & bit != 0;
        let time = |bit, now, secs, nanos| {
            has(bit).then(|| {
                if has(now) {
                    SetTime::Now
                } else {
                    SetTime::At(Timestamp { secs, nanos })
                }
            })
        };
        for nanos in [arg.atimensec, arg.mtimensec, arg.ctimensec] {
            if nanos >= 1_000_000_000 {
                return Err(Errno::INVAL.into());
            }
        }
        if arg.valid & fattr::CHANGES == 0 {
            return self.clear_set_id(out);
        }
        let set = SetAttr {
            perm: has(fattr::MODE).then_some(arg.mode & 0o7777),
            uid: has(fattr::UID).then_some(arg.uid),
            gid: has(fattr::GID).then_some(arg.gid),
            size: has(fattr::SIZE).then_some(arg.size),
            atime: time(fattr::ATIME, fattr::ATIME_NOW, arg.atime, arg.atimensec),
            mtime: time(fattr::MTIME, fattr::MTIME_NOW, arg.mtime, arg.mtimensec),
            ctime: has(fattr::CTIME).then_some(Timestamp {
                secs: arg.ctime,
                nanos: arg.ctimensec,
            }),
            // With HANDLE_KILLPRIV_V2 every change of owner clears the bits, without a flag in the request; a
            // truncation clears them only if the flag is set.
            kill_priv: has(fattr::KILL_SUIDGID) || has(fattr::UID) || has(fattr::GID),
        };
        let attr = self.volume.fs.setattr(&self.cx, self.ino, &set);
        if attr.is_err() {
            self.may_have_changed(self.ino, None);
        }
        out.put(&self.volume.translate.attr_out(&attr?));
        Ok(())
    }

    /// SETATTR of nothing: chown(2) with neither a user nor a group, or what the kernel sends before an unprivileged
    /// caller writes to a file with set-ID bits. Both clear the bits. A caller that may not chown the file can only have
    /// sent the second, or gets no error from the first (both are the same request); the write clears the
    /// bits itself.
    fn clear_set_id(&self, out: &mut ReplyBuf) -> Outcome {
        let fs = &*self.volume.fs;
        let mut attr = fs.getattr(&self.cx, self.ino)?;
        if self.header.uid == 0 || self.header.uid == attr.uid {
            let clear = SetAttr {
                kill_priv: true,
                ..SetAttr::default()
            };
            attr = fs.setattr(&self.cx, self.ino, &clear)?;
        }
        out.put(&self.volume.translate.attr_out(&attr));
        Ok(())
    }

    fn readdir(&self, arg: &wire::ReadIn, out: &mut ReplyBuf) -> Outcome {
        let limit = arg.size.min(self.volume.config.max_request) as usize;
        let bytes = &mut out.bytes;
        let fs = &self.volume.fs;
        let read = fs.readdir(&self.cx, self.ino, arg.offset, &mut |entry| {
            let kind = entry.kind.map_or(0, dirent_kind);
            push_dirent(bytes, limit, entry.ino, entry.next, kind, entry.name)
        });
        // Entries before a corruption are returned; the next call from there on gets the error.
        if bytes.is_empty() { Ok(read?) } else { Ok(()) }
    }

    /// Entries with attributes. First collects the names, then looks up the inodes, because the volume may hold the
    /// directory's lock while it reports names.
    fn readdirplus(&self, arg: &wire::ReadIn, out: &mut ReplyBuf) -> Outcome {
        let limit = arg.size.min(self.volume.config.max_request) as usize;
        let fs = &*self.volume.fs;
        let (names, entries) = (&mut out.names, &mut out.entries);
        names.clear();
        entries.clear();
        let mut room = limit;
        let read = fs.readdir(&self.cx, self.ino, arg.offset, &mut |entry| {
            let size = size_of::<wire::EntryOut>()
                + wire::padded(size_of::<wire::Dirent>() + entry.name.len());
            if size > room {
                return false;
            }
            room -= size;
            names.extend_from_slice(entry.name);
            entries.push(PlusEntry {
                ino: entry.ino,
                next: entry.next,
                kind: entry.kind.map_or(0, dirent_kind),
                name_end: names.len(),
            });
            true
        });
        if entries.is_empty() {
            return Ok(read?);
        }
        let spellings = self.spellings();
        let mut start = 0;
        for plus in entries.iter() {
            let name = &names[start..plus.name_end];
            start = plus.name_end;
            let mut kind = plus.kind;
            // If the inode cannot be looked up, only the name is returned (node 0).
            let mut head = wire::EntryOut::default();
            if name != b"." && name != b".." {
                match fs.attach(&self.cx, plus.ino) {
                    Ok(attr) => {
                        self.volume.counted(attr.ino);
                        head = self.entry(&attr, spellings);
                        kind = dirent_kind(attr.kind);
                    }
                    Err(error) => {
                        tracing::debug!(ino = plus.ino.0, %error, "cannot look up the inode of a directory entry")
                    }
                }
            }
            out.bytes.extend_from_slice(head.as_bytes());
            push_dirent(&mut out.bytes, limit, plus.ino, plus.next, kind, name);
        }
        Ok(())
    }

    /// Whether a change of content clears set-user-ID or set-group-ID bits, if that is `asked` for.
    fn may_kill(&self, ino: InodeNo, asked: bool) -> Result<bool, FsError> {
        Ok(asked && self.volume.fs.getattr(&self.cx, ino)?.perm & 0o6000 != 0)
    }

    /// Invalidates the attributes after a call that cleared mode bits, which the kernel does not expect of that call.
    fn killed(&self, ino: InodeNo, kills: bool) {
        if kills {
            self.volume.attributes_changed(ino);
        }
    }

    /// Invalidates the attributes, and pages of these bytes, after a call that has failed: it may have done a part, and the
    /// kernel expects that it has done nothing.
    fn may_have_changed(&self, ino: InodeNo, bytes: Option<Range<u64>>) {
        self.volume.attributes_changed(ino);
        if let Some(bytes) = bytes {
            self.volume.pages_changed(ino, bytes);
        }
    }

    fn xattr(&self, op: &Op<'_>, out: &mut ReplyBuf) -> Outcome {
        let fs = &*self.volume.fs;
        match *op {
            Op::Getxattr { size, name } => {
                let value = fs.getxattr(&self.cx, self.ino, name);
                let value = self.volume.labels.answer(name, value)?;
                sized(size, &value, out)
            }
            Op::Listxattr { size } => {
                let mut list = Vec::new();
                for name in fs.listxattr(&self.cx, self.ino)? {
                    self.volume.labels.seen(&name);
                    // Only root sees the names of trusted attributes.
                    if self.header.uid == 0 || !name.starts_with(b"trusted.") {
                        list.extend_from_slice(&name);
                        list.push(0);
                    }
                }
                sized(size, &list, out)
            }
            Op::Removexattr { name } => Ok(fs.removexattr(&self.cx, self.ino, name)?),
            Op::Setxattr { arg, name, value } => {
                let how = match arg.flags {
                    0 => SetXattr::Any,
                    1 => SetXattr::Create,
                    2 => SetXattr::Replace,
                    _ => return Err(Errno::INVAL.into()),
                };
                // For an access ACL the kernel has compared the caller's groups and capabilities with the file's group
                // and sets this flag if set-group-ID must be cleared.
                let cx = Cx {
                    fsetid: arg.setxattr_flags & wire::SETXATTR_ACL_KILL_SGID == 0,
                    ..self.cx.clone()
                };
                self.volume.labels.seen(name);
                Ok(fs.setxattr(&cx, self.ino, name, value, how)?)
            }
            _ => Err(Errno::NOSYS.into()),
        }
    }
}

/// Replies with a value to a caller whose buffer has `size` bytes; with the value's size if `size` is 0.
fn sized(size: u32, value: &[u8], out: &mut ReplyBuf) -> Outcome {
    if size == 0 {
        let size = u32::try_from(value.len()).map_err(|_| Errno::TOOBIG)?;
        out.put(&wire::GetxattrOut { size, padding: 0 });
    } else if value.len() > size as usize {
        return Err(Errno::RANGE.into());
    } else {
        out.bytes.extend_from_slice(value);
    }
    Ok(())
}

/// The type in READDIR's entries (`DT_*`): the type bits of the mode, shifted down.
fn dirent_kind(kind: FileKind) -> u32 {
    kind.mode_bits() >> 12
}

/// Appends an entry if it fits into `limit` bytes; returns whether it did.
fn push_dirent(
    bytes: &mut Vec<u8>,
    limit: usize,
    ino: InodeNo,
    next: u64,
    kind: u32,
    name: &[u8],
) -> bool {
    let end = bytes.len() + wire::padded(size_of::<wire::Dirent>() + name.len());
    if end > limit {
        return false;
    }
    let Ok(namelen) = u32::try_from(name.len()) else {
        return false;
    };
    let head = wire::Dirent {
        ino: ino.0,
        off: next,
        namelen,
        kind,
    };
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(name);
    bytes.resize(end, 0);
    true
}

/// Flags of renameat2(2), linux/fs.h.
fn rename_flags(flags: u32) -> Outcome<RenameFlags> {
    const NOREPLACE: u32 = 1;
    const EXCHANGE: u32 = 2;
    const WHITEOUT: u32 = 4;
    if flags & !(NOREPLACE | EXCHANGE | WHITEOUT) != 0 {
        return Err(Errno::INVAL.into());
    }
    Ok(RenameFlags {
        no_replace: flags & NOREPLACE != 0,
        exchange: flags & EXCHANGE != 0,
        whiteout: flags & WHITEOUT != 0,
    })
}

/// Modes of fallocate(2), linux/falloc.h.
pub(crate) fn falloc_mode(mode: u32) -> Outcome<FallocMode> {
    const KEEP_SIZE: u32 = 0x01;
    const PUNCH_HOLE: u32 = 0x02;
    const COLLAPSE_RANGE: u32 = 0x08;
    const ZERO_RANGE: u32 = 0x10;
    const INSERT_RANGE: u32 = 0x20;
    let keep_size = mode & KEEP_SIZE != 0;
    Ok(match mode & !KEEP_SIZE {
        0 => FallocMode::Allocate { keep_size },
        PUNCH_HOLE if keep_size => FallocMode::PunchHole,
        ZERO_RANGE => FallocMode::ZeroRange { keep_size },
        COLLAPSE_RANGE if !keep_size => FallocMode::CollapseRange,
        INSERT_RANGE if !keep_size => FallocMode::InsertRange,
        _ => return Err(Errno::OPNOTSUPP.into()),
    })
}
