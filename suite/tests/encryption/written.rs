//! What steadfs writes with the key, read by the kernel.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{AtFlags, CWD, FallocateFlags, RenameFlags, fallocate, linkat, renameat_with};

use super::*;

const EXDEV: i32 = 18;
/// Reading changes times of access, and what is allocated and was read counts as data in the kernel.
const WRITTEN: Compare = Compare {
    atime: false,
    holes: false,
    ..Compare::ALL
};

fn is(result: std::io::Result<()>, errno: i32) {
    assert_eq!(result.unwrap_err().raw_os_error(), Some(errno));
}

impl Kind {
    /// Adds the key to a mount of steadfs; returns what policies call it.
    pub fn add_to_steadfs(&self, scratch: &Scratch, mount: &SteadMount) -> String {
        let (file, _) = self.key_file(scratch);
        let (top, file) = (mount.root().to_str().unwrap(), file.to_str().unwrap());
        let added = match self.descriptor {
            Some(descriptor) => steadfs(["key", "add", top, file, "--v1", &hex(&descriptor)]),
            None => steadfs(["key", "add", top, file]),
        };
        added.expect(0).out.trim().to_owned()
    }

    /// The arguments of `steadfs key set-policy` behind the directory and the key's name.
    fn policy_words(&self) -> Vec<String> {
        let [_, _, flags, unit] = self.policy;
        let mut words = vec![format!("--padding={}", 4 << (flags & 3))];
        for (bit, word) in [(8, "--iv-ino-lblk-64"), (16, "--iv-ino-lblk-32")] {
            words.extend((flags & bit != 0).then(|| word.to_owned()));
        }
        words.extend((unit > 0).then(|| format!("--data-unit-size={}", 1 << unit)));
        words
    }

    /// Checks that the volume is clean.
    pub fn check(&self, image: &Image, fs: &str) {
        match fs {
            "ext4" => image.check_clean(),
            _ => drop(steadfs_suite::f2fs::check_clean(image.path(), self.name)),
        }
    }

    pub fn set_policy(&self, place: &str, name: &str, more: &[&str]) {
        let mut words = vec!["key", "set-policy", place, name];
        let own = self.policy_words();
        words.extend(own.iter().map(String::as_str));
        words.extend(more);
        steadfs(words).expect(0);
    }
}

/// Changes of every kind in an encrypted tree that [`fill`] made; `ranges`: also by fallocate(2).
fn change(vault: &Path, ranges: bool) {
    change_content(vault, ranges);
    change_names(vault);
}

fn change_content(vault: &Path, ranges: bool) {
    let file = |name: &str| vault.join(name);
    let open = |name: &str| {
        OpenOptions::new()
            .read(true)
            .write(true)
            .open(file(name))
            .unwrap()
    };
    let mut random = Numbers::new(8);
    open("file5000")
        .write_all_at(&random.bytes(700), 4700)
        .unwrap();
    open("file100000").set_len(54_321).unwrap();
    open("file100000").set_len(77_777).unwrap();
    open("file511")
        .write_all_at(b"behind a hole", 200_000)
        .unwrap();
    if ranges {
        let large = open("file1500000");
        fallocate(
            &large,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            10_000,
            90_000,
        )
        .unwrap();
        fallocate(&large, FallocateFlags::ZERO_RANGE, 300_001, 50_000).unwrap();
        fallocate(&large, FallocateFlags::empty(), 1_400_000, 400_000).unwrap();
        large
            .write_all_at(b"in what was allocated", 1_700_000)
            .unwrap();
    }
    fs::copy(file("file1500000"), file("copied")).unwrap();
}

