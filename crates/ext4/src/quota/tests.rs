use std::collections::BTreeMap;

use steadfs_base::InodeNo;
use steadfs_vfs::{Cx, FileSystem, SetAttr, SetXattr};

use super::*;
use crate::test_world::{ROOT, World};

/// Usage by kind and owner.
type Usages = [BTreeMap<u32, (u64, u64)>; 3];

/// The usage of all files below the root, which are counted by walking the tree.
fn walked(world: &World) -> Usages {
    let mut usages = Usages::default();
    let mut open = vec![ROOT];
    let mut seen = std::collections::BTreeSet::new();
    while let Some(ino) = open.pop() {
        if !seen.insert(ino) {
            continue;
        }
        let inode = world.fs.by_number(ino, IoTag::default()).unwrap();
        let core = inode.core.read().clone();
        for (usage, owner) in usages.iter_mut().zip(owners_of(&core)) {
            let (bytes, inodes) = usage.entry(owner).or_default();
            *bytes += core.blocks * 512;
            *inodes += 1 + world.fs.value_references(inode.ino(), &core);
        }
        if inode.kind() == steadfs_vfs::FileKind::Directory {
            let entries = world.list(ino, 100);
            let named = |name: &[u8]| name != b"." && name != b"..";
            open.extend(
                entries
                    .into_iter()
                    .filter(|(name, _)| named(name))
                    .map(|(_, ino)| ino),
            );
        }
    }
    for (usage, file) in usages
        .iter_mut()
        .zip(&world.fs.quota.get().expect("opened").files)
    {
        if file.is_none() {
            usage.clear();
        }
    }
    usages
}

/// The usage that the quota files have.
fn counted(world: &World) -> Usages {
    let quota = world.fs.quota.get().expect("opened");
    let mut usages = Usages::default();
    for file in quota.files() {
        let info = file.bound(&world.fs);
        let usage = &mut usages[file.kind.index()];
        let each = |_, entry: Entry| {
            if entry.inodes > 0 || entry.bytes > 0 {
                usage.insert(entry.id, (entry.bytes, entry.inodes));
            }
        };
        tree::walk(&mut FileBlocks::reading(&world.fs, file), &info, each).unwrap();
    }
    usages
}

fn caller(uid: u32, gid: u32) -> Cx {
    Cx {
        uid,
        gid,
        ..Cx::default()
    }
}

/// A random number below `limit`.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) % limit
    }
}

/// One random change; what a change that fails leaves behind is counted, too.
fn change(world: &World, random: &mut Random, dirs: &mut Vec<InodeNo>) {
    let fs = &*world.fs;
    let owner = random.below(5) as u32 * 0x0102_0304;
    let cx = caller(owner, owner / 2);
    let dir = dirs[random.below(dirs.len() as u64) as usize];
    let name = "n".repeat(1 + random.below(12) as usize * 20);
    let found = world.lookup(dir, name.as_bytes()).map(|attr| attr.ino);
    let _ = match (found, random.below(10)) {
        (Err(_), 0..4) => world
            .fs
            .mknod(&cx, dir, name.as_bytes(), 0o100_644, 0)
            .map(|attr| world.forget(attr.ino)),
        (Err(_), 4..6) => world
            .fs
            .mkdir(&cx, dir, name.as_bytes(), 0o755)
            .map(|attr| {
                world.forget(attr.ino);
                dirs.push(attr.ino);
            }),
        (Err(_), 6) => {
            let target = vec![b't'; 20 + random.below(200) as usize];
            let made = world.fs.symlink(&cx, dir, name.as_bytes(), &target);
            made.map(|attr| world.forget(attr.ino))
        }
        (Ok(ino), 0..4) => {
            let at = random.below(300_000);
            let data = vec![7; random.below(40_000) as usize];
            FileSystem::write(fs, &cx, ino, at, &data, false).map(drop)
        }
        (Ok(ino), 4) => {
            let set = SetAttr {
                size: Some(random.below(200_000)),
                ..SetAttr::default()
            };
            world.fs.setattr(&cx, ino, &set).map(drop)
        }
        (Ok(ino), 5 | 6) => {
            let set = SetAttr {
                uid: Some(owner),
                gid: Some(random.below(9) as u32),
                ..SetAttr::default()
            };
            world.fs.setattr(&world.cx, ino, &set).map(drop)
        }
        (Ok(ino), 7) => world
            .fs
            .set_project(&world.cx, ino, random.below(4) as u32 * 1000),
        (Ok(ino), 8) => {
            let value = vec![b'v'; random.below(9000) as usize];
            FileSystem::setxattr(fs, &world.cx, ino, b"user.a", &value, SetXattr::Any)
        }
        (Ok(_), _) => world.fs.unlink(&world.cx, dir, name.as_bytes()),
        (Err(_), _) => Ok(()),
    };
}

fn random_changes(options: &[&str], size: &str, steps: u64) {
    let mut world = World::make(options, size);
    let mut random = Random(steps);
    for round in 0..3 {
        // Numbers of directories in an earlier round may be of something else by now.
        let mut dirs = vec![ROOT];
        for _ in 0..steps {
            change(&world, &mut random, &mut dirs);
        }
        world.fs.sync_volume(&world.cx).unwrap();
        assert_eq!(counted(&world), walked(&world), "round {round}");
        assert!(counted(&world)[0].len() >= 4);
        world = match round {
            1 if world.fs.txns.is_journaled() => {
                let cut = world.cut_power_now();
                world.recover(cut)
            }
            _ => world.reopen(),
        };
        world.fs.sync_volume(&world.cx).unwrap();
        assert_eq!(counted(&world), walked(&world), "after round {round}");
    }
    world.close();
}

#[test]
fn counts_agree_with_the_files_after_random_changes() {
    let volumes: [&[&str]; 5] = [
        &["-t", "ext4", "-O", "quota,project,fast_commit", "-I", "256"],
        &["-t", "ext4", "-b", "1024", "-O", "quota"],
        &["-t", "ext4", "-b", "65536", "-O", "quota,orphan_file"],
        &[
            "-t",
            "ext4",
            "-O",
            "quota,project,^has_journal,^extent,^64bit",
            "-I",
            "256",
        ],
        &[
            "-t",
            "ext4",
            "-O",
            "quota,project,ea_inode,inline_data,bigalloc",
            "-C",
            "16384",
        ],
    ];
    for options in volumes {
        random_changes(options, "64M", 600);
    }
}
