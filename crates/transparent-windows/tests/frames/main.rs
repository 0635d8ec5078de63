//! Tests of the pipeline with frames, on a tap that replays and records them, with a peer in
//! memory. Another implementation's parser checks every frame that the pipeline makes.

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
mod system;
mod world;
