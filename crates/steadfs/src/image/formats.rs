//! Formats that are not volumes, by magic number, and what to do with them.

/// A known format.
#[derive(Debug, PartialEq, Eq)]
pub struct Format {
    /// For a list.
    pub word: &'static str,
    /// For a sentence, with its article.
    pub name: &'static str,
    /// What to do with it.
    pub advice: &'static str,
}

/// A magic number at a fixed offset.
pub(super) struct Magic {
    pub(super) at: usize,
    pub(super) bytes: &'static [u8],
    pub(super) format: Format,
}

const fn magic(
    at: usize,
    bytes: &'static [u8],
    word: &'static str,
    name: &'static str,
    advice: &'static str,
) -> Magic {
    let format = Format { word, name, advice };
    Magic { at, bytes, format }
}

const QEMU: &str = "qemu-nbd --persistent --socket=PATH serves it as nbd+unix:///?socket=PATH, qemu-img convert -O raw makes a plain image of it";
const KERNEL: &str = "the kernel mounts it, with mount(8)";
const UNPACK: &str = "unpack it and use what was in it";
const ASSEMBLE: &str = "mdadm --assemble makes the device that holds the volume";
const CRYPT: &str = "cryptsetup open makes the device that holds the volume";
const FLASH: &str = "it is made for flash memory: write it there, or onto the kernel's nandsim";

