//! General registers and their parts.

/// Registers of 64 bits.
pub(super) const GENERAL: [&str; 16] = [
    "rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

/// Registers in which a function takes arguments (System V ABI).
pub(super) const ARGUMENTS: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];

/// Registers that a call may change.
pub(super) const CLOBBERED: [&str; 9] =
    ["rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"];

/// Returns the register of 64 bits that a name is a part of, and the bytes of the part.
pub(super) fn general(name: &str) -> Option<(&'static str, usize)> {
    if let Some(register) = GENERAL.into_iter().find(|it| *it == name) {
        return Some((register, 8));
    }
    if let Some(number) = name.strip_prefix('r') {
        let (number, size) = match number.char_indices().last()? {
            (at, 'd') => (&number[..at], 4),
            (at, 'w') => (&number[..at], 2),
            (at, 'b') => (&number[..at], 1),
            _ => return None,
        };
        let register = GENERAL.into_iter().find(|it| it[1..] == *number)?;
        return Some((register, size));
    }
    let (whole, size) = match name {
        "ah" | "bh" | "ch" | "dh" => (format!("r{}x", &name[..1]), 1),
        "al" | "bl" | "cl" | "dl" => (format!("r{}x", &name[..1]), 1),
        "sil" | "dil" | "bpl" | "spl" => (format!("r{}", &name[..2]), 1),
        _ if name.starts_with('e') => (format!("r{}", &name[1..]), 4),
        _ => (format!("r{name}"), 2),
    };
    let register = GENERAL.into_iter().find(|it| *it == whole)?;
    Some((register, size))
}

#[cfg(test)]
mod tests {
    use super::general;

    #[test]
    fn parts_belong_to_their_register() {
        let parts = [
            ("rax", "rax", 8),
            ("eax", "rax", 4),
            ("si", "rsi", 2),
            ("sil", "rsi", 1),
            ("dh", "rdx", 1),
            ("r8", "r8", 8),
            ("r10d", "r10", 4),
            ("r15b", "r15", 1),
        ];
        for (part, register, size) in parts {
            assert_eq!(general(part), Some((register, size)), "{part}");
        }
        for other in ["xmm0", "k1", "rip", "fs"] {
            assert_eq!(general(other), None, "{other}");
        }
    }
}
