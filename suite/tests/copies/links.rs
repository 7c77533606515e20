//! Hard links among the operands of a copy.

use super::*;

#[test]
fn hard_links_are_kept_among_operands() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let source = scratch.folder("source");
    fs::write(source.join("a"), "both").unwrap();
    fs::hard_link(source.join("a"), source.join("b")).unwrap();
    let [a, b] = ["a", "b"].map(|name| source.join(name).to_str().unwrap().to_owned());
    for (kind, size) in [("ext4", 16 * MIB), ("f2fs", 64 * MIB)] {
        let volume = image(&scratch, kind, kind, size);
        cp(&["-a", &a, &b, &at(&volume, "/")]);
        steadfs(["mkdir", &at(&volume, "/again")]).expect(0);
        let [first, second] = ["/a", "/b"].map(|name| at(&volume, name));
        cp(&["-a", &first, &second, &at(&volume, "/again/")]);
        for folder in ["/", "/again/"] {
            let out = scratch.folder(&format!("out-{kind}{}", folder.replace('/', "-")));
            let all = at(&volume, &format!("{folder}?"));
            cp(&["-a", &all, out.to_str().unwrap()]);
            let found = ["a", "b"].map(|name| fs::metadata(out.join(name)).unwrap());
            assert_eq!(found[0].ino(), found[1].ino(), "{kind} {folder}");
            assert_eq!(found[0].nlink(), 2);
            let listed = steadfs([
                "find",
                &at(&volume, &format!("{folder}a")),
                "-printf",
                "%n\\n",
            ]);
            assert_eq!(listed.out, "2\n");
        }
    }
}

/// Also where operands of other images stand between them, in their order.
#[test]
fn hard_links_are_kept_among_operands_of_another_image() {
    use std::os::unix::fs::MetadataExt;
    let scratch = Scratch::new();
    let tree = scratch.folder("tree");
    fs::write(tree.join("a"), "both").unwrap();
    fs::hard_link(tree.join("a"), tree.join("b")).unwrap();
    let [ext4, f2fs] = [("ext4", 16 * MIB), ("f2fs", 64 * MIB)].map(|(kind, size)| {
        let volume = image(&scratch, kind, kind, size);
        cp(&[
            "-r",
            &format!("{}/.", tree.to_str().unwrap()),
            &at(&volume, "/"),
        ]);
        for (folder, name) in [("/1", "both"), ("/2", kind)] {
            steadfs(["mkdir", &at(&volume, folder)]).expect(0);
            let file = scratch.join("last");
            fs::write(&file, name).unwrap();
            cp(&[
                file.to_str().unwrap(),
                &at(&volume, &format!("{folder}/last")),
            ]);
        }
        volume
    });
    let target = image(&scratch, "target", "ext4", 16 * MIB);
    steadfs(["mkdir", &at(&target, "/all")]).expect(0);
    let missing = scratch.join("missing");
    let missing = format!("{}:/x", missing.to_str().unwrap());
    let operands = [
        &at(&ext4, "/a"),
        &at(&f2fs, "/1/."),
        &at(&ext4, "/2/."),
        &missing,
        &at(&f2fs, "/2/."),
        &at(&ext4, "/b"),
    ];
    let mut words = vec!["cp", "-a"];
    words.extend(operands.map(String::as_str));
    let to = at(&target, "/all/");
    words.push(&to);
    let copied = steadfs(words).expect(1);
    assert_eq!(copied.err.lines().count(), 1, "{}", copied.err);
    assert!(copied.err.contains("missing"), "{}", copied.err);
    cp(&["-a", &at(&f2fs, "/?"), &at(&target, "/")]);
    assert_eq!(content_of(&target, "/all/last"), "f2fs", "the last one");
    let out = scratch.folder("out");
    cp(&["-a", &at(&target, "/."), out.to_str().unwrap()]);
    for folder in ["all", "."] {
        let found = ["a", "b"].map(|name| fs::metadata(out.join(folder).join(name)).unwrap());
        assert_eq!(found[0].ino(), found[1].ino(), "{folder}");
        assert_eq!(found[0].nlink(), 2, "{folder}");
    }
    check_crossed(&ext4, &f2fs, &target);
    target.check_clean();
}

/// The hard links `a` and `b` of two images, of which each stands between those of the other.
fn check_crossed(ext4: &Image, f2fs: &Image, target: &Image) {
    for (old, new) in [("/a", "/x"), ("/b", "/y")] {
        steadfs(["mv", &at(f2fs, old), &at(f2fs, new)]).expect(0);
    }
    let crossed = at(target, "/crossed");
    steadfs(["mkdir", &crossed]).expect(0);
    let operands = [
        &at(ext4, "/a"),
        &at(f2fs, "/x"),
        &at(ext4, "/b"),
        &at(f2fs, "/y"),
    ];
    let mut words = vec!["-a", "-t", &crossed];
    words.extend(operands.map(String::as_str));
    cp(&words);
    let links = steadfs(["find", &crossed, "-type", "f", "-printf", "%n\\n"]);
    assert_eq!(links.expect(0).out, "2\n2\n2\n2\n");
}

fn content_of(image: &Image, path: &str) -> String {
    steadfs(["cat", &at(image, path)]).expect(0).out
}

/// A later operand writes into what an earlier one has copied, or takes its name.
#[test]
fn further_names_are_linked_to_their_own_content() {
    let scratch = Scratch::new();
    let [base, overlay, extra] = ["base", "overlay", "extra"].map(|name| scratch.folder(name));
    fs::write(base.join("f"), "one").unwrap();
    fs::hard_link(base.join("f"), extra.join("g")).unwrap();
    fs::write(overlay.join("f"), "two").unwrap();
    let trees = [base, overlay, extra].map(|path| format!("{}/.", path.to_str().unwrap()));
    for (kind, size) in [("ext4", 16 * MIB), ("f2fs", 64 * MIB)] {
        for how in ["-a", "-r"] {
            let volume = image(&scratch, &format!("{kind}{how}"), kind, size);
            let to = at(&volume, "/");
            cp(&[how, &trees[0], &trees[1], &trees[2], &to]);
            for (name, content) in [("/f", "two"), ("/g", "one")] {
                let found = steadfs(["cat", &at(&volume, name)]);
                assert_eq!(found.out, content, "{kind} {how} {name}");
            }
        }
    }
    // The first name is a link to another file, of which the second is to be no name.
    let volume = image(&scratch, "linked", "ext4", 16 * MIB);
    cp(&["-a", &trees[0], &at(&volume, "/")]);
    steadfs(["ln", &at(&volume, "/f"), &at(&volume, "/g")]).expect(0);
    let out = scratch.folder("out");
    std::os::unix::fs::symlink("elsewhere", out.join("f")).unwrap();
    fs::write(out.join("elsewhere"), "").unwrap();
    cp(&[
        &at(&volume, "/f"),
        &at(&volume, "/g"),
        out.to_str().unwrap(),
    ]);
    assert_eq!(fs::read(out.join("elsewhere")).unwrap(), b"one");
    let found = ["elsewhere", "g"].map(|name| fs::metadata(out.join(name)).unwrap());
    assert_eq!(
        found.map(|file| std::os::unix::fs::MetadataExt::nlink(&file)),
        [1, 1]
    );
    assert_eq!(fs::read(out.join("g")).unwrap(), b"one");
}
