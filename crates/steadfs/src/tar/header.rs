//! A ustar header: one block.

use super::BLOCK;

/// Bytes of a name or of a link's target.
pub(crate) const NAME_LEN: usize = 100;
/// Largest owner and group.
pub(crate) const ID_MAX: u64 = 0o777_7777;
/// Largest size and time.
pub(crate) const NUMBER_MAX: u64 = 0o777_7777_7777;

/// The fields that members are written with.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Header<'a> {
    pub name: &'a [u8],
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub size: u64,
    pub mtime: i64,
    pub kind: u8,
    pub link: &'a [u8],
    pub device: (u32, u32),
}

impl Header<'_> {
    /// The header's block. What does not fit is cut, and numbers become the largest ones: pax records have them.
    pub fn block(&self) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        text(&mut block[0..100], self.name);
        octal(&mut block[100..108], self.mode.into());
        octal(&mut block[108..116], self.uid.into());
        octal(&mut block[116..124], self.gid.into());
        octal(&mut block[124..136], self.size);
        octal(&mut block[136..148], u64::try_from(self.mtime).unwrap_or(0));
        block[156] = self.kind;
        text(&mut block[157..257], self.link);
        block[257..265].copy_from_slice(b"ustar\x0000");
        octal(&mut block[329..337], self.device.0.into());
        octal(&mut block[337..345], self.device.1.into());
        let sum = checksum(&block);
        octal(&mut block[148..155], sum.into());
        block[155] = b' ';
        block
    }
}

/// The sum of a header's bytes; those of the checksum count as spaces.
pub(crate) fn checksum(block: &[u8; BLOCK]) -> u32 {
    let outside = block[..148].iter().chain(&block[156..]);
    8 * u32::from(b' ') + outside.map(|&byte| u32::from(byte)).sum::<u32>()
}

fn text(field: &mut [u8], value: &[u8]) {
    let len = value.len().min(field.len());
    field[..len].copy_from_slice(&value[..len]);
}

fn octal(field: &mut [u8], value: u64) {
    let digits = field.len() - 1;
    let mut rest = value.min((1 << (3 * digits)) - 1);
    for byte in field[..digits].iter_mut().rev() {
        *byte = b'0' + (rest % 8) as u8;
        rest /= 8;
    }
}
