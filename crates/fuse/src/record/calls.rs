//! Which state each kind of call changes, and how it is read.

use steadfs_base::InodeNo;
use steadfs_vfs::{
    Attr, CONTROL_DIR, Cx, FallocMode, FileKind, FileSystem, FsError, is_control_inode,
};
use zerocopy::FromBytes;

use super::item::{InodeState, Item, encode_bytes_head};
use super::{Recorder, Ticket};
use crate::call::{Call, Outcome};
use crate::reply::ReplyBuf;
use crate::request::Op;
use crate::wire::{self, fattr};

/// A request that the kernel sends again has this bit in its number.
const RESENT: u64 = 1 << 63;

/// Extended attributes that other calls change.
const CAPABILITY: &[u8] = b"security.capability";
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// What a call changes.
enum Change<'a> {
    /// Names, and inodes beside those that they lead to.
    Names(Vec<(InodeNo, &'a [u8])>, Vec<InodeNo>),
    /// A file without a name is made.
    Unnamed,
    /// An inode, and these of its extended attributes. `once`: their values from before decide whether the call fails.
    Inode {
        ino: InodeNo,
        xattrs: Vec<&'a [u8]>,
        once: bool,
        contents: Contents<'a>,
    },
}

/// How a call changes the contents of a file.
#[derive(Clone, Copy)]
enum Contents<'a> {
    Same,
    Written(u64, &'a [u8]),
    Size(u64),
    Range(FallocMode, u64, u64),
    /// Copied to this offset.
    Copied(u64),
}

impl<'a> Change<'a> {
    /// What the call of this request changes; `None`: nothing that is recorded.
    fn of(call: &Call<'_>, op: &Op<'a>) -> Option<Self> {
        let ids = call.volume.translate.ids;
        let dir = call.ino;
        let change = match *op {
            Op::Mknod { name, .. } | Op::Mkdir { name, .. } | Op::Symlink { name, .. } => {
                Self::Names(vec![(dir, name)], vec![dir])
            }
            Op::Unlink { name } | Op::Rmdir { name } => Self::Names(vec![(dir, name)], vec![dir]),
            Op::Link { node, name } => Self::Names(vec![(dir, name)], vec![dir, ids.ino(node)]),
            Op::Rename {
                newdir, from, to, ..
            } => {
                let newdir = ids.ino(newdir);
                Self::Names(vec![(dir, from), (newdir, to)], vec![dir, newdir])
            }
            Op::Tmpfile(_) => Self::Unnamed,
            _ => Self::of_inode(call, op)?,
        };
        (!change.is_of_control(call.volume.fs.root())).then_some(change)
    }

    fn of_inode(call: &Call<'_>, op: &Op<'a>) -> Option<Self> {
        let privileged = call.cx.fsetid;
        let (mut ino, mut xattrs, mut once) = (call.ino, Vec::new(), false);
        let contents = match *op {
            Op::Write { arg, data } => {
                if arg.write_flags & wire::WRITE_KILL_SUIDGID != 0 {
                    xattrs.push(CAPABILITY);
                }
                Contents::Written(arg.offset, data)
            }
            Op::Setattr(ref arg) => {
                let kills = fattr::KILL_SUIDGID | fattr::UID | fattr::GID;
                if arg.valid & kills != 0 || arg.valid & fattr::CHANGES == 0 {
                    xattrs.push(CAPABILITY);
                }
                if arg.valid & fattr::MODE != 0 {
                    xattrs.push(ACCESS_ACL);
                }
                match arg.valid & fattr::SIZE != 0 {
                    true => Contents::Size(arg.size),
                    false => Contents::Same,
                }
            }
            Op::Fallocate(arg) => {
                if !privileged {
                    xattrs.push(CAPABILITY);
                }
                let mode = crate::ops::falloc_mode(arg.mode).ok()?;
                Contents::Range(mode, arg.offset, arg.length)
            }
            Op::CopyFileRange { ref arg, .. } => {
                if !privileged {
                    xattrs.push(CAPABILITY);
                }
                ino = call.volume.translate.ids.ino(arg.nodeid_out);
                Contents::Copied(arg.off_out)
            }
            Op::Setxattr { arg, name, .. } => {
                xattrs.push(name);
                once = arg.flags != 0;
                Contents::Same
            }
            Op::Removexattr { name } => {
                xattrs.push(name);
                once = true;
                Contents::Same
            }
            Op::Ioctl { ref arg, .. } if crate::ioctl::changes_flags(arg.cmd) => Contents::Same,
            _ => return None,
        };
        Some(Self::Inode {
            ino,
            xattrs,
            once,
            contents,
        })
    }

    fn is_of_control(&self, root: InodeNo) -> bool {
        match self {
            Self::Names(names, inodes) => {
                let reserved =
                    |(dir, name): &(InodeNo, &[u8])| *dir == root && *name == CONTROL_DIR;
                inodes.iter().any(|ino| is_control_inode(*ino)) || names.iter().any(reserved)
            }
            Self::Unnamed => false,
            Self::Inode { ino, .. } => is_control_inode(*ino),
        }
    }
}

/// Reads states.
struct Reader<'a> {
    fs: &'a dyn FileSystem,
    cx: Cx,
}

