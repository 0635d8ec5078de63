use proptest::prelude::*;

use super::*;

fn text(input: &str) -> String {
    parse(input).unwrap().to_string()
}

#[test]
fn prefixes_and_addresses() {
    for same in [
        "0.0.0.0/0",
        "10.0.0.0/8",
        "192.0.2.255/32",
        "::/0",
        "2001:db8::/32",
        "::1/128",
    ] {
        assert_eq!(text(same), same);
    }
    assert_eq!(text("192.0.2.1"), "192.0.2.1/32");
    assert_eq!(text("2001:DB8:0::1"), "2001:db8::1/128");
    // Stays IPv6, as `wg` sends it.
    assert_eq!(text("::ffff:192.0.2.1/128"), "::ffff:192.0.2.1/128");
}

#[test]
fn host_bits_are_cleared() {
    assert_eq!(text("10.1.2.3/8"), "10.0.0.0/8");
    assert_eq!(text("255.255.255.255/31"), "255.255.255.254/31");
    assert_eq!(text("255.255.255.255/0"), "0.0.0.0/0");
    assert_eq!(text("ffff::ffff/127"), "ffff::fffe/127");
    assert_eq!(text("ffff::ffff/0"), "::/0");
}

#[test]
fn malformed() {
    for address in [
        "",
        "/",
        "/8",
        "example.org",
        "10.0.0/8",
        "10.0.0.0.0/8",
        "10.0.0.256",
        "010.0.0.1",
        " 10.0.0.0/8",
        "1::2::3/64",
        "[::1]/128",
        "fe80::1%2/64",
        "-10.0.0.0/8",
        "10.0.0.0\0",
    ] {
        assert_eq!(parse(address), Err(PrefixError::Address), "{address:?}");
    }
    for length in [
        "",
        "33",
        "-1",
        "+8",
        "08",
        "00",
        "8 ",
        " 8",
        "256",
        "264",
        "8/8",
        "255.0.0.0",
    ] {
        let text = format!("10.0.0.0/{length}");
        assert_eq!(
            parse(&text),
            Err(PrefixError::Length { max: 32 }),
            "{text:?}"
        );
    }
    for length in ["", "129", "0x10", "99999999999999999999"] {
        let text = format!("2001:db8::/{length}");
        assert_eq!(
            parse(&text),
            Err(PrefixError::Length { max: 128 }),
            "{text:?}"
        );
    }
}

proptest! {
    #[test]
    fn every_prefix_reads_back(address: IpAddr, length in 0..=128_u8) {
        if let Some(prefix) = network(address, length) {
            prop_assert_eq!(parse(&prefix.to_string()), Ok(prefix));
        }
    }
}