/// Formats with their magic number at or near the start.
pub(super) static START: &[Magic] = &[
    magic(
        0,
        b"\x3a\xff\x26\xed",
        "Android sparse",
        "is an Android sparse image",
        "simg2img makes a raw image of it; where it is a file of its own it is read as it is",
    ),
    magic(
        0,
        b"QFI\xfb\0\0\0\x01",
        "qcow",
        "is a qcow image of QEMU's",
        QEMU,
    ),
    magic(0, b"QFI\xfb", "qcow2", "is a qcow2 image of QEMU's", QEMU),
    magic(0, b"QED\0", "QED", "is a QED image of QEMU's", QEMU),
    magic(0, b"KDMV", "VMDK", "is a VMDK image of VMware's", QEMU),
    magic(0, b"COWD", "VMDK", "is a VMDK image of VMware's", QEMU),
    magic(
        0,
        b"# Disk DescriptorFile",
        "VMDK",
        "is the description of a VMDK image of VMware's",
        "use the file that it names, or qemu-img convert -O raw",
    ),
    magic(0, b"vhdxfile", "VHDX", "is a VHDX image of Hyper-V's", QEMU),
    magic(
        0,
        b"conectix",
        "VHD",
        "is a dynamic VHD image of Hyper-V's",
        QEMU,
    ),
    magic(
        64,
        b"\x7f\x10\xda\xbe",
        "VDI",
        "is a VDI image of VirtualBox's",
        QEMU,
    ),
    magic(
        0,
        b"WithoutFreeSpace",
        "Parallels",
        "is an image of Parallels's",
        QEMU,
    ),
    magic(
        0,
        b"WithouFreSpacExt",
        "Parallels",
        "is an image of Parallels's",
        QEMU,
    ),
    magic(
        0,
        b"EVF\x09\x0d\x0a\xff\0",
        "EWF",
        "is an EnCase image (EWF)",
        "ewfmount shows the disk in it",
    ),
    magic(
        0,
        b"AFF10\r\n\0",
        "AFF",
        "is a forensic image (AFF)",
        "affuse shows the disk in it",
    ),
    magic(
        0,
        b"MComprHD",
        "CHD",
        "is a compressed disk image (CHD)",
        "chdman extracthd makes a plain image of it",
    ),
    magic(
        0,
        b"partclone-image",
        "partclone",
        "is an image of partclone's",
        "partclone.restore makes a plain image of it",
    ),
    magic(0, b"LUKS\xba\xbe", "LUKS", "is encrypted (LUKS)", CRYPT),
    magic(
        3,
        b"-FVE-FS-",
        "BitLocker",
        "is encrypted (BitLocker)",
        CRYPT,
    ),
    magic(
        0,
        b"hsqs",
        "squashfs",
        "is a squashfs file system",
        "unsquashfs unpacks it, mount(8) mounts it",
    ),
    magic(
        0,
        b"sqsh",
        "squashfs",
        "is a squashfs file system of the other byte order",
        "unsquashfs unpacks it",
    ),
    magic(0, b"XFSB", "xfs", "is an xfs file system", KERNEL),
    magic(3, b"NTFS    ", "ntfs", "is an NTFS file system", KERNEL),
    magic(3, b"EXFAT   ", "exfat", "is an exFAT file system", KERNEL),
    magic(
        3,
        b"ReFS\0\0\0\0",
        "ReFS",
        "is a ReFS file system",
        "only Windows reads it",
    ),
    magic(54, b"FAT12   ", "fat", "is a FAT file system", KERNEL),
    magic(54, b"FAT16   ", "fat", "is a FAT file system", KERNEL),
    magic(82, b"FAT32   ", "fat", "is a FAT file system", KERNEL),
    magic(
        32,
        b"NXSB",
        "APFS",
        "is an APFS container of Apple's",
        "apfs-fuse reads it",
    ),
    magic(
        0,
        b"\x45\x3d\xcd\x28",
        "cramfs",
        "is a cramfs file system",
        KERNEL,
    ),
    magic(
        0,
        b"\x28\xcd\x3d\x45",
        "cramfs",
        "is a cramfs file system of the other byte order",
        "cramfsck -x unpacks it",
    ),
    magic(0, b"-rom1fs-", "romfs", "is a romfs file system", KERNEL),
    magic(
        0,
        b"\x85\x19\x03\x20",
        "jffs2",
        "is a jffs2 file system",
        FLASH,
    ),
    magic(
        0,
        b"\x85\x19\x01\xe0",
        "jffs2",
        "is a jffs2 file system",
        FLASH,
    ),
    magic(
        0,
        b"\x85\x19\x02\xe0",
        "jffs2",
        "is a jffs2 file system",
        FLASH,
    ),
    magic(
        0,
        b"\x19\x85\x20\x03",
        "jffs2",
        "is a jffs2 file system",
        FLASH,
    ),
    magic(
        0,
        b"\x19\x85\xe0\x01",
        "jffs2",
        "is a jffs2 file system",
        FLASH,
    ),
    magic(
        0,
        b"\x19\x85\xe0\x02",
        "jffs2",
        "is a jffs2 file system",
        FLASH,
    ),
    magic(0, b"UBI#", "UBI", "is an UBI image", FLASH),
    magic(
        0,
        b"\x31\x18\x10\x06",
        "ubifs",
        "is an UBIFS file system",
        FLASH,
    ),
    magic(
        0,
        b"\xfc\x4e\x2b\xa9",
        "RAID",
        "is a member of a software RAID",
        ASSEMBLE,
    ),
    magic(
        0,
        b"verity\0\0",
        "dm-verity",
        "is a tree of hashes (dm-verity)",
        "the volume lies on the device that it verifies",
    ),
    magic(
        0,
        b"integrt\0",
        "dm-integrity",
        "is a device of dm-integrity",
        "integritysetup open makes the device that holds the volume",
    ),
    magic(
        0,
        b"dmvdo001",
        "VDO",
        "is a VDO device",
        "lvchange -ay makes the device that holds the volume",
    ),
    magic(
        0,
        b"\x1f\x8b\x08",
        "gzip",
        "is compressed with gzip",
        "gzip -d unpacks it",
    ),
    magic(
        0,
        b"\xfd7zXZ\0",
        "xz",
        "is compressed with xz",
        "xz -d unpacks it",
    ),
    magic(
        0,
        b"\x28\xb5\x2f\xfd",
        "zstd",
        "is compressed with zstd",
        "zstd -d unpacks it",
    ),
    magic(
        0,
        b"\x04\x22\x4d\x18",
        "lz4",
        "is compressed with lz4",
        "lz4 -d unpacks it",
    ),
    magic(
        0,
        b"\x02\x21\x4c\x18",
        "lz4",
        "is compressed with lz4",
        "lz4 -d unpacks it",
    ),
    magic(
        0,
        b"\x89LZO\0\r\n\x1a\n",
        "lzop",
        "is compressed with lzop",
        "lzop -d unpacks it",
    ),
    magic(
        0,
        b"\x1f\x9d",
        "compress",
        "is compressed with compress(1)",
        "gzip -d unpacks it",
    ),
    magic(0, b"PK\x03\x04", "zip", "is a zip archive", UNPACK),
    magic(0, b"7z\xbc\xaf\x27\x1c", "7z", "is a 7z archive", UNPACK),
    magic(0, b"Rar!\x1a\x07", "rar", "is a rar archive", UNPACK),
    magic(
        257,
        b"ustar",
        "tar",
        "is a tar archive",
        "tar -x unpacks it; steadfs format -d makes a volume of a folder",
    ),
    magic(
        0,
        b"070701",
        "cpio",
        "is a cpio archive",
        "cpio -i unpacks it",
    ),
    magic(
        0,
        b"070702",
        "cpio",
        "is a cpio archive",
        "cpio -i unpacks it",
    ),
    magic(
        0,
        b"070707",
        "cpio",
        "is a cpio archive",
        "cpio -i unpacks it",
    ),
    magic(
        0,
        b"ANDROID!",
        "Android boot",
        "is an Android boot image",
        "unpack_bootimg takes kernel and ramdisk out of it",
    ),
    magic(
        0,
        b"VNDRBOOT",
        "Android boot",
        "is an Android vendor_boot image",
        "unpack_bootimg takes its ramdisks out of it",
    ),
    magic(
        0,
        b"AVB0",
        "vbmeta",
        "is an Android vbmeta image",
        "it holds signatures only",
    ),
    magic(
        0,
        b"CrAU",
        "OTA payload",
        "is the payload of an Android update",
        "payload-dumper takes the images out of it",
    ),
    magic(
        0,
        b"\x27\x05\x19\x56",
        "uImage",
        "is a boot image of U-Boot's",
        "dumpimage takes it apart",
    ),
    magic(
        0,
        b"\xd0\x0d\xfe\xed",
        "device tree",
        "is a device tree or a FIT image of U-Boot's",
        "dumpimage takes it apart",
    ),
    magic(
        0,
        b"\x7fELF",
        "ELF",
        "is a program (ELF)",
        "was another file meant?",
    ),
    magic(
        0,
        b"version https://git-lfs",
        "Git LFS",
        "is a pointer to a file in Git LFS",
        "git lfs pull brings the file itself",
    ),
    magic(
        0,
        b"<!DOCTYPE",
        "HTML",
        "is an HTML page",
        "did a download bring an error page in place of the image?",
    ),
    magic(
        0,
        b"<html",
        "HTML",
        "is an HTML page",
        "did a download bring an error page in place of the image?",
    ),
];

