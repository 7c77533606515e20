//! Random corruption: never a panic, and nothing that e2fsck finds is missed.

use super::*;

/// A small generator with a seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) % limit
    }
}

fn small(options: &[&str]) -> Image {
    let mut all = vec!["-b", "1024", "-N", "400"];
    all.extend_from_slice(options);
    let no_journal = |option: &&str| option.contains("^has_journal") || *option == "ext2";
    if !options.iter().any(no_journal) {
        all.extend_from_slice(&["-J", "size=1"]);
    }
    populated(&all, "4M")
}

/// Offsets of bytes that are worth flipping: those of blocks that hold anything but file content.
fn worth_flipping(bytes: &[u8]) -> Vec<usize> {
    let blocks = bytes.chunks(1024).enumerate();
    let is_data = |block: &[u8]| block.iter().all(|&b| b == 0x5A || b == b'v');
    let is_empty = |block: &[u8]| block.iter().all(|&b| b == 0);
    blocks
        .filter(|(_, block)| !is_data(block) && !is_empty(block))
        .flat_map(|(i, _)| i * 1024..(i + 1) * 1024)
        .collect()
}

#[test]
fn random_flips_never_panic() {
    let mut random = Random(7);
    for options in [
        &["-t", "ext4"][..],
        &["-t", "ext4", "-O", "^metadata_csum"],
        &["-t", "ext2"],
    ] {
        let good = small(options).bytes();
        let places = worth_flipping(&good);
        for _ in 0..1000 {
            let mut bytes = good.clone();
            for _ in 0..=random.below(4) {
                let at = places[random.below(places.len() as u64) as usize];
                bytes[at] ^= 1 << random.below(8);
            }
            check(&bytes, &Options::default());
        }
    }
}

/// One wrong byte somewhere: what e2fsck finds is found.
#[test]
fn nothing_that_e2fsck_finds_is_missed() {
    let same = [
        "-U",
        "5d1f0c1e-8a52-4f0e-9c3b-2f6d7a1b4c5e",
        "-E",
        "hash_seed=0a1b2c3d-4e5f-4a6b-8c7d-9e0f1a2b3c4d",
    ];
    let kinds: [&[&str]; 4] = [
        &["-t", "ext4"],
        &["-t", "ext4", "-O", "^metadata_csum"],
        &["-t", "ext2"],
        &[
            "-t",
            "ext4",
            "-O",
            "^has_journal,^metadata_csum,uninit_bg",
            "-I",
            "128",
        ],
    ];
    // Not reported by this checker: a journal UUID on a volume without a journal, unknown features that allow
    // reading, and times of mount and write that are in the future by e2fsck's clock.
    let not_ours = [0x42C..0x434, 0x45C..0x460, 0x464..0x468, 0x4D0..0x4E0];
    let (mut random, mut found) = (Random(11), 0);
    for kind in kinds {
        let mut options = kind.to_vec();
        options.extend_from_slice(&same);
        let good = small(&options).bytes();
        let places = worth_flipping(&good);
        for _ in 0..120 {
            let at = places[random.below(places.len() as u64) as usize];
            let value = random.below(256) as u8;
            if not_ours.iter().any(|range| range.contains(&at)) {
                continue;
            }
            let mut bytes = good.clone();
            bytes[at] = value;
            let report = check(&bytes, &Options::default());
            if !report.is_clean() {
                found += 1;
                continue;
            }
            let image = Image::of(&bytes);
            let (code, words) = e2fsck(&image.path());
            assert_eq!(code, 0, "{kind:?}: byte {at:#x} set to {value:#x}: {words}");
        }
    }
    assert!(found > 50, "only {found} flips were damage");
}
