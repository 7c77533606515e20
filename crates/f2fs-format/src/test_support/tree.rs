//! A directory of the host to fill volumes with, and sets of options of mkfs.f2fs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::LOAD_FEATURES;

/// Sets of features that mkfs.f2fs offers. (Debian's sload.f2fs is built without compression.)
pub const MATRIX: &[&[&str]] = &[
    &[],
    &["-i"],
    &["-O", "extra_attr"],
    &["-O", "extra_attr,inode_checksum"],
    &["-O", "extra_attr,inode_crtime,sb_checksum"],
    &["-O", "lost_found,verity,encrypt"],
    &["-O", "extra_attr,project_quota,quota"],
    &["-s", "2", "-z", "2", "-i"],
    &["-a", "1", "-o", "20"],
    &["-O", "extra_attr,ro"],
    &["-O", LOAD_FEATURES],
    &["-i", "-O", LOAD_FEATURES],
];

/// Bytes that differ from block to block.
pub fn pattern(len: usize, seed: u8) -> Vec<u8> {
    let word = |i: usize| {
        let n = (i as u32 / 4).wrapping_mul(2_654_435_761) ^ u32::from(seed);
        n.to_le_bytes()[i % 4]
    };
    (0..len).map(word).collect()
}

/// Creates everything that sload.f2fs supports: sizes around every limit, long names, holes, symbolic links.
pub fn make_tree(root: &Path) {
    fs::create_dir_all(root.join("sizes")).unwrap();
    for len in [0usize, 1, 3000, 3488, 3489, 4095, 4096, 4097, 100_000] {
        fs::write(root.join(format!("sizes/{len}")), pattern(len, 7)).unwrap();
    }
    // Through direct nodes, and into the first indirect one, which starts at block 2959.
    fs::write(root.join("sizes/direct"), pattern(5 << 20, 1)).unwrap();
    fs::write(root.join("sizes/indirect"), pattern((2970 << 12) + 5, 2)).unwrap();
    fs::create_dir(root.join("many")).unwrap();
    for i in 0..3000 {
        fs::write(root.join(format!("many/entry number {i}")), []).unwrap();
    }
    fs::create_dir(root.join("names")).unwrap();
    for len in [1, 8, 9, 254, 255] {
        fs::write(root.join("names").join("n".repeat(len)), [len as u8]).unwrap();
    }
    fs::create_dir_all(root.join("deep/er/and/deeper")).unwrap();
    symlink("target", root.join("deep/short link")).unwrap();
    symlink("t".repeat(4000), root.join("deep/long link")).unwrap();
    let mut perms = fs::metadata(root.join("sizes/1")).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut perms, 0o4751);
    fs::set_permissions(root.join("sizes/1"), perms).unwrap();
}
