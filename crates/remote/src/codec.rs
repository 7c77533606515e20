//! Values in frames.

use std::borrow::Cow;
use std::sync::Arc;

use steadfs_base::{Corruption, CorruptionKind, DevBlock, FileBlock, InodeNo, Timestamp};
use steadfs_vfs::verity::FileDigest;
use steadfs_vfs::{
    Attr, Cx, FileKind, FsError, FsxAttr, Given, GivenPart, InodeFlags, NewFile, NotGiven,
    ReadData, Seek, Segment, SetAttr, SetTime, StatFs,
};

/// A frame that is not what its receiver expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid message")]
pub struct Malformed;

type Result<T> = std::result::Result<T, Malformed>;

/// Encodes values.
#[derive(Default)]
pub struct Encoder(pub Vec<u8>);

impl Encoder {
    pub fn byte(&mut self, value: u8) {
        self.0.push(value);
    }

    pub fn flag(&mut self, value: bool) {
        self.byte(value.into());
    }

    pub fn word(&mut self, value: u32) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn long(&mut self, value: u64) {
        self.0.extend(value.to_le_bytes());
    }

    pub fn bytes(&mut self, value: &[u8]) {
        // A frame is shorter than 4 GiB; a longer one is refused when it is sent.
        self.word(u32::try_from(value.len()).unwrap_or(u32::MAX));
        self.0.extend(value);
    }

    pub fn option<T>(&mut self, value: Option<T>, encode: impl FnOnce(&mut Self, T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            encode(self, value);
        }
    }

    pub fn list<T>(&mut self, values: &[T], encode: impl Fn(&mut Self, &T)) {
        self.word(u32::try_from(values.len()).unwrap_or(u32::MAX));
        for value in values {
            encode(self, value);
        }
    }

    pub fn ino(&mut self, ino: InodeNo) {
        self.long(ino.0);
    }

    /// An inode, and a name in it or a line about it.
    pub fn named(&mut self, ino: InodeNo, name: &[u8]) {
        self.ino(ino);
        self.bytes(name);
    }

    pub fn digest(&mut self, digest: &FileDigest) {
        self.word(digest.algorithm.into());
        self.bytes(&digest.bytes);
    }

    pub fn time(&mut self, time: Timestamp) {
        self.long(time.secs.cast_unsigned());
        self.word(time.nanos);
    }

    pub fn kind(&mut self, kind: FileKind) {
        self.byte(kind.entry_type());
    }

    pub fn attr(&mut self, attr: &Attr) {
        self.ino(attr.ino);
        self.kind(attr.kind);
        for word in [
            attr.generation,
            attr.perm,
            attr.nlink,
            attr.uid,
            attr.gid,
            attr.rdev,
            attr.block_size,
            attr.flags.0,
        ] {
            self.word(word);
        }
        self.long(attr.size);
        self.long(attr.blocks);
        for time in [attr.atime, attr.mtime, attr.ctime] {
            self.time(time);
        }
        self.option(attr.btime, Self::time);
    }

    pub fn flags(&mut self, flags: FsxAttr) {
        for word in [flags.flags.0, flags.project, flags.extents] {
            self.word(word);
        }
    }

    pub fn usage(&mut self, usage: &StatFs) {
        self.word(usage.block_size);
        for long in [usage.blocks, usage.blocks_free, usage.blocks_available] {
            self.long(long);
        }
        self.long(usage.files);
        self.long(usage.files_free);
        self.word(usage.name_max);
        self.long(usage.fsid);
    }

    fn set_time(&mut self, time: SetTime) {
        let at = match time {
            SetTime::Now => None,
            SetTime::At(time) => Some(time),
        };
        self.option(at, Self::time);
    }

    pub fn set_attr(&mut self, set: &SetAttr) {
        for word in [set.perm, set.uid, set.gid] {
            self.option(word, Self::word);
        }
        self.option(set.size, Self::long);
        for time in [set.atime, set.mtime] {
            self.option(time, Self::set_time);
        }
        self.option(set.ctime, Self::time);
        self.flag(set.kill_priv);
    }

