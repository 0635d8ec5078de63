use proptest::prelude::*;

use super::*;

/// The bytes 0 to 31. The texts are those of `od` and `base64` of coreutils.
const BYTES: [u8; KEY_LEN] = {
    let mut bytes = [0; KEY_LEN];
    let mut i = 0;
    while i < KEY_LEN {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};
const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const ZERO_BASE64: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

fn hex_error(text: &str) -> KeyError {
    Encoding::Hex.public_key(text).unwrap_err()
}

/// Returns the error, which must be equal for all kinds of keys.
fn base64_error(text: &str) -> KeyError {
    let error = Encoding::Base64.public_key(text).unwrap_err();
    assert_eq!(Encoding::Base64.private_key(text).err(), Some(error));
    assert_eq!(Encoding::Base64.preshared_key(text).err(), Some(error));
    error
}

#[test]
fn known_texts() {
    assert!(Encoding::Hex.public_key(HEX) == Ok(PublicKey(BYTES)));
    assert!(Encoding::Hex.public_key(&HEX.to_uppercase()) == Ok(PublicKey(BYTES)));
    assert!(Encoding::Base64.public_key(BASE64) == Ok(PublicKey(BYTES)));
    assert_eq!(Encoding::Hex.encode(&BYTES).as_str(), HEX);
    assert_eq!(Encoding::Base64.encode(&BYTES).as_str(), BASE64);
}

#[test]
fn all_zeros_are_no_key() {
    let zeros = "0".repeat(64);
    assert!(Encoding::Hex.private_key(&zeros) == Ok(None));
    assert!(Encoding::Base64.private_key(ZERO_BASE64) == Ok(None));
    assert!(Encoding::Hex.preshared_key(&zeros) == Ok(PresharedKey::NONE));
    assert!(Encoding::Base64.preshared_key(ZERO_BASE64) == Ok(PresharedKey::NONE));
    // A single set bit is a key, even if clamping would clear it.
    assert!(matches!(
        Encoding::Hex.private_key(&format!("01{}", &zeros[2..])),
        Ok(Some(_))
    ));
}

#[test]
fn private_keys_read_back_clamped() {
    let key = Encoding::Hex.private_key(&"f".repeat(64)).unwrap().unwrap();
    let text = Encoding::Hex.encode(key.expose());
    assert_eq!(text.as_str(), format!("f8{}7f", "f".repeat(60)));
}

#[test]
fn wrong_lengths() {
    for (text, found) in [
        ("", 0),
        (&HEX[..63], 63),
        (&format!("{HEX}0"), 65),
        (BASE64, 44),
    ] {
        assert_eq!(
            hex_error(text),
            KeyError::Length {
                expected: 64,
                found
            }
        );
    }
    // boringtun up to 0.7.1 reads a key of 43 characters as all zeros if its base64 decoder
    // requires padding.
    for (text, found) in [
        ("", 0),
        (&BASE64[..43], 43),
        (&format!("{BASE64}="), 45),
        (HEX, 64),
    ] {
        assert_eq!(
            base64_error(text),
            KeyError::Length {
                expected: 44,
                found
            }
        );
    }
    assert_eq!(
        base64_error(&format!("{BASE64}\n")),
        KeyError::Length {
            expected: 44,
            found: 45
        }
    );
}

#[test]
fn wrong_characters() {
    let at = |position| KeyError::Character { position };
    assert_eq!(hex_error(&HEX.replacen("00", "g0", 1)), at(1));
    assert_eq!(hex_error(&HEX.replacen("1f", "1 ", 1)), at(64));
    // 64 bytes but fewer characters: slicing by bytes would panic.
    assert_eq!(hex_error(&format!("0é{}", &HEX[3..])), at(2));
    assert_eq!(hex_error(&"é".repeat(32)), at(1));

    // boringtun up to 0.7.1 reads 43 or 44 characters with invalid base64 as all zeros; here they
    // are errors.
    assert_eq!(base64_error(&BASE64.replacen("AAE", "*AE", 1)), at(1));
    assert_eq!(base64_error(&BASE64.replacen("AAE", "A-E", 1)), at(2));
    assert_eq!(base64_error(&BASE64.replacen("h8=", "h =", 1)), at(43));
    assert_eq!(base64_error(&BASE64.replacen("AAE", "A=E", 1)), at(2));
    assert_eq!(base64_error(&"é".repeat(22)), at(1));
    // 33 bytes, and 31 bytes, in 44 well-formed characters.
    assert_eq!(base64_error(&BASE64.replacen("8=", "8A", 1)), at(44));
    assert_eq!(base64_error(&BASE64.replacen("h8=", "g==", 1)), at(43));
}

#[test]
fn trailing_bits() {
    // `8` is 0b111100: its last two bits are beyond the key and must be 0.
    for last in ["9", "+", "/"] {
        let text = BASE64.replacen("8=", &format!("{last}="), 1);
        assert_eq!(base64_error(&text), KeyError::TrailingBits);
    }
}

proptest! {
    #[test]
    fn every_key_reads_back(bytes: [u8; KEY_LEN]) {
        for encoding in [Encoding::Hex, Encoding::Base64] {
            let text = encoding.encode(&bytes);
            prop_assert_eq!(text.len(), encoding.length());
            prop_assert!(encoding.public_key(&text) == Ok(PublicKey(bytes)));
            prop_assert!(encoding.preshared_key(&text) == Ok(PresharedKey::new(bytes)));
            prop_assert!(encoding.private_key(&text).unwrap() == PrivateKey::new(bytes));
        }
    }

    /// Every accepted text is the key's only text.
    #[test]
    fn texts_are_canonical(text in "[A-Za-z0-9+/]{43}=") {
        if let Ok(key) = Encoding::Base64.public_key(&text) {
            let again = Encoding::Base64.encode(&key.0);
            prop_assert_eq!(again.as_str(), text);
        }
    }
}
