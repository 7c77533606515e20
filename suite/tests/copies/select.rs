//! `--include` and `--exclude` of `tar` and `extract`: GNU tar with --wildcards decides, on an archive of the same tree.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::*;

const TREE: &str = r#"
mkdir -p etc/ssl/certs etc/.hid usr/share/doc/etc usr/lib/cache home/a/cache 'sp ace' empty var/cache/deep/er
for dir in etc etc/ssl/certs etc/.hid usr/share/doc/etc usr/lib usr/lib/cache home/a/cache 'sp ace' var/cache/deep/er; do
    for name in a.conf b.conf c.o .dot 'x[1]' 'q?' ä; do echo "$dir/$name" >"$dir/$name"; done
done
ln etc/a.conf usr/lib/hard.o; ln usr/lib/hard.o 'sp ace/again'
ln -s ../etc usr/link; mkfifo home/fifo; mknod home/null c 1 3
truncate -s 1M home/a/sparse.o; echo end >>home/a/sparse.o; head -c 300000 /dev/urandom >var/cache/deep/big.o
setfattr -n user.a -v b home/a usr/share/doc
chown -R 1000:33 home; chmod 2750 home/a; touch -d 2001-02-03T04:05:06 etc etc/ssl usr usr/share/doc home home/a
"#;

/// Patterns that include, and that exclude.
const SELECTIONS: &[(&[&str], &[&str])] = &[
    (&["etc"], &[]),
    (&["etc/*"], &[]),
    (&["etc/*.conf"], &[]),
    (&["*.o"], &[]),
    (&["*/[ab].conf", "*/ä"], &[]),
    (&["usr/lib/hard.o", "sp ace/again"], &[]),
    (&["./home/a", "/usr/share/"], &[]),
    (&["home/?", "?mpty"], &[]),
    (&["*/x\\[1\\]", "etc/q\\?"], &[]),
    (&["*[/]etc", "[[:lower:]]*/.dot"], &[]),
    (&["usr/*/[!a-b]?o*"], &[]),
    (&["none*", "etc/a.conf", "usr/none"], &[]),
    (&["nothing"], &[]),
    (&["usr/link", "home/fifo", "home/null"], &[]),
    (&[], &["etc"]),
    (&[], &["*.conf", "cache"]),
    (&[], &["/etc", "./usr/lib"]),
    (&[], &["a.conf", "deep/*.o", "/sp*"]),
    (&["etc", "usr/*"], &["ssl", "*.o"]),
    (&["*"], &["[!/]/cache/*", "empty"]),
    (&["var", "home"], &["/var/cache/deep/er/*", "null"]),
    (&["*.conf"], &["e*c/*", "/usr"]),
];

/// The options of a selection.
fn words(selection: &(&[&str], &[&str])) -> Vec<String> {
    let include = selection.0.iter().map(|word| format!("--include={word}"));
    let exclude = selection.1.iter().map(|word| format!("--exclude={word}"));
    include.chain(exclude).collect()
}

/// The paths in an archive, with GNU tar's words for the members.
fn listed(archive: &Path, words: &[String]) -> (BTreeSet<Vec<u8>>, i32) {
    let mut all = vec!["-t".to_owned(), "--quoting-style=literal".to_owned()];
    all.push(format!("--file={}", archive.display()));
    all.extend_from_slice(words);
    let listed = run("tar", all);
    let paths = listed.out.lines().map(|path| {
        let path = path.strip_prefix("./").unwrap_or(path);
        path.strip_suffix('/').unwrap_or(path).as_bytes().to_vec()
    });
    (paths.collect(), listed.code())
}

