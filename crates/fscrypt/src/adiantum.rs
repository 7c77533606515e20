//! Adiantum: a wide-block cipher for processors without AES instructions (Crowley and Biggers, "Adiantum:
//! length-preserving encryption for entry-level processors", 2018), of XChaCha12, AES-256, NH and Poly1305.

use aes::Aes256;
use aes::cipher::{
    Block, BlockCipherDecrypt, BlockCipherEncrypt, InvalidLength, KeyInit, KeyIvInit, StreamCipher,
};
use chacha20::XChaCha12;
use poly1305::Poly1305;
use poly1305::universal_hash::UniversalHash;
use zeroize::{Zeroize, Zeroizing};

/// NH hashes messages of this many bytes at a time, in four passes.
const NH_MESSAGE: usize = 1024;
const NH_PASSES: usize = 4;
/// What NH takes at a time; each pass begins that much later in the key.
const NH_UNIT: usize = 16;
/// 32-bit words of NH's key.
const NH_KEY_WORDS: usize = (NH_MESSAGE + NH_UNIT * (NH_PASSES - 1)) / 4;
/// Bytes of the tweak.
const TWEAK: usize = 32;

pub(crate) struct Adiantum {
    stream_key: Zeroizing<[u8; 32]>,
    block: Aes256,
    tweak_key: Zeroizing<[u8; 32]>,
    message_key: Zeroizing<[u8; 32]>,
    nh_key: Box<Zeroizing<[u32; NH_KEY_WORDS]>>,
}

impl Adiantum {
    /// # Errors
    /// The key has not 32 bytes.
    pub(crate) fn new(key: &[u8]) -> Result<Self, InvalidLength> {
        let stream_key = Zeroizing::new(<[u8; 32]>::try_from(key).map_err(|_| InvalidLength)?);
        let mut keys = Zeroizing::new([0; 32 + 16 + 16 + 4 * NH_KEY_WORDS]);
        let mut nonce = [0; 24];
        nonce[0] = 1;
        XChaCha12::new((&*stream_key).into(), &nonce.into()).apply_keystream(&mut *keys);
        let (block, rest) = keys.split_at(32);
        let (tweak, rest) = rest.split_at(16);
        let (message, nh) = rest.split_at(16);
        let mut nh_key = Box::new(Zeroizing::new([0; NH_KEY_WORDS]));
        for (word, bytes) in nh_key.iter_mut().zip(nh.chunks_exact(4)) {
            *word = word_of(bytes);
        }
        Ok(Self {
            block: Aes256::new_from_slice(block)?,
            tweak_key: poly_key(tweak),
            message_key: poly_key(message),
            nh_key,
            stream_key,
        })
    }

    /// Encrypts at least 16 bytes.
    pub(crate) fn encrypt(&self, tweak: &[u8; TWEAK], data: &mut [u8]) {
        let (left, right) = split(data);
        let header = self.hash_tweak(tweak, left.len());
        let mut middle = sum(right, header.wrapping_add(self.hash_message(left)));
        self.block.encrypt_block(&mut middle);
        self.apply_stream(&middle, left);
        let hash = header.wrapping_add(self.hash_message(left));
        let value = u128::from_le_bytes(middle.0).wrapping_sub(hash);
        right.copy_from_slice(&value.to_le_bytes());
    }

    /// Decrypts at least 16 bytes.
    pub(crate) fn decrypt(&self, tweak: &[u8; TWEAK], data: &mut [u8]) {
        let (left, right) = split(data);
        let header = self.hash_tweak(tweak, left.len());
        let mut middle = sum(right, header.wrapping_add(self.hash_message(left)));
        self.apply_stream(&middle, left);
        self.block.decrypt_block(&mut middle);
        let hash = header.wrapping_add(self.hash_message(left));
        let value = u128::from_le_bytes(middle.0).wrapping_sub(hash);
        right.copy_from_slice(&value.to_le_bytes());
    }

    fn apply_stream(&self, middle: &Block<Aes256>, left: &mut [u8]) {
        let mut nonce = [0; 24];
        nonce[..16].copy_from_slice(middle);
        nonce[16] = 1;
        XChaCha12::new((&*self.stream_key).into(), &nonce.into()).apply_keystream(left);
    }

    /// The hash of the message's length and the tweak.
    fn hash_tweak(&self, tweak: &[u8; TWEAK], len: usize) -> u128 {
        let mut header = [0; 16 + TWEAK];
        header[..16].copy_from_slice(&(8 * len as u128).to_le_bytes());
        header[16..].copy_from_slice(tweak);
        let mut hash = Poly1305::new((&*self.tweak_key).into());
        hash.update_padded(&header);
        u128::from_le_bytes(hash.finalize().0)
    }

    fn hash_message(&self, message: &[u8]) -> u128 {
        let mut hash = Poly1305::new((&*self.message_key).into());
        for part in message.chunks(NH_MESSAGE) {
            hash.update_padded(&self.nh(part));
        }
        u128::from_le_bytes(hash.finalize().0)
    }

    /// NH of up to [`NH_MESSAGE`] bytes, which are padded with zeros to whole units.
    fn nh(&self, message: &[u8]) -> [u8; 8 * NH_PASSES] {
        let mut sums = [0u64; NH_PASSES];
        for (n, unit) in message.chunks(NH_UNIT).enumerate() {
            let mut padded = [0; NH_UNIT];
            padded[..unit.len()].copy_from_slice(unit);
            let words = [0, 4, 8, 12].map(|at| word_of(&padded[at..at + 4]));
            let key = &self.nh_key[4 * n..][..4 * NH_PASSES];
            for (sum, key) in sums.iter_mut().zip(key.chunks_exact(4)) {
                let at = |i: usize| u64::from(words[i].wrapping_add(key[i]));
                *sum = sum.wrapping_add(at(0).wrapping_mul(at(2)));
                *sum = sum.wrapping_add(at(1).wrapping_mul(at(3)));
            }
        }
        let mut hash = [0; 8 * NH_PASSES];
        for (bytes, sum) in hash.chunks_exact_mut(8).zip(sums) {
            bytes.copy_from_slice(&sum.to_le_bytes());
        }
        hash
    }
}

/// The key of Poly1305 as a hash alone: nothing is added at the end.
fn poly_key(half: &[u8]) -> Zeroizing<[u8; 32]> {
    let mut key = Zeroizing::new([0; 32]);
    key[..16].copy_from_slice(half);
    key
}

fn word_of(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, &b| word << 8 | u32::from(b))
}

/// All but the last 16 bytes, and these.
fn split(data: &mut [u8]) -> (&mut [u8], &mut [u8]) {
    let at = data.len().checked_sub(16);
    data.split_at_mut(at.expect("callers pass 16 bytes or more"))
}

fn sum(right: &[u8], hash: u128) -> Block<Aes256> {
    let mut bytes = [0; 16];
    bytes.copy_from_slice(right);
    let value = u128::from_le_bytes(bytes).wrapping_add(hash);
    bytes.zeroize();
    value.to_le_bytes().into()
}