/// Formats that fill the device although a boot sector with a partition table can precede them.
pub(super) static BEFORE_A_TABLE: &[Magic] = &[
    magic(
        32769,
        b"CD001",
        "iso9660",
        "is an ISO 9660 file system",
        KERNEL,
    ),
    magic(32769, b"BEA01", "udf", "is a UDF file system", KERNEL),
    magic(
        4096,
        b"\x67\x44\x6c\x61",
        "Android super",
        "is an Android super image (dynamic partitions)",
        "lpunpack takes its partitions out of it; where it is a file of its own it is read as it is",
    ),
    magic(24, b"LVM2 001", "LVM", "is a physical volume of LVM", LVM),
    magic(536, b"LVM2 001", "LVM", "is a physical volume of LVM", LVM),
    magic(1048, b"LVM2 001", "LVM", "is a physical volume of LVM", LVM),
    magic(1560, b"LVM2 001", "LVM", "is a physical volume of LVM", LVM),
];

const LVM: &str = "vgchange -ay makes the devices that hold its volumes";

/// Formats with their magic number further in.
pub(super) static WITHIN: &[Magic] = &[
    magic(
        1024,
        b"\xe2\xe1\xf5\xe0",
        "erofs",
        "is an EROFS file system",
        KERNEL,
    ),
    magic(
        65600,
        b"_BHRfS_M",
        "btrfs",
        "is a btrfs file system",
        KERNEL,
    ),
    magic(
        4096,
        b"\xfc\x4e\x2b\xa9",
        "RAID",
        "is a member of a software RAID",
        ASSEMBLE,
    ),
    magic(
        4120,
        b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81",
        "bcache",
        "is a device of bcache",
        "the volume is on /dev/bcache0, once the kernel has it registered",
    ),
    magic(
        4120,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        "bcachefs",
        "is a bcachefs file system",
        KERNEL,
    ),
    magic(
        1024,
        b"H+\0\x04",
        "hfsplus",
        "is an HFS+ file system",
        KERNEL,
    ),
    magic(
        1024,
        b"HX\0\x05",
        "hfsplus",
        "is an HFS+ file system",
        KERNEL,
    ),
    magic(
        65588,
        b"ReIsErFs",
        "reiserfs",
        "is a reiserfs file system",
        "a kernel before 6.13 mounts it",
    ),
    magic(
        65588,
        b"ReIsEr2Fs",
        "reiserfs",
        "is a reiserfs file system",
        "a kernel before 6.13 mounts it",
    ),
    magic(
        65588,
        b"ReIsEr3Fs",
        "reiserfs",
        "is a reiserfs file system",
        "a kernel before 6.13 mounts it",
    ),
    magic(32768, b"JFS1", "jfs", "is a jfs file system", KERNEL),
    magic(
        65536,
        b"\x01\x16\x19\x70\0\0\0\x01",
        "gfs2",
        "is a gfs2 file system",
        KERNEL,
    ),
    magic(8192, b"OCFSV2", "ocfs2", "is an ocfs2 file system", KERNEL),
    magic(
        512,
        b"\x45\x3d\xcd\x28",
        "cramfs",
        "is a cramfs file system",
        KERNEL,
    ),
    magic(4086, b"SWAPSPACE2", "swap", "is swap space", SWAP),
    magic(8182, b"SWAPSPACE2", "swap", "is swap space", SWAP),
    magic(16374, b"SWAPSPACE2", "swap", "is swap space", SWAP),
    magic(65526, b"SWAPSPACE2", "swap", "is swap space", SWAP),
    magic(4086, b"SWAP-SPACE", "swap", "is swap space", SWAP),
];