    /// What of the caller has an effect on what it makes.
    pub fn creation(&mut self, cx: &Cx) {
        self.word(cx.umask);
        self.flag(cx.no_default_acl);
    }

    pub fn given(&mut self, given: &Given) {
        self.set_attr(&given.owner);
        self.list(&given.xattrs, |to, (name, value)| {
            to.bytes(name);
            to.bytes(value);
        });
        self.option(given.times.as_ref(), Self::set_attr);
    }

    pub fn new_file(&mut self, new: &NewFile<'_>) {
        self.kind(new.kind);
        self.word(new.rdev);
        self.bytes(new.target);
        self.list(new.runs, |to, (start, bytes)| {
            to.long(*start);
            to.bytes(bytes);
        });
        self.long(new.size);
        self.given(new.given);
    }

    pub fn not_given(&mut self, (part, error): &NotGiven) {
        let (byte, place) = match part {
            GivenPart::Owner => (0, 0),
            GivenPart::Times => (1, 0),
            GivenPart::Xattr(place) => (2, *place),
        };
        self.byte(byte);
        self.word(place);
        self.error(error);
    }

    /// The result of a read.
    pub fn data(&mut self, data: &ReadData) {
        self.word(u32::try_from(data.segments().len()).unwrap_or(u32::MAX));
        for segment in data.segments() {
            match segment {
                Segment::Bytes(owner, range) => {
                    self.flag(true);
                    self.bytes(&(**owner).as_ref()[range.clone()]);
                }
                Segment::Zeros(len) => {
                    self.flag(false);
                    self.long(*len as u64);
                }
            }
        }
    }

    fn corruption(&mut self, corruption: &Corruption) {
        self.byte(match corruption.kind {
            CorruptionKind::Structure => 0,
            CorruptionKind::Magic => 1,
            CorruptionKind::Checksum => 2,
        });
        self.option(corruption.code.map(u32::from), Self::word);
        self.option(corruption.group, Self::word);
        self.option(corruption.inode, Self::ino);
        self.option(corruption.node, Self::word);
        self.option(corruption.file_block.map(|block| block.0), Self::long);
        self.option(corruption.block.map(|block| block.0), Self::long);
        self.bytes(corruption.what.as_bytes());
        self.option(corruption.hint.as_ref(), |to, hint| {
            to.bytes(hint.as_bytes())
        });
    }

    /// An error: the ones that callers distinguish as such, all others by number and text.
    pub fn error(&mut self, error: &FsError) {
        if let Some(place) = PLAIN.iter().position(|plain| plain == error) {
            self.byte(u8::try_from(place).unwrap_or(OTHER));
            return;
        }
        match error {
            FsError::Corrupt(corruption) => {
                self.byte(CORRUPT);
                self.corruption(corruption);
            }
            FsError::TurnedReadOnly(why) => {
                self.byte(TURNED_READ_ONLY);
                self.bytes(why.as_bytes());
            }
            FsError::Stopped(why) => {
                self.byte(STOPPED);
                self.bytes(why.as_bytes());
            }
            other => {
                self.byte(OTHER);
                self.word(other.errno().cast_unsigned());
                self.bytes(other.to_string().as_bytes());
            }
        }
    }
}

/// Errors without a text, by their bytes.
const PLAIN: [FsError; 25] = [
    FsError::NotFound,
    FsError::Exists,
    FsError::NotDir,
    FsError::IsDir,
    FsError::NotEmpty,
    FsError::NoSpace,
    FsError::Quota,
    FsError::ReadOnly,
    FsError::NotPermitted,
    FsError::Access,
    FsError::NameTooLong,
    FsError::TooManyLinks,
    FsError::FileTooBig,
    FsError::NoData,
    FsError::NoSuchOffset,
    FsError::Range,
    FsError::TooBig,
    FsError::CrossDevice,
    FsError::Busy,
    FsError::Stale,
    FsError::NoKey,
    FsError::Interrupted,
    FsError::NoMemory,
    FsError::NotOpenForWriting,
    FsError::Loop,
];
const CORRUPT: u8 = 0xF0;
const TURNED_READ_ONLY: u8 = 0xF1;
const STOPPED: u8 = 0xF2;
const OTHER: u8 = 0xF3;

