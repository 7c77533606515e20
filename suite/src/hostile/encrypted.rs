//! Encrypted directories of volumes that are corrupted: their key is known, so that what is decrypted is wrong, too.

use steadfs_lab::encrypted::{add_key, make_dir};
use steadfs_vfs::{Cx, FileSystem};

/// Fills an encrypted directory below the root; `folds`: a case-insensitive one, too.
///
/// # Panics
/// If the volume cannot have them.
pub fn fill(fs: &dyn FileSystem, folds: bool) {
    add_key(fs).expect("a good volume takes a key");
    let all = [(&b"secret"[..], false), (b"folded secret", true)];
    for (dir, folds) in all.into_iter().take(1 + usize::from(folds)) {
        fill_dir(fs, dir, folds);
    }
}

fn fill_dir(fs: &dyn FileSystem, name: &[u8], folds: bool) {
    let cx = Cx::default();
    let dir = make_dir(fs, &cx, name, folds).expect("a directory can be encrypted");
    for n in 0..70 {
        let name = format!("another name of some length, {n}");
        let file = fs.mknod(&cx, dir, name.as_bytes(), 0o100_644, 0);
        fs.forget(file.expect("a file can be made").ino, 1);
    }
    for (name, len) in [(&b"small"[..], 20), (b"large", 30_000), (&[b'n'; 255], 1)] {
        let file = fs.mknod(&cx, dir, name, 0o100_644, 0);
        let file = file.expect("a file can be made").ino;
        fs.write(&cx, file, 0, &vec![b'e'; len], false)
            .expect("there is space");
    }
    fs.symlink(&cx, dir, b"link", b"where it leads")
        .expect("a link can be made");
    fs.mkdir(&cx, dir, b"below", 0o755)
        .expect("a directory can be made");
}

/// Gives the key to a volume that is about to be used. One that has no encrypted files, or is too corrupt, goes without.
pub fn open_up(fs: &dyn FileSystem) {
    let _ = add_key(fs);
}
