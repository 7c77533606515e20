//! The background server of a mount.

use super::*;

/// A reader of the command's output gets end-of-file, and the caller can close all its descriptors, even if the server
/// has nearly none left.
#[test]
fn the_background_server_closes_its_callers_descriptors() {
    let scratch = Scratch::new();
    let image = Image::mke2fs(&scratch, "a.img", 64 * MIB, &["-t", "ext4"]);
    let dir = scratch.folder("mnt");
    let marker = scratch.join("marker");
    fs::write(&marker, b"").unwrap();
    for limit in ["", "ulimit -n 40;", "ulimit -n 12;"] {
        let command = format!(
            "{limit} {} mount {} {} 2>&1 </dev/zero 7<marker 9>>marker | timeout 100 cat",
            program().display(),
            image.path().display(),
            dir.display()
        );
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", &command]);
        shell.current_dir(scratch.path());
        let output = finish(shell, PATIENCE);
        if limit.ends_with("12;") {
            // Too few descriptors for a server: that is reported, and nothing else happens.
            assert_ne!(output.code(), 124, "{}", output.out);
        } else {
            assert_eq!(output.code(), 0, "{limit} {}", output.out);
            let kept = descriptors_of_server(image.path());
            let null = Path::new("/dev/null");
            assert!(kept[..3].iter().all(|path| path == null), "{kept:?}");
            assert!(!kept.contains(&marker), "{kept:?}");
        }
        if mounts_below(&dir).contains(&dir) {
            unmount(&dir);
        }
    }
    image.check_clean();
}

/// Open descriptors of the server of `image` in the background, in order.
fn descriptors_of_server(image: &Path) -> Vec<PathBuf> {
    let is_server = |process: &Path| {
        let words = fs::read(process.join("cmdline")).unwrap_or_default();
        let mut words = words.split(|&byte| byte == 0);
        words.clone().any(|word| word == b"--serve")
            && words.any(|word| word == image.as_os_str().as_encoded_bytes())
    };
    let processes = fs::read_dir("/proc").unwrap();
    let mut processes = processes.map(|entry| entry.unwrap().path());
    let server = processes.find(|process| is_server(process)).unwrap();
    let mut open: Vec<u32> = fs::read_dir(server.join("fd"))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
        .collect();
    open.sort_unstable();
    // A descriptor that was closed meanwhile is not kept.
    open.iter()
        .filter_map(|number| fs::read_link(server.join(format!("fd/{number}"))).ok())
        .collect()
}