/// What GNU tar selects, with the directories around it; and whether each pattern has a match.
fn wanted(archive: &Path, selection: &(&[&str], &[&str])) -> (BTreeSet<Vec<u8>>, bool) {
    let plain = |word: &str| word.trim_start_matches('.').trim_matches('/').to_owned();
    let mut words = ["--wildcards", "--no-unquote"].map(str::to_owned).to_vec();
    let is_anchored = |word: &&&str| word.starts_with(['/', '.']);
    for (anchored, option) in [(false, "--no-anchored"), (true, "--anchored")] {
        words.push(option.to_owned());
        let these = selection
            .1
            .iter()
            .filter(|word| is_anchored(word) == anchored);
        words.extend(these.map(|word| format!("--exclude={}", plain(word))));
    }
    words.extend(selection.0.iter().map(|word| plain(word)));
    let (mut paths, code) = listed(archive, &words);
    for path in paths.clone() {
        let slashes = (0..path.len()).filter(|at| path[*at] == b'/');
        paths.extend(slashes.map(|at| path[..at].to_vec()));
    }
    if !paths.is_empty() {
        paths.insert(Vec::new());
    }
    (paths, code == 0)
}

/// The files at these paths; other names of theirs are gone.
fn part_of(whole: &Tree, paths: &BTreeSet<Vec<u8>>) -> Tree {
    let mut part = whole.clone();
    part.nodes.retain(|path, _| paths.contains(path));
    assert_eq!(
        part.len(),
        paths.len(),
        "GNU tar has files that are not there"
    );
    let mut names: BTreeMap<Vec<u8>, Vec<Vec<u8>>> = BTreeMap::new();
    for (path, node) in &part.nodes {
        if let Some(first) = &node.same_as {
            names.entry(first.clone()).or_default().push(path.clone());
        }
    }
    for same in names.values() {
        for name in same {
            let node = part.nodes.get_mut(name).unwrap();
            node.nlink = same.len() as u64;
            node.same_as = same.first().cloned().filter(|_| same.len() > 1);
        }
    }
    part
}

#[test]
fn patterns_select_what_gnu_tar_selects() {
    let scratch = Scratch::new();
    let volumes = ["ext4", "f2fs"].map(|kind| filled_by(&scratch, kind, TREE));
    let source = &volumes[0].0;
    let whole = Tree::of(source);
    let (full, ours) = (scratch.join("full.tar"), scratch.join("ours.tar"));
    let pack = format!("cd {} && tar -cf {} -- *", source.display(), full.display());
    run("bash", ["-c", &pack]).expect(0);
    let mut seen = BTreeSet::new();
    for (number, selection) in SELECTIONS.iter().enumerate() {
        let (wanted, all_match) = wanted(&full, selection);
        let volume = volumes[number % 2].1.to_str().unwrap();
        let out = scratch.join(&format!("out{number}"));
        for command in [
            ["tar", volume, "-f", ours.to_str().unwrap()],
            ["extract", volume, "--", out.to_str().unwrap()],
        ] {
            let (name, rest) = command.split_first().unwrap();
            let line = [name].into_iter().map(|word| (*word).to_owned());
            let line = line.chain(words(selection));
            let line = line.chain(rest.iter().map(|word| (*word).to_owned()));
            let done = steadfs(line.collect::<Vec<_>>());
            assert_eq!(
                done.code(),
                i32::from(!all_match),
                "{selection:?} {}",
                done.err
            );
            let missing = done.err.matches(": no file matches\n").count();
            assert_eq!(missing > 0, !all_match, "{selection:?} {}", done.err);
        }
        let mut paths = listed(&ours, &[]).0;
        paths.remove(&b"lost+found"[..]);
        assert_eq!(paths, wanted, "{selection:?}");
        seen.insert(paths.len());
        if wanted.is_empty() {
            assert!(!out.exists(), "{selection:?}");
            continue;
        }
        let wanted = part_of(&whole, &wanted);
        let what = format!("{selection:?}");
        wanted.assert_same(&Tree::of(&out), Compare::COPY, &what);
        let unpacked = scratch.folder(&format!("tar{number}"));
        super::tar::unpack(&ours, &unpacked);
        wanted.assert_same(&Tree::of(&unpacked), Compare::COPY, &what);
    }
    assert!(seen.len() > 10, "the selections are alike: {seen:?}");
}

