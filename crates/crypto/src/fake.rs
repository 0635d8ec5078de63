//! Stand-ins for simulation: see [`FAKE`](crate::FAKE).
