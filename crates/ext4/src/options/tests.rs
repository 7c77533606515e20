use steadfs_vfs::options::items;

use super::*;

#[track_caller]
fn fails(list: &str, sentence: &str) {
    match MountOptions::parse(list) {
        Err(FsError::BadOption(said)) => assert_eq!(said, sentence),
        other => panic!("{list}: {other:?}"),
    }
}

#[test]
fn nothing_means_the_defaults() {
    assert_eq!(MountOptions::parse(""), Ok(MountOptions::default()));
    assert_eq!(MountOptions::default().show(), "rw,relatime");
}

#[test]
fn what_is_shown_is_read_back() {
    let lists = [
        "ro,norecovery,noatime,nodiratime",
        "rw,relatime,sync,dirsync",
        "rw,relatime,nobarrier,data_err=abort,discard,nouser_xattr,noacl,grpid,minixdf",
        "rw,relatime,commit=30,min_batch_time=10,max_batch_time=20,journal_ioprio=0",
        "rw,relatime,resuid=5,resgid=6,max_dir_size_kb=100",
        "rw,relatime,nodelalloc,noauto_da_alloc,inode_readahead_blks=0",
        "rw,relatime,errors=remount-ro,data=writeback",
        "rw,relatime,errors=continue,data=ordered",
        "rw,relatime,journal_checksum,stripe=16",
        "rw,relatime,nojournal_checksum,stripe=0",
        "rw,relatime,async_checkpoint=50",
        "rw,relatime,noasync_checkpoint,commit=30",
    ];
    for list in lists {
        let options = MountOptions::parse(list).expect(list);
        assert_ne!(options, MountOptions::default());
        assert_eq!(MountOptions::parse(&options.show()), Ok(options));
    }
}

#[test]
fn later_items_win() {
    let options = MountOptions::parse("ro,nobarrier,commit=9,rw,barrier,commit=0");
    assert_eq!(options, Ok(MountOptions::default()));
    let options = MountOptions::parse("barrier=0,auto_da_alloc=0").expect("both take a value");
    assert!(!options.barrier && !options.auto_da_alloc);
}

#[test]
fn mistakes_name_the_option() {
    fails(
        "data=journal",
        "option data=journal: data is not journaled; use data=ordered",
    );
    fails(
        "data=orderd",
        "option data=orderd: is one of ordered, writeback",
    );
    fails(
        "errors=panic",
        "option errors=panic: a program cannot halt the machine; use errors=remount-ro",
    );
    fails(
        "commit=-1",
        "option commit=-1: needs a number from 0 to 86400",
    );
    fails("comit=5", "option comit: unknown; did you mean commit?");
    fails(
        "journal_ioprio=8",
        "option journal_ioprio=8: needs a number from 0 to 7",
    );
    fails(
        "inode_readahead_blks=3",
        "option inode_readahead_blks=3: needs 0 or a power of two",
    );
    fails(
        "noload",
        "option noload: needs ro, for a volume is only written after its journal",
    );
    fails(
        "min_batch_time=20000",
        "option min_batch_time: is longer than max_batch_time",
    );
    let dax = "pages of the volume cannot be mapped into processes";
    fails("dax", &format!("option dax: {dax}"));
    fails("dax=always", &format!("option dax=always: {dax}"));
    fails(
        "dax,noload,commit=x",
        &format!("option dax: {dax}; option commit=x: needs a number from 0 to 86400"),
    );
    fails(
        "noload,min_batch_time=20000",
        "option noload: needs ro, for a volume is only written after its journal; \
         option min_batch_time: is longer than max_batch_time",
    );
    fails(
        "mb_optimize_scan",
        "option mb_optimize_scan: needs a value (mb_optimize_scan=…)",
    );
    assert!(MountOptions::parse("dax=never,dax=inode").is_ok());
}

/// Options that Linux accepts and ignores, or that only concern speed: accepted without effect.
#[test]
fn options_without_effect_are_accepted() {
    let list = "lazytime,norelatime,journal_async_commit,init_itable=10,noblock_validity,dioread_lock,\
                nodioread_nolock,mb_optimize_scan=0,prefetch_block_bitmaps,i_version,debug,warn_on_error,inlinecrypt,\
                bh,nobh,mblk_io_submit,nomblk_io_submit,oldalloc,orlov,reservation,noreservation,journal=3,\
                check=none,check,nocheck,usrjquota=aquota.user,grpjquota=,jqfmt=vfsv1";
    assert_eq!(MountOptions::parse(list), Ok(MountOptions::default()));
    for (name, value) in items(list) {
        assert!(TABLE.no_effect_because(name, value).is_some(), "{name}");
    }
    for (name, value) in
        items("barrier,delalloc,nombcache,quota,usrquota,grpquota,prjquota,noquota,dax=never")
    {
        assert_eq!(TABLE.no_effect_because(name, value), None, "{name}");
    }
    assert!(MountOptions::parse("jqfmt=vfsv2").is_err());
}

