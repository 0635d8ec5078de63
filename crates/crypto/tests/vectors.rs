//! Published vectors of the RFCs, and BLAKE2s against a second implementation.

mod common;

use common::{hex, hex_array, real_providers, with_room};
use hmac::{KeyInit, Mac, SimpleHmac};
use taupe_crypto::{Packet, Secret, TAG_LEN};

/// RFC 8439 §2.8.2.
#[test]
fn chacha20_poly1305_of_rfc_8439_section_2_8_2() {
    let key = Secret::new(hex_array(
        "808182838485868788898a8b8c8d8e8f909192939495969798999a9b9c9d9e9f",
    ));
    let nonce = hex_array("070000004041424344454647");
    let ad = hex("50515253c0c1c2c3c4c5c6c7");
    let plaintext: &[u8] = b"Ladies and Gentlemen of the class of '99: If I could offer you \
        only one tip for the future, sunscreen would be it.";
    let sealed = hex(
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d6
         3dbea45e8ca9671282fafb69da92728b1a71de0a9e060b2905d6a5b67ecd3b36
         92ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc
         3ff4def08e4b7a9de576d26586cec64b6116
         1ae10b594f09e26a7e902ecbd0600691",
    );
    for provider in real_providers() {
        let mut data = with_room(plaintext);
        provider.aead.seal_with_nonce(&key, &nonce, &ad, &mut data);
        assert_eq!(data, sealed, "{}", provider.name);
    }
}

/// RFC 8439 appendix A.5, whose nonce is one that a counter makes.
#[test]
fn chacha20_poly1305_of_rfc_8439_appendix_a_5() {
    let key = Secret::new(hex_array(
        "1c9240a5eb55d38af333888604f6b5f0473917c1402b80099dca5cbc207075c0",
    ));
    let counter = 0x0807_0605_0403_0201;
    let ad = hex("f33388860000000000004e91");
    let sealed = hex(
        "64a0861575861af460f062c79be643bd5e805cfd345cf389f108670ac76c8cb2
         4c6cfc18755d43eea09ee94e382d26b0bdb7b73c321b0100d4f03b7f355894cf
         332f830e710b97ce98c8a84abd0b948114ad176e008d33bd60f982b1ff37c855
         9797a06ef4f0ef61c186324e2b3506383606907b6a7c02b0f9f6157b53c867e4
         b9166c767b804d46a59b5216cde7a4e99040c5a40433225ee282a1b0a06c523e
         af4534d7f83fa1155b0047718cbc546a0d072b04b3564eea1b422273f548271a
         0bb2316053fa76991955ebd63159434ecebb4e466dae5a1073a6727627097a10
         49e617d91d361094fa68f0ff77987130305beaba2eda04df997b714d6c6f2c29
         a6ad5cb4022b02709b
         eead9d67890cbb22392336fea1851f38",
    );
    let plaintext = "Internet-Drafts are draft documents valid for a maximum of six months and \
        may be updated, replaced, or obsoleted by other documents at any time. It is \
        inappropriate to use Internet-Drafts as reference material or to cite them other than \
        as /\u{201c}work in progress./\u{201d}";
    for provider in real_providers() {
        let mut data = sealed.clone();
        let opened = provider.aead.open_with(&key, counter, &ad, &mut data);
        assert_eq!(opened, Ok(()), "{}", provider.name);
        assert_eq!(data[..data.len() - TAG_LEN], *plaintext.as_bytes());

        provider.aead.seal_with(&key, counter, &ad, &mut data);
        assert_eq!(data, sealed, "{}", provider.name);
    }
}

/// A batch key and the function with associated data are two ways into a
/// backend: without associated data they must agree, at every counter.
#[test]
fn a_batch_key_counts_as_the_handshake_does() {
    let key = Secret::new([0x42; 32]);
    for provider in real_providers() {
        for counter in [0, 1, 0xffff_ffff, 0x1_0000_0000, u64::MAX] {
            let mut batch = with_room(b"mole");
            provider.aead.key(&key).seal(&mut [Packet {
                counter,
                data: &mut batch,
            }]);
            let mut single = with_room(b"mole");
            provider.aead.seal_with(&key, counter, &[], &mut single);
            assert_eq!(batch, single, "{} {counter}", provider.name);
        }
    }
}

/// RFC 7748 §5.2, single calls.
#[test]
fn x25519_of_rfc_7748_section_5_2() {
    for (scalar, u, output) in [
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a493",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ] {
        for provider in real_providers() {
            let agreed = provider
                .dh
                .agree(&hex_array(scalar), &hex_array(u))
                .unwrap();
            assert_eq!(*agreed.expose(), hex_array(output), "{}", provider.name);
        }
    }
}

