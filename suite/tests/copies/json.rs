//! `--json`: what it says is what GNU find and du say of a kernel mount.

use serde_json::Value;

use super::*;

const TREE: &str = r#"
mkdir -p a/b .hid; printf 12345 >a/file; truncate -s 70000 a/sparse; ln a/file a/b/hard; ln -s ../file a/b/link
mknod a/null c 1 300; mkfifo a/fifo; printf x >$'a/\xff\\"\n'; ln -s $'to\xfe' a/odd; printf y >a/ä
chmod 4755 a/file; chown 1000:33 a/sparse; touch -d 1965-02-03T04:05:06.7 a/file; setfattr -n user.one -v 1 a/sparse
"#;

fn filled(scratch: &Scratch, kind: &str) -> PathBuf {
    filled_by(scratch, kind, TREE).1
}

/// The document that a command prints, and its exit code.
#[track_caller]
fn document(words: &[&str]) -> (Value, i32) {
    let output = steadfs(words);
    let value = serde_json::from_str(&output.out);
    let value = value.unwrap_or_else(|error| panic!("{words:?}: {error}: {}", output.out));
    (value, output.code())
}

/// The bytes of a name.
fn bytes(file: &Value, field: &str) -> Vec<u8> {
    match file[&format!("{field}_hex")].as_str() {
        Some(hex) => {
            let digits = (0..hex.len()).step_by(2);
            digits
                .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
                .collect()
        }
        None => file[field].as_str().unwrap().as_bytes().to_vec(),
    }
}

/// A file's attributes in the form of the question below.
fn described(file: &Value) -> Vec<u8> {
    let time = |field: &str| {
        let time = file[field].as_str().unwrap();
        assert!(time.ends_with('Z'), "{time}");
        format!("{}0", &time[..time.len() - 1])
    };
    let number = |field: &str| file[field].as_u64().unwrap();
    let letter = match file["type"].as_str().unwrap() {
        "file" => 'f',
        "directory" => 'd',
        "symlink" => 'l',
        "char_device" => 'c',
        "fifo" => 'p',
        other => panic!("{other}"),
    };
    let mode = u32::from_str_radix(file["mode"].as_str().unwrap(), 8).unwrap();
    let mut text = bytes(file, "path");
    let numbers = ["inode", "links", "uid", "gid", "size"]
        .map(number)
        .map(|n| n.to_string());
    let blocks = number("allocated") / 512;
    let (mtime, ctime) = (time("mtime"), time("ctime"));
    text.extend(
        format!(
            "|{letter}|{mode:o}|{}|{blocks}|{mtime}|{ctime}|",
            numbers.join(" ")
        )
        .bytes(),
    );
    if letter == 'l' {
        text.extend(bytes(file, "target"));
    }
    text
}

const QUESTION: &str = r"/%P|%y|%m|%i %n %U %G %s|%b|%TFT%TT|%CFT%CT|%l\0";

/// All files of a tree, `entries` taken apart.
fn flattened(files: &Value, all: &mut Vec<Value>) {
    for file in files.as_array().unwrap() {
        let mut file = file.clone();
        let entries = file.as_object_mut().unwrap().remove("entries");
        assert_eq!(entries.is_some(), file["type"] == "directory", "{file}");
        all.push(file);
        flattened(&entries.unwrap_or(Value::Array(Vec::new())), all);
    }
}

