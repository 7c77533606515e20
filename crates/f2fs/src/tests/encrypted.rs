//! Encrypted files after a power cut. Roll-forward has no keys.

use std::sync::Arc;

use steadfs_base::InodeNo;
use steadfs_block::MemDevice;
use steadfs_vfs::{FileSystem, InodeFlags};

use crate::format::{FormatOptions, image};
use crate::test_world::{ROOT, World, fsck};

/// Adds the key; returns its name.
fn add_key(world: &World) -> String {
    let command = format!("add v2 {}", "5c".repeat(64));
    FileSystem::write_control(&*world.fs, "keys", command.as_bytes()).unwrap();
    let keys = FileSystem::read_control(&*world.fs, "keys").unwrap();
    let keys = String::from_utf8(keys).unwrap();
    keys.split_whitespace().last().unwrap().to_owned()
}

/// A volume with an encrypted directory.
fn with_vault(folds: bool) -> (World, InodeNo) {
    let mut format = FormatOptions::default();
    format.set_features("extra_attr,encrypt").unwrap();
    if folds {
        format.set_encoding("utf8").unwrap();
    }
    let world = World::of(image(64 << 20, &format).unwrap(), "");
    let dir = world.mkdir(ROOT, b"vault").unwrap().ino;
    if folds {
        let flags = InodeFlags::CASEFOLD;
        world.fs.set_flags(&world.cx, dir, flags).unwrap();
    }
    let policy = format!("policy {} {} 1 4 3 0", dir.0, add_key(&world));
    FileSystem::write_control(&*world.fs, "keys", policy.as_bytes()).unwrap();
    world.fs.sync_all(&world.cx).unwrap();
    (world, dir)
}

#[test]
fn roll_forward_puts_encrypted_names_where_lookups_find_them() {
    for folds in [false, true] {
        let (world, dir) = with_vault(folds);
        // The last has no room in the inode for its hash.
        let names = ["Short".to_owned(), "M".repeat(200), "L".repeat(253)];
        for (n, name) in names.iter().enumerate() {
            let file = world.file(dir, name.as_bytes()).unwrap().ino;
            let content = vec![n as u8 + 1; 5000];
            world.fs.write(&world.cx, file, 0, &content, false).unwrap();
            let written = world.fs.checkpoints.written();
            world.fs.fsync(&world.cx, file, false).unwrap();
            let by_checkpoint = world.fs.checkpoints.written() > written;
            assert_eq!(by_checkpoint, folds && n == 2, "{n}");
        }
        let device = Arc::new(MemDevice::from_bytes(&world.bytes()));
        let crashed = World::of(Arc::clone(&device), "");
        add_key(&crashed);
        for (n, name) in names.iter().enumerate() {
            let wanted = match folds {
                true => name.to_lowercase(),
                false => name.clone(),
            };
            let file = crashed.lookup(dir, wanted.as_bytes()).unwrap().ino;
            let content = crashed.fs.read(&crashed.cx, file, 0, 9000).unwrap();
            assert_eq!(content.to_vec(), vec![n as u8 + 1; 5000]);
        }
        fsck(&crashed.close());
    }
}