impl Reader<'_> {
    fn inode(&self, out: &mut Vec<u8>, ino: InodeNo, is_new: bool) -> Result<Attr, FsError> {
        let state = InodeState {
            is_new,
            attr: self.fs.getattr(&self.cx, ino)?,
            flags: self.fs.flags(&self.cx, ino)?,
        };
        Item::Inode(state.clone()).encode(out);
        Ok(state.attr)
    }

    /// An inode that was made: with all that it has.
    fn new_inode(&self, out: &mut Vec<u8>, ino: InodeNo) -> Result<(), FsError> {
        let attr = self.inode(out, ino, true)?;
        if attr.kind == FileKind::Symlink {
            let target = self.fs.readlink(&self.cx, ino)?;
            Item::Target(ino, &target).encode(out);
        }
        for name in self.fs.listxattr(&self.cx, ino)? {
            self.xattr(out, ino, &name)?;
        }
        Ok(())
    }

    fn xattr(&self, out: &mut Vec<u8>, ino: InodeNo, name: &[u8]) -> Result<(), FsError> {
        match self.fs.getxattr(&self.cx, ino, name) {
            Ok(value) => Item::Xattr(ino, name, Some(&value)).encode(out),
            Err(FsError::NoData) => Item::Xattr(ino, name, None).encode(out),
            // The file system has none of this kind: nor has it changed one.
            Err(FsError::NotSupported(_)) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The inodes that names lead to.
    fn resolve(&self, names: &[(InodeNo, &[u8])]) -> Result<Vec<Option<InodeNo>>, FsError> {
        let lookup = |(dir, name): &(InodeNo, &[u8])| self.lookup(*dir, name);
        names.iter().map(lookup).collect()
    }

    /// The inode of a name, and drops its lookup. It stays: a name leads to it, and the kernel holds the directory's lock.
    fn lookup(&self, dir: InodeNo, name: &[u8]) -> Result<Option<InodeNo>, FsError> {
        match self.fs.lookup(&self.cx, dir, name) {
            Ok(attr) => {
                self.fs.forget(attr.ino, 1);
                Ok(Some(attr.ino))
            }
            Err(FsError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Names, where they lead, and inodes; those that are not `known` are new.
    fn names(
        &self,
        out: &mut Vec<u8>,
        names: &[(InodeNo, &[u8])],
        lead: &[Option<InodeNo>],
        known: &[InodeNo],
    ) -> Result<(), FsError> {
        for ((dir, name), ino) in names.iter().zip(lead) {
            Item::Name(*dir, name, *ino).encode(out);
            if let Some(ino) = ino.filter(|ino| !known.contains(ino)) {
                self.new_inode(out, ino)?;
            }
        }
        for ino in known {
            self.inode(out, *ino, false)?;
        }
        Ok(())
    }
}

impl Recorder {
    /// Carries out a call and records what it has changed. The reply may be sent while `out` has the ticket.
    pub(crate) fn serve(&self, call: &Call<'_>, op: &Op<'_>, out: &mut ReplyBuf) -> Outcome {
        if self.answer(call, out) {
            return Ok(());
        }
        if !self.is_recording() {
            return call.run(op, out);
        }
        let Some(mut change) = Change::of(call, op) else {
            let Op::Ioctl { arg, .. } = op else {
                call.run(op, out)?;
                self.count(call, op, out);
                return Ok(());
            };
            let is_unrecorded = crate::ioctl::changes_more(&*call.volume.fs, arg.cmd);
            if is_unrecorded {
                // Earlier changes of the file could not be repeated after that.
                self.log.barrier();
            }
            call.run(op, out)?;
            if is_unrecorded {
                self.log.barrier();
            }
            return Ok(());
        };
        let reader = Reader {
            fs: &*call.volume.fs,
            cx: Cx {
                fsetid: true,
                tag: call.cx.tag,
                ..Cx::default()
            },
        };
        let mut ticket = self.log.ticket();
        self.before(&reader, &mut change, &mut ticket)?;
        call.run(op, out)?;
        // Before the record: a file without a name whose lookup is not counted would be free to a successor, which answers
        // the request that made it from the record.
        self.count(call, op, out);
        self.after(&reader, call, &change, &mut ticket, out);
        out.ticket = Some(ticket);
        Ok(())
    }

    /// Answers a request that another server has carried out, its lookup counted.
    fn answer(&self, call: &Call<'_>, out: &mut ReplyBuf) -> bool {
        let unique = call.header.unique;
        if unique & RESENT == 0 {
            return false;
        }
        let Some(reply) = self.answers.lock().remove(&(unique & !RESENT)) else {
            return false;
        };
        out.bytes = reply;
        true
    }

    /// Counts the lookup that a reply gives to the kernel.
    fn count(&self, call: &Call<'_>, op: &Op<'_>, out: &ReplyBuf) {
        let gives = matches!(
            op,
            Op::Lookup { .. }
                | Op::Mknod { .. }
                | Op::Mkdir { .. }
                | Op::Symlink { .. }
                | Op::Link { .. }
                | Op::Tmpfile(_)
        );
        if gives && let Some(ino) = entry_of(call, out) {
            self.counted(ino);
        }
    }

    /// Records what a call that cannot be repeated is about to change.
    fn before(&self, reader: &Reader<'_>, change: &mut Change<'_>, ticket: &mut Ticket) -> Outcome {
        match change {
            Change::Names(names, known) => {
                let lead = reader.resolve(names)?;
                known.extend(lead.iter().flatten());
                known.sort_unstable();
                known.dedup();
                self.log.append(ticket, &[], |items| {
                    reader.names(items, names, &lead, known)
                });
            }
            Change::Inode {
                ino,
                xattrs,
                once: true,
                ..
            } => self.log.append(ticket, &[], |items| {
                reader.inode(items, *ino, false)?;
                for name in &*xattrs {
                    // Where it cannot be read, the call cannot change it.
                    let _ = reader.xattr(items, *ino, name);
                }
                Ok(())
            }),
            Change::Unnamed | Change::Inode { .. } => {}
        }
        Ok(())
    }

    /// Records what a call has changed, and its reply.
    fn after(
        &self,
        reader: &Reader<'_>,
        call: &Call<'_>,
        change: &Change<'_>,
        ticket: &mut Ticket,
        out: &ReplyBuf,
    ) {
        let answer = Item::Answer {
            slot: ticket.slot(),
            unique: call.header.unique & !RESENT,
            reply: &out.bytes,
        };
        match change {
            Change::Names(names, known) => {
                // The kernel holds the locks of the directories.
                let lead = reader.resolve(names);
                self.log.append(ticket, &[], |items| {
                    answer.encode(items);
                    let lead = lead.as_ref().map_err(FsError::clone)?;
                    reader.names(items, names, lead, known)
                });
            }
            Change::Unnamed => {
                let made = entry_of(call, out);
                self.log.append(ticket, &[], |items| {
                    answer.encode(items);
                    made.map_or(Ok(()), |ino| reader.new_inode(items, ino))
                });
            }
            Change::Inode {
                ino,
                xattrs,
                contents,
                ..
            } => {
                let ino = *ino;
                let copied = copied(reader, ino, *contents, out);
                let data = match (&copied, *contents) {
                    (Ok(data), Contents::Copied(_)) => &data[..],
                    (_, Contents::Written(_, data)) => &data[..count_of(out).min(data.len())],
                    _ => &[],
                };
                self.log.append(ticket, data, |items| {
                    answer.encode(items);
                    reader.inode(items, ino, false)?;
                    for name in xattrs {
                        reader.xattr(items, ino, name)?;
                    }
                    match *contents {
                        Contents::Same => {}
                        Contents::Size(size) => Item::Size(ino, size).encode(items),
                        Contents::Range(mode, offset, len) => {
                            Item::Range(ino, mode, offset, len).encode(items);
                        }
                        Contents::Copied(offset) => {
                            copied.as_ref().map_err(FsError::clone)?;
                            encode_bytes_head(items, ino, offset, data.len());
                        }
                        Contents::Written(offset, _) => {
                            encode_bytes_head(items, ino, offset, data.len());
                        }
                    }
                    Ok(())
                });
            }
        }
    }
}

/// The bytes that a copy has written.
fn copied(
    reader: &Reader<'_>,
    ino: InodeNo,
    contents: Contents<'_>,
    out: &ReplyBuf,
) -> Result<Vec<u8>, FsError> {
    let Contents::Copied(offset) = contents else {
        return Ok(Vec::new());
    };
    let read = reader.fs.read(&reader.cx, ino, offset, count_of(out))?;
    Ok(read.to_vec())
}

/// The number of bytes in the reply to a write or copy, which is its first field.
fn count_of(out: &ReplyBuf) -> usize {
    u32::read_from_prefix(&out.bytes).map_or(0, |(n, _)| n as usize)
}

/// The inode in a reply that begins with an entry.
fn entry_of(call: &Call<'_>, out: &ReplyBuf) -> Option<InodeNo> {
    let (entry, _) = wire::EntryOut::read_from_prefix(&out.bytes).ok()?;
    let ids = call.volume.translate.ids;
    (entry.nodeid != 0).then(|| ids.ino(entry.nodeid))
}
