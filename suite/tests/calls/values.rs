//! Values of attributes in inodes (`ea_inode`): written by the kernel and changed by us, and the other way round.

use std::collections::BTreeMap;

use steadfs_suite::stead::program;

use super::*;

/// Files with their attributes.
type Model = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

const LARGEST: usize = 65536;

fn value(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + i / 251 + seed * 31) as u8)
        .collect()
}

/// Changes a mount and the model alike.
struct Files<'a> {
    root: &'a Path,
    model: &'a mut Model,
}

impl Files<'_> {
    fn set(&mut self, file: &str, attr: &str, value: Vec<u8>) {
        let path = self.root.join(file);
        if !path.exists() {
            fs::write(&path, file).unwrap();
        }
        let set = rustix::fs::setxattr(&path, attr, &value, XattrFlags::empty());
        assert_eq!(set, Ok(()), "{file} {attr} {}", value.len());
        let attrs = self.model.entry(file.into()).or_default();
        attrs.insert(attr.into(), value);
    }

    fn remove(&mut self, file: &str, attr: &str) {
        rustix::fs::removexattr(self.root.join(file), attr).unwrap();
        self.model.get_mut(file).unwrap().remove(attr);
    }

    fn unlink(&mut self, file: &str) {
        fs::remove_file(self.root.join(file)).unwrap();
        self.model.remove(file);
    }

    /// The mount has what the model has.
    fn compare(&self, what: &str) {
        let mut buf = vec![0; LARGEST];
        for (file, attrs) in &*self.model {
            let path = self.root.join(file);
            for (attr, value) in attrs {
                let len = rustix::fs::getxattr(&path, attr, &mut buf);
                let len = len.unwrap_or_else(|e| panic!("{what}: {file} {attr}: {e}"));
                assert!(&buf[..len] == value, "{what}: {file} {attr}");
            }
            let len = rustix::fs::listxattr(&path, &mut buf).unwrap();
            let names = buf[..len]
                .split(|&byte| byte == 0)
                .filter(|n| !n.is_empty());
            assert_eq!(names.count(), attrs.len(), "{what}: {file}");
        }
    }
}

/// Values that are shared by files; attribute blocks that are; entries in inodes and in blocks.
fn fill(files: &mut Files<'_>, seed: usize) {
    let name = |kind: &str, n: usize| format!("{kind}{seed}-{n}");
    for n in 0..3 {
        files.set(&name("same", n), "user.v", value(seed, 50_000));
    }
    files.set(&name("largest", 0), "user.v", value(seed + 1, LARGEST));
    for n in 0..2 {
        for attr in 0..12 {
            let attr_name = format!("user.attribute-{attr}");
            files.set(&name("block", n), &attr_name, value(attr, 5000 + attr));
        }
    }
    for attr in 0..10 {
        files.set(&name("mixed", 0), &format!("user.{attr}"), value(attr, 300));
        files.set(
            &name("mixed", 0),
            &format!("user.l{attr}"),
            value(attr, 900 * attr + 1),
        );
    }
    files.set(&name("root", 0), "trusted.v", value(seed, 50_000));
}

/// Each change that matters for counts, on what [`fill`] made.
fn change(files: &mut Files<'_>, seed: usize) {
    let name = |kind: &str, n: usize| format!("{kind}{seed}-{n}");
    files.set(&name("same", 0), "user.v", value(99, 40_000));
    files.set(&name("same", 1), "user.v", value(1, 4));
    files.remove(&name("same", 2), "user.v");
    files.set(&name("largest", 0), "user.v", value(seed + 1, LARGEST));
    files.set(&name("largest", 0), "user.w", value(seed + 1, LARGEST));
    // Shared blocks are copied.
    files.set(&name("block", 0), "user.attribute-3", value(seed, 6000));
    files.remove(&name("block", 0), "user.attribute-9");
    files.set(&name("block", 1), "user.small", value(seed, 9));
    files.unlink(&name("block", 1));
    for attr in 0..10 {
        files.remove(&name("mixed", 0), &format!("user.{attr}"));
    }
    files.set(&name("more", 0), "user.v", value(99, 40_000));
    files.unlink(&name("root", 0));
}