#[test]
fn quota_of_projects_needs_projects() {
    let options = MountOptions::parse("prjquota").expect("accepted");
    let mut features = Features::default();
    let said = options.check_features(features).unwrap_err().to_string();
    assert_eq!(
        said,
        "option prjquota: the volume does not have the feature project"
    );
    features.ro_compat = RoCompat::PROJECT;
    assert_eq!(options.check_features(features), Ok(()));
}

#[test]
fn remount_changes_what_may_change() {
    let mounted = MountOptions::parse("commit=9,noatime").expect("good options");
    let new = mounted.remounted("ro,commit=7").expect("both may change");
    assert_eq!(new.show(), "ro,noatime,commit=7");
    for fixed in ["data=writeback", "ro,noload", "noacl", "journal_checksum"] {
        let said = mounted.remounted(fixed).expect_err(fixed).to_string();
        assert!(said.contains("cannot change while mounted"), "{said}");
    }
    let said = mounted.remounted("noacl,data=writeback,bogus").unwrap_err();
    assert_eq!(said.to_string(), "option bogus: unknown");
    let said = mounted
        .remounted("noacl,data=writeback")
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("option data: ") && said.contains("option acl: "),
        "{said}"
    );
}

/// The options of a mount with `list` on a volume with these defaults, and which defaults are ignored.
fn on_volume(list: &str, bits: u32, text: &str) -> (String, Vec<String>) {
    let asked = MountOptions::parse(list).expect(list);
    let (options, passed) = asked.over(bits, text);
    (options.show(), passed)
}

#[test]
fn defaults_of_the_superblock_apply_unless_the_mount_overrides_them() {
    let good = |list, bits, text| {
        let (shown, passed) = on_volume(list, bits, text);
        assert!(passed.is_empty(), "{passed:?}");
        shown
    };
    assert_eq!(good("", 0xc, ""), "rw,relatime");
    assert_eq!(
        good("", 0xd62, "commit=33"),
        "rw,relatime,nobarrier,discard,grpid,nodelalloc,commit=33,data=writeback"
    );
    let all = "barrier,nodiscard,nogrpid,delalloc,commit=5,data=ordered,noatime";
    assert_eq!(good(all, 0xd62, "commit=33"), "rw,noatime,data=ordered");
    // The last item of the text counts, too.
    assert_eq!(
        good("", 0x400, "nodiscard,commit=3"),
        "rw,relatime,commit=3"
    );
    let remounted = MountOptions::parse("")
        .map(|o| o.over(0x400, "commit=33").0)
        .and_then(|o| o.remounted("commit=7"));
    assert_eq!(
        remounted.expect("good").show(),
        "rw,relatime,discard,commit=7"
    );
}

#[test]
fn invalid_defaults_of_the_superblock_are_reported() {
    let (shown, passed) = on_volume("", 0x20, "commit=33,bogus,ro,data=journal,sync");
    assert_eq!(shown, "rw,relatime,commit=33");
    assert_eq!(
        passed,
        [
            "option data=journal: data is not journaled; use data=ordered",
            "option bogus: unknown",
            "option data=journal: data is not journaled; use data=ordered",
        ]
    );
    let (_, passed) = on_volume("", 0, "lazytime,commit=3,nombcache");
    let why = "option lazytime: has no effect: times are written with the inode at each commit";
    assert_eq!(passed, [why]);
    let (shown, passed) = on_volume("max_batch_time=5", 0, "min_batch_time=9");
    assert_eq!(shown, "rw,relatime,max_batch_time=5");
    assert_eq!(passed.len(), 1, "{passed:?}");
}

/// They come from the superblock and are shown at a terminal.
#[test]
fn options_of_the_superblock_are_shown_with_escapes() {
    let words = "\u{1b}]0;owned\u{7},commit=\u{9b}2J,discard,no\u{202e}such";
    let (options, passed) = MountOptions::default().over(0, words);
    assert!(options.discard);
    assert_eq!(passed.len(), 3);
    for (said, word) in passed
        .iter()
        .zip(["\\033]0;owned\\007", "\\302\\2332J", "no\\342"])
    {
        assert!(said.contains(word), "{said}");
        assert!(
            said.chars().all(|c| c.is_ascii_graphic() || c == ' '),
            "{said}"
        );
    }
}
