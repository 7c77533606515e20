use steadfs_block::MemDevice;
use steadfs_rt::{sim, spawn};
use steadfs_vfs::FallocMode;

use super::*;
use crate::disk::test_images::Image;
use crate::mount::CacheSizes;
use crate::options::MountOptions;
use crate::test_world::{ROOT, World};

fn open(bytes: &[u8], list: &str) -> Arc<Ext4> {
    let device = Arc::new(MemDevice::from_bytes(bytes));
    let options = MountOptions::parse(list).unwrap();
    let sizes = CacheSizes::of(8 << 20);
    Ext4::open(device, options, sizes).unwrap().0
}

/// Transactions that four tasks need for 20 files each, every one durable before the next.
fn transactions(bytes: &[u8], list: &str, tasks: u64) -> u64 {
    let (bytes, list) = (bytes.to_vec(), list.to_owned());
    let run = move || {
        let fs = open(&bytes, &list);
        let tasks: Vec<_> = (0..tasks)
            .map(|caller| {
                let fs = Arc::clone(&fs);
                spawn("maker", move || {
                    let cx = Cx {
                        caller,
                        ..Cx::default()
                    };
                    for n in 0..20 {
                        let name = format!("{caller}-{n}");
                        let name = name.as_bytes();
                        FileSystem::mknod(&*fs, &cx, ROOT, name, 0o100_644, 0).unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.join();
        }
        let stats = fs.txns.journal().unwrap().stats();
        fs.close().unwrap();
        stats.transactions
    };
    sim::run(sim::Config::new(7), run).value
}

#[test]
fn synchronous_changes_of_several_callers_share_commits() {
    let bytes = Image::make(&["-t", "ext4"], "16M").bytes();
    let together = transactions(&bytes, "dirsync,min_batch_time=2000", 4);
    let apart = transactions(&bytes, "dirsync,max_batch_time=0", 4);
    assert!(together * 2 <= apart, "{together} and {apart} transactions");
    // Who is alone waits for nobody: not longer, and not less often.
    let alone = transactions(&bytes, "dirsync,min_batch_time=2000", 1);
    assert!((20..=22).contains(&alone), "{alone}");
}

#[test]
fn everything_is_durable_at_once_on_a_synchronous_mount() {
    let image = Image::make(&["-t", "ext4"], "16M");
    let world = World::open_with(image, MountOptions::parse("sync").unwrap());
    let file = FileSystem::mknod(&*world.fs, &world.cx, ROOT, b"f", 0o100_644, 0).unwrap();
    let (fs, cx) = (Arc::clone(&world.fs), world.cx.clone());
    let look = |device: Arc<MemDevice>| {
        let fs = open(&device.to_bytes(), "");
        let attr = FileSystem::lookup(&*fs, &Cx::default(), ROOT, b"f").unwrap();
        let user = FileSystem::getxattr(&*fs, &Cx::default(), attr.ino, b"user.a").ok();
        fs.close().unwrap();
        (attr, user)
    };
    FileSystem::write(&*fs, &cx, file.ino, 0, &[1; 5000], false).unwrap();
    assert_eq!(look(world.cut_power_now()).0.size, 5000);
    let perm = SetAttr {
        perm: Some(0o600),
        ..SetAttr::default()
    };
    FileSystem::setattr(&*fs, &cx, file.ino, &perm).unwrap();
    assert_eq!(look(world.cut_power_now()).0.perm, 0o600);
    let any = SetXattr::Any;
    FileSystem::setxattr(&*fs, &cx, file.ino, b"user.a", b"value", any).unwrap();
    assert_eq!(look(world.cut_power_now()).1, Some(b"value".to_vec()));
    FileSystem::removexattr(&*fs, &cx, file.ino, b"user.a").unwrap();
    assert_eq!(look(world.cut_power_now()).1, None);
    fs.fallocate(
        &cx,
        file.ino,
        FallocMode::Allocate { keep_size: false },
        0,
        20_000,
    )
    .unwrap();
    assert_eq!(look(world.cut_power_now()).0.size, 20_000);
    FileSystem::set_flags(&*fs, &cx, file.ino, InodeFlags::NODUMP).unwrap();
    let flags = look(world.cut_power_now()).0.flags;
    assert!(flags.contains(InodeFlags::NODUMP));
    fs.forget(file.ino, 1);
    world.close();
}
