//! Layouts and values in Rust. `c/layout.c` checks the same numbers in C and C++.

#[test]
fn layouts_and_values_are_boringtun_s() {
    use core::mem::offset_of;
    use taupe::c::{result_type, stats, taupe_address, taupe_counters, wireguard_result};
    assert_eq!(
        [
            result_type::WIREGUARD_DONE as u32,
            result_type::WRITE_TO_NETWORK as u32,
            result_type::WIREGUARD_ERROR as u32,
            result_type::WRITE_TO_TUNNEL_IPV4 as u32,
            result_type::WRITE_TO_TUNNEL_IPV6 as u32,
        ],
        [0, 1, 2, 4, 6]
    );
    assert_eq!(size_of::<result_type>(), 4);
    assert_eq!(size_of::<wireguard_result>(), 16);
    assert_eq!(offset_of!(wireguard_result, size), 8);
    assert_eq!(size_of::<stats>(), 88);
    assert_eq!(offset_of!(stats, tx_bytes), 8);
    assert_eq!(offset_of!(stats, rx_bytes), 16);
    assert_eq!(offset_of!(stats, estimated_loss), 24);
    assert_eq!(offset_of!(stats, estimated_rtt), 28);
    assert_eq!(offset_of!(stats, reserved), 32);
    assert_eq!(size_of::<taupe::c::x25519_key>(), 32);
    assert_eq!(size_of::<taupe_address>(), 24);
    assert_eq!(offset_of!(taupe_address, scope), 20);
    assert_eq!(size_of::<taupe_counters>(), 64);
    assert_eq!(offset_of!(taupe_counters, suite), 56);
}

#[test]
fn errors_have_the_numbers_of_both_versions() {
    use taupe::{Error, Numbering};
    let numbers = |numbering| Error::ALL.map(|error| error.number(numbering));
    let mut current: Vec<u32> = (0..17).collect();
    current.extend([1000, 1001, 1002]);
    assert_eq!(numbers(Numbering::Current).to_vec(), current);
    let mut before: Vec<u32> = (0..11).chain([10]).chain(11..16).collect();
    before.extend([1000, 1001, 1002]);
    assert_eq!(numbers(Numbering::Before0_6).to_vec(), before);
    assert_eq!(
        Error::of(14, Numbering::Before0_6),
        Some(Error::ConnectionExpired)
    );
    assert_eq!(
        Error::of(15, Numbering::Current),
        Some(Error::ConnectionExpired)
    );
    assert_eq!(Error::of(17, Numbering::Current), None);
}
