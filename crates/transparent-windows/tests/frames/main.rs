//! The pipeline on network-card frames, over a tap that replays and records, with a peer in
//! memory. Every frame that was made is read by a parser that is not ours.

mod applications;
mod carried;
mod chaos;
mod closed;
mod endpoints;
mod held;
mod limits;
mod packets;
mod replay;
mod routers;
mod world;