/// A directory in which no file can match is not read, and one that can match is.
#[test]
fn only_directories_that_can_match_are_read() {
    let scratch = Scratch::new();
    let volume = Image::mke2fs(&scratch, "a.img", 16 * MIB, &["-t", "ext4", "-O", "^64bit"]);
    for dir in ["top/bad", "top/good"] {
        fs::create_dir_all(scratch.join(dir)).unwrap();
        fs::write(scratch.join(dir).join("x.conf"), dir).unwrap();
    }
    cp(&[
        "-r",
        scratch.join("top").to_str().unwrap(),
        &at(&volume, "/"),
    ]);
    // Its only extent leads out of the volume.
    volume.debugfs("set_inode_field /top/bad block[5] 0x00ffff00\n");
    let place = at(&volume, "/top");
    let cases: [(&[&str], bool); 7] = [
        (&["--include=good/*"], false),
        (&["--include=g*"], false),
        (&["--exclude=bad"], false),
        (&["--include=*.conf", "--exclude=/b*"], false),
        (&["--include=bad/x"], true),
        (&["--include=*.conf"], true),
        (&["--exclude=bad/x"], true),
    ];
    for (number, (options, fails)) in cases.into_iter().enumerate() {
        let out = scratch.join(&number.to_string());
        let archive = scratch.join("archive");
        for line in [
            ["extract", &place, out.to_str().unwrap()],
            ["tar", &place, &format!("--file={}", archive.display())],
        ] {
            let done = steadfs(line.iter().chain(options));
            assert_eq!(done.code(), i32::from(fails), "{options:?}: {}", done.err);
            assert_eq!(
                done.err.contains("/top/bad"),
                fails,
                "{options:?}: {}",
                done.err
            );
            assert!(fails || done.err.is_empty(), "{options:?}: {}", done.err);
        }
        let is_there = options != ["--include=bad/x"];
        assert_eq!(out.join("good/x.conf").exists(), is_there, "{options:?}");
    }
}

#[test]
fn parts_are_extracted_into_one_directory() {
    let scratch = Scratch::new();
    let (source, volume) = filled_by(&scratch, "ext4", TREE);
    let out = scratch.join("out");
    let image = volume.to_str().unwrap();
    let usr = format!("{image}:/usr");
    for include in ["--include=lib/*.o", "--include=share/doc/*/.dot"] {
        steadfs(["extract", &usr, out.to_str().unwrap(), include]).expect(0);
    }
    let paths = [
        "",
        "lib",
        "lib/c.o",
        "lib/hard.o",
        "lib/cache",
        "lib/cache/c.o",
    ];
    let paths = paths
        .into_iter()
        .chain(["share", "share/doc", "share/doc/etc"]);
    let paths = paths.chain(["share/doc/etc/.dot"]);
    let wanted = part_of(
        &Tree::of(&source.join("usr")),
        &paths.map(Vec::from).collect(),
    );
    wanted.assert_same(&Tree::of(&out), Compare::COPY, "/usr");
    // A second time: what is there is not replaced, and reported by its name.
    let again = "--include=lib/hard.o";
    refused(&["extract", &usr, out.to_str().unwrap(), again], "hard.o");
    let file = format!("{image}:/etc/a.conf");
    let none = scratch.join("none");
    let none = none.to_str().unwrap();
    refused(&["extract", &file, none, "--include=*"], "is no directory");
    refused(
        &["tar", &file, "-f", none, "--exclude=x"],
        "is no directory",
    );
    refused(&["extract", image, none, "--exclude=./"], "cannot exclude");
    refused(
        &["extract", image, none, "--include="],
        "a pattern is empty",
    );
    let missing = ["extract", image, none, "--include=etc/none"];
    refused(&missing, "steadfs: etc/none: no file matches");
}
