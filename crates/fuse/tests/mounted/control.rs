//! Control files.

use super::*;

#[test]
fn control_files_are_hidden_fresh_and_writable() {
    each(|mount| {
        assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
        let value = mount.path(".steadfs/value");
        let first = fs::read_to_string(&value).unwrap();
        let second = fs::read_to_string(&value).unwrap();
        assert_ne!(first, second, "each open reads anew");
        fs::write(&value, "41000\n").unwrap();
        let third: u64 = fs::read_to_string(&value).unwrap().trim().parse().unwrap();
        assert!((41_000..41_010).contains(&third), "{third}");
        assert_eq!(errno(&fs::write(&value, "words").unwrap_err()), Some(22));
        assert_eq!(
            fs::read_to_string(mount.path(".steadfs/jbd2/info")).unwrap(),
            "content of jbd2/info\n"
        );
        let mut names: Vec<_> = fs::read_dir(mount.path(".steadfs"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["jbd2", "metrics", "options", "sync", "value"]);
        assert_eq!(
            fs::metadata(mount.path(".steadfs")).unwrap().mode(),
            0o040_700
        );
        assert_eq!(fs::metadata(&value).unwrap().mode(), 0o100_600);
        assert_eq!(
            fs::metadata(mount.path(".steadfs/options")).unwrap().mode(),
            0o100_400
        );
        fs::write(mount.path(".steadfs/sync"), "1").unwrap();
        File::open(mount.path(".steadfs/sync"))
            .unwrap()
            .sync_all()
            .unwrap();
        assert_eq!(mount.mem().syncs.load(Ordering::SeqCst), 2);
        assert_eq!(errno(&fs::remove_file(&value).unwrap_err()), Some(1));
        assert_eq!(
            errno(&fs::write(mount.path(".steadfs/no"), "").unwrap_err()),
            Some(1)
        );
        assert_eq!(
            errno(&fs::rename(mount.path(".steadfs"), mount.path("x")).unwrap_err()),
            Some(1)
        );
        mount.end();
    });
}

/// cp(1) copies a file only if the file it opens is the one it has looked at before.
#[test]
fn a_control_file_keeps_its_inode_number() {
    each(|mount| {
        for (above, name) in [
            ("", ".steadfs"),
            (".steadfs", "value"),
            (".steadfs/jbd2", "info"),
        ] {
            let path = mount.path(above).join(name);
            let ino = fs::metadata(&path).unwrap().ino();
            for _ in 0..2 {
                assert_eq!(fs::metadata(&path).unwrap().ino(), ino, "{name}");
                assert_eq!(
                    File::open(&path).unwrap().metadata().unwrap().ino(),
                    ino,
                    "{name}"
                );
            }
            let mut listed = fs::read_dir(mount.path(above)).unwrap().map(Result::unwrap);
            if let Some(entry) = listed.find(|entry| entry.file_name() == *name) {
                assert_eq!(entry.ino(), ino, "{name}");
            }
        }
        let ino = |name: &str| fs::metadata(mount.path(name)).unwrap().ino();
        assert_ne!(ino(".steadfs/value"), ino(".steadfs/sync"));
        let copy = mount.path("copy");
        let mut cp = std::process::Command::new("cp");
        let said = cp
            .arg(mount.path(".steadfs/jbd2/info"))
            .arg(&copy)
            .output()
            .unwrap();
        assert!(said.status.success(), "{said:?}");
        assert_eq!(fs::read_to_string(copy).unwrap(), "content of jbd2/info\n");
        mount.end();
    });
}
