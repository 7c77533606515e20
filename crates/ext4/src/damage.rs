//! What happens when the volume turns out to be damaged: noted in the superblock, and `errors=` obeyed.

use std::panic::Location;
use std::sync::atomic::Ordering;

use steadfs_base::{DevBlock, IoTag};
use steadfs_rt::wall_clock;
use steadfs_vfs::{FsError, Result};

use crate::disk::Ino;
use crate::disk::superblock::{self, ErrorRecord, STATE_ERROR};
use crate::fs::Ext4;
use crate::options::OnError;

/// `EXT4_ERR_EFSBADCRC` and `EXT4_ERR_EFSCORRUPTED`: the codes that the kernel records for wrong
/// checksums and for other damage.
const BAD_CHECKSUM: u8 = 4;
const CORRUPTED: u8 = 5;

impl Ext4 {
    /// Passes a call's result on; damage that it met is noted first. The caller holds no lock.
    #[track_caller]
    #[inline]
    pub(crate) fn judge<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(FsError::Corrupt(what)) = &result {
            self.damaged(what, Location::caller());
        }
        result
    }

    fn damaged(&self, what: &str, found: &Location<'_>) {
        tracing::error!(what, "the volume is damaged");
        if self.check_writable().is_err() {
            return;
        }
        let asked = self.options.read().errors;
        let read_only = match asked {
            Some(asked) => asked == OnError::RemountReadOnly,
            // A program cannot stop the machine: the strongest it can do is to stop writing.
            None => self.sb.lock().on_error() != superblock::OnError::Continue,
        };
        if let Err(error) = self.record_damage(what, found, read_only) {
            tracing::error!(%error, "noting the damage failed");
        }
        if read_only {
            self.read_only.store(true, Ordering::Release);
            if let Some(journal) = self.txns.journal() {
                journal.shutdown(what);
            }
        }
    }

    /// Writes the error record; made durable if nothing will be committed afterwards.
    fn record_damage(&self, what: &str, found: &Location<'_>, last: bool) -> Result<()> {
        let file = found.file().rsplit('/').next().unwrap_or_default();
        let wrong_sum = what.contains("checksum");
        let record = ErrorRecord {
            time: wall_clock(),
            inode: number_after(what, "inode").and_then(|n| u32::try_from(n).ok().map(Ino)),
            block: number_after(what, "block").map(DevBlock),
            function: &format!("steadfs {file}"),
            line: found.line(),
            code: if wrong_sum { BAD_CHECKSUM } else { CORRUPTED },
        };
        let mut handle = self.txns.begin(1)?;
        self.update_super(&mut handle, |sb| {
            sb.record_error(&record);
            sb.set_state(sb.state() | STATE_ERROR);
        })?;
        drop(handle);
        if last {
            self.commit_running(IoTag::default())?;
            if let Some(meta) = self.txns.direct() {
                meta.write_dirty(IoTag::default())
                    .map_err(crate::fs::io_error)?;
            }
        }
        Ok(())
    }
}

/// The number behind a word: messages about damage say where it is as "inode 12" and "block 345".
fn number_after(what: &str, word: &str) -> Option<u64> {
    let mut words = what.split([' ', ':', ',', '(', ')']);
    words.find(|w| *w == word)?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use steadfs_vfs::FileSystem;

    use super::*;
    use crate::disk::superblock::SUPERBLOCK_OFFSET;
    use crate::disk::{CorruptKind, DiskError, Structure};
    use crate::options::MountOptions;
    use crate::test_world::{ROOT, World};

    #[test]
    fn messages_say_where() {
        let error = DiskError::from(CorruptKind::Magic {
            what: Structure::ExtentNode,
            found: 1,
        });
        let said = FsError::from(error.in_inode(Ino(12)).in_block(DevBlock(345))).to_string();
        assert_eq!(number_after(&said, "inode"), Some(12));
        assert_eq!(number_after(&said, "block"), Some(345));
        assert_eq!(number_after("group 3: bitmap", "inode"), None);
    }

    #[test]
    fn damage_is_noted_with_its_place() {
        let options = ["-t", "ext4", "-e", "continue"];
        let world = World::make(&options, "16M").reopen();
        let dir = world.mkdir(ROOT, b"dir").unwrap();
        let image = world.close();
        // A byte of the directory's only block.
        let bytes = image.bytes();
        let name = bytes.windows(3).position(|w| w == b"dir").unwrap();
        let world = World::open(image);
        let inode = world.fs.by_number(dir.ino, IoTag::default()).unwrap();
        let core = inode.core.read().clone();
        let ino = inode.ino();
        let at = world
            .fs
            .map_block(&core, ino, steadfs_base::FileBlock(0), IoTag::default());
        let block = at.unwrap().unwrap();
        drop(inode);
        assert!(name > 0);
        let image = world.close();
        let mut bytes = image.bytes();
        bytes[(block.0 << world_block_bits()) as usize + 40] ^= 1;
        std::fs::write(image.path(), &bytes).unwrap();
        let world = World::open_with(image, MountOptions::default());
        for _ in 0..2 {
            let found = FileSystem::lookup(&*world.fs, &world.cx, dir.ino, b"x");
            assert!(matches!(found, Err(FsError::Corrupt(_))), "{found:?}");
        }
        world.fs.close().unwrap();
        let mut raw = vec![0; 1024];
        world.device().read(SUPERBLOCK_OFFSET, &mut raw);
        let sb = superblock::Superblock::parse(&raw).unwrap();
        assert_ne!(sb.state() & STATE_ERROR, 0);
        let raw = sb.raw();
        assert_eq!(raw.error_count.get(), 2);
        for (number, place) in [
            (raw.first_error_ino.get(), raw.first_error_block.get()),
            (raw.last_error_ino.get(), raw.last_error_block.get()),
        ] {
            assert_eq!((u64::from(number), place), (dir.ino.0, block.0));
        }
        assert_eq!(raw.first_error_errcode, BAD_CHECKSUM);
        assert!(raw.first_error_time.get() > 0);
        assert!(raw.first_error_line.get() > 0);
        assert!(raw.first_error_func.starts_with(b"steadfs ops.rs\0"));
    }

    fn world_block_bits() -> u32 {
        10
    }

    #[test]
    fn an_aborted_journal_is_noted_by_the_next_mount() {
        let world = World::make(&["-t", "ext4", "-O", "orphan_file"], "16M");
        world.file(ROOT, b"file").unwrap();
        world.fs.sync_volume(&world.cx).unwrap();
        world.fs.txns().journal().unwrap().abort("test");
        assert!(world.fs.close().is_err());
        let device = world.cut_power_now();
        let world = world.recover(device);
        assert_ne!(world.fs.sb.lock().state() & STATE_ERROR, 0);
        let journal = world.fs.txns().journal().unwrap();
        assert_eq!(journal.recorded_errno(), None);
        assert!(world.lookup(ROOT, b"file").is_ok());
        world.fs.close().unwrap();
        let mut raw = vec![0; 1024];
        world.device().read(SUPERBLOCK_OFFSET, &mut raw);
        let sb = superblock::Superblock::parse(&raw).unwrap();
        assert_ne!(sb.state() & STATE_ERROR, 0, "e2fsck is to look");
    }
}