fn inodes_in_use(image: &Image) -> u32 {
    let said = run("dumpe2fs", ["-h".as_ref(), image.path().as_os_str()])
        .expect(0)
        .out;
    let count = |label: &str| -> u32 {
        let line = said.lines().find_map(|line| line.strip_prefix(label));
        line.unwrap().trim().parse().unwrap()
    };
    count("Inode count:") - count("Free inodes:")
}

#[test]
fn large_values_are_counted_as_the_kernel_counts_them() {
    let scratch = Scratch::new();
    for (n, options) in [
        "ea_inode -b 4096",
        "ea_inode,^metadata_csum,^extent,^64bit -b 1024",
        "ea_inode,orphan_file -b 2048 -I 512",
        "ea_inode,^has_journal -b 1024",
    ]
    .iter()
    .enumerate()
    {
        let args: Vec<_> = ["-t", "ext4", "-O"]
            .into_iter()
            .chain(options.split(' '))
            .collect();
        let image = Image::mke2fs(&scratch, &format!("{n}.img"), 64 * MIB, &args);
        let empty = inodes_in_use(&image);
        let mut model = Model::new();
        let with = |ours: bool, model: &mut Model, work: &dyn Fn(&mut Files<'_>)| {
            let mut on = |root: &Path| work(&mut Files { root, model });
            match ours {
                true => {
                    let mount = SteadMount::new(&scratch, image.path(), "noatime");
                    on(mount.root());
                    mount.unmount();
                }
                false => {
                    let mount = KernelMount::new(&scratch, image.path(), "noatime");
                    on(mount.root());
                    mount.unmount();
                }
            }
            image.check_clean();
            steadfs(["check", image.path().to_str().unwrap()]).expect(0);
        };
        with(false, &mut model, &|files| fill(files, 0));
        with(true, &mut model, &|files| {
            files.compare(options);
            change(files, 0);
            fill(files, 50);
            files.compare(options);
        });
        with(false, &mut model, &|files| {
            files.compare(options);
            change(files, 50);
        });
        with(true, &mut model, &|files| {
            files.compare(options);
            let names: Vec<_> = files.model.keys().cloned().collect();
            for name in names {
                files.unlink(&name);
            }
        });
        assert_eq!(inodes_in_use(&image), empty, "{options}");
    }
}

/// A volume made by `format`, filled from a directory, an archive and another volume.
#[test]
fn copies_keep_large_values() {
    let scratch = Scratch::new();
    let args = ["-t", "ext4", "-O", "ea_inode"];
    let source = Image::mke2fs(&scratch, "source.img", 32 * MIB, &args);
    let mount = KernelMount::new(&scratch, source.path(), "");
    let mut model = Model::new();
    let mut files = Files {
        root: mount.root(),
        model: &mut model,
    };
    for (file, len) in [("a", LARGEST), ("b", LARGEST), ("c", 5000)] {
        files.set(file, "user.v", value(3, len));
    }
    fs::remove_dir(mount.root().join("lost+found")).unwrap();
    let path = |name: &str| scratch.join(name).to_str().unwrap().to_owned();
    let format = |from: &str, to: &str| {
        let to = path(to);
        steadfs([
            "format", "-t", "ext4", "-O", "ea_inode", "-d", from, &to, "32M",
        ])
        .expect(0);
    };
    format(mount.root().to_str().unwrap(), "made.img");
    mount.unmount();
    let made = path("made.img");
    let pack = format!(
        "exec {} tar {made}:/ >{}",
        program().display(),
        path("made.tar")
    );
    run("sh", ["-c", &pack]).expect(0);
    format(&path("made.tar"), "unpacked.img");
    let copied = Image::mke2fs(&scratch, "copied.img", 32 * MIB, &args);
    let to = format!("{}:/", copied.path().display());
    for file in ["a", "b", "c"] {
        steadfs(["cp", "-a", &format!("{made}:/{file}"), &to]).expect(0);
    }
    for image in ["made.img", "unpacked.img", "copied.img"] {
        let image = Image::at(scratch.join(image));
        image.check_clean();
        let mount = KernelMount::new(&scratch, image.path(), "ro");
        let root = mount.root();
        let model = &mut model;
        Files { root, model }.compare(&image.path().display().to_string());
    }
}
