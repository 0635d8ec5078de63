//! What Windows has for [`frames`](crate::frames): where they are intercepted.

pub mod ndisapi;
