use super::*;

fn bytes(digits: &str) -> Vec<u8> {
    let digit = |c: u8| (c as char).to_digit(16).unwrap() as u8;
    let pairs = digits.as_bytes().chunks_exact(2);
    pairs.map(|p| digit(p[0]) << 4 | digit(p[1])).collect()
}

/// Encrypts and decrypts each line of published vectors: key, tweak, plaintext, ciphertext.
fn check_published(mode: Mode, vectors: &str) {
    let mut checked = 0;
    for line in vectors.lines().filter(|line| !line.starts_with('#')) {
        let parts: Vec<_> = line.split(' ').map(bytes).collect();
        let [key, iv, plain, encrypted] = parts.as_slice() else {
            panic!("{line}");
        };
        let iv = iv.as_slice().try_into().unwrap();
        let cipher = Cipher::new(mode, key).unwrap();
        let mut data = plain.clone();
        cipher.encrypt(iv, &mut data);
        assert_eq!(&data, encrypted, "{mode:?}, {} bytes", plain.len());
        cipher.decrypt(iv, &mut data);
        assert_eq!(&data, plain, "{mode:?}, {} bytes", plain.len());
        checked += 1;
    }
    assert!(checked >= 8);
}

#[test]
fn wide_block_modes_agree_with_the_published_vectors() {
    let adiantum = include_str!("../../vectors/adiantum-xchacha12-aes256.txt");
    check_published(Mode::Adiantum, adiantum);
    let hctr2 = include_str!("../../vectors/hctr2-aes256.txt");
    check_published(Mode::Aes256Hctr2, hctr2);
}

/// 512 bytes that both contents modes encrypt, with vector 0x1234; the key consists of the numbers from 0 on.
fn encrypted(mode: Mode, key_size: u8) -> (Vec<u8>, Vec<u8>) {
    let key: Vec<u8> = (0..key_size).collect();
    let plain: Vec<u8> = (0..512).map(|n| (7 * n + 3) as u8).collect();
    let mut iv = [0; IV_SIZE];
    iv[..2].copy_from_slice(&[0x34, 0x12]);
    let cipher = Cipher::new(mode, &key).unwrap();
    let mut data = plain.clone();
    cipher.encrypt(&iv, &mut data);
    let mut back = data.clone();
    cipher.decrypt(&iv, &mut back);
    assert_eq!(back, plain, "{mode:?}");
    (data, plain)
}

#[test]
fn modes_of_contents_agree_with_openssl() {
    let (data, _) = encrypted(Mode::Aes256Xts, 64);
    let sum = "add441c2cfb20af7fa5709a975be7b589309459a34f8a0d0c953566ce9bd6f1c";
    assert_eq!(Sha256::digest(&data).as_slice(), bytes(sum));
    let (data, _) = encrypted(Mode::Aes128CbcEssiv, 16);
    let sum = "f33ef2fd03ad99415081cffc566c946a02570d2d33528154fa1021bd044cbe80";
    assert_eq!(Sha256::digest(&data).as_slice(), bytes(sum));
}

/// RFC 3962, appendix B: CBC with ciphertext stealing of 17 to 64 bytes. (Of 16 bytes RFC 3962 has none; it is plain CBC.)
#[test]
fn ciphertext_stealing_agrees_with_rfc_3962() {
    let key = b"chicken teriyaki";
    let plain = b"I would like the General Gau's Chicken, please, and wonton soup.";
    let all = [
        "c6353568f2bf8cb4d8a580362da7ff7f97",
        "fc00783e0efdb2c1d445d4c8eff7ed2297687268d6ecccc0c07b25e25ecfe5",
        "39312523a78662d5be7fcbcc98ebf5a897687268d6ecccc0c07b25e25ecfe584",
        "97687268d6ecccc0c07b25e25ecfe584b3fffd940c16a18c1b5549d2f838029e39312523a78662d5be7fcbcc98ebf5",
        "97687268d6ecccc0c07b25e25ecfe5849dad8bbb96c4cdc03bc103e1a194bbd839312523a78662d5be7fcbcc98ebf5a8",
        "97687268d6ecccc0c07b25e25ecfe58439312523a78662d5be7fcbcc98ebf5a84807efe836ee89a526730dbc2f7bc8409dad8bbb96c4cdc03bc103e1a194bbd8",
    ];
    let cipher = Cipher::new(Mode::Aes128Cts, key).unwrap();
    for wanted in all.map(bytes) {
        let mut data = plain[..wanted.len()].to_vec();
        cipher.encrypt(&[0; IV_SIZE], &mut data);
        assert_eq!(data, wanted);
        cipher.decrypt(&[0; IV_SIZE], &mut data);
        assert_eq!(data, plain[..wanted.len()]);
    }
    let mut block = plain[..16].to_vec();
    cipher.encrypt(&[0; IV_SIZE], &mut block);
    assert_eq!(block, bytes("97687268d6ecccc0c07b25e25ecfe584"));
    cipher.decrypt(&[0; IV_SIZE], &mut block);
    assert_eq!(block, plain[..16]);
}

#[test]
fn keys_of_other_lengths_are_refused() {
    for mode in [
        Mode::Aes256Xts,
        Mode::Aes256Cts,
        Mode::Adiantum,
        Mode::Aes128Cts,
    ] {
        assert!(Cipher::new(mode, &[1; 24]).is_err(), "{mode:?}");
    }
}