const SWAP: &str = "it holds no files";

pub(super) static ZFS: Format = Format {
    word: "zfs",
    name: "is a device of a ZFS pool",
    advice: "zpool import makes its file systems appear",
};
pub(super) static BZIP2: Format = Format {
    word: "bzip2",
    name: "is compressed with bzip2",
    advice: "bzip2 -d unpacks it",
};
pub(super) static LZMA: Format = Format {
    word: "lzma",
    name: "is compressed with lzma",
    advice: "xz -d unpacks it",
};
pub(super) static TEXT: Format = Format {
    word: "text",
    name: "is a text file",
    advice: "was another file meant?",
};
pub(super) static RAID: Format = Format {
    word: "RAID",
    name: "is a member of a software RAID",
    advice: ASSEMBLE,
};
pub(super) static VHD: Format = Format {
    word: "VHD",
    name: "is a fixed VHD image of Hyper-V's",
    advice: QEMU,
};
pub(super) static DMG: Format = Format {
    word: "DMG",
    name: "is a disk image of Apple's (DMG)",
    advice: "dmg2img makes a plain image of it",
};
pub(super) static AVB: Format = Format {
    word: "AVB",
    name: "is an Android image with a footer of signatures (AVB)",
    advice: "what is before the footer is none that is known",
};
