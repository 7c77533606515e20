//! AES-256-HCTR2: a wide-block cipher for names (Crowley, Huckleberry and Biggers, "Length-preserving encryption with
//! HCTR2", 2021), of AES in counter mode and POLYVAL.

use aes::Aes256;
use aes::cipher::{Block, BlockCipherDecrypt, BlockCipherEncrypt, InvalidLength, KeyInit};
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;
use zeroize::Zeroizing;

/// Bytes of the tweak.
const TWEAK: usize = 32;

pub(crate) struct Hctr2 {
    block: Aes256,
    /// With the hash key, before any input.
    hash: Polyval,
    mask: Zeroizing<u128>,
}

impl Hctr2 {
    /// # Errors
    /// The key has not 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Result<Self, InvalidLength> {
        let block = Aes256::new_from_slice(key)?;
        let encrypted = |number: u128| {
            let mut out = Block::<Aes256>::from(number.to_le_bytes());
            block.encrypt_block(&mut out);
            out
        };
        let (hash_key, mask) = (encrypted(0), encrypted(1));
        Ok(Self {
            hash: Polyval::new(&hash_key),
            mask: Zeroizing::new(u128::from_le_bytes(mask.0)),
            block,
        })
    }

    /// Encrypts at least 16 bytes.
    pub(crate) fn encrypt(&self, tweak: &[u8; TWEAK], data: &mut [u8]) {
        self.crypt(tweak, data, |block| self.block.encrypt_block(block));
    }

    /// Decrypts at least 16 bytes.
    pub(crate) fn decrypt(&self, tweak: &[u8; TWEAK], data: &mut [u8]) {
        self.crypt(tweak, data, |block| self.block.decrypt_block(block));
    }

    /// Both directions are the same but for the block cipher.
    fn crypt(&self, tweak: &[u8; TWEAK], data: &mut [u8], crypt: impl Fn(&mut Block<Aes256>)) {
        let parts = data.split_first_chunk_mut::<16>();
        let (first, rest) = parts.expect("callers pass 16 bytes or more");
        let input = u128::from_le_bytes(*first) ^ self.hash(tweak, rest);
        let mut block = Block::<Aes256>::from(input.to_le_bytes());
        crypt(&mut block);
        let output = u128::from_le_bytes(block.0);
        self.count(input ^ output ^ *self.mask, rest);
        *first = (output ^ self.hash(tweak, rest)).to_le_bytes();
    }

    /// XCTR: like counter mode, but the counter, which begins with 1, is combined by XOR.
    fn count(&self, seed: u128, data: &mut [u8]) {
        for (n, part) in (1u128..).zip(data.chunks_mut(16)) {
            let mut block = Block::<Aes256>::from((seed ^ n).to_le_bytes());
            self.block.encrypt_block(&mut block);
            for (byte, key) in part.iter_mut().zip(block) {
                *byte ^= key;
            }
        }
    }

    fn hash(&self, tweak: &[u8; TWEAK], message: &[u8]) -> u128 {
        let (blocks, rest) = message.as_chunks::<16>();
        let bits = 8 * TWEAK as u128;
        // The message's length is encoded as whole blocks, or as a 1 behind a part of one.
        let length = 2 * bits + if rest.is_empty() { 2 } else { 3 };
        let mut hash = self.hash.clone();
        hash.update(&[length.to_le_bytes().into()]);
        hash.update_padded(tweak);
        for block in blocks {
            hash.update(&[(*block).into()]);
        }
        if !rest.is_empty() {
            let mut last = [0; 16];
            last[..rest.len()].copy_from_slice(rest);
            last[rest.len()] = 1;
            hash.update(&[last.into()]);
        }
        u128::from_le_bytes(hash.finalize().0)
    }
}
