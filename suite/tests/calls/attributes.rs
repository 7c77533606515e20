//! Attributes of files that steadfs only reads.

use super::*;

/// What read-only calls return for every file below `root`: kind, size, blocks, link target, whether it can be opened.
fn looked_at(root: &Path) -> Vec<String> {
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
fn looks_the_same(scratch: &Scratch, image: &Image, what: &str) {
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

/// Encrypted files on a machine without the key.
#[test]
fn without_its_key_an_encrypted_tree_equals_the_kernels() {
    // linux/fscrypt.h.
    const ADD_KEY: u32 = 0xc050_6617;
    const SET_POLICY: u32 = 0x800c_6613;
    let scratch = Scratch::new();
    for block_size in ["1024", "4096"] {
        let options = ["-t", "ext4", "-b", block_size, "-O", "encrypt"];
        let image = Image::mke2fs(&scratch, &format!("{block_size}.img"), 64 * MIB, &options);
        let mount = KernelMount::new(&scratch, image.path(), "");
        // A key of 64 bytes, identified by the identifier that the kernel returns.
        let words = [2_u32, 0].map(u32::to_ne_bytes).concat();
        let lengths = [64_u32, 0].map(u32::to_ne_bytes).concat();
        let key = [words, vec![0; 32], lengths, vec![0; 32], vec![0x5a; 64]].concat();
        let named = ioctl(mount.root(), ADD_KEY, &key).unwrap();
        fs::create_dir(mount.join("vault")).unwrap();
        let policy = [&[2, 1, 4, 0, 0, 0, 0, 0][..], &named[8..24]].concat();
        ioctl(&mount.join("vault"), SET_POLICY, &policy).unwrap();
        let vault = mount.join("vault");
        fs::create_dir(vault.join("sub")).unwrap();
        for (n, size) in [0, 1, 100, 5000, 100_000].into_iter().enumerate() {
            fs::write(vault.join(format!("file{n}")), vec![1; size]).unwrap();
            let long = "n".repeat(50 * (n + 1));
            fs::write(vault.join("sub").join(&long), b"").unwrap();
            symlink(&long, vault.join(format!("link{n}"))).unwrap();
        }
        symlink("x", vault.join("short")).unwrap();
        fs::write(mount.join("plain"), b"plain").unwrap();
        mount.unmount();
        looks_the_same(&scratch, &image, block_size);

        let mount = SteadMount::new(&scratch, image.path(), "ro");
        let no_key = |error: std::io::Error| error.raw_os_error() == Some(126);
        let mut closed = 0;
        for entry in fs::read_dir(mount.join("vault")).unwrap() {
            let entry = entry.unwrap();
            if entry.file_type().unwrap().is_file() {
                assert!(fs::read(entry.path()).is_err_and(no_key));
                let inside = Path::new("vault").join(entry.file_name());
                let place = format!("{}:/{}", image.path().display(), inside.display());
                let output = steadfs(["cat", &place]);
                assert!(
                    output.code() != 0 && output.out.is_empty(),
                    "{}",
                    output.out
                );
                let copy = scratch.join("copy");
                let output = steadfs(["cp", &place, copy.to_str().unwrap()]);
                assert!(output.code() != 0 && !copy.exists(), "{}", output.err);
                assert!(output.err.contains("key"), "{}", output.err);
                closed += 1;
            }
        }
        assert_eq!(closed, 5);
        assert_eq!(fs::read(mount.join("plain")).unwrap(), b"plain");
        mount.unmount();
    }
}