#[test]
fn json_says_what_gnu_find_and_du_say() {
    let scratch = Scratch::new();
    let volume = filled(&scratch, "ext4");
    let mount = KernelMount::new(&scratch, &volume, "ro");
    let mut command = Command::new("find");
    command
        .arg(mount.root())
        .args(["-printf", QUESTION])
        .env("TZ", "UTC");
    let mut wanted: Vec<Vec<u8>> = command
        .output()
        .unwrap()
        .stdout
        .split(|b| *b == 0)
        .map(<[u8]>::to_vec)
        .collect();
    wanted.retain(|line| !line.is_empty());
    wanted.sort();
    let used = run(
        "du",
        [
            "-a".as_ref(),
            "--block-size=1".as_ref(),
            mount.root().as_os_str(),
        ],
    )
    .expect(0)
    .out;
    let used: u64 = used
        .lines()
        .filter_map(|line| line.split('\t').next()?.parse::<u64>().ok())
        .sum();
    mount.unmount();
    let at = volume.to_str().unwrap();
    let (found, code) = document(&["find", "--json", at]);
    assert_eq!(code, 0);
    let sorted = |files: &[Value]| {
        let mut lines: Vec<_> = files.iter().map(described).collect();
        lines.sort();
        lines
    };
    assert_eq!(sorted(found.as_array().unwrap()), wanted);
    let (tree, _) = document(&["tree", "--json", "-a", at]);
    let mut files = Vec::new();
    flattened(&tree, &mut files);
    assert_eq!(sorted(&files), wanted);
    let (listed, _) = document(&["ls", "--json", "-RA", at]);
    let mut files = listed.as_array().unwrap().clone();
    files.push(document(&["ls", "--json", "-d", at]).0[0].clone());
    assert_eq!(sorted(&files), wanted);
    let (counted, _) = document(&["du", "--json", "-a", at]);
    let sum: u64 = counted
        .as_array()
        .unwrap()
        .iter()
        .map(|file| file["size"].as_u64().unwrap())
        .sum();
    assert_eq!(sum, used);
    assert!(
        counted
            .as_array()
            .unwrap()
            .iter()
            .all(|file| file["image"] == at),
        "{counted}"
    );
}

#[test]
fn json_of_stat_has_all_attributes() {
    let scratch = Scratch::new();
    for kind in ["ext4", "f2fs"] {
        let volume = filled(&scratch, kind);
        let at = |path: &str| format!("{}:{path}", volume.display());
        let (files, code) = document(&[
            "stat",
            "--json",
            &at("/a/sparse"),
            &at("/a/null"),
            &at("/none"),
        ]);
        assert_eq!(
            (code, files.as_array().unwrap().len()),
            (1, 2),
            "{kind}: {files}"
        );
        assert_eq!(
            files[0]["xattrs"],
            serde_json::json!([{"name": "user.one"}]),
            "{kind}"
        );
        assert_eq!(
            (&files[0]["uid"], &files[0]["size"]),
            (&1000.into(), &70_000.into())
        );
        assert_eq!(
            files[1]["device"],
            serde_json::json!({"major": 1, "minor": 300})
        );
        assert!(
            files[0]["generation"].is_u64() && files[0]["flags"].is_u64(),
            "{files}"
        );
        fs::remove_dir_all(scratch.join("source")).unwrap();
    }
}

#[test]
fn json_is_one_document_after_errors() {
    let scratch = Scratch::new();
    let volume = filled(&scratch, "ext4");
    let image = Image::at(volume.clone());
    let at = volume.to_str().unwrap();
    let (clean, code) = document(&["check", "--json", at]);
    assert_eq!(
        (&clean["clean"], &clean["format"], code),
        (&true.into(), &"ext".into(), 0)
    );
    image.debugfs("clri /a/fifo");
    let (report, code) = document(&["check", "--json", at]);
    assert_eq!((&report["clean"], code), (&false.into(), 4), "{report}");
    let issues = report["issues"].as_array().unwrap();
    assert!(
        issues
            .iter()
            .any(|issue| issue.as_str().unwrap().contains("fifo")),
        "{report}"
    );
    let broken = |files: &Value| {
        let files = files.as_array().unwrap();
        files
            .iter()
            .filter(|file| file["error"].is_string())
            .map(|file| file["path"].clone())
            .collect::<Vec<_>>()
    };
    let (listed, code) = document(&["ls", "--json", &format!("{at}:/a")]);
    assert_eq!(
        (broken(&listed), code),
        (vec!["/a/fifo".into()], 1),
        "{listed}"
    );
    let (tree, code) = document(&["tree", "--json", &format!("{at}:/a")]);
    assert_eq!(
        (broken(&tree[0]["entries"]), code),
        (vec!["/a/fifo".into()], 1),
        "{tree}"
    );
    for words in [
        &["find", "--json"][..],
        &["du", "--json"],
        &["ls", "--json"],
        &["stat", "--json"],
        &["tree", "--json"],
    ] {
        let none = format!("{at}:/none");
        let (nothing, code) = document(&[words, &[&none]].concat());
        assert!(
            nothing == serde_json::json!([]) && code > 0,
            "{words:?}: {nothing} {code}"
        );
    }
    let both = steadfs(["find", "--json", at, "-print0"]);
    assert!(
        both.code() == 1 && both.err.contains("--json goes with -print only"),
        "{}",
        both.err
    );
    assert_eq!(steadfs(["du", "--json", "-h", at]).code(), 2);
}
