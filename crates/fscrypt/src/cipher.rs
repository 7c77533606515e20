//! The cipher of a file: a mode with its key.

use aes::cipher::consts::U16;
use aes::cipher::{
    BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, BlockSizeUser,
    InnerIvInit, InvalidLength, KeyInit,
};
use aes::{Aes128, Aes256};
use cts::{CbcCs3, Decrypt, Encrypt};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::adiantum::Adiantum;
use crate::context::Mode;
use crate::hctr2::Hctr2;
use crate::xts::Xts;

/// Bytes of the longest initialization vector; shorter ones are its beginning.
pub(crate) const IV_SIZE: usize = 32;
/// Bytes of the shortest input of all modes.
pub(crate) const INPUT_MIN: usize = 16;

pub(crate) enum Cipher {
    Xts(Box<Xts>),
    /// CBC; its vectors are encrypted with a hash of the key.
    Essiv(Box<Essiv>),
    Cts256(Aes256),
    Cts128(Aes128),
    Adiantum(Adiantum),
    Hctr2(Box<Hctr2>),
}

pub(crate) struct Essiv {
    data: Aes128,
    vectors: Aes256,
}

impl Cipher {
    /// # Errors
    /// The key has another length than the mode's.
    pub(crate) fn new(mode: Mode, key: &[u8]) -> Result<Self, InvalidLength> {
        Ok(match mode {
            Mode::Aes256Xts => Self::Xts(Box::new(Xts::new(key)?)),
            Mode::Aes128CbcEssiv => {
                let hash = Zeroizing::new(<[u8; 32]>::from(Sha256::digest(key)));
                Self::Essiv(Box::new(Essiv {
                    data: Aes128::new_from_slice(key)?,
                    vectors: Aes256::new_from_slice(&*hash)?,
                }))
            }
            Mode::Aes256Cts => Self::Cts256(Aes256::new_from_slice(key)?),
            Mode::Aes128Cts => Self::Cts128(Aes128::new_from_slice(key)?),
            Mode::Adiantum => Self::Adiantum(Adiantum::new(key)?),
            Mode::Aes256Hctr2 => Self::Hctr2(Box::new(Hctr2::new(key)?)),
        })
    }

    /// Encrypts [`INPUT_MIN`] bytes or more; contents: whole blocks of 16 bytes.
    pub(crate) fn encrypt(&self, iv: &[u8; IV_SIZE], data: &mut [u8]) {
        match self {
            Self::Xts(xts) => xts.encrypt(half(iv), data),
            Self::Essiv(essiv) => {
                let mut cbc = cbc::Encryptor::inner_iv_init(&essiv.data, &essiv.vector(iv));
                let (blocks, rest) = aes::Block::slice_as_chunks_mut(data);
                assert!(rest.is_empty(), "a data unit consists of whole blocks");
                cbc.encrypt_blocks(blocks);
            }
            Self::Cts256(aes) => encrypt_cts(aes, iv, data),
            Self::Cts128(aes) => encrypt_cts(aes, iv, data),
            Self::Adiantum(adiantum) => adiantum.encrypt(iv, data),
            Self::Hctr2(hctr2) => hctr2.encrypt(iv, data),
        }
    }

    /// The inverse of [`Cipher::encrypt`].
    pub(crate) fn decrypt(&self, iv: &[u8; IV_SIZE], data: &mut [u8]) {
        match self {
            Self::Xts(xts) => xts.decrypt(half(iv), data),
            Self::Essiv(essiv) => {
                let mut cbc = cbc::Decryptor::inner_iv_init(&essiv.data, &essiv.vector(iv));
                let (blocks, rest) = aes::Block::slice_as_chunks_mut(data);
                assert!(rest.is_empty(), "a data unit consists of whole blocks");
                cbc.decrypt_blocks(blocks);
            }
            Self::Cts256(aes) => decrypt_cts(aes, iv, data),
            Self::Cts128(aes) => decrypt_cts(aes, iv, data),
            Self::Adiantum(adiantum) => adiantum.decrypt(iv, data),
            Self::Hctr2(hctr2) => hctr2.decrypt(iv, data),
        }
    }
}

impl Essiv {
    fn vector(&self, iv: &[u8; IV_SIZE]) -> aes::Block {
        let mut vector = half(iv).into();
        self.vectors.encrypt_block(&mut vector);
        vector
    }
}

fn half(iv: &[u8; IV_SIZE]) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&iv[..16]);
    half
}

fn encrypt_cts<C>(aes: &C, iv: &[u8; IV_SIZE], data: &mut [u8])
where
    C: BlockCipherEncrypt + BlockSizeUser<BlockSize = U16>,
{
    let iv = half(iv).into();
    if data.len() == INPUT_MIN {
        // One block has no other to steal from, which the crate `cts` does not expect.
        let (block, _) = aes::Block::slice_as_chunks_mut(data);
        cbc::Encryptor::inner_iv_init(aes, &iv).encrypt_blocks(block);
    } else {
        let done = CbcCs3::inner_iv_init(aes, &iv).encrypt(data);
        done.expect("callers pass 16 bytes or more");
    }
}

fn decrypt_cts<C>(aes: &C, iv: &[u8; IV_SIZE], data: &mut [u8])
where
    C: BlockCipherDecrypt + BlockSizeUser<BlockSize = U16>,
{
    let iv = half(iv).into();
    if data.len() == INPUT_MIN {
        let (block, _) = aes::Block::slice_as_chunks_mut(data);
        cbc::Decryptor::inner_iv_init(aes, &iv).decrypt_blocks(block);
    } else {
        let done = CbcCs3::inner_iv_init(aes, &iv).decrypt(data);
        done.expect("callers pass 16 bytes or more");
    }
}

#[cfg(test)]
mod tests;
