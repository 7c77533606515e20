//! What lies in front of the program, made byte by byte.

use super::*;

const MIB: u64 = 1 << 20;

fn found(bytes: &[u8]) -> Found {
    recognise(&bytes, &held)
}

/// A volume in the second partition.
fn held(_: &dyn BlockSource, at: u64) -> Option<Held> {
    let (kind, label) = ("ext4", "system".to_owned());
    (at == 9 * MIB).then_some(Held { kind, label })
}

#[track_caller]
fn says(bytes: &[u8], word: &str) {
    let said = found(bytes).to_string();
    assert!(said.contains(word), "{word}: {said}");
}

fn with(at: usize, magic: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 300 << 10];
    bytes[at..at + magic.len()].copy_from_slice(magic);
    bytes
}

#[test]
fn everything_has_its_name() {
    for (at, magic, word) in [
        (0, &b"\x3a\xff\x26\xed"[..], "simg2img"),
        (0, b"QFI\xfb\0\0\0\x03", "qcow2"),
        (0, b"KDMV", "VMDK"),
        (0, b"vhdxfile", "VHDX"),
        ((300 << 10) - 512, b"conectix", "VHD"),
        (64, b"\x7f\x10\xda\xbe", "VDI"),
        (0, b"LUKS\xba\xbe\0\x02", "cryptsetup open"),
        (536, b"LVM2 001", "vgchange"),
        (4096, b"\xfc\x4e\x2b\xa9", "mdadm --assemble"),
        ((300 << 10) - 8192, b"\xfc\x4e\x2b\xa9", "mdadm --assemble"),
        (1024, b"\xe2\xe1\xf5\xe0", "EROFS"),
        (0, b"hsqs", "squashfs"),
        (65600, b"_BHRfS_M", "btrfs"),
        (32769, b"CD001", "ISO 9660"),
        (4086, b"SWAPSPACE2", "swap"),
        ((128 << 10) + 5 * 1024, b"\x0c\xb1\xba\0\0\0\0\0", "ZFS"),
        (0, b"\x1f\x8b\x08", "gzip -d"),
        (0, b"\xfd7zXZ\0", "xz -d"),
        (0, b"\x28\xb5\x2f\xfd", "zstd -d"),
        (0, b"BZh9\x31\x41\x59\x26\x53\x59", "bzip2 -d"),
        (0, b"\x5d\0\0\x80\0\xff\xff\xff\xff\xff\xff\xff\xff", "lzma"),
        (257, b"ustar", "tar archive"),
        (4096, b"\x67\x44\x6c\x61", "Android super"),
    ] {
        says(&with(at, magic), word);
    }
    says(b"", "empty");
    says(b"\0\0\0\0\0\0\0\0\x01", "9 bytes are too few");
    says(&vec![0; 1 << 20], "only zeros");
    says(&vec![0xff; 1 << 20], "nothing else that is known");
    says(&b"words\n".repeat(1000), "text file");
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A disk of 40 MiB with a GPT: partitions of 8 MiB at 1 MiB and of 20 MiB at 9 MiB.
fn gpt(sector: usize) -> Vec<u8> {
    let mut disk = vec![0; 40 << 20];
    let last = disk.len() - sector;
    let mut entries = vec![0; 128 * 128];
    // 0FC63DAF-8483-4772-8E79-3D69D8477DE4 as it is stored.
    let linux = [
        0xaf, 0x3d, 0xc6, 0x0f, 0x83, 0x84, 0x72, 0x47, 0x8e, 0x79, 0x3d, 0x69, 0xd8, 0x47, 0x7d,
        0xe4,
    ];
    for (slot, start, end, name) in [(0, 1, 9, "boot"), (4, 9, 29, "root")] {
        let entry = &mut entries[slot * 128..(slot + 1) * 128];
        put(entry, 0, &linux);
        put(entry, 32, &((start << 20) / sector as u64).to_le_bytes());
        put(entry, 40, &((end << 20) / sector as u64 - 1).to_le_bytes());
        for (i, unit) in name.encode_utf16().enumerate() {
            put(entry, 56 + 2 * i, &unit.to_le_bytes());
        }
    }
    let sum = !steadfs_base::checksum::crc32_le(!0, &entries);
    let behind = last - entries.len();
    for (at, list) in [(sector, 2 * sector), (last, behind)] {
        put(&mut disk, list, &entries);
        let mut header = [0; 92];
        put(&mut header, 0, b"EFI PART\0\0\x01\0\x5c\0\0\0");
        put(&mut header, 24, &(at as u64 / sector as u64).to_le_bytes());
        put(
            &mut header,
            72,
            &(list as u64 / sector as u64).to_le_bytes(),
        );
        put(&mut header, 80, &128u32.to_le_bytes());
        put(&mut header, 84, &128u32.to_le_bytes());
        put(&mut header, 88, &sum.to_le_bytes());
        let own = !steadfs_base::checksum::crc32_le(!0, &header);
        put(&mut header, 16, &own.to_le_bytes());
        put(&mut disk, at, &header);
    }
    mbr_entry(&mut disk, 0, 0xee, 1, 0xffff_ffff);
    disk
}

fn mbr_entry(sector: &mut [u8], slot: usize, kind: u8, first: u32, sectors: u32) {
    let at = 446 + 16 * slot;
    sector[at + 4] = kind;
    put(sector, at + 8, &first.to_le_bytes());
    put(sector, at + 12, &sectors.to_le_bytes());
    put(sector, 510, b"\x55\xaa");
}

fn table(bytes: &[u8]) -> Table {
    match found(bytes) {
        Found::Partitioned(table) => table,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_gpt_is_listed_from_either_copy_and_with_either_sector() {
    for sector in [512, 4096] {
        let disk = gpt(sector);
        let whole = table(&disk);
        let places: Vec<_> = whole
            .partitions
            .iter()
            .map(|part| (part.number, part.start, part.bytes))
            .collect();
        assert_eq!(places, [(1, MIB, 8 * MIB), (5, 9 * MIB, 20 * MIB)]);
        let said = whole.to_string();
        assert!(
            said.contains("-o offset=9437184, 20 MiB, Linux, \"root\": ext4 \"system\""),
            "{said}"
        );
        for damaged in [sector + 20, 2 * sector + 33] {
            let mut disk = disk.clone();
            disk[damaged] ^= 1;
            let other = table(&disk);
            assert_eq!(other.partitions, whole.partitions);
            assert!(other.flaw.is_some());
        }
        let mut both = disk.clone();
        let last = both.len() - sector;
        both[sector + 20] ^= 1;
        both[last + 20] ^= 1;
        assert!(table(&both).to_string().contains("gdisk"));
    }
}

#[test]
fn a_partition_is_chosen_by_number_name_or_label() {
    let mut found = table(&gpt(512));
    let chosen = |found: &Table, which: &str| found.choose(which).map(|part| part.number);
    for (which, number) in [("1", 1), ("5", 5), ("boot", 1), ("root", 5), ("system", 5)] {
        assert_eq!(chosen(&found, which), Ok(number), "{which}");
    }
    for which in ["", "2", "Root", "-1", "ext4"] {
        let why = chosen(&found, which).unwrap_err();
        assert!(why.contains("offset=9437184"), "{which}: {why}");
    }
    // A name of the table goes before a label; a number goes before both.
    found.partitions[0].name = "system".to_owned();
    assert_eq!(chosen(&found, "system"), Ok(1));
    found.partitions[1].name = "system".to_owned();
    assert_eq!(
        chosen(&found, "system").unwrap_err(),
        "has several partitions \"system\" (1, 5): give the number"
    );
    found.partitions[0].name = "5".to_owned();
    assert_eq!(chosen(&found, "5"), Ok(5));
}

#[test]
fn an_mbr_is_listed_with_its_logical_partitions() {
    let mut disk = vec![0; 40 << 20];
    mbr_entry(&mut disk, 0, 0x83, 2048, 4096);
    mbr_entry(&mut disk, 1, 0x05, 16384, 60000);
    mbr_entry(&mut disk[16384 * 512..], 0, 0x83, 2048, 8192);
    mbr_entry(&mut disk[16384 * 512..], 1, 0x05, 20000, 20000);
    mbr_entry(&mut disk[36384 * 512..], 0, 0x82, 100, 1000);
    // A chain that leads back to its start ends.
    mbr_entry(&mut disk[36384 * 512..], 1, 0x05, 0, 20000);
    let places: Vec<_> = table(&disk)
        .partitions
        .iter()
        .map(|part| (part.number, part.start / 512, part.kind.clone()))
        .collect();
    let expected = [
        (1, 2048, "Linux"),
        (5, 18432, "Linux"),
        (6, 36484, "Linux swap"),
    ];
    assert_eq!(
        places,
        expected.map(|(n, at, kind)| (n, at, kind.to_owned()))
    );
    assert!(
        table(&disk).to_string().contains("offset=9437184"),
        "a multiple of 512"
    );
    // Sectors of 4096 bytes, where that leads to a volume.
    let mut long = vec![0; 40 << 20];
    mbr_entry(&mut long, 0, 0x83, 2304, 4096);
    assert_eq!(table(&long).partitions[0].start, 9 * MIB);
    // A boot sector of something else has no table.
    let mut boot = vec![0x90; 1 << 20];
    put(&mut boot, 510, b"\x55\xaa");
    assert_eq!(found(&boot), Found::Unknown);
}

/// Whatever the bytes are, there is an answer, and it is not long.
#[test]
fn bytes_at_random_are_borne() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let bases = [gpt(512), gpt(4096)];
    for round in 0..400 {
        let mut bytes = bases[round % 2][..(1 << 20) + round * 7].to_vec();
        for _ in 0..20 {
            let at = next() as usize % 20_000;
            bytes[at] = next() as u8;
            let at = 440 + next() as usize % 800;
            bytes[at] = next() as u8;
        }
        let said = found(&bytes).to_string();
        assert!(said.len() < 64 << 10, "{}", said.len());
    }
    for len in 0..3000 {
        let bytes: Vec<u8> = (0..len).map(|_| next() as u8).collect();
        let _ = found(&bytes).to_string();
    }
}