fn change_names(vault: &Path) {
    let file = |name: &str| vault.join(name);
    fs::rename(file("file4096"), file("names/renamed")).unwrap();
    fs::rename(file("sub/below"), file("below")).unwrap();
    fs::write(file("file1"), b"replaced").unwrap();
    fs::remove_file(file("link16")).unwrap();
    fs::write(file("victim"), b"is replaced").unwrap();
    fs::rename(file("file0"), file("victim")).unwrap();
    renameat_with(
        CWD,
        file("link50"),
        CWD,
        file("sub/hard"),
        RenameFlags::EXCHANGE,
    )
    .unwrap();
    rustix::fs::mknodat(
        CWD,
        file("fifo"),
        rustix::fs::FileType::Fifo,
        0o600.into(),
        0,
    )
    .unwrap();
    let unnamed = OpenOptions::new()
        .write(true)
        .custom_flags(libc_tmpfile())
        .open(vault)
        .unwrap();
    unnamed.write_all_at(b"has got a name", 0).unwrap();
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&unnamed)
    );
    linkat(CWD, path, CWD, file("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    let dir = file("sub/many");
    fs::create_dir(&dir).unwrap();
    for n in 0..300 {
        fs::write(
            dir.join(format!("a name of some length {n}")),
            n.to_string(),
        )
        .unwrap();
    }
}

fn libc_tmpfile() -> i32 {
    i32::try_from(rustix::fs::OFlags::TMPFILE.bits()).unwrap()
}

/// Files go in only if they are encrypted alike, and out always.
fn borders(top: &Path, vault: &Path) {
    fs::write(top.join("plain"), b"plain").unwrap();
    is(fs::rename(top.join("plain"), vault.join("plain")), EXDEV);
    is(fs::hard_link(top.join("plain"), vault.join("plain")), EXDEV);
    let exchanged = |a: &str, b: &str| {
        renameat_with(CWD, top.join(a), CWD, vault.join(b), RenameFlags::EXCHANGE)
    };
    is(exchanged("plain", "file1").map_err(Into::into), EXDEV);
    fs::rename(vault.join("copied"), top.join("moved out")).unwrap();
    fs::hard_link(vault.join("file1"), top.join("linked out")).unwrap();
}

#[test]
fn the_kernel_reads_an_encrypted_tree_that_steadfs_wrote() {
    let scratch = Scratch::new();
    for kind in &KINDS {
        let image = Image::mke2fs(&scratch, &format!("{}.img", kind.name), SIZE, kind.mke2fs);
        let mount = SteadMount::new(&scratch, image.path(), "rw");
        let vault = mount.join("vault");
        fs::create_dir(&vault).unwrap();
        let name = kind.add_to_steadfs(&scratch, &mount);
        kind.set_policy(vault.to_str().unwrap(), &name, &[]);
        fill(&vault);
        change(&vault, true);
        borders(mount.root(), &vault);
        let written = Tree::of(mount.root());
        mount.unmount();
        image.check_clean();

        let mount = KernelMount::new(&scratch, image.path(), "ro");
        kind.add_to(mount.root());
        let read = Tree::of(mount.root());
        read.assert_same(&written, WRITTEN, kind.name);
        mount.unmount();
    }
}

#[test]
fn a_tree_of_the_kernel_is_changed() {
    let scratch = Scratch::new();
    for kind in &KINDS {
        let (image, _) = kind.volume(&scratch);
        let mount = SteadMount::new(&scratch, image.path(), "rw,nodelalloc");
        kind.add_to_steadfs(&scratch, &mount);
        change(&mount.join("vault"), true);
        borders(mount.root(), &mount.join("vault"));
        let written = Tree::of(mount.root());
        mount.unmount();
        image.check_clean();

        let mount = KernelMount::new(&scratch, image.path(), "");
        kind.add_to(mount.root());
        Tree::of(mount.root()).assert_same(&written, WRITTEN, kind.name);
        fs::remove_dir_all(mount.join("vault")).unwrap();
        mount.unmount();
        image.check_clean();
    }
}

#[test]
fn before_a_key_is_removed_its_files_are_written() {
    let scratch = Scratch::new();
    let kind = &KINDS[0];
    let image = Image::mke2fs(&scratch, "image", SIZE, kind.mke2fs);
    let mount = SteadMount::new(&scratch, image.path(), "rw");
    let (top, vault) = (mount.root().to_str().unwrap(), mount.join("vault"));
    fs::create_dir(&vault).unwrap();
    let name = kind.add_to_steadfs(&scratch, &mount);
    kind.set_policy(vault.to_str().unwrap(), &name, &[]);
    let file = fs::File::create(vault.join("file")).unwrap();
    file.write_all_at(b"kept", 5000).unwrap();
    steadfs(["key", "remove", top, &name]).expect(0);
    assert!(is_no_key(file.write_all_at(b"lost", 5000)));
    file.sync_all().unwrap();
    drop(file);
    assert!(is_no_key(fs::write(vault.join("new"), b"")));
    assert!(is_no_key(fs::create_dir(vault.join("new"))));
    assert!(is_no_key(symlink("target", vault.join("new"))));
    fs::write(mount.join("plain"), b"").unwrap();
    assert!(is_no_key(fs::rename(
        mount.join("plain"),
        vault.join("new")
    )));

    kind.add_to_steadfs(&scratch, &mount);
    let content = fs::read(vault.join("file")).unwrap();
    assert_eq!((content.len(), &content[5000..]), (5004, &b"kept"[..]));
    // Another server would not have it.
    let refused = steadfs(["upgrade", top]);
    assert!(
        refused.err.contains("keys are not passed on"),
        "{}",
        refused.err
    );
    // Only an empty directory gets a policy, and only one.
    let plain = mount.join("sub");
    fs::create_dir(&plain).unwrap();
    fs::write(plain.join("file"), b"").unwrap();
    let set = |dir: &Path, more: &[&str]| {
        let words = ["key", "set-policy", dir.to_str().unwrap(), &name];
        steadfs(words.iter().chain(more)).code()
    };
    assert_eq!(set(&plain, &[]), 32);
    assert_eq!(set(mount.root(), &[]), 32);
    assert_eq!(set(&vault, &["--padding=4"]), 0);
    assert_eq!(set(&vault, &["--padding=8"]), 32);
    assert_eq!(set(&vault, &["--contents=Adiantum"]), 1);
    mount.unmount();
    image.check_clean();
}

#[test]
fn a_mount_that_another_server_continues_takes_no_key() {
    let scratch = Scratch::new();
    let kind = &KINDS[0];
    let (image, _) = kind.volume(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "rw,takeover=on,fuse_transport=dev");
    let (file, _) = kind.key_file(&scratch);
    let refused = steadfs([
        "key",
        "add",
        mount.root().to_str().unwrap(),
        file.to_str().unwrap(),
    ]);
    assert_eq!(refused.code(), 32);
    assert!(refused.err.contains("takeover=off"), "{}", refused.err);
    assert!(is_no_key(fs::create_dir(mount.join("vault/new"))));
    mount.unmount();
}

#[test]
fn commands_write_encrypted_files_of_images() {
    let scratch = Scratch::new();
    let kind = &KINDS[1];
    let image = Image::mke2fs(&scratch, "image", SIZE, kind.mke2fs);
    let other = Image::mke2fs(&scratch, "other", SIZE, kind.mke2fs);
    let (_, key) = kind.key_file(&scratch);
    let place = |image: &Image, path: &str| format!("{}:{path}", image.path().display());
    let name = {
        let mount = SteadMount::new(&scratch, image.path(), "rw");
        let name = kind.add_to_steadfs(&scratch, &mount);
        mount.unmount();
        name
    };
    let source = scratch.folder("source");
    fill(&source);
    for image in [&image, &other] {
        steadfs(["mkdir", &place(image, "/vault")]).expect(0);
        kind.set_policy(&place(image, "/vault"), &name, &["--key-file", &key]);
    }
    let files = place(&image, "/vault/files");
    steadfs([
        "cp",
        "-a",
        "--key-file",
        &key,
        source.to_str().unwrap(),
        &files,
    ])
    .expect(0);
    let copy = place(&other, "/vault/files");
    steadfs(["cp", "-a", "--key-file", &key, &files, &copy]).expect(0);
    let script = scratch.join("script");
    fs::write(
        &script,
        "mv /vault/files/file5000 /vault/moved\nmkdir /vault/new\n",
    )
    .unwrap();
    let changed = other.path().to_str().unwrap();
    steadfs([
        "edit",
        "--key-file",
        &key,
        changed,
        script.to_str().unwrap(),
    ])
    .expect(0);
    steadfs(["mkdir", &place(&image, "/vault/refused")]).expect(1);
    for image in [&image, &other] {
        image.check_clean();
        let mount = KernelMount::new(&scratch, image.path(), "ro");
        kind.add_to(mount.root());
        let moved = mount.join("vault/moved");
        if moved.exists() {
            assert_eq!(
                fs::read(moved).unwrap(),
                fs::read(source.join("file5000")).unwrap()
            );
            fs::remove_file(source.join("file5000")).unwrap();
        }
        let read = Tree::of(&mount.join("vault/files"));
        let dirs = Compare {
            dir_mtime: false,
            ..Compare::COPY
        };
        read.assert_same(&Tree::of(&source), dirs, "a copy");
        mount.unmount();
    }
}

#[test]
fn a_wrong_key_of_version_1_is_no_key() {
    let scratch = Scratch::new();
    let kind = KINDS.iter().find(|kind| kind.descriptor.is_some()).unwrap();
    let (image, _) = kind.volume(&scratch);
    let mount = SteadMount::new(&scratch, image.path(), "rw");
    let (top, vault) = (mount.root().to_str().unwrap(), mount.join("vault"));
    let wrong = scratch.join("wrong");
    fs::write(&wrong, [9; 64]).unwrap();
    let name = hex(&kind.descriptor.unwrap());
    steadfs(["key", "add", top, wrong.to_str().unwrap(), "--v1", &name]).expect(0);
    // What is decrypted with it is nonsense, and may be no names at all.
    let listed = fs::read_dir(&vault).and_then(|mut dir| dir.try_for_each(|entry| entry.map(drop)));
    assert!(listed.is_ok() || is_no_key(listed));
    assert!(!vault.join("file5000").exists());
    assert_eq!(
        fs::read_to_string(mount.join(".steadfs/errors")).unwrap(),
        "none\n"
    );
    let (right, _) = kind.key_file(&scratch);
    let refused = steadfs(["key", "add", top, right.to_str().unwrap(), "--v1", &name]);
    assert_eq!(refused.code(), 32);
    steadfs(["key", "remove", top, &name]).expect(0);
    kind.add_to_steadfs(&scratch, &mount);
    fs::read(vault.join("file5000")).unwrap();
    mount.unmount();
    image.check_clean();
}

/// What is compared of a tree that was written, as with [`WRITTEN`].
pub fn written_lines(top: &Path) -> Vec<String> {
    let mut tree = Tree::of(top);
    for node in tree.nodes.values_mut() {
        node.atime = (0, 0);
        node.data.clear();
    }
    lines(&tree)
}

/// Changes in a tree that [`change`] has changed.
pub fn change_again(vault: &Path) {
    let mut random = Numbers::new(9);
    fs::write(vault.join("of the judge"), random.bytes(70_000)).unwrap();
    let dir = vault.join("dir of the judge");
    fs::create_dir(&dir).unwrap();
    for n in 0..60 {
        fs::write(dir.join(format!("{n} is a name")), n.to_string()).unwrap();
    }
    fs::rename(vault.join("victim"), dir.join("moved")).unwrap();
    let grown = OpenOptions::new().write(true).open(vault.join("file5000"));
    grown
        .unwrap()
        .write_all_at(&random.bytes(30_000), 5100)
        .unwrap();
    fs::remove_dir_all(vault.join("names")).unwrap();
    symlink("t".repeat(77), vault.join("link of the judge")).unwrap();
}

/// Those of [`JUDGED`], with their numbers, that `STEADFS_JUDGED` names: all, or one.
fn chosen() -> impl Iterator<Item = (usize, &'static (Place, Kind))> {
    let only = std::env::var("STEADFS_JUDGED").ok();
    let all = JUDGED.iter().enumerate();
    all.filter(move |(_, (_, kind))| only.as_deref().is_none_or(|only| only == kind.name))
}

#[test]
#[ignore = "needs scripts/judge-kernel"]
fn the_judge_reads_and_changes_encrypted_trees_that_steadfs_wrote() {
    let scratch = Scratch::new();
    let program = std::env::current_exe().unwrap();
    let (mut script, mut images, mut wrote) = (String::new(), Vec::new(), Vec::new());
    for ((n, ((fs, options, flag), kind)), letter) in chosen().zip('a'..) {
        let image = kind.judged_image(&scratch, fs);
        let options = if options.is_empty() { "rw" } else { options };
        let mount = SteadMount::new(&scratch, image.path(), options);
        let vault = mount.join("vault");
        fs::create_dir(&vault).unwrap();
        let name = kind.add_to_steadfs(&scratch, &mount);
        kind.set_policy(vault.to_str().unwrap(), &name, &[]);
        if !flag.is_empty() {
            succeed("chattr", [flag.as_ref(), vault.as_os_str()]);
        }
        fill(&vault);
        change(&vault, *flag != "+c");
        borders(mount.root(), &vault);
        wrote.push(written_lines(mount.root()));
        mount.unmount();
        kind.check(&image, fs);
        let log = scratch.join(kind.name);
        writeln!(
            script,
            "mount -t {fs} -o {options} /dev/ubd{letter} {TOP}\n\
             {WORK}='change {n} {}' {} --ignored --exact inside_the_judge --nocapture\n\
             umount {TOP}",
            log.display(),
            program.display(),
        )
        .unwrap();
        images.push(image);
    }
    let paths: Vec<_> = images.iter().map(Image::path).collect();
    boot_with_all_of_f2fs(&scratch, &paths, &script);
    for ((_, ((fs, options, _), kind)), (image, wrote)) in chosen().zip(images.iter().zip(wrote)) {
        let judges = |which: &str| -> Vec<String> {
            let log = scratch.join(&format!("{}.{which}", kind.name));
            let log = fs::read_to_string(log).unwrap();
            log.lines().map(str::to_owned).collect()
        };
        assert_same(&wrote, &judges("read"), kind.name);
        let options = if options.is_empty() { "rw" } else { options };
        let mount = SteadMount::new(&scratch, image.path(), options);
        kind.add_to_steadfs(&scratch, &mount);
        assert_same(&written_lines(mount.root()), &judges("changed"), kind.name);
        fs::remove_dir_all(mount.join("vault")).unwrap();
        mount.unmount();
        kind.check(image, fs);
    }
}
