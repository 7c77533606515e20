//! Attributes of files that steadfs only reads.

use super::*;

/// What read-only calls return for every file below `root`: kind, size, blocks, link target, whether it can be opened.
pub(super) fn looked_at(root: &Path) -> Vec<String> {
    let mut output = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let mut paths: Vec<_> = fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .collect();
        paths.sort();
        for path in paths {
            let meta = fs::symlink_metadata(&path).unwrap();
            let opened = match meta.file_type().is_file() {
                true => File::open(&path)
                    .map(drop)
                    .map_err(|error| error.raw_os_error()),
                false => Ok(()),
            };
            let target = fs::read_link(&path).ok();
            let name = path.strip_prefix(root).unwrap().display().to_string();
            output.push(format!(
                "{name} {:o} size {} blocks {} -> {target:?} {opened:?}",
                meta.mode(),
                meta.size(),
                meta.blocks()
            ));
            if meta.is_dir() {
                folders.push(path);
            }
        }
    }
    let usage = rustix::fs::statvfs(root).unwrap();
    let (blocks, files) = (usage.f_blocks, usage.f_files);
    // The kernel reserves another 2 % for its block maps (`s_resv_clusters`), so `f_bavail` differs.
    let free = (usage.f_bfree, usage.f_ffree);
    output.push(format!("{blocks} blocks, {files} files, free {free:?}"));
    output
}

/// Compares what we and the kernel see of an image; nothing writes to it meanwhile.
#[track_caller]
pub(super) fn looks_the_same(scratch: &Scratch, image: &Image, what: &str) {
    let kernel = {
        let mount = KernelMount::new(scratch, image.path(), "ro");
        looked_at(mount.root())
    };
    let mount = SteadMount::new(scratch, image.path(), "ro");
    compare(&kernel, &looked_at(mount.root()), what);
    mount.unmount();
}

#[test]
fn clusters_and_inline_content_count_as_in_the_kernel() {
    let scratch = Scratch::new();
    for (n, options) in [
        &["-O", "bigalloc", "-C", "16384"][..],
        &["-O", "bigalloc", "-b", "1024", "-C", "65536"],
        &["-O", "bigalloc,^metadata_csum", "-b", "4096", "-C", "65536"],
        &["-O", "inline_data", "-I", "256"],
        &["-O", "inline_data", "-I", "1024", "-b", "4096"],
    ]
    .iter()
    .enumerate()
    {
        let options = [&["-t", "ext4"], *options].concat();
        let image = Image::mke2fs(&scratch, &format!("{n}.img"), 300 * MIB, &options);
        let mount = KernelMount::new(&scratch, image.path(), "");
        fs::create_dir(mount.join("dir")).unwrap();
        for size in [
            0, 1, 59, 60, 61, 150, 511, 512, 513, 800, 5000, 100_000, 3_000_000,
        ] {
            fs::write(mount.join(&format!("dir/{size}")), vec![7; size]).unwrap();
            let link = mount.join(&format!("dir/link{size}"));
            if (1..4000).contains(&size) {
                symlink("t".repeat(size), link).unwrap();
            }
        }
        fs::create_dir(mount.join("dir/below")).unwrap();
        let sparse = File::create(mount.join("sparse")).unwrap();
        sparse.set_len(1 << 20).unwrap();
        sparse.write_at(b"x", 500_000).unwrap();
        drop(sparse);
        mount.unmount();
        looks_the_same(&scratch, &image, &options.join(" "));
    }
}
