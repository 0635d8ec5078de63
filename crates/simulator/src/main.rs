//! .
fn main() {
    let seed = std::env::args()
        .nth(1)
        .and_then(|s| s.parse().ok())
        .unwrap_or(1u64);
    let n = std::env::args()
        .nth(2)
        .and_then(|s| s.parse().ok())
        .unwrap_or(1u64);
    let start = std::time::Instant::now();
    let mut total = taupe_simulator::stats::Stats::default();
    for seed in seed..seed + n {
        let episode = taupe_simulator::plan::Episode::generate(seed);
        let o = taupe_simulator::world::run(&episode, &taupe_crypto::FAKE, n == 1);
        total += o.stats;
        if n == 1 {
            for l in &o.trace {
                println!("{l}");
            }
        }
        if let Some(v) = o.violation {
            println!("seed {seed}: hosts {} {v}", episode.hosts);
        }
    }
    println!("{total}\n{:?}", start.elapsed());
}