/// Decodes values.
pub struct Decoder<'a> {
    frame: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    pub fn new(frame: &'a [u8]) -> Self {
        Self { frame, at: 0 }
    }

    /// Fails if the frame has more than what was decoded.
    pub fn end(&self) -> Result<()> {
        (self.at == self.frame.len()).then_some(()).ok_or(Malformed)
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).ok_or(Malformed)?;
        let bytes = self.frame.get(self.at..end).ok_or(Malformed)?;
        self.at = end;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| Malformed)
    }

    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub fn flag(&mut self) -> Result<bool> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    pub fn word(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn long(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn len(&mut self) -> Result<usize> {
        usize::try_from(self.word()?).map_err(|_| Malformed)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let len = self.len()?;
        self.take(len)
    }

    pub fn text(&mut self) -> Result<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    pub fn option<T>(&mut self, decode: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        match self.flag()? {
            true => decode(self).map(Some),
            false => Ok(None),
        }
    }

    /// A list. Its length is not used to allocate memory: each value takes bytes of the frame.
    pub fn list<T>(&mut self, decode: impl Fn(&mut Self) -> Result<T>) -> Result<Vec<T>> {
        let len = self.len()?;
        (0..len).map(|_| decode(self)).collect()
    }

    pub fn digest(&mut self) -> Result<FileDigest> {
        Ok(FileDigest {
            algorithm: u16::try_from(self.word()?).map_err(|_| Malformed)?,
            bytes: self.bytes()?.to_vec(),
        })
    }

    pub fn ino(&mut self) -> Result<InodeNo> {
        self.long().map(InodeNo)
    }

    pub fn time(&mut self) -> Result<Timestamp> {
        let secs = self.long()?.cast_signed();
        let nanos = self.word()?;
        let time = Timestamp { secs, nanos };
        (nanos < 1_000_000_000).then_some(time).ok_or(Malformed)
    }

    pub fn kind(&mut self) -> Result<FileKind> {
        FileKind::from_entry_type(self.byte()?).ok_or(Malformed)
    }

    pub fn attr(&mut self) -> Result<Attr> {
        let (ino, kind) = (self.ino()?, self.kind()?);
        let mut words = [0; 8];
        for word in &mut words {
            *word = self.word()?;
        }
        let [generation, perm, nlink, uid, gid, rdev, block_size, flags] = words;
        Ok(Attr {
            ino,
            generation,
            kind,
            perm: perm & 0o7777,
            nlink,
            uid,
            gid,
            rdev,
            size: self.long()?,
            blocks: self.long()?,
            block_size,
            atime: self.time()?,
            mtime: self.time()?,
            ctime: self.time()?,
            btime: self.option(Self::time)?,
            flags: InodeFlags(flags),
        })
    }

    pub fn seek(&mut self) -> Result<Seek> {
        Ok(match self.flag()? {
            false => Seek::Data,
            true => Seek::Hole,
        })
    }

    pub fn flags(&mut self) -> Result<FsxAttr> {
        Ok(FsxAttr {
            flags: InodeFlags(self.word()?),
            project: self.word()?,
            extents: self.word()?,
        })
    }

    pub fn usage(&mut self) -> Result<StatFs> {
        Ok(StatFs {
            block_size: self.word()?,
            blocks: self.long()?,
            blocks_free: self.long()?,
            blocks_available: self.long()?,
            files: self.long()?,
            files_free: self.long()?,
            name_max: self.word()?,
            fsid: self.long()?,
        })
    }

    fn set_time(&mut self) -> Result<SetTime> {
        let at = self.option(Self::time)?;
        Ok(at.map_or(SetTime::Now, SetTime::At))
    }

    pub fn set_attr(&mut self) -> Result<SetAttr> {
        Ok(SetAttr {
            perm: self.option(Self::word)?,
            uid: self.option(Self::word)?,
            gid: self.option(Self::word)?,
            size: self.option(Self::long)?,
            atime: self.option(Self::set_time)?,
            mtime: self.option(Self::set_time)?,
            ctime: self.option(Self::time)?,
            kill_priv: self.flag()?,
        })
    }

    pub fn creation(&mut self, cx: &Cx) -> Result<Cx> {
        Ok(Cx {
            umask: self.word()?,
            no_default_acl: self.flag()?,
            ..cx.clone()
        })
    }

    pub fn given(&mut self) -> Result<Given> {
        Ok(Given {
            owner: self.set_attr()?,
            xattrs: self.list(|from| Ok((from.bytes()?.to_vec(), from.bytes()?.to_vec())))?,
            times: self.option(Self::set_attr)?,
        })
    }

    /// Calls `make` with a new file.
    pub fn new_file<T>(&mut self, make: impl FnOnce(&NewFile<'_>) -> T) -> Result<T> {
        let (kind, rdev, target) = (self.kind()?, self.word()?, self.bytes()?);
        let runs = self.list(|from| Ok((from.long()?, Cow::Borrowed(from.bytes()?))))?;
        let (size, given) = (self.long()?, self.given()?);
        Ok(make(&NewFile {
            kind,
            rdev,
            target,
            runs: &runs,
            size,
            given: &given,
        }))
    }

    pub fn not_given(&mut self) -> Result<NotGiven> {
        let part = match (self.byte()?, self.word()?) {
            (0, 0) => GivenPart::Owner,
            (1, 0) => GivenPart::Times,
            (2, place) => GivenPart::Xattr(place),
            _ => return Err(Malformed),
        };
        Ok((part, self.error()?))
    }

    /// The result of a read of `wanted` bytes. Its segments are ranges of `frame`, the frame that is being decoded.
    pub fn data(&mut self, frame: &Arc<Vec<u8>>, wanted: usize) -> Result<ReadData> {
        let mut data = ReadData::new();
        for _ in 0..self.len()? {
            if self.flag()? {
                let len = self.bytes()?.len();
                let owner = Arc::clone(frame) as Arc<dyn AsRef<[u8]> + Send + Sync>;
                data.push(owner, self.at - len..self.at);
            } else {
                let len = usize::try_from(self.long()?).map_err(|_| Malformed)?;
                if len > wanted {
                    return Err(Malformed);
                }
                data.push_zeros(len);
            }
            if data.len() > wanted {
                return Err(Malformed);
            }
        }
        Ok(data)
    }

    fn corruption(&mut self) -> Result<Corruption> {
        let kind = match self.byte()? {
            0 => CorruptionKind::Structure,
            1 => CorruptionKind::Magic,
            2 => CorruptionKind::Checksum,
            _ => return Err(Malformed),
        };
        let code = self.option(Self::word)?;
        let group = self.option(Self::word)?;
        let inode = self.option(Self::ino)?;
        let node = self.option(Self::word)?;
        let file_block = self.option(Self::long)?;
        let block = self.option(Self::long)?;
        let what = Cow::Owned(self.text()?);
        let hint = self.option(Self::text)?;
        Ok(Corruption {
            kind,
            code: code.map(u16::try_from).transpose().map_err(|_| Malformed)?,
            group,
            inode,
            node,
            file_block: file_block.map(FileBlock),
            block: block.map(DevBlock),
            what,
            hint,
        })
    }

    pub fn error(&mut self) -> Result<FsError> {
        Ok(match self.byte()? {
            CORRUPT => FsError::from(self.corruption()?),
            TURNED_READ_ONLY => FsError::TurnedReadOnly(self.text()?),
            STOPPED => FsError::Stopped(self.text()?),
            OTHER => {
                let errno = self.word()?.cast_signed();
                let text = self.text()?;
                FsError::Elsewhere { errno, text }
            }
            plain => PLAIN.get(usize::from(plain)).cloned().ok_or(Malformed)?,
        })
    }
}
