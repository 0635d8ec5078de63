//! Writes the seed corpora: `cargo run --example seeds`, in this folder.

use std::fs;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for (target, _) in taupe_fuzz::TARGETS {
        let folder = root.join(target);
        fs::create_dir_all(&folder)?;
        let seeds = taupe_fuzz::seeds(target);
        for (i, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{i:03}")), seed)?;
        }
        println!("{target}: {} seeds", seeds.len());
    }
    Ok(())
}
