//! Options that both formats have. What only one has is tested beside its table.

use steadfs_conformance::Kind;
use steadfs_vfs::FsError;

on!((ext4_4k f2fs)
    names_are_listed_once,
    shown_options_are_read_back,
    later_items_win,
    mistakes_name_the_option,
);

fn names_are_listed_once(kind: &'static Kind) {
    let mut names = kind.option_names();
    assert!(names.len() > 40, "{names:?}");
    names.sort_unstable();
    let all = names.len();
    names.dedup();
    assert_eq!(names.len(), all);
}

fn shown_options_are_read_back(kind: &'static Kind) {
    let default = kind.shown("").unwrap();
    assert!(default.starts_with("rw,relatime"), "{default}");
    assert_eq!(kind.shown(&default).as_ref(), Ok(&default));
    for list in [
        "ro,norecovery,noatime,nodiratime",
        "rw,relatime,sync,dirsync",
        "rw,relatime,nouser_xattr,noacl",
        "rw,relatime,nobarrier,resuid=5,resgid=6",
        "rw,noatime,errors=remount-ro",
    ] {
        let shown = kind.shown(list).unwrap();
        assert_ne!(shown, default, "{list}");
        for item in list.split(',') {
            let same = |shown: &str| shown == item;
            assert!(shown.split(',').any(same), "{list}: {shown}");
        }
        assert_eq!(kind.shown(&shown), Ok(shown), "{list}");
    }
}

fn later_items_win(kind: &'static Kind) {
    let list = "ro,sync,nobarrier,noatime,rw,async,barrier,relatime";
    assert_eq!(kind.shown(list), kind.shown(""));
}

fn mistakes_name_the_option(kind: &'static Kind) {
    for (list, sentence) in [
        (
            "errors=panic",
            "option errors=panic: a program cannot halt the machine; use errors=remount-ro",
        ),
        ("noatme", "option noatme: unknown; did you mean noatime?"),
        ("bogus", "option bogus: unknown"),
        (
            "noatme,errors=panic",
            "option noatme: unknown; did you mean noatime?; option errors=panic: a program cannot \
             halt the machine; use errors=remount-ro",
        ),
    ] {
        let refused = FsError::BadOption(sentence.to_owned());
        assert_eq!(kind.shown(list), Err(refused));
    }
}
