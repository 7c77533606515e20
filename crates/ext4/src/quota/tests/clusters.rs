//! Limits on volumes with clusters (`bigalloc`).

use super::*;

/// Clusters are what counts: a limit takes whole ones, and blocks of one that the file has need nothing.
#[test]
fn limits_count_clusters() {
    const CLUSTER: u64 = 64 << 10;
    for options in ["usrquota", "usrquota,nodelalloc"] {
        let world = limited_as(&["quota,project,bigalloc", "-b", "4096"], options);
        let limit = format!("1000 0 {} 0 0", (3 * CLUSTER) >> 10);
        world.fs.set_quota_control("quota/user", &limit).unwrap();
        let user = caller(1000, 1000);
        let make = |name: &[u8]| world.fs.mknod(&user, ROOT, name, 0o100_644, 0).unwrap().ino;
        let used = || {
            world.fs.sync_volume(&world.cx).unwrap();
            counted(&world)[0][&1000].0
        };

        let full = make(b"full");
        assert_eq!(fill(&world, &user, full), 3 * CLUSTER, "{options}");
        assert_eq!(used(), 3 * CLUSTER);
        world.fs.unlink(&user, ROOT, b"full").unwrap();
        world.fs.forget(full, 1);

        // A write from the middle of a cluster, as long as two, is in three of them.
        let file = make(b"file");
        let write = |at: u64, len: u64| {
            let data = vec![1; len as usize];
            FileSystem::write(&*world.fs, &user, file, at, &data, false)
        };
        assert_eq!(write(2 * CLUSTER + 4096, 8192).unwrap(), 8192, "{options}");
        assert_eq!(used(), CLUSTER);
        let mut at = CLUSTER / 2;
        while at < 2 * CLUSTER {
            at += write(at, 2 * CLUSTER - at).unwrap() as u64;
        }
        assert_eq!(used(), 3 * CLUSTER);
        assert_eq!(write(2 * CLUSTER + 12_288, 4096).unwrap(), 4096);
        assert!(is_refused(write(3 * CLUSTER, 1)));
        assert_eq!(used(), 3 * CLUSTER);
        let allocate = steadfs_vfs::FallocMode::Allocate { keep_size: true };
        let inode = world.fs.by_number(file, IoTag::default()).unwrap();
        let allocate = |at, len| world.fs.fallocate_file(&user, &inode, allocate, at, len);
        allocate(0, CLUSTER).unwrap();
        allocate(2 * CLUSTER + 12_288, CLUSTER - 12_288).unwrap();
        assert!(is_refused(allocate(3 * CLUSTER - 4096, 8192)));
        assert_eq!(used(), 3 * CLUSTER);
        world.close();
    }
}
