//! macOS's kernel controls, by which a program opens a utun device: a socket of [`DOMAIN`] and
//! [`PROTOCOL`], the request [`find`], and `connect` to an [`address`].
//!
//! Sources: `bsd/sys/kern_control.h`, `bsd/sys/sys_domain.h` and `bsd/net/if_utun.c` of Apple's xnu.

use crate::{
    bytes::{put, u32_at},
    device_name::UtunUnit,
    interface::IoctlRequest,
    layout::{
        AF_SYS_CONTROL, AF_SYSTEM, CONTROL_INFO, CTLIOCGINFO, MAX_KCTL_NAME, PF_SYSTEM,
        SOCKADDR_CTL, SYSPROTO_CONTROL, UTUN_CONTROL_NAME,
    },
};

/// Domain of a socket to a kernel control (`PF_SYSTEM`). Its type is `SOCK_DGRAM`.
pub const DOMAIN: i32 = PF_SYSTEM.cast_signed();
/// Protocol of a socket to a kernel control (`SYSPROTO_CONTROL`).
pub const PROTOCOL: i32 = SYSPROTO_CONTROL.cast_signed();

/// Bytes of an address of a kernel control (`struct sockaddr_ctl`).
pub const ADDRESS: usize = SOCKADDR_CTL.size;

/// Returns the request for the number of utun's kernel control (`CTLIOCGINFO`). [`id`] reads the
/// answer.
pub fn find() -> IoctlRequest {
    const { assert!(UTUN_CONTROL_NAME.len() < MAX_KCTL_NAME as usize) };
    let mut argument = vec![0; CONTROL_INFO.size];
    put(
        &mut argument,
        CONTROL_INFO.name,
        UTUN_CONTROL_NAME.as_bytes(),
    );
    IoctlRequest::new(CTLIOCGINFO, argument)
}

/// Returns the number in the answer to [`find`].
#[must_use]
pub fn id(answer: &IoctlRequest) -> Option<u32> {
    u32_at(answer.argument(), CONTROL_INFO.id)
}

/// Returns the address of a utun device, to which a program connects to create it. `id` is the
/// number from [`find`].
#[must_use]
pub fn address(id: u32, unit: UtunUnit) -> [u8; ADDRESS] {
    let mut bytes = [0; ADDRESS];
    let fields = &SOCKADDR_CTL;
    put(&mut bytes, fields.length, &[ADDRESS as u8]);
    put(&mut bytes, fields.family, &[AF_SYSTEM as u8]);
    put(
        &mut bytes,
        fields.kind,
        &(AF_SYS_CONTROL as u16).to_le_bytes(),
    );
    put(&mut bytes, fields.id, &id.to_le_bytes());
    put(&mut bytes, fields.unit, &unit.number().to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_contains_utuns_name() {
        let mut request = find();
        assert_eq!(request.number(), 0xc064_4e03);
        assert_eq!(request.argument().len(), 100);
        assert_eq!(request.argument()[4..31], *b"com.apple.net.utun_control\0");
        request.argument_mut()[..4].copy_from_slice(&[7, 0, 0, 0]);
        assert_eq!(id(&request), Some(7));
    }

    #[test]
    fn the_unit_is_one_more_than_the_number_in_the_name() {
        let unit = UtunUnit::parse("utun3").unwrap();
        let bytes = address(7, unit);
        assert_eq!(bytes[..12], [32, 32, 2, 0, 7, 0, 0, 0, 4, 0, 0, 0]);
        assert_eq!(bytes[12..], [0; 20]);
        let bytes = address(7, UtunUnit::parse("utun").unwrap());
        assert_eq!(bytes[8..12], [0; 4]);
    }
}