/// RFC 7748 §5.2, each output the next scalar.
#[test]
#[cfg_attr(miri, ignore = "a thousand multiplications take too long")]
fn x25519_iterated_of_rfc_7748_section_5_2() {
    for provider in real_providers() {
        let mut scalar: [u8; 32] = std::array::from_fn(|i| if i == 0 { 9 } else { 0 });
        let mut u = scalar;
        for round in 1..=1000 {
            let output = *provider.dh.agree(&scalar, &u).unwrap().expose();
            u = std::mem::replace(&mut scalar, output);
            if round == 1 {
                let after_one = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079";
                assert_eq!(scalar, hex_array(after_one), "{}", provider.name);
            }
        }
        let after_1000 = "684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51";
        assert_eq!(scalar, hex_array(after_1000), "{}", provider.name);
    }
}

/// RFC 7748 §6.1.
#[test]
fn x25519_of_rfc_7748_section_6_1() {
    let alice = hex_array("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a");
    let bob = hex_array("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
    let alice_public =
        hex_array("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
    let bob_public = hex_array("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f");
    let shared = hex_array("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
    for provider in real_providers() {
        assert_eq!(provider.dh.public(&alice), alice_public);
        assert_eq!(provider.dh.public(&bob), bob_public);
        let agreed = provider.dh.agree(&alice, &bob_public).unwrap();
        assert_eq!(*agreed.expose(), shared);
        let agreed = provider.dh.agree(&bob, &alice_public).unwrap();
        assert_eq!(*agreed.expose(), shared);
    }
}

/// RFC 7693 appendix B.
#[test]
fn blake2s_of_rfc_7693_appendix_b() {
    let digest = hex_array("508c5e8c327c14e2e1a72ba34eeb452f37458b209ed63a294d999b4c86675982");
    for provider in real_providers() {
        assert_eq!(provider.hash.hash(&[b"abc"]), digest);
        assert_eq!(provider.hash.hash(&[b"a", b"", b"bc"]), digest);
    }
}

/// Around every block boundary: keys `1, 2, 3, …`, messages `0, 1, 2, …`.
/// Computed with the hashlib of CPython 3.11, which has the designers' own code.
#[test]
fn keyed_blake2s_equals_hashlib() {
    for (key_len, message_len, mac) in [
        (1, 0, "95714fec355dea0dda4da4bebf429e17"),
        (1, 1, "1ed9749e2862a6c3d39cd367709608be"),
        (1, 63, "cd5451152d1a3510d30509bcbc151586"),
        (1, 64, "df2fc94c25af06a834031e9b2aa11c3d"),
        (1, 65, "74c8843c0eafdcecb15196fe2433757d"),
        (1, 116, "7b801ed9410394ca9eb0f4dcbfae583a"),
        (1, 200, "d230377a8e184aecce72e929bc4ea478"),
        (16, 0, "841d60d07b134487ea2147d09361336d"),
        (16, 1, "3904e3d082b5bc566d20fcdf6336c31f"),
        (16, 63, "e7c1ad991b5b9278efe0a7f84b651aeb"),
        (16, 64, "b454408d5fa861311eaf72ce664b1e59"),
        (16, 65, "a559f1e5758ec6779297f60c69737ab6"),
        (16, 116, "68bdd19bd1aa299b8bee5d49d7a9c0e3"),
        (16, 200, "9c38dd4f1327d3970c19637907304bdc"),
        (32, 0, "1b7fb3c33429a975524ac696a8d8070c"),
        (32, 1, "b5d4094070c89ee92142cf82d4bf44ce"),
        (32, 63, "99fb49c77e2244379631b5f1f69abf50"),
        (32, 64, "5011f396858435d2f64bb42387c38f4e"),
        (32, 65, "20a9c3d0e403f000ea1a99229db78970"),
        (32, 116, "57dc0e6cdcd13dfea0bf22173b0f3f1e"),
        (32, 200, "7664bc4745ededf1ebd1e60ec7d49ac7"),
    ] {
        let key: Vec<u8> = (1..=key_len).collect();
        let message: Vec<u8> = (0..message_len).collect();
        for provider in real_providers() {
            assert_eq!(provider.hash.mac(&key, &[&message]), hex_array(mac));
            let (head, tail) = message.split_at(message.len() / 3);
            assert_eq!(provider.hash.mac(&key, &[head, tail]), hex_array(mac));
        }
    }
}

/// As above, with CPython's hmac module over hashlib's BLAKE2s.
#[test]
fn hmac_blake2s_equals_hashlib() {
    for (key_len, message_len, mac) in [
        (
            0,
            0,
            "eaf4bb25938f4d20e72656bbbc7a9bf63c0c18537333c35bdb67db1402661acd",
        ),
        (
            0,
            1,
            "2c463acb9ef603333b173321a3ff0d7f7a562d569db0efb9a5cad61f6e0792cf",
        ),
        (
            0,
            64,
            "85b55a3c7af063f3d2744b2d568d2f808f33794f9791c08f0f37fbdb681d29b1",
        ),
        (
            0,
            200,
            "37bfd84146a999397d51a647e2fa1ddf4195ae34da253a7be156b06db7c233b6",
        ),
        (
            32,
            0,
            "415e9b4d3980426d4035d9a83fea764b343f7268672ebf9a667a6c308967024a",
        ),
        (
            32,
            1,
            "9ebfc803f5aa5c6bd5833dee98e47d3a87dd3047a7cc1668f581dd971e6fe895",
        ),
        (
            32,
            64,
            "31b3072b33b88d32f86554c294fbe5bbe762f49cda94d23c3f134d7c8cec3d93",
        ),
        (
            32,
            200,
            "8f8492cf7d01d4474cf69de2a3b906dbd1184127ff680200bd28feaef94397a8",
        ),
        (
            63,
            0,
            "33015d43ef22a38e057d075b98ff09077adab90e3918fe598c6e07496decbaa9",
        ),
        (
            63,
            1,
            "8424bdcd0fa138b8f5451707cc76e8637890fd13d737313c9166e0b3c33e00ce",
        ),
        (
            63,
            64,
            "f678120f03275af7af823015bbe257d14642d2729c98204b1192301836cd3c64",
        ),
        (
            63,
            200,
            "f797d19f2d28884806ac34a28d42f242fffad034e323e15d95a46a248f89c786",
        ),
        (
            64,
            0,
            "71538c31b1d4e5d3b7b03f9579904f45ff45ec61fe737940de42ebf3747f3300",
        ),
        (
            64,
            1,
            "09763b72e1756809fff3d0529033ce4e1d28b65063e7a5819c5a528089f5eac7",
        ),
        (
            64,
            64,
            "e1a92a122ab5b17f0825a8eae4b0abf57cd010d0f1e46276e0e9bf2f1335b59a",
        ),
        (
            64,
            200,
            "0af34cb383b61afa16a028454d5f16e3209fcad914a2f18b5097ee86657c4be9",
        ),
        (
            65,
            0,
            "ba8b98351a466fbd84d17ad59e310e7e9cff60feb25108c16b7b5383936bf9c9",
        ),
        (
            65,
            1,
            "d4cdf7191a300c9f1a87a760f462066a8a67271392370abac598af158e82d773",
        ),
        (
            65,
            64,
            "4a5ae9a238ab47dad1198ce84c2bc4411d72198e34cbcf5e33b6b96acaddf572",
        ),
        (
            65,
            200,
            "a40709c5a0d04579a11545c4c90a5533803d752426d4cc1bd0b48513b7e43df2",
        ),
        (
            100,
            0,
            "7b1b8486d0f64dcaadd1e171e2a7c16bd2f39c5e407dc11a31f41f1cef0547bc",
        ),
        (
            100,
            1,
            "2439aee86fb92d57565d839242f630fb5e047bc2d5187ce1b6f2f9833d781557",
        ),
        (
            100,
            64,
            "0d14b3d9a7cda604e159332df11e8b065f37c9160e0d3ad6ebf2415fdb9c10a1",
        ),
        (
            100,
            200,
            "881cbf24557641cf93dd7fd30009d724e8522bcfc9895c67260feae58302e182",
        ),
    ] {
        let key: Vec<u8> = (1..=key_len).collect();
        let message: Vec<u8> = (0..message_len).collect();
        for provider in real_providers() {
            let computed = provider.hash.hmac(&key, &[&message]);
            assert_eq!(*computed.expose(), hex_array(mac));
            let (head, tail) = message.split_at(message.len() / 3);
            let computed = provider.hash.hmac(&key, &[head, tail]);
            assert_eq!(*computed.expose(), hex_array(mac));
        }
    }
}

/// The construction itself, by the hmac crate, for every length of key.
#[test]
fn hmac_blake2s_equals_the_hmac_crate() {
    let message = b"chaining key";
    for key_len in 0..=130_u8 {
        let key: Vec<u8> = (0..key_len).collect();
        let mut expected = SimpleHmac::<blake2::Blake2s256>::new_from_slice(&key).unwrap();
        expected.update(message);
        let expected: [u8; 32] = expected.finalize().into_bytes().into();
        for provider in real_providers() {
            let computed = provider.hash.hmac(&key, &[message]);
            assert_eq!(*computed.expose(), expected, "a key of {key_len} bytes");
        }
    }
}
