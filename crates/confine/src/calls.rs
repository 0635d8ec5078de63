//! Lists of system calls as data.

/// The calls that a process may make after it has been confined.
#[derive(Clone, Copy, Debug)]
pub struct CallList {
    /// The process.
    pub process: &'static str,
    /// The calls, in groups by purpose.
    pub groups: &'static [&'static [AllowedCall]],
}

/// A call that a list allows.
#[derive(Clone, Copy, Debug)]
pub struct AllowedCall {
    /// Name.
    pub name: &'static str,
    /// Number on this architecture.
    pub number: i64,
    /// Alternatives, each a list of conditions that all hold. Without alternatives, any arguments are
    /// allowed.
    pub alternatives: &'static [&'static [Condition]],
}

/// Condition on an argument, of which the lower 32 bits are compared.
#[derive(Clone, Copy, Debug)]
pub struct Condition {
    /// Position, from 0.
    pub argument: u8,
    /// Bits that are compared.
    pub mask: u32,
    /// Value of these bits.
    pub value: u32,
}

impl Condition {
    /// The argument has this value.
    pub(crate) const fn equals(argument: u8, value: i32) -> Self {
        Self::masked(argument, -1, value)
    }

    /// The bits of the argument in `mask` have this value.
    pub(crate) const fn masked(argument: u8, mask: i32, value: i32) -> Self {
        Self {
            argument,
            mask: mask.cast_unsigned(),
            value: value.cast_unsigned(),
        }
    }
}

impl CallList {
    /// Returns the calls.
    pub fn calls(&self) -> impl Iterator<Item = &'static AllowedCall> {
        self.groups.iter().flat_map(|group| group.iter())
    }
}
